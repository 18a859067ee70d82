"""Who decides: policies, starts, the list of all servers, and `Greenroom`, the public door.

A door gets a room from `room`, and reaches what is in it through its port alone. Three more stand here because they
ride on a room, and say themselves what they are for.

Other rooms may import:

* `attachments`: what is attached to a room, for those who attach something
* `call_stream`: a call and its progress, and a task, as `Greenroom` gives them
* `program_log`: what a program reads in `logging`, and a command says itself
* `profiles`: what a port shows of a room to the clients of a profile, for types alone
* `room`: `Greenroom`, `Session`, the public door, and `port_of`
* `port`: the port, for types alone
"""
