"""What stands between a caller and a server: scrubbing, approval, pinned definitions, audit.

Other rooms may import:

* `approval`: which calls a person has to allow, what is asked, what an answer means
* `approval_desk`: calls that are held: who is asked, the people at terminals, what follows
* `audit`: the lines of an audit file, the chain they make, and its check
* `audit_file`: the file, opened, appended, mended
* `pinning`: tools are what they were when first shown: compared, kept on disk, quarantined, accepted
* `pins_file`: what is remembered of tools, in memory or on disk
* `scrubber`: whether results and notifications of a server are scrubbed at a door, and the scrubbing
"""
