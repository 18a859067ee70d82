"""Who decides: policies, starts, the root of all servers, and `Greenroom`, the public door.

Other rooms may import:

* `asking_again`: makes the calls on a tape that only read again, and compares
* `profiles`: a room as the clients of one profile see it
* `room`: `Greenroom` and `Session`, the public door
* `room_port`: what doors and exposures use of a room, private
* `taped_spans`: the spans of a tape's calls
* `tracing`: spans and durations of what is asked of a room, for OpenTelemetry
* `runtime`: everything that runs while a room is open
* `skills`: a file of a skill that was read and compared
"""
