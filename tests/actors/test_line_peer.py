"""The peer over two descriptors: what it tells its hooks, its calls and its owner of what the other side writes."""

from __future__ import annotations

import json
import os
from typing import Any

import anyio
import pytest
from tests.support import in_real_time, in_virtual_time
from tests.support.loops import on_one_loop
from tests.support.patience import PATIENCE
from tests.support.stdio import Call, Recorder, drained

from greenroom.actors.backend import AGAIN, PAUSE, current_backend
from greenroom.actors.exchanges import Exchange
from greenroom.actors.message_buffer import LONG
from greenroom.actors.transports.line_peer import LinePeer
from greenroom.actors.transports.lines import LINES_A_TURN
from greenroom.config.credentials import SecretValue
from greenroom.config.scrubbing import Secrets
from greenroom.protocol.bounds import (
    ERROR_BYTES,
    JUNK_LINES,
    LARGE_MESSAGE,
    NOTICE_BYTES,
    SERVER_REQUEST_BYTES,
    SERVER_REQUEST_VALUES,
)
from greenroom.protocol.errors import Reach
from greenroom.protocol.jsonrpc.terms import INVALID_PARAMS, RpcError


class Line:
    """A line peer whose other side is this test: `said` is what it wrote, `tell` what it hears."""

    def __init__(self, max_line: int = 1 << 20) -> None:
        self.hooks = Recorder()
        self.over: list[str] = []
        self._in, self.way_in = os.pipe()
        self.way_out, self._out = os.pipe()
        for fd in (self._in, self._out, self.way_out):
            os.set_blocking(fd, False)
        self.peer = LinePeer(
            current_backend(),
            self.hooks,
            read_fd=self._in,
            write_fd=self._out,
            max_line=max_line,
            on_over=self.over.append,
        )

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in (self._in, self.way_in, self.way_out, self._out):
            os.close(fd)

    def tell(self, *lines: bytes) -> None:
        os.write(self.way_in, b"".join(line + b"\n" for line in lines))
        self.peer.read()

    @property
    def said(self) -> list[Any]:
        return [json.loads(line) for line in drained(self.way_out).splitlines()]


RESULT = b'{"jsonrpc":"2.0","id":%d,"result":{}}'


@on_one_loop
@in_real_time
async def test_nothing_more_is_taken_of_one_that_was_shut_for_its_junk() -> None:
    with Line() as line:
        while not line.over:
            line.tell(*[b"x"] * 7000)
            while line.peer.read() is AGAIN:
                pass
        junk = line.peer.junk
        assert JUNK_LINES <= junk < JUNK_LINES + LINES_A_TURN  # they are counted turn by turn
        assert line.over == [f"wrote {junk:,} lines to stdout without one message of the protocol among them"]
        os.write(line.way_in, RESULT % 1)
        await line.peer.read_last()
        assert line.peer.read() is False
        assert line.peer.junk == junk
        assert len(line.over) == 1


@pytest.mark.parametrize(
    ("said", "is_forgotten"),
    [
        (RESULT % 1, True),
        (b'{"jsonrpc":"2.0","method":"x"}', True),
        (b'{"jsonrpc":"2.0","id":"q","method":"ping"}', True),
        (b"junk", False),
        (b'{"jsonrpc":"2.0","id":99,"result":{}}', False),
    ],
)
@on_one_loop
@in_real_time
async def test_any_message_makes_the_junk_before_it_forgotten(said: bytes, is_forgotten: bool) -> None:
    with Line() as line:
        line.peer.request(Call("tools/call"))
        for lines in ([b"x"] * 7000, [said], [b"x"] * 7000):
            line.tell(*lines)
            while line.peer.read() is AGAIN:
                pass
        assert line.over == ([] if is_forgotten else [line.over[0]])


class LastCall(Call):
    """Its owner wants to hear nothing after it."""

    peer: LinePeer

    def exchange_ended(self, _exchange: Exchange, result: bytes | None, error: RpcError | None, /) -> None:
        self.peer.silence()


@in_real_time
async def test_a_silent_peer_hears_nothing_more_of_a_batch_it_is_reading() -> None:
    with Line() as line:
        first, second = LastCall("ping"), Call("ping")
        first.peer = line.peer
        line.peer.protocol_version = "2025-03-26"
        line.peer.request(first)
        line.peer.request(second)
        note = b'{"jsonrpc":"2.0","method":"notifications/x"}'
        asked = b'{"jsonrpc":"2.0","id":7,"method":"roots/list"}'
        line.tell(b"[%b,%b,%b,%b]" % (RESULT % 1, RESULT % 2, note, asked), b"junk", RESULT % 2)
        assert second.ends == []
        assert (line.hooks.notifications, line.hooks.requests, line.hooks.notes) == ([], [], [])
        line.said.clear()
        line.peer.notify("notifications/late")
        line.peer.reply(7, {})
        assert line.said == []


LARGE_RESULT = b'{"jsonrpc":"2.0","id":%d,"result":{"text":"%b"}}'


@in_real_time
async def test_a_large_line_has_turns_of_its_own_before_the_lines_behind_it() -> None:
    with Line(max_line=4 * LARGE_MESSAGE) as line:
        large, small = Call("tools/call"), Call("tools/call")
        line.peer.request(large)
        line.tell(b"")  # it is heard, so the next is written at once
        line.peer.request(small)
        answer = LARGE_RESULT % (1, b"\xff" + b"x" * 2 * LARGE_MESSAGE)
        for start in range(0, len(answer), 50_000):
            os.write(line.way_in, answer[start : start + 50_000])
            assert line.peer.read() is True
        os.write(line.way_in, b"\n%b\n" % (RESULT % 2))
        turns = [(line.peer.read(), len(large.ends), len(small.ends)) for _ in range(4)]
        assert turns == [(AGAIN, 0, 0), (AGAIN, 0, 0), (AGAIN, 1, 0), (True, 1, 1)]
        assert large.ends == [(b'{"text":"\xef\xbf\xbd%b"}' % (b"x" * 2 * LARGE_MESSAGE), None)]
        assert len(line.hooks.notes) == 1


@pytest.mark.parametrize("cut", [0, 1])
@in_real_time
async def test_a_large_line_that_is_no_message_or_comes_too_late_is_nobodys(cut: int) -> None:
    with Line(max_line=4 * LARGE_MESSAGE) as line:
        call = Call("tools/call")
        line.peer.request(call)
        answer = LARGE_RESULT % (1, b"x" * LARGE_MESSAGE)
        answer = answer[: len(answer) - cut]
        for start in range(0, len(answer), 50_000):
            os.write(line.way_in, answer[start : start + 50_000])
            line.peer.read()
        os.write(line.way_in, b"\n")
        assert line.peer.read() is AGAIN
        if cut:
            while line.peer.read() is AGAIN:
                pass
            ((result, error),) = call.ends
            assert result is None
            assert error is not None
            assert "truncated" in error.message
        else:
            line.peer.silence()
            assert line.peer.read() is True
            assert call.ends == []


@in_real_time
async def test_what_is_refused_ends_although_the_other_side_never_reads() -> None:
    with Line(max_line=100_000) as line:
        taken, refused = (Call("x", {"ballast": "b" * 90_000}) for _ in range(2))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(line.peer.write_forever)
            line.peer.request(taken)
            await anyio.wait_all_tasks_blocked()
            line.peer.request(refused)
            with anyio.fail_after(PATIENCE):
                while not refused.ends:
                    await anyio.lowlevel.checkpoint()
            assert taken.ends == []
            tasks.cancel_scope.cancel()


@in_real_time
async def test_a_writer_that_waits_for_a_full_pipe_ends_when_it_is_over() -> None:
    with Line(max_line=1 << 20) as line, anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            line.peer.request(Call("x", {"ballast": "b" * 900_000}))
            tasks.start_soon(line.peer.write_forever)
            await anyio.wait_all_tasks_blocked()
            line.peer.silence()


@in_real_time
async def test_callers_that_come_together_share_a_write_and_a_notification_does_not_wait() -> None:
    with Line() as line:
        first, second, third = (Call("ping") for _ in range(3))
        line.peer.request(first)
        line.peer.request(second)
        assert (first.reach, second.reach) == (Reach.SENT, Reach.NOT_SENT)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(line.peer.write_forever)
            await anyio.wait_all_tasks_blocked()
            assert second.reach is Reach.SENT
            tasks.cancel_scope.cancel()
        line.tell(RESULT % 1)
        line.peer.request(third)  # something was heard: at once again
        assert third.reach is Reach.SENT
        assert [message["id"] for message in line.said] == [1, 2, 3]


@in_real_time
async def test_the_end_of_its_stream_and_a_broken_pipe_are_told_in_words() -> None:
    with Line() as line:
        before = line.peer.last_heard
        await anyio.sleep(0.002)
        line.tell(b"")
        assert line.peer.last_heard > before
        os.close(line.way_in)
        line.way_in = os.dup(0)
        assert line.peer.read() is False
        os.close(line.way_out)
        line.way_out = os.dup(0)
        line.peer.notify("notifications/x")
        assert line.over == ["closed its stdout", "closed its stdin"]


@pytest.mark.parametrize("over", [0, 1])
@in_real_time
async def test_what_a_server_says_is_bounded_beside_its_results(over: int) -> None:
    """Each is looked through, or told to a client, in one go."""
    with Line() as line:
        call = Call("tools/call")
        line.peer.request(call)
        _ = line.said

        def filled(text: bytes, size: int) -> bytes:
            return text % (b"x" * (size + over - len(text) + 2))

        said = filled(b'{"data":"%b"}', NOTICE_BYTES)
        line.peer.take_line(b'{"jsonrpc":"2.0","method":"notifications/message","params":%b}' % said)
        assert len(line.hooks.notifications) == 1 - over
        assert len(line.hooks.notes) == over
        asked = filled(b'{"data":"%b"}', SERVER_REQUEST_BYTES)
        line.peer.take_line(b'{"jsonrpc":"2.0","id":7,"method":"roots/list","params":%b}' % asked)
        assert len(line.hooks.requests) == 1 - over
        assert [answer["error"]["code"] for answer in line.said] == [INVALID_PARAMS] * over
        error = filled(b'{"code":5,"message":"why","data":"%b"}', ERROR_BYTES)
        line.peer.take_line(b'{"jsonrpc":"2.0","id":1,"error":%b}' % error)
        ((_, found),) = call.ends
        assert found is not None
        assert found.fault is bool(over)
        assert "why" in found.message
        assert len(found.message) < 2_000


@in_real_time
async def test_a_request_of_a_server_has_few_values_and_as_many_marks_in_its_texts_as_it_likes() -> None:
    """They are counted and decoded in one go, while nobody else is served."""
    with Line() as line:
        for text, taken in (
            (b'{"x":[%b]}' % b",".join([b'":,:,:,:"'] * (SERVER_REQUEST_VALUES + 1)), 0),
            (b'{"x":["%b"]}' % (b',:"' * (LONG // 3)).replace(b'"', rb"\""), 1),
        ):
            text = text.ljust(2 * LONG)
            line.peer.take_line(b'{"jsonrpc":"2.0","id":7,"method":"roots/list","params":%b}' % text)
            assert len(line.hooks.requests) == taken
        (refused,) = line.said
        assert f"more than {SERVER_REQUEST_VALUES:,} values" in refused["error"]["message"]


@pytest.mark.parametrize("left", range(4, 24, 3))
@in_real_time
async def test_a_secret_is_found_where_a_long_error_was_cut_in_it(left: int) -> None:
    with Line() as line:
        call = Call("tools/call")
        line.peer.request(call)
        secret = "Zq9supersecretvalue1234"
        head = '{"code":5,"message":"'
        said = head + "x" * (1_000 - len(head) - left) + secret + "y" * ERROR_BYTES + '"}'
        line.peer.take_line(b'{"jsonrpc":"2.0","id":1,"error":%b}' % said.encode())
        ((_, found),) = call.ends
        assert found is not None
        assert secret[:4] in found.message
        assert secret[:4] not in Secrets([SecretValue("TOKEN", secret)]).without(found.message)


@in_virtual_time
async def test_junk_counts_against_the_budget_of_what_nobody_asked_for() -> None:
    with Line() as line:
        note = b'{"jsonrpc":"2.0","method":"notifications/x"}'
        turns: list[Any] = []
        for _ in range(140):  # far fewer notifications than may come at once
            os.write(line.way_in, (b"x\n" * 50 + note + b"\n") * 2)
            more = line.peer.read()
            while more is AGAIN:
                more = line.peer.read()
            turns.append(more)
        assert turns.index(PAUSE) == 12_000 // 102
        assert line.over == []


@in_real_time
async def test_what_was_gathered_is_sent_before_a_peer_falls_silent() -> None:
    with Line() as line:
        first, second = Call("ping"), Call("ping")
        line.peer.request(first)
        line.peer.request(second)
        assert second.reach is Reach.NOT_SENT
        line.peer.silence()
        assert [message["id"] for message in line.said] == [1, 2]
        assert (second.reach, second.ends) == (Reach.SENT, [])
