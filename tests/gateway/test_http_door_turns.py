"""Requests at the HTTP door that are carried out without a task, and the two timers they share."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest
from tests.gateway.test_http_door import echo, text_of, with_door
from tests.support import run_virtual
from tests.support.asking import AskingServer
from tests.support.http_door import Opened, request

from greenroom.gateway.doors.http_request import Rules
from greenroom.gateway.doors.http_streams import Reply, Stream
from greenroom.gateway.doors.http_turn import KeepAlive, Patience, Turn

SECONDS = 5.0


class Bench:
    """Turns on a virtual clock, and what they did."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.patience = Patience(self.loop, SECONDS)
        self.did: list[Any] = []
        self.done: list[Turn] = []

    def turn(self, work: Coroutine[Any, Any, None]) -> Turn:
        turn = Turn(self.loop, work, self.patience)
        turn.add_done_callback(self.done.append)
        return turn

    def reply(self) -> Reply:
        return Reply(b"1", lambda: Stream(1, Rules()))

    async def waiting(self, reply: Reply) -> None:
        """Work that waits for a reply, and then once more if it has no answer."""
        try:
            await reply
        except asyncio.CancelledError as error:
            self.did.append(("cancelled", *error.args))
            return
        self.did.append((reply.answer, asyncio.current_task() is not None))
        if reply.answer is None:
            await asyncio.sleep(0)
            self.did.append("over")

    @property
    def timers(self) -> list[float]:
        """When those ring that are still set."""
        loop: Any = self.loop
        return sorted(timer.when() - loop.time() for timer in loop._scheduled if not timer.cancelled())


def on_a_bench(body: Callable[[Bench], Awaitable[None]]) -> None:
    async def main() -> None:
        await body(Bench())

    run_virtual("asyncio", main)


# ---- a turn ----------------------------------------------------------------------------------------------------------


def test_the_rest_is_carried_out_where_the_reply_is_decided() -> None:
    async def body(bench: Bench) -> None:
        reply, before = bench.reply(), asyncio.all_tasks()
        turn = bench.turn(bench.waiting(reply))
        turn.begin()
        assert (bench.did, bench.done, turn.has_task) == ([], [], False)
        reply.finish(b"{}")  # in the task of the test, which waits for nothing meanwhile
        assert (bench.did, bench.done, turn.has_task) == ([(b"{}", True)], [turn], False)
        assert asyncio.all_tasks() == before
        reply.finish(b"{}")
        assert bench.done == [turn]

    on_a_bench(body)


def test_a_reply_that_is_decided_already_is_not_waited_for() -> None:
    async def body(bench: Bench) -> None:
        reply = bench.reply()
        reply.finish(b"{}")
        turn = bench.turn(bench.waiting(reply))
        turn.begin()
        assert (bench.did, bench.done, bench.timers) == ([(b"{}", True)], [turn], [])

    on_a_bench(body)


def test_a_stream_and_every_other_wait_go_on_in_a_task() -> None:
    async def elsewhere() -> None:
        assert await asyncio.sleep(1, "slept") == "slept"
        await asyncio.sleep(0)

    async def body(bench: Bench) -> None:
        reply = bench.reply()
        streaming, sleeping = bench.turn(bench.waiting(reply)), bench.turn(elsewhere())
        streaming.begin()
        sleeping.begin()
        assert (streaming.has_task, sleeping.has_task) == (False, True)
        reply.become_stream()
        assert (streaming.has_task, bench.did) == (True, [])
        await anyio.wait_all_tasks_blocked()
        assert (bench.did, bench.done) == ([(None, True), "over"], [streaming])
        await asyncio.sleep(2)
        assert bench.done == [streaming, sleeping]

    on_a_bench(body)


def test_what_must_not_be_begun_by_hand_is_a_task_from_the_beginning() -> None:
    async def body(bench: Bench) -> None:
        async def work() -> None:
            with anyio.fail_after(1):
                bench.did.append(asyncio.current_task())
                await anyio.lowlevel.checkpoint()

        turn = bench.turn(work())
        turn.begin_in_task()
        await anyio.wait_all_tasks_blocked()
        assert bench.did not in ([], [asyncio.current_task()])
        assert bench.done == [turn]

    on_a_bench(body)


@pytest.mark.parametrize("state", ["new", "waiting", "in a task"])
def test_a_cancelled_turn_hears_of_it_where_it_waits(state: str) -> None:
    async def body(bench: Bench) -> None:
        reply = bench.reply()
        turn = bench.turn(bench.waiting(reply))
        if state != "new":
            turn.begin()
        if state == "in a task":
            reply.become_stream()
            await asyncio.sleep(0)
        assert turn.cancel("leave") is True
        await asyncio.sleep(1)
        expected = {"new": [], "waiting": [("cancelled", "leave")], "in a task": [("cancelled", "leave")]}
        assert bench.did == expected[state]
        assert bench.done == [turn]
        reply.finish(b"{}")  # late: nobody waits for it
        await asyncio.sleep(2 * SECONDS)
        assert bench.did == expected[state]

    on_a_bench(body)


def test_each_step_has_the_context_in_which_the_turn_was_made() -> None:
    """A reply is decided by somebody else, perhaps outside of any task: there anyio would not know where it is."""

    async def body(bench: Bench) -> None:
        reply, seen = bench.reply(), list[float]()

        async def work() -> None:
            await reply
            seen.append(anyio.current_time())
            await anyio.lowlevel.checkpoint()
            seen.append(anyio.current_time())

        turn = bench.turn(work())
        turn.begin()
        Context().run(reply.finish, b"{}")
        await asyncio.sleep(1)
        assert (len(seen), bench.done) == (2, [turn])

    on_a_bench(body)


# ---- one timer for all who wait --------------------------------------------------------------------------------------


def test_each_reply_is_waited_for_as_long_and_one_timer_rings_for_all() -> None:
    async def body(bench: Bench) -> None:
        start, replies = bench.loop.time(), [bench.reply() for _ in range(3)]
        seen: list[tuple[int, float]] = []

        async def waits(number: int) -> None:
            await replies[number]
            seen.append((number, bench.loop.time() - start))

        for number in range(3):
            bench.turn(waits(number)).begin()
            assert len(bench.timers) == 1
            await asyncio.sleep(1)
        replies[1].finish(b"{}")
        await asyncio.sleep(2 * SECONDS)
        assert seen == [(1, 3), (0, SECONDS), (2, 2 + SECONDS)]
        assert bench.timers == []  # nothing is waited for: nothing rings

    on_a_bench(body)


def test_a_timer_that_finds_nothing_is_not_set_again_and_is_set_for_the_next() -> None:
    async def body(bench: Bench) -> None:
        for _ in range(2):
            reply = bench.reply()
            bench.turn(bench.waiting(reply)).begin()
            reply.finish(b"{}")
            assert bench.timers == [SECONDS]
            await asyncio.sleep(SECONDS + 1)
            assert bench.timers == []
        bench.turn(bench.waiting(last := bench.reply())).begin()
        bench.patience.close()
        assert bench.timers == []
        last.finish(b"{}")

    on_a_bench(body)


# ---- the timer between two requests ----------------------------------------------------------------------------------


def test_a_kept_connection_is_closed_when_no_request_came_for_that_long_after_the_last_answer() -> None:
    async def body(bench: Bench) -> None:
        start, rung = bench.loop.time(), list[float]()
        timer = KeepAlive(bench.loop)

        def begin() -> None:
            timer.begin(SECONDS, lambda: rung.append(bench.loop.time() - start))

        begin()
        await asyncio.sleep(4)
        timer.cancel()  # a request comes; its answer takes long
        await asyncio.sleep(4)
        begin()
        await asyncio.sleep(1)
        timer.cancel()
        begin()
        assert len(bench.timers) == 1
        await asyncio.sleep(SECONDS - 0.5)
        assert rung == []
        await asyncio.sleep(10)
        assert rung == [9 + SECONDS]
        begin()
        await asyncio.sleep(1)
        timer.close()
        assert bench.timers == []
        await asyncio.sleep(10)
        assert len(rung) == 1

    on_a_bench(body)


# ---- at the door -----------------------------------------------------------------------------------------------------


def test_a_call_in_a_session_takes_no_task() -> None:
    async def body(opened: Opened, _server: AskingServer) -> None:
        person = await opened.session()
        await person.call("own_echo", text="warm")
        made: list[Any] = []
        loop = asyncio.get_running_loop()

        def make(loop: asyncio.AbstractEventLoop, work: Any, **more: Any) -> asyncio.Task[Any]:
            made.append(getattr(work, "__qualname__", ""))
            return asyncio.Task(work, loop=loop, **more)

        loop.set_task_factory(cast("Any", make))
        try:
            assert text_of(await person.call("own_echo", text="hi")) == "hi"
        finally:
            loop.set_task_factory(None)
        assert [name for name in made if "run_asgi" in name or "_rest" in name] == []

    with_door(body)


def test_requests_in_one_write_are_answered_in_their_order() -> None:
    """As HTTP/1.1 wants it; also one that is answered at once behind one that waits for its server."""

    async def slowly(_asking: Any, _arguments: Any) -> Any:
        await anyio.sleep(0.05)
        return "slow"

    async def body(opened: Opened, _server: AskingServer) -> None:
        person = await opened.session()
        said = [
            request("tools/call", 11, {"name": "own_slowly", "arguments": {}}),
            request("ping", 12),
            {"jsonrpc": "2.0", "method": "notifications/roots/list_changed"},
            request("tools/call", 13, {"name": "own_echo", "arguments": {"text": "hi"}}),
        ]
        wire = b""
        for message in said:
            data = json.dumps(message).encode()
            lines = [f"{name}: {value}" for name, value in person.real_headers().items()]
            head = "\r\n".join(
                [
                    "POST /mcp HTTP/1.1",
                    f"host: 127.0.0.1:{opened.port}",
                    "accept: application/json, text/event-stream",
                    "content-type: application/json",
                    f"content-length: {len(data)}",
                    *lines,
                ]
            )
            wire += head.encode() + b"\r\n\r\n" + data
        reader, writer = await asyncio.open_connection("127.0.0.1", opened.port)
        bodies: list[Any] = []
        try:
            writer.write(wire)
            for _ in said:
                head = await reader.readuntil(b"\r\n\r\n")
                fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if line)
                found = await reader.readexactly(int(fields[b"content-length"]))
                bodies.append((head.split()[1], json.loads(found)["id"] if found else None))
        finally:
            writer.close()
            await writer.wait_closed()
        assert not opened.notes, opened.notes
        assert bodies == [(b"200", 11), (b"200", 12), (b"202", None), (b"200", 13)]

    with_door(body, AskingServer({"echo": echo, "slowly": slowly}))


def test_a_connection_that_waits_for_its_next_request_counts_among_no_unfinished_heads() -> None:
    """Its request was answered while it was being read: nothing of a next one has come."""

    async def body(opened: Opened, _server: AskingServer) -> None:
        person = await opened.session()
        note = {"jsonrpc": "2.0", "method": "notifications/roots/list_changed"}
        for _ in range(3):
            assert (await person.post(note)).status_code == 202
        await anyio.sleep(0.25)  # longer than a head may take
        assert (await person.post(note)).status_code == 202
        assert opened.server.connections() == 1

    with_door(body, rules=Rules(head_time=0.1))
