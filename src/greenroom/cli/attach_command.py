"""`greenroom attach`: the client's way to the background gateway. It only waits on descriptors, so it needs no event
loop.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..config.model import EXPOSURES
from ..gateway.doors.attach_client import RoomStarter, attach
from ..gateway.doors.attach_protocol import Hello
from ..protocol.errors import GreenroomError
from ..protocol.version import VERSION
from .config_reading import load, read_config
from .missing_servers import check_profile
from .plain_command import Option, PlainCommand
from .printing import say
from .serve_command import check_start, say_who_comes, session_names, starting
from .shared_options import CONFIG

if TYPE_CHECKING:
    from ..config.model import Config


def _profiles(*asked: Any) -> list[str]:
    from .completion import complete_profiles

    return complete_profiles(*asked)


_OPTIONS: Final = (
    Option(
        name="--expose",
        takes=EXPOSURES,
        help="What this client sees: see `greenroom serve --help`.  [default: proxy]",
    ),
    Option(
        name="--profile",
        metavar="P",
        complete=_profiles,
        help="Show this client only what the profile has.",
    ),
    CONFIG,
)


def _attach(expose: str | None, profile: str | None, config_path: Path | None) -> None:
    """Serve a client from the one background gateway of this configuration.

    It is started if it does not run. All clients that attach share it, and with it the servers.
    """
    check_start("attach")
    config = read_config(config_path, always=True)  # stderr is its client's log
    check_profile(config, profile)
    say_who_comes("attach")
    hello = Hello(
        version=VERSION,
        expose=expose,
        profile=profile,
        pid=os.getpid(),
        room=os.environ.get("GREENROOM_ROOM"),
        variables={name: os.environ[name] for name in session_names(config) if name in os.environ},
    )
    attach(partial(_starting, config, config_path), hello, config.settings.max_line, say)


def _starting(first: Config, path: Path | None) -> RoomStarter:
    """How the room of the present configuration is started; of the `first`, if it cannot be read now."""
    try:
        config = load(path)
    except GreenroomError:
        config = first
    return starting(config, path)


attach_command: Final = PlainCommand("attach", _OPTIONS, _attach)
