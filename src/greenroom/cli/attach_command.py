"""`greenroom attach` and `greenroom stop`: the client's way to the background room, and its end.

Both only wait on descriptors, so they need no event loop.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from ..config.private_files import peer_pid
from ..gateway.doors.attach_client import Starting, attach, dial
from ..gateway.doors.attach_protocol import Hello, Words, send_hello
from ..gateway.doors.background import NoRoom, place_named, places
from ..gateway.doors.control_client import ANSWER_WITHIN, find_gateways, silent
from ..gateway.doors.control_protocol import identity, name_of
from ..protocol.errors import ConfigError, GreenroomError, UsageError
from ..protocol.version import VERSION
from .common import check_profile, config_option, load, read_config, room_of, say, show_json
from .completion import complete_profiles
from .serve_command import check_start, session_names, starting
from .shapes import Shape, says

if TYPE_CHECKING:
    from ..config.model import Config


class StoppedJson(Shape, kw_only=True):
    """The background room's end."""

    ended: Annotated[int | None, says("the process that has ended; null: none ran, or it did not say")]


_STOPS_WITHIN = 60.0  # seconds; more than the configured times of a drain usually add up to


class StillRunning(GreenroomError):
    """The background room was asked to stop and has not ended in time."""

    code = "still_running"


@click.command("attach")
@click.option(
    "--expose",
    type=click.Choice(["proxy", "direct", "meta"]),
    help="What this client sees: see `greenroom serve --help`.  [default: proxy]",
)
@click.option(
    "--profile",
    metavar="P",
    help="Show this client only what the profile has.",
    shell_complete=complete_profiles,
)
@config_option
def attach_command(expose: str | None, profile: str | None, config_path: Path | None) -> None:
    """Serve a client from the one background room of this configuration.

    The room is started if it does not run. All clients that attach share it, and with it the servers.
    """
    check_start("attach")
    config = read_config(config_path, always=True)  # stderr is its client's log
    check_profile(config, profile)
    hello = Hello(
        version=VERSION,
        expose=expose,
        profile=profile,
        pid=os.getpid(),
        room=os.environ.get("GREENROOM_ROOM"),
        variables={name: os.environ[name] for name in session_names(config) if name in os.environ},
    )
    attach(partial(_starting, config, config_path), hello, config.settings.max_line, say)


def _starting(first: Config, path: Path | None) -> Starting:
    """How the room of the present configuration is started; of the `first`, if it cannot be read now."""
    try:
        config = load(path)
    except GreenroomError:
        config = first
    return starting(config, path)


@click.command("stop")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--pid", type=int, help="End the background room with this process number.")
@config_option
def stop_command(config_path: Path | None, pid: int | None, as_json: bool) -> int:
    """End the background room of this configuration.

    The calls in flight may finish. Returns when the room has ended.
    """
    line = _dial_room(config_path) if pid is None else _dial_process(pid)
    if line is None:
        say("no background room runs for this configuration.")
        _say_which_gateways_stay(config_path)
        if as_json:
            _show(None)
        return 0
    with line:
        line.settimeout(ANSWER_WITHIN)
        words = Words(line)
        try:
            send_hello(line, Hello(version=VERSION, stop=True), [])
            answer = words.next() or {}
        except TimeoutError:
            raise silent(peer_pid(line) or pid or 0) from None
        line.settimeout(_STOPS_WITHIN)
        try:
            while words.next() is not None:
                pass
        except TimeoutError:
            raise StillRunning(
                f"The background room still runs after {_STOPS_WITHIN:g} s. Look at its log, or end its process."
            ) from None
    who = f" (pid {answer['pid']})" if "pid" in answer else ""
    say(f"the background room{who} has ended.")
    if as_json:
        _show(answer.get("pid"))
    return 0


def _say_which_gateways_stay(path: Path | None) -> None:
    for gateway in find_gateways(name_of(load(path)), say):
        gateway.connection.close()
        who = f"the gateway that runs as process {gateway.pid} is none"
        say(f"{who}: it ends with its client, or by Ctrl-C where it was started.")


def _dial_room(path: Path | None) -> socket.socket | None:
    """A connection to the room of a configuration. That of a named file is found by its path, whatever has become of
    the file."""
    try:
        config = load(path)
    except ConfigError:
        line = None if path is None else dial(place_named(identity([os.fspath(path)])))
        if line is None:
            raise
        return line
    return dial(room_of(config, path))


def _dial_process(pid: int) -> socket.socket:
    """A connection to the room that is this process. Raises `UsageError` when none is."""
    for place in places():
        with suppress(NoRoom):
            line = dial(place)
            if line is not None and peer_pid(line) == pid:
                return line
            if line is not None:
                line.close()
    text = f"No background room runs as process {pid}. Leave out --pid to end the one of this configuration."
    raise UsageError(text)


def _show(ended: int | None) -> None:
    said = StoppedJson(ended=ended)
    show_json(said)
