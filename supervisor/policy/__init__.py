"""The policies: pure functions and values, which know no clock, no task and no actor.

* `breaker`: when a server refuses calls and starts; how often it may be restarted
* `pool`: who gets a slot, and who is asked to end
* `endings`: what follows an ending
* `availability`: whether a server can be used, and if not, why
"""
