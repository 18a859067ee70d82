"""The keys of the settings, which count for the whole room, as data (`_config_keys`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ._config_key import Key
from ._config_server_keys import APPROVE, CALLS, INSTALLS, MS_FROM_0, NPX
from .config import SHORTEST_NAME, Isolation, Pinning, PrefixMode, RestartPolicy, Scrub
from .config_readers import (
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
    Reader,
    count,
    word,
)
from .overrides import OVERRIDES_OF_ANY

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
        "Fetch the tools of servers that are still unknown, once, in the background.",
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
