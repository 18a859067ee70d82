"""`greenroom cluster`: a cluster of hosts on Ray, as its owner sees it.

`start` gives a Ray cluster its directory, which puts a host on each node; `status` shows the hosts; `drain` takes one
out of service: what rests moves at its next use, what runs may finish. `demo` makes a cluster on this machine, to see
it work (`cluster_demo`). `start` and `status` ask the directory alone, through `cluster.ray_directory`. `drain` asks
the host, too: only that knows what became of its calls.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Generator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final, Literal

import click

from ..cluster.directory import DirectorySilent
from ..protocol.errors import UsageError
from . import tables, text_wrapping
from .interruption import run_to_end
from .json_shapes import Shape, says
from .printing import show
from .shared_options import json_option
from .subcommands import Subcommands

if TYPE_CHECKING:
    from ..cluster.placement import ClusterView, HostInfo
    from ..cluster.ray_directory import RayDirectory


class ClusterHostJson(Shape, kw_only=True):
    """A host of a cluster."""

    name: Annotated[str, says("what it is called: the first digits of its node's id")]
    url: Annotated[str, says("its door, for fronts")]
    state: Annotated[Literal["serving", "draining"], says("draining: it takes nothing new")]
    epoch: Annotated[str, says("of its present life")]
    holds: Annotated[list[str], says("servers with one process for all that run there, or are kept for it")]
    labels: Annotated[dict[str, str], says("of its node")]
    resources: Annotated[dict[str, float], says("of its node, as Ray has them")]


class ClusterJson(Shape, kw_only=True):
    """The hosts of a cluster that have a lease."""

    hosts: Annotated[list[ClusterHostJson], says("by name")]
    view: Annotated[str, says("the number of what the directory knows; it changes with each change")]
    configuration: Annotated[int, says("the version of the configuration; 0: none yet")]


_LOOK_EVERY: Final = 0.5  # seconds

_NO_NODES: Final = (
    "greenroom: no node of the cluster carries a host after {seconds:g} s. A node with processors does; on one: "
    "ray start --address=HOST:PORT"
)
_MISSING: Final = (
    "greenroom: no lease after {seconds:g} s: {nodes}. Why is in the logs of Ray on that node, "
    "/tmp/ray/session_latest/logs/worker-*.out"
)

_ray_option = click.option(
    "--ray",
    "address",
    metavar="ADDRESS",
    help="HOST:PORT of the head of the Ray cluster. Without it: RAY_ADDRESS, or the cluster of this machine.",
)


@click.group("cluster", cls=Subcommands)
def cluster_command() -> None:
    """Many machines: the same servers on the nodes of a Ray cluster."""


@cluster_command.command("start", short_help="Put a host on each node of a cluster.")
@click.option(
    "--wait",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Seconds to wait until each node has a host that serves.",
)
@_ray_option
@json_option
def start_command(wait: float, address: str | None, as_json: bool) -> int:
    """Give a Ray cluster its directory, and a host on each node; return when each of them serves."""
    with _directory(address, start=True) as (directory, _token):
        missing = _until_all_serve(directory, wait)
        _show(_view(directory), as_json)
        if missing is None:
            click.echo(_NO_NODES.format(seconds=wait), err=True)
        elif missing:
            click.echo(_MISSING.format(seconds=wait, nodes=", ".join(sorted(missing))), err=True)
        return 0 if missing is not None and not missing else 1


@cluster_command.command("status", short_help="Show the hosts, and what runs where.")
@_ray_option
@json_option
def status_command(address: str | None, as_json: bool) -> int:
    """Show the hosts of a cluster, and which servers run on which."""
    with _directory(address) as (directory, _token):
        _show(_view(directory), as_json)
        return 0


@cluster_command.command("drain", short_help="Take the host of a node out of service.")
@click.argument("node")
@click.option("--off", is_flag=True, help="Take it back into service.")
@click.option(
    "--wait",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Seconds to wait until nothing runs there.",
)
@_ray_option
@json_option
def drain_command(node: str, off: bool, wait: float, address: str | None, as_json: bool) -> int:
    """Let the host of NODE finish its calls, and start nothing new there. Idle servers move when they are used next.

    Prints what became of its calls and of its servers."""
    from .cluster_drain import drain_host

    with _directory(address) as (directory, token):
        host = _named(_view(directory), node)
        if off:
            run_to_end(partial(directory.drain, host.name, False))
            _show(_view(directory), as_json)
            return 0
        drained = run_to_end(partial(drain_host, directory, token, host, wait))
        show("\n".join(drained.lines()), drained.summary(), as_json)
        return 1 if drained.left else 0


@cluster_command.command("demo", short_help="See it work, on this machine alone.")
@json_option
def demo_command(as_json: bool) -> int:
    """See it work: three hosts on this machine, one of which is killed, and what became of its calls."""
    from .cluster_demo import run_demo

    return run_demo(as_json=as_json)


@contextmanager
def _directory(address: str | None, *, start: bool = False) -> Generator[tuple[RayDirectory, str]]:
    from ..cluster.leases import LeaseTimes
    from ..cluster.ray_directory import connect, what_next

    where = address or os.environ.get("RAY_ADDRESS") or "auto"
    directory, token = connect(where, LeaseTimes() if start else None)
    try:
        yield directory, token
    except DirectorySilent as error:
        raise DirectorySilent(f"The Ray cluster at {where}: {error}. {what_next(where)}") from None
    finally:
        directory.close()


def _view(directory: RayDirectory) -> ClusterView:
    view = run_to_end(directory.view)
    assert view is not None  # it knows none of ours
    return view


def _until_all_serve(directory: RayDirectory, seconds: float) -> Collection[str] | None:
    """Wait until each node that carries a host has one with a lease. Returns those that have none in time; None: there
    is no such node. Raises `DirectorySilent` if the directory says nothing in the end."""
    end = time.monotonic() + seconds
    while True:
        try:
            missing = _without_host(directory)
            if missing is not None and not missing:
                return missing
        except DirectorySilent:
            if time.monotonic() > end:
                raise
        else:
            if time.monotonic() > end:
                return missing
        time.sleep(_LOOK_EVERY)


def _without_host(directory: RayDirectory) -> Collection[str] | None:
    nodes = run_to_end(directory.nodes)
    return {*nodes} - {host.name for host in _view(directory).hosts} if nodes else None


def _named(view: ClusterView, node: str) -> HostInfo:
    """The host whose name begins with `node`. Raises `UsageError` unless there is exactly one."""
    found = [host for host in view.hosts if host.name.startswith(node)]
    if len(found) != 1:
        names = ", ".join(host.name for host in found or view.hosts) or "none"
        raise UsageError(
            f"{'Several hosts begin' if found else 'No host begins'} with {node}. There are: {names}."
        )
    return found[0]


def _show(view: ClusterView, as_json: bool) -> None:
    rows = hosts_in(view)
    if rows and not as_json and text_wrapping.on_terminal():
        cells = [(row.name, row.url, row.state, ", ".join(row.holds) or "-") for row in rows]
        tables.console().print(tables.table(("host", "address", "state", "persistent servers"), cells))
        return
    lines = [f"{r.name}  {r.url}  {r.state}  {', '.join(r.holds) or '-'}" for r in rows]
    details = ClusterJson(hosts=rows, view=view.number, configuration=view.config_version)
    show("\n".join(lines or ["No host has a lease."]), details, as_json)


def hosts_in(view: ClusterView) -> list[ClusterHostJson]:
    """The hosts, by name."""
    return [_row(view, host) for host in sorted(view.hosts, key=lambda host: host.name)]


def _row(view: ClusterView, host: HostInfo) -> ClusterHostJson:
    return ClusterHostJson(
        name=host.name,
        url=host.url,
        state="draining" if host.is_draining else "serving",
        epoch=host.epoch,
        holds=view.held_by(host.name),
        labels=dict(host.labels),
        resources=dict(host.resources),
    )
