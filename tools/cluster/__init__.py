"""A real cluster under faults (`make cluster`): three nodes of Ray on this machine, two fronts, thirty servers of every
isolation, two hundred calls in flight; hosts, raylets, fronts and the directory are killed or stopped at random.

| module | job |
|---|---|
| `faults` | the table of faults; draws from the seed which happen, and does them |
| `course` | the courses of a run (random faults, or the head is lost), and their player |
| `testbed` | what they happen to: the cluster, its nodes and fronts, and how long anything may take there |
| `books` | compares what callers and servers wrote; says what must not be |
| `front` | a front: an embedded `ClusterRoom` whose callers write down each call and its one outcome |
| `server` | the servers: each writes down what it runs, for whom, and that it still lives |
| `pace` | measures how fast the machine is, which limits follow |
| `store` | where a head's store keeps what it knows |
| `__main__` | runs one |
"""
