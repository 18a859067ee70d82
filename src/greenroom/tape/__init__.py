"""Tapes: what the servers of a room were asked and what they answered, in a file; and servers that answer from it.

A tape is recorded by an open room, at the level of calls and lists: whatever carries the messages, and real and fake
servers alike. A room over a tape is an ordinary room whose connectors answer from the tape (`replay_servers`), so
names, profiles, doors and frameworks work as they did, and no process is started.

Other rooms may import:

* `tape_comparison`: what differs between two tapes, or between a tape and what servers answer now
* `tape_lines`: the lines of a tape
* `tape_reader`: a tape, read and checked
* `last_minutes_tape`: a tape of the last minutes
* `recorder`: records the room that it is given to
* `replay_servers`: a configuration and connectors over a tape
* `tape_events`: what happened on a tape, as records of events
* `tape_selection`: a part of a tape
* `server_comparison`: makes the calls on a tape that only read again, and compares; by the public door
* `tape_use`: which calls of a tape were met, in one run or in many
* `tape_run`: what was called in one run over a tape, and assertions about it
* `story`: a tape as a person would tell it
* `what_if`: which faults are tried over a tape, and what an agent did then
"""
