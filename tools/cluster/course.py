"""The courses of a run as data for one player: what happens to a testbed that is well, and what must be well after it.

Faults are random ones (`under_faults`), or one: the head is lost, its store alone (Ray's GCS) or all of it.

Without fault tolerance (`loses_head`): of its store alone, calls go on, because the directory lives; after a minute Ray
ends the nodes. Of all of it: there is no directory any more, so all leases end, and every server with them, within a
lease. In both cases the fronts stay, and go on when there is a cluster at the same address again.

With fault tolerance (`head_comes_back`), what the store knows is in Redis, or in files (`store`), and the head is
started again at once: the nodes and their hosts stay, whatever was lost of the head.
"""

from __future__ import annotations

import enum
import math
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import attrs

from greenroom.cluster.ray_cluster import LocalCluster
from greenroom.cluster.ray_directory import connect

from ..processes import children
from . import books
from .faults import FAULTS, MOVES, TIMES, drawn, send
from .testbed import FRONTS, NODES, RAY, SERVERS, Testbed, has_ended, raylet_of

NODES_END = 90.0  # seconds until Ray has ended nodes that have lost their head: a minute, by its default
GRACE = 10.0  # seconds from SIGTERM to SIGKILL: Ray's store does not end by itself while anybody is connected
FOLLOWED = 30.0  # seconds of calls after a head came back
HEAD_LOST = "kill the head"
NODES_ENDED = "end of all nodes"  # Ray has ended them, because their head was lost
# Seconds that a server may not answer after a fault; after any other, as long as a move takes.
OUTAGES = {
    **{fault.name: fault.outage for fault in FAULTS},
    **dict.fromkeys((HEAD_LOST, NODES_ENDED), math.inf),  # until there is another head
}
Course = Callable[[Testbed], Iterator[str]]  # yields what was not well


def play(course: Course, bed: Testbed) -> list[str]:
    """A run. Returns everything that must not be."""
    try:
        bed.open()
        wrong = [*course(bed), *bed.end_fronts()]
    finally:
        left = bed.close()
    return [*wrong, *left, *_audited(bed)]


def _audited(bed: Testbed) -> Iterator[str]:
    """What the books of callers and servers say together."""
    made, lived = books.calls(bed.folder), list(books.lives(bed.folder))
    bed.say(f"{len(lived)} processes of servers; calls: {dict(books.outcomes(made).most_common())}")
    yield from books.faults_in(lived, made, SERVERS, frozenset(bed.killed))
    for number, gap in enumerate(books.gaps(made, SERVERS["persistent"])):
        end = gap.began + gap.seconds
        during = [fault for at, fault in bed.faults if gap.began - MOVES < at < end]
        text = f"{gap.server} did not answer for {gap.seconds:.1f} s, at {gap.began - bed.began:.1f}, while {during}"
        if number < 5:
            bed.say(text)
        allowed = max(MOVES, sum(OUTAGES.get(fault, MOVES) for fault in during))
        if gap.seconds > bed.limit(allowed, (gap.began, end)):
            yield text


# ---- the courses -----------------------------------------------------------------------------------------------------


def under_faults(seed: str, seconds: float) -> Course:
    """Random faults for so many seconds, and then a calm."""

    def course(bed: Testbed) -> Iterator[str]:
        end = time.monotonic() + seconds
        for strike in drawn(seed):
            if time.monotonic() > end:
                break
            if strike.fault.strike(bed, strike.which):
                bed.pass_(strike.pause)
        bed.say("calm")
        bed.wait(lambda: bed.is_settled, 30.0)
        if not bed.wait(lambda: bed.hosts() == NODES, bed.limit(40.0)):
            yield f"{bed.hosts()} hosts have a lease after the calm, not {NODES}"
        bed.calm = time.monotonic()
        if not bed.wait(bed.all_answer, bed.limit(MOVES)):
            yield "not every server answers every front after the calm"

    return course


class Part(enum.Enum):
    STORE = "store"
    ALL = "all"


@attrs.frozen
class HeadLoss:
    """`part` of the head gets `number`, and SIGKILL if it does not end of that."""

    part: Part
    number: signal.Signals

    def befall(self, bed: Testbed) -> float:
        """Returns when it was lost."""
        head = bed.cluster.head
        kinds = ("gcs_server",) if self.part is Part.STORE else ("gcs_server", "raylet")
        ended = [each.process for kind in kinds for each in head.all_processes[kind]]
        workers = [] if self.part is Part.STORE else children(raylet_of(head))
        began = time.monotonic()
        for process in ended:
            send(process.pid, self.number)
        if self.number is signal.SIGKILL:
            for pid in workers:
                send(pid, signal.SIGKILL)
        end = time.monotonic() + GRACE
        for process in ended:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))
            process.kill()
            process.wait()
        took = time.monotonic() - began
        what = "all of it" if self.part is Part.ALL else "its store"
        bed.befell(HEAD_LOST, f"{what} has ended, {took:.1f} s after {self.number.name}")
        return began + took


def loses_head(loss: HeadLoss) -> Course:
    """There is another head, with other nodes, once nothing is left of the first."""

    def course(bed: Testbed) -> Iterator[str]:
        old, nodes, bed.nodes = bed.cluster, bed.nodes, []
        lost = loss.befall(bed)
        bed.calm = lost + TIMES.length  # what is answered after that
        goes_on = bed.wait(bed.all_answer, TIMES.length + bed.limit(MOVES))
        if goes_on is not (loss.part is Part.STORE):
            yield f"calls {'go' if goes_on else 'do not go'} on without the head"
        if loss.part is Part.ALL:
            yield from _outlived(bed, lost + TIMES.length + TIMES.drift)
        if not bed.wait(lambda: all(map(has_ended, nodes)), NODES_END):
            yield "nodes live without a head"
        bed.befell(NODES_ENDED)
        if not bed.wait(lambda: not bed.servers(), bed.limit(5.0)):
            yield f"servers are left of nodes that have ended: {bed.servers()}"
        port = _port(old)
        old.close()
        bed.clusters.append(LocalCluster(port=port, **RAY))
        bed.nodes = [bed.cluster.add() for _ in range(NODES)]
        bed.say(f"another head and {NODES} nodes at {bed.cluster.address}")
        directory, _token = connect(bed.cluster.address, TIMES)
        directory.close()
        bed.calm = time.monotonic()
        if bed.wait(bed.all_answer, 60.0 + bed.limit(MOVES)):
            bed.say("every server answers every front again")
        else:
            yield f"not every front has found the cluster again:\n{bed.said(FRONTS[0])}"

    return course


def head_comes_back(loss: HeadLoss) -> Course:
    """With a store that outlives the head, which is started again at once."""

    def course(bed: Testbed) -> Iterator[str]:
        before = _hosts_of_nodes(bed)
        lost = loss.befall(bed)
        if loss.part is Part.STORE:
            head: Any = bed.cluster.head
            head.kill_gcs_server(check_alive=False)  # it has ended, which Ray's own account is to know
            head.start_gcs_server()
        else:  # its nodes go over to the other head, and are closed with the former
            bed.clusters.append(LocalCluster(port=_port(bed.cluster), **RAY))
        back = time.monotonic()
        bed.say(f"the head is back after {back - lost:.1f} s")
        if not bed.wait(lambda: bed.hosts() == NODES, bed.limit(60.0)):
            yield f"{bed.hosts()} hosts have a lease with the new head, not {NODES}"
        bed.say(f"{bed.hosts()} hosts have a lease {time.monotonic() - back:.1f} s later")
        bed.calm = time.monotonic()
        if not bed.wait(bed.all_answer, 60.0 + bed.limit(MOVES)):
            yield f"not every server answers every front again:\n{bed.said(FRONTS[0])}"
        bed.say(f"every server answers every front {time.monotonic() - lost:.1f} s after the head was lost")
        bed.pass_(FOLLOWED)
        if (after := _hosts_of_nodes(bed)) != before:
            yield f"hosts were started again: {before} before, {after} now"

    return course


def _outlived(bed: Testbed, end: float) -> Iterator[str]:
    """Servers that all share and that lived when another directory could have given them away."""
    for life in books.lives(bed.folder):
        if life.server in SERVERS["persistent"] and life.last > end:
            yield f"{life.server} lived {life.last - end:.2f} s after its lease"


def _hosts_of_nodes(bed: Testbed) -> dict[str, int | None]:
    return {node.node_id[:6]: bed.cluster.host_of(node) for node in bed.nodes}


def _port(cluster: LocalCluster) -> int:
    return int(cluster.address.rpartition(":")[2])
