"""A real cluster under faults (`make cluster`): three nodes of Ray on this machine, two fronts, thirty servers of every
isolation, two hundred calls in flight; hosts, raylets, fronts and the directory are killed or stopped at random.

| module | job |
|---|---|
| `server` | the servers: each writes down what it runs, for whom, and that it still lives |
| `front` | a front: an embedded `ClusterRoom` whose callers write down each call and its one outcome |
| `faults` | draws the faults from the seed, and does them |
| `pace` | measures how fast the machine is, which limits follow |
| `books` | compares what callers and servers wrote; says what must not be |
| `course` | the course of a run |
| `head` | another course: the head is killed |
| `__main__` | runs one |
"""
