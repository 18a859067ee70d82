"""The keys of a configuration as data: those of a server's entry, and those of the settings, which count for the whole
room."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs

from .model import (
    EXPOSURES,
    SHORTEST_NAME,
    Approve,
    Era,
    HttpTransport,
    Isolation,
    Lifecycle,
    Pinning,
    PrefixMode,
    RestartPolicy,
    Scrub,
    ServerDefinition,
    Settings,
)
from .reading import (
    CHOICE,
    DAYS,
    ENVIRONMENT,
    FLAG,
    FRACTION,
    HOURS,
    MILLISECONDS,
    MINUTES,
    SAFE_URL,
    SECONDS,
    SESSION_HEADERS,
    TEXT,
    TEXT_MAP,
    TEXTS,
    VALUE_MAP,
    VALUES,
    BadValueError,
    Reader,
    count,
    did_you_mean,
    is_array,
    is_object,
    kind_of,
    number,
    unknown,
    word,
    word_or_names,
)

# --------------------------------------------------------------------------------------------------------------
#
#
# What a key of a configuration file is. The keys themselves are `SERVER_KEYS` and `SETTING_KEYS`.
#
# A key knows where its value goes in the model and what happens when the value is wrong. A wrong value of an
# `identity` key breaks its server. Such keys say which program runs, with what, what it may show and who shares it,
# and half of that is worse than none of it. The other keys are policy. Their default is used and the problem is
# listed, for a server with the wrong idle timeout is better than no server. (A wrong setting has two outcomes as
# well. A file that was named is refused; a file that was only found is served with the default.)


@attrs.frozen
class Key:
    """One key of a file. A key with `parts` is an object with these keys, and has no value of its own."""

    name: str
    attribute: str
    reader: Reader
    meaning: str
    identity: bool = False
    default: str = ""  # in words, when the default in the model says too little
    parts: tuple[Key, ...] = ()


def leaves(keys: tuple[Key, ...], prefix: str = "") -> list[tuple[str, Key]]:
    """Every key that holds a value, with its dotted name: `restartBackoff.minMs`."""
    found: list[tuple[str, Key]] = []
    for key in keys:
        found += leaves(key.parts, f"{prefix}{key.name}.") if key.parts else [(prefix + key.name, key)]
    return found


def in_file_units(key: Key, value: Any) -> Any:
    """A value of the model as a file would say it: seconds in the key's unit, enums as their word."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int | float):
        return _tidy(value / key.reader.scale)
    if is_array(value):
        return list(value)
    return dict(value) if is_object(value) else value.value


def _tidy(number: float) -> float | int:
    rounded = round(number, 6)
    return int(rounded) if rounded == int(rounded) else rounded


# ---- Every key of a configuration file, as data ---------------------------------------------------------------------
#
# The parser, the JSON Schema, the printed configuration and the tables in docs/configuration.md are all made from
# these two tables, so they always agree. What a key is: `Key`.

IMPORT_KINDS: Final = (
    "cursor", "claude-code", "claude-desktop", "vscode", "windsurf", "codex", "opencode", "pi",
)  # fmt: skip


# ---- The keys `auth` and `oauth` of an HTTP server: whether and how to log in ---------------------------------------
#
# `oauth` is an object of a few texts, or `false`. Its names are those of the pi adapter, so that its files can be read
# as they are. A wrong value breaks the server: with half of them the login would be another one. Other clients have
# further names; these have no effect, and a warning says so.

_TEXTS: Final = (
    "grantType",
    "clientId",
    "clientSecret",
    "clientMetadataUrl",
    "issuer",
    "scope",
    "redirectUri",
    "clientName",
    "clientUri",
    "logoUri",
)
GRANTS: Final = ("authorization_code", "client_credentials", "device_code")
_PARAMS: Final = "authorizationParams"
_NAMES: Final = (*_TEXTS, _PARAMS)
# What the flow itself puts into the request for a login; a configured value would break its checks.
RESERVED: Final = frozenset(
    {"response_type", "client_id", "redirect_uri", "state", "code_challenge", "code_challenge_method"}
)


def _read_auth(value: Any) -> str | bool:
    if value == "oauth":
        return "oauth"
    if value is False or value == "bearer":
        return False
    raise BadValueError('must be "oauth", "bearer" or false')


def _read_oauth(value: Any) -> Mapping[str, Any] | bool:
    if value is False:
        return False
    if not is_object(value):
        raise BadValueError(f"must be an object or false, is {kind_of(value)}")
    found: dict[str, Any] = {}
    for name, each in value.items():
        name = str(name)
        if each is None:
            continue
        if name == _PARAMS:
            found[name] = _params(each)
        elif name not in _TEXTS:
            continue
        elif not isinstance(each, str) or not each.strip():
            raise BadValueError(f"must be a non-empty string, is {kind_of(each)}", name)
        else:
            found[name] = each
    _check(found)
    return found


def without_effect(value: Any) -> Iterator[tuple[str, str]]:
    """The names in `oauth` that have no effect, each with what to say about it."""
    for name in value if is_object(value) else ():
        if str(name) not in _NAMES:
            hint = did_you_mean(str(name), _NAMES)
            yield str(name), f"has no effect on a login{hint}"


def _params(value: Any) -> dict[str, str]:
    if not is_object(value):
        raise BadValueError(f"must be an object of strings, is {kind_of(value)}", _PARAMS)
    for name, each in value.items():
        if not isinstance(each, str):
            raise BadValueError(f"must be a string, is {kind_of(each)}", _PARAMS, str(name))
        if name in RESERVED:
            raise BadValueError("is set by the login itself: remove it", _PARAMS, str(name))
    return {str(name): each for name, each in value.items()}


def _check(found: Mapping[str, Any]) -> None:
    grant = found.get("grantType", GRANTS[0])
    if grant not in GRANTS:
        raise BadValueError(f"must be one of {', '.join(GRANTS)}", "grantType")
    if grant == "client_credentials":
        for name in ("clientId", "clientSecret"):
            if name not in found:
                raise BadValueError(f'"client_credentials" needs it: add "{name}"', name)


_TEXT: Final = {"type": "string", "minLength": 1}
_AUTH: Final = Reader(_read_auth, {"enum": ["oauth", "bearer", False]}, "`oauth` / `bearer` / false")
_OAUTH: Final = Reader(
    _read_oauth,
    {
        "anyOf": [
            {"enum": [False]},
            {
                "type": "object",
                "properties": {
                    **dict.fromkeys(_TEXTS, _TEXT),
                    "grantType": {"enum": list(GRANTS)},
                    _PARAMS: {"type": "object", "additionalProperties": {"type": "string"}},
                },
                "additionalProperties": {},
            },
        ]
    },
    "object / false",
)
LOGIN_KEYS: Final = (
    Key(
        "auth",
        "auth",
        _AUTH,
        '`"oauth"`: it wants an OAuth login (docs/login.md). `false`: never log in. `"bearer"`: as `bearerToken` says.',
        True,
        "a stored login is used, unless there is an `Authorization` header",
    ),
    Key("oauth", "oauth", _OAUTH, "How to log in (docs/login.md); `false`: never.", True),
)


# --------------------------------------------------------------------------------------------------------------
#
#
# The key `requestHeadersCommand` of an HTTP server: a program that gives further headers for each request.
#
# Its names are those of the pi adapter, so that its files can be read as they are: `command`, `args`, `env`,
# `timeoutMs`. A wrong value breaks the server, because requests without these headers would be other requests.

TIMEOUT: Final = 10.0  # seconds, when the file says nothing
_PARTS: Final = {
    "command": TEXT,
    "args": TEXTS,
    "env": TEXT_MAP,
    "timeoutMs": number("milliseconds", scale=0.001, most=60),
}


def _read(value: Any) -> Mapping[str, Any]:
    if not is_object(value):
        raise BadValueError(f'must be an object like {{"command": "…"}}, is {kind_of(value)}')
    found: dict[str, Any] = {"args": (), "env": {}, "timeoutMs": TIMEOUT}
    for name, each in value.items():
        if name not in _PARTS:
            raise BadValueError(f"is an unknown key{did_you_mean(str(name), _PARTS)}", str(name))
        if each is not None:
            try:
                found[name] = _PARTS[name].read(each)
            except BadValueError as wrong:
                raise BadValueError(wrong.what, name, *wrong.inside) from None
    if "command" not in found:
        raise BadValueError('has no "command": add the program to run')
    return found


REQUEST_HEADERS: Final = Reader(
    _read,
    {
        "type": "object",
        "properties": {name: reader.schema for name, reader in _PARTS.items()},
        "required": ["command"],
        "additionalProperties": False,
    },
    "object",
)


_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
# ---- reading -------------------------------------------------------------------------------------------------------
_TOOL_KEYS: Final = ("rename", "hide", "description", "params")
_PARAMETER_KEYS: Final = ("rename", "hide", "description", "default", "nullIsNothing")
_FLAGS: Final = ("hide", "nullIsNothing")


def _read_overrides(value: Any) -> dict[str, Any]:
    found = _read_of_any(value)
    _check_unique(found, "tools")
    return found


def _read_of_any(value: Any) -> dict[str, Any]:
    """Overrides for whichever server has such a tool. Two may give one name: those tools may be of two servers."""
    if not is_object(value):
        raise BadValueError(f'must be an object like {{"tool": {{"rename": "…"}}}}, is {kind_of(value)}')
    return {str(tool): _read_tool(said, str(tool)) for tool, said in value.items()}


def _read_tool(said: Any, tool: str) -> dict[str, Any]:
    read = _read_part(said, _TOOL_KEYS, tool)
    params: Any = read.get("params", {})
    if not is_object(params):
        raise BadValueError(f"must be an object of parameters, is {kind_of(params)}", tool, "params")
    if params:
        read["params"] = {
            str(name): _read_part(each, _PARAMETER_KEYS, tool, "params", str(name))
            for name, each in params.items()
        }
        _check_unique(read["params"], "parameters", tool, "params")
    return read


def _read_part(said: Any, keys: tuple[str, ...], *where: str) -> dict[str, Any]:
    if not is_object(said):
        raise BadValueError(f"must be an object, is {kind_of(said)}", *where)
    for key, value in said.items():
        if key not in keys:
            raise BadValueError(unknown(str(key), keys, "it is no key of an override"), *where, str(key))
        if key in _FLAGS and not isinstance(value, bool):
            raise BadValueError(f"must be true or false, is {kind_of(value)}", *where, key)
        if key == "description" and not isinstance(value, str):
            raise BadValueError(f"must be a string, is {kind_of(value)}", *where, key)
        if key == "rename" and not (isinstance(value, str) and _NAME.fullmatch(value)):
            raise BadValueError('must be a name of 1 to 64 letters, digits, "_", "-" and "."', *where, key)
    return {str(key): value for key, value in said.items()}


def _check_unique(found: Mapping[str, Mapping[str, Any]], what: str, *where: str) -> None:
    taken: dict[str, str] = {}
    for name, said in found.items():
        if said.get("hide"):
            continue
        new = str(said.get("rename", name)).replace("-", "_")
        if new in taken:
            raise BadValueError(f'two {what} would be called "{said.get("rename", name)}"', *where, name)
        taken[new] = name


def _schema_of(*keys: tuple[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": dict(keys)}


_COMMON: Final[tuple[tuple[str, Mapping[str, Any]], ...]] = (
    ("rename", {"type": "string", "pattern": f"^{_NAME.pattern}$"}),
    ("hide", {"type": "boolean"}),
    ("description", {"type": "string"}),
)
_PARAMETERS: Final = {
    "type": "object",
    "additionalProperties": _schema_of(*_COMMON, ("default", {}), ("nullIsNothing", {"type": "boolean"})),
}
OVERRIDES: Final = Reader(
    _read_overrides,
    {"type": "object", "additionalProperties": _schema_of(*_COMMON, ("params", _PARAMETERS))},
    "tool → override",
)
OVERRIDES_OF_ANY: Final = Reader(_read_of_any, OVERRIDES.schema, OVERRIDES.unit)
OVERRIDE_KEY: Final = Key(
    "toolOverrides",
    "tool_overrides",
    OVERRIDES,
    "How tools are shown otherwise ([below](#tools-shown-otherwise)).",
    True,
)


# ---- The keys of a server's entry, as data ---------------------------------------------------------------------------

# What a server's entry and the settings say alike.
CALLS: Final = count("calls")
MS_FROM_0: Final = number("milliseconds", scale=0.001, zero=True)
INSTALLS: Final = "The same for npx, uvx, docker and similar commands, while they show progress."
APPROVE: Final = word_or_names(Approve, Approve.ALL, Approve.OFF)
NPX: Final = "Start an installed package that npx would start without npx ([npx](#npx-without-npm))."
SERVER_KEYS: Final = (
    Key("command", "command", TEXT, "The program to start. `~` and variables are expanded.", True),
    Key("args", "args", VALUES, "Its arguments, one text each. Variables are expanded.", True),
    Key("env", "env", VALUE_MAP, "Environment of the program, on top of the minimal one. Expanded.", True),
    Key(
        "envFile",
        "env_file",
        TEXT,
        "A file of `NAME=value` lines for its environment; `env` is stronger ([values](#values-that-are-in-no-file)).",
        True,
    ),
    Key("cwd", "cwd", TEXT, "Its working directory. `~` and variables are expanded.", True, "ours"),
    Key(
        "inheritEnv",
        "inherit_env",
        ENVIRONMENT,
        "Variables of our environment that it gets besides the minimum: all, none, or these; `*` and `?` match.",
        True,
        "the setting `inheritEnv`",
    ),
    Key("url", "url", TEXT, "The endpoint of an HTTP server. A missing or empty variable is an error.", True),
    Key("headers", "headers", VALUE_MAP, "HTTP headers to send. Variables are expanded.", True),
    Key(
        "httpTransport",
        "http_transport",
        word(HttpTransport),
        "Insist on one HTTP transport.",
        True,
        "Streamable HTTP, then SSE",
    ),
    *LOGIN_KEYS,
    Key(
        "requestHeadersCommand",
        "request_headers_command",
        REQUEST_HEADERS,
        "A program that gives further headers for each request ([below](#headers-of-each-request)).",
        True,
    ),
    Key("socket", "socket", TEXT, "A unix socket path; JSON-RPC, one message a line. Expanded.", True),
    Key("exposeResources", "expose_resources", FLAG, "Offer its resources as `get_…` tools.", True),
    Key(
        "includeTools",
        "include_tools",
        TEXTS,
        "Only these tools; `*` and `?` match. `[]`: none.",
        True,
        "all",
    ),
    Key("excludeTools", "exclude_tools", TEXTS, "Never these tools; `*` and `?` match.", True, "none"),
    Key("lifecycle", "lifecycle", word(Lifecycle), "When it is started, and whether it is kept."),
    Key(
        "isolation",
        "isolation",
        word(Isolation),
        "Who shares one process of it.",
        True,
        "the setting `isolation`",
    ),
    Key(
        "era",
        "era",
        word(Era),
        "Insist on one era of the protocol: `handshake` (up to 2025-11-25) or `stateless` (2026-07-28).",
    ),
    Key(
        "restartPolicy",
        "restart_policy",
        word(RestartPolicy),
        "Whether it comes back after it was lost.",
        default="the setting `restartPolicy`",
    ),
    Key(
        "idleTimeout",
        "idle_timeout",
        MINUTES,
        "It is stopped when it has been idle this long; fractions are allowed, 0 = never.",
        default="the setting `idleTimeout`; 0 for eager; never for keep-alive",
    ),
    Key(
        "toolPrefix",
        "tool_prefix",
        word(PrefixMode),
        "How its tools are named.",
        default="the setting `toolPrefix`",
    ),
    Key(
        "connectTimeoutMs",
        "connect_timeout",
        MILLISECONDS,
        "One connect attempt, from its start permit.",
        default="the setting",
    ),
    Key("installTimeoutMs", "install_timeout", MILLISECONDS, INSTALLS, default="the setting"),
    Key(
        "requestTimeoutMs",
        "call_timeout",
        MILLISECONDS,
        "One call, from when it is sent; progress restarts it.",
        default="the setting",
    ),
    Key("resolveNpx", "resolve_npx", FLAG, NPX, default="the setting"),
    Key(
        "drainTimeoutMs",
        "drain_timeout",
        MS_FROM_0,
        "Calls in flight may take this long to finish.",
        default="the setting",
    ),
    Key(
        "stopTimeoutMs",
        "stop_timeout",
        MILLISECONDS,
        "From closing stdin to the last SIGKILL.",
        default="the setting",
    ),
    Key(
        "maxInFlight",
        "max_in_flight",
        CALLS,
        "Calls that are sent and not yet answered.",
        default="the setting",
    ),
    Key("maxQueued", "max_queued", CALLS, "Calls that are accepted and not yet sent.", default="the setting"),
    Key(
        "directTools",
        "direct_tools",
        CHOICE,
        "Which of its tools are shown by name: by `--expose direct`, and beside the `mcp` tool. `*` and `?` match.",
        default="the setting `directTools`",
    ),
    OVERRIDE_KEY,
    Key(
        "approve",
        "approve",
        APPROVE,
        "Which of its calls a person has to allow ([Approval](approval.md)); `*` and `?` match in a list.",
        True,
        "the setting `approve`",
    ),
    Key(
        "pinning",
        "pinning",
        word(Pinning),
        "What happens to a tool that is not as it was first shown ([changed tools](#changed-tools)).",
        True,
        "the setting `pinning`",
    ),
    Key(
        "scrub",
        "scrub",
        word(Scrub),
        "Which of its results lose credentials ([Credentials in results](doors.md#credentials-in-results)).",
        True,
        "the setting `scrub`",
    ),
    Key(
        "bootstrap",
        "bootstrap",
        FLAG,
        "Fetch its tools in the background if they are unknown; after a failure again, with growing pauses.",
    ),
    Key("disabled", "disabled", FLAG, "Only the literal `true` takes it out of service."),
)
SERVER_KEY: Final[Mapping[str, Key]] = {key.name: key for key in SERVER_KEYS}


_OBJECT: Final = Reader(dict, {"type": "object"}, "object")
SETTING_KEYS: Final = (
    Key(
        "toolPrefix", "tool_prefix", word(PrefixMode), "How tools are named: server_tool, shortened, or bare."
    ),
    Key(
        "nameLimit",
        "name_limit",
        count("characters", least=SHORTEST_NAME),
        "The longest name that the model's API takes. Longer names are cut and end in a hash.",
        True,
    ),
    Key(
        "clientPrefix",
        "client_prefix",
        TEXT,
        "What the client puts before our names, such as `mcp__greenroom__`. It counts against `nameLimit`.",
        True,
        "nothing",
    ),
    Key(
        "pinning",
        "pinning",
        word(Pinning),
        "What happens to a tool that is not as it was first shown ([changed tools](#changed-tools)).",
        True,
    ),
    Key(
        "scrub",
        "scrub",
        word(Scrub),
        "Which results lose credentials ([Credentials in results](doors.md#credentials-in-results)).",
        True,
    ),
    Key(
        "isolation", "isolation", word(Isolation), "Who shares one process of a server.", True, "`persistent`"
    ),
    Key(
        "restartPolicy",
        "restart_policy",
        word(RestartPolicy),
        "Whether a lost server comes back.",
        default="`on_demand`; `always` for keep-alive",
    ),
    Key(
        "idleTimeout",
        "idle_timeout",
        MINUTES,
        "A server is stopped when it has been idle this long; 0 = never.",
    ),
    Key("connectTimeoutMs", "connect_timeout", MILLISECONDS, "One connect attempt, from its start permit."),
    Key("installTimeoutMs", "install_timeout", MILLISECONDS, INSTALLS),
    Key(
        "requestTimeoutMs",
        "call_timeout",
        MILLISECONDS,
        "One call, from when it is sent; progress restarts it.",
    ),
    Key(
        "requestTotalTimeoutMs", "call_total_timeout", MILLISECONDS, "One call in all, whatever its progress."
    ),
    Key(
        "queueTimeoutMs",
        "queue_timeout",
        MILLISECONDS,
        "A call waits this long for slot, gate and connect.",
        default="`connectTimeoutMs` and 15 s more",
    ),
    Key("drainTimeoutMs", "drain_timeout", MS_FROM_0, "Calls in flight may take this long to finish."),
    Key("stopTimeoutMs", "stop_timeout", MILLISECONDS, "From closing stdin to the last SIGKILL."),
    Key(
        "secretTimeoutMs",
        "secret_timeout",
        MILLISECONDS,
        'A command that gives a secret (`"!gh auth token"`) may take this long.',
    ),
    Key("shutdownTimeoutMs", "shutdown_timeout", MILLISECONDS, "One deadline for stopping the whole room."),
    Key(
        "backgroundIdle",
        "background_idle",
        MINUTES,
        "A background room (`greenroom attach`) ends when it has had no client this long; 0 = never.",
    ),
    Key("maxConnections", "max_connections", count("connections"), "The pool's slots."),
    Key(
        "minConnections",
        "min_connections",
        count("connections", least=0),
        "Idle servers are kept up to this many; must be below `maxConnections`.",
    ),
    Key(
        "reserve",
        "reserve_connections",
        count("connections", least=0),
        "Further slots for a server that has waited `reserveTimeoutMs`.",
    ),
    Key(
        "reserveTimeoutMs",
        "reserve_timeout",
        MS_FROM_0,
        "The head of the queue waits this long for a reserve slot; 0 = the reserve is off.",
    ),
    Key("acquireTimeoutMs", "acquire_timeout", MILLISECONDS, "How long a server waits for a slot."),
    Key("startPermits", "start_permits", count("starts"), "Servers that may start at the same time."),
    Key(
        "installTurns",
        "install_turns",
        count("starts"),
        "Of these, starts of npx, uvx, docker and similar commands (they may install) that no call waits for.",
    ),
    Key("resolveNpx", "resolve_npx", FLAG, NPX),
    Key("maxInFlight", "max_in_flight", CALLS, "Calls of one server that are sent and not yet answered."),
    Key("maxQueued", "max_queued", CALLS, "Calls of one server that are accepted and not yet sent."),
    Key(
        "maxQueuedBytes",
        "max_queued_bytes",
        count("bytes", least=1024),
        "Parameters of all calls in the room that are accepted and not yet sent; as much again may wait at the doors.",
    ),
    Key(
        "restartBackoff",
        "",
        _OBJECT,
        "The delay after a failure, doubling from one to the other.",
        parts=(
            Key("minMs", "backoff_min", MILLISECONDS, "The first delay."),
            Key("maxMs", "backoff_max", MILLISECONDS, "The longest delay."),
        ),
    ),
    Key("backoffJitter", "backoff_jitter", FRACTION, "The random share of the delay, 0 to 1."),
    Key(
        "failureBackoff",
        "failure_backoff",
        SECONDS,
        "One flat delay, in place of `restartBackoff`.",
        default="none",
    ),
    Key(
        "failureThreshold",
        "failure_threshold",
        count("failures"),
        "Failures in a row that shut the gate for longer.",
    ),
    Key(
        "cooldownMs",
        "cooldown",
        MILLISECONDS,
        "How long the gate then stays shut, before one probe may pass.",
    ),
    Key(
        "stableAfterMs",
        "stable_after",
        MILLISECONDS,
        "An answer clears the failures if the server has been connected this long.",
    ),
    Key(
        "restartIntensity",
        "restart_intensity",
        count("restarts"),
        "Restarts of one server in `restartPeriodMs`.",
    ),
    Key("restartPeriodMs", "restart_period", MILLISECONDS, "The window of `restartIntensity`."),
    Key(
        "healthIntervalMs",
        "health_interval",
        MILLISECONDS,
        "How often the health of keep-alive servers is checked.",
    ),
    Key(
        "inheritEnv",
        "inherit_env",
        ENVIRONMENT,
        "Variables of our environment that programs get besides the minimum: all, none, or these; `*` and `?` match.",
        True,
    ),
    Key(
        "oauthDir",
        "oauth_dir",
        TEXT,
        "Where pi's adapter keeps its logins ([Logging in](login.md)); `MCP_OAUTH_DIR` is stronger.",
        True,
        "pi's own folder",
    ),
    Key(
        "registry",
        "registry",
        SAFE_URL,
        "A registry of servers in which `mcp_provision` looks, too ([Doors](doors.md#meta-metamcps-tools)).",
        True,
        "none: nothing is asked",
    ),
    Key(
        "directTools",
        "direct_tools",
        CHOICE,
        "Which tools `--expose direct` shows: all, none, or these. A list is shown beside the `mcp` tool, too.",
    ),
    Key(
        "toolOverrides",
        "tool_overrides",
        OVERRIDES_OF_ANY,
        "How tools of these names are shown otherwise, of whichever server has one ([below](#tools-shown-otherwise)).",
        True,
        "none",
    ),
    Key(
        "approve",
        "approve",
        APPROVE,
        "Which calls a person has to allow ([Approval](approval.md)); `*` and `?` match in a list.",
        True,
    ),
    Key(
        "approvalTimeoutMs", "approval_timeout", MILLISECONDS, "A person may take this long to allow a call."
    ),
    Key(
        "bootstrap",
        "bootstrap",
        FLAG,
        "Fetch the tools of servers that are still unknown, in the background.",
    ),
    Key(
        "firstListTimeoutMs",
        "first_list_timeout",
        MS_FROM_0,
        "A client's first list with `--expose direct`, and its searches with `mcp` that find nothing that fits well, "
        "wait this long for servers whose tools are unknown.",
    ),
    Key("maxLineBytes", "max_line", count("bytes", least=1024), "The longest line a server may write."),
    Key("stderrBytes", "stderr_ring", count("bytes", least=0), "How much of a server's stderr is kept."),
    Key("maxPages", "max_pages", count("pages"), "Pages that are read of one list."),
    Key("maxListBytes", "max_list_bytes", count("bytes", least=1024), "The size of all lists of one server."),
    Key(
        "maxListItems",
        "max_list_items",
        count("items"),
        "The number of tools, resources, templates and prompts of one server.",
    ),
    Key(
        "probeTimeoutMs",
        "probe_timeout",
        MILLISECONDS,
        "How long to ask a server which protocol era it speaks.",
    ),
    Key(
        "http",
        "",
        _OBJECT,
        "The HTTP door, `serve --http` (docs/http.md).",
        parts=(
            Key(
                "listen",
                "http_listen",
                TEXT,
                "Where `serve --http` listens when it is given no address: `127.0.0.1:8000`.",
                default="none",
            ),
            Key(
                "tokens",
                "http_tokens",
                TEXT_MAP,
                'The bearer tokens that are accepted, by name: `{"alice": "${ALICE_TOKEN}"}`. Expanded.',
            ),
            Key("tokenProfiles", "http_token_profiles", TEXT_MAP, "The profile that a token is bound to."),
            Key(
                "oauth",
                "",
                _OBJECT,
                "Accept the access tokens of an authorization server (docs/http.md).",
                parts=(
                    Key("issuer", "http_oauth_issuer", TEXT, "Its URL; without one there is no OAuth."),
                    Key(
                        "resource",
                        "http_oauth_resource",
                        TEXT,
                        "The URL by which clients know this gateway: `https://gateway.example/mcp`.",
                    ),
                    Key(
                        "audiences",
                        "http_oauth_audiences",
                        TEXTS,
                        "A token is for one of these.",
                        default="the resource",
                    ),
                    Key(
                        "jwksUrl",
                        "http_oauth_jwks",
                        TEXT,
                        "Where the issuer's keys are.",
                        default="what its metadata says",
                    ),
                    Key("scopes", "http_oauth_scopes", TEXTS, "Scopes that a token must have."),
                    Key(
                        "profileClaim",
                        "http_oauth_profile_claim",
                        TEXT,
                        "The claim that names its caller's profile.",
                    ),
                    Key(
                        "scopeProfiles",
                        "http_oauth_scope_profiles",
                        TEXT_MAP,
                        'The profile of a caller with a scope: `{"mcp:work": "work"}`.',
                    ),
                ),
            ),
            Key("hosts", "http_hosts", TEXTS, "Further names by which clients may address the gateway."),
            Key(
                "origins",
                "http_origins",
                TEXTS,
                "Web pages whose scripts may use it and read its answers (CORS): `https://app.example`.",
            ),
            Key(
                "sessionHeaders",
                "http_session_headers",
                SESSION_HEADERS,
                'Request headers that become a session\'s values: `{"x-github-token": "GITHUB_TOKEN"}`.',
            ),
            Key("metrics", "http_metrics", FLAG, "Count what happens, for `/metrics` (docs/http.md)."),
            Key("maxSessions", "http_max_sessions", count("sessions"), "Sessions open at once."),
            Key("sessionIdle", "http_session_idle", MINUTES, "A session without a message ends then."),
            Key("sessionLife", "http_session_life", MINUTES, "Every session ends after this long."),
            Key("maxBodyBytes", "http_max_body", count("bytes", least=1024), "The largest request."),
        ),
    ),
    Key("cacheMaxAgeDays", "cache_max_age", DAYS, "Older entries of the catalogue count as absent."),
    Key(
        "outputGuard",
        "",
        _OBJECT,
        "Cuts long output of the `mcp` tool; `false` = off, `true` = the defaults.",
        parts=(
            Key("maxBytes", "output_max_bytes", count("bytes", least=0), "0 = no limit."),
            Key("maxLines", "output_max_lines", count("lines", least=0), "0 = no limit."),
            Key(
                "maxImageBytes",
                "output_max_image",
                count("bytes", least=0),
                "An image with more base64 is scaled down, or kept as a file; 0 = no limit.",
            ),
            Key("keepHours", "output_keep", HOURS, "Files of long output are kept this long."),
            Key("keepBytes", "output_keep_bytes", count("bytes", least=0), "And as many bytes in all."),
        ),
    ),
)
SETTING_KEY: Final[Mapping[str, Key]] = {key.name: key for key in SETTING_KEYS}


# ---- The JSON Schema of a configuration file, made from the key tables ----------------------------------------------
#
# It is for editors, so it rejects only what the parser would complain about. Keys of other programs are allowed,
# since files are shared with those programs. It checks one combination, which is often wrong: a server has exactly
# one of command, url and socket. (An entry that changes one field of a weaker file's server has none of them, so
# the schema says "at most one".)


def config_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a configuration file; a fresh copy, yours to change."""
    servers = {"type": "object", "additionalProperties": {"$ref": "#/$defs/server"}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Greenroom configuration",
        "type": "object",
        "properties": {
            "mcpServers": {"description": "The servers, by name.", **servers},
            "imports": {
                "description": "Other programs whose servers are used too. For one name, the first program wins.",
                "type": "array",
                "items": {"enum": list(IMPORT_KINDS)},
            },
            "profiles": {
                "description": "What a client sees, by the name of its profile.",
                "type": "object",
                "additionalProperties": {
                    "type": "object",
                    "additionalProperties": False,
                    "patternProperties": {"^(//|#|\\$|_)": {}},
                    "properties": {
                        name: {"description": meaning, **schema}
                        for name, (meaning, schema) in PROFILE_KEYS.items()
                    },
                },
            },
            "settings": _object(SETTING_KEYS, Settings),
        },
        "$defs": {"server": {**_object(SERVER_KEYS, ServerDefinition), "not": {"anyOf": _pairs()}}},
    }


def default_of(key: Key, model: type[Any]) -> Any:
    """The model's default for a key, in the key's own unit; None when it has none."""
    default = getattr(attrs.fields(model), key.attribute).default
    if getattr(default, "takes_self", False):
        return None  # its default depends on another key
    return in_file_units(key, default.factory() if hasattr(default, "factory") else default)


def _object(keys: tuple[Key, ...], model: type[Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {key.name: _property(key, model) for key in keys}}


def _property(key: Key, model: type[Any]) -> dict[str, Any]:
    if key.parts:
        described = {"description": key.meaning, **_object(key.parts, model)}
        return {**described, "type": ["object", "boolean"]} if key.name == "outputGuard" else described
    default = default_of(key, model)
    said = {} if default is None or default == [] else {"default": default}
    unit = f" Unit: {key.reader.unit}." if key.reader.scale != 1 else ""
    return {"description": key.meaning + unit, **key.reader.schema, **said}


def _pairs() -> list[dict[str, Any]]:
    return [{"required": pair} for pair in (["command", "url"], ["command", "socket"], ["url", "socket"])]


PROFILE_KEYS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "servers": ("Its servers; `*` and `?` match. Without it: all.", TEXTS.schema),
    "tools": ("Its tools, of those servers; `*` and `?` match. Without it: all.", TEXTS.schema),
    "toolOverrides": (
        "By server: tools shown otherwise, on top of what the server's own entry says.",
        {"type": "object", "additionalProperties": OVERRIDES.schema},
    ),
    "expose": ("What its clients see: `proxy`, `direct` or `meta`.", {"enum": list(EXPOSURES)}),
}


SECTIONS: Final = ("mcpServers", "mcp-servers", "servers")
