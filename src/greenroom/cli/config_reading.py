"""The configuration that a command is about, and the warnings that reading it gives."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from ..gateway.doors.control_protocol import identity, name_of
from ..protocol.errors import UNSET_VARIABLE, ConfigError, Problem, place
from .printing import say, say_error

if TYPE_CHECKING:
    from ..config.model import Config
    from ..gateway.doors import control_client as control

# Warnings that one command says; a client's own file may have dozens of keys without effect.
_TOLD: Final = 10


def read_config(
    path: Path | None,
    *,
    always: bool = False,
    most: int | None = _TOLD,
    folder: Path | None = None,
    about: str | None = None,
) -> Config:
    """The configuration, as `load` reads it. Its warnings go to stderr, `most` of them, and each once a day, or
    `always`: also where it has no servers, because a warning may say why. Variables that are not set are one warning.
    `about`: only the warnings about this server, each variable by itself. Raises `ConfigError` when a named file cannot
    be used."""
    try:
        config = load(path, folder)
    except ConfigError:
        _say_who_goes_on(path)
        raise
    if about is None:
        told = list(_warnings(config.problems, with_step=always))
    else:
        told = [str(problem) for problem in config.problems if is_about(problem, about)]
    if told and config.servers and not always:
        from .warnings_file import not_told_lately

        # That a file is not obeyed, or not read, is said by each command: its answer is about the other files alone.
        without = {*config.untrusted, *config.unread}
        left = [str(problem) for problem in config.problems if problem.where in without]
        new = not_told_lately([text for text in told if text not in left], name_of(config))
        _say_some([*left, *new], most, is_new=bool(new))
    else:
        _say_some(told, most, is_new=False)
    return config


def load(path: Path | None, folder: Path | None = None) -> Config:
    """The configuration, silently; of `folder`, if it is not to be that of the working directory. Raises `ConfigError`
    when a named file cannot be used."""
    from ..config.files import load_config, working_directory

    return load_config(
        path,
        cwd=folder or working_directory(path),
        home=Path.home(),
        environ=os.environ,
        platform=sys.platform,
    )


def load_asked(path: Path | None, pid: int | None) -> Config:
    """The configuration of the gateway that is asked: that of `pid`, whatever file is named beside it, or else what
    `load` finds. Raises `UsageError` when no gateway has that `pid`."""
    if pid is None:
        return load(path)
    with _gateway_of(pid) as gateway:
        said = gateway.ask("hello", quickly=True)
    folder = Path(said["folder"])
    return load(None if said.get("config") is None else folder / said["config"], folder)


def _gateway_of(pid: int) -> control.Gateway:
    from ..gateway.doors.control_client import find_gateway

    gateway = find_gateway("", pid)
    assert gateway is not None  # one with this `pid`, or `UsageError`
    return gateway


def is_about(problem: Problem, server: str) -> bool:
    """Whether the place of the problem is in the entry of this server."""
    return place_in_entry(problem, server) is not None


def place_in_entry(problem: Problem, server: str) -> str | None:
    """The keys of the problem's place inside the entry of this server; None if it is elsewhere."""
    from ..config.keys import SECTIONS

    for section in SECTIONS:
        _, found, inside = problem.where.partition(f": {place('', section, server)}")
        if found and inside[:1] in ("", ".", "["):
            return inside.lstrip(".")
    return None


def _warnings(problems: Iterable[Problem], *, with_step: bool) -> Iterator[str]:
    """The problems, with one line for all values whose variables are not set. `with_step`: it says how to see them."""
    unset = [problem for problem in problems if problem.code == UNSET_VARIABLE]
    yield from (str(problem) for problem in problems if len(unset) == 1 or problem.code != UNSET_VARIABLE)
    if len(unset) > 1:
        what = (
            f"{len(unset)} values of the configuration refer to variables that are not set, so they are empty"
        )
        yield f"{what}.{' To see them: greenroom doctor' if with_step else ''}"


def _say_some(warnings: Sequence[str], most: int | None, *, is_new: bool) -> None:
    for text in warnings[:most]:
        say(text)
    more = 0 if most is None else max(0, len(warnings) - most)
    if more:
        say(f"and {more} more about the configuration. To see all of them: greenroom doctor")
    elif is_new:
        say("warnings about the configuration are shown once a day. To see all of them: greenroom doctor")


def _say_who_goes_on(path: Path | None) -> None:
    """The file at `path` cannot be used now. Say which gateways run with what it said before, and how to ask them."""
    from ..gateway.doors.control_client import find_gateways

    for gateway in find_gateways(identity([os.fspath(path)]), say_error) if path is not None else ():
        gateway.connection.close()
        who = f"the gateway that runs as process {gateway.pid} goes on with what this file said before"
        say(f"{who}. To ask it: greenroom status --pid {gateway.pid}")


def only_asked_for(config: Config) -> Config:
    """The configuration of a room for one command: a server starts when the command asks for it, once, and nothing is
    kept running or started ahead."""
    from ..config.model import Lifecycle, RestartPolicy

    way: dict[str, Any] = {
        "lifecycle": Lifecycle.LAZY,
        "restart_policy": RestartPolicy.ON_DEMAND,
        "warm": 0,
    }
    servers = {name: replace(one, **way) for name, one in config.servers.items()}
    return replace(config, servers=servers)
