"""Small rooms under every order of their tasks, and with a caller that leaves at each moment.

Each scenario says what must be so in every one of its runs. What must hold for each of them: every call has one
outcome, the drain report adds up and agrees with the events, no server is left alive, and every number of the room is
back at nothing.

`make test` makes one deviation from the default order, and cancels in the default order, each on one loop; `make soak`
makes two, and cancels with one, on both. The orders of children that are started ahead are many, and `make soak` alone
has them all: `test_reset_search` draws some of them each time. That the scenarios can fail is shown at the end: with a
fault put into the room, in memory, they do, and chance does not find it.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest
import trio
from mcp import ClientSession, MCPError
from mcp_types import ElicitResult
from tests.support import books
from tests.support.loops import rows_on_loops
from tests.support.profiles import IS_DEEP
from tests.support.rooms import open_room, record_events, retire
from tools.mutants import MUTANTS
from tools.package_tree import file_of
from trio.testing import MockClock

from greenroom import CallError, Greenroom, InProcessDoor
from greenroom.actors.peer import LostReason
from greenroom.events import Event
from greenroom.testing import HANG, FakeServer, assert_one_outcome_each, explore, exploring, seed_schedule
from greenroom.testing.fake_servers import tool
from greenroom.testing.room_inside import RoomInside
from greenroom.testing.world import RESET, Memory

Scenario = Callable[[], Coroutine[Any, Any, None]]
OK = '{"it": 1}'
WITHIN = 10  # virtual seconds; the room's own limits are longer
checkpoint = anyio.lowlevel.checkpoint
ROOT = Path(__file__).resolve().parents[2]


@attrs.define
class Small:
    """One small room, and what became of its calls."""

    room: Greenroom
    servers: Mapping[str, FakeServer]
    outcomes: list[str] = attrs.field(factory=list[str])

    async def call(self, server: str, caller: Any = None) -> None:
        try:
            self.outcomes.append((await (caller or self.room).call(f"{server}_echo", {"it": 1})).text)
        except CallError as error:
            self.outcomes.append(error.code)
        except anyio.get_cancelled_exc_class():
            self.outcomes.append("cancelled")
            raise

    async def is_served(self, *servers: str) -> None:
        """Whoever calls now gets its answer: nothing that happened before stands in its way."""
        for server in servers:
            await self.call(server)
            assert self.outcomes[-1] == OK, f"a later call of {server} ends as {self.outcomes[-1]}"

    @property
    def live(self) -> int:
        return sum(server.live for server in self.servers.values())


@asynccontextmanager
async def small(servers: Mapping[str, FakeServer], **options: Any) -> AsyncGenerator[Small]:
    """Each server has been connected when it is entered. What must hold of every room is looked at in the end."""
    room = open_room(servers, **options)
    async with room:
        events = record_events(room, Event)
        it = Small(room, servers)
        for name in servers:
            await room.connect(name)
        yield it
    runtime: Any = RoomInside(room).machinery
    assert_one_outcome_each(events, room.drain_report)
    assert it.live == 0, "a server is left alive"
    assert list(books._not_at_nothing(runtime)) == []


async def together(*bodies: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Only this is explored. Nobody waits long, whatever happens: what is lost is told at once."""
    with exploring(), anyio.fail_after(WITHIN):
        async with anyio.create_task_group() as tasks:
            for body in bodies:
                tasks.start_soon(body)


# ---- scenarios -----------------------------------------------------------------------------------------------------


async def two_calls_while_it_is_evicted() -> None:
    """One slot. Nothing goes wrong, so every call gets its answer, in whatever order they come."""
    async with small({"a": FakeServer(call_latency=1), "b": FakeServer()}, maxConnections=1) as it:
        await it.room.connect("a")

        async def first() -> None:
            await it.call("a")

        async def second() -> None:
            await it.call("a")

        async def other() -> None:
            await it.call("b")
            assert it.live <= 1

        await together(first, second, other)
        assert it.outcomes.count(OK) + it.outcomes.count("cancelled") == 3
        await it.is_served("a", "b")


async def a_call_that_comes_later() -> None:
    """By then, it has been evicted for long. Unless that took longer, or the other call came later."""
    async with small({"a": FakeServer(), "b": FakeServer()}, maxConnections=1) as it:
        await it.room.connect("a")

        async def caller() -> None:
            for _ in range(12):
                await checkpoint()
            await it.call("a")

        async def other() -> None:
            await it.call("b")

        await together(caller, other)
        assert set(it.outcomes) <= {OK, "cancelled"}
        await it.is_served("a", "b")


async def a_drain_while_it_connects() -> None:
    """The call is answered or refused, and afterwards the server can be had again."""
    async with small({"a": FakeServer()}) as it:
        await it.room.drain("a")

        async def connect() -> None:
            try:
                await it.room.connect("a")
            except CallError as error:
                it.outcomes.append(error.code)

        async def drain() -> None:
            await it.room.drain("a")

        await together(connect, drain)
        assert set(it.outcomes) <= {"drained", "server_not_connected"}
        await it.room.connect("a")
        await it.is_served("a")


async def a_drain_while_calls_wait() -> None:
    """One place: one call is sent and never answered, the other one waits behind it."""
    far = FakeServer(call_latency=HANG)
    async with small({"a": far}, entries={"a": {"maxInFlight": 1}}, drainTimeoutMs=2_000) as it:

        async def caller() -> None:
            await it.call("a")

        async def other() -> None:
            await it.call("a")

        async def drain() -> None:
            await it.room.drain("a")

        await together(caller, other, drain)
        assert OK not in it.outcomes
        far.call_latency = 0
        await it.room.connect("a")
        await it.is_served("a")


async def a_call_while_the_room_closes() -> None:
    async with small({"a": FakeServer()}) as it:

        async def caller() -> None:
            await it.call("a")

        async def close() -> None:
            await it.room.aclose(0)

        await together(caller, close)


async def a_probe_of_a_breaker() -> None:
    """A server that failed before may be tried by one call. If that one leaves, another one may."""
    async with small({"a": FakeServer()}, failureThreshold=1, cooldownMs=1_000) as it:
        await retire(it.room, "a")
        it.servers["a"].refuse_start = "no"
        await it.call("a")
        it.servers["a"].refuse_start = None
        await anyio.sleep(100)

        async def caller() -> None:
            await it.call("a")

        async def other() -> None:
            await it.call("a")

        await together(caller, other)
        await it.is_served("a")


async def one_place_for_two_calls() -> None:
    """Whoever leaves is told to the server, when it has heard of the call."""
    async with small({"a": FakeServer(call_latency=1)}, entries={"a": {"maxInFlight": 1}}) as it:

        async def caller() -> None:
            await it.call("a")

        async def other() -> None:
            await it.call("a")

        await together(caller, other)
        far = it.servers["a"]
        assert it.outcomes.count(OK) + it.outcomes.count("cancelled") == 2
        assert len(far.calls) - far.cancelled == it.outcomes.count(OK)
        await it.is_served("a")


async def one_permit_for_two_servers() -> None:
    async with small({"a": FakeServer(), "b": FakeServer()}, startPermits=1) as it:
        await retire(it.room, "a")
        await retire(it.room, "b")

        async def caller() -> None:
            await it.call("a")

        async def other() -> None:
            await it.call("b")

        await together(caller, other)
        await it.is_served("a", "b")


async def a_restart_while_it_is_called() -> None:
    """Calls in flight finish, so the call gets its answer, from the one or from the other."""
    async with small({"a": FakeServer(call_latency=1)}) as it:

        async def caller() -> None:
            await it.call("a")

        async def restart() -> None:
            await it.room.restart("a")

        await together(caller, restart)
        assert it.outcomes in ([OK], ["cancelled"])
        assert it.servers["a"].most_live == 1
        await it.is_served("a")


async def a_reload_while_it_is_called() -> None:
    """The new definition replaces the old server when its calls are done."""
    async with small({"a": FakeServer(call_latency=1)}) as it:

        async def caller() -> None:
            await it.call("a")

        async def reload() -> None:
            await it.room.reload({"mcpServers": {"a": {"command": "fake", "args": ["new"]}}})

        await together(caller, reload)
        assert it.outcomes in ([OK], ["cancelled"])
        assert it.servers["a"].most_live == 1
        await it.is_served("a")


async def a_removal_while_it_is_called() -> None:
    """Whoever comes too late is told that there is no such tool, and whoever came before is served."""
    async with small({"a": FakeServer(call_latency=1), "b": FakeServer()}) as it:

        async def caller() -> None:
            await it.call("a")

        async def reload() -> None:
            await it.room.reload({"mcpServers": {"b": {"command": "fake"}}})

        await together(caller, reload)
        assert len(it.outcomes) == 1
        await anyio.sleep(60)
        assert it.servers["a"].live == 0
        await it.is_served("b")


async def a_session_that_ends_while_it_calls() -> None:
    async with small({"a": FakeServer()}, entries={"a": {"isolation": "per_session"}}) as it:
        before = it.live
        session = it.room.session("ann")
        await session.__aenter__()

        async def caller() -> None:
            await it.call("a", session)

        async def leave() -> None:
            await session.__aexit__(None, None, None)

        await together(caller, leave)
        await anyio.sleep(60)
        assert it.live == before, "a child of the session is left"


async def two_sessions_and_one_child_that_is_started_ahead() -> None:
    """One of them takes it over, and the other has a start of its own, whoever comes first; also if the child is lost
    meanwhile. There are three slots, so both need one, and what is started ahead leaves one free."""
    entry = {"isolation": "per_session", "warm": 1}
    async with small({"a": FakeServer()}, entries={"a": entry}, maxSessionConnections=3) as it:
        async with it.room.session("first") as first:
            await it.call("a", first)
        await anyio.sleep(1)
        server, outcomes = it.servers["a"], list[str]()
        (connection,), (ahead_one,) = server.connections, RoomInside(it.room).warm()

        async def call_in(name: str) -> None:
            async with it.room.session(name) as session:
                try:
                    outcomes.append((await session.call("a_echo", {"it": 1})).text)
                except anyio.get_cancelled_exc_class():
                    outcomes.append("cancelled")
                    raise
                assert server.live <= 3

        async def caller() -> None:
            await call_in("ann")

        async def other() -> None:
            await call_in("bob")

        async def crash() -> None:
            if ahead_one.state in ("ready", "claimed"):
                connection.lose(LostReason("killed by SIGKILL", -9))

        await together(caller, other, crash)
        assert outcomes.count(OK) == 2 - outcomes.count("cancelled")
        await anyio.sleep(5)
        assert [child.state for child in RoomInside(it.room).warm()] == ["ready"]
        async with it.room.session("later") as later:
            await it.call("a", later)
            assert it.outcomes[-1] == OK


async def two_sessions_and_one_child_that_is_reset() -> None:
    """One of them may have the process of the other, after a reset, or of a session before; neither meets anything of
    somebody else, whoever comes first, leaves, or is cancelled. The child may be lost meanwhile."""
    entry = {"isolation": "per_session", "warm": 1, "reset": RESET}
    memory = Memory()
    server = FakeServer(tools=[tool("echo"), tool(RESET)], handler=memory)
    async with small({"a": server}, entries={"a": entry}, maxSessionConnections=4) as it:
        outcomes: list[str] = []

        async def call_in(name: str) -> None:
            async with it.room.session(name) as session:
                try:
                    outcomes.append((await session.call("a_echo", {"it": 1, "who": name})).text)
                except anyio.get_cancelled_exc_class():
                    outcomes.append("cancelled")
                    raise

        await call_in("first")
        await anyio.sleep(1)
        await call_in("second")
        (child,), (connection,) = RoomInside(it.room).warm(), server.connections

        async def caller() -> None:
            await call_in("ann")

        async def other() -> None:
            await call_in("bob")

        async def crash() -> None:
            if child.state in ("ready", "claimed", "resetting"):
                connection.lose(LostReason("killed by SIGKILL", -9))

        await together(caller, other, crash)
        await anyio.sleep(5)
        await call_in("later")
        assert not memory.mixed
        assert [text for text in outcomes if "it" not in text] == ["cancelled"] * outcomes.count("cancelled")


async def a_client_in_process_that_is_asked() -> None:
    async with small({"a": FakeServer(handler=asks)}) as it, client_in_process(it) as client:

        async def caller() -> None:
            await call_of_client(it, client)

        async def other() -> None:
            await call_of_client(it, client)

        await together(caller, other)
        assert it.outcomes.count(OK) + it.outcomes.count("cancelled") == 2
        await call_of_client(it, client)
        assert it.outcomes[-1] == OK


async def a_client_in_process_that_goes_while_it_is_asked() -> None:
    async with small({"a": FakeServer(handler=asks)}) as it:
        here, gone = anyio.Event(), anyio.Event()
        clients: list[ClientSession] = []

        async def life() -> None:
            async with client_in_process(it) as client:
                clients.append(client)
                here.set()
                await gone.wait()

        async def caller() -> None:
            await call_of_client(it, clients[0])

        async def leave() -> None:
            gone.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(life)
            await here.wait()
            await together(caller, leave)
        # The last if its server was told first that nobody answers.
        assert it.outcomes in ([OK], ["cancelled"], ["Connection closed"], ["[a] Connection closed"])


async def asks(call: Any) -> Any:
    await call.elicit("it?")
    return {"content": [{"type": "text", "text": OK}]}


@asynccontextmanager
async def client_in_process(it: Small) -> AsyncGenerator[ClientSession]:
    async def accept(context: Any, params: Any) -> ElicitResult:
        await checkpoint()
        return ElicitResult(action="accept", content={})

    async with (
        InProcessDoor.open(it.room) as door,
        door.dispatcher() as dispatcher,
        ClientSession(dispatcher=dispatcher, elicitation_callback=accept) as client,
    ):
        await client.initialize()
        yield client


async def call_of_client(it: Small, client: ClientSession) -> None:
    try:
        result: Any = await client.call_tool("a_echo", {})
        it.outcomes.append(result.content[0].text)
    except MCPError as error:
        it.outcomes.append(error.message)
    except anyio.get_cancelled_exc_class():
        it.outcomes.append("cancelled")
        raise


CALLER = {"two_calls_while_it_is_evicted": "first", "a_drain_while_it_connects": "connect"}
SCENARIOS: tuple[Scenario, ...] = (
    two_calls_while_it_is_evicted,
    a_call_that_comes_later,
    a_drain_while_it_connects,
    a_drain_while_calls_wait,
    a_call_while_the_room_closes,
    a_probe_of_a_breaker,
    one_place_for_two_calls,
    one_permit_for_two_servers,
    a_restart_while_it_is_called,
    a_reload_while_it_is_called,
    a_removal_while_it_is_called,
    a_session_that_ends_while_it_calls,
    two_sessions_and_one_child_that_is_started_ahead,
    two_sessions_and_one_child_that_is_reset,
    a_client_in_process_that_is_asked,
    a_client_in_process_that_goes_while_it_is_asked,
)


def caller_of(scenario: Scenario) -> str:
    return CALLER.get(scenario.__name__, "caller")


WITH_CHILDREN_AHEAD = (
    two_sessions_and_one_child_that_is_started_ahead,
    two_sessions_and_one_child_that_is_reset,
)


@rows_on_loops("scenario", [each for each in SCENARIOS if IS_DEEP or each not in WITH_CHILDREN_AHEAD])
def test_it_holds_in_every_order(backend: str, scenario: Scenario) -> None:
    assert explore(scenario, backend=backend, deviations=2 if IS_DEEP else 1, runs=100_000).exhausted


@rows_on_loops("scenario", SCENARIOS[1:] + SCENARIOS[:1])  # on the loop that has not searched its orders
def test_it_holds_whenever_a_caller_leaves(backend: str, scenario: Scenario) -> None:
    cancel, deviations = caller_of(scenario), 1 if IS_DEEP else 0
    explored = explore(scenario, backend=backend, cancel=cancel, deviations=deviations, runs=100_000)
    assert explored.exhausted
    assert explored.runs > 1


async def a_call_while_its_server_crashes(turns: int) -> None:
    """It crashes once, so many turns after the call was made. The call ends once, the server has heard it once at most,
    and whoever calls afterwards is served."""
    async with small({"a": FakeServer(wreck_latency=20)}, backoffInitialMs=1) as it:
        await retire(it.room, "a")

        async def caller() -> None:
            await it.call("a")

        async def crash() -> None:
            for _ in range(turns):
                await checkpoint()
            it.servers["a"].crash()

        it.servers["a"].call_latency = 1
        await together(caller, crash)
        assert len(it.outcomes) == 1
        await anyio.sleep(60)
        assert len(it.servers["a"].calls) <= 1
        await it.is_served("a")


def test_a_call_is_cancelled_at_every_moment_while_its_server_crashes_at_every_other(backend: str) -> None:
    crashes = {f"after {turns} turns": turns for turns in range(0, 12, 1 if IS_DEEP else 3)}
    deviations = 1 if IS_DEEP else 0
    explored = explore(
        a_call_while_its_server_crashes,
        faults=crashes,
        cancel="caller",
        backend=backend,
        deviations=deviations,
        runs=100_000,
    )
    assert explored.exhausted
    assert explored.runs > len(crashes) * 3


# ---- they can fail -------------------------------------------------------------------------------------------------


def test_every_fault_of_the_list_can_still_be_put_in() -> None:
    texts = {it.file: file_of(ROOT, it.file).read_text(encoding="utf-8") for it in MUTANTS}
    assert [it.fault for it in MUTANTS if texts[it.file].count(it.old) != 1] == []


def codes_in(code: CodeType) -> Iterator[CodeType]:
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield const
            yield from codes_in(const)


def functions_in(module: Any) -> Iterator[FunctionType]:
    """Those written in this module: plain ones, methods, and what is behind properties."""
    for it in tuple(vars(module).values()):
        for found in (it, *(vars(it).values() if isinstance(it, type) else ())):
            function = getattr(found, "fget", found)
            if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                yield function


def put_in(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """Break the room in one place, as `tools/mutants.py` does in a copy of the tree: only in memory."""
    (mutant,) = (it for it in MUTANTS if it.fault == fault)
    module: Any = importlib.import_module("greenroom." + mutant.file.removesuffix(".py").replace("/", "."))
    source = Path(module.__file__).read_text(encoding="utf-8")
    assert source.count(mutant.old) == 1
    broken = compile(source.replace(mutant.old, mutant.new), module.__file__, "exec")
    codes = {code.co_qualname: code for code in codes_in(broken)}
    changed = [
        function
        for function in functions_in(module)
        if (code := codes.get(function.__qualname__)) is not None and code != function.__code__
    ]
    assert changed
    for function in changed:
        monkeypatch.setattr(function, "__code__", codes[function.__qualname__])


FOUND: dict[str, tuple[Scenario, dict[str, Any]]] = {
    "a permit is kept when its holder leaves": (a_drain_while_it_connects, {"cancel": "connect"}),
    "the half-open flag sticks when the probe leaves": (a_probe_of_a_breaker, {"cancel": "caller"}),
    "a caller that leaves is not told to the server": (one_place_for_two_calls, {"cancel": "caller"}),
    "a queued call whose caller left stays queued": (one_place_for_two_calls, {"cancel": "caller"}),
    "queued calls are forgotten when their server has closed": (a_call_that_comes_later, {}),
}


@pytest.mark.changes_the_books
@rows_on_loops("fault", [*FOUND])
def test_a_fault_that_chance_does_not_find_is_found(
    backend: str, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    scenario, options = FOUND[fault]
    put_in(monkeypatch, fault)
    for seed in range(20 if IS_DEEP else 5):
        seed_schedule(seed)
        trio.run(scenario, clock=MockClock(autojump_threshold=0))
    explored = explore(scenario, backend=backend, raises=False, **options)
    assert explored.failure is not None
    monkeypatch.undo()
    explore(scenario, replay=explored.failure.schedule)
