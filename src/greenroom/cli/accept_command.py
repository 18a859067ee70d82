"""`greenroom accept`: show how tools, skills, prompts and resources have changed, and take them as they are now.

The definitions are those that the running gateway shows its clients, or, without one, those that are known for the
variables and the folder of this command. They are shown from the catalogue, each value as JSON in ASCII, so that
nothing in them can hide on a terminal. Only what was shown is accepted: a tool whose present definition the catalogue
does not have, or that changes again in between, stays as it was.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from ..catalogue.fingerprints import (
    PinKey,
    accepted_with,
    agree,
    changes,
    flapping_in_words,
    pinned_records,
    prints_of,
    shown_of,
)
from ..gateway.doors.control_client import GatewayError
from ..protocol.errors import UsageError
from ..safety.pins_file import ServerPins
from .completion import complete_servers
from .config_reading import load_asked
from .json_shapes import Shape, says
from .missing_servers import check_usable
from .printing import say, show
from .running_gateways import running_gateway
from .shared_options import common_options
from .typed_options import commands_typed

if TYPE_CHECKING:
    from ..config.model import Config
    from ..gateway.offline_catalogue import OfflineCatalogue


class AcceptedJson(Shape, kw_only=True):
    """A tool, skill, prompt or resource that is not as it was first shown."""

    server: Annotated[str, says("its server")]
    tool: Annotated[str, says("the server's own name for it")]
    parts: Annotated[list[str], says("what has changed")]
    was: Annotated[dict[str, Any] | None, says("its definition before that, if it is known")]


class AcceptJson(Shape, kw_only=True):
    """What has changed."""

    changed: Annotated[list[AcceptedJson], says("those that were shown")]
    accepted: Annotated[list[str], says("those that were accepted now, by their servers' names for them")]


@click.command("accept")
@click.argument("server", required=False, shell_complete=complete_servers)
@click.argument("tool", required=False)
@click.option("--show", "only_look", is_flag=True, help="Show what has changed, and accept nothing.")
@common_options
def accept_command(
    server: str | None,
    tool: str | None,
    only_look: bool,
    config_path: Path | None,
    pid: int | None,
    as_json: bool,
) -> int:
    """Accept tools, skills, prompts and resources whose definitions have changed.

    A definition that has changed since it was first shown is in quarantine: it cannot be used. This shows how TOOL (or
    a skill, a prompt, the URI of a resource) of SERVER is now, or everything of SERVER that has changed, and accepts
    it. Without SERVER it shows all changes and accepts none.
    """
    from ..catalogue.store import default_cache_path, pin_keys
    from ..gateway.offline_catalogue import open_catalogue
    from ..safety.pins_file import pins_file

    config = load_asked(config_path, pid)
    if server is not None:
        check_usable(config, server)
    known = {**pin_keys(config), **_keys_of_gateway(config, pid)}
    keys = {name: key for name, key in known.items() if server in (None, name)}
    file, catalogue = pins_file(default_cache_path()), open_catalogue(config, known)
    pins, warning = file.load(keys)
    if warning is not None:
        raise UsageError(warning)
    found = {name: one for name, one in pins.items() if one.changed}
    chosen = None if tool is None or server is None else _chosen(catalogue, server, tool, found)
    lines = [line for name in found for line in _lines(catalogue, name, found[name], chosen)]
    details = AcceptJson(
        changed=[each for name in found for each in _details(name, found[name], chosen)], accepted=[]
    )
    if server is None or only_look or not found:
        one = () if tool is None else (tool,)
        then = (
            ["", *(f"To accept: {commands_typed().live('accept', name, *one)}" for name in found)]
            if found
            else []
        )
        show("\n".join([*lines, *then]) or _nothing(server), details, as_json)
        return 0
    shown = _shown(catalogue, server, found[server])
    taken: list[str] = []

    def accept(_: str, now: ServerPins | None) -> ServerPins | None:
        if now is not None:
            taken.extend(now.accept(chosen, shown))
        return now

    _, warning = file.change(keys, accept) if shown else ({}, None)
    if warning is not None:
        raise UsageError(warning)
    details.accepted = taken
    left = [pin for pin in _chosen_of(found[server], chosen) if pin not in taken]
    told = [f"Accepted: {', '.join(taken)}. A running gateway notices it."] if taken else []
    if left:
        told.append(f"Not accepted, because what it is now was not shown: {', '.join(left)}.")
    show("\n".join([*lines, "", *told]), details, as_json)
    return int(bool(left))


def _keys_of_gateway(config: Config, pid: int | None) -> dict[str, PinKey]:
    """The keys under which a running gateway has its servers. Its variables may have other values than those here, and
    what is accepted is what its clients are shown. Empty: no gateway runs, or it cannot be asked."""
    try:
        gateway = running_gateway(config, pid)
        said: Mapping[str, list[str]] = {} if gateway is None else gateway.ask("keys", quickly=True)
    except GatewayError as error:
        say(error.message)
        return {}
    return {name: PinKey(*of) for name, of in said.items() if name in config.servers}


def _nothing(server: str | None) -> str:
    where = "" if server is None else f" of {server}"
    return f"There is nothing to accept: nothing{where} has changed since it was first shown."


def _chosen(
    catalogue: OfflineCatalogue, server: str, tool: str, found: Mapping[str, ServerPins]
) -> list[str]:
    """The names under which `tool` is remembered, and what is accepted with it. Raises `UsageError`."""
    changed = found[server].changed if server in found else {}
    pin = tool if tool in changed else catalogue.index.pin_of(tool, server)
    if pin is None:
        names = ", ".join(changed) or "none"
        raise UsageError(
            f'Server "{server}" has no tool "{tool}" that is known. Changed tools: {names}.', server=server
        )
    return accepted_with(pin, changed)


def _chosen_of(pins: ServerPins, chosen: Collection[str] | None) -> Iterator[str]:
    return (pin for pin in pins.changed if chosen is None or pin in chosen)


def _shown(catalogue: OfflineCatalogue, server: str, pins: ServerPins) -> dict[str, str]:
    """Those of the changed definitions that the catalogue has, and that can be shown."""
    prints = prints_of(catalogue.entry(server), pins.changed)
    return {tool: print_ for tool, print_ in prints.items() if agree(pins.changed[tool], print_)}


def _lines(
    catalogue: OfflineCatalogue, server: str, pins: ServerPins, chosen: Collection[str] | None
) -> Iterator[str]:
    entry = catalogue.entry(server)
    records = pinned_records(entry)
    shown = _shown(catalogue, server, pins)
    for tool in _chosen_of(pins, chosen):
        print_ = pins.changed[tool]
        parts = ", ".join(changes(pins.tools.get(tool, ""), print_, tool)) or "its definition"
        if tool in shown:
            yield f"{json.dumps(server)} {json.dumps(tool)} has changed: {parts}. It is now:"
            yield from _definition(shown_of(tool, records[tool]), pins.was.get(tool))
        else:
            yield f"{json.dumps(server)} {json.dumps(tool)} has changed: {parts}."
            what = (
                "not in the catalogue any more"
                if entry is None or tool in records
                else "not listed at present"
            )
            yield f"  {what}; to read it again: {commands_typed().about('refresh', server)}"
        if tool in pins.flapping:
            yield f"  {flapping_in_words(server, [tool])}"


def _definition(now: Mapping[str, object], was: Mapping[str, object] | None) -> Iterator[str]:
    """Each part of a definition, and how it was if that is known."""
    for key in now if was is None else {**now, **was}:
        if was is not None and now.get(key) != was.get(key):
            yield f"  {key} was: {json.dumps(was.get(key))}"
        yield f"  {key}: {json.dumps(now.get(key))}"


def _details(server: str, pins: ServerPins, chosen: Collection[str] | None) -> Iterator[AcceptedJson]:
    for tool in _chosen_of(pins, chosen):
        parts = changes(pins.tools.get(tool, ""), pins.changed[tool], tool)
        was = pins.was.get(tool)
        yield AcceptedJson(
            server=server, tool=tool, parts=list(parts), was=None if was is None else dict(was)
        )
