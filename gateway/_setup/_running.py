"""What `greenroom doctor` sees of gateways: what a running one knows of its servers, and the sockets of ended ones."""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ..._own_files import NotOurs, socket_in
from ...protocol.errors import GreenroomError
from ...protocol.version import VERSION
from .. import _control_client as control
from .._control_place import control_directory, identity
from ._finding import Finding, Setup, Severity

DIALS_FOR: Final = 0.5  # seconds
_SLOW: Final = 5.0  # seconds from the start of the program to its tools
_ON_STDOUT: Final = "on stdout"  # how a note about its output begins or ends


def started_slowly(server: str, took: float) -> Iterator[Finding]:
    """What there is to say of a start that took this long, in seconds."""
    if took > _SLOW:
        mend = f'"lifecycle": "keep-alive" for {server}, or install what its command fetches at each start'
        yield Finding(Severity.WARNING, "start", server, f"it took {took:.0f} s to start", mend)


def behaved_oddly(server: str, words: str) -> Finding:
    """`words`: the first odd thing that was noted of it."""
    kind = words.partition(":")[0]
    mend = (
        "let it print to stderr: stdout is for the protocol"
        if kind.endswith(_ON_STDOUT)
        else "tell the server's author; it works here all the same"
    )
    return Finding(Severity.WARNING, "start", server, words, mend)


def gateways(setup: Setup) -> Iterator[Finding]:
    """A gateway of this configuration that does not answer, or runs another version; what it knows of its servers."""
    try:
        gateway = control.find_gateway(identity(setup.config.files))
        if gateway is None:
            return
        with gateway:
            version: Any = gateway.ask("hello", quickly=True).get("version")
            rows: Any = gateway.ask("status", quickly=True)["servers"] if version == VERSION else ()
    except GreenroomError as error:
        yield Finding(Severity.ERROR, "gateway", "the running gateway", error.message, "end that process")
        return
    if version != VERSION:
        what = f"runs Greenroom {version}, and this command is {VERSION}"
        mend = f"greenroom stop, or restart the client that started process {gateway.pid}"
        yield Finding(Severity.WARNING, "gateway", f"process {gateway.pid}", what, mend)
    for row in rows:
        name = str(row["name"])
        if row["status"] == "needs-auth":
            what = "it refuses requests until somebody logs in"
            yield Finding(Severity.WARNING, "login", name, what, f"greenroom auth {shlex.quote(name)}")
        yield from of_start(setup, name, row)


def of_start(setup: Setup, name: str, row: Mapping[str, Any]) -> Iterator[Finding]:
    """What a running gateway has seen of a server's start."""
    took, words = row.get("startTook"), row.get("odd")
    if took is not None:
        setup.seen_starting.add(name)
        yield from started_slowly(name, took)
    if words is not None:
        yield behaved_oddly(name, words)


def sockets(_setup: Setup) -> Iterator[Finding]:
    """Sockets of gateways that are gone."""
    folder = control_directory()
    try:
        with socket_in(folder) as (_, prefix):
            names = [name for name in sorted(os.listdir(folder)) if name.endswith(".sock")]
            dead = [name for name in names if _is_dead(prefix + name)]
    except FileNotFoundError:
        return
    except NotOurs as error:
        what = f"cannot hold our sockets: {error.strerror}"
        yield Finding(Severity.ERROR, "sockets", str(folder), what, f"rm -r {folder}")
        return
    for name in dead:
        yield Finding(
            Severity.NOTE,
            "sockets",
            str(folder / name),
            "nobody listens on it any more",
            f"rm {folder / name}",
        )


def _is_dead(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(DIALS_FOR)
        try:
            line.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False
