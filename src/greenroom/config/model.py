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
    """The transport of a `url`, if the file names one. Otherwise, Streamable HTTP is tried first, then SSE."""

    STREAMABLE_HTTP = "streamable-http"  # and never SSE
    SSE = "sse"  # HTTP with SSE, as up to 2024-11-05


class Era(enum.Enum):
    """Which protocol versions are tried with a server."""

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
INSTALLS: Final = (
    "The time limit of an attempt to connect for npx, uvx, docker and similar commands, as long as they make "
    "progress."
)
NPX: Final = (
    "Whether the program of an installed package is started directly instead of by npx ([npx without "
    "npm](npx.md))."
)


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
        "Its arguments, one string each. Variables are expanded.",
        (),
        identity=True,
        shown=_number_only,
    )
    env: Mapping[str, str] = key(
        "env",
        VALUE_MAP,
        "Variables for the program, in addition to the small environment that every program gets. Variables in the "
        "values are expanded.",
        {},
        identity=True,
        shown=_names_only,
    )
    env_file: str | None = key(
        "envFile",
        TEXT,
        "A file of `NAME=value` lines for its environment; `env` overrides it "
        "([values](secrets.md#values-that-are-in-no-file)).",
        identity=True,
    )
    # Another one when the file has changed.
    env_file_state: str | None = field(shown=False)
    # A file of a project names it, whose owner said yes to these variables of it (`config.trust`).
    env_file_agreed: Mapping[str, str | None] | None = field(shown=False)
    cwd: str | None = key(
        "cwd",
        TEXT,
        "The folder that it is started in, and that relative paths in `command` and `args` begin at. `~` and "
        "variables are expanded.",
        identity=True,
        in_words="the folder of the command that starts it; for the background gateway, the project's folder, or "
        "else that of the configuration file",
    )
    inherit_env: bool | tuple[str, ...] | None = key(
        "inheritEnv",
        ENVIRONMENT,
        "Variables of Greenroom's environment that the program gets in addition to the basic ones: all (`true`), "
        "none (`false`), or a list; `*` and `?` are wildcards.",
        identity=True,
        in_words="the setting `inheritEnv`",
    )
    url: str | None = key(
        "url",
        TEXT,
        "The endpoint of an HTTP server. For an HTTP API, the URL before its paths (`baseUrl` means the same). "
        "A variable that is missing or empty is an error.",
        identity=True,
        shown=_place_only,
    )
    openapi: str | None = key(
        "openapi",
        TEXT,
        "The OpenAPI document of the HTTP API at `url`: a file or a URL ([HTTP APIs](openapi.md)). "
        "Variables are expanded.",
        identity=True,
        shown=_place_only,
    )
    openapi_state: str | None = field(shown=False)  # another one when the file has changed
    # The print of the document that the owner of the project said yes to; None where no yes is needed.
    openapi_agreed: str | None = field(shown=False)
    spec_hash: str | None = key(
        "specHash",
        SHA256,
        "The SHA-256 of the OpenAPI document. Any other document is refused.",
        identity=True,
    )
    include_operations: tuple[str, ...] | None = key(
        "includeOperations",
        TEXTS,
        "Only these operations of the document: `tag:issues`, the id of an operation, or `GET /repos/*`; `*` and `?` "
        "are wildcards.",
        identity=True,
        in_words="all",
    )
    exclude_operations: tuple[str, ...] = key(
        "excludeOperations",
        TEXTS,
        "These operations are left out. They are written as in `includeOperations`.",
        (),
        identity=True,
        in_words="none",
    )
    output_schemas: bool = key(
        "outputSchemas",
        FLAG,
        "List the schemas of the API's answers, too. Clients may then refuse an answer that does not fit.",
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
        "Tools that you write by hand for the HTTP API at `url`, by name ([how](openapi.md#tools-by-hand)).",
        identity=True,
        shown=False,
    )
    headers: Mapping[str, str] = key(
        "headers",
        VALUE_MAP,
        "HTTP headers that are sent with each request. Variables are expanded.",
        {},
        identity=True,
        shown=_names_only,
    )
    http_transport: HttpTransport | None = key(
        "httpTransport",
        word(HttpTransport),
        "The only HTTP transport to use: `streamable-http` or `sse`.",
        identity=True,
        in_words="Streamable HTTP, then SSE",
    )
    auth: Literal["oauth", False] | None = key(
        "auth",
        AUTH,
        '`"oauth"`: the server needs an OAuth login ([logging in](login.md)). `false`: never log in. '
        '`"bearer"`: use `bearerToken`.',
        identity=True,
        in_words="a stored login is used, unless there is an `Authorization` header",
    )
    oauth: Mapping[str, Any] | Literal[False] | None = key(
        "oauth",
        OAUTH,
        "How to log in ([logging in](login.md)). `false`: never log in.",
        identity=True,
        shown=False,
    )
    pi_logins: str | None = None  # where pi keeps its logins, if its settings say so (`with_settings`)
    request_headers_command: Mapping[str, Any] | None = key(
        "requestHeadersCommand",
        REQUEST_HEADERS,
        "A program that returns more headers for each request ([how](secrets.md#headers-of-each-request)).",
        identity=True,
        shown=False,
    )
    socket: str | None = key(
        "socket",
        TEXT,
        "The path of a unix socket, with one JSON-RPC message per line. Variables are expanded.",
        identity=True,
    )
    in_process: Any = field(compared=False)
    expose_resources: bool = key(
        "exposeResources",
        FLAG,
        "Whether its resources are also offered as tools called `get_…`.",
        True,
        identity=True,
    )
    include_tools: tuple[str, ...] | None = key(
        "includeTools",
        TEXTS,
        "Only these tools exist; `*` and `?` are wildcards. `[]`: none.",
        identity=True,
        in_words="all",
    )
    exclude_tools: tuple[str, ...] = key(
        "excludeTools",
        TEXTS,
        "These tools do not exist; `*` and `?` are wildcards.",
        (),
        identity=True,
        in_words="none",
    )
    # -- policy (applied live) --
    lifecycle: Lifecycle = key(
        "lifecycle",
        word(Lifecycle),
        "When it starts and stops ([choosing](choosing.md#when-a-server-starts)).",
        Lifecycle.LAZY,
    )
    isolation: Isolation | None = key(
        "isolation",
        word(Isolation),
        "Who shares a process of it ([choosing](choosing.md#who-shares-a-process)).",
        identity=True,
        in_words="the setting `isolation`",
    )
    era: Era = key(
        "era",
        word(Era),
        "The only era of the protocol to use: `handshake` (up to 2025-11-25) or `stateless` (2026-07-28).",
        Era.AUTO,
    )
    warm: int = key(
        "warm",
        count("children", least=0, most=1000),
        "The number of children that are started ahead, for its next sessions or calls "
        "([how](servers.md#children-that-are-started-ahead)).",
        0,
    )
    reset: str | None = key(
        "reset",
        TEXT,
        "The tool that makes it forget everything between two sessions or calls, so that its children are used again "
        "([how](servers.md#children-that-are-used-again)).",
        in_words="none: each child is used once",
    )
    restart_policy: RestartPolicy | None = key(
        "restartPolicy",
        word(RestartPolicy),
        "Whether it restarts after it was lost ([how](policies.md#what-happens-when-a-server-dies)).",
        in_words="the setting `restartPolicy`",
    )
    idle_timeout: float | None = key(
        "idleTimeout",
        MINUTES,
        "It is stopped after it has been idle this long. Fractions are allowed; 0 = never.",
        in_words="the setting `idleTimeout`; 0 for eager; never for keep-alive",
    )
    tool_prefix: PrefixMode | None = key(
        "toolPrefix",
        word(PrefixMode),
        "What comes before the names of its tools.",
        in_words="the setting `toolPrefix`",
    )
    connect_timeout: float | None = key(
        "connectTimeoutMs",
        MILLISECONDS,
        "The time limit of one attempt to connect. It begins with the start permit.",
        in_words="the setting",
    )
    install_timeout: float | None = key("installTimeoutMs", MILLISECONDS, INSTALLS, in_words="the setting")
    call_timeout: float | None = key(
        "requestTimeoutMs",
        MILLISECONDS,
        "The time limit of one call. It begins when the call is sent; progress restarts it.",
        in_words="the setting",
    )
    resolve_npx: bool | None = key("resolveNpx", FLAG, NPX, in_words="the setting")
    drain_timeout: float | None = key(
        "drainTimeoutMs",
        MILLISECONDS_FROM_0,
        "When a server drains, calls in flight have this long to finish.",
        in_words="the setting",
    )
    stop_timeout: float | None = key(
        "stopTimeoutMs",
        MILLISECONDS,
        "The time limit for stopping a server, from closing its stdin to the last SIGKILL.",
        in_words="the setting",
    )
    max_in_flight: int | None = key(
        "maxInFlight",
        CALLS,
        "How many calls may be sent and not yet answered. Others wait.",
        in_words="the setting",
    )
    max_queued: int | None = key(
        "maxQueued", CALLS, "How many calls may wait to be sent. Others are refused.", in_words="the setting"
    )
    limits: Mapping[str, Any] | str = key(
        "limits",
        LIMITS,
        "How often its tools may be called, by the server's own names ([how](limits.md)); `*` and `?` are wildcards.",
        {},
        in_words="no limit",
    )
    loop_guard: Mapping[str, Any] | str | bool = key(
        "loopGuard",
        LOOP_GUARD,
        "How often the same call with the same arguments may be repeated ([how](limits.md#loops)).",
        {},
        in_words="the setting `loopGuard`",
    )
    direct_tools: bool | tuple[str, ...] | None = key(
        "directTools",
        CHOICE,
        "Which of its tools are shown by name, with `--expose direct` and beside the `mcp` tool; `*` and `?` are "
        "wildcards.",
        in_words="the setting `directTools`",
    )
    tool_overrides: Mapping[str, Any] = key(
        "toolOverrides",
        OVERRIDES,
        "Other names, descriptions and parameters for its tools ([how](servers.md#tools-shown-otherwise)).",
        {},
        identity=True,
    )
    placement: Mapping[str, Mapping[str, Any]] = key(
        "placement",
        PLACEMENT,
        "Where it may run in a cluster: the `resources` and `labels` that a host must have.",
        {},
        in_words="anywhere",
    )
    approve: Approve | tuple[str, ...] | None = key(
        "approve",
        APPROVE,
        "Which of its calls a person must allow ([approval](approval.md)); `*` and `?` are wildcards in a list.",
        identity=True,
        in_words="the setting `approve`",
    )
    pinning: Pinning | None = key(
        "pinning",
        word(Pinning),
        "What happens to a tool, skill, prompt or resource whose definition has changed "
        "([changed tools](pinning.md#changed-tools)).",
        identity=True,
        in_words="the setting `pinning`",
    )
    scrub: Scrub | None = key(
        "scrub",
        word(Scrub),
        "Whether credentials are removed from its results "
        "([credentials in results](credentials.md#credentials-in-results)).",
        identity=True,
        in_words="the setting `scrub`",
    )
    bootstrap: bool = key(
        "bootstrap",
        FLAG,
        "Whether it is started once in the background if its tools are unknown. After a failure this is repeated, with "
        "growing pauses.",
        True,
    )
    disabled: bool = key(
        "disabled",
        FLAG,
        "`true` takes it out of service. Any value other than `true` or `false` is an error, and the server is not "
        "used.",
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
        "What comes before the names of tools: the server's name, a shortened one, nothing, or `mcp__server_`.",
        PrefixMode.SERVER,
    )
    name_limit: int = key(
        "nameLimit",
        count("characters", least=SHORTEST_NAME),
        "The longest name that the model's API accepts. A longer name is cut and ends with a hash.",
        64,
    )
    client_prefix: str | None = key(
        "clientPrefix",
        TEXT,
        "The prefix that the client puts before Greenroom's names, such as `mcp__greenroom__`. It counts for "
        "`nameLimit`.",
        in_words="nothing",
    )
    pinning: Pinning = key(
        "pinning",
        word(Pinning),
        "What happens to a tool, skill, prompt or resource whose definition has changed "
        "([changed tools](pinning.md#changed-tools)).",
        Pinning.QUARANTINE,
    )
    scrub: Scrub = key(
        "scrub",
        word(Scrub),
        "Which results credentials are removed from ([credentials in results](credentials.md#credentials-in-results)).",
        Scrub.MCP,
    )
    isolation: Isolation | None = key(
        "isolation",
        word(Isolation),
        "Who shares a process of a server ([choosing](choosing.md#who-shares-a-process)).",
        in_words="`persistent`; `per_session` over HTTP",
    )
    restart_policy: RestartPolicy | None = key(
        "restartPolicy",
        word(RestartPolicy),
        "Whether a lost server restarts ([how](policies.md#what-happens-when-a-server-dies)).",
        in_words="`on_demand`; `always` for keep-alive",
    )
    idle_timeout: float = key(
        "idleTimeout", MINUTES, "A server is stopped after it has been idle this long; 0 = never.", 600.0
    )
    connect_timeout: float = key(
        "connectTimeoutMs",
        MILLISECONDS,
        "The time limit of one attempt to connect. It begins with the start permit. A try in the background, for which "
        "nobody waits, has twice the time of the one before that failed, up to 5 minutes.",
        30.0,
    )
    install_timeout: float = key("installTimeoutMs", MILLISECONDS, INSTALLS, 600.0)
    call_timeout: float = key(
        "requestTimeoutMs",
        MILLISECONDS,
        "The time limit of one call. It begins when the call is sent; progress restarts it.",
        60.0,
    )
    call_total_timeout: float = key(
        "requestTotalTimeoutMs",
        MILLISECONDS,
        "The time limit of one call in all, even if it makes progress.",
        600.0,
    )
    task_after: float | None = key(
        "taskAfterMs",
        MILLISECONDS,
        "A call that takes longer than this continues as a task, if its client knows the tasks of 2026-07-28.",
        in_words="never",
    )
    tasks_keep: str | None = key(
        "tasks.keep",
        TEXT,
        "A folder that keeps tasks after the gateway has ended ([tasks for clients](tasks.md#tasks-for-clients)).",
        in_words="none: tasks end with the gateway",
    )
    # It is longer than `connect_timeout`, so that a call ends with the reason of a failed connect and not with
    # "still connecting".
    queue_timeout: float = key(
        "queueTimeoutMs",
        MILLISECONDS,
        "How long a call waits to be sent: for the circuit breaker, a slot and the connection.",
        UNSET,
        in_words="`connectTimeoutMs` and 15 s more",
    )
    drain_timeout: float = key(
        "drainTimeoutMs",
        MILLISECONDS_FROM_0,
        "When a server drains, calls in flight have this long to finish.",
        10.0,
    )
    stop_timeout: float = key(
        "stopTimeoutMs",
        MILLISECONDS,
        "The time limit for stopping a server, from closing its stdin to the last SIGKILL.",
        5.0,
    )
    secret_timeout: float = key(
        "secretTimeoutMs",
        MILLISECONDS,
        'The time limit of a command that returns a secret, such as `"!gh auth token"`.',
        10.0,
    )
    shutdown_timeout: float = key(
        "shutdownTimeoutMs", MILLISECONDS, "The time limit for closing the whole room.", 15.0
    )
    background_idle: float = key(
        "backgroundIdle",
        MINUTES,
        "The background gateway ends when it has had no client, and no call from a shell, for this long; 0 = never.",
        600.0,
    )
    max_connections: int = key(
        "maxConnections",
        count("connections"),
        "How many servers may be connected at a time, not counting children of sessions.",
        20,
    )
    max_session_connections: int = key(
        "maxSessionConnections",
        count("connections"),
        "How many children of sessions may run at a time (`isolation` is `per_session`).",
        100,
    )
    min_connections: int = key(
        "minConnections",
        count("connections", least=0),
        "This many idle servers stay connected. It must be less than `maxConnections`.",
        0,
    )
    reserve_connections: int = key(
        "reserve",
        count("connections", least=0),
        "Additional slots, for a server that has waited for `reserveTimeoutMs`.",
        0,
    )
    reserve_timeout: float = key(
        "reserveTimeoutMs",
        MILLISECONDS_FROM_0,
        "The first server in the queue gets a slot of the reserve after this long; 0 = the reserve is not used.",
        5.0,
    )
    acquire_timeout: float = key(
        "acquireTimeoutMs", MILLISECONDS, "How long a server waits for a slot. Then its start fails.", 30.0
    )
    start_permits: int = key(
        "startPermits", count("starts"), "How many servers may start at the same time.", 10
    )
    install_turns: int = key(
        "installTurns",
        count("starts"),
        "How many of these starts may be of npx, uvx, docker and similar commands, which may install something, if "
        "no call waits for them.",
        2,
    )
    resolve_npx: bool = key("resolveNpx", FLAG, NPX, True)
    max_in_flight: int = key(
        "maxInFlight",
        CALLS,
        "How many calls of one server may be sent and not yet answered. Others wait.",
        256,
    )
    max_queued: int = key(
        "maxQueued", CALLS, "How many calls of one server may wait to be sent. Others are refused.", 1024
    )
    limits: Mapping[str, Any] | str = key(
        "limits",
        LIMITS,
        "How often tools may be called, by the names that clients see ([how](limits.md)); `*` and `?` are wildcards.",
        {},
        in_words="no limit",
    )
    loop_guard: Mapping[str, Any] | str | bool = key(
        "loopGuard",
        LOOP_GUARD,
        "How often the same call with the same arguments may be repeated ([how](limits.md#loops)).",
        {},
        in_words="off",
    )
    max_queued_bytes: int = key(
        "maxQueuedBytes",
        count("bytes", least=1024),
        "The size of the parameters of all calls in the room that wait to be sent. As much again may wait at the "
        "doors.",
        64 * 1024 * 1024,
    )
    backoff_min: float = key("restartBackoff.minMs", MILLISECONDS, "The delay after the first failure.", 1.0)
    backoff_max: float = key(
        "restartBackoff.maxMs",
        MILLISECONDS,
        "The longest delay. It doubles from one failure to the next.",
        60.0,
    )
    backoff_jitter: float = key(
        "backoffJitter", FRACTION, "How much each delay varies at random: 0.2 is up to 20 % (0 to 1).", 0.2
    )
    failure_backoff: float | None = key(
        "failureBackoff",
        SECONDS,
        "The same delay after each failure, instead of `restartBackoff`.",
        in_words="none",
    )
    failure_threshold: int = key(
        "failureThreshold", count("failures"), "How many failures in a row trip the circuit breaker.", 5
    )
    cooldown: float = key(
        "cooldownMs",
        MILLISECONDS,
        "How long a tripped circuit breaker refuses calls. Then it lets one call through as a probe.",
        30.0,
    )
    stable_after: float = key(
        "stableAfterMs",
        MILLISECONDS,
        "An answer resets the count of failures if the server has been connected for at least this long.",
        30.0,
    )
    restart_intensity: int = key(
        "restartIntensity",
        count("restarts"),
        "How often one server may restart within `restartPeriodMs`. After that it is quarantined.",
        5,
    )
    restart_period: float = key(
        "restartPeriodMs", MILLISECONDS, "The period in which `restartIntensity` counts restarts.", 60.0
    )
    health_interval: float = key(
        "healthIntervalMs", MILLISECONDS, "How often the health of keep-alive servers is checked.", 30.0
    )
    inherit_env: bool | tuple[str, ...] = key(
        "inheritEnv",
        ENVIRONMENT,
        "Variables of Greenroom's environment that programs get in addition to the basic ones: all (`true`), none "
        "(`false`), or a list; `*` and `?` are wildcards.",
        False,
    )
    oauth_dir: str | None = key(
        "oauthDir",
        TEXT,
        "The folder of the logins of pi's adapter ([logging in](login.md)). `MCP_OAUTH_DIR` overrides it.",
        in_words="pi's own folder",
    )
    registry: str | None = key(
        "registry",
        SAFE_URL,
        "A registry of servers that `mcp_provision` also searches ([MetaMCP's tools](meta-tools.md)).",
        in_words="none",
    )
    semantic_search: str | bool = key(
        "semanticSearch",
        MODEL,
        "Whether search also finds tools by meaning. `true` uses the model of an installed package; a path names the "
        "folder of a model ([by meaning](finding-tools.md#by-meaning)).",
        False,
    )
    direct_tools: bool | tuple[str, ...] = key(
        "directTools",
        CHOICE,
        "Which tools `--expose direct` shows: all (`true`), none (`false`), or a list. The tools of a list are also "
        "shown beside the `mcp` tool.",
        True,
    )
    frequent_tools: int = key(
        "frequentTools",
        count("tools", least=0, most=PROMOTED),
        "This many tools, those that were called in the most conversations, are shown beside the `mcp` tool "
        "([how](mcp-tool.md#tools-beside-it)).",
        0,
        in_words="none, and nothing is counted",
    )
    tool_overrides: Mapping[str, Any] = key(
        "toolOverrides",
        OVERRIDES_OF_ANY,
        "Other names, descriptions and parameters for tools of these names, at any server "
        "([how](servers.md#tools-shown-otherwise)).",
        {},
        in_words="none",
    )
    approve: Approve | tuple[str, ...] = key(
        "approve",
        APPROVE,
        "Which calls a person must allow ([approval](approval.md)); `*` and `?` are wildcards in a list.",
        Approve.OFF,
    )
    approval_timeout: float = key(
        "approvalTimeoutMs", MILLISECONDS, "How long a call waits for a person to allow it.", 300.0
    )
    bootstrap: bool = key(
        "bootstrap",
        FLAG,
        "Whether servers whose tools are unknown are started once in the background, to list them.",
        True,
    )
    first_list_timeout: float = key(
        "firstListTimeoutMs",
        MILLISECONDS_FROM_0,
        "How long a client's first list (`--expose direct`), and a search without a good match (`mcp`), wait for "
        "servers whose tools are unknown.",
        10.0,
    )
    max_line: int = key(
        "maxLineBytes",
        count("bytes", least=1024),
        "The largest message that a server may send.",
        64 * 1024 * 1024,
    )
    stderr_ring: int = key(
        "stderrBytes",
        count("bytes", least=0),
        "How much of a server's stderr is kept in memory, to quote it in errors.",
        8 * 1024,
    )
    max_pages: int = key("maxPages", count("pages"), "How many pages of one list are read.", 100)
    max_list_bytes: int = key(
        "maxListBytes",
        count("bytes", least=1024),
        "How large all lists of one server may be together.",
        16 * 1024 * 1024,
    )
    max_list_items: int = key(
        "maxListItems",
        count("items"),
        "How many tools, resources, templates and prompts one server may have.",
        10000,
    )
    probe_timeout: float = key(
        "probeTimeoutMs",
        MILLISECONDS,
        "How long to wait for a server to say which era of the protocol it speaks.",
        5.0,
    )
    http_listen: str | None = key(
        "http.listen",
        TEXT,
        "Where `serve --http` listens if it is given no address, for example `127.0.0.1:8000`.",
        in_words="none",
    )
    http_tokens: Mapping[str, str] = key(
        "http.tokens",
        TEXT_MAP,
        'The tokens that are accepted, by name: `{"alice": "${ALICE_TOKEN}"}`. Variables are expanded.',
        {},
        shown=_names_only,
    )
    http_token_profiles: Mapping[str, str] = key(
        "http.tokenProfiles",
        TEXT_MAP,
        "The profiles that tokens of `http.tokens` are bound to, by the names of the tokens.",
        {},
    )
    http_owner_tokens: Mapping[str, str] = key(
        "http.ownerTokens",
        TEXT_MAP,
        "Tokens of owners, by name. With such a token, the page may also act: connect, drain, approve, accept. "
        "Variables are expanded.",
        {},
        shown=_names_only,
    )
    http_oauth_issuer: str | None = key(
        "http.oauth.issuer",
        TEXT,
        "The URL of the authorization server. Without it, access tokens are not accepted.",
    )
    http_oauth_resource: str | None = key(
        "http.oauth.resource",
        TEXT,
        "The URL that clients use for this gateway, such as `https://gateway.example/mcp`.",
    )
    http_oauth_audiences: tuple[str, ...] = key(
        "http.oauth.audiences",
        TEXTS,
        "The audiences that are accepted. A token must be for one of them.",
        (),
        in_words="the resource",
    )
    http_oauth_jwks: str | None = key(
        "http.oauth.jwksUrl",
        TEXT,
        "The URL of the issuer's keys.",
        in_words="the URL in the issuer's metadata",
    )
    http_oauth_scopes: tuple[str, ...] = key(
        "http.oauth.scopes", TEXTS, "The scopes that a token must have.", ()
    )
    http_oauth_profile_claim: str | None = key(
        "http.oauth.profileClaim", TEXT, "The claim of a token that names the caller's profile."
    )
    http_oauth_scope_profiles: Mapping[str, str] = key(
        "http.oauth.scopeProfiles",
        TEXT_MAP,
        'The profiles of callers, by a scope of their tokens: `{"mcp:work": "work"}`.',
        {},
    )
    http_hosts: tuple[str, ...] = key(
        "http.hosts", TEXTS, "Additional names that clients may use for the gateway (in `Host`).", ()
    )
    http_origins: tuple[str, ...] = key(
        "http.origins",
        TEXTS,
        "Web pages whose scripts may call the gateway and read its answers (CORS), such as `https://app.example`.",
        (),
    )
    http_session_headers: Mapping[str, str] = key(
        "http.sessionHeaders",
        SESSION_HEADERS,
        'Headers of requests that become values of the session: `{"x-github-token": "GITHUB_TOKEN"}`.',
        {},
    )
    http_state_handles: bool = key(
        "http.stateHandles",
        FLAG,
        "Whether a client of 2026-07-28 can have several states, each with a handle "
        "([state without a session](state-handles.md)).",
        False,
    )
    http_metrics: bool = key(
        "http.metrics",
        FLAG,
        "Whether calls and servers are counted for `/metrics` ([metrics](http.md#metrics)).",
        False,
    )
    http_metrics_tools: int = key(
        "http.metricsTools",
        count("tools", least=0),
        "How many tools have counters of their own; the others share the counter `other`. 0 = none.",
        0,
    )
    http_max_sessions: int = key(
        "http.maxSessions", count("sessions"), "How many sessions may be open at a time.", 1000
    )
    http_session_idle: float = key(
        "http.sessionIdle", MINUTES, "A session ends after this long without a message.", 1800.0
    )
    http_session_life: float = key(
        "http.sessionLife", MINUTES, "A session ends after this long in any case.", 86400.0
    )
    http_max_body: int = key(
        "http.maxBodyBytes", count("bytes", least=1024), "The largest body of a request.", 4 * 1024 * 1024
    )
    cache_max_age: float = key(
        "cacheMaxAgeDays", DAYS, "An entry of the catalogue that is older than this is not used.", 7 * 86400.0
    )
    output_max_bytes: int = key(
        "outputGuard.maxBytes", count("bytes", least=0), "The largest text in an answer; 0 = no limit.", 51200
    )
    output_max_lines: int = key(
        "outputGuard.maxLines", count("lines", least=0), "The most lines in an answer; 0 = no limit.", 2000
    )
    output_max_image: int = key(  # most clients refuse 5 MiB
        "outputGuard.maxImageBytes",
        count("bytes", least=0),
        "The largest image, in base64. A larger one is scaled down, or kept as a file; 0 = no limit.",
        4 * 1024 * 1024,
    )
    output_keep: float = key(
        "outputGuard.keepHours", HOURS, "How long files of long output are kept.", 24 * 3600.0
    )
    output_keep_bytes: int = key(
        "outputGuard.keepBytes",
        count("bytes", least=0),
        "How large these files may be together. The oldest are removed first.",
        100 * 1024 * 1024,
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
    "restartBackoff": "The delay after a failure. It doubles from one failure to the next.",
    "tasks": "What happens to calls that continue as tasks.",
    "http": "The HTTP door, `serve --http` ([over HTTP](http.md)).",
    "http.oauth": "Access tokens of an authorization server ([OAuth at the gateway](http-oauth.md)).",
    "outputGuard": (
        "How long output of the `mcp` tool is cut ([long output](mcp-tool.md#long-output)). "
        "`false` = not at all, `true` = with the defaults."
    ),
}
Exposure = Literal["proxy", "direct", "meta"]  # what a client can be shown
EXPOSURES: Final[tuple[str, ...]] = get_args(Exposure)


class Profile(Model, frozen=True, eq=False):
    """Servers and tools that exist for a client. Tools: as in `includeTools`. `expose` None: as the gateway says."""

    servers: tuple[str, ...] | None = key(
        "servers",
        TEXTS,
        "The servers that exist for its clients; `*` and `?` are wildcards. Without this key: all.",
    )
    tools: tuple[str, ...] | None = key(
        "tools",
        TEXTS,
        "The tools of those servers that exist; `*` and `?` are wildcards. Without this key: all.",
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
        "How often a client may repeat the same call with the same arguments ([how](limits.md#loops)).",
        {},
    )
    overrides: Mapping[str, Mapping[str, Any]] = key(
        "toolOverrides",
        OVERRIDES_OF_EACH,
        "By server: changes of its tools, in addition to those in the server's entry.",
        {},
    )


# The keys of a file, as data.
SERVER_KEYS: Final = keys_of(ServerDefinition)
SETTING_KEYS: Final = keys_of(Settings)
PROFILE_KEYS: Final = keys_of(Profile)
SERVER_KEY: Final[Mapping[str, Key]] = {each.name: each for each in SERVER_KEYS}
SERVER_KEY_NAMES: Final[Mapping[str, str]] = {each.attribute: each.name for each in SERVER_KEYS}
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
