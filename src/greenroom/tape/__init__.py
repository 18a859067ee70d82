"""Tapes: what the servers of a room were asked and what they answered, in a file; and servers that answer from it.

A tape is recorded by an open room, at the level of calls and lists: whatever carries the messages, and real and fake
servers alike. A room over a tape is an ordinary room whose connectors answer from the tape (`replaying`), so names,
profiles, doors and frameworks work as they did, and no process is started.

Other rooms may import:

* `comparing`: what differs between two tapes, or between a tape and what servers answer now
* `lines`: the lines of a tape
* `reading`: a tape, read and checked
* `recent`: a tape of the last minutes
* `recorder`: records the room that it is given to
* `replaying`: a configuration and connectors over a tape
* `records`: what happened on a tape, as records of events
* `selection`: a part of a tape
* `server_comparison`: makes the calls on a tape that only read again, and compares; by the public door
* `use`: which calls of a tape were met, in one run or in many
* `run`: what was called in one run over a tape, and assertions about it
* `story`: a tape as a person would tell it
* `what_if`: which faults are tried over a tape, and what an agent did then
"""
