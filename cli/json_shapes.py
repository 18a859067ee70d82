"""The shapes of `--json`: what each command prints, field by field.

`SHAPES` says which shape a command has. A field has a type and a `Says`: what it means, its unit, and, when it is not
always there, when it is. The reference in `docs/json.md` is made of this (`tools/json_page.py`), and a test compares it
with what the commands print. Commands name these types only for the type checker, so at run time nothing is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, NamedTuple, NotRequired, TypedDict


class Says(NamedTuple):
    what: str
    unit: str = ""
    when: str = ""  # of a field that may be missing


Object = dict[str, Any]  # what is in it is somebody else's: a schema, an entry, a result
Severity = Literal["error", "warning", "note"]


# ---- who answered ----------------------------------------------------------------------------------------------------
class Elsewhere(TypedDict):
    """A gateway of another configuration."""

    pid: Annotated[int, Says("its process, for `--pid`")]
    folder: Annotated[str, Says('where it works; "" if it did not say')]


class Source(TypedDict):
    """Who answered: these fields stand beside the others."""

    source: Annotated[
        Literal["gateway", "cache", "room"],
        Says("who answered: the running gateway, the cache, or a room of the command's own"),
    ]
    pid: NotRequired[Annotated[int, Says("the process of the gateway", when="a gateway answered")]]


class Origin(Source):
    """Who answered, and who else might have been meant."""

    elsewhere: NotRequired[
        Annotated[
            list[Elsewhere],
            Says("gateways that run for other configurations", when="none runs for this one, but for others"),
        ]
    ]


# ---- no command ------------------------------------------------------------------------------------------------------
class UsedFile(TypedDict):
    """A file of the configuration."""

    file: Annotated[str, Says("its path")]
    whose: Annotated[
        Literal["own", "project", "imported", "named"],
        Says("whose it is: yours, this project's, another program's, or the one of `--config`"),
    ]
    state: Annotated[Literal["used", "untrusted", "unread"], Says("whether it is obeyed, and can be read")]


class NextStep(TypedDict):
    """What to do next."""

    what: Annotated[str, Says("what for")]
    step: Annotated[str, Says("the command")]


class Overview(TypedDict):
    """Where one stands, and the next step."""

    files: Annotated[list[UsedFile], Says("what the configuration is made of, the strongest first")]
    notRead: Annotated[str | None, Says("an `mcp.json` in this folder that nobody reads")]
    warnings: Annotated[int, Says("about the configuration; `doctor` has them", "warnings")]
    servers: Annotated[dict[str, int], Says("how many there are of each `status`", "servers")]
    totalTools: Annotated[int, Says("of all servers that are not disabled", "tools")]
    gateways: Annotated[
        list[int], Says("the processes of those that run for this configuration, the newest first")
    ]
    elsewhere: Annotated[list[Elsewhere], Says("gateways that run for other configurations")]
    next: Annotated[list[NextStep], Says("the next step, and sometimes another one")]


class Version(TypedDict):
    """The version, and what it runs on."""

    version: Annotated[str, Says("of Greenroom")]
    python: Annotated[str, Says("the version of Python")]
    implementation: Annotated[str, Says("of Python, such as `CPython`")]
    executable: Annotated[str, Says("the path of that Python")]
    platform: Annotated[str, Says("the operating system and its version, and the machine")]
    packages: Annotated[
        dict[str, str], Says("the version of each installed package that Greenroom, or an extra of it, uses")
    ]


# ---- servers ---------------------------------------------------------------------------------------------------------
class Address(TypedDict):
    """One address of a server: the shared one, or that of a session or a call. The fields are those of
    `ServerStatus`."""

    server: Annotated[str, Says("the server")]
    name: Annotated[str, Says("the same; the older word")]
    scope: Annotated[str, Says("`shared`, `session:…` or `call:…`")]
    lifecycle: Annotated[str, Says("`lazy`, `eager` or `keep-alive`")]
    state: Annotated[str, Says("its state in [the lifecycle](lifecycle.md)")]
    incarnation: Annotated[int, Says("how often it has been begun; 0: never")]
    inFlight: Annotated[int, Says("calls that were sent and have no answer yet", "calls")]
    queued: Annotated[int, Says("calls that wait to be sent", "calls")]
    waitingFor: Annotated[str | None, Says("what its start waits for: `gate`, `slot`, `permit`, `install` …")]
    waiting: Annotated[float | None, Says("how long it has waited for that, or has been connecting", "s")]
    lastLine: Annotated[str | None, Says("what it last wrote to its stderr while it connects")]
    toolCount: Annotated[int | None, Says("its tools; null: unknown", "tools")]
    problems: Annotated[list[str], Says("what is missing from its lists, and why")]
    pid: Annotated[int | None, Says("its process")]
    failure: Annotated[str | None, Says("why it last failed, until it connects again")]
    failedAgo: Annotated[float | None, Says("how long ago that was", "s")]
    failedStarts: Annotated[int, Says("starts that failed in a row; 0: it was lost while it ran", "starts")]
    startTook: Annotated[
        float | None, Says("its last start, until its tools were known; null: none was seen", "s")
    ]
    odd: Annotated[str | None, Says("the first odd thing that it did, such as to print to stdout")]
    quarantined: Annotated[str | None, Says("it was restarted too often: how often")]
    retryIn: Annotated[float | None, Says("until its circuit breaker lets a call pass; null: it does", "s")]
    needsAuth: Annotated[bool, Says("it waits for a login")]
    disabled: Annotated[bool, Says("it is switched off")]
    broken: Annotated[str | None, Says("why its entry cannot be used")]
    untrusted: Annotated[bool, Says("`broken` only because its project's file is not trusted")]
    down: Annotated[str | None, Says("it was stopped on purpose, and a call does not start it: why")]
    sessionVariables: Annotated[list[str], Says("what a session must give before it can be started")]
    changed: Annotated[
        list[str], Says("tools, skills, prompts and resources that are not as they were first shown")
    ]
    flapping: Annotated[list[str], Says("those of them that change again and again")]
    hidden: Annotated[list[str], Says("items with characters that nobody sees, and which")]
    faults: Annotated[list[str], Says("items that clients would refuse, and what was done about them")]
    cached: Annotated[bool, Says("whether its tools are known")]


class Server(Address):
    """A server: its shared address, with 0 as the `toolCount` of one whose tools are unknown."""

    status: Annotated[
        Literal[
            "connected",
            "cached",
            "not-connected",
            "failed",
            "needs-auth",
            "broken",
            "untrusted",
            "disabled",
        ],
        Says("how it is, in a word"),
    ]


class Audit(TypedDict):
    """The [audit file](audit.md) of a gateway."""

    file: Annotated[str, Says("its path")]
    failing: Annotated[bool, Says("it cannot be written now")]
    missed: Annotated[int, Says("calls that could not be written", "calls")]


class Attached(TypedDict):
    """A client of the background room."""

    pid: Annotated[int, Says("the process of its `greenroom attach`")]
    expose: Annotated[str | None, Says("what it sees: `proxy`, `direct`, `meta`; null: as the room")]
    profile: Annotated[str | None, Says("its profile")]
    inFlight: Annotated[int, Says("its requests without an answer", "requests")]
    seconds: Annotated[float, Says("how long it has been attached", "s")]


class Background(TypedDict):
    """The background room."""

    pid: Annotated[int, Says("its process")]
    version: Annotated[str, Says("its version of Greenroom")]
    clients: Annotated[list[Attached], Says("who is attached")]


class HttpClient(TypedDict):
    """A session over HTTP."""

    session: Annotated[str, Says("its name in events and logs; it is not the session's id")]
    silentSeconds: Annotated[float, Says("since its last message", "s")]
    inFlight: Annotated[int, Says("its open requests", "requests")]
    listening: Annotated[bool, Says("it has an event stream open")]
    endsInSeconds: Annotated[float | None, Says("until it ends without another message; null: not now", "s")]


class Status(Origin):
    """How the servers are."""

    mode: Annotated[Literal["status"], Says("what was asked for")]
    servers: Annotated[list[Server], Says("in the order of the configuration")]
    totalTools: Annotated[int, Says("of all servers that are not disabled", "tools")]
    connectedCount: Annotated[int, Says("servers that are connected", "servers")]
    disabledCount: Annotated[int, Says("servers that are disabled", "servers")]
    addresses: NotRequired[
        Annotated[list[Address], Says("the addresses of sessions and calls", when="there are any")]
    ]
    waitingForApproval: NotRequired[
        Annotated[int, Says("calls that wait for a person's yes", "calls", "a gateway answered")]
    ]
    audit: NotRequired[Annotated[Audit, Says("its audit file", when="the gateway writes one")]]
    notReloaded: NotRequired[
        Annotated[
            str,
            Says("why", when="a file of the configuration has changed, and the one before is still in use"),
        ]
    ]
    background: NotRequired[
        Annotated[Background, Says("the room and its clients", when="the gateway is the background room")]
    ]
    clients: NotRequired[
        Annotated[list[HttpClient], Says("the sessions over HTTP", when="the gateway serves HTTP")]
    ]


TopRow = TypedDict(
    "TopRow",
    {
        "server": Annotated[str, Says("the server; of a further address: its scope, after two spaces")],
        "state": Annotated[str, Says("in words")],
        "tools": Annotated[str, Says("how many; `?`: unknown")],
        "calls": Annotated[str, Says("in flight")],
        "queued": Annotated[str, Says("calls that wait")],
        "restarts": Annotated[str, Says("how often it was begun again")],
        "memory": Annotated[str, Says('of its own process, in MiB; "": not known')],
        "pid": Annotated[str, Says('its process; "": none')],
        "waits for": Annotated[str, Says("what it waits for, and why it failed")],
    },
)
TopRow.__doc__ = "A line of the table. Every value is the text of its cell; `status` has the same as data."


class Top(Origin):
    """One look at the table."""

    rows: Annotated[list[TopRow], Says("its lines")]
    waitingForApproval: Annotated[int, Says("calls that wait for a person's yes", "calls")]


class Reason(TypedDict):
    """Why a server is as it is."""

    what: Annotated[str, Says("one sentence")]
    step: Annotated[str | None, Says("a command, or what to do; null: nothing has to be done")]


class Finding(TypedDict):
    """One thing that is wrong."""

    severity: Annotated[Severity, Says("how bad it is")]
    check: Annotated[str, Says("which check found it")]
    about: Annotated[str, Says("a server, a file or a process")]
    what: Annotated[str, Says("what is wrong")]
    mend: Annotated[str, Says("a command, or what to do")]


class Explained(Origin):
    """Why one server is as it is."""

    server: Annotated[str, Says("the server")]
    reasons: Annotated[list[Reason], Says("what it does, why, and what happens next")]
    status: Annotated[Server, Says("its row of `status`")]
    addresses: Annotated[list[Address], Says("its sessions' and calls' own addresses")]
    findings: Annotated[list[Finding], Says("what `doctor` finds about it")]
    entry: Annotated[Object, Says("its entry, without secrets, by the keys of a file")]
    sources: Annotated[dict[str, str], Says("which file each key of the entry is from")]


class Required(TypedDict):
    """A server that must start and list its tools."""

    server: Annotated[str, Says("the server")]
    tools: Annotated[int | None, Says("how many it has listed; null: it did not start", "tools")]


class Doctor(TypedDict):
    """What is wrong with the set-up. The exit code is that of the worst finding, if it weighs at least as much as
    `--fail-on` says: 1 for an error, 3 for a warning, 4 for a note."""

    findings: Annotated[list[Finding], Says("in the order of the checks")]
    files: Annotated[list[str], Says("the files that the configuration is made of")]
    notSeenStarting: Annotated[
        list[str], Says("servers that no running gateway has started; empty if they are started now")
    ]
    error: Annotated[int, Says("how many findings are errors", "findings")]
    warning: Annotated[int, Says("how many are warnings", "findings")]
    note: Annotated[int, Says("how many are notes", "findings")]
    required: NotRequired[
        Annotated[list[Required], Says("in the order they were named in", when="`--require` is given")]
    ]


class RecentTape(TypedDict):
    """A tape of the last minutes that was written (`--tape`)."""

    tape: Annotated[str, Says("the file")]
    pid: Annotated[int, Says("the gateway that it is of")]
    bytes: Annotated[int, Says("its size", "bytes")]
    calls: Annotated[int, Says("that are on it", "calls")]
    open: Annotated[int, Says("of them that had not ended", "calls")]
    leftOut: Annotated[int, Says("of them whose parameters or result were too large for it", "calls")]
    events: Annotated[int, Says("that are on it", "events")]
    servers: Annotated[list[str], Says("the servers")]


# ---- tools -----------------------------------------------------------------------------------------------------------
class Unknown(TypedDict):
    """A server of whose tools nothing is known."""

    server: Annotated[str, Says("the server")]
    name: Annotated[str, Says("the same; the older word")]
    waitsFor: Annotated[str, Says("what it waits for, or what happened, in words")]
    lastLine: NotRequired[Annotated[str, Says("what it last wrote to its stderr", when="it connects")]]
    failure: NotRequired[Annotated[str, Says("why it failed", when="it did")]]


class Tool(TypedDict):
    """A tool, a resource that is offered as one, or a skill."""

    name: Annotated[str, Says("the name that it is called by")]
    server: Annotated[str, Says("its server")]
    kind: Annotated[Literal["tool", "resource", "skill"], Says("what it is at its server")]
    original: Annotated[str, Says("its server's own name for it, or its URI")]
    description: Annotated[str, Says('"" without one')]
    inputSchema: NotRequired[Annotated[Object, Says("the JSON Schema of its arguments", when="it is a tool")]]
    title: NotRequired[Annotated[str, Says("as the server says", when="the server says it")]]
    annotations: NotRequired[Annotated[Object, Says("as the server says", when="the server says it")]]
    files: NotRequired[
        Annotated[
            list[str] | None,
            Says("its files; null: they are made for each reader", when="it is a skill that may be read"),
        ]
    ]
    outputSchema: NotRequired[
        Annotated[Object, Says("the JSON Schema of its structured result", when="the server says it")]
    ]
    changed: NotRequired[
        Annotated[
            list[str], Says("the parts that its owner has not accepted", when="it cannot be called for that")
        ]
    ]
    hidden: NotRequired[
        Annotated[str, Says("which characters that nobody sees were taken out", when="there were any")]
    ]


class Tools(Origin):
    """The tools that are known, sorted by name, and behind them the skills."""

    mode: Annotated[Literal["tools"], Says("what was asked for")]
    server: Annotated[str | None, Says("whose they are; null: all servers'")]
    tools: Annotated[list[Tool], Says("the tools and skills")]
    count: Annotated[int, Says("how many they are", "tools")]
    unknownServers: NotRequired[
        Annotated[list[Unknown], Says("servers that may have more", when="there are any")]
    ]
    message: NotRequired[
        Annotated[
            str, Says("what to do about those, and about servers that are not used", when="there are any")
        ]
    ]
    error: NotRequired[
        Annotated[Literal["not_known_yet"], Says("exit code 1", when="the one server is such a one")]
    ]


class Match(TypedDict):
    """A tool or skill that was found."""

    server: Annotated[str, Says("its server")]
    tool: NotRequired[Annotated[str, Says("the name that it is called by", when="it is a tool")]]
    skill: NotRequired[Annotated[str, Says("the name that it is read by", when="it is a skill")]]
    score: Annotated[float, Says("how well it fits: more is better, and only to be compared in one answer")]


class Answered(Origin):
    """An answer of the `mcp` tool."""

    omittedBytes: NotRequired[
        Annotated[
            dict[str, int],
            Says("fields that were left out because they are too large", "bytes", "any was left out"),
        ]
    ]
    tape: NotRequired[Annotated[str, Says("the tape that the call is on", when="`call --record`")]]


class Found(Answered):
    """What a search has found, the best first."""

    mode: Annotated[Literal["search"], Says("what was asked for")]
    query: Annotated[str, Says("the words, shortened if they are long")]
    matches: Annotated[list[Match], Says("this page of them")]
    count: Annotated[int, Says("all matches", "tools")]
    hasMore: Annotated[bool, Says("there are more after this page")]
    nextOffset: Annotated[int | None, Says("the `--offset` of the next page", "tools")]
    connectingServers: NotRequired[
        Annotated[list[str], Says("servers that are connecting now", when="there are any")]
    ]
    unknownServers: NotRequired[
        Annotated[list[Unknown], Says("servers that may have more", when="there are any")]
    ]


class Described(Answered):
    """One tool or skill."""

    mode: Annotated[Literal["describe"], Says("what was asked for")]
    server: Annotated[str, Says("its server")]
    tool: NotRequired[Annotated[Tool, Says("the tool", when="it is a tool")]]
    skill: NotRequired[Annotated[Tool, Says("the skill", when="it is a skill")]]


class Guarded(TypedDict):
    """How [long output](doors.md#long-output) was cut."""

    truncated: Annotated[bool, Says("something was cut")]
    originalBytes: Annotated[int, Says("the size of all of it", "bytes")]
    originalLines: Annotated[int, Says("its lines", "lines")]
    returnedBytes: Annotated[int, Says("the size of what is here", "bytes")]
    returnedLines: Annotated[int, Says("its lines", "lines")]
    imageBlocksPassedThrough: NotRequired[
        Annotated[int, Says("images, which are not cut", "images", "there are any")]
    ]
    fullOutputPath: NotRequired[Annotated[str, Says("the file with all of it", when="it was kept")]]
    output: NotRequired[Annotated[str, Says("its id, for the `mcp` tool", when="it was kept")]]
    writeError: NotRequired[Annotated[str, Says("why it was not kept", when="it was not")]]


class Called(Answered):
    """What a call has answered."""

    mode: Annotated[Literal["call"], Says("what was asked for")]
    server: Annotated[str, Says("the server that was called")]
    content: Annotated[list[Object], Says("the MCP content of the result, as a model sees it, but not cut")]
    tool: NotRequired[Annotated[str, Says("the name that was called", when="it is a tool")]]
    resourceUri: NotRequired[Annotated[str, Says("the URI that was read", when="it is a resource")]]
    mcpResult: NotRequired[
        Annotated[
            Object,
            Says(
                "what the server's result has beside its content, such as `structuredContent`",
                when="it has anything else",
            ),
        ]
    ]
    outputGuard: NotRequired[
        Annotated[Guarded, Says("what was cut", when="the content was too long and its file cannot be read")]
    ]
    error: NotRequired[
        Annotated[Literal["tool_error"], Says("exit code 1", when="the tool calls its result an error")]
    ]


class Refused(Answered):
    """A request that failed, with exit code 1. (Wrong options and configurations end with exit code 2, a message on
    stderr and nothing on stdout.)"""

    mode: Annotated[str, Says("what was asked for: `tools`, `search`, `describe` or `call`")]
    error: Annotated[str, Says("the code of the error")]
    message: Annotated[str, Says("what is wrong, and what to do")]
    content: NotRequired[Annotated[list[Object], Says("the same as MCP content", when="it is a call")]]
    server: NotRequired[Annotated[str, Says("the server", when="it is about one")]]
    tool: NotRequired[Annotated[str, Says("the tool", when="it is known")]]
    resourceUri: NotRequired[Annotated[str, Says("the URI", when="it is a resource")]]
    requestedTool: NotRequired[Annotated[str, Says("the name that was asked for", when="it is not known")]]
    suggestions: NotRequired[Annotated[list[str], Says("names that may be meant", when="there are any")]]
    candidates: NotRequired[
        Annotated[list[str], Says("the servers that have the tool", when="several have it")]
    ]
    unknownServers: NotRequired[
        Annotated[list[Unknown], Says("servers that may have it", when="there are any")]
    ]
    reach: NotRequired[
        Annotated[
            Literal["not_sent", "sent", "answered"],
            Says("how far the call got; `sent`: it may have run", when="it is a call"),
        ]
    ]
    failedAgo: NotRequired[
        Annotated[int, Says("how long ago the server failed", "s", "`server_unavailable`")]
    ]
    retryIn: NotRequired[
        Annotated[float, Says("until it is worth trying", "s", "`server_unavailable`, `server_busy`")]
    ]
    inFlight: NotRequired[Annotated[int, Says("calls in flight at the server", "calls", "`server_busy`")]]
    queued: NotRequired[Annotated[int, Says("calls that wait there", "calls", "`server_busy`")]]
    reason: NotRequired[
        Annotated[
            Literal["nobody", "expired", "dismissed", "failed", "changed", "busy"],
            Says(
                "`nobody` can be asked; the question `expired`, was `dismissed` or `failed`; the server has `changed` "
                "meanwhile; too many calls wait (`busy`)",
                when="`approval_required`",
            ),
        ]
    ]
    question: NotRequired[
        Annotated[str, Says("what a person has to allow (`--yes`)", when="`approval_required`")]
    ]


# ---- what was done with servers --------------------------------------------------------------------------------------
class Reconnected(TypedDict):
    """A server that was connected again."""

    server: Annotated[str, Says("the server")]
    name: Annotated[str, Says("the same; the older word")]
    error: Annotated[str | None, Says("why it failed; null: it is connected")]


class Reconnect(Source):
    """Which servers were connected again."""

    servers: Annotated[list[Reconnected], Says("those that were up, or the one")]


class Read(TypedDict):
    """A server that was started to read what it has."""

    server: Annotated[str, Says("the server")]
    name: Annotated[str, Says("the same; the older word")]
    state: Annotated[Literal["known", "failed"], Says("how it ended")]
    tools: NotRequired[Annotated[int, Says("how many it has", "tools", "`known`")]]
    failure: NotRequired[Annotated[str | None, Says("why it failed", when="`failed`")]]
    retryIn: NotRequired[
        Annotated[float | None, Says("until it may be tried again", "s", "`failed`, and it is configured")]
    ]


class Refreshed(Source):
    """Which servers were read."""

    servers: Annotated[list[Read], Says("those that were unknown, or the one")]


class Accepted(TypedDict):
    """A tool, skill, prompt or resource that is not as it was first shown."""

    server: Annotated[str, Says("its server")]
    tool: Annotated[str, Says("the server's own name for it")]
    parts: Annotated[list[str], Says("what has changed")]
    was: Annotated[dict[str, Any] | None, Says("its definition before that, if it is known")]


class Accept(TypedDict):
    """What has changed."""

    changed: Annotated[list[Accepted], Says("those that were shown")]
    accepted: Annotated[list[str], Says("those that were accepted now, by their servers' names for them")]


class PageAddress(TypedDict):
    """Where the page is, for as long as the command runs."""

    url: Annotated[str, Says("its address, with a token: whoever has it may act")]
    pid: Annotated[int | None, Says("the gateway that is shown; null: a tape is")]


class Waiting(TypedDict):
    """A call that waits for a person's yes."""

    number: Annotated[int, Says("for `greenroom approve NUMBER`")]
    server: Annotated[str, Says("the server")]
    tool: Annotated[str, Says("the tool")]
    session: Annotated[str | None, Says("the session that calls; null: the room itself")]
    question: Annotated[str, Says("what is asked, with the arguments")]
    waiting: Annotated[float, Says("how long it has waited", "s")]
    left: Annotated[float, Says("until it is refused", "s")]
    pid: Annotated[int, Says("the gateway where it waits")]


class Approvals(TypedDict):
    """The calls that wait."""

    approvals: Annotated[list[Waiting], Says("the first of them")]
    waitingForApproval: Annotated[int, Says("all of them", "calls")]
    source: Annotated[Literal["gateway"], Says("who answered")]


class Approved(TypedDict):
    """What was answered."""

    number: Annotated[int, Says("the call")]
    verdict: Annotated[Literal["once", "session", "deny"], Says("the answer")]
    server: Annotated[str, Says("the server")]
    tool: Annotated[str, Says("the tool")]
    session: Annotated[str | None, Says("the session that calls; null: the room itself")]
    pid: Annotated[int, Says("the gateway where it waited")]


class Stopped(TypedDict):
    """The background room's end."""

    ended: Annotated[int | None, Says("the process that has ended; null: none ran, or it did not say")]


LogLine = TypedDict(
    "LogLine",
    {
        "from": Annotated[Literal["server", "greenroom"], Says("who wrote it")],
        "text": Annotated[str, Says("the line")],
    },
)
LogLine.__doc__ = "A line of a server's log. With `--follow` each is an object on a line of its own."


class Logs(TypedDict):
    """What a server has printed to its stderr."""

    server: Annotated[str, Says("the server")]
    file: Annotated[str, Says("the log")]
    lines: Annotated[list[LogLine], Says("the last ones, the oldest first")]


class Login(TypedDict):
    """A server that may have a login."""

    server: Annotated[str, Says("the server")]
    state: Annotated[Literal["logged in", "expired", "none", "unreadable"], Says("how it is")]
    why: NotRequired[Annotated[str, Says("why it cannot be read", when="`unreadable`")]]
    issuer: NotRequired[
        Annotated[str | None, Says("who gave it; null: the server itself", when="there is one")]
    ]
    scope: NotRequired[Annotated[str | None, Says("its scopes", when="there is one")]]
    expiresAt: NotRequired[
        Annotated[float | None, Says("when its token is over", "s since 1970", "there is one")]
    ]
    renewable: NotRequired[Annotated[bool, Says("it is renewed without a person", when="there is one")]]
    grant: NotRequired[Annotated[str, Says("how it was got", when="there is one")]]


class Logins(TypedDict):
    """The logins."""

    logins: Annotated[list[Login], Says("of each server that may have one")]


class LoggedOut(TypedDict):
    """A login that was forgotten."""

    server: Annotated[str, Says("the server")]
    state: Annotated[Literal["none"], Says("there is no login now")]
    wasThere: Annotated[bool, Says("there was one")]
    notRevoked: Annotated[str | None, Says("why its server was not told; null: it was, or none was there")]


# ---- configuration ---------------------------------------------------------------------------------------------------
class Sources(TypedDict):
    """Where each key is from."""

    mcpServers: Annotated[dict[str, dict[str, str]], Says("the file of each key, by server")]
    settings: Annotated[dict[str, str], Says("the file of each setting, or `default`")]


class Configuration(TypedDict):
    """The effective configuration, without secrets."""

    files: Annotated[list[str], Says("the files that it is made of, the strongest first")]
    unread: Annotated[list[str], Says("those of them that cannot be read")]
    untrusted: Annotated[list[str], Says("those of them that are not obeyed")]
    mcpServers: Annotated[dict[str, Object], Says("the servers, by the keys of [a file](configuration.md)")]
    settings: Annotated[Object, Says("the settings, by the same keys and units")]
    sources: Annotated[Sources, Says("where each key is from")]
    broken: Annotated[dict[str, str], Says("servers that cannot be used, and why")]
    problems: Annotated[list[str], Says("warnings")]


class Added(TypedDict):
    """A server that was written into a file."""

    server: Annotated[str, Says("the server")]
    file: Annotated[str, Says("the file")]
    replaced: Annotated[bool, Says("another server of this name was there")]
    next: Annotated[str, Says("the command that reads what it has")]


class Removed(TypedDict):
    """A server that was taken out of a file."""

    server: Annotated[str, Says("the server")]
    file: Annotated[str, Says("the file")]
    others: Annotated[list[str], Says("other files that have a server of this name")]


class Switched(TypedDict):
    """A server that was switched off or on."""

    server: Annotated[str, Says("the server")]
    disabled: Annotated[bool, Says("how it is now")]
    files: Annotated[list[str], Says("the files that were changed; empty: it was so already")]


class ProjectFile(TypedDict):
    """A file of this project."""

    file: Annotated[str, Says("the file")]
    directory: Annotated[str, Says("the folder that it was looked for in")]
    trusted: Annotated[bool, Says("it is obeyed")]
    matters: Annotated[Object, Says("what in it would start, send or read something, without secrets")]


class Trust(TypedDict):
    """The files of this project. The exit code is 1 when one is not trusted."""

    files: Annotated[list[ProjectFile], Says("those that need to be trusted")]


class Agreement(TypedDict):
    """A file that is trusted."""

    file: Annotated[str, Says("the file")]
    directory: Annotated[str, Says("the folder where it is obeyed")]
    since: Annotated[int, Says("when it was trusted", "s since 1970")]


class Agreements(TypedDict):
    """Everything that is trusted."""

    trusted: Annotated[list[Agreement], Says("in the order of the files' names")]


class Revoked(TypedDict):
    """What is trusted no longer."""

    revoked: Annotated[list[str], Says("the files")]


class Client(TypedDict):
    """An MCP client that `init` knows."""

    client: Annotated[str, Says("its name for `init`")]
    title: Annotated[str, Says("its name for people")]
    file: Annotated[str, Says("its file")]
    found: Annotated[bool, Says("it is on this machine")]
    written: Annotated[bool, Says("Greenroom is written there")]


class Clients(TypedDict):
    """The clients that `init` knows."""

    clients: Annotated[list[Client], Says("all of them")]


class Written(TypedDict):
    """What was done for one client."""

    client: Annotated[str, Says("its name for `init`")]
    file: Annotated[str, Says("its file")]
    state: Annotated[
        Literal["written", "would be written", "unchanged", "put back", "would be put back", "failed"],
        Says("what was done"),
    ]
    error: NotRequired[Annotated[str, Says("why it failed; exit code 1", when="`failed`")]]
    diff: NotRequired[Annotated[str, Says("the difference, without secrets", when="the file changes")]]
    backup: NotRequired[Annotated[str | None, Says("the old file; null: there was none", when="`written`")]]
    moved: NotRequired[Annotated[list[str], Says("servers that were moved", when="it is not undone")]]
    stay: NotRequired[
        Annotated[dict[str, str], Says("servers that were not, and why", when="it is not undone")]
    ]
    ours: NotRequired[
        Annotated[str, Says("your own file", when="servers are moved, or both files have servers")]
    ]
    kept: NotRequired[Annotated[str, Says("what was there until now", when="`put back`, and it had changed")]]
    both: NotRequired[
        Annotated[list[str], Says("servers in both files", when="`put back`, and both files exist")]
    ]


class Init(TypedDict):
    """What was written."""

    clients: Annotated[list[Written], Says("each client that was named")]
    next: Annotated[list[str], Says("what comes next, one step each")]


# ---- measures and records --------------------------------------------------------------------------------------------
class Outputs(TypedDict):
    """The files of long output."""

    directory: Annotated[str, Says("where they are")]
    outputs: Annotated[list[Output], Says("the files")]
    bytes: Annotated[int, Says("the size of all", "bytes")]


class Output(TypedDict):
    """A file of long output."""

    id: Annotated[str, Says("its id, for the `mcp` tool")]
    path: Annotated[str, Says("the file")]
    bytes: Annotated[int, Says("its size", "bytes")]
    ageSeconds: Annotated[float, Says("since it was written", "s")]


class Cleared(TypedDict):
    """What was removed."""

    removed: Annotated[int, Says("how many", "files")]


class ServerCost(TypedDict):
    """What the tools of a server cost."""

    server: Annotated[str, Says("the server")]
    tools: Annotated[int, Says("how many it has", "tools")]
    tokens: Annotated[int, Says("of all their definitions", "tokens")]


class Task(TypedDict):
    """One tool, found and called, over all turns."""

    proxy: Annotated[int, Says("behind the `mcp` tool", "tokens")]
    meta: Annotated[int, Says("behind the tools of `meta`", "tokens")]
    direct: Annotated[int, Says("with all tools shown", "tokens")]


class Cost(TypedDict):
    """What each exposure costs in every turn."""

    countedBy: Annotated[str, Says("how tokens were counted")]
    proxy: Annotated[int, Says("behind the `mcp` tool", "tokens")]
    beside: Annotated[int, Says("that part of `proxy` which is for the tools beside it", "tokens")]
    meta: Annotated[int, Says("behind the tools of `meta`", "tokens")]
    direct: Annotated[int, Says("with all tools shown", "tokens")]
    tools: Annotated[int, Says("tools that are known", "tools")]
    servers: Annotated[list[ServerCost], Says("by server, the dearest first")]
    notCounted: Annotated[list[str], Says("servers whose tools are unknown")]
    search: NotRequired[Annotated[int, Says("the answer to the search", "tokens", "`--search` is given")]]
    task: NotRequired[Annotated[Task, Says("one tool, found by it and called", when="`--search` is given")]]


class Spread(TypedDict):
    """How long a phase took."""

    p50: Annotated[float, Says("half of the cycles took at most this", "ms")]
    p90: Annotated[float, Says("nine in ten", "ms")]
    p99: Annotated[float, Says("99 in a hundred", "ms")]
    max: Annotated[float, Says("the slowest", "ms")]


class Leaks(TypedDict):
    """What was left behind."""

    processes: Annotated[list[str], Says("processes, by their commands")]
    descriptors: Annotated[int | None, Says("open descriptors; null: this system does not tell")]
    bytesPerCycle: Annotated[int | None, Says("memory; null: this system does not tell", "bytes")]


class Churn(TypedDict):
    """What it costs to connect a server again and again."""

    cycles: Annotated[int, Says("that succeeded", "cycles")]
    concurrency: Annotated[int, Says("how many at a time", "cycles")]
    tool: Annotated[str | None, Says("the tool that was called; null: none")]
    cyclesPerSecond: Annotated[float, Says("over all", "1/s")]
    milliseconds: Annotated[dict[str, Spread], Says("by phase")]
    failures: Annotated[list[str], Says("why cycles failed")]
    leaks: Annotated[Leaks, Says("what was left behind")]


class DrainReport(TypedDict):
    """The sum of a run: completed + failed + cancelled = accepted."""

    accepted: Annotated[int, Says("calls that were sent or queued", "calls")]
    completed: Annotated[int, Says("with a result", "calls")]
    failed: Annotated[int, Says("with an error", "calls")]
    cancelled: Annotated[int, Says("by their callers", "calls")]
    refused: Annotated[int, Says("that were never accepted", "calls")]
    refusals: Annotated[dict[str, int], Says("the same by the code of the error", "calls")]
    open: Annotated[int, Says("without an outcome; 0 at the end", "calls")]
    isFinal: Annotated[bool, Says("the room has ended")]


class Scene(TypedDict):
    """A scene of the demo."""

    scene: Annotated[str, Says("its title")]
    steps: Annotated[list[Step], Says("what happened, in order")]


class Step(TypedDict):
    """One thing that happened: each has only the fields of its kind."""

    said: NotRequired[Annotated[str, Says("a sentence about it", when="it is one")]]
    call: NotRequired[Annotated[str, Says("the tool that was called", when="it is a call")]]
    args: NotRequired[Annotated[Object, Says("its arguments", when="it is a call")]]
    outcome: NotRequired[Annotated[str, Says("what came of it", when="it is a call")]]
    milliseconds: NotRequired[Annotated[float, Says("how long it took", "ms", "it is a call")]]
    transition: NotRequired[Annotated[str, Says("a transition, in words", when="it is one")]]
    servers: NotRequired[
        Annotated[list[dict[str, str]], Says("the table, each row with its cells", when="it is shown")]
    ]


class Demo(TypedDict):
    """What the demo did."""

    mode: Annotated[Literal["demo"], Says("what was asked for")]
    scenes: Annotated[list[Scene], Says("in order")]
    drainReport: Annotated[DrainReport, Says("what became of the calls")]
    processesStarted: Annotated[int, Says("by its room", "processes")]
    leftRunning: Annotated[int, Says("of them, at the end", "processes")]
    seconds: Annotated[float, Says("how long it took", "s")]


class Trace(TypedDict):
    """The timeline, in the form of Chrome's and Perfetto's traces."""

    traceEvents: Annotated[list[Object], Says("see the Trace Event Format; `ts` and `dur` are µs")]
    displayTimeUnit: Annotated[Literal["ms"], Says("what viewers show")]


class Traced(TypedDict):
    """A timeline that was written."""

    output: Annotated[str, Says("the file")]
    events: Annotated[int, Says("what is in it", "events")]
    skipped: Annotated[int, Says("lines of the log that are no events", "lines")]


class TapedCall(TypedDict):
    """A call on a tape."""

    number: Annotated[int, Says("its number in the events")]
    at: Annotated[float, Says("when it was accepted, from the beginning of the tape", "s")]
    seconds: Annotated[float, Says("how long it took", "s")]
    waited: Annotated[float, Says("of them before it was sent", "s")]
    server: Annotated[str, Says("the server")]
    tool: Annotated[str | None, Says("the name that was called; null: it is not a call of a tool")]
    method: Annotated[str, Says("the method of the protocol")]
    params: Annotated[dict[str, Any], Says("its parameters")]
    outcome: Annotated[str, Says("`result`, `cancelled`, `open`, or the code of its error")]
    leftOut: NotRequired[
        Annotated[
            dict[str, int],
            Says(
                "`params` or `result`, by size",
                "bytes",
                when="they were too large for a tape of the last minutes",
            ),
        ]
    ]
    isError: Annotated[bool, Says("it is a result that the tool itself calls an error")]
    reach: Annotated[str, Says("how far it got: `not_sent`, `sent`, `answered`")]
    session: Annotated[str | None, Says("the session it came from; null: the room's own")]


class Taped(TypedDict):
    """What is on a tape."""

    tape: Annotated[str, Says("the file")]
    recordedAt: Annotated[float, Says("when it began", "s")]
    greenroom: Annotated[str, Says("the version that recorded it")]
    isCut: Annotated[bool, Says("its last line is not whole: the process was killed, or the disk was full")]
    isEnded: Annotated[bool, Says("its recording was ended, and nothing is missing at its end")]
    servers: Annotated[list[str], Says("the servers")]
    outcomes: Annotated[dict[str, int], Says("by outcome", "calls")]
    calls: Annotated[list[TapedCall], Says("in the order in which they were sent")]


class SpansSent(TypedDict):
    """Spans of a tape that were sent to a collector, or written to a file."""

    otlp: Annotated[str, Says("the URL or the file")]
    spans: Annotated[int, Says("how many", "spans")]
    calls: Annotated[int, Says("of so many", "calls")]


class Changed(TypedDict):
    """A part of an answer, of arguments or of a definition that differs."""

    path: Annotated[str, Says("where it is, such as `content[0].text`; empty: all of it")]
    before: Annotated[str | None, Says("the beginning of its JSON before; null: it was not there")]
    after: Annotated[str | None, Says("the same after")]


class DifferentDefinition(TypedDict):
    """What a server lists, or says of itself, and that differs."""

    kind: Annotated[
        Literal["tool", "prompt", "resource", "template", "skill", "server"],
        Says("what it is; `server`: the server itself"),
    ]
    server: Annotated[str, Says("the server")]
    name: Annotated[str, Says("the server's own name or URI for it")]
    what: Annotated[
        Literal["gone", "new", "changed", "unreachable"],
        Says("what became of it; `unreachable`: the server could not be asked"),
    ]
    changes: Annotated[list[Changed], Says("what has changed of it")]
    moreChanges: Annotated[int, Says("how many further changes are not named", "changes")]
    why: Annotated[str | None, Says("why not; null: it could")]


class DifferentCall(TypedDict):
    """A call that differs."""

    what: Annotated[
        Literal["answer", "outcome", "arguments", "order", "added", "left_out"],
        Says("what differs; `outcome`: such as an error in place of an answer"),
    ]
    server: Annotated[str, Says("the server")]
    name: Annotated[str, Says("the tool as it was called, or the method and what it is about")]
    arguments: Annotated[str, Says("the beginning of its arguments as JSON")]
    before: Annotated[int | None, Says("its number on the tape; null: it is not there")]
    after: Annotated[
        int | None, Says("its number on the other tape; null: it is not there, or there is none")
    ]
    outcomeBefore: Annotated[
        str | None,
        Says("`answer`, `tool_error` or the code of an error; null: no question of the outcome"),
    ]
    outcomeAfter: Annotated[str | None, Says("the same after")]
    changes: Annotated[list[Changed], Says("what differs of its answer or arguments")]
    moreChanges: Annotated[int, Says("how many further changes are not named", "changes")]
    behind: Annotated[
        int | None,
        Says("an earlier call that was not made again, for which the answer may differ; null: there is none"),
    ]
    why: Annotated[
        str | None,
        Says("why it failed, and what to do; null: it did not, or the server says why in `changes`"),
    ]


class ToolTimes(TypedDict):
    """How long calls of a tool took, by the medians."""

    server: Annotated[str, Says("the server")]
    name: Annotated[str, Says("the tool as it was called")]
    calls: Annotated[int, Says("that were answered before and after", "calls")]
    before: Annotated[float, Says("from being sent to the answer", "s")]
    after: Annotated[float, Says("the same after", "s")]
    slower: Annotated[bool, Says("it is a difference (`--slower`)")]


class OtherVersion(TypedDict):
    """A server that says another version of itself, which alone is no difference."""

    server: Annotated[str, Says("the server")]
    before: Annotated[str, Says("its version before")]
    after: Annotated[str, Says("its version after")]


class LeftCalls(TypedDict):
    """Calls on the tape that were not made again."""

    server: Annotated[str, Says("the server")]
    name: Annotated[str, Says("the tool as it was called, or the method and what it is about")]
    why: Annotated[str, Says("why not")]
    calls: Annotated[int, Says("how many", "calls")]


class Difference(TypedDict):
    """What differs between two tapes, or between a tape and the servers as they are now."""

    tape: Annotated[str, Says("the first file")]
    kept: Annotated[str | None, Says("the tape of what the servers answer now; null: without `--record`")]
    same: Annotated[bool, Says("nothing differs; the exit code is 0 then, else 1")]
    callsTheSame: Annotated[int, Says("that are the same", "calls")]
    definitions: Annotated[list[DifferentDefinition], Says("what servers list or say otherwise")]
    calls: Annotated[list[DifferentCall], Says("the calls that differ, in their order")]
    times: Annotated[list[ToolTimes], Says("how long calls took")]
    versions: Annotated[list[OtherVersion], Says("servers of another version")]
    notSent: Annotated[list[LeftCalls], Says("calls that were not made again, with `--against`")]


class FaultTried(TypedDict):
    """What an agent did when one thing went wrong."""

    fault: Annotated[str, Says("as for `replay --fault`; empty: nothing went wrong")]
    server: Annotated[str, Says("the server that it happened to")]
    call: Annotated[int | None, Says("the number of the call that it happened to; null: to each start")]
    tool: Annotated[str, Says("the tool that was called then")]
    deed: Annotated[str, Says("what happened, as in the head of the table")]
    verdict: Annotated[str, Says("`survived`, `gave up a call`, `failed`, or `not tried`: it did not happen")]
    why: Annotated[str, Says("how it failed")]
    askedAgain: Annotated[
        list[str], Says("calls that may change something, made again though they may have run")
    ]
    missing: Annotated[list[str], Says("calls whose recorded answer it did not get")]
    calls: Annotated[int, Says("that it made", "calls")]
    seconds: Annotated[float, Says("how long it ran", "s")]


class WhatIfs(TypedDict):
    """What an agent did under each single fault of a tape."""

    tape: Annotated[str, Says("the file")]
    isGood: Annotated[bool, Says("nothing failed or was asked again; the exit code is 0 then, else 1")]
    leftOut: Annotated[int, Says("faults that were not tried, by `--runs`", "faults")]
    base: Annotated[FaultTried, Says("the run in which nothing went wrong")]
    trials: Annotated[list[FaultTried], Says("one for each fault")]


class Bad(TypedDict):
    """The first bad line of an audit file."""

    line: Annotated[int, Says("its number, from 1")]
    why: Annotated[str, Says("what is wrong")]
    torn: Annotated[bool, Says("it is the last one, and not whole")]


class Verified(TypedDict):
    """Whether an audit file is whole."""

    file: Annotated[str, Says("the file")]
    whole: Annotated[bool, Says("its chain is not broken; else exit code 1")]
    lines: Annotated[int, Says("that are good", "lines")]
    calls: Annotated[int, Says("in those", "calls")]
    missing: Annotated[int, Says("calls that could not be written, as the file says", "calls")]
    firstTime: Annotated[str | None, Says("the time of the first line", "UTC")]
    lastTime: Annotated[str | None, Says("the time of the last good line", "UTC")]
    lastHash: Annotated[str, Says("its hash, to be noted elsewhere")]
    expectedAt: Annotated[
        int | None, Says("the line with the hash of `--expect`; 0: the last one of the file before")
    ]
    ended: Annotated[bool, Says("the last gateway ended in order")]
    remarks: Annotated[list[str], Says("what is worth knowing and no fault")]
    bad: Annotated[Bad | None, Says("the first bad line; null: none")]


class ClusterHost(TypedDict):
    """A host of a cluster."""

    name: Annotated[str, Says("what it is called: the first digits of its node's id")]
    url: Annotated[str, Says("its door, for fronts")]
    state: Annotated[Literal["serving", "draining"], Says("draining: it takes nothing new")]
    epoch: Annotated[str, Says("of its present life")]
    holds: Annotated[list[str], Says("servers with one process for all that run there, or are kept for it")]
    labels: Annotated[dict[str, str], Says("of its node")]
    resources: Annotated[dict[str, float], Says("of its node, as Ray has them")]


class Cluster(TypedDict):
    """The hosts of a cluster that have a lease."""

    hosts: Annotated[list[ClusterHost], Says("by name")]
    view: Annotated[str, Says("the number of what the directory knows; it changes with each change")]
    configuration: Annotated[int, Says("the version of the configuration; 0: none yet")]


class ClusterDrained(TypedDict):
    """What a host that drains has given back, and what became of its calls."""

    host: Annotated[str, Says("its name")]
    gone: Annotated[bool, Says("it has left, or its lease is over")]
    moved: Annotated[dict[str, str], Says("servers that were there, and the host where each runs now")]
    free: Annotated[list[str], Says("servers that rested: each starts at another host when it is used next")]
    ended: Annotated[list[str], Says("servers of sessions and calls, whose processes have ended with these")]
    left: Annotated[list[str], Says("servers that still run there; the exit code is 1 then")]
    calls: Annotated[
        DrainReport | None,
        Says("what became of the calls of the host, in its present life; null: it did not say"),
    ]
    seconds: Annotated[float, Says("how long it was waited", "s")]


class ClusterDemo(TypedDict):
    """What the demo of a cluster did."""

    hosts: Annotated[list[str], Says("by name")]
    killed: Annotated[str, Says("the host that was killed; empty: the story did not come so far")]
    ended: Annotated[dict[str, int], Says("how the calls ended that were in flight", "calls")]
    secondsUntilServed: Annotated[
        float | None,
        Says("from the kill until all servers of that host were served; null: they were not", "s"),
    ]
    drainReport: Annotated[DrainReport, Says("what became of all calls")]
    seconds: Annotated[float, Says("how long it took", "s")]


# ---- which command has which -----------------------------------------------------------------------------------------
SHAPES: Final[Mapping[str, tuple[Any, ...]]] = MappingProxyType(
    {
        "greenroom": (Overview,),
        "greenroom --version": (Version,),
        "demo": (Demo,),
        "init": (Clients,),
        "init CLIENT": (Init,),
        "add": (Added,),
        "remove": (Removed,),
        "stop": (Stopped,),
        "top": (Top,),
        "approve": (Approvals,),
        "approve N": (Approved,),
        "status": (Status,),
        "tools": (Tools, Refused),
        "search": (Found, Refused),
        "describe": (Described, Refused),
        "call": (Called, Refused),
        "reconnect": (Reconnect,),
        "refresh": (Refreshed,),
        "enable": (Switched,),
        "disable": (Switched,),
        "cluster start": (Cluster,),
        "cluster status": (Cluster,),
        "cluster drain": (ClusterDrained,),
        "cluster drain --off": (Cluster,),
        "cluster demo": (ClusterDemo,),
        "config": (Configuration,),
        "config --schema": (Object,),
        "trust": (Trust,),
        "trust --list": (Agreements,),
        "trust --revoke": (Revoked,),
        "auth": (Logins,),
        "auth S": (Login,),
        "auth S --logout": (LoggedOut,),
        "accept": (Accept,),
        "page": (PageAddress,),
        "outputs": (Outputs,),
        "outputs --clear": (Cleared,),
        "cost": (Cost,),
        "doctor": (Doctor, RecentTape),
        "explain": (Explained,),
        "audit verify": (Verified,),
        "audit show": (list[Object],),
        "logs": (Logs,),
        "logs --follow": (LogLine,),
        "bench churn": (Churn,),
        "tape": (Taped, Traced, SpansSent),
        "diff": (Difference,),
        "explore": (WhatIfs,),
        "trace": (Trace,),
        "trace --output": (Traced,),
    }
)
