"""`greenroom explain`: why one server is as it is. It starts nothing.

`_why` puts into words what the status, its entry and the settings say: in the running gateway, if there is one.
`_checks` finds what is wrong around it. Its entry is shown with the place of each key, because what surprises is often
in another file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...protocol.errors import UsageError
from ...protocol.plain_text import one_line
from ._common import commands_typed, common_options, load, no_such_server, open_source
from ._complete import complete_servers
from ._doctor import MARKS
from ._tables import show_lines

if TYPE_CHECKING:
    from ...protocol.config import Config
    from .._setup._finding import Finding


@click.command("explain")
@click.argument("server", shell_complete=complete_servers)
@common_options
def explain_command(server: str, config_path: Path | None, pid: int | None, as_json: bool) -> None:
    """Say why SERVER is as it is, and what happens next.

    What it does, what it waits for, how it last failed and when it is tried again; then what `greenroom doctor` finds
    about it, and its entry with the file of each key. What somebody has to do comes as a command.
    """
    from ...protocol.config_parse import redacted

    config = load(config_path)
    if server not in config.servers and server not in config.broken:
        raise no_such_server(config, server)
    source = open_source(config_path, pid, config)
    typed = commands_typed()
    found = source.explain(server, typed)
    if "status" not in found:
        text = f'The running gateway does not know the server "{server}" yet. Try again in a moment.'
        step = f"If it still does not: {typed.about('doctor')}"
        raise UsageError(f"{text} {step}", server=server)
    if server in config.broken and found["status"]["status"] not in ("broken", "untrusted"):
        what = f"As read here its entry cannot be used: {config.broken[server]}. The gateway has read it otherwise."
        found["reasons"].insert(0, {"what": what, "step": None})
    findings: list[Finding] = []
    if server in config.servers:
        findings = _findings(config, config_path, server, found["status"])
    said = redacted(config)
    entry, places = said["mcpServers"].get(server, {}), said["sources"]["mcpServers"].get(server, {})
    details: dict[str, Any] = {
        "server": server,
        **found,
        "findings": [one.as_dict() for one in findings],
        "entry": entry,
        "sources": places,
        **source.origin,
    }
    show_lines(_lines(server, found["reasons"], findings, entry, places), details, as_json)


def _findings(config: Config, path: Path | None, server: str, row: Mapping[str, Any]) -> list[Finding]:
    from .._setup._checks import examine_one
    from .._setup._finding import Setup

    return examine_one(Setup(config, path, os.environ, commands_typed()), server, row)


def _lines(
    server: str,
    reasons: Sequence[Mapping[str, Any]],
    findings: Sequence[Finding],
    entry: Mapping[str, Any],
    places: Mapping[str, str],
) -> Iterator[str]:
    yield server
    for reason in reasons:
        yield f"  {one_line(reason['what'])}"
        if reason["step"] is not None:
            yield f"    → {one_line(reason['step'])}"
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
