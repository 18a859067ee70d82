"""Writes a server into one of our own files, and takes it out again. Everything else in the file stays as it is."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from ..config.command_faults import file_of
from ..config.files import find_files, own_file, working_directory
from ..config.keys import SECTIONS
from ..config.parse import parse_config
from ..config.private_files import alone
from ..config.references import is_url as is_address
from ..protocol.errors import ConfigError, UsageError
from ..protocol.json_values import is_object
from . import file_edits
from .client_files import OURS, decoded, meaning, with_member, without_member

_URLS: Final = ("http://", "https://")
_HOST_AND_PORT: Final = re.compile(r"[A-Za-z0-9.-]+:\d+(/|$)")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


@attrs.frozen
class TypedServer:
    """A server as the person typed it: its command or address, and what it is given."""

    name: str
    words: Sequence[str]
    env: Sequence[str] = ()
    headers: Sequence[str] = ()
    transport: str | None = None
    openapi: str | None = None

    def entry(self, here: Path) -> dict[str, Any]:
        """The entry for it, typed in the folder `here`. Raises `UsageError` for words that make no entry."""
        first, *rest = self.words
        env = dict(_pair(text, "=", "--env NAME=VALUE") for text in self.env)
        headers = dict(_pair(text, ":", '--header "NAME: VALUE"') for text in self.headers)
        if first.startswith("{") and not rest:
            entry = _object(first)
        elif first.lower().startswith(_URLS):
            if rest:
                raise UsageError(f"Nothing may follow an address. Leave this out: {' '.join(rest)}")
            entry = {"url": first} | ({"type": "sse"} if self.transport == "sse" else {})
        elif (scheme := _SCHEME.match(first)) is not None:
            what = f"A server is reached at an http:// or https:// address, and {scheme[0]} is neither."
            raise UsageError(f"{what} Give its http address, or the command that starts it.")
        elif _HOST_AND_PORT.match(first) is not None and not rest:
            raise UsageError(f"{first} is an address without its beginning. Type: http://{first}")
        else:
            if self.transport not in (None, "stdio"):
                raise UsageError(f"--transport {self.transport} needs an address (http://…), and no command.")
            entry: dict[str, Any] = {"command": _of_environment(first)} | ({"args": rest} if rest else {})
            if any(_is_here(word, here) for word in self.words):
                entry["cwd"] = str(here)
        is_url = "url" in entry
        if self.openapi is not None:
            entry = _with_document(entry, self.openapi, here, is_url=is_url and self.transport is None)
        if is_url and (env or self.transport == "stdio"):
            given = "--env" if env else "--transport stdio"
            raise UsageError(f"{given} is for a command that is started here. To an address, give --header.")
        if headers and not is_url:
            raise UsageError("--header is for an address (http://…). To a command, give --env.")
        entry |= {
            key: {**entry.get(key, {}), **value}
            for key, value in (("env", env), ("headers", headers))
            if value
        }
        _check(self.name, entry)
        return entry


def our_files(path: Path | None) -> tuple[Path, list[Path]]:
    """The file that a server is written into, and all of ours that count. `path`: the one that was named."""
    home, cwd = Path.home(), working_directory(path)
    if path is not None:
        file = cwd / path.expanduser()
        return file, [file]
    return own_file(home, os.environ), find_files(cwd=cwd, home=home, environ=os.environ)


def _of_environment(command: str) -> str:
    """The command with its whole path, if it is one of the virtual environment that is activated: whoever starts it
    later has another PATH. Else as it is."""
    environment = os.environ.get("VIRTUAL_ENV")
    found = shutil.which(command) if environment and os.path.basename(command) == command else None
    return found if found and Path(found).parent.parent == Path(environment or "") else command


def _with_document(entry: dict[str, Any], document: str, here: Path, *, is_url: bool) -> dict[str, Any]:
    """The entry of the HTTP API that this document describes; a file stays the same one wherever the entry stands."""
    if not is_url:
        raise UsageError("--openapi needs the address of an API (http://…), without --transport.")
    if not is_address(document) and not (here / document).is_file():
        raise UsageError(f"There is no document {document}.")
    place = document if is_address(document) else os.path.abspath(here / document)
    return {"openapi": place, "baseUrl": entry["url"], **{k: v for k, v in entry.items() if k != "url"}}


def doubts(name: str, entry: dict[str, Any], here: Path) -> list[str]:
    """What may keep an entry from working that could be written all the same."""
    config = parse_config({OURS: {name: entry}}, source="the entry", strict=False)
    found = [str(problem) for problem in config.problems]
    command: Any = entry.get("command")
    env: dict[str, Any] = entry.get("env") or {}
    folder = os.path.join(here, entry.get("cwd") or "")
    is_whole = isinstance(command, str) and "$" not in command
    if is_whole and file_of(command, folder, env.get("PATH") or os.environ.get("PATH")) is None:
        found.append(f"{command} is not found here. Install it, or give its whole path.")
    return found


def put(file: Path, name: str, entry: dict[str, Any], *, replace: bool) -> bool:
    """Write the entry into the file, which is made if need be. Returns whether it replaced another one.

    Raises `UsageError` when there is one and it may not be replaced; `CannotEdit`, `ConfigError`, `FileChanged` or
    `OSError`.
    """
    Path(os.path.realpath(file)).parent.mkdir(parents=True, exist_ok=True)  # the folder is what is locked
    with alone(file):
        before = file_edits.read(file)
        text = decoded(file, before)
        section = _section_of(file, text, name)
        there = section is not None
        if there and not replace:
            what = f'"{name}" is in {file} already. To write this in its place, type the same with --force.'
            raise UsageError(what, server=name)
        new = with_member(file, text, (section or _first_section(file, text), name), entry)
        file_edits.replace(file, before, new.encode("utf-8"))
        return there


def drop(file: Path, name: str) -> bool:
    """Take the entry out of the file. Returns whether it was there. Raises what `put` does."""
    with alone(file):
        before = file_edits.read(file)
        text = decoded(file, before)
        section = _section_of(file, text, name)
        if section is None:
            return False
        file_edits.replace(file, before, without_member(file, text, (section, name)).encode("utf-8"))
        return True


def has(file: Path, name: str) -> bool:
    """Whether the file has an entry of this name. Raises `CannotEdit`, `ConfigError` or `OSError`."""
    return _section_of(file, decoded(file, file_edits.read(file)), name) is not None


def others_with(name: str, files: Iterable[Path], besides: Path) -> list[Path]:
    """Those of the files that also have an entry of this name. A file that cannot be read has none."""
    found: list[Path] = []
    for file in files:
        try:
            found += [file] if file != besides and has(file, name) else []
        except (ConfigError, UsageError, OSError):
            continue
    return found


def _section_of(file: Path, text: str, name: str) -> str | None:
    said = meaning(file, text)
    return next((each for each in SECTIONS if is_object(said.get(each)) and name in said[each]), None)


def _first_section(file: Path, text: str) -> str:
    said = meaning(file, text)
    return next((each for each in SECTIONS if is_object(said.get(each))), OURS)


def _pair(text: str, mark: str, form: str) -> tuple[str, str]:
    name, found, value = text.partition(mark)
    if not found or not name.strip():
        # It may hold a secret, so it is not repeated.
        raise UsageError(f"An option is not of the form {form}.")
    return name.strip(), value.strip() if mark == ":" else value


def _object(text: str) -> dict[str, Any]:
    try:
        found: Any = json.loads(text)
    except ValueError as error:
        raise UsageError(f"The entry is not JSON: {error}.") from None
    if not is_object(found):
        raise UsageError("The entry is not a JSON object.")
    return {**found}


def _is_here(word: str, here: Path) -> bool:
    """Whether the word names a file of this folder, so that it means nothing or something else in another folder."""
    return not os.path.isabs(word) and (word.startswith(("./", "../")) or (here / word).is_file())


def _check(name: str, entry: dict[str, Any]) -> None:
    """Check that the entry could be used. Raises `UsageError`."""
    config = parse_config({OURS: {name: entry}}, source="what was typed", strict=False)
    if (problem := config.broken.get(name)) is not None:
        raise UsageError(f'"{name}" could not be used: {problem.in_words}.', server=name)
