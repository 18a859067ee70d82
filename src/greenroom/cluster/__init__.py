"""The same room over many machines: hosts run the servers, fronts serve the clients, a directory says who may run what.

A host is an ordinary room with a door for links, and a front is an ordinary room that reaches its servers through
links. So what is here is small: where an address lives (`placement`), for how long a host may run it
(`leases`), and both ends of the way from front to host. Everything of Ray is in `ray_cluster`, and nothing of it is
imported without need.

The command line may import:

* `directory`: where everybody learns which hosts there are
* `front`: a room whose servers live on the hosts of a cluster
* `leases`: how long a lease lasts
* `membership`: what a front knows of the cluster, and how it asks a host for something
* `ray_cluster`: everything of Ray; a cluster on this machine
* `placement`: the hosts, as a directory shows them
* `ray_directory`: the directory of a cluster on Ray
"""
