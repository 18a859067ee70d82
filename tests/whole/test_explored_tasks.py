"""Tasks under every order of what goes on at the same moment: those of servers, and those that clients are given.

A task takes some looks. What befalls its server (restart, drain, reload, removal, crash), its client (a cancel, the end
of the connection) or the room comes at a moment at which something happens to the task, or between two. The orders of
each are explored as in `test_explored_rooms`. What must hold:

* the call has one outcome and the task one end, and what ends gracefully lets the task end as it would have;
* a server that lives is told once of a task that nobody awaits any more, and is not asked about it afterwards;
* a task that was cancelled is cancelled, or had ended before; whoever awaits its result is answered;
* then nothing runs, nobody hears of anything, and the bytes are those of the results.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import anyio
import attrs
from tests.gateway.test_client_tasks import FORM, Gateway, TaskClient
from tests.support.loops import rows_on_loops
from tests.support.profiles import IS_DEEP
from tests.support.task_servers import TaskServer, said
from tests.whole.test_explored_rooms import Small, small, together

from greenroom import CallError
from greenroom.testing import explore

LOOKS = 3
DONE = said("done")
EVERY = 0.1  # seconds between two looks
DEVIATIONS = 1 if IS_DEEP else 0


@attrs.define(eq=False)
class Busy(TaskServer):
    """Its tasks are done at the third look. `asks`: at the second one, they ask their client."""

    interval: int | None = 100
    asks: bool = False
    looks: dict[str, int] = attrs.field(factory=dict[str, int])

    def _get(self, params: Mapping[str, Any]) -> Any:
        name = params["taskId"]
        self.looks[name] = self.looks.get(name, 0) + 1
        if self.tasks[name]["status"] == "working" and self.looks[name] >= LOOKS:
            self.finish(DONE, task=name)
        elif self.asks and self.looks[name] == 2 and self.tasks[name]["status"] == "working":
            self.ask({"q": {"method": "elicitation/create", "params": FORM}}, task=name)
        return super()._get(params)

    def check(self, *, lives: bool) -> None:
        """Every task has ended. Of those that it was still at work on, it was told if it could be."""
        cancels = [str(params["taskId"]) for params in self.asked("tasks/cancel")]
        assert len(cancels) == len(set(cancels)), "a task is cancelled twice"
        for name, task in self.tasks.items():
            assert task["status"] != "working" or not lives, f"nobody told it that {name} is awaited no more"


RELOADED = {"a": {"command": "fake", "args": ["new"]}}
Happening = Callable[[Small], Awaitable[object]]


async def restart(it: Small) -> None:
    await it.room.restart("a")


async def drain(it: Small) -> None:
    await it.room.drain("a")


async def reload(it: Small) -> None:
    await it.room.reload({"mcpServers": RELOADED})


async def removal(it: Small) -> None:
    await it.room.reload({"mcpServers": {"b": {"command": "fake"}}})


async def crash(it: Small) -> None:
    it.servers["a"].crash()


async def close(it: Small) -> None:
    await it.room.aclose(0)


HAPPENINGS: dict[str, Happening] = {
    each.__name__: each for each in (restart, drain, reload, removal, crash, close)
}
GRACEFUL = frozenset({"restart", "drain", "reload", "removal"})
MOMENTS = (0.0, 0.05, EVERY, 2 * EVERY, LOOKS * EVERY) if IS_DEEP else (0.0, 2 * EVERY)


async def a_task_of_a_server(modern: bool, fate: tuple[str, float]) -> None:
    what, moment = fate
    server = Busy(modern)
    async with small({"a": server.fake}) as it:

        async def caller() -> None:
            try:
                it.outcomes.append((await it.room.call("a_slow")).text)
            except CallError as error:
                it.outcomes.append(error.code)
            except anyio.get_cancelled_exc_class():
                it.outcomes.append("cancelled")
                raise

        async def happening() -> None:
            await anyio.sleep(moment)
            await HAPPENINGS[what](it)

        await together(caller, happening)
        assert len(it.outcomes) == 1
        if what in GRACEFUL and moment:
            assert it.outcomes[0] in ("done", "cancelled")
        await anyio.sleep(5)
        server.check(lives=what not in ("crash", "close"))
        looked = len(server.asked("tasks/get"))
        await anyio.sleep(5)
        assert len(server.asked("tasks/get")) == looked


FATES = {f"{what} after {moment:g} s": (what, moment) for what in HAPPENINGS for moment in MOMENTS}
ERAS = {"2025-11-25": False, "2026-07-28": True}


@rows_on_loops("era", [*ERAS])
def test_the_task_of_a_server_has_one_end_in_every_order(backend: str, era: str) -> None:
    scenario = partial(a_task_of_a_server, ERAS[era])
    found = explore(scenario, faults=FATES, backend=backend, deviations=DEVIATIONS, runs=100_000)
    assert found.exhausted


@rows_on_loops("era", [*reversed(ERAS)])
def test_the_task_of_a_server_has_one_end_whenever_its_caller_leaves(backend: str, era: str) -> None:
    scenario = partial(a_task_of_a_server, ERAS[era])
    fates = (
        FATES if IS_DEEP else dict(tuple(FATES.items())[ERAS[era] :: len(ERAS)])
    )  # each with one of the eras
    explored = explore(
        scenario, faults=fates, cancel="caller", backend=backend, deviations=DEVIATIONS, runs=100_000
    )
    assert explored.exhausted
    assert explored.runs > len(fates)


# ---- those that clients are given ----------------------------------------------------------------------------------


@attrs.define
class Kind:
    """How a client gets a task. `modern`: its own version. `of_server`: the server makes it (2026-07-28), or not."""

    modern: bool
    of_server: bool
    expose: str = "direct"
    asks: bool = False


KINDS = {
    "asked for": Kind(False, False),
    "asked for, of a task": Kind(False, True),
    "of the server": Kind(True, True),
    "by time": Kind(True, False),
    "by the mcp tool": Kind(False, False, "proxy"),
    "asks, old": Kind(False, False, asks=True),
    "asks, by time": Kind(True, False, asks=True),
    "asks, of the server": Kind(True, True, asks=True),
}
FINAL = {"completed", "failed", "cancelled"}


def server_of(kind: Kind) -> Busy:
    server = Busy(kind.modern, asks=kind.asks)

    async def plain(call: Any) -> Any:
        await anyio.sleep(EVERY)
        call.progress(1, message="half")
        await anyio.sleep(EVERY)
        if kind.asks:
            await call.elicit("Sure?")
        await anyio.sleep(EVERY)
        return DONE

    if not kind.of_server:
        server.fake.capabilities.clear()
        server.fake.handler = plain
    return server


async def begin(who: TaskClient, kind: Kind) -> Any:
    name, arguments = ("a_slow", {}) if kind.expose == "direct" else ("mcp", {"tool": "a_slow", "args": {}})
    params: dict[str, Any] = {"name": name, "arguments": arguments, "_meta": {"progressToken": "p"}}
    return await who.ask("tools/call", params if kind.modern else {**params, "task": {}})


OF_CLIENTS = {
    **FATES,
    **{f"{what} after {moment:g} s": (what, moment) for what in ("cancel", "leave") for moment in MOMENTS},
}


async def a_task_of_a_client(kind: Kind, fate: tuple[str, float]) -> None:
    what, moment = fate
    server = server_of(kind)
    settings = {"taskAfterMs": 50} if kind.modern and not kind.of_server else {}
    async with small({"a": server.fake}, **settings) as it, anyio.create_task_group() as tasks:
        gateway = Gateway(it.room, kind.expose, tasks)
        await tasks.start(gateway.clients.watch)
        gone, here = anyio.Event(), anyio.Event()
        people: list[TaskClient] = []

        async def life() -> None:
            async with gateway.person(modern=kind.modern) as ann:
                people.append(ann)
                if kind.asks:
                    ann.on_message = partial(answer, ann)
                here.set()
                await gone.wait()

        tasks.start_soon(life)
        await here.wait()
        (ann,) = people
        made: list[Any] = []
        calling = anyio.CancelScope()

        async def caller() -> None:
            with calling:
                made.append(await begin(ann, kind))

        async def happening() -> None:
            await anyio.sleep(moment)
            if what == "cancel":
                while not made:
                    await anyio.sleep(0.01)
                if task := task_in(made[0]):
                    await ann.ask("tasks/cancel", {"taskId": task})
            elif what == "leave":
                gone.set()
                calling.cancel()
            else:
                await HAPPENINGS[what](it)

        async def reader() -> None:
            """Another connection of the same principal awaits the end. A task of 2026-07-28 goes on without the client
            that it was made for, which may have left before it read of it: then this one has read it."""
            while not made and not gone.is_set():
                await anyio.sleep(0.01)
            named = task_in(made[0]) if made else next(iter(gateway.clients.task_store.tasks), None)
            if (task := named if made or kind.modern else None) is not None:
                async with gateway.person(modern=kind.modern) as late:
                    await (end_of if kind.modern else result_of)(late, task)

        await together(caller, happening, reader)
        gone.set()
        await anyio.sleep(5)
        if kind.of_server:
            server.check(lives=what not in ("crash", "close"))
        kept = gateway.clients.task_store
        for task in kept.tasks.values():
            assert task.status.is_final
            assert not task.hearers
            assert task.asked_bytes == 0
        assert kept.held_bytes == sum(task.size for task in kept.tasks.values())
        assert len(gateway.clients) == 0
        tasks.cancel_scope.cancel()


def answer(ann: TaskClient, message: Any) -> None:
    if message.get("method") == "elicitation/create":
        ann.reply({"action": "accept"}, message)


def task_in(made: Mapping[str, Any]) -> str | None:
    return made.get("taskId") or made.get("task", {}).get("taskId")


async def end_of(late: TaskClient, task: str) -> None:
    while (found := await late.ask("tasks/get", {"taskId": task}))["status"] not in FINAL:
        for name in found.get("inputRequests", {}):
            given = {"taskId": task, "inputResponses": {name: {"action": "accept"}}}
            await late.ask("tasks/update", given)
        await anyio.sleep(0.05)


async def result_of(late: TaskClient, task: str) -> None:
    await late.ask("tasks/result", {"taskId": task})
    assert (await late.ask("tasks/get", {"taskId": task}))["status"] in FINAL


@rows_on_loops("kind", [*KINDS])
def test_the_task_of_a_client_has_one_end_in_every_order(backend: str, kind: str) -> None:
    scenario = partial(a_task_of_a_client, KINDS[kind])
    found = explore(scenario, faults=OF_CLIENTS, backend=backend, deviations=DEVIATIONS, runs=100_000)
    assert found.exhausted
