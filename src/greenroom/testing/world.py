"""A world to search: one room over fake servers in virtual time, and its callers.

Each thing that a step can do is a plain method, which returns once the room has settled: start and cancel calls,
connect or drain a server by name, reload, open and close sessions, let time pass. What can be done to the servers
themselves is in `faults`. Everything that is done is written down in `truth`, because that decides whether the room
reacted rightly. `world_laws` says what must hold. A world needs neither Hypothesis nor pytest, so a script can drive
it as well as a search.
"""

from __future__ import annotations

import math
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import trio

from ..actors.peer import LostReason
from ..catalogue.entries import ServerEntry
from ..config.model import Config, ServerDefinition
from ..protocol.address import Address
from ..protocol.errors import GreenroomError
from ..protocol.events import CatalogueChanged, Event, Place
from ..protocol.lifecycle import Reason, State
from ..supervisor.room import Greenroom, Session, port_of
from .fake_servers import HANG, FakeCall, FakeServer, echo, fake_connectors, tool
from .room_inside import RoomInside
from .trace_checker import EPS, Seats, TraceChecker
from .virtual_time import VirtualRun, seed_schedule

# ---- What can be done to the servers of a world ----------------------------------------------------------------------
#
# Lose, slow down, refuse, deafen, heal them, or change their tools.
#
# Each method changes the fake server and writes down in the `WorldTruth` what follows from it, for example that a
# server that takes longer to start than it may will fail to connect.

ECHO, SAFE = "echo", "safe"  # the second declares that running it twice is harmless
RESET = "reset"  # makes a process of a server forget who has called it
_STEPS = ("start", "initialize", "list", "call", "stop")


def tools_of(version: int) -> list[dict[str, Any]]:
    """The tools of a server at this version. A later version replaces one tool by another."""
    return [tool(ECHO), tool(SAFE, annotations={"readOnlyHint": True}), tool(f"v{version}"), tool(RESET)]


class Memory:
    """What each process of a server keeps of who has called it: the session, or the single call if it `is_of_calls`. It
    answers their calls. Its tool `reset` forgets, unless that `is_broken`. `mixed`: who met what of somebody else, in
    words."""

    def __init__(self, *, is_of_calls: bool = False) -> None:
        self.is_broken = False
        self.mixed: list[str] = []
        self._is_of_calls = is_of_calls
        self._users: dict[int, object] = {}

    def __call__(self, call: FakeCall) -> Mapping[str, Any]:
        if call.tool == RESET:
            if not self.is_broken:
                self._users.pop(call.start, None)
            return {**echo(call), "isError": self.is_broken}
        who = call.get("n") if self._is_of_calls else call.get("who")
        before = self._users.setdefault(call.start, who)
        if before != who:
            self.mixed.append(f"process {call.start}: {who} met what {before} had left")
        return echo(call)


class ServerFaults:
    """The faults of one world's servers. `pace`: how many seconds each step of a healthy server takes."""

    def __init__(
        self,
        servers: Mapping[str, FakeServer],
        pace: Mapping[str, float],
        truth: WorldTruth,
        run: VirtualRun,
        background: Background,
        memories: Mapping[str, Memory],
    ) -> None:
        self._servers = servers
        self._memories = memories
        self._pace = dict(pace)
        self._truth = truth
        self._run = run
        self._background = background
        self._versions = dict.fromkeys(servers, 0)
        for name, server in servers.items():
            self._set_pace(server)
            truth.slowest_stop[name] = server.stop_latency
            self._note_slowness(name)

    def lose(self, server: str, delay: float = 0.0, loss: Reason = Reason.DIED) -> None:
        """Its connection is lost: the process dies, or the server has forgotten the session."""

        def act() -> None:
            for fault in ("lost", "failing"):
                self._truth.hurt_now(fault, server)
            text = "session expired" if loss is Reason.EXPIRED else "exited with code 1"
            for connection in tuple(self._servers[server].connections):
                connection.lose(LostReason(text, None if loss is Reason.EXPIRED else 1, loss=loss))

        self._background.later(delay, act)

    def slow_down(self, server: str, step: str, seconds: float) -> None:
        """`step`: start, initialize, list, call or stop. With `HANG` it never ends."""
        setattr(self._servers[server], f"{step}_latency", seconds)
        if step == "stop":
            self._servers[server].wreck_latency = seconds
            self._truth.slowest_stop[server] = max(self._truth.slowest_stop[server], seconds)
        if step in ("start", "initialize", "list") and seconds == HANG:
            self._truth.hurt("hung", server)
        self._note_slowness(server)

    def refuse(self, server: str, how: str = "refuse_start") -> None:
        """It cannot be started; with `refuse_initialize` it starts and refuses the handshake."""
        setattr(self._servers[server], how, "no")
        self._truth.hurt("failing", server)

    def deafen(self, server: str, *, blocked: bool = False) -> None:
        """It answers nothing any more. `blocked`: it does not read either."""
        setattr(self._servers[server], "blocked" if blocked else "deaf", True)
        self._truth.silent_since.setdefault(server, self._run.now)
        for fault in ("failing", "hung", "slow", "full pipe") if blocked else ("failing", "hung", "slow"):
            self._truth.hurt(fault, server)

    def break_reset(self, server: str) -> None:
        """Its tool `reset` resets nothing any more, and says so."""
        self._memories[server].is_broken = True

    def heal(self, server: str) -> None:
        """It is healthy again."""
        fake = self._servers[server]
        self._set_pace(fake)
        fake.refuse_start = fake.refuse_initialize = None
        fake.blocked = fake.deaf = False
        self._memories[server].is_broken = False
        self._truth.healed(server)
        self._note_slowness(server)

    def change_tools(self, server: str, *, is_overtaken: bool = False) -> None:
        """Give it other tools, and let it say so.

        `is_overtaken`: it says so to one connection first, which reads the list slowly. Then the tools change again,
        and it says so to all. So the first list arrives after the second.
        """
        fake = self._servers[server]
        if is_overtaken and fake.connections:
            latency, fake.list_latency = fake.list_latency, 3.0
            self._have_newer_tools(server)
            self._run.run(_step(lambda: fake.announce_tools(only=fake.connections[0])))
            self._run.advance(0.25)
            fake.list_latency = latency
        self._have_newer_tools(server)
        self._run.run(_step(fake.announce_tools))

    def _have_newer_tools(self, server: str) -> None:
        self._versions[server] += 1
        self._servers[server].tools = tools_of(self._versions[server])

    def _set_pace(self, fake: FakeServer) -> None:
        for step in _STEPS:
            setattr(fake, f"{step}_latency", self._pace.get(step, 0.0))
        fake.wreck_latency = fake.stop_latency

    def _note_slowness(self, server: str) -> None:
        """Write down which of its time limits the server now exceeds."""
        fake, settings = self._servers[server], self._truth.config.settings
        definition = self._truth.config.servers.get(server)
        call_limit = (definition and definition.call_timeout) or settings.call_timeout
        connect_limit = (definition and definition.connect_timeout) or settings.connect_timeout
        connects_in = fake.start_latency + fake.initialize_latency + fake.list_latency
        if fake.call_latency >= call_limit - EPS:
            self._truth.hurt("hung", server)
            self._truth.hurt("slow", server)
        if connects_in >= connect_limit - EPS:
            self._truth.hurt("failing", server)
        if 2 * (connects_in + fake.stop_latency) >= min(settings.queue_timeout, settings.acquire_timeout):
            self._truth.hurt("late", server)


def _step(act: Callable[[], object]) -> Callable[[], Awaitable[None]]:
    """`act` as a step of the run."""

    async def step() -> None:
        act()

    return step


LONG = 1_000.0  # seconds; longer than anything here may take


@attrs.define(eq=False)
class OneCall:
    """One call that the world made."""

    number: int
    server: str
    tool: str
    session: str | None
    began: float
    definition: ServerDefinition | None  # its server's, when the call began
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    asked_to_leave: bool = False
    ended: float | None = None
    is_judged: bool = False
    was_down: bool = False  # whether its server was, when the call began
    outcomes: list[str | GreenroomError] = attrs.field(factory=list[str | GreenroomError])

    def __str__(self) -> str:
        where = f" in {self.session}" if self.session else ""
        return f"call {self.number} of {self.server}_{self.tool}{where}"


class World:
    """A room with fake servers in virtual time, its callers, and what must be true of them.

    `entries`: the entries of `mcpServers`; each gets a fake server instead of a command. `settings`: the settings of
    the room. `seed`: decides the order of tasks. `pace`: seconds that each step of a healthy server takes (start,
    initialize, list, call, stop). `record`: a tape, as in `Greenroom.open`."""

    def __init__(
        self,
        entries: Mapping[str, Mapping[str, Any]],
        settings: Mapping[str, Any] | None = None,
        *,
        seed: int = 0,
        pace: Mapping[str, float] | None = None,
        record: str | os.PathLike[str] | None = None,
    ) -> None:
        self.entries: dict[str, dict[str, Any]] = {
            name: {"command": "fake", **entry} for name, entry in entries.items()
        }  # of `mcpServers`
        self.settings: dict[str, Any] = dict(settings or {})  # the room's
        isolation = self.settings.get("isolation")
        self.memories: dict[str, Memory] = {
            name: Memory(is_of_calls=entry.get("isolation", isolation) == "per_call")
            for name, entry in entries.items()
        }  # what their processes keep of who has called them
        self.servers: dict[str, FakeServer] = {
            name: FakeServer(tools=tools_of(0), handler=self.memories[name]) for name in entries
        }  # by name
        self.calls: list[OneCall] = []  # all that were made, in their order
        self.sessions: dict[str, Session] = {}  # those that are open, by name
        self._opened: dict[str, int] = {}  # how often each session was opened
        self._ending: set[str] = set()  # sessions that are being closed
        self.is_closed = False  # whether the room is
        self._removed: dict[str, dict[str, Any]] = {}
        seed_schedule(seed)
        self.room: Greenroom = Greenroom.open(
            self._source(),
            cache_path=":memory:",
            connectors=fake_connectors(self.servers),
            bootstrap=False,
            record=record,
        )  # the real one
        self.inside: RoomInside = RoomInside(self.room)  # what only a test may see of the room
        self.run: VirtualRun = VirtualRun()  # the trio run of the room
        self.background: Background = Background(self.run)  # what goes on beside the steps
        self.truth: WorldTruth = WorldTruth(self.inside, self.room, self.run)  # what must be so
        self.faults: ServerFaults = ServerFaults(
            self.servers, pace or {}, self.truth, self.run, self.background, self.memories
        )  # what goes wrong with the servers
        self.checker: TraceChecker = TraceChecker(self.truth)  # compares each event with the truth
        self.versions: Versions = Versions(self.room, entries)  # of the servers' lists
        self.events: list[Event] = []  # all of the room so far
        for name, entry in self.entries.items():
            if entry.get("disabled"):
                self.truth.note_ask("disabled", name)
        try:
            self.do(self._open)
        except BaseException:
            self.run.close()
            raise

    async def _open(self) -> None:
        await self.room.start(self.run.nursery)
        stream = self.inside.events
        stream.listen(self.events.append)
        stream.listen(self.checker.read)
        stream.listen(self.versions.read)
        for actor in self.inside.actors():  # some started before anybody could listen
            self.checker.begin(actor.address, actor.state, actor.incarnation)
        for name, server in self.servers.items():
            await self.inside.teach(name, server.tools)

    def _source(self) -> dict[str, Any]:
        settings = {**self.settings, "toolPrefix": "server"}  # as `call` names the tools
        return {"mcpServers": dict(self.entries), "settings": settings}

    @property
    def now(self) -> float:
        """Seconds on the virtual clock."""
        return self.run.now

    @property
    def config(self) -> Config:
        """The configuration that the room has now."""
        return self.room.config

    def do(self, step: Callable[[], Awaitable[object]]) -> None:
        """Await `step()` in the run, and let everything settle."""
        self.run.run(step)

    def advance(self, seconds: float) -> None:
        """Let time pass, one deadline after the other."""
        self.run.advance(seconds)

    # ---- calls ------------------------------------------------------------------------------------------------------

    def call(
        self,
        server: str,
        tool: str = ECHO,
        *,
        count: int = 1,
        session: str | None = None,
        leave_after: int | None = None,
    ) -> None:
        """Start `count` calls at once. `leave_after`: each is cancelled after this many turns of the loop."""

        async def burst() -> None:
            for _ in range(count):
                one = OneCall(
                    len(self.calls), server, tool, session, self.now, self.config.servers.get(server)
                )
                one.was_down = self.truth.is_down(server)
                self.calls.append(one)
                self.run.nursery.start_soon(self._call, one)
                if leave_after is not None:
                    one.asked_to_leave = True
                    self.run.nursery.start_soon(self._leave, one, leave_after)

        self.do(burst)

    async def _call(self, one: OneCall) -> None:
        caller = self.sessions[one.session] if one.session is not None else self.room
        arguments = {"n": one.number, "who": self._who(one.session)}
        with one.scope:
            try:
                one.outcomes.append((await caller.call(f"{one.server}_{one.tool}", arguments)).text)
            except GreenroomError as error:
                one.outcomes.append(error)
        if one.scope.cancelled_caught:
            one.outcomes.append("cancelled")
        one.ended = self.now

    def _who(self, session: str | None) -> str | None:
        """One name for each session that was opened, also after another of the same name."""
        if session is None or self._opened[session] == 1:
            return session
        return f"{session}, opened {self._opened[session]} times"

    async def _leave(self, one: OneCall, turns: int) -> None:
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        one.scope.cancel()

    @property
    def pending(self) -> list[OneCall]:
        """The calls that have not ended."""
        return [call for call in self.calls if call.ended is None]

    def cancel(self, one: OneCall, delay: float = 0.0) -> None:
        """Cancel the call in `delay` seconds."""
        one.asked_to_leave = True
        self.background.later(delay, one.scope.cancel)

    # ---- what is asked of the room ----------------------------------------------------------------------------------

    def ask(self, what: str, server: str, *, patience: float = LONG, delay: float = 0.0) -> None:
        """Ask for a server by name, in a task that waits at most `patience` seconds. `what`: connect, drain, restart
        or find."""

        async def body() -> None:
            await anyio.sleep(delay)
            ask = self.truth.begin_ask(what, server)
            try:
                with anyio.move_on_after(patience):
                    if what == "find":
                        await port_of(self.room).find(f"{server}_nothing")
                    else:
                        await getattr(self.room, what)(server)
            finally:
                self.truth.end_ask(ask)

        self.background.start(body)

    def reload(self, change: str, server: str) -> None:
        """Reload with one change. `change`: same, policy, definition, disable, enable, remove or restore."""
        entry = self.entries.get(server)
        match change:
            case "policy" if entry is not None:
                entry["idleTimeout"] = 0.05 if entry.get("idleTimeout") != 0.05 else 0.2
                self.truth.note_ask("policy", server)
            case "definition" if entry is not None:
                entry["args"] = [*entry.get("args", ()), "more"]
                self.truth.redefined_at[server] = self.now
                self.truth.note_ask("reload", server)
            case "disable" if entry is not None:
                entry["disabled"] = True
                self.truth.note_ask("disabled", server)
            case "enable" if entry is not None and entry.pop("disabled", False):
                self.truth.note_ask("reload", server)
            case "remove" if entry is not None and len(self.entries) > 1:
                self._removed[server] = self.entries.pop(server)
                self.truth.note_ask("removed", server)
            case "restore" if server in self._removed:
                if server not in self.inside.servers:
                    self.checker.forget(server)
                self.entries[server] = self._removed.pop(server)
                self.truth.note_ask("reload", server)
            case _:
                pass
        self.truth.reloaded_at = self.now
        self.do(lambda: self.room.reload(self._source()))
        if server in self.entries and self.room.entry(server) is None:  # else it would be newer than it says
            self.do(lambda: self.inside.teach(server, self.servers[server].tools))

    def can_open_session(self, name: str) -> bool:
        """Whether no session of this name is open or being closed."""
        return name not in self.sessions and name not in self._ending

    def open_session(self, name: str) -> None:
        """Open a session of the room."""
        self._opened[name] = self._opened.get(name, 0) + 1
        self.sessions[name] = self.room.session(name)
        self.do(self.sessions[name].__aenter__)

    def close_session(self, name: str) -> None:
        """End the session while its calls run."""
        for server in self.servers:
            self.truth.note_ask("scope ended", f"{server}[session:{name}]")
        session = self.sessions.pop(name)
        self._ending.add(name)

        async def close() -> None:
            await session.aclose()
            self._ending.discard(name)

        self.background.start(close)

    def close(self) -> None:
        """Close the room. Returns when it has closed, or when the longest time that closing may take is over."""
        self.truth.note_ask("shutdown", "")
        self.is_closed: bool = True
        self.background.start(self.room.aclose)
        self.advance(20.0)


# ---- Tasks of a world that wait in the background --------------------------------------------------------------------
#
# Callers, delays, everything that does not end within its step.


class Background:
    """`waiting`: how many of the tasks have not ended. `unexpected`: errors that no caller of a room should see."""

    def __init__(self, run: VirtualRun) -> None:
        self.waiting = 0
        self.unexpected: list[str] = []
        self._run = run

    def start(self, body: Callable[[], Awaitable[object]]) -> None:
        """Run `body` in a task of its own. It may fail with an error of ours."""

        async def job() -> None:
            try:
                await body()
            except GreenroomError:
                pass
            except Exception as error:
                self.unexpected.append(f"{error!r} came out of the room")
            finally:
                self.waiting -= 1

        async def go() -> None:
            self.waiting += 1
            self._run.nursery.start_soon(job)

        self._run.run(go)

    def later(self, delay: float, act: Callable[[], None]) -> None:
        """Call `act` in `delay` seconds."""

        async def body() -> None:
            await anyio.sleep(delay)
            act()

        self.start(body)


# ---- The truth about a world -----------------------------------------------------------------------------------------
#
# Which faults its servers have had, what was asked of the room, and how its slots are held.
#
# A `World` writes down what it does, the trace checker and the laws read it. They decide with it whether the room
# reacted rightly: a server that was not hurt must not be lost.


@attrs.define(eq=False)
class Ask:
    """Something that was asked of the room, by name. While somebody still asks, `ended` is None."""

    what: str
    server: str
    ended: float | None = None


class WorldTruth:
    """The `GroundTruth` of one world. All times are seconds of its run."""

    def __init__(self, inside: RoomInside, room: Greenroom, run: VirtualRun) -> None:
        self.silent_since: dict[str, float] = {}  # servers that do not answer
        self.reloaded_at: float = 0.0  # a reload begins health checks anew
        self.redefined_at: dict[str, float] = {}  # servers that a reload gave another definition
        self.slowest_stop: dict[str, float] = {}
        self._inside = inside
        self._room = room
        self._run = run
        self._faults: dict[tuple[str, str], float] = {}  # (fault, server) -> until when; `inf`: still
        self._asks: list[Ask] = []

    @property
    def config(self) -> Config:
        return self._room.config

    # ---- faults -----------------------------------------------------------------------------------------------------

    def hurt(self, fault: str, server: str) -> None:
        """The server has this fault from now on."""
        self._faults[fault, server] = math.inf

    def hurt_now(self, fault: str, server: str) -> None:
        """The server has this fault at this moment."""
        self._faults[fault, server] = max(self._faults.get((fault, server), 0.0), self._run.now)

    def healed(self, server: str) -> None:
        """All faults of the server end now."""
        self.silent_since.pop(server, None)
        for (fault, name), until in self._faults.items():
            if name == server and until == math.inf:
                self._faults[fault, name] = self._run.now

    def was(self, fault: str, server: str, since: float) -> bool:
        return self._faults.get((fault, server), -math.inf) >= since - EPS

    # ---- what was asked ---------------------------------------------------------------------------------------------

    def note_ask(self, what: str, server: str) -> None:
        """Something was asked that takes no time."""
        self._asks.append(Ask(what, server, self._run.now))

    def begin_ask(self, what: str, server: str) -> Ask:
        """Somebody begins to ask. Give it to `end_ask` when they stop."""
        ask = Ask(what, server)
        self._asks.append(ask)
        return ask

    def end_ask(self, ask: Ask) -> None:
        ask.ended = self._run.now

    def asked(self, what: str, server: str, since: float) -> bool:
        if what == "down":
            return self.is_down(server)
        kinds = {"connect": ("connect", "restart", "reload"), "drained": ("drain",)}.get(what, (what,))
        return any(ask.ended is None or ask.ended >= since - EPS for ask in self._asks_for(server, *kinds))

    def last_asked(self, what: str, server: str) -> float:
        """When somebody last stopped asking; now, if somebody still asks."""
        ends = (self._run.now if ask.ended is None else ask.ended for ask in self._asks_for(server, what))
        return max(ends, default=-math.inf)

    def is_down(self, server: str) -> bool:
        """It was taken down on purpose, and nobody has asked for it since. A disabled one stays down."""
        if server in self.config.unusable:
            return True
        what = [ask.what for ask in self._asks if ask.server == server and ask.what != "find"]
        return bool(what) and what[-1] in ("drain", "disabled", "removed")

    def _asks_for(self, server: str, *kinds: str) -> Iterator[Ask]:
        return (ask for ask in self._asks if ask.what in kinds and ask.server == server)

    # ---- slots and permits ------------------------------------------------------------------------------------------

    def lines(self) -> dict[str, tuple[Address, ...]]:
        # Servers with a slot of their own, and calls apart, have bounds of their own.
        waiting, is_kept = self._inside.at(Place.SLOT), self._inside.is_kept
        slots = [actor for actor in waiting if actor.address.is_shared and not is_kept(actor)]
        return {
            "slot": tuple(actor.address for actor in slots),
            "session slot": tuple(actor.address for actor in waiting if actor.address.is_session),
            "permit": tuple(actor.address for actor in self._inside.at(Place.PERMIT)),
        }

    def seats(self, *, of_sessions: bool) -> Seats:
        inside = self._inside
        held = inside.holders(of_sessions=of_sessions)
        leaving = [actor for actor in held if actor.state is State.DRAINING]
        return Seats(
            inside.most_slots(of_sessions=True) if of_sessions else inside.free_for_all,
            0 if of_sessions else inside.fewest_slots,
            len(held) - len(leaving),
            sum(not inside.is_kept(actor) for actor in held),
            sum(not inside.is_kept(actor) for actor in leaving),
            sum(actor.address.is_session is of_sessions for actor in inside.at(Place.SLOT)),
        )


# ---- The versions of the servers' lists that a room knows, each time one changes ------------------------------------
#
# A fake server's list names its version (`tools_of`). What a room knows of a server may never be
# replaced by something older, not even for the moment until the next list arrives: so each change is looked at when it
# is told, too.


class Versions:
    """`seen`: what was known of each server at the last look. `violations`: in words."""

    def __init__(self, room: Greenroom, servers: Iterable[str]) -> None:
        self.seen: dict[str, int] = dict.fromkeys(servers, 0)
        self.violations: list[str] = []
        self._room = room

    def read(self, event: Event) -> None:
        """An event of the room, in the step that emitted it."""
        if isinstance(event, CatalogueChanged) and event.address is not None:
            self.look(event.address.server)

    def look(self, server: str) -> None:
        entry = self._room.entry(server) if server in self._room.config.servers else None
        version = _version_of(entry) if entry is not None else 0
        if entry is not None and version < self.seen[server]:
            self.violations.append(f"{server}: version {version} replaced a newer one")
        self.seen[server] = version


def _version_of(entry: ServerEntry) -> int:
    names = (str(each["name"]) for each in entry.tools or ())
    return next(int(name[1:]) for name in names if name.startswith("v"))
