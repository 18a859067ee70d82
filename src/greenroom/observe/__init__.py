"""Who watches a room from outside: audit, traces, events, metrics. Nothing here changes a call.

Audit and traces are attached to a room that is to be opened (`supervisor.attachments`), and are watchers while it is
open (`actors.watchers`). The rest listens to its events. A room without one loads nothing of it.

Other rooms may import:

* `audit_trail`: the audit of a room, a line of the audit file for each call
* `events_file`: each event as a line of JSON, in a file
* `metrics`: counts and durations, for who scrapes the HTTP door
* `otlp`: sends what a room or a tape tells to OpenTelemetry to a collector
* `tracing`: spans and durations of calls, and how a span of a door says what those of its calls say
"""
