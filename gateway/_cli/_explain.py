"""`greenroom explain`: why one server is as it is. It starts nothing.

`_why` puts into words what the status, its entry and the settings say; `_checks` finds what is wrong around it; and its
entry is shown with the place of each key, because what surprises is often in another file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from ...protocol.errors import UsageError
from ...protocol.plain_text import one_line
from ._common import common_options, load, no_such_server, open_source, show
from ._complete import complete_servers
from ._doctor import MARKS

if TYPE_CHECKING:
    from ...protocol.config import Config
    from .._setup._finding import Finding
    from .._setup._why import Reason


@click.command("explain")
@click.argument("server", shell_complete=complete_servers)
@common_options
def explain_command(server: str, config_path: Path | None, pid: int | None, as_json: bool) -> None:
    """Say why SERVER is as it is, and what happens next.

    What it does, what it waits for, how it last failed and when it is tried again; then what `greenroom doctor` finds
    about it, and its entry with the file of each key. What somebody has to do comes as a command.
    """
    from ...protocol.config_parse import redacted
    from ...protocol.status import status_from
    from .._setup._why import of_sessions, reasons

    config = load(config_path)
    if server not in config.servers and server not in config.broken:
        raise no_such_server(config, server)
    source = open_source(config_path, pid)
    status = source.status()
    row = next((row for row in status["servers"] if row["name"] == server), None)
    if row is None:
        text = f'The running gateway does not know the server "{server}" yet. Try again in a moment.'
        raise UsageError(text, server=server)
    definition = config.servers.get(server)
    runs = source.origin["source"] == "gateway"
    found = reasons(status_from(row), definition, config.settings, runs=runs)
    others = [one for one in status.get("addresses", ()) if one["name"] == server]
    found += of_sessions(map(status_from, others))
    findings = _findings(config, config_path, server)
    said = redacted(config)
    entry, places = said["mcpServers"].get(server, {}), said["sources"]["mcpServers"].get(server, {})
    details: dict[str, Any] = {
        "server": server,
        "reasons": [attrs.asdict(one) for one in found],
        "findings": [one.as_dict() for one in findings],
        "entry": entry,
        "sources": places,
        "status": row,
        "addresses": others,
        **source.origin,
    }
    show("\n".join(_lines(server, found, findings, entry, places)), details, as_json)


def _findings(config: Config, path: Path | None, server: str) -> list[Finding]:
    """What `greenroom doctor` finds about this server."""
    from .._setup._checks import examine
    from .._setup._finding import Setup

    if server not in config.servers:
        return []  # why it is broken is said already
    only = attrs.evolve(config, servers={server: config.servers[server]}, broken={})
    key = f": mcpServers.{server}"
    found = examine(Setup(only, path, os.environ))
    return [one for one in found if one.about == server or one.about.endswith(key) or f"{key}." in one.about]


def _lines(
    server: str,
    reasons: Sequence[Reason],
    findings: Sequence[Finding],
    entry: Mapping[str, Any],
    places: Mapping[str, str],
) -> Iterator[str]:
    yield server
    for reason in reasons:
        yield f"  {one_line(reason.what)}"
        if reason.step is not None:
            yield f"    → {reason.step}"
    for one in findings:
        place = "" if one.about == server else f"{one.about}: "
        yield f"{MARKS[one.severity.value]} {one_line(place + one.what)}"
        yield f"    → {one.mend}"
    if entry:
        yield f"its entry, from {', '.join(dict.fromkeys(places.values())) or 'the program'}:"
    shared = len(set(places.values())) < 2
    for key, value in entry.items():
        where = "" if shared or key not in places else f" ({places[key]})"
        yield f"  {one_line(f'{key}: {json.dumps(value, ensure_ascii=False)}{where}')}"
