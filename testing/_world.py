"""A world to search: one room over fake servers in virtual time, and its callers.

Each thing that a step can do is a plain method, which returns once the room has settled: start and cancel calls,
connect or drain a server by name, reload, open and close sessions, let time pass. What can be done to the servers
themselves is in `faults`. Everything that is done is written down in `truth`, because that decides whether the room
reacted rightly. `_laws` says what must hold. A world needs neither Hypothesis nor pytest, so a script can drive it as
well as a search.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import trio

from ..actors import Learn, Sync
from ..protocol.catalogue import ServerEntry
from ..protocol.config import Config, ServerDefinition
from ..protocol.errors import GreenroomError
from ..protocol.events import Event
from ..supervisor import Greenroom
from ..supervisor._session import Session
from ._background import Background
from ._fake import FakeServer, fake_connectors
from ._schedule import seed_schedule
from ._server_faults import ECHO, ServerFaults, tools_of
from ._trace_checker import TraceChecker
from ._truth import Truth
from ._versions import Versions
from ._virtual_run import VirtualRun

LONG = 1_000.0  # seconds; longer than anything here may take


async def teach(room: Any, server: str, tools: list[dict[str, Any]]) -> None:
    """Put the server's tools into the index, as a cache would. Nothing is started."""
    router = room._runtime.router.ref
    router.tell(Learn(ServerEntry(server, "", tools=tuple(tools))))
    await router.ask(Sync)


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
    """One room and everything around it.

    `entries`: the `mcpServers` entries; each gets a fake server in place of a command. `settings`: the room's. `seed`:
    what the order of tasks follows from. `pace`: how many seconds each step of a healthy server takes (start, greet,
    list, call, stop).
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
        self.calls: list[OneCall] = []
        self.sessions: dict[str, Session] = {}
        self._ending: set[str] = set()  # sessions that are being closed
        self.is_closed = False
        self._removed: dict[str, dict[str, Any]] = {}
        seed_schedule(seed)
        self.room = Greenroom.open(
            self._source(),
            cache_path=":memory:",
            connectors=fake_connectors(self.servers),
            bootstrap=False,
        )
        self.run = VirtualRun()
        self.background = Background(self.run)
        self.truth = Truth(self.room, self.run)
        self.faults = ServerFaults(self.servers, pace or {}, self.truth, self.run, self.background)
        self._inside: Any = self.room  # what the room keeps is looked at, never changed
        self.checker = TraceChecker(self.truth)
        self.versions = Versions(self.room, entries)
        self.events: list[Event] = []
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
        stream = self.runtime.context.events
        stream.listen(self.events.append)
        stream.listen(self.checker.read)
        stream.listen(self.versions.read)
        for actor in self.root.actors.values():  # some started before anybody could listen
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
                        await self.room.find(f"{server}_nothing")
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
                if server not in self.root.records:
                    self.checker.forget(server)
                self.entries[server] = self._removed.pop(server)
                self.truth.note_ask("reload", server)
            case _:
                pass
        self.truth.reloaded_at = self.now
        self.do(lambda: self.room.reload(self._source()))
        if server in self.entries and self.room.entry(server) is None:  # else it would be newer than it says
            self.do(lambda: teach(self.room, server, self.servers[server].tools))

    def can_open_session(self, name: str) -> bool:
        """Whether no session of this name is open or being closed."""
        return name not in self.sessions and name not in self._ending

    def open_session(self, name: str) -> None:
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
        """Close the room. Returns when it has closed, or has had all the time that it may take."""
        self.truth.note_ask("shutdown", "")
        self.is_closed = True
        self.background.start(self.room.aclose)
        self.advance(20.0)
