"""`greenroom trust`: show what the files of this directory's project would do, and remember their owner's answer.

Everything that matters in a file is shown but secrets (`config.trust`), each value as JSON in ASCII, so that
nothing in it can hide on a terminal. What is remembered is what was read for it: the files are read once.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from ..config.scrubbing import REDACTED
from ..config.trust import shown_matter
from ..protocol.errors import UsageError
from .json_shapes import Object, Shape, says
from .printing import say, show, show_json, tell
from .running_gateways import reload_gateways
from .shared_options import config_option
from .typed_options import commands_typed

if TYPE_CHECKING:
    from ..config.trust import Agreements, ProjectFile


class ProjectFileJson(Shape, kw_only=True):
    """A file of this project."""

    file: Annotated[str, says("the file")]
    directory: Annotated[str, says("the folder that it was looked for in")]
    trusted: Annotated[bool, says("it is obeyed")]
    matters: Annotated[Object, says("what in it would start, send or read something, without secrets")]


class TrustJson(Shape, kw_only=True):
    """The files of this project. The exit code is 1 when one is not trusted."""

    files: Annotated[list[ProjectFileJson], says("those that need to be trusted")]


class AgreementJson(Shape, kw_only=True):
    """A file that is trusted."""

    file: Annotated[str, says("the file")]
    directory: Annotated[str, says("the folder where it is obeyed")]
    since: Annotated[int, says("when it was trusted", "s since 1970")]


class AgreementsJson(Shape, kw_only=True):
    """Everything that is trusted."""

    trusted: Annotated[list[AgreementJson], says("in the order of the files' names")]


class RevokedJson(Shape, kw_only=True):
    """What is trusted no longer."""

    revoked: Annotated[list[str], says("the files")]


@click.command("trust")
@click.option("--yes", "--trust", "agreed", is_flag=True, help="Trust the files without asking.")
@click.option("--revoke", is_flag=True, help="Take back what was trusted in this directory.")
@click.option("--list", "listing", is_flag=True, help="List everything that is trusted, in all directories.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, and ask nothing.")
@config_option
def trust_command(
    agreed: bool, revoke: bool, listing: bool, as_json: bool, config_path: Path | None
) -> int | None:
    """Decide whether the configuration of this directory may be used.

    It shows what the files would start, send and read, and asks you. Nothing in them is used before you agree. When
    they change, you are asked again.
    """
    from ..config.files import project_asks, working_directory
    from ..config.trust import Agreements, trust_file

    if agreed + revoke + listing > 1:
        raise UsageError("--yes, --revoke and --list do not go together. Give one of them.")
    cwd, home = working_directory(config_path), Path.home()
    agreements = Agreements(trust_file(home, os.environ))
    known = agreements.read()
    if agreements.warning is not None:
        raise UsageError(f"{agreements.path} cannot be used: {agreements.warning}.")
    if listing:
        _list(known, as_json)
        return None
    if revoke:
        _revoke(agreements, str(cwd), as_json)
        return None
    files = project_asks(config_path, cwd=cwd, home=home, environ=os.environ, platform=sys.platform)
    new = [one for one in files if one.digest is None or one.digest not in known]
    if as_json:
        if agreed:
            agreements.add(new)
            reload_gateways()
        show_json(TrustJson(files=[_as_json(one, agreed or one.digest in known) for one in files]))
        return int(any(not agreed for _ in new))
    return _decide(agreements, files, new, agreed)


def _decide(
    agreements: Agreements, files: Sequence[ProjectFile], new: Sequence[ProjectFile], agreed: bool
) -> int:
    """Show what is new, and remember the answer. Returns the exit code: 1 when it is not trusted."""
    if not new:
        told = (
            "Everything in it is trusted." if files else "It has no configuration that needs to be trusted."
        )
        tell(f"Nothing to decide in this directory. {told}")
        return 0
    for one in new:
        click.echo("\n".join(shown(one)) + "\n")
    possible = [one for one in new if one.digest is not None]
    if len(possible) < len(new):
        say("a file above cannot be compared later, so it cannot be trusted: write it anew.")
    if not agreed:
        if not sys.stdin.isatty():
            raise UsageError("Nobody can answer here. Read the above, then run: greenroom trust --yes")
        if not click.confirm("Trust this?", default=False, err=True):
            say("not trusted; nothing of it is used.")
            return 1
    agreements.add(possible)
    reload_gateways()
    step = commands_typed().about("trust", options=("--revoke",))
    tell(f"Trusted. To take it back: {step}")
    return int(len(possible) < len(new))


def shown(one: ProjectFile) -> Iterator[str]:
    """What matters in a file: a line for each value, and where to read what is hidden."""
    matter = shown_matter(one.matter)
    yield _safe(one.file)
    for name, entry in matter.get("mcpServers", {}).items():
        yield f"  server {_safe(name)} {_what_it_does(entry)}"
        for key, value in entry.items():
            yield f"    {_safe(key)}: {json.dumps(value, default=str)}"
    for key, value in matter.items():
        if key == "envFiles":
            yield from _variables_shown(value)
        elif key == "documents":
            yield from _documents_shown(value)
        elif key != "mcpServers":
            what = "reads the servers of other programs: " if key == "imports" else f"sets {key}: "
            yield f"  {what}{json.dumps(value, default=str)}"
    if REDACTED in json.dumps(matter, default=str):
        yield f"  {REDACTED} stands for what may be a secret. The file has it."


def _variables_shown(files: Mapping[str, Mapping[str, str] | None]) -> Iterator[str]:
    for file, variables in files.items():
        yield f"  variables of {_safe(file)}" + (": it cannot be read" if variables is None else "")
        for name, value in (variables or {}).items():
            yield f"    {_safe(name)}: {json.dumps(value)}"


def _documents_shown(files: Mapping[str, str | None]) -> Iterator[str]:
    """A document may have megabytes, so its owner is told which it is, and reads it where it stands."""
    for file, print_ in files.items():
        yield f"  document {_safe(file)}: {'it cannot be read' if print_ is None else f'SHA-256 {print_}'}"


def _what_it_does(entry: Mapping[str, Any]) -> str:
    if "command" in entry:
        return "runs a program"
    if {"url", "serverUrl", "httpUrl"} & entry.keys():
        return "sends requests"
    return "opens a socket" if "socket" in entry else "changes a server"


def _safe(text: str) -> str:
    return json.dumps(text) if not (text.isascii() and text.isprintable()) else text


def _as_json(one: ProjectFile, trusted: bool) -> ProjectFileJson:
    return ProjectFileJson(
        file=one.file,
        directory=one.directory,
        trusted=trusted and one.digest is not None,
        matters=shown_matter(one.matter),
    )


def _list(known: Mapping[str, Mapping[str, Any]], as_json: bool) -> None:
    rows = sorted(known.values(), key=lambda each: str(each.get("file")))
    files = "\n".join(_safe(str(each.get("file"))) for each in rows)
    show(files or "Nothing is trusted.", {"trusted": rows}, as_json, AgreementsJson, ours=False)


def _revoke(agreements: Agreements, directory: str, as_json: bool) -> None:
    gone = agreements.forget(directory)
    if gone:
        reload_gateways()
    told = "\n".join(f"No longer trusted: {_safe(file)}" for file in gone)
    show(told or "Nothing was trusted in this directory.", RevokedJson(revoked=gone), as_json)
