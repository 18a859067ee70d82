"""What stands between a caller and a server: scrubbing, approval, pinned definitions, audit.

Other rooms may import:

* `approval`: which calls a person has to allow, what is asked, what an answer means
* `approval_desk`: the calls about which somebody is asked, for people at terminals
* `approval_gate`: calls that somebody has to allow: held, asked about, sent or refused
* `audit`: the lines of an audit file, the chain they make, and its check
* `audit_file`: the file, opened, appended, mended
* `gates`: what a call passes on its way to its server's actor, in one ordered list
* `pinning`: tools are what they were when first shown: compared, kept on disk, quarantined, accepted
* `pins_file`: what is remembered of tools, in memory or on disk
* `server_questions`: what a server asks or tells a person, without commands for a terminal and hidden characters
* `rates`: limits of rates, and the guard against loops
* `scrubber`: whether results and notifications of a server are scrubbed at a door, and the scrubbing
"""
