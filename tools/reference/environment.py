"""The page of the variables of the environment that Greenroom reads, and those that it gives to what it starts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tools.arrows import ROOMS
from tools.package_tree import PACKAGE, folder_of

from .markdown import from_docs, page, table

# By heading: a variable, or several -> what it does. The first part is in the man page, too.
VARIABLES: Final[Mapping[str, Mapping[str, str]]] = {
    "What commands print": {
        "NO_COLOR": "Print no colours.",
        "COLUMNS": "The width of the window.",
        "GREENROOM_DEBUG": "Show the traceback of an error that is a bug in Greenroom.",
    },
    "Folders": {
        "XDG_CONFIG_HOME": "The folder of your own configuration, `greenroom/mcp.json` in it; else `~/.config`.",
        "XDG_CACHE_HOME": "The folder of the catalogue, long output and control sockets; else `~/.cache` "
        "(macOS: `~/Library/Caches`).",
        "XDG_STATE_HOME": "The folder of the background gateway's log, and of the files that `init` has changed; else "
        "`~/.local/state` (macOS: `~/Library/Application Support`).",
        "XDG_DATA_HOME": "The folder of logins; else `~/.local/share` (macOS: `~/Library/Application Support`).",
        "HOME": "What a leading `~` in a configuration stands for.",
        "CODEX_HOME, COPILOT_HOME, PI_CODING_AGENT_DIR": "The folders in which `init` and [imports](imports.md) look "
        "for the files of Codex, the Copilot CLI and pi.",
        "MCP_OAUTH_DIR": "The folder of pi's logins; it goes before the setting "
        "[`oauthDir`](reference/settings.md#oauthdir).",
    },
    "Network": {
        "SSL_CERT_FILE, SSL_CERT_DIR": "The certificates to trust, instead of the usual ones.",
        "HTTP_PROXY, HTTPS_PROXY, ALL_PROXY": "The proxy to a server with a `url` ([which addresses](servers.md"
        "#where-it-is)). Lower case works, too.",
        "NO_PROXY": "The hosts that are reached without a proxy.",
    },
    "Programs": {
        "PATH": "Where `command` is looked for, unless the server's `env` has another `PATH`.",
        "VIRTUAL_ENV": "`greenroom add` writes a command of this virtual environment with its whole path.",
        "BROWSER, DISPLAY, WAYLAND_DISPLAY, SSH_CONNECTION, CI": "Whether `greenroom auth` opens a browser, or prints "
        "the address.",
    },
    "Tracing": {
        "OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_HEADERS": "The collector of [`serve --otlp`](tracing.md), and "
        "headers for it.",
        "OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES": "The name of the service in traces, instead of `greenroom`, and "
        "more attributes.",
        "OTEL_SDK_DISABLED": "`true`: nothing is sent. OpenTelemetry reads more variables of its own.",
    },
    "A cluster": {
        "RAY_ADDRESS": "The address of the Ray cluster, if the command names none ([many machines](cluster.md)).",
        "RAY_USE_TLS, RAY_TLS_SERVER_CERT, RAY_TLS_SERVER_KEY, RAY_TLS_CA_CERT": "Whether links between machines are "
        "encrypted, and with which files.",
    },
    "What Greenroom gives to programs": {
        "GREENROOM_ROOM": "In each server: the id of the room that started it. `greenroom attach` reads it and tells "
        "it to the gateway.",
        "GREENROOM_INCARNATION": "In each server: the room, the server and the number of its start.",
        "GREENROOM_DEPTH": "In each server: how many rooms are above it. A gateway behind more than four refuses to "
        "start, because a configuration then starts itself.",
        "GREENROOM_MCP_URL, GREENROOM_MCP_CONFIG": "In the agent that [`greenroom explore`](what-if.md) starts: the "
        "address of the gateway, and a configuration that names it.",
        "GREENROOM_LOCAL_RAY": "In the processes of a Ray cluster for a demo or a test: which one they belong to.",
    },
}
_OURS: Final = re.compile(r"(?<![_A-Z])GREENROOM_[A-Z_]*[A-Z]")


def variable_page(root: Path) -> str:
    """The page. Raises AssertionError if it has not each variable of ours that the code names, or has another one."""
    told = {name for part in VARIABLES.values() for names in part for name in names.split(", ")}
    ours = {name for name in told if name.startswith("GREENROOM_")}
    assert ours == named(root), f"variables of the code and of the page differ: {ours ^ named(root)}"
    return page(
        "# Environment variables",
        from_docs(
            "What Greenroom reads from its own environment, apart from the variables that "
            "[your configuration names](secrets.md#variables-a-token-in-a-header-a-path-an-argument). A server gets "
            "[an environment of its own](secrets.md#the-environment-of-a-program). A folder that is no absolute path "
            "does not count. The background gateway has the environment of the client that started it."
        ),
        *(text for heading, rows in VARIABLES.items() for text in (f"## {heading}", _table(rows))),
    )


def named(root: Path) -> set[str]:
    """The names of variables of ours in the code of the package."""
    folders = (root / PACKAGE, *(folder_of(root, room) for room in ROOMS))
    files = {file for folder in folders for file in folder.rglob("*.py")}
    return {name for file in files for name in _OURS.findall(file.read_text(encoding="utf-8"))}


def _table(rows: Mapping[str, str]) -> str:
    return table(
        ("variable", "meaning"),
        [
            (", ".join(f"`{name}`" for name in names.split(", ")), from_docs(said))
            for names, said in rows.items()
        ],
    )
