"""The configuration model: what a server entry and the settings may say.

Keys in files are camelCase, as every MCP client writes them; attributes are snake_case. Durations are seconds here,
whatever the unit of the file's key. (Keys have their unit in their name, except `idleTimeout`, which is in minutes.)
`config_parse` parses, checks and merges; the supervisor reads the files.

A definition has two halves. What decides *which process or endpoint it is* goes into `definition_hash`: changing it
means a new incarnation and a new catalogue entry. The rest is policy and is applied live.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, Literal

import attrs

from ..protocol.errors import Problem
from .secrets import without_logins


class Lifecycle(enum.Enum):
    LAZY = "lazy"
    EAGER = "eager"
    KEEP_ALIVE = "keep-alive"


class RestartPolicy(enum.Enum):
    NEVER = "never"
    ON_DEMAND = "on_demand"
    ALWAYS = "always"


class Isolation(enum.Enum):
    """Who shares a child: everybody, one session's calls, or nobody."""

    PERSISTENT = "persistent"
    PER_SESSION = "per_session"
    PER_CALL = "per_call"


class HttpTransport(enum.Enum):
    """A transport that the file insists on. Without it, Streamable HTTP is tried first, then SSE."""

    STREAMABLE_HTTP = "streamable-http"
    SSE = "sse"


class Era(enum.Enum):
    """How a server is greeted: `handshake` up to 2025-11-25, `stateless` from 2026-07-28 on."""

    AUTO = "auto"  # the era in which its client can answer its questions, if there is one; else the newer era first
    HANDSHAKE = "handshake"
    STATELESS = "stateless"


class Pinning(enum.Enum):
    """What happens to a tool that is not as it was first shown."""

    QUARANTINE = "quarantine"  # it cannot be called until its owner accepts it
    WARN = "warn"
    OFF = "off"


class Scrub(enum.Enum):
    """Which results credentials are removed from."""

    OFF = "off"
    MCP = "mcp"  # those that a model is given through the `mcp` tool, or another tool of ours
    ALL = "all"  # also those at the door `direct`, and those that a program is given


class PrefixMode(enum.Enum):
    SERVER = "server"
    SHORT = "short"
    NONE = "none"


class Approve(enum.Enum):
    """Which calls a person has to allow, by what the tool says of itself (`approval`)."""

    OFF = "off"
    ALL = "all"
    WRITES = "writes"  # of all tools that do not say they only read
    DESTRUCTIVE = "destructive"  # of those, the ones that do not say they destroy nothing
    OPEN_WORLD = "open-world"  # of all tools that do not say they reach nothing outside


def _no_map() -> Mapping[str, Any]:
    return {}


def _names_only(values: Mapping[str, Any]) -> str:
    """Values may be secrets, and a definition ends up in logs and assertion messages."""
    return "{" + ", ".join(f"{name!r}: ***" for name in values) + "}"


def _number_only(values: tuple[str, ...]) -> str:
    return f"({len(values)} of them)"


def _place_only(url: str | None) -> str:
    return repr(None if url is None else without_logins(url).partition("?")[0].partition("#")[0])


@attrs.frozen(eq=True)
class ServerDefinition:
    """One entry of `mcpServers`. Exactly one of `command`, `url`, `socket` and `in_process` is set."""

    name: str
    # -- which server it is (hashed) --
    command: str | None = None
    args: tuple[str, ...] = attrs.field(default=(), repr=_number_only)
    env: Mapping[str, str] = attrs.field(factory=_no_map, hash=False, repr=_names_only)
    env_file: str | None = None
    env_file_state: str | None = attrs.field(
        default=None, repr=False
    )  # another one when the file has changed
    env_file_asked: bool = (
        False  # a file of a project names it, whose owner said yes to that file and not to this
    )
    cwd: str | None = None
    inherit_env: bool | tuple[str, ...] | None = None  # names and patterns; None: what the settings say
    url: str | None = attrs.field(default=None, repr=_place_only)
    headers: Mapping[str, str] = attrs.field(factory=_no_map, hash=False, repr=_names_only)
    http_transport: HttpTransport | None = None
    auth: Literal["oauth", False] | None = None  # False: never log in; None: with a login that is stored
    oauth: Mapping[str, Any] | Literal[False] | None = attrs.field(default=None, hash=False, repr=False)
    pi_logins: str | None = None  # where pi keeps its logins, if its settings say so (`with_settings`)
    request_headers_command: Mapping[str, Any] | None = attrs.field(default=None, hash=False, repr=False)
    socket: str | None = None
    in_process: Any = attrs.field(default=None, eq=False, hash=False)
    expose_resources: bool = True
    include_tools: tuple[str, ...] | None = None  # None: all; an empty list means none
    exclude_tools: tuple[str, ...] = ()
    # -- policy (applied live) --
    lifecycle: Lifecycle = Lifecycle.LAZY
    isolation: Isolation | None = None  # None: what the settings say
    era: Era = Era.AUTO
    restart_policy: RestartPolicy | None = None  # None: always for keep-alive, on_demand otherwise
    idle_timeout: float | None = None  # seconds; 0 = never; None = the global one
    tool_prefix: PrefixMode | None = None
    connect_timeout: float | None = None
    install_timeout: float | None = None
    resolve_npx: bool | None = None  # None: what the settings say
    call_timeout: float | None = None
    drain_timeout: float | None = None
    stop_timeout: float | None = None
    max_in_flight: int | None = None
    max_queued: int | None = None
    direct_tools: bool | tuple[str, ...] | None = (
        None  # shown by `--expose direct`; None: what the settings say
    )
    tool_overrides: Mapping[str, Any] = attrs.field(factory=_no_map, hash=False)  # as read (`overrides`)
    approve: Approve | tuple[str, ...] | None = None  # a word, or tools; None: what the settings say
    pinning: Pinning | None = None  # None: what the settings say
    scrub: Scrub | None = None  # None: what the settings say
    bootstrap: bool = True
    disabled: bool = False
    extra: Mapping[str, Any] = attrs.field(factory=_no_map, hash=False, repr=_names_only)  # others' keys
    sources: Mapping[str, str] = attrs.field(factory=_no_map, eq=False, hash=False)  # attribute -> where from


def _queue_timeout(settings: Settings) -> float:
    """Enough time for one attempt to connect, for its end, and for reporting why it failed."""
    return settings.connect_timeout + 15.0


@attrs.frozen
class Settings:
    """Numbers for the whole room, in seconds unless a comment says otherwise. All can be set."""

    tool_prefix: PrefixMode = PrefixMode.SERVER
    name_limit: int = 64  # characters of a name as a model gets it, with `client_prefix`
    client_prefix: str | None = None  # what the client puts before our names; None: nothing
    pinning: Pinning = Pinning.QUARANTINE
    scrub: Scrub = Scrub.MCP
    isolation: Isolation | None = None  # None: persistent
    restart_policy: RestartPolicy | None = None  # None: always for keep-alive, on_demand otherwise
    idle_timeout: float = 600.0  # 0 = never
    connect_timeout: float = 30.0
    call_timeout: float = 60.0
    call_total_timeout: float = 600.0  # however much progress restarts the clock
    # How long a call waits for slot, gate and connect. It is longer than `connect_timeout`, so that a call ends with
    # the reason of a failed connect and not with "still connecting".
    queue_timeout: float = attrs.field(default=attrs.Factory(_queue_timeout, takes_self=True))
    drain_timeout: float = 10.0
    stop_timeout: float = 5.0
    secret_timeout: float = 10.0  # one command that gives a secret
    shutdown_timeout: float = 15.0  # the whole room, one deadline
    background_idle: float = 600.0  # a background room without clients ends after this long; 0 = never
    max_connections: int = 20  # the pool's slots
    min_connections: int = 0  # live connections that no eviction goes below
    reserve_connections: int = 0  # further slots, for a head of the queue that waited `reserve_timeout`
    reserve_timeout: float = 5.0
    acquire_timeout: float = 30.0  # waiting for a slot
    start_permits: int = 10
    install_turns: int = 2  # of these, for commands that may install first and that no call waits for
    install_timeout: float = 600.0  # one attempt to connect for such a command, while it shows progress
    resolve_npx: bool = True  # start a package that npx would start without npx
    max_in_flight: int = 256
    max_queued: int = 1024
    backoff_min: float = 1.0
    backoff_max: float = 60.0
    backoff_jitter: float = 0.2
    failure_backoff: float | None = None  # one flat delay in place of the two above
    failure_threshold: int = 5
    cooldown: float = 30.0
    stable_after: float = 30.0  # an answer after this long connected resets the failure count
    restart_intensity: int = 5
    restart_period: float = 60.0
    health_interval: float = 30.0
    oauth_dir: str | None = None  # where pi keeps its logins
    registry: str | None = None  # of servers that are not configured, for `mcp_provision`
    inherit_env: bool | tuple[str, ...] = False  # beyond what every child gets: everything, nothing, or these
    direct_tools: bool | tuple[str, ...] = True
    tool_overrides: Mapping[str, Any] = attrs.field(factory=_no_map, hash=False)  # as read; of every server
    approve: Approve | tuple[str, ...] = Approve.OFF
    approval_timeout: float = 300.0  # a person may take this long to allow a call
    bootstrap: bool = True
    first_list_timeout: float = 10.0  # a client's first list waits this long for servers with unknown tools
    max_line: int = 64 * 1024 * 1024
    stderr_ring: int = 8 * 1024
    max_pages: int = 100
    max_queued_bytes: int = 64 * 1024 * 1024  # parameters of all waiting calls in the room
    max_list_bytes: int = 16 * 1024 * 1024  # all lists of one server
    max_list_items: int = 10_000
    probe_timeout: float = 5.0
    cache_max_age: float = 7 * 86400.0
    # The HTTP door (`serve --http`).
    http_listen: str | None = None  # where it is, for who does not say
    http_tokens: Mapping[str, str] = attrs.field(factory=_no_map, hash=False, repr=_names_only)
    http_token_profiles: Mapping[str, str] = attrs.field(factory=_no_map, hash=False)
    http_oauth_issuer: str | None = None
    http_oauth_resource: str | None = None
    http_oauth_audiences: tuple[str, ...] = ()
    http_oauth_jwks: str | None = None
    http_oauth_scopes: tuple[str, ...] = ()
    http_oauth_profile_claim: str | None = None
    http_oauth_scope_profiles: Mapping[str, str] = attrs.field(factory=_no_map, hash=False)
    http_hosts: tuple[str, ...] = ()
    http_origins: tuple[str, ...] = ()
    http_session_headers: Mapping[str, str] = attrs.field(factory=_no_map, hash=False)
    http_metrics: bool = False
    http_max_sessions: int = 1_000
    http_session_idle: float = 1_800.0
    http_session_life: float = 86_400.0
    http_max_body: int = 4 * 1024 * 1024
    output_max_bytes: int = 51_200  # the `mcp` tool's guard; 0 = off
    output_max_lines: int = 2_000
    output_max_image: int = 4 * 1024 * 1024  # most clients refuse five
    output_keep: float = 24 * 3600.0
    output_keep_bytes: int = 100 * 1024 * 1024

    @property
    def longest_name(self) -> int:
        """How many characters a name of ours may have."""
        return self.name_limit - len(self.client_prefix or "")


SHORTEST_NAME: Final = 40  # no limit of names is below this: the longest hash, and a little of the name
EXPOSURES: Final = ("proxy", "direct", "meta")  # what a client can be shown


@attrs.frozen
class Profile:
    """What exists for a client. `servers` and `tools` are patterns; None: all. A tool is written as in `includeTools`.
    `expose`: None: as the gateway says. `overrides`: on top of `tool_overrides` of the servers."""

    servers: tuple[str, ...] | None = None
    tools: tuple[str, ...] | None = None
    expose: str | None = None
    overrides: Mapping[str, Mapping[str, Any]] = attrs.field(factory=_no_map, hash=False)  # server -> as read


@attrs.frozen
class Config:
    """Everything a room is made from. `problems` are the non-fatal problems: warnings and servers left out."""

    servers: Mapping[str, ServerDefinition] = attrs.field(factory=_no_map, hash=False)
    settings: Settings = attrs.field(factory=Settings)
    setting_sources: Mapping[str, str] = attrs.field(factory=_no_map, eq=False, hash=False)  # as `sources`
    problems: tuple[Problem, ...] = ()
    broken: Mapping[str, Problem] = attrs.field(factory=_no_map, hash=False)  # name -> why not served
    files: tuple[str, ...] = ()  # what was read, strongest first; also what is not trusted
    untrusted: tuple[str, ...] = ()  # those of them that are not obeyed, because their owner has not said yes
    profiles: Mapping[str, Profile] = attrs.field(factory=_no_map, hash=False)
    places: tuple[str, ...] = ()  # absolute paths that were looked at, whether or not a file was there


def with_settings(definition: ServerDefinition, settings: Settings) -> ServerDefinition:
    """`definition` with the environment rule from the settings, if it has none itself, and where pi's logins are."""
    if definition.url is not None and settings.oauth_dir is not None:
        definition = attrs.evolve(definition, pi_logins=settings.oauth_dir)
    if definition.inherit_env is not None:
        return definition
    return attrs.evolve(definition, inherit_env=settings.inherit_env)


# --------------------------------------------------------------------------------------------------------------
#
#
# What an entry and the settings say together: the entry first, then the settings, then what its lifecycle means.
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
