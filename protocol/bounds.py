"""The bounds on all input from outside, in one table.

All input from a server, a client or a file has bounds in bytes, in items and in depth. They are checked where the input
enters, before objects are made of it. Input over a bound costs only its sender: an item, a page, an answer, a
connection. This module has the numbers, and what happens over each; docs/reference/bounds.md prints `BOUNDS`. When a
setting changes a bound, the number is that setting's default.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, cast

import msgspec

KIB: Final = 1024
MIB: Final = 1024 * KIB
# Levels of nesting in what a server says, its results excepted: Python recurses a few hundred levels at most.
DEPTH: Final = 100
ITEM_BYTES: Final = 2 * MIB  # of one tool, resource or prompt, or of one initialize result
ITEM_PARTS: Final = 20_000  # objects and arrays in it: making a hundred thousand takes a tenth of a second
# Of all items of one server. They stay, and the garbage collector goes over all objects in one go, while nobody else
# runs: over these in ten milliseconds or two. Stripe's API with the schemas of its answers has 171,000.
LIST_PARTS: Final = 200_000
LARGE_MESSAGE: Final = MIB  # from here on a message is passed on by its envelope: what is inside stays bytes
MESSAGE_VALUES: Final = (
    2_000_000  # and keys, in one message: on a busy machine, passing over them takes thirty milliseconds
)
MESSAGE_ESCAPES: Final = 10_000_000  # backslashes in one message: passing over them takes as long
DECODED_VALUES: Final = (
    150_000  # and keys, of a large text that is decoded: in one go, so it must not take longer
)
DECODED_ESCAPES: Final = 2_000_000  # of the same
LONG_ID_BYTES: Final = 64 * KIB  # of the id of a large message, and of its method
LONG_META_BYTES: Final = 256 * KIB  # of what a large message has beside its content
TRACESTATE_CHARACTERS: Final = 512
TRACESTATE_ENTRIES: Final = 32
BAGGAGE_CHARACTERS: Final = 8_192
BAGGAGE_ENTRIES: Final = 180
TRACED_TOOLS: Final = 200
ERROR_BYTES: Final = 128 * KIB  # of an error: its texts are looked through for secrets in one go
NOTICE_BYTES: Final = 128 * KIB  # of a notification of a server, for the same reason
INPUT_BYTES: Final = MIB  # of a result that asks for more input: its client is told that in one go
SERVER_REQUEST_BYTES: Final = (
    4 * MIB
)  # of the params of a request of a server: its client is told them in one go
SERVER_REQUEST_VALUES: Final = 20_000  # and keys, in them: they are counted and decoded in one go
BATCH_MESSAGES: Final = 100
UNASKED_LINES: Final = 2_000  # a second, of a server over stdio or a socket
JUNK_LINES: Final = 10_000  # in a row
REPLIES: Final = 1_024  # waiting until one server reads them
NAME_CHARACTERS: Final = 8_192
MEANINGS: Final = 100_000  # tools of a room that are found by meaning
VECTORS: Final = 100_000  # in the file
CACHE_BYTES: Final = 256 * MIB  # of the catalogue's file
STDERR_LOG: Final = 256 * 1024  # bytes of each of the two files of a server's stderr
FAILURE: Final = 4_000  # characters of why a server last failed that the file keeps
FAILURES: Final = 2_000  # last failures in the file
PROBLEMS: Final = 20  # of one server's lists that are remembered
REASON_CHARACTERS: Final = 2_000  # of a server's own words about why it cannot be used
OPEN_SERVER_REQUESTS: Final = 64  # of one server, to its client
SKILL_FILES: Final = 512  # of one skill: what a host must take, by the extension
SKILL_BYTES: Final = 16 * MIB  # of all of them together, as its entry says
EXTENSIONS_BYTES: Final = 16 * KIB  # of what a client or server declares of extensions
PROMOTED: Final = 24  # tools of one session beside the `mcp` tool
REGISTRY_BYTES: Final = 512 * KIB  # of one answer of a registry of servers
EXECUTE_CODE_BYTES: Final = 50 * KIB
EXECUTE_SECONDS: Final = 120.0
EXECUTE_NAP: Final = 30.0  # seconds
EXECUTE_MEMORY: Final = 128 * MIB
EXECUTE_IN_FLIGHT: Final = 8  # calls of one run
EXECUTE_RESULT_BYTES: Final = 8 * MIB  # of one call
EXECUTE_PRINTED: Final = 10 * MIB  # characters
EXECUTE_RETURNED: Final = 10 * MIB  # characters
EXECUTE_RUNS: Final = 4  # in one room
EXECUTE_WAITING: Final = 64
LIMITS_FILLED: Final = 16_384  # limits of rates, each for whom it counts, that are not full
LOOP_CALLS: Final = 4_096  # calls with their arguments that the loop guard knows
LOOP_CALLERS: Final = 1_024
APPROVALS_WAITING: Final = 64  # calls of one session that wait for a person's yes
APPROVALS_REMEMBERED: Final = 1_000  # of one session
APPROVALS_LISTED: Final = 100  # calls that wait, shown at a terminal
APPROVALS_ENDED: Final = 64  # in one room
EVENTS_BEHIND: Final = 10_000
RECENT_CALLS: Final = 5_000  # of a gateway, for the timeline of its page
RECENT_EVENTS: Final = 5_000
RECENT_EVENTS_OF_ROOM: Final = 512  # of a room without a gateway
RECENT_REFUSALS: Final = 128
RECENT_NOTICES: Final = 128  # notifications of servers
RECENT_WORDS: Final = 500  # characters of an event that is kept
RECENT_MINUTES: Final = 10
RECENT_BYTES: Final = 512 * KIB  # of calls with their contents
RECENT_CONTENT: Final = 32 * KIB  # of a call's parameters, and of its result
RECENT_STEPS: Final = 16  # of progress, of one call; and questions of its server
TAPE_PARAMS_BYTES: Final = 8 * MIB  # of one call: they are in its line
TAPE_WAITING_BYTES: Final = 64 * MIB  # of large calls that a thread has not written
TAPE_ASIDE_BYTES: Final = MIB  # of progress and questions of one call: they are kept until it ends
TASKS: Final = 1_000  # of all clients of one gateway, running or kept
TASKS_OF_ONE: Final = 100  # of one principal
TASK_BYTES: Final = 64 * MIB  # of all results that are kept, and of what tasks ask
ASKED_BYTES_OF_ONE: Final = 16 * MIB  # of what the waiting tasks of one principal ask
LINKS: Final = 4_096  # of results, remembered for one client
LINKS_AT_ONCE: Final = 1_024
COMPLETIONS: Final = 100
HTTP_HEAD_BYTES: Final = 32 * KIB  # of a head, or of a line after it
HTTP_HEAD_LINES: Final = 256
HTTP_INTERIM: Final = 16
HTTP_REDIRECTS: Final = 5
HTTP_ASIDE_BYTES: Final = MIB  # of a body that is not an answer: a refusal, or what a login reads
HTTP_PACKED: Final = 100  # times that an event stream may grow when it is unpacked, after its first megabyte
HTTP_COOKIES: Final = 50
HTTP_COOKIES_AT_ONCE: Final = 20  # of one response
HTTP_COOKIE_CHARACTERS: Final = 8_192  # of all cookies of one response
HTTP_PLACE_CHARACTERS: Final = 8_192  # of the endpoint that an older event stream names
EVENT_ID_BYTES: Final = 4_096
EVENT_LINE_BYTES: Final = 8_192  # of a line of an event other than data
ISSUER_BYTES: Final = 256 * KIB  # of an authorization server's metadata, or of its keys
ISSUER_KEYS: Final = 100
ACCESS_TOKEN_BYTES: Final = 8 * KIB  # of a token that is not one of the configured ones
SESSION_ID_CHARACTERS: Final = 4_096
FAULTS: Final = 100  # items of one server that clients would refuse and that are named
NOTES_IN_FULL: Final = 3  # of each kind of oddity; further ones are only counted


class Bound(msgspec.Struct, frozen=True):
    """One bound. `most` is None when a setting has the number; then `setting` names its attribute."""

    what: str
    unit: str
    over: str  # what happens over it
    most: int | None = None
    setting: str = ""

    def value_in(self, settings: object) -> int:
        """How many of `unit` there may be under these settings (`Settings` of a configuration)."""
        return int(getattr(settings, self.setting)) if self.most is None else self.most


BOUNDS: Final = (
    Bound(
        "one message of a server",
        "bytes",
        "the request that it answers fails; any other message is dropped",
        setting="max_line",
    ),
    Bound(
        "one long message of a server",
        "values and keys",
        "the request that it answers fails; any other message is dropped",
        MESSAGE_VALUES,
    ),
    Bound(
        "one long message of a server",
        "escaped characters",
        "the request that it answers fails; any other message is dropped",
        MESSAGE_ESCAPES,
    ),
    Bound("the id or the method of one large message", "bytes", "the message is not accepted", LONG_ID_BYTES),
    Bound("one large request of a client, without its arguments", "bytes", "it is refused", LONG_META_BYTES),
    Bound(
        "`_meta` of a result", "bytes", "it is left out if Greenroom would have to change it", LONG_META_BYTES
    ),
    Bound(
        "one large result, without its content and `_meta`",
        "bytes",
        "it is passed on unchanged, or not at all",
        LONG_META_BYTES,
    ),
    Bound("a result that asks for more input", "bytes", "the call fails", INPUT_BYTES),
    Bound("an error in a client's answer", "bytes", "it is replaced by another error", ERROR_BYTES),
    Bound("`tracestate` of one request", "characters", "it is left out", TRACESTATE_CHARACTERS),
    Bound("`tracestate` of one request", "entries", "it is left out", TRACESTATE_ENTRIES),
    Bound("`baggage` of one request", "characters", "it is left out", BAGGAGE_CHARACTERS),
    Bound("`baggage` of one request", "entries", "it is left out", BAGGAGE_ENTRIES),
    Bound(
        "tools with their own durations, for OpenTelemetry",
        "tools",
        "the others are counted as `other`",
        TRACED_TOOLS,
    ),
    Bound("an error of a server", "bytes", "another error quotes its beginning", ERROR_BYTES),
    Bound("the `data` of an error of a server", "levels of nesting", "they are left out", DEPTH),
    Bound("a notification of a server", "bytes", "it is dropped, with a note", NOTICE_BYTES),
    Bound("a notification of a server", "levels of nesting", "it is dropped, with a note", DEPTH),
    Bound("the params of a request of a server", "bytes", "it is refused", SERVER_REQUEST_BYTES),
    Bound("the params of a request of a server", "values and keys", "it is refused", SERVER_REQUEST_VALUES),
    Bound("the params of a request of a server", "levels of nesting", "it is refused", DEPTH),
    Bound("a result for the `mcp` tool", "values and keys", "it is kept and shown as JSON", DECODED_VALUES),
    Bound(
        "a result for the `mcp` tool", "escaped characters", "it is kept and shown as JSON", DECODED_ESCAPES
    ),
    Bound("a batch (2025-03-26)", "messages", "the whole batch is ignored", BATCH_MESSAGES),
    Bound(
        "lines of a server that nobody asked for, after the first 12,000",
        "lines a second",
        "they are read at this rate",
        UNASKED_LINES,
    ),
    Bound("lines of a server that are not messages", "lines in a row", "the connection fails", JUNK_LINES),
    Bound("replies that wait until a server reads them", "messages", "the next one is dropped", REPLIES),
    Bound("all lists of one server", "bytes", "the rest is left out", setting="max_list_bytes"),
    Bound("all lists of one server", "items", "the rest is left out", setting="max_list_items"),
    Bound("all lists of one server", "objects and arrays", "the rest is left out", LIST_PARTS),
    Bound("one list of a server", "pages", "the rest is left out", setting="max_pages"),
    Bound("a tool, resource, template, prompt or skill", "bytes", "the item is left out", ITEM_BYTES),
    Bound(
        "a tool, resource, template, prompt or skill",
        "objects and arrays",
        "the item is left out",
        ITEM_PARTS,
    ),
    Bound("a tool, resource, template, prompt or skill", "levels of nesting", "the item is left out", DEPTH),
    Bound("a skill", "files", "it is left out", SKILL_FILES),
    Bound("a skill", "bytes in all its files", "it is left out", SKILL_BYTES),
    Bound(
        "a name, a URI, a cursor",
        "characters",
        "the item is left out; a cursor ends the list",
        NAME_CHARACTERS,
    ),
    Bound(
        "a server's result of `initialize`, with its instructions", "bytes", "it does not connect", ITEM_BYTES
    ),
    Bound(
        "a server's result of `initialize`, with its instructions",
        "objects and arrays",
        "it does not connect",
        ITEM_PARTS,
    ),
    Bound(
        "a server's result of `initialize`, with its instructions",
        "levels of nesting",
        "it does not connect",
        DEPTH,
    ),
    Bound("the head of an HTTP answer, or its trailer", "bytes", "the exchange fails", HTTP_HEAD_BYTES),
    Bound("the head of an HTTP answer, or its trailer", "lines", "the exchange fails", HTTP_HEAD_LINES),
    Bound("interim answers (1xx) before an HTTP answer", "answers", "the exchange fails", HTTP_INTERIM),
    Bound(
        "redirects of one HTTP request, to the same origin", "redirects", "the request fails", HTTP_REDIRECTS
    ),
    Bound(
        "an HTTP body that is not an answer, such as a refusal or a login",
        "bytes",
        "the rest is not read",
        HTTP_ASIDE_BYTES,
    ),
    Bound(
        "growth of a compressed event stream when it is unpacked", "times", "the exchange fails", HTTP_PACKED
    ),
    Bound("cookies of one HTTP server", "cookies", "the next one is not kept", HTTP_COOKIES),
    Bound("cookies of one HTTP answer", "cookies", "none of them is kept", HTTP_COOKIES_AT_ONCE),
    Bound("cookies of one HTTP answer", "characters", "none of them is kept", HTTP_COOKIE_CHARACTERS),
    Bound("the id of a server-sent event", "bytes", "it is not kept", EVENT_ID_BYTES),
    Bound(
        "a line of a server-sent event that is not data", "bytes", "the rest is not kept", EVENT_LINE_BYTES
    ),
    Bound("the id of an HTTP session", "characters", "it does not connect", SESSION_ID_CHARACTERS),
    Bound(
        "the endpoint that an older event stream (SSE) names",
        "characters",
        "it is cut",
        HTTP_PLACE_CHARACTERS,
    ),
    Bound("an authorization server's metadata, or its keys", "bytes", "they are not used", ISSUER_BYTES),
    Bound("an authorization server's keys", "keys", "the rest is not used", ISSUER_KEYS),
    Bound("an access token (OAuth) over HTTP", "bytes", "it is refused", ACCESS_TOKEN_BYTES),
    Bound(
        "messages about items that are missing from a server's lists",
        "messages",
        "the rest is not reported",
        PROBLEMS,
    ),
    Bound(
        "items of a server that clients would refuse, by name", "items", "the rest is only counted", FAULTS
    ),
    Bound(
        "a server's own reason for refusing `initialize` or a list",
        "characters",
        "it is cut",
        REASON_CHARACTERS,
    ),
    Bound(
        "open requests of a server to its client",
        "requests",
        "the next one is refused",
        OPEN_SERVER_REQUESTS,
    ),
    Bound(
        "the extensions that a client or server declares",
        "bytes",
        "they are not passed on to the other side",
        EXTENSIONS_BYTES,
    ),
    Bound(
        "tools that a session has promoted",
        "tools",
        "the one that was not called for the longest time leaves the list",
        PROMOTED,
    ),
    Bound("an answer of the registry that `mcp_provision` asks", "bytes", "it is not used", REGISTRY_BYTES),
    Bound("the code of one `mcp_execute`", "bytes", "it is refused", EXECUTE_CODE_BYTES),
    Bound("one run of `mcp_execute`", "seconds", "it is killed", int(EXECUTE_SECONDS)),
    Bound("one sleep of the code", "seconds", "the sleep ends", int(EXECUTE_NAP)),
    Bound("the memory of the code's objects", "bytes", "the run fails", EXECUTE_MEMORY),
    Bound("calls of one run in flight", "calls", "the next one waits", EXECUTE_IN_FLIGHT),
    Bound(
        "the result of a call that the code makes",
        "bytes",
        "the code gets an exception",
        EXECUTE_RESULT_BYTES,
    ),
    Bound("the output of the code", "characters", "the rest is left out", EXECUTE_PRINTED),
    Bound("a value that the code returns, or passes to a call", "levels of nesting", "it is refused", DEPTH),
    Bound("a value that the code returns", "characters", "the rest is left out", EXECUTE_RETURNED),
    Bound(
        "runs of `mcp_execute` at once in one room", "runs", "the next one waits, at most 30 s", EXECUTE_RUNS
    ),
    Bound("runs of `mcp_execute` that wait", "runs", "the next one is refused", EXECUTE_WAITING),
    Bound(
        "calls of one session that wait for approval",
        "calls",
        "the next one is refused",
        APPROVALS_WAITING,
    ),
    Bound(
        "buckets of limits that are not full",
        "buckets",
        "the one that was not used for the longest time counts as full",
        LIMITS_FILLED,
    ),
    Bound(
        "calls that the loop guard remembers with their arguments",
        "calls",
        "the one that was not made for the longest time is forgotten",
        LOOP_CALLS,
    ),
    Bound(
        "callers whose last calls the loop guard remembers",
        "callers",
        "the one that has not called for the longest time is forgotten",
        LOOP_CALLERS,
    ),
    Bound(
        "calls that a person has allowed for one session",
        "calls",
        "the one that was not made for the longest time is forgotten",
        APPROVALS_REMEMBERED,
    ),
    Bound(
        "calls waiting for approval that a terminal shows",
        "calls",
        "the rest is only counted",
        APPROVALS_LISTED,
    ),
    Bound(
        "decided calls that are remembered, to tell late answers what happened",
        "calls",
        "the oldest is forgotten",
        APPROVALS_ENDED,
    ),
    Bound(
        "events that a reader has not read yet",
        "events",
        "the reader loses the oldest, and is told how many",
        EVENTS_BEHIND,
    ),
    Bound(
        "calls on the timeline of the page",
        "calls",
        "the oldest are forgotten",
        RECENT_CALLS,
    ),
    Bound("events on the timeline of the page", "events", "the oldest are forgotten", RECENT_EVENTS),
    Bound(
        "calls, with their contents, on a tape of the last minutes",
        "bytes",
        "the oldest are forgotten",
        RECENT_BYTES,
    ),
    Bound(
        "the parameters of one of these calls, or its result",
        "bytes",
        "only the size is kept",
        RECENT_CONTENT,
    ),
    Bound(
        "notifications of servers on a tape of the last minutes",
        "notifications",
        "the oldest are forgotten",
        RECENT_NOTICES,
    ),
    Bound(
        "tasks that one gateway keeps",
        "tasks",
        "the principal with the most tasks loses its oldest one that has ended",
        TASKS,
    ),
    Bound(
        "tasks of one principal",
        "tasks",
        "the oldest that has ended is dropped; if none has ended, the next is refused",
        TASKS_OF_ONE,
    ),
    Bound(
        "results and questions of all tasks of one gateway",
        "bytes",
        "the principal with the most bytes loses its oldest results",
        TASK_BYTES,
    ),
    Bound(
        "questions of the waiting tasks of one principal",
        "bytes",
        "the next question is not asked",
        ASKED_BYTES_OF_ONE,
    ),
    Bound(
        "links to resources in results that are remembered for one client",
        "links",
        "the oldest are forgotten",
        LINKS,
    ),
    Bound("links to resources in one result", "links", "the rest is not remembered", LINKS_AT_ONCE),
    Bound("values of one completion", "values", "the rest is left out", COMPLETIONS),
    Bound(
        "tools of a room that are found by meaning", "tools", "the others are found by their words", MEANINGS
    ),
    Bound("vectors in the file beside the catalogue", "vectors", "the oldest are removed", VECTORS),
    Bound("the catalogue's file", "bytes", "the oldest entries are removed", CACHE_BYTES),
    Bound("each of the two files of a server's stderr", "bytes", "the older one is dropped", STDERR_LOG),
    Bound("last failures in the catalogue's file", "servers", "the oldest are forgotten", FAILURES),
    Bound(
        "the reason of a last failure in the catalogue's file", "characters", "the rest is cut off", FAILURE
    ),
    Bound(
        "stderr of a server that is kept in memory", "bytes", "the oldest is dropped", setting="stderr_ring"
    ),
    Bound(
        "calls of one server that are sent but not answered",
        "calls",
        "the next one waits",
        setting="max_in_flight",
    ),
    Bound(
        "calls of one server that are accepted but not sent",
        "calls",
        "the next one is refused",
        setting="max_queued",
    ),
    Bound(
        "parameters of all calls that are accepted but not sent",
        "bytes",
        "the next one is refused",
        setting="max_queued_bytes",
    ),
    Bound(
        "requests that wait at the doors, for the rest of their body or until their tool is found",
        "bytes",
        "the next one is refused",
        setting="max_queued_bytes",
    ),
    Bound(
        "lines of the log about one kind of wrong behaviour of a server",
        "lines",
        "the rest is only counted, and the count is logged",
        NOTES_IN_FULL,
    ),
    Bound(
        "the parameters of a call on a tape",
        "bytes",
        "they are left out, and cannot be replayed",
        TAPE_PARAMS_BYTES,
    ),
    Bound(
        "large calls that wait to be written to a tape",
        "bytes",
        "the content of the next one is left out",
        TAPE_WAITING_BYTES,
    ),
    Bound("progress and questions of a call on a tape", "bytes", "the rest is left out", TAPE_ASIDE_BYTES),
    Bound(
        "an answer of the `mcp` tool",
        "bytes",
        "it is cut, and a file keeps all of it",
        setting="output_max_bytes",
    ),
    Bound(
        "an answer of the `mcp` tool",
        "lines",
        "it is cut, and a file keeps all of it",
        setting="output_max_lines",
    ),
)


def is_too_deep(data: bytes, value: object) -> bool:
    """Whether the value, decoded from this JSON, is nested deeper than `DEPTH`."""
    if data.count(b"{") + data.count(b"[") <= DEPTH:
        return False
    level: list[Any] = [value]
    for _ in range(DEPTH):
        level = [inner for each in level for inner in _parts(each) if isinstance(inner, dict | list)]
        if not level:
            return False
    return True


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return cast("dict[str, Any]", value).values()
    return cast("list[Any]", value) if isinstance(value, list) else ()
