"""Everything of Ray: the directory and the hosts as its actors, one host on each node, and who is revived.

Ray places, revives, lists nodes and says which of them drain. Leases, epochs, owners and endings are ours, because Ray
does not fence: it starts an actor anew elsewhere while the old process and its children live on.

* The directory is one named actor, pinned to the head. It holds a `Register` and is on the path of no call. Each life
  of it has a number, claimed in Ray's key-value store (`dir/<n>`, never overwritten), so two lives are never one. No
  life is the first for sure, so each waits one lease before it grants what nobody holds. One that Ray has given up
  while it lives sees there within seconds that it is not the newest, and ends.
* A host is a named actor, pinned hard to its node: Ray revives it there and nowhere else. Only we could make a second.
* A thread of the directory looks at the nodes every two seconds: it makes the hosts that are missing, tells which nodes
  drain, and kills a worker whose host is in no view, which Ray does not notice when the worker is stopped.
* Over Ray go plain objects, never exceptions: some of ours cannot be unpickled. What fails on the way is
  `DirectorySilent`.
* A host asks the directory in threads. Its loop serves calls, and must wait for nothing of Ray's.

Rejected: actor calls for tools (1.4 ms each, 1,300 a second; our HTTP door does three times that), names as locks (a
name is the record, not the process), soft affinity, the store for anything but the number, Ray's clean-up of children.

Ray is imported only inside `ray()`: this module can be imported, checked and tested where Ray is not installed.
"""

from __future__ import annotations

import logging
import math
import os
import queue
import secrets
import signal
import sys
import threading
import time
import traceback
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import attrs

from ..protocol.errors import GreenroomError, UsageError
from ..protocol.safe_text import one_line
from ..protocol.version import VERSION
from .directory import DirectorySilent
from .leases import LeaseTimes, Register
from .ray_directory import TO_CONNECT, ClusterAbout, RayDirectory, read, what_next, write

if TYPE_CHECKING:
    from .cluster_host import ClusterHost

NAMESPACE: Final = "greenroom"  # of our actors, and of the one key in Ray's store
DIRECTORY: Final = "directory"
_LOOK_EVERY: Final = 2.0  # seconds
_TO_START: Final = (
    30.0  # seconds from the start of a worker to its first lease; a loaded machine takes its time
)
_RESTS_FOR: Final = 10.0  # seconds until a host that was drained looks whether it still is
_TO_KILL: Final = 10.0  # seconds; Ray gives a worker that does not answer five, then kills it
_WORDS: Final = 400  # characters of what Ray says
_PATIENCE: Final = 3.0  # as many times as long as one answer may take, a driver waits for any


def ray() -> Any:
    """Ray, imported. Raises `ImportError`."""
    return import_module("ray")


# ---- The directory --------------------------------------------------------------------------------------------------


class DirectoryActor:
    """`times`, `token`: of the whole cluster; they stay when the actor is revived, because they are in its creation."""

    def __init__(self, times: LeaseTimes, token: str) -> None:
        self._about = ClusterAbout(VERSION, token, times, claimed_number())
        self._lock = threading.Lock()
        self._register = Register(self._about.number, times, time.monotonic())
        self._watch = NodeWatch(self._about, self)
        threading.Thread(target=self._watch.run, name="greenroom nodes", daemon=True).start()

    async def hello(self, version: str) -> str | ClusterAbout:
        """What the cluster is, or the version of its Greenroom if that is another one."""
        return self._about if version == VERSION else VERSION

    async def ask(self, verb: str, args: tuple[Any, ...]) -> tuple[bool, Any]:
        """What a verb of the register returns, or what it failed with, in words."""
        try:
            return True, self.do(verb, *args)
        except Exception as error:
            traceback.print_exc()
            return False, f"{type(error).__name__}: {error}"

    def do(self, verb: str, *args: Any) -> Any:
        if verb == "nodes":
            return self._watch.nodes
        with self._lock:
            return getattr(self._register, verb)(*args, time.monotonic())


def claimed_number() -> int:
    """The number of this life of the directory: greater than each that was claimed before. It begins with the time, for
    a head that is started again may have forgotten all claims while hosts of before still live; in milliseconds, so
    that a clock that was set back gives none a second time."""
    store = import_module("ray.experimental.internal_kv")
    number = max(newest_number() + 1, time.time_ns() // 1_000_000)
    while store._internal_kv_put(f"dir/{number}", b"", overwrite=False, namespace=NAMESPACE):
        number += 1
    return number


def newest_number() -> int:
    """The greatest number that any directory of this cluster has claimed."""
    store = import_module("ray.experimental.internal_kv")
    taken = (int(key.rpartition(b"/")[2]) for key in store._internal_kv_list("dir/", namespace=NAMESPACE))
    return max(taken, default=0)


# ---- The nodes ------------------------------------------------------------------------------------------------------


@attrs.define
class NodeWatch:
    """The thread that looks at Ray's nodes. It asks the head's store what may take long, so the directory's own loop
    does not."""

    about: ClusterAbout
    directory: DirectoryActor
    nodes: frozenset[str] | None = attrs.field(
        default=None, init=False
    )  # that are to have a host, as last seen
    _patience: dict[str, float] = attrs.field(factory=dict[str, float], init=False)
    _draining: frozenset[str] = attrs.field(default=frozenset[str](), init=False)

    def run(self) -> None:
        while True:
            try:
                self._look()
            except Exception:  # the head may be gone for a minute; this thread must outlast it
                traceback.print_exc()
            time.sleep(_LOOK_EVERY)

    def _look(self) -> None:
        if newest_number() > self.about.number:
            print("there is a newer directory: this one ends", flush=True)  # which grants nothing yet
            os._exit(1)
        r, now = ray(), time.monotonic()
        nodes = {name_of(node["NodeID"]): node for node in r.nodes() if carries_host(node)}
        draining = frozenset(map(name_of, self._drained_by_ray()))
        view = self.directory.do("view", "")
        joined = {host.name for host in view.hosts}
        for name in (draining ^ self._draining) & joined:
            self.directory.do("drain", name, name in draining)
        self._draining = draining & joined
        actors = set(r.util.list_named_actors())
        made = {name for name in nodes if actor_name(name) in actors}
        self.nodes = frozenset(nodes.keys() - draining)
        for name in self.nodes - made:
            self._make(name, nodes[name])
        for name in made & draining:
            if name not in joined or self._rests(name):
                self._kill(name, no_restart=True)  # then the node is idle, for which Ray waits
        for name in overdue(self._patience, joined, made - draining, now):
            print(f"host {name} holds no lease: its worker is killed", flush=True)
            self._kill(name, no_restart=False)

    def _rests(self, name: str) -> bool:
        """Whether the host says that nothing runs there."""
        r = ray()
        try:
            return r.get(r.get_actor(actor_name(name)).rests.remote(), timeout=1.0)
        except (r.exceptions.RayError, ValueError):
            return False

    def _kill(self, name: str, *, no_restart: bool) -> None:
        r = ray()
        with suppress(ValueError):  # it went meanwhile
            r.kill(r.get_actor(actor_name(name)), no_restart=no_restart)

    def _drained_by_ray(self) -> Collection[str]:
        state = import_module("ray._private.state").state
        return state.get_draining_nodes()

    def _make(self, name: str, node: Mapping[str, Any]) -> None:
        r = ray()
        strategies = import_module("ray.util.scheduling_strategies")
        labels = {**node["Labels"], "node": name}
        resources = {key: float(value) for key, value in node["Resources"].items()}
        self._patience[name] = time.monotonic() + _TO_START
        r.remote(HostActor).options(
            name=actor_name(name),
            lifetime="detached",
            get_if_exists=True,
            max_restarts=-1,
            num_cpus=0,
            scheduling_strategy=strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
        ).remote(name, node["NodeManagerAddress"], labels, resources, self.about)


def overdue(
    patience: dict[str, float], joined: Collection[str], made: Collection[str], now: float
) -> list[str]:
    """The hosts that have a worker, and have held no lease for longer than they may. `patience` has until when each
    may, and is kept up to date."""
    for name in patience.keys() - made:
        del patience[name]
    patience.update(dict.fromkeys(joined, now))
    late = [name for name in made if patience.setdefault(name, now + _TO_START) < now]
    patience.update(dict.fromkeys(late, now + _TO_KILL + _TO_START))
    return late


def carries_host(node: Mapping[str, Any]) -> bool:
    """Whether a node gets a host. One without processors gets none: so Ray's users say that a head is to do no work."""
    return node["Alive"] and node["Resources"].get("CPU", 0) > 0


def name_of(node_id: str) -> str:
    """The name of the host of a node: what tells it from all others, short enough to be typed."""
    return node_id[:12]


def actor_name(host: str) -> str:
    return f"host-{host}"


# ---- A host ---------------------------------------------------------------------------------------------------------


class HostActor:
    """A worker of Ray that is a host and nothing else: the host has a thread and a loop of its own, so that calls wait
    for nothing of Ray's. When the host fails, whatever the reason, the worker ends, and Ray starts another. One that
    has been drained and rests stays, for the watch to end, and looks now and then whether it is to serve again."""

    def __init__(
        self,
        name: str,
        address: str,
        labels: Mapping[str, str],
        resources: Mapping[str, float],
        about: ClusterAbout,
    ) -> None:
        from .cluster_host import ClusterHost, HostAbout  # not in a driver, nor in the directory

        as_ordinary_process()
        directory = RayDirectory(partial(ask_directory, {}), within=about.times.renew_every)
        self._made = partial(
            ClusterHost,
            HostAbout(name=name, bind=address, labels=labels, resources=resources),
            directory,
            token=about.token,
            times=about.times,
            say=partial(print, f"host {name}:", flush=True),
        )
        self._host: ClusterHost | None = None
        threading.Thread(target=self._run, name="greenroom host", daemon=True).start()

    def _run(self) -> None:
        from ..gateway.event_loop import GatewayLoop

        try:
            while True:
                anyio.run(self._live, backend="asyncio", backend_options={"loop_factory": GatewayLoop})
                time.sleep(_RESTS_FOR)
        except BaseException:
            traceback.print_exc()
        time.sleep(1)  # or one that fails at once is revived a hundred times a second
        os._exit(1)

    async def _live(self) -> None:
        self._host = self._made()
        await self._host.run()

    def rests(self) -> bool:
        return self._host is None or self._host.rests


def as_ordinary_process() -> None:
    """Take back what Ray gives its workers, and what servers would inherit: the lowest priority but four, and to be the
    first that is killed when memory runs out. Only a privileged process may; others are told what to set."""
    refused: list[str] = []
    try:
        if os.getpriority(os.PRIO_PROCESS, 0) > 0:
            os.setpriority(os.PRIO_PROCESS, 0, 0)
    except OSError:
        refused.append("RAY_worker_niceness=0")
    try:
        score = Path("/proc/self/oom_score_adj")
        if score.exists() and int(score.read_text()) > 0:
            score.write_text("0")
    except OSError:
        refused.append("RAY_worker_oom_score_adjustment=0")
    if refused:
        print(
            f"servers inherit what Ray gives its workers; start its nodes with {' '.join(refused)}",
            flush=True,
        )


# ---- Asking the directory, inside the cluster -----------------------------------------------------------------------


def ask_directory(kept: dict[str, Any], verb: str, args: tuple[Any, ...], within: float) -> Any:
    """What the directory answers. Blocks for `within` seconds at most; `kept` keeps the handle from one call to the
    next. Raises `DirectorySilent`."""
    r = ray()
    errors = r.exceptions
    try:
        handle = kept.get(DIRECTORY)
        if handle is None:
            handle = kept[DIRECTORY] = r.get_actor(DIRECTORY, namespace=NAMESPACE)
        fine, value = r.get(handle.ask.remote(verb, args), timeout=within)
    except errors.GetTimeoutError:
        raise DirectorySilent(f"the directory has not answered within {within:g} s") from None
    except (errors.RayError, ValueError, RuntimeError, OSError) as error:
        kept.clear()
        raise DirectorySilent(f"the directory cannot be asked: {first_line(error)}") from None
    if not fine:
        raise DirectorySilent(f"the directory failed: {value}")
    return value


def first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def in_one_line(error: BaseException) -> str:
    """What Ray says. The versions that do not match, as an example, are on lines of their own."""
    return one_line(" ".join(str(error).split()), _WORDS).rstrip(".") or type(error).__name__


def not_installed(error: ImportError) -> str:
    """What to do where Ray, or a package that Ray needs, cannot be imported."""
    is_missing = isinstance(error, ModuleNotFoundError) and error.name == "ray"
    what = "Ray is not installed" if is_missing else f"Ray cannot be imported ({in_one_line(error)})"
    return f'{what}: pip install "greenroom[ray]"'


def joined_cluster(address: str) -> None:
    """Make this process a driver of the cluster at `address`. Blocks, and may do so for long. Raises `NoNodeHere`, and
    what Ray raises."""
    if address != "auto" and not _has_node_here():
        raise NoNodeHere
    host = address.rpartition(":")[0].strip("[]")
    # Ray takes a loopback address for "this machine" and asks for the machine's other one, where it may not listen.
    own = {"_node_ip_address": host} if host.startswith("127.") else {}
    ray().init(
        address=address,
        namespace=NAMESPACE,
        log_to_driver=False,
        configure_logging=False,
        **own,
    )


class NoNodeHere(Exception):
    """Ray lets a driver in only at a node of its own machine. It looks for one for a minute, and does not say so."""


def _has_node_here() -> bool:
    """Whether a node of Ray runs on this machine (in this container); True where Ray does not let us look."""
    try:
        return bool(import_module("ray._private.services").find_node_ids())
    except (ImportError, AttributeError):
        return True


def found_directory(times: LeaseTimes | None, within: float) -> str | ClusterAbout:
    """What the cluster's directory says of itself, to this driver: `ClusterAbout`, or the other version that it has.
    It is made if there is none, unless `times` is None; then raises `LookupError`."""
    r = ray()
    if times is None:
        try:
            handle = r.get_actor(DIRECTORY, namespace=NAMESPACE)
        except ValueError:
            raise LookupError("no directory") from None
    else:
        handle = (
            r.remote(DirectoryActor)
            .options(
                name=DIRECTORY,
                namespace=NAMESPACE,
                lifetime="detached",
                get_if_exists=True,
                max_restarts=-1,
                num_cpus=0,
                resources={"node:__internal_head__": 0.001},
            )
            .remote(times, secrets.token_urlsafe(32))
        )
    return r.get(handle.hello.remote(VERSION), timeout=within)


# ---- The child of a front: a driver ---------------------------------------------------------------------------------


def main() -> None:
    """The child: joins the cluster, answers what its parent asks, and ends when the parent has; or when the directory
    has been silent for long, for then another child may find it. Ray tells a driver of a new directory through the
    node that it has joined at. When that node is gone, as with the machine of the head, nobody tells it."""
    asked, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what Ray prints is no answer
    address, times = read(asked)
    writing = threading.Lock()
    about: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
    joined = threading.Event()
    threading.Thread(target=_join, args=(address, times, about, joined), daemon=True).start()
    kept: dict[str, Any] = {}
    silent_since = math.inf

    def answer(number: int, verb: str, args: tuple[Any, ...], within: float) -> None:
        nonlocal silent_since
        asked_at = time.monotonic()
        fine, value = _answer(verb, args, within)
        with writing, suppress(OSError):
            write(answers, (number, fine, value))
        if fine or not joined.is_set():
            silent_since = math.inf
            return
        silent_since = min(silent_since, asked_at)
        if time.monotonic() - silent_since > _PATIENCE * within:
            os._exit(1)

    def _answer(verb: str, args: tuple[Any, ...], within: float) -> tuple[bool, Any]:
        if not verb:
            found = about.get()
            about.put(found)
            return found
        try:
            if not joined.wait(within):
                return False, "Ray has not let us into the cluster yet"
            return True, ask_directory(kept, verb, args, within)
        except DirectorySilent as error:
            return False, str(error)

    with suppress(EOFError):
        while True:
            threading.Thread(target=answer, args=read(asked), daemon=True).start()
    os._exit(0)  # Ray's own end takes seconds, and may wait for a head that is gone


def _join(
    address: str,
    times: LeaseTimes | None,
    about: queue.SimpleQueue[tuple[bool, Any]],
    joined: threading.Event,
) -> None:
    try:
        joined_cluster(address)
        found = found_directory(times, TO_CONNECT)
    except ImportError as error:
        about.put((False, not_installed(error)))
    except NoNodeHere:
        about.put(
            (
                False,
                f"no node of it runs on this machine; start one: ray start --address={address} --num-cpus=0",
            )
        )
    except LookupError:
        about.put((False, "no directory of Greenroom runs there; begin with `greenroom cluster start`"))
    except BaseException as error:  # Ray itself ends a program now and then
        about.put((False, f"{in_one_line(error)}. {what_next(address)}"))
    else:
        if isinstance(found, str):
            about.put((False, f"its hosts have Greenroom {found}, and this is {VERSION}"))
        else:
            joined.set()
            about.put((True, found))
            return
    time.sleep(1)  # the parent reads the answer
    os._exit(1)


# ---- A cluster on this machine, to try it ---------------------------------------------------------------------------

LOCAL_TAG: Final = "GREENROOM_LOCAL_RAY"  # in the environment of whatever is started for such a cluster
_TO_END: Final = 5.0  # seconds for what a node leaves behind: Ray's agents look now and then whether it lives


class RayFailure(GreenroomError):
    """Ray does not do on this machine what it is asked for."""


@contextmanager
def _of_ray() -> Generator[None]:
    """What fails within is Ray's. Raises `RayFailure`, and `UsageError` where Ray is not installed."""
    try:
        yield
    except ImportError as error:
        raise UsageError(not_installed(error)) from error
    except Exception as error:
        text = f"Ray does not work on this machine: {in_one_line(error)}. See what it says: ray start --head --block"
        raise RayFailure(text) from error


class LocalCluster:
    """A head and nodes on this machine, each with a loopback address of its own; Linux only. Blocks. `port`: of its
    head (0: a free one). `settings`: Ray's own. For demo and tests; a real cluster is made with `ray start`."""

    def __init__(self, *, port: int = 0, **settings: Any) -> None:
        token = os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        os.environ.update(
            RAY_AUTH_MODE="token",
            RAY_AUTH_TOKEN=token,
            RAY_USAGE_STATS_ENABLED="0",
            RAY_enable_metrics_collection="0",
            RAY_worker_niceness="0",
            RAY_worker_oom_score_adjustment="0",
        )
        with _of_ray():
            self._cluster = import_module("ray.cluster_utils").Cluster()
        logging.getLogger("ray").setLevel(logging.ERROR)  # it tells which head was started last
        self._last = 1
        self._tag = os.environ[LOCAL_TAG] = secrets.token_hex(16)
        self.head: Any = self._add(num_cpus=0, _system_config=settings, gcs_server_port=port)

    @property
    def address(self) -> str:
        return self._cluster.address

    def add(self, **more: Any) -> Any:
        """Another node, as Ray's `Node`. `resources`, `labels` as Ray has them. Raises `RayFailure`; nothing of the
        cluster is left then."""
        return self._add(num_cpus=1, **more)

    def remove(self, node: Any) -> None:
        """End what is left of a node, its raylet first."""
        with _of_ray():
            self._cluster.remove_node(node, allow_graceful=False)

    def _add(self, **more: Any) -> Any:
        self._last += 1
        ours = signal.getsignal(signal.SIGTERM)
        try:
            with _of_ray():
                return self._cluster.add_node(
                    node_ip_address=f"127.0.0.{self._last}",
                    include_dashboard=False,
                    object_store_memory=80 << 20,
                    **more,
                )
        except BaseException:
            self.close()
            raise
        finally:
            if callable(ours):
                signal.signal(
                    signal.SIGTERM, ours
                )  # Ray has taken it for its own, which drains that node alone

    def host_of(self, node: Any) -> int | None:
        """The process of the host of a node; None while it has none."""
        raylet = str(node.all_processes["raylet"][0].process.pid)
        for path in Path("/proc").iterdir():
            with suppress(OSError):
                is_host = path.name.isdigit() and (path / "cmdline").read_bytes().startswith(
                    b"ray::HostActor"
                )
                if is_host and (path / "stat").read_text().rpartition(")")[2].split()[1] == raylet:
                    return int(path.name)
        return None

    def close(self) -> None:
        """End all of it. Ray itself loses sight of what a node that did not start has running. Idempotent."""
        try:
            with suppress(Exception):  # then what is left is found by its tag
                self._cluster.shutdown()
        finally:
            end = time.monotonic() + _TO_END
            while _tagged(self._tag) and time.monotonic() < end:
                time.sleep(0.05)
            for pid in _tagged(self._tag):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _tagged(tag: str) -> list[int]:
    """The processes that were started with this tag, but zombies."""
    mark, found = f"{LOCAL_TAG}={tag}".encode(), list[int]()
    for path in Path("/proc").iterdir():
        with suppress(OSError):
            if path.name.isdigit() and mark in (path / "environ").read_bytes().split(b"\0"):
                found.append(int(path.name))
    return found
