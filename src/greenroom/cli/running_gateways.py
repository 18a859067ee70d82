"""The gateways that run: the one of a configuration, those of others, and the one that goes on in the background."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..gateway.doors.control_protocol import name_of
from ..protocol.errors import GreenroomError, UsageError
from ..protocol.safe_text import one_line
from .printing import say

if TYPE_CHECKING:
    from ..config.model import Config
    from ..gateway.doors import control_client as control
    from ..gateway.doors.background_gateway import RoomPlace
    from ..gateway.doors.control_client import GatewayError

_RELOADED_WITHIN: Final = 5.0  # seconds for a gateway to read its configuration again


def running_gateway(config: Config, pid: int | None) -> control.Gateway | None:
    """The gateway to ask, if one runs. The connection is closed when the command ends. Raises `UsageError`
    when no gateway has that `pid`."""
    import click

    from ..gateway.doors.control_client import find_gateway

    gateway = find_gateway(name_of(config), pid)
    return None if gateway is None else click.get_current_context().with_resource(gateway)


def room_of(config: Config, path: Path | None) -> RoomPlace:
    """The place of the background gateway of `config`, which was read from `path` or found."""
    from ..config.files import project_files, working_directory
    from ..gateway.doors.background_gateway import room_place

    cwd = working_directory(path)
    near = project_files(config, cwd=cwd, home=Path.home(), environ=os.environ)
    return room_place(config, path, cwd, of_project=any(file not in config.left_out for file in near))


def say_elsewhere(config: Config) -> dict[str, Any]:
    """Name the gateways that run for other configurations, and how to see one of them: `status` names all, any other
    command those that no command has named in the last day. Returns them, for `--json`."""
    import attrs
    import click

    from ..gateway.doors.control_client import find_elsewhere
    from .warnings_file import not_told_lately

    name, command = name_of(config), click.get_current_context().info_name
    found = find_elsewhere(name)
    shows = "tools" if command == "tools" else "status"  # others need more words
    new = not_told_lately([str(one) for one in found], name)
    for one in found:
        if command == "status" or str(one) in new:
            say(elsewhere_in_words(one, shows))
    return {"elsewhere": [attrs.asdict(one) for one in found]} if found else {}


def elsewhere_in_words(gateway: control.OtherGateway, command: str = "status") -> str:
    where = f" in {one_line(gateway.folder)}" if gateway.folder else ""
    return f"a gateway of another configuration runs{where}: greenroom {command} --pid {gateway.pid}"


def reload_gateways() -> None:
    """Make every running gateway read its configuration now, which has just been written, and wait until it uses that.
    A file may be part of many configurations. Say of each gateway that does not use it yet; raise nothing, because what
    was to be written is written."""
    from ..gateway.doors.control_client import SILENT, GatewayLost, ask_each, find_gateways

    lost: list[GatewayError] = []
    try:
        gateways = find_gateways(None, lost.append)
    except UsageError as error:
        say(error.message)
        return
    with ExitStack() as stack:
        for gateway in gateways:
            stack.enter_context(gateway)
        answers = ask_each(gateways, "reload", _RELOADED_WITHIN)
    for gateway, answer in zip(gateways, answers, strict=True):
        if isinstance(answer, GatewayLost):
            lost.append(answer)
        elif why := _not_reloaded(answer):
            say(one_line(f"the gateway of process {gateway.pid} does not use this yet: {why}"))
    for error in lost:
        if not isinstance(error, GatewayLost):
            say(error.message)
        elif error.code == SILENT:  # else it has ended
            say(f"{error.why}. It does not use this yet. Continue or end that process.")


def _not_reloaded(answer: Any) -> str:
    if isinstance(answer, GreenroomError):
        return answer.message
    try:
        return str(answer["notReloaded"])
    except (LookupError, TypeError):
        return "it answered something else. Restart it."
