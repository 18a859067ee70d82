"""What can be done to the servers of a world: lose, slow down, refuse, deafen, heal them, or change their tools.

Each method changes the fake server and writes down in the `Truth` what follows from it, for example that a server that
takes longer to start than it may will fail to connect.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ..actors import LostReason
from ..protocol.lifecycle import Reason
from ._background import Background
from ._fake import HANG, FakeServer, tool
from ._lives import EPS
from ._truth import Truth
from ._virtual_run import VirtualRun

ECHO, SAFE = "echo", "safe"  # the second declares that running it twice is harmless
_STEPS = ("start", "greet", "list", "call", "stop")


def tools_of(version: int) -> list[dict[str, Any]]:
    """The tools of a server at this version. A later version replaces one tool by another."""
    return [tool(ECHO), tool(SAFE, annotations={"readOnlyHint": True}), tool(f"v{version}")]


class ServerFaults:
    """The faults of one world's servers. `pace`: how many seconds each step of a healthy server takes."""

    def __init__(
        self,
        servers: Mapping[str, FakeServer],
        pace: Mapping[str, float],
        truth: Truth,
        run: VirtualRun,
        background: Background,
    ) -> None:
        self._servers = servers
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
        """`step`: start, greet, list, call or stop. With `HANG` it never ends."""
        setattr(self._servers[server], f"{step}_latency", seconds)
        if step == "stop":
            self._servers[server].wreck_latency = seconds
            self._truth.slowest_stop[server] = max(self._truth.slowest_stop[server], seconds)
        if step in ("start", "greet", "list") and seconds == HANG:
            self._truth.hurt("hung", server)
        self._note_slowness(server)

    def refuse(self, server: str, how: str = "refuse_start") -> None:
        """It cannot be started; with `refuse_greeting` it starts and refuses the handshake."""
        setattr(self._servers[server], how, "no")
        self._truth.hurt("failing", server)

    def deafen(self, server: str, *, blocked: bool = False) -> None:
        """It answers nothing any more. `blocked`: it does not read either."""
        setattr(self._servers[server], "blocked" if blocked else "deaf", True)
        self._truth.silent_since.setdefault(server, self._run.now)
        for fault in ("failing", "hung", "slow", "full pipe") if blocked else ("failing", "hung", "slow"):
            self._truth.hurt(fault, server)

    def heal(self, server: str) -> None:
        """It is healthy again."""
        fake = self._servers[server]
        self._set_pace(fake)
        fake.refuse_start = fake.refuse_greeting = None
        fake.blocked = fake.deaf = False
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
        connects_in = fake.start_latency + fake.greet_latency + fake.list_latency
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
