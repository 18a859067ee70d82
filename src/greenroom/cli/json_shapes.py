"""What commands print with `--json`: how it is said, and the parts that several commands have.

What a command prints is a struct beside the command. A field has a type and says what it means (`says`), so the
reference in `docs/reference/commands/` is made of these structs, and what they do not have is not printed.
What is made elsewhere, such as the answer of a gateway, is read into its struct before it is printed (`plain`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

Object = dict[str, Any]  # what is in it is somebody else's: a schema, an entry, a result


class Shape(msgspec.Struct, kw_only=True, rename="camel"):
    """A JSON document that a command prints, or a part of one. A field that is `UNSET` is not there."""


def says(what: str, unit: str = "", when: str = "") -> msgspec.Meta:
    """What a field means, its unit, and, of one that is not always there, when it is."""
    return msgspec.Meta(description=what, extra={"unit": unit, "when": when})


def plain(said: Mapping[str, Any] | Shape, *shapes: type[Shape]) -> Any:
    """`said` as JSON has it: a struct, or the first of `shapes` that it fits. What fits none is printed as it is: a
    gateway of another version has said it."""
    for shape in () if isinstance(said, Shape) else shapes:
        try:
            return msgspec.to_builtins(msgspec.convert(said, shape), enc_hook=dict)
        except msgspec.ValidationError:
            continue
    return msgspec.to_builtins(said, enc_hook=dict) if isinstance(said, Shape) else said


class ElsewhereJson(Shape, kw_only=True):
    """A gateway of another configuration."""

    pid: Annotated[int, says("its process, for `--pid`")]
    folder: Annotated[str, says('where it works; "" if it did not say')]


class SourceJson(Shape, kw_only=True):
    """Who answered: these fields stand beside the others."""

    source: Annotated[
        Literal["gateway", "cache", "room"],
        says("who answered: the running gateway, the cache, or a room of the command's own"),
    ]
    pid: Annotated[int | UnsetType, says("the process of the gateway", when="a gateway answered")] = UNSET


class OriginJson(SourceJson, kw_only=True):
    """Who answered, and who else might have been meant."""

    elsewhere: Annotated[
        list[ElsewhereJson] | UnsetType,
        says("gateways that run for other configurations", when="none runs for this one, but for others"),
    ] = UNSET


class AddressJson(Shape, kw_only=True):
    """One address of a server: the shared one, or that of a session or a call. The fields are those of
    `ServerStatus`."""

    server: Annotated[str, says("the server")]
    name: Annotated[str, says("the same; the older word")]
    scope: Annotated[str, says("`shared`, `handshake`, `session:…` or `call:…`")]
    lifecycle: Annotated[str, says("`lazy`, `eager` or `keep-alive`")]
    state: Annotated[str, says("its state in [the lifecycle](lifecycle.md)")]
    incarnation: Annotated[
        int, says("its number: the first is 1; of what is not connected that of the next; 0: no gateway runs")
    ]
    in_flight: Annotated[int, says("calls that were sent and have no answer yet", "calls")]
    queued: Annotated[int, says("calls that wait to be sent", "calls")]
    waiting_for: Annotated[
        str | None, says("what its start waits for: `breaker`, `slot`, `permit`, `install` …")
    ]
    waiting: Annotated[float | None, says("how long it has waited for that, or has been connecting", "s")]
    last_line: Annotated[str | None, says("what it last wrote to its stderr while it connects")]
    tool_count: Annotated[int | None, says("its tools; null: unknown", "tools")]
    resource_count: Annotated[int, says("its resources that are offered as tools", "resources")]
    problems: Annotated[list[str], says("what is missing from its lists, and why")]
    pid: Annotated[int | None, says("its process")]
    failure: Annotated[str | None, says("why it last failed, until it connects again")]
    failure_kind: Annotated[
        Literal["program", "connection", "exit", "silence", "other"] | None,
        says(
            "what kind of failure: its `program` cannot be run; no `connection` can be made; its `exit`; its `silence`"
        ),
    ]
    failed_ago: Annotated[float | None, says("how long ago that was", "s")]
    failed_starts: Annotated[int, says("starts that failed in a row; 0: it was lost while it ran", "starts")]
    silent_failures: Annotated[
        int,
        says(
            "failures in a row, the last a call that timed out; nothing was heard since. 0: it is not so",
            "failures",
        ),
    ]
    start_took: Annotated[
        float | None, says("its last start, until its tools were known; null: none was seen", "s")
    ]
    warm: Annotated[
        int, says("of a server: children that wait for somebody: started ahead, or reset", "children")
    ]
    reused: Annotated[
        int, says("of a server: how often somebody has had a child that its tool had reset", "children")
    ]
    replaced: Annotated[
        str | None, says("of a session: why the process it had before was ended, with all that it kept")
    ]
    odd: Annotated[str | None, says("the first odd thing that it did, such as to print to stdout")]
    odd_code: Annotated[
        Literal["junk", "odd"] | None, says("of what kind that is: `junk` is no message, `odd` anything else")
    ]
    quarantined: Annotated[str | None, says("it was restarted too often: how often")]
    retry_in: Annotated[float | None, says("until its circuit breaker lets a call pass; null: it does", "s")]
    next_try: Annotated[
        float | None,
        says("until it is started again by itself; null: only when somebody asks for it", "s"),
    ]
    needs_auth: Annotated[bool, says("it waits for a login")]
    disabled: Annotated[bool, says("it is switched off")]
    broken: Annotated[str | None, says("why its entry cannot be used")]
    untrusted: Annotated[bool, says("`broken` only because its project's file is not trusted")]
    down: Annotated[str | None, says("it was stopped on purpose, and a call does not start it: why")]
    session_variables: Annotated[list[str], says("what a session must give before it can be started")]
    changed: Annotated[
        list[str], says("tools, skills, prompts and resources that are not as they were first shown")
    ]
    flapping: Annotated[list[str], says("those of them that change again and again")]
    hidden: Annotated[list[str], says("items with characters that nobody sees, and which")]
    faults: Annotated[list[str], says("items that clients would refuse, and what was done about them")]
    limited: Annotated[list[str], says("limits and loop guards that have refused calls of it, and how often")]
    status: Annotated[
        Literal[
            "connected",
            "connecting",
            "installing",
            "waiting",
            "draining",
            "cached",
            "not-connected",
            "idle",
            "failed",
            "lost",
            "down",
            "needs-auth",
            "broken",
            "untrusted",
            "disabled",
        ],
        says("what it does now, in a word ([what each means](reference/commands/status.md))"),
    ]
    cached: Annotated[bool, says("whether its tools are known")]


class ServerJson(AddressJson, kw_only=True):
    """A server: its shared address, with 0 as the `toolCount` of one whose tools are unknown. One that runs only for
    sessions and calls has the `status` of these."""


class UnknownJson(Shape, kw_only=True):
    """A server of whose tools nothing is known."""

    server: Annotated[str, says("the server")]
    name: Annotated[str, says("the same; the older word")]
    waits_for: Annotated[str, says("what it waits for, or what happened, in words")]
    last_line: Annotated[str | UnsetType, says("what it last wrote to its stderr", when="it connects")] = (
        UNSET
    )
    failure: Annotated[str | UnsetType, says("why it failed", when="it did")] = UNSET


class AnsweredJson(OriginJson, kw_only=True):
    """An answer of the `mcp` tool."""

    omitted_bytes: Annotated[
        dict[str, int] | UnsetType,
        says("fields that were left out because they are too large", "bytes", when="any was left out"),
    ] = UNSET
    tape: Annotated[str | UnsetType, says("the tape that the call is on", when="`call --record`")] = UNSET


class RefusedJson(AnsweredJson, kw_only=True):
    """A request that failed, with exit code 1. (Wrong options and configurations end with exit code 2, a message on
    stderr and nothing on stdout.)"""

    mode: Annotated[str, says("what was asked for: `tools`, `search`, `describe` or `call`")]
    error: Annotated[str, says("the code of the error")]
    message: Annotated[str, says("what is wrong, and what to do")]
    content: Annotated[list[Object] | UnsetType, says("the same as MCP content", when="it is a call")] = UNSET
    server: Annotated[str | UnsetType, says("the server", when="it is about one")] = UNSET
    tool: Annotated[str | UnsetType, says("the tool", when="it is known")] = UNSET
    resource_uri: Annotated[str | UnsetType, says("the URI", when="it is a resource")] = UNSET
    requested_tool: Annotated[
        str | UnsetType, says("the name that was asked for", when="it is not known")
    ] = UNSET
    suggestions: Annotated[list[str] | UnsetType, says("names that may be meant", when="there are any")] = (
        UNSET
    )
    candidates: Annotated[
        list[str] | UnsetType, says("the servers that have the tool", when="several have it")
    ] = UNSET
    unknown_servers: Annotated[
        list[UnknownJson] | UnsetType, says("servers that may have it", when="there are any")
    ] = UNSET
    reach: Annotated[
        Literal["not_sent", "sent", "answered"] | UnsetType,
        says("how far the call got; `sent`: it may have run", when="it is a call"),
    ] = UNSET
    failed_ago: Annotated[
        int | UnsetType, says("how long ago the server failed", "s", when="`server_unavailable`")
    ] = UNSET
    retry_in: Annotated[
        float | UnsetType, says("until it is worth trying", "s", when="`server_unavailable`, `server_busy`")
    ] = UNSET
    in_flight: Annotated[
        int | UnsetType, says("calls in flight at the server", "calls", when="`server_busy`")
    ] = UNSET
    queued: Annotated[int | UnsetType, says("calls that wait there", "calls", when="`server_busy`")] = UNSET
    reason: Annotated[
        Literal["nobody", "expired", "dismissed", "failed", "changed", "busy"] | UnsetType,
        says(
            "`nobody` can be asked; the question `expired`, was `dismissed` or `failed`; the server has `changed` "
            "meanwhile; too many calls wait (`busy`)",
            when="`approval_required`",
        ),
    ] = UNSET
    question: Annotated[
        str | UnsetType, says("what a person has to allow (`--yes`)", when="`approval_required`")
    ] = UNSET


class DrainReportJson(Shape, kw_only=True):
    """The sum of a run: completed + failed + cancelled = accepted."""

    accepted: Annotated[int, says("calls that were sent or queued", "calls")]
    completed: Annotated[int, says("with a result", "calls")]
    failed: Annotated[int, says("with an error", "calls")]
    cancelled: Annotated[int, says("by their callers", "calls")]
    refused: Annotated[int, says("that were never accepted", "calls")]
    refusals: Annotated[dict[str, int], says("the same by the code of the error", "calls")]
    open: Annotated[int, says("without an outcome; 0 at the end", "calls")]
    is_final: Annotated[bool, says("the room has ended")]
