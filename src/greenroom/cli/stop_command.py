"""`greenroom stop`: the end of the background gateway."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import click

from ..config.private_files import peer_pid
from ..gateway.doors.attach_client import dial
from ..gateway.doors.attach_protocol import Hello, RoomLines, send_hello
from ..gateway.doors.background_gateway import NoRoom, place_named, places, wait_for_start
from ..gateway.doors.control_client import ANSWER_WITHIN, find_gateways, silent
from ..gateway.doors.control_protocol import identity, name_of
from ..protocol.errors import ConfigError, GreenroomError, UsageError
from ..protocol.version import VERSION
from .config_reading import load
from .json_shapes import Shape, says
from .printing import say, say_error, show_json
from .running_gateways import room_of
from .shared_options import config_option, json_option


class StoppedJson(Shape, kw_only=True):
    """The background gateway's end."""

    ended: Annotated[int | None, says("the process that has ended; null: none ran, or it did not say")]


_STOPS_WITHIN = 60.0  # seconds; more than the configured times of a drain usually add up to


class StillRunning(GreenroomError):
    """The background gateway was asked to stop and has not ended in time."""

    code = "still_running"


@click.command("stop")
@json_option
@click.option("--pid", type=int, help="End the background gateway with this process number.")
@config_option
def stop_command(config_path: Path | None, pid: int | None, as_json: bool) -> int:
    """End the background gateway of this configuration.

    The calls in flight may finish. Returns when it has ended. One that is just starting is ended, too.
    """
    line = _dial_room(config_path) if pid is None else _dial_process(pid)
    if line is None:
        say("no background gateway runs for this configuration.")
        _say_which_gateways_stay(config_path)
        if as_json:
            show_json(StoppedJson(ended=None))
        return 0
    with line:
        line.settimeout(ANSWER_WITHIN)
        words = RoomLines(line)
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
                f"The background gateway still runs after {_STOPS_WITHIN:g} s. Look at its log, or end its process."
            ) from None
    who = f" (pid {answer['pid']})" if "pid" in answer else ""
    say(f"the background gateway{who} has ended.")
    if as_json:
        show_json(StoppedJson(ended=answer.get("pid")))
    return 0


def _say_which_gateways_stay(path: Path | None) -> None:
    for gateway in find_gateways(name_of(load(path)), say_error):
        gateway.connection.close()
        who = f"the gateway that runs as process {gateway.pid} is not a background gateway"
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
    place = room_of(config, path)
    line = dial(place)
    if line is None and wait_for_start(place, say):
        line = dial(place)
    return line


def _dial_process(pid: int) -> socket.socket:
    """A connection to the room that is this process. Raises `UsageError` when none is."""
    for place in places():
        with suppress(NoRoom):
            line = dial(place)
            if line is not None and peer_pid(line) == pid:
                return line
            if line is not None:
                line.close()
    text = (
        f"No background gateway runs as process {pid}. Leave out --pid to end the one of this configuration."
    )
    raise UsageError(text)
