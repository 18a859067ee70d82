"""A world to search: one room over fake servers in virtual time, its callers, and everything that is done to it.

Each thing that a step can do is a plain method, which returns once the room has settled: start and cancel calls, hurt
and heal a server, connect or drain by name, reload, open and close sessions, let time pass. The world records what was
done (`was`, `asked`), because that decides whether the room's reaction is right. `_laws` says what must hold. It needs
neither Hypothesis nor pytest, so a script can drive it as well as a search.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import trio

from ..actors import Learn, LostReason, ServerActor, Sync
from ..protocol.address import Address
from ..protocol.catalogue import ServerEntry
from ..protocol.config import Config, ServerDefinition
from ..protocol.errors import GreenroomError
from ..protocol.events import Event
from ..protocol.lifecycle import Reason, State
from ..protocol.start import Place
from ..supervisor import Greenroom
from ..supervisor._session import Session
from ._fake import HANG, FakeServer, fake_connectors, tool
from ._lives import EPS, Seats
from ._schedule import seed_schedule
from ._trace_checker import TraceChecker
from ._virtual_run import VirtualRun

ECHO, SAFE = "echo", "safe"  # the second declares that running it twice is harmless
LONG = 1_000.0  # seconds; longer than anything here may take


def tools_of(version: int) -> list[dict[str, Any]]:
    """What a server of this version has. Later versions only ever add to what is known of it."""
    return [tool(ECHO), tool(SAFE, annotations={"readOnlyHint": True}), tool(f"v{version}")]


async def teach(room: Any, server: str, tools: list[dict[str, Any]]) -> None:
    """Make the index know what the server has, as a cache would: nothing is started."""
    router = room._runtime.router.ref
    router.tell(Learn(ServerEntry(server, "", tools=tuple(tools))))
    await router.ask(Sync)


@attrs.define(eq=False)
class OneCall:
    """One call of a caller of ours."""

    number: int
    server: str
    tool: str
    session: str | None
    began: float
    definition: ServerDefinition | None  # of its server, when it began
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    asked_to_leave: bool = False
    ended: float | None = None
    is_judged: bool = False
    was_down: bool = False  # its server, when it began
    outcomes: list[str | GreenroomError] = attrs.field(factory=list[str | GreenroomError])

    def __str__(self) -> str:
        where = f" in {self.session}" if self.session else ""
        return f"call {self.number} of {self.server}_{self.tool}{where}"


@attrs.define(eq=False)
class _Ask:
    what: str
    server: str
    ended: float | None = None


class World:
    """One room and everything around it.

    `entries`: the `mcpServers` entries (each gets a fake in place of a command); `settings`: the room's; `seed`: the
    schedule; `pace`: how long a well server takes to start, call and stop, in seconds.
    """

    def __init__(
        self,
        entries: Mapping[str, Mapping[str, Any]],
        settings: Mapping[str, Any] | None = None,
        *,
        seed: int = 0,
        pace: Mapping[str, float] | None = None,
    ) -> None:
        self.entries = {name: {"command": "fake", **entry} for name, entry in entries.items()}
        self.settings = dict(settings or {})
        self.servers = {name: FakeServer(tools=tools_of(0)) for name in entries}
        self._pace = dict(pace or {})
        for server in self.servers.values():
            self._set_pace(server)
        self.versions = dict.fromkeys(entries, 0)
        self.slowest_stop = dict.fromkeys(entries, self._pace.get("stop", 0.0))
        self.seen_versions = dict.fromkeys(entries, 0)
        self.calls: list[OneCall] = []
        self.sessions: dict[str, Session] = {}
        self.is_closed = False
        self.waiting = 0  # tasks of askers that have not come back
        self.unexpected: list[str] = []
        self.silent_since: dict[str, float] = {}  # deaf servers
        self.reloaded_at = 0.0  # a reload begins health checks anew
        self.redefined_at: dict[str, float] = {}  # servers that a reload gave another definition
        self._faults: dict[tuple[str, str], float] = {}  # (fault, server) -> until when; `inf`: still
        self._asks: list[_Ask] = []
        self._removed: dict[str, dict[str, Any]] = {}
        seed_schedule(seed)
        self.room = Greenroom.open(
            self._source(),
            cache_path=":memory:",
            connectors=fake_connectors(self.servers),
            bootstrap=False,
        )
        self.run = VirtualRun()
        self._inside: Any = self.room  # what the room keeps is looked at, never changed
        self.checker = TraceChecker(self)
        self.events: list[Event] = []
        for name, entry in self.entries.items():
            self._note_slowness(name)
            if entry.get("disabled"):
                self._note_ask("disabled", name)
        try:
            self.do(self._open)
        except BaseException:
            self.run.close()
            raise

    async def _open(self) -> None:
        await self.room.start(self.run.nursery)
        stream = self.runtime.context.events
        stream.listen(self.events.append)
        stream.listen(self.checker.read)
        for actor in self.root.actors.values():  # some were on their way before anybody could listen
            self.checker.begin(actor.address, actor.life.state, actor.life.incarnation)
        for name, server in self.servers.items():
            await teach(self.room, name, server.tools)

    def _source(self) -> dict[str, Any]:
        settings = {**self.settings, "toolPrefix": "server"}  # as `call` names the tools
        return {"mcpServers": dict(self.entries), "settings": settings}

    @property
    def now(self) -> float:
        return self.run.now

    @property
    def runtime(self) -> Any:
        return self._inside._runtime

    @property
    def root(self) -> Any:
        return self.runtime.root

    @property
    def config(self) -> Config:
        return self.room.config

    def do(self, step: Callable[[], Awaitable[object]]) -> None:
        """Await `step()` in there, and let everything settle."""
        self.run.run(step)

    def advance(self, seconds: float) -> None:
        """Let time pass, one deadline after the other."""
        self.run.advance(seconds)

    def later(self, delay: float, act: Callable[[], None]) -> None:
        """Do something `delay` seconds from now, in a task of its own."""

        async def body() -> None:
            await anyio.sleep(delay)
            act()

        self._in_background(body)

    def _in_background(self, body: Callable[[], Awaitable[object]]) -> None:
        """What waits, in a task of its own: that it fails is its own affair, that it ends is ours."""

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
            self.run.nursery.start_soon(job)

        self.do(go)

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
        """Start `count` calls at once. `leave_after`: each is cancelled after so many turns of the loop."""

        async def burst() -> None:
            for _ in range(count):
                one = OneCall(
                    len(self.calls), server, tool, session, self.now, self.config.servers.get(server)
                )
                one.was_down = self.is_down(server)
                self.calls.append(one)
                self.run.nursery.start_soon(self._call, one)
                if leave_after is not None:
                    one.asked_to_leave = True
                    self.run.nursery.start_soon(self._leave, one, leave_after)

        self.do(burst)

    async def _call(self, one: OneCall) -> None:
        caller = self.sessions[one.session] if one.session is not None else self.room
        arguments = {"n": one.number, "who": one.session}
        with one.scope:
            try:
                one.outcomes.append((await caller.call(f"{one.server}_{one.tool}", arguments)).text)
            except GreenroomError as error:
                one.outcomes.append(error)
        if one.scope.cancelled_caught:
            one.outcomes.append("cancelled")
        one.ended = self.now

    async def _leave(self, one: OneCall, turns: int) -> None:
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        one.scope.cancel()

    @property
    def pending(self) -> list[OneCall]:
        return [call for call in self.calls if call.ended is None]

    def cancel(self, one: OneCall, delay: float = 0.0) -> None:
        one.asked_to_leave = True
        self.later(delay, one.scope.cancel)

    # ---- what is done to servers ------------------------------------------------------------------------------------

    def hurt(self, fault: str, server: str) -> None:
        """Record that the server has this fault from now on."""
        self._faults[fault, server] = math.inf

    def lose(self, server: str, delay: float = 0.0, loss: Reason = Reason.DIED) -> None:
        """Its connection is lost: the process dies, or the server has forgotten the session."""

        def act() -> None:
            for fault in ("lost", "failing"):
                self._faults[fault, server] = max(self._faults.get((fault, server), 0.0), self.now)
            text = "session expired" if loss is Reason.EXPIRED else "exited with code 1"
            for connection in tuple(self.servers[server].connections):
                connection.lose(LostReason(text, None if loss is Reason.EXPIRED else 1, loss=loss))

        self.later(delay, act)

    def slow_down(self, server: str, step: str, seconds: float) -> None:
        """`step`: start, greet, list, call or stop; `HANG` never comes back."""
        setattr(self.servers[server], f"{step}_latency", seconds)
        if step == "stop":
            self.servers[server].wreck_latency = seconds
            self.slowest_stop[server] = max(self.slowest_stop[server], seconds)
        if step in ("start", "greet", "list") and seconds == HANG:
            self.hurt("hung", server)
        self._note_slowness(server)

    def _note_slowness(self, server: str) -> None:
        """What it is too slow for, by what it is given."""
        fake, settings = self.servers[server], self.config.settings
        definition = self.config.servers.get(server)
        call_limit = (definition and definition.call_timeout) or settings.call_timeout
        connect_limit = (definition and definition.connect_timeout) or settings.connect_timeout
        connects_in = fake.start_latency + fake.greet_latency + fake.list_latency
        if fake.call_latency >= call_limit - EPS:
            self.hurt("hung", server)
            self.hurt("slow", server)
        if connects_in >= connect_limit - EPS:
            self.hurt("failing", server)
        if 2 * (connects_in + fake.stop_latency) >= min(settings.queue_timeout, settings.acquire_timeout):
            self.hurt("late", server)

    def refuse(self, server: str, how: str = "refuse_start") -> None:
        setattr(self.servers[server], how, "no")
        self.hurt("failing", server)

    def deafen(self, server: str, *, blocked: bool = False) -> None:
        """It answers nothing any more; `blocked`: it does not even read."""
        setattr(self.servers[server], "blocked" if blocked else "deaf", True)
        self.silent_since.setdefault(server, self.now)
        for fault in ("failing", "hung", "slow", "full pipe") if blocked else ("failing", "hung", "slow"):
            self.hurt(fault, server)

    def heal(self, server: str) -> None:
        fake = self.servers[server]
        self._set_pace(fake)
        fake.refuse_start = fake.refuse_greeting = None
        fake.blocked = fake.deaf = False
        self.silent_since.pop(server, None)
        for (fault, name), until in self._faults.items():
            if name == server and until == math.inf:
                self._faults[fault, name] = self.now
        self._note_slowness(server)

    def change_tools(self, server: str, *, is_overtaken: bool = False) -> None:
        """Give it other tools; it says so. `is_overtaken`: first it tells one connection, which reads the list slowly.
        Then the tools change again and all connections are told, so that the first list arrives after the second."""
        fake = self.servers[server]
        if is_overtaken and fake.connections:
            latency, fake.list_latency = fake.list_latency, 3.0
            self._have_newer_tools(server)
            self.do(lambda: _plainly(lambda: fake.announce_tools(only=fake.connections[0])))
            self.advance(0.25)
            fake.list_latency = latency
        self._have_newer_tools(server)
        self.do(lambda: _plainly(fake.announce_tools))

    def _set_pace(self, fake: FakeServer) -> None:
        for step in ("start", "greet", "list", "call", "stop"):
            setattr(fake, f"{step}_latency", self._pace.get(step, 0.0))
        fake.wreck_latency = fake.stop_latency

    def _have_newer_tools(self, server: str) -> None:
        self.versions[server] += 1
        self.servers[server].tools = tools_of(self.versions[server])

    # ---- what is asked of the room ----------------------------------------------------------------------------------

    def ask(self, what: str, server: str, *, patience: float = LONG, delay: float = 0.0) -> None:
        """`what`: connect, drain, restart or find. The asking task waits at most `patience` seconds."""
        ask = _Ask(what, server)

        async def body() -> None:
            await anyio.sleep(delay)
            self._asks.append(ask)
            try:
                with anyio.move_on_after(patience):
                    if what == "find":
                        await self.room.find(f"{server}_nothing")
                    else:
                        await getattr(self.room, what)(server)
            finally:
                ask.ended = self.now

        self._in_background(body)

    def reload(self, change: str, server: str) -> None:
        """`change`: same, policy, definition, disable, enable, remove or restore."""
        entry = self.entries.get(server)
        match change:
            case "policy" if entry is not None:
                entry["idleTimeout"] = 0.05 if entry.get("idleTimeout") != 0.05 else 0.2
                self._note_ask("policy", server)
            case "definition" if entry is not None:
                entry["args"] = [*entry.get("args", ()), "more"]
                self.redefined_at[server] = self.now
                self._note_ask("reload", server)
            case "disable" if entry is not None:
                entry["disabled"] = True
                self._note_ask("disabled", server)
            case "enable" if entry is not None and entry.pop("disabled", False):
                self._note_ask("reload", server)
            case "remove" if entry is not None and len(self.entries) > 1:
                self._removed[server] = self.entries.pop(server)
                self._note_ask("removed", server)
            case "restore" if server in self._removed:
                if server not in self.root.records:
                    self.checker.forget(server)
                self.entries[server] = self._removed.pop(server)
                self._note_ask("reload", server)
            case _:
                pass
        self.reloaded_at = self.now
        self.do(lambda: self.room.reload(self._source()))
        if server in self.entries:
            self.do(lambda: teach(self.room, server, self.servers[server].tools))

    def open_session(self, name: str) -> None:
        self.sessions[name] = self.room.session(name)
        self.do(self.sessions[name].__aenter__)

    def close_session(self, name: str) -> None:
        """End it while its calls run."""
        for server in self.servers:
            self._note_ask("scope ended", f"{server}[session:{name}]")
        session = self.sessions.pop(name)
        self._in_background(session.aclose)

    def close(self) -> None:
        """Shut the room; returns when it has ended or had all the time it may take."""
        self._note_ask("shutdown", "")
        self.is_closed = True
        self._in_background(self.room.aclose)
        self.advance(20.0)

    def _note_ask(self, what: str, server: str) -> None:
        self._asks.append(_Ask(what, server, self.now))

    # ---- the ground truth -------------------------------------------------------------------------------------------

    def was(self, fault: str, server: str, since: float) -> bool:
        return self._faults.get((fault, server), -math.inf) >= since - EPS

    def asked(self, what: str, server: str, since: float) -> bool:
        if what == "down":
            return self.is_down(server)
        kinds = {"connect": ("connect", "restart", "reload"), "drained": ("drain",)}.get(what, (what,))
        return any(
            ask.what in kinds and ask.server == server and (ask.ended is None or ask.ended >= since - EPS)
            for ask in self._asks
        )

    def last_asked(self, what: str, server: str) -> float:
        """When somebody last stopped asking; now, if somebody still asks."""
        ends = (
            self.now if ask.ended is None else ask.ended
            for ask in self._asks
            if ask.what == what and ask.server == server
        )
        return max(ends, default=-math.inf)

    def lines(self) -> dict[str, tuple[Address, ...]]:
        starts = self.root.admission.starts
        # Those with a slot of their own, and sessions' children, have bounds of their own.
        slots = [
            actor for actor in starts.at(Place.SLOT) if actor.address.is_shared and not self._is_kept(actor)
        ]
        return {
            "slot": tuple(actor.address for actor in slots),
            "permit": tuple(actor.address for actor in starts.at(Place.PERMIT)),
        }

    def seats(self) -> Seats:
        admission = self.root.admission
        held = admission.starts.holders()
        leaving = [actor for actor in held if actor.life.state is State.DRAINING]
        return Seats(
            admission.capacity,
            admission.limits.minimum,
            len(held) - len(leaving),
            sum(not self._is_kept(actor) for actor in held),
            sum(not self._is_kept(actor) for actor in leaving),
            admission.starts.count(Place.SLOT),
        )

    def _is_kept(self, actor: ServerActor) -> bool:
        return actor.address.is_shared and actor.address.server in self.root.kept()

    def is_down(self, server: str) -> bool:
        """Taken down on purpose, and nobody has asked for it since."""
        what = [ask.what for ask in self._asks if ask.server == server and ask.what != "find"]
        return bool(what) and what[-1] in ("drain", "disabled", "removed")


async def _plainly(act: Callable[[], None]) -> None:
    act()
