"""The keys of a server's entry, as data (`_config_keys`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ._config_key import Key
from ._config_oauth import LOGIN_KEYS
from ._config_request_headers import REQUEST_HEADERS
from .config import (
    Approve,
    Era,
    HttpTransport,
    Isolation,
    Lifecycle,
    Pinning,
    PrefixMode,
    RestartPolicy,
    Scrub,
)
from .config_readers import (
    CHOICE,
    ENVIRONMENT,
    FLAG,
    MILLISECONDS,
    MINUTES,
    TEXT,
    TEXTS,
    VALUE_MAP,
    VALUES,
    count,
    number,
    word,
    word_or_names,
)
from .overrides import OVERRIDE_KEY

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
    Key("bootstrap", "bootstrap", FLAG, "Fetch its tools once, in the background, if they are unknown."),
    Key("disabled", "disabled", FLAG, "Only the literal `true` takes it out of service."),
)

SERVER_KEY: Final[Mapping[str, Key]] = {key.name: key for key in SERVER_KEYS}
