"""The configuration model: what a server entry, the settings and a profile may say.

A field is also the key of a file: its name there, its kind and its meaning (`keys.key`). From these fields are made
the reading of files (`parse`), the JSON Schema (`schema`), the printed configuration (`masking`) and the tables in
docs/reference/. Keys in files are camelCase, as every MCP client writes them; attributes are snake_case.
Durations are seconds here, whatever the unit of the file's key. (Keys have their unit in their name, except
`idleTimeout`, which is in minutes.)

A definition has two halves. What decides *which process or endpoint it is* goes into `definition_hash`: changing it
means a new incarnation and a new catalogue entry. The rest is policy and is applied live.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, Literal, get_args

from msgspec import UNSET
from msgspec.structs import force_setattr, replace

from ..protocol.bounds import PROMOTED
from ..protocol.errors import Problem
from .keys import (
    AUTH,
    HTTP_TOOLS,
    IDENTITY_GRANTS,
    OAUTH,
    OVERRIDES,
    OVERRIDES_OF_ANY,
    OVERRIDES_OF_EACH,
    PLACEMENT,
    REQUEST_HEADERS,
    Key,
    Model,
    field,
    key,
    keys_of,
)
from .rate_texts import LIMITS, LOOP_GUARD
from .scrubbing import without_logins
from .value_kinds import (
    CHOICE,
    DAYS,
    ENVIRONMENT,
    FLAG,
    FRACTION,
    HOURS,
    MILLISECONDS,
    MILLISECONDS_FROM_0,
    MINUTES,
    MODEL,
    PROGRAM,
    SAFE_URL,
    SECONDS,
    SESSION_HEADERS,
    SHA256,
    TEXT,
    TEXT_MAP,
    TEXTS,
    VALUE_MAP,
    VALUES,
    ValueKind,
    count,
    word,
    word_or_names,
)


class Lifecycle(enum.Enum):
    """When a server starts, and whether it is kept running."""

    LAZY = "lazy"  # at its first call; it is stopped when it is idle
    EAGER = "eager"  # with the room; it is not stopped for being idle
    KEEP_ALIVE = "keep-alive"  # with the room, and again whenever it ends; its health is checked


class RestartPolicy(enum.Enum):
    """Whether a server that was lost is started again."""

    NEVER = "never"  # only when somebody connects it
    ON_DEMAND = "on_demand"  # when a call needs it
    ALWAYS = "always"  # by itself


class Isolation(enum.Enum):
    """Who shares a process of a server."""

    PERSISTENT = "persistent"  # everybody
    PER_SESSION = "per_session"  # the calls of one session
    PER_CALL = "per_call"  # nobody: each call has its own


class HttpTransport(enum.Enum):
    """A transport that the file insists on. Without it, Streamable HTTP is tried first, then SSE."""

    STREAMABLE_HTTP = "streamable-http"  # and never SSE
    SSE = "sse"  # HTTP with SSE, as up to 2024-11-05


class Era(enum.Enum):
    """How a server is initialized."""

    AUTO = "auto"  # the era in which its client can answer its requests, if there is one; else the newer era first
    HANDSHAKE = "handshake"  # as up to 2025-11-25
    STATELESS = "stateless"  # as from 2026-07-28 on


class Pinning(enum.Enum):
    """What happens to a tool, skill, prompt or resource that is not as it was first shown."""

    QUARANTINE = "quarantine"  # it cannot be used until its owner accepts it
    WARN = "warn"  # it can be used; the status and the log mention it
    OFF = "off"  # nothing: it is not detected


class Scrub(enum.Enum):
    """Which results credentials are removed from, and by which rule. What is known to be a credential, or has the form
    of one, is removed. With `-names` the values of all JSON members with the name of a credential are, too."""

    OFF = "off"  # none
    MCP = "mcp"  # those that a model is given through the `mcp` tool, or another tool of ours
    ALL = "all"  # also those at the door `direct`, and those that a program is given
    MCP_NAMES = "mcp-names"  # as `mcp`, by names, too
    ALL_NAMES = "all-names"  # as `all`, by names, too

    @property
    def is_by_name(self) -> bool:
        """Whether a member's name alone is enough."""
        return self in (Scrub.MCP_NAMES, Scrub.ALL_NAMES)

    @property
    def is_everywhere(self) -> bool:
        """Whether it holds at every door."""
        return self in (Scrub.ALL, Scrub.ALL_NAMES)


class PrefixMode(enum.Enum):
    """What stands before the name of a tool (`toolPrefix`)."""

    SERVER = "server"  # the name of its server
    SHORT = "short"  # the same without `-mcp` or `mcp` at its end
    NONE = "none"  # nothing, while only one server has a tool of that name
    MCP = "mcp"  # `mcp__server_tool`, a mode of pi


class Approve(enum.Enum):
    """Which calls a person has to allow, by what the tool says of itself (`approval`)."""

    OFF = "off"  # none
    ALL = "all"  # all
    WRITES = "writes"  # of all tools that do not say they only read
    DESTRUCTIVE = "destructive"  # of those, the ones that do not say they destroy nothing
    OPEN_WORLD = "open-world"  # of all tools that do not say they reach nothing outside


def _names_only(values: Mapping[str, Any]) -> str:
    """Only the names, because values may be secrets, and a definition gets into logs and assertion messages."""
    return "{" + ", ".join(f"{name!r}: ***" for name in values) + "}"


def _number_only(values: tuple[str, ...]) -> str:
    return f"({len(values)} of them)"


def _place_only(url: str | None) -> str:
    return repr(None if url is None else without_logins(url).partition("?")[0].partition("#")[0])


SHORTEST_NAME: Final = 40  # no limit of names is below this: the longest hash, and a little of the name
# What an entry and the settings say alike.
CALLS: Final = count("calls")
APPROVE: Final = word_or_names(Approve, Approve.ALL, Approve.OFF)
INSTALLS: Final = "The same for npx, uvx, docker and similar commands, while they show progress."
NPX: Final = "Start an installed package that npx would start without npx ([npx without npm](npx.md))."


class ServerDefinition(Model, frozen=True, eq=False):
    """One entry of `mcpServers`. Exactly one of `command`, `url`, `socket` and `in_process` is set. None is "not
    said": the settings decide, or a default that the key's meaning names."""

    name: str
    # -- which server it is (hashed) --
    command: str | None = key(
        "command", PROGRAM, "The program to start. `~` and variables are expanded.", identity=True
    )
    args: tuple[str, ...] = key(
        "args",
        VALUES,
        "Its arguments, one text each. Variables are expanded.",
        (),
        identity=True,
        shown=_number_only,
    )
    env: Mapping[str, str] = key(
        "env",
        VALUE_MAP,
        "Environment of the program, on top of the minimal one. Expanded.",
        {},
        identity=True,
        shown=_names_only,
    )
    env_file: str | None = key(
        "envFile",
        TEXT,
        "A file of `NAME=value` lines for its environment; `env` is stronger "
        "([values](secrets.md#values-that-are-in-no-file)).",
        identity=True,
    )
    # Another one when the file has changed.
    env_file_state: str | None = field(shown=False)
    # A file of a project names it, whose owner said yes to these variables of it (`config.trust`).
    env_file_agreed: Mapping[str, str | None] | None = field(shown=False)
    cwd: str | None = key(
        "cwd", TEXT, "Its working directory. `~` and variables are expanded.", identity=True, in_words="ours"
    )
    inherit_env: bool | tuple[str, ...] | None = key(
        "inheritEnv",
        ENVIRONMENT,
        "Variables of our environment that it gets besides the minimum: all, none, or these; `*` and `?` match.",
        identity=True,
        in_words="the setting `inheritEnv`",
    )
    url: str | None = key(
        "url",
        TEXT,
        "The endpoint of an HTTP server; of an HTTP API the URL before its paths, also called `baseUrl`. "
        "A missing or empty variable is an error.",
        identity=True,
        shown=_place_only,
    )
    openapi: str | None = key(
        "openapi",
        TEXT,
        "The OpenAPI document of the HTTP API at `url`, a file or a URL ([HTTP APIs](openapi.md)). Expanded.",
        identity=True,
        shown=_place_only,
    )
    openapi_state: str | None = field(shown=False)  # another one when the file has changed
    # The print of the document that the owner of the project said yes to; None where no yes is needed.
    openapi_agreed: str | None = field(shown=False)
    spec_hash: str | None = key(
        "specHash",
        SHA256,
        "The SHA-256 of that document; another document is refused.",
        identity=True,
    )
    include_operations: tuple[str, ...] | None = key(
        "includeOperations",
        TEXTS,
        "Only these operations of it: `tag:issues`, an operation's id, or `GET /repos/*`; `*` and `?` match.",
        identity=True,
        in_words="all",
    )
    exclude_operations: tuple[str, ...] = key(
        "excludeOperations",
        TEXTS,
        "Never these operations of it, written like that.",
        (),
        identity=True,
        in_words="none",
    )
    output_schemas: bool = key(
        "outputSchemas",
        FLAG,
        "List the schemas of its answers too, and hold the API to them.",
        False,
        identity=True,
    )
    uploads: str | None = key(
        "uploads",
        TEXT,
        "The folder whose files the API's tools may send by their path. `~` and variables are expanded.",
        identity=True,
        in_words="none",
    )
    http: Mapping[str, Any] | None = key(
        "http",
        HTTP_TOOLS,
        "Requests to the HTTP API at `url`, as tools by their names ([by hand](openapi.md#tools-by-hand)).",
        identity=True,
        shown=False,
    )
    headers: Mapping[str, str] = key(
        "headers",
        VALUE_MAP,
        "HTTP headers to send. Variables are expanded.",
        {},
        identity=True,
        shown=_names_only,
    )
    http_transport: HttpTransport | None = key(
        "httpTransport",
        word(HttpTransport),
        "Insist on one HTTP transport.",
        identity=True,
        in_words="Streamable HTTP, then SSE",
    )
    auth: Literal["oauth", False] | None = key(
        "auth",
        AUTH,
        '`"oauth"`: it wants an OAuth login ([Logging in](login.md)). `false`: never log in. '
        '`"bearer"`: as `bearerToken` says.',
        identity=True,
        in_words="a stored login is used, unless there is an `Authorization` header",
    )
    oauth: Mapping[str, Any] | Literal[False] | None = key(
        "oauth",
        OAUTH,
        "How to log in ([Logging in](login.md)); `false`: never.",
        identity=True,
        shown=False,
    )
    pi_logins: str | None = None  # where pi keeps its logins, if its settings say so (`with_settings`)
    request_headers_command: Mapping[str, Any] | None = key(
        "requestHeadersCommand",
        REQUEST_HEADERS,
        "A program that gives further headers for each request ([how](secrets.md#headers-of-each-request)).",
        identity=True,
        shown=False,
    )
    socket: str | None = key(
        "socket", TEXT, "A unix socket path; JSON-RPC, one message a line. Expanded.", identity=True
    )
    in_process: Any = field(compared=False)
    expose_resources: bool = key(
        "exposeResources", FLAG, "Offer its resources as `get_…` tools.", True, identity=True
    )
    include_tools: tuple[str, ...] | None = key(
        "includeTools",
        TEXTS,
        "Only these tools; `*` and `?` match. `[]`: none.",
        identity=True,
        in_words="all",
    )
    exclude_tools: tuple[str, ...] = key(
        "excludeTools", TEXTS, "Never these tools; `*` and `?` match.", (), identity=True, in_words="none"
    )
    # -- policy (applied live) --
    lifecycle: Lifecycle = key(
        "lifecycle", word(Lifecycle), "When it is started, and whether it is kept.", Lifecycle.LAZY
    )
    isolation: Isolation | None = key(
        "isolation",
        word(Isolation),
        "Who shares one process of it.",
        identity=True,
        in_words="the setting `isolation`",
    )
    era: Era = key(
        "era",
        word(Era),
        "Insist on one era of the protocol: `handshake` (up to 2025-11-25) or `stateless` (2026-07-28).",
        Era.AUTO,
    )
    warm: int = key(
        "warm",
        count("children", least=0, most=1000),
        "Children that are started ahead for its next sessions or calls "
        "([how](servers.md#children-that-are-started-ahead)).",
        0,
    )
    reset: str | None = key(
        "reset",
        TEXT,
        "Its tool that resets it between two sessions or calls, so that its children are used again "
        "([how](servers.md#children-that-are-used-again)).",
        in_words="none: each child is used once",
    )
    restart_policy: RestartPolicy | None = key(
        "restartPolicy",
        word(RestartPolicy),
        "Whether it comes back after it was lost.",
        in_words="the setting `restartPolicy`",
    )
    idle_timeout: float | None = key(
        "idleTimeout",
        MINUTES,
        "It is stopped when it has been idle this long; fractions are allowed, 0 = never.",
        in_words="the setting `idleTimeout`; 0 for eager; never for keep-alive",
    )
    tool_prefix: PrefixMode | None = key(
        "toolPrefix", word(PrefixMode), "How its tools are named.", in_words="the setting `toolPrefix`"
    )
    connect_timeout: float | None = key(
        "connectTimeoutMs",
        MILLISECONDS,
        "One connect attempt, from its start permit.",
        in_words="the setting",
    )
    install_timeout: float | None = key("installTimeoutMs", MILLISECONDS, INSTALLS, in_words="the setting")
    call_timeout: float | None = key(
        "requestTimeoutMs",
        MILLISECONDS,
        "One call, from when it is sent; progress restarts it.",
        in_words="the setting",
    )
    resolve_npx: bool | None = key("resolveNpx", FLAG, NPX, in_words="the setting")
    drain_timeout: float | None = key(
        "drainTimeoutMs",
        MILLISECONDS_FROM_0,
        "Calls in flight may take this long to finish.",
        in_words="the setting",
    )
    stop_timeout: float | None = key(
        "stopTimeoutMs", MILLISECONDS, "From closing stdin to the last SIGKILL.", in_words="the setting"
    )
    max_in_flight: int | None = key(
        "maxInFlight", CALLS, "Calls that are sent and not yet answered.", in_words="the setting"
    )
    max_queued: int | None = key(
        "maxQueued", CALLS, "Calls that are accepted and not yet sent.", in_words="the setting"
    )
    limits: Mapping[str, Any] | str = key(
        "limits",
        LIMITS,
        "How often its tools may be called, by its own names for them ([how](limits.md)); `*` and `?` match.",
        {},
        in_words="without limit",
    )
    loop_guard: Mapping[str, Any] | str | bool = key(
        "loopGuard",
        LOOP_GUARD,
        "How often one call of it may be made again with the same arguments ([how](limits.md#loops)).",
        {},
        in_words="the setting `loopGuard`",
    )
    direct_tools: bool | tuple[str, ...] | None = key(
        "directTools",
        CHOICE,
        "Which of its tools are shown by name: by `--expose direct`, and beside the `mcp` tool. `*` and `?` match.",
        in_words="the setting `directTools`",
    )
    tool_overrides: Mapping[str, Any] = key(
        "toolOverrides",
        OVERRIDES,
        "How tools are shown otherwise ([how](servers.md#tools-shown-otherwise)).",
        {},
        identity=True,
    )
    placement: Mapping[str, Mapping[str, Any]] = key(
        "placement",
        PLACEMENT,
        "Where it may run in a cluster: `resources` that a host has at least, and its `labels`.",
        {},
        in_words="anywhere",
    )
    approve: Approve | tuple[str, ...] | None = key(
        "approve",
        APPROVE,
        "Which of its calls a person has to allow ([Approval](approval.md)); `*` and `?` match in a list.",
        identity=True,
        in_words="the setting `approve`",
    )
    pinning: Pinning | None = key(
        "pinning",
        word(Pinning),
        "What happens to what is not as it was first shown ([changed tools](pinning.md#changed-tools)).",
        identity=True,
        in_words="the setting `pinning`",
    )
    scrub: Scrub | None = key(
        "scrub",
        word(Scrub),
        "Which of its results lose credentials ([Credentials in results](credentials.md#credentials-in-results)).",
        identity=True,
        in_words="the setting `scrub`",
    )
    bootstrap: bool = key(
        "bootstrap",
        FLAG,
        "Fetch its tools in the background if they are unknown; after a failure again, with growing pauses.",
        True,
    )
    disabled: bool = key(
        "disabled",
        FLAG,
        "`true` takes it out of service. With any other value than `true` or `false` it is not started.",
        False,
        identity=True,
    )
    extra: Mapping[str, Any] = field({}, shown=_names_only)  # others' keys
    sources: Mapping[str, str] = field({}, compared=False)  # attribute -> where from

    @property
    def is_api(self) -> bool:
        """Whether its tools are requests to an HTTP API: then no MCP server is behind its `url`."""
        return self.url is not None and (self.openapi is not None or self.http is not None)

    @property
    def is_as_caller(self) -> bool:
        """Whether it is called as whoever calls us, by a token that is got for that caller."""
        return bool(self.oauth) and self.oauth.get("grantType") in IDENTITY_GRANTS


class Settings(Model, frozen=True, eq=False):
    """Numbers for the whole room, in seconds unless the name of the key says otherwise. All can be set."""

    tool_prefix: PrefixMode = key(
        "toolPrefix",
        word(PrefixMode),
        "How tools are named: server_tool, shortened, or bare.",
        PrefixMode.SERVER,
    )
    name_limit: int = key(
        "nameLimit",
        count("characters", least=SHORTEST_NAME),
        "The longest name that the model's API takes. Longer names are cut and end in a hash.",
        64,
    )
    client_prefix: str | None = key(
        "clientPrefix",
        TEXT,
        "What the client puts before our names, such as `mcp__greenroom__`. It counts against `nameLimit`.",
        in_words="nothing",
    )
    pinning: Pinning = key(
        "pinning",
        word(Pinning),
        "What happens to what is not as it was first shown ([changed tools](pinning.md#changed-tools)).",
        Pinning.QUARANTINE,
    )
    scrub: Scrub = key(
        "scrub",
        word(Scrub),
        "Which results lose credentials ([Credentials in results](credentials.md#credentials-in-results)).",
        Scrub.MCP,
    )
    isolation: Isolation | None = key(
        "isolation",
        word(Isolation),
        "Who shares one process of a server.",
        in_words="`persistent`; `per_session` over HTTP",
    )
    restart_policy: RestartPolicy | None = key(
        "restartPolicy",
        word(RestartPolicy),
        "Whether a lost server comes back.",
        in_words="`on_demand`; `always` for keep-alive",
    )
    idle_timeout: float = key(
        "idleTimeout", MINUTES, "A server is stopped when it has been idle this long; 0 = never.", 600.0
    )
    connect_timeout: float = key(
        "connectTimeoutMs", MILLISECONDS, "One connect attempt, from its start permit.", 30.0
    )
    install_timeout: float = key("installTimeoutMs", MILLISECONDS, INSTALLS, 600.0)
    call_timeout: float = key(
        "requestTimeoutMs", MILLISECONDS, "One call, from when it is sent; progress restarts it.", 60.0
    )
    call_total_timeout: float = key(
        "requestTotalTimeoutMs", MILLISECONDS, "One call in all, whatever its progress.", 600.0
    )
    task_after: float | None = key(
        "taskAfterMs",
        MILLISECONDS,
        "A call that takes longer goes on as a task, if its client knows tasks (2026-07-28).",
        in_words="never",
    )
    tasks_keep: str | None = key(
        "tasks.keep",
        TEXT,
        "A folder in which tasks outlive the gateway ([Tasks for clients](tasks.md#tasks-for-clients)).",
        in_words="none: tasks end with it",
    )
    # It is longer than `connect_timeout`, so that a call ends with the reason of a failed connect and not with
    # "still connecting".
    queue_timeout: float = key(
        "queueTimeoutMs",
        MILLISECONDS,
        "A call waits this long for its slot, the circuit breaker and the connection.",
        UNSET,
        in_words="`connectTimeoutMs` and 15 s more",
    )
    drain_timeout: float = key(
        "drainTimeoutMs", MILLISECONDS_FROM_0, "Calls in flight may take this long to finish.", 10.0
    )
    stop_timeout: float = key("stopTimeoutMs", MILLISECONDS, "From closing stdin to the last SIGKILL.", 5.0)
    secret_timeout: float = key(
        "secretTimeoutMs",
        MILLISECONDS,
        'A command that gives a secret (`"!gh auth token"`) may take this long.',
        10.0,
    )
    shutdown_timeout: float = key(
        "shutdownTimeoutMs", MILLISECONDS, "One deadline for stopping the whole room.", 15.0
    )
    background_idle: float = key(
        "backgroundIdle",
        MINUTES,
        "A background gateway (`greenroom attach`) ends when it has had no client this long; 0 = never.",
        600.0,
    )
    max_connections: int = key(
        "maxConnections", count("connections"), "The pool's slots, for all but children of sessions.", 20
    )
    max_session_connections: int = key(
        "maxSessionConnections",
        count("connections"),
        "Slots of their own for children of sessions (`isolation`).",
        100,
    )
    min_connections: int = key(
        "minConnections",
        count("connections", least=0),
        "Idle servers are kept up to this many; must be below `maxConnections`.",
        0,
    )
    reserve_connections: int = key(
        "reserve",
        count("connections", least=0),
        "Further slots for a server that has waited `reserveTimeoutMs`.",
        0,
    )
    reserve_timeout: float = key(
        "reserveTimeoutMs",
        MILLISECONDS_FROM_0,
        "The head of the queue waits this long for a reserve slot; 0 = the reserve is off.",
        5.0,
    )
    acquire_timeout: float = key(
        "acquireTimeoutMs", MILLISECONDS, "How long a server waits for a slot.", 30.0
    )
    start_permits: int = key("startPermits", count("starts"), "Servers that may start at the same time.", 10)
    install_turns: int = key(
        "installTurns",
        count("starts"),
        "Of these, starts of npx, uvx, docker and similar commands (they may install) that no call waits for.",
        2,
    )
    resolve_npx: bool = key("resolveNpx", FLAG, NPX, True)
    max_in_flight: int = key(
        "maxInFlight", CALLS, "Calls of one server that are sent and not yet answered.", 256
    )
    max_queued: int = key("maxQueued", CALLS, "Calls of one server that are accepted and not yet sent.", 1024)
    limits: Mapping[str, Any] | str = key(
        "limits",
        LIMITS,
        "How often tools may be called, by the names that clients see ([how](limits.md)); `*` and `?` match.",
        {},
        in_words="without limit",
    )
    loop_guard: Mapping[str, Any] | str | bool = key(
        "loopGuard",
        LOOP_GUARD,
        "How often one call may be made again with the same arguments ([how](limits.md#loops)).",
        {},
        in_words="off",
    )
    max_queued_bytes: int = key(
        "maxQueuedBytes",
        count("bytes", least=1024),
        "Parameters of all calls in the room that are accepted and not yet sent; as much again may wait at the doors.",
        64 * 1024 * 1024,
    )
    backoff_min: float = key("restartBackoff.minMs", MILLISECONDS, "The first delay.", 1.0)
    backoff_max: float = key("restartBackoff.maxMs", MILLISECONDS, "The longest delay.", 60.0)
    backoff_jitter: float = key("backoffJitter", FRACTION, "The random share of the delay, 0 to 1.", 0.2)
    failure_backoff: float | None = key(
        "failureBackoff", SECONDS, "One flat delay, in place of `restartBackoff`.", in_words="none"
    )
    failure_threshold: int = key(
        "failureThreshold", count("failures"), "Failures in a row that trip the circuit breaker.", 5
    )
    cooldown: float = key(
        "cooldownMs",
        MILLISECONDS,
        "How long the circuit breaker then refuses calls, before one probe may pass.",
        30.0,
    )
    stable_after: float = key(
        "stableAfterMs",
        MILLISECONDS,
        "An answer clears the failures if the server has been connected this long.",
        30.0,
    )
    restart_intensity: int = key(
        "restartIntensity", count("restarts"), "Restarts of one server in `restartPeriodMs`.", 5
    )
    restart_period: float = key("restartPeriodMs", MILLISECONDS, "The window of `restartIntensity`.", 60.0)
    health_interval: float = key(
        "healthIntervalMs", MILLISECONDS, "How often the health of keep-alive servers is checked.", 30.0
    )
    inherit_env: bool | tuple[str, ...] = key(
        "inheritEnv",
        ENVIRONMENT,
        "Variables of our environment that programs get besides the minimum: all, none, or these; `*` and `?` match.",
        False,
    )
    oauth_dir: str | None = key(
        "oauthDir",
        TEXT,
        "Where pi's adapter keeps its logins ([Logging in](login.md)); `MCP_OAUTH_DIR` is stronger.",
        in_words="pi's own folder",
    )
    registry: str | None = key(
        "registry",
        SAFE_URL,
        "A registry of servers in which `mcp_provision` looks, too ([Doors](meta-tools.md)).",
        in_words="none: nothing is asked",
    )
    semantic_search: str | bool = key(
        "semanticSearch",
        MODEL,
        "Whether search finds tools by meaning too, and with the model in which folder; true: the model of the package "
        "([by meaning](finding-tools.md#by-meaning)).",
        False,
    )
    direct_tools: bool | tuple[str, ...] = key(
        "directTools",
        CHOICE,
        "Which tools `--expose direct` shows: all, none, or these. A list is shown beside the `mcp` tool, too.",
        True,
    )
    frequent_tools: int = key(
        "frequentTools",
        count("tools", least=0, most=PROMOTED),
        "So many of the tools that were called in most conversations are shown beside the `mcp` tool "
        "([how](mcp-tool.md#tools-beside-it)).",
        0,
        in_words="none, and nothing is counted",
    )
    tool_overrides: Mapping[str, Any] = key(
        "toolOverrides",
        OVERRIDES_OF_ANY,
        "How tools of these names are shown otherwise, of whichever server has one "
        "([how](servers.md#tools-shown-otherwise)).",
        {},
        in_words="none",
    )
    approve: Approve | tuple[str, ...] = key(
        "approve",
        APPROVE,
        "Which calls a person has to allow ([Approval](approval.md)); `*` and `?` match in a list.",
        Approve.OFF,
    )
    approval_timeout: float = key(
        "approvalTimeoutMs", MILLISECONDS, "A person may take this long to allow a call.", 300.0
    )
    bootstrap: bool = key(
        "bootstrap", FLAG, "Fetch the tools of servers that are still unknown, in the background.", True
    )
    first_list_timeout: float = key(
        "firstListTimeoutMs",
        MILLISECONDS_FROM_0,
        "A client's first list with `--expose direct`, and its searches with `mcp` that find nothing that fits well, "
        "wait this long for servers whose tools are unknown.",
        10.0,
    )
    max_line: int = key(
        "maxLineBytes", count("bytes", least=1024), "The longest line a server may write.", 64 * 1024 * 1024
    )
    stderr_ring: int = key(
        "stderrBytes", count("bytes", least=0), "How much of a server's stderr is kept.", 8 * 1024
    )
    max_pages: int = key("maxPages", count("pages"), "Pages that are read of one list.", 100)
    max_list_bytes: int = key(
        "maxListBytes", count("bytes", least=1024), "The size of all lists of one server.", 16 * 1024 * 1024
    )
    max_list_items: int = key(
        "maxListItems",
        count("items"),
        "The number of tools, resources, templates and prompts of one server.",
        10000,
    )
    probe_timeout: float = key(
        "probeTimeoutMs", MILLISECONDS, "How long to ask a server which protocol era it speaks.", 5.0
    )
    http_listen: str | None = key(
        "http.listen",
        TEXT,
        "Where `serve --http` listens when it is given no address: `127.0.0.1:8000`.",
        in_words="none",
    )
    http_tokens: Mapping[str, str] = key(
        "http.tokens",
        TEXT_MAP,
        'The bearer tokens that are accepted, by name: `{"alice": "${ALICE_TOKEN}"}`. Expanded.',
        {},
        shown=_names_only,
    )
    http_token_profiles: Mapping[str, str] = key(
        "http.tokenProfiles",
        TEXT_MAP,
        "The profile that a token of `http.tokens` is bound to, by its name there.",
        {},
    )
    http_owner_tokens: Mapping[str, str] = key(
        "http.ownerTokens",
        TEXT_MAP,
        "Further tokens, by name, with which the page may also act: connect, drain, approve, accept. Expanded.",
        {},
        shown=_names_only,
    )
    http_oauth_issuer: str | None = key("http.oauth.issuer", TEXT, "Its URL; without one there is no OAuth.")
    http_oauth_resource: str | None = key(
        "http.oauth.resource",
        TEXT,
        "The URL by which clients know this gateway: `https://gateway.example/mcp`.",
    )
    http_oauth_audiences: tuple[str, ...] = key(
        "http.oauth.audiences", TEXTS, "A token is for one of these.", (), in_words="the resource"
    )
    http_oauth_jwks: str | None = key(
        "http.oauth.jwksUrl", TEXT, "Where the issuer's keys are.", in_words="what its metadata says"
    )
    http_oauth_scopes: tuple[str, ...] = key("http.oauth.scopes", TEXTS, "Scopes that a token must have.", ())
    http_oauth_profile_claim: str | None = key(
        "http.oauth.profileClaim", TEXT, "The claim that names its caller's profile."
    )
    http_oauth_scope_profiles: Mapping[str, str] = key(
        "http.oauth.scopeProfiles",
        TEXT_MAP,
        'The profile of a caller with a scope: `{"mcp:work": "work"}`.',
        {},
    )
    http_hosts: tuple[str, ...] = key(
        "http.hosts", TEXTS, "Further names by which clients may address the gateway.", ()
    )
    http_origins: tuple[str, ...] = key(
        "http.origins",
        TEXTS,
        "Web pages whose scripts may use it and read its answers (CORS): `https://app.example`.",
        (),
    )
    http_session_headers: Mapping[str, str] = key(
        "http.sessionHeaders",
        SESSION_HEADERS,
        'Request headers that become a session\'s values: `{"x-github-token": "GITHUB_TOKEN"}`.',
        {},
    )
    http_state_handles: bool = key(
        "http.stateHandles",
        FLAG,
        "Clients of 2026-07-28 can have state of their own by a handle ([State](state-handles.md)).",
        False,
    )
    http_metrics: bool = key(
        "http.metrics", FLAG, "Count what happens, for `/metrics` ([HTTP](http.md)).", False
    )
    http_metrics_tools: int = key(
        "http.metricsTools",
        count("tools", least=0),
        "As many tools are counted each by itself, and the others as `other`; 0 = none.",
        0,
    )
    http_max_sessions: int = key("http.maxSessions", count("sessions"), "Sessions open at once.", 1000)
    http_session_idle: float = key(
        "http.sessionIdle", MINUTES, "A session without a message ends then.", 1800.0
    )
    http_session_life: float = key(
        "http.sessionLife", MINUTES, "Every session ends after this long.", 86400.0
    )
    http_max_body: int = key(
        "http.maxBodyBytes", count("bytes", least=1024), "The largest request.", 4 * 1024 * 1024
    )
    cache_max_age: float = key(
        "cacheMaxAgeDays", DAYS, "Older entries of the catalogue count as absent.", 7 * 86400.0
    )
    output_max_bytes: int = key("outputGuard.maxBytes", count("bytes", least=0), "0 = no limit.", 51200)
    output_max_lines: int = key("outputGuard.maxLines", count("lines", least=0), "0 = no limit.", 2000)
    output_max_image: int = key(
        "outputGuard.maxImageBytes",
        count("bytes", least=0),
        "An image with more base64 is scaled down, or kept as a file; 0 = no limit.",
        4 * 1024 * 1024,
    )  # most clients refuse five
    output_keep: float = key(
        "outputGuard.keepHours", HOURS, "Files of long output are kept this long.", 24 * 3600.0
    )
    output_keep_bytes: int = key(
        "outputGuard.keepBytes", count("bytes", least=0), "And as many bytes in all.", 100 * 1024 * 1024
    )

    def __post_init__(self) -> None:
        if self.queue_timeout is UNSET:
            # Enough for one attempt to connect, for its end, and for reporting why it failed.
            force_setattr(self, "queue_timeout", self.connect_timeout + 15.0)

    @property
    def longest_name(self) -> int:
        """The most characters that a name may have here."""
        return self.name_limit - len(self.client_prefix or "")


# The groups of settings, and what each is about.
GROUPS: Final[Mapping[str, str]] = {
    "restartBackoff": "The delay after a failure, doubling from one to the other.",
    "tasks": "What becomes of calls that go on as tasks.",
    "http": "The HTTP door, `serve --http` ([HTTP](http.md)).",
    "http.oauth": "Accept the access tokens of an authorization server ([OAuth](http-oauth.md)).",
    "outputGuard": (
        "Cuts long output of the `mcp` tool ([long output](mcp-tool.md#long-output)); "
        "`false` = off, `true` = the defaults."
    ),
}
Exposure = Literal["proxy", "direct", "meta"]  # what a client can be shown
EXPOSURES: Final[tuple[str, ...]] = get_args(Exposure)


class Profile(Model, frozen=True, eq=False):
    """What exists for a client. A tool is written as in `includeTools`. `expose` None: what the gateway says."""

    servers: tuple[str, ...] | None = key(
        "servers", TEXTS, "Its servers; `*` and `?` match. Without it: all."
    )
    tools: tuple[str, ...] | None = key(
        "tools", TEXTS, "Its tools, of those servers; `*` and `?` match. Without it: all."
    )
    expose: str | None = key(
        "expose", ValueKind(Exposure, "word"), "What its clients see: `proxy`, `direct` or `meta`."
    )
    limits: Mapping[str, Any] | str = key(
        "limits",
        LIMITS,
        "How often its clients may call tools, by the names that they see ([how](limits.md)).",
        {},
    )
    loop_guard: Mapping[str, Any] | str | bool = key(
        "loopGuard",
        LOOP_GUARD,
        "How often one of its clients may make one call again with the same arguments ([how](limits.md#loops)).",
        {},
    )
    overrides: Mapping[str, Mapping[str, Any]] = key(
        "toolOverrides",
        OVERRIDES_OF_EACH,
        "By server: tools shown otherwise, on top of what the server's own entry says.",
        {},
    )


# The keys of a file, as data.
SERVER_KEYS: Final = keys_of(ServerDefinition)
SETTING_KEYS: Final = keys_of(Settings)
PROFILE_KEYS: Final = keys_of(Profile)
SERVER_KEY: Final[Mapping[str, Key]] = {each.name: each for each in SERVER_KEYS}
SETTING_KEY: Final[Mapping[str, Key]] = {each.name: each for each in SETTING_KEYS}
PROFILE_KEY: Final[Mapping[str, Key]] = {each.name: each for each in PROFILE_KEYS}


class Config(Model, frozen=True, eq=False):
    """Everything a room is made from."""

    servers: Mapping[str, ServerDefinition] = field({})  # by name; without those that are `broken`
    settings: Settings = field(Settings())  # as they hold, defaults included
    setting_sources: Mapping[str, str] = field({}, compared=False)  # setting -> the file that gives it
    problems: tuple[Problem, ...] = ()  # those that are not fatal: warnings, and servers that are left out
    broken: Mapping[str, Problem] = field({})  # name -> why not served
    files: tuple[str, ...] = ()  # what is there, strongest first; also what is not trusted, or cannot be read
    folder: str | None = None  # the working directory, if an imported file says something of its own about it
    untrusted: tuple[str, ...] = ()  # those of `files` whose owner has not said yes: they are not obeyed
    left_out: tuple[str, ...] = ()  # `files` of a project never trusted here: they are no part of the room
    profiles: Mapping[str, Profile] = field({})  # by name
    places: tuple[str, ...] = ()  # absolute paths that were looked at, whether or not a file was there
    unread: tuple[str, ...] = ()  # those of `files` that cannot be used; `problems` says why

    @property
    def unusable(self) -> list[str]:
        """The servers that nothing can use while the configuration is as it is: broken or disabled."""
        disabled = (name for name, definition in self.servers.items() if definition.disabled)
        return [*self.broken, *disabled]


def with_settings(definition: ServerDefinition, settings: Settings) -> ServerDefinition:
    """`definition` with the environment rule from the settings, if it has none itself, and where pi's logins are."""
    if definition.url is not None and settings.oauth_dir is not None:
        definition = replace(definition, pi_logins=settings.oauth_dir)
    if definition.inherit_env is not None:
        return definition
    return replace(definition, inherit_env=settings.inherit_env)


# ---- What an entry and the settings say together ---------------------------------------------------------------------
#
# The entry first, then the settings, then what its lifecycle means.
#
# One rule each, because the supervisor obeys it and `greenroom explain` tells it.


def idle_time(definition: ServerDefinition, settings: Settings) -> float:
    """After how many seconds without a call a connected server is stopped; infinite: never. An eager server that was
    given no time of its own stays."""
    if definition.lifecycle is Lifecycle.KEEP_ALIVE:
        return math.inf
    seconds = definition.idle_timeout
    if seconds is None:
        seconds = 0.0 if definition.lifecycle is Lifecycle.EAGER else settings.idle_timeout
    return seconds or math.inf


def restart_policy(definition: ServerDefinition, general: RestartPolicy | None = None) -> RestartPolicy:
    """The restart policy: the server's own, or that of the settings (`general`), or the default of its
    lifecycle."""
    chosen = definition.restart_policy or general
    if chosen is not None:
        return chosen
    keep = definition.lifecycle is Lifecycle.KEEP_ALIVE
    return RestartPolicy.ALWAYS if keep else RestartPolicy.ON_DEMAND


def normal(name: str) -> str:
    """The form in which names are compared in look-ups: hyphen equals underscore."""
    return name.replace("-", "_")


@lru_cache(maxsize=256)
def selector(patterns: tuple[str, ...]) -> Callable[[str], bool]:
    """A test for "one of `patterns` is the whole name"; `*` and `?` are wild, hyphen equals underscore."""
    alternatives = "|".join(_glob(normal(pattern)) for pattern in patterns)
    matches = re.compile(alternatives or r"(?!)", re.DOTALL).fullmatch
    return lambda name: matches(normal(name)) is not None


def _glob(pattern: str) -> str:
    """A regular expression in which each `*` stops at the first place that fits and never backtracks. So matching takes
    at most linear time for each star."""
    first, *rest = (re.escape(part).replace(r"\?", ".") for part in pattern.split("*"))
    if not rest:
        return first
    *between, last = rest
    return first + "".join(f"(?>.*?{part})" for part in between if part) + f".*{last}"
