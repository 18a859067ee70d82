"""What `greenroom doctor` sees of gateways: what a running one knows of its servers, and the sockets of ended ones."""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from ..._own_files import NotOurs, socket_in
from ...protocol.errors import GreenroomError
from ...protocol.slices import finish
from ...protocol.status import about
from ...protocol.version import VERSION
from .. import _control_client as control
from .._control_place import control_directory, identity
from ._finding import Finding, Setup, Severity

DIALS_FOR: Final = 0.5  # seconds
FAILED: Final = "failure"  # the check that tells of the last failures
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
    """A gateway of this configuration that does not answer, or runs another version; what it knows of its servers.
    Without a gateway it is what the cache knows."""
    try:
        gateway = control.find_gateway(identity(setup.config.files))
        if gateway is None:
            yield from _of_rows(setup, _cached_rows(setup))
            return
        with gateway:
            version: Any = gateway.ask("hello", quickly=True).get("version")
            rows: Any = gateway.ask("status", quickly=True)["servers"] if version == VERSION else ()
    except GreenroomError as error:
        yield Finding(Severity.ERROR, "gateway", "the running gateway", error.message, "end that process")
        return
    if version != VERSION:
        what = f"runs Greenroom {version}, and this command is {VERSION}"
        mend = f"restart the client that started process {gateway.pid}, or: {setup.commands.about('stop')}"
        yield Finding(Severity.WARNING, "gateway", f"process {gateway.pid}", what, mend)
    yield from _of_rows(setup, rows)


def _cached_rows(setup: Setup) -> Iterable[Mapping[str, Any]]:
    from .._mcp_tool import CatalogueReader
    from .._views import status_view

    return finish(status_view(CatalogueReader(setup.catalogue), setup.catalogue))["servers"]


def _of_rows(setup: Setup, rows: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    for row in rows:
        name = str(row["name"])
        if row.get("disabled") or row.get("broken"):
            continue  # said by the checks of the configuration
        if row["status"] == "needs-auth":
            what = "it refuses requests until somebody logs in"
            yield Finding(Severity.WARNING, "login", name, what, setup.commands.about("auth", name))
        if row.get("failure") is not None:
            setup.seen_starting.add(name)
            yield _last_failed(setup, name, row)
        yield from of_start(setup, name, row)


def _last_failed(setup: Setup, name: str, row: Mapping[str, Any]) -> Finding:
    """A failure that no success has followed: an error, unless a server that works was lost once."""
    ago = f"{about(row['failedAgo'])} ago" if row.get("failedAgo") is not None else "last"
    starts, quarantined = int(row.get("failedStarts") or 0), bool(row.get("quarantined"))
    if starts:
        what = f"did not start {ago}{f' ({starts} times in a row)' if starts > 1 else ''}: {row['failure']}"
    else:
        what = f"was lost {ago}: {row['failure']}"
    works = not starts and not quarantined and row.get("cached")
    refresh, explain = (setup.commands.about(verb, name) for verb in ("refresh", "explain"))
    mend = f"mend that, then: `{refresh}`. See also: {explain}"
    return Finding(Severity.WARNING if works else Severity.ERROR, FAILED, name, what, mend)


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
        yield Finding(Severity.ERROR, "sockets", str(folder), what, f"rm -r {shlex.quote(str(folder))}")
        return
    for name in dead:
        yield Finding(
            Severity.NOTE,
            "sockets",
            str(folder / name),
            "nobody listens on it any more",
            f"rm {shlex.quote(str(folder / name))}",
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
