"""Bytes nobody should send, from a server to its peer and from a client to the door: nothing escapes, nothing grows.

In seconds by default; `make soak` looks deeper.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any

import anyio
import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import run
from tests.support.door_rooms import FakeRoom
from tests.support.junk import CUTS, FRAGMENTS, SCALARS, VALUES, cut_up, dumped, lines
from tests.support.patience import PATIENCE
from tests.support.profiles import examples
from tests.support.rows import for_each
from tests.support.stdio import Call, Recorder

from greenroom.actors.backend import current_backend
from greenroom.actors.transports.line_peer import LinePeer
from greenroom.gateway.doors.stdio_door import StdioDoor
from greenroom.gateway.endpoint import ClientSession, Endpoint
from greenroom.gateway.exposures.proxy import Proxy
from greenroom.gateway.inbound_budget import InboundBudget
from greenroom.protocol.jsonrpc.incoming import decode_result
from greenroom.protocol.jsonrpc.terms import WireFault

MAX_LINE = 4096
LONGEST_NOTE = 2000
CALLS = 5
STRANGERS = st.integers(1000, 10**6) | SCALARS.filter(lambda value: not _names_a_call(value))


def _names_a_call(value: Any) -> bool:
    """Whether an id could be taken for one of ours."""
    return str(value).strip().removesuffix(".0") in {str(number) for number in range(1, CALLS + 1)} | {"True"}


@attrs.define
class Instant:
    """A backend whose time stands still; nothing ever waits in it."""

    backend: str = "none"

    def now(self) -> float:
        return 0.0

    def waiter(self) -> Any:
        return self

    def set(self) -> None:
        pass


class Server:
    """The other end of a peer, by hand: real pipes, no loop. What is said is read in the same step."""

    def __init__(self) -> None:
        self._ours, self._theirs = os.pipe(), os.pipe()
        for fd in (*self._ours, *self._theirs):
            os.set_blocking(fd, False)
        self.heard = b""  # from the peer, since the calls were sent
        self.hooks = Recorder()
        self.over: list[str] = []
        loop_backend: Any = Instant()
        self.peer = LinePeer(
            loop_backend,
            self.hooks,
            read_fd=self._theirs[0],
            write_fd=self._ours[1],
            max_line=MAX_LINE,
            on_over=self.over.append,
        )
        self.calls = [Call("tools/call", wants_progress=True) for _ in range(CALLS)]
        for call in self.calls:
            self.peer.request(call)
        self.peer._writer.flush()  # the loop's pass is over
        os.read(self._ours[0], 1 << 20)

    def say(self, data: bytes, cuts: list[int]) -> None:
        for chunk in cut_up(data, cuts):
            for start in range(0, len(chunk), 1 << 15):
                os.write(self._theirs[1], chunk[start : start + (1 << 15)])
                assert self.peer.read()
        self._hear()

    def _hear(self) -> None:
        with suppress(BlockingIOError):
            self.heard += os.read(self._ours[0], 1 << 20)

    def close(self) -> None:
        for fd in (*self._ours, *self._theirs):
            os.close(fd)


@contextmanager
def server() -> Generator[Server]:
    one = Server()
    try:
        yield one
    finally:
        one.close()


def assert_bounded(one: Server) -> None:
    """What the peer holds after all that: no more than a line, and a few words on each kind of oddity."""
    held: Any = one.peer._lines
    assert len(held.held or b"") <= MAX_LINE
    assert len(one.peer.notes.counts) <= 12
    assert all(len(note) <= LONGEST_NOTE for note in one.hooks.notes)
    assert len(one.peer._requests) <= CALLS


@examples(100)
@given(st.lists(lines(STRANGERS), max_size=12), st.permutations(range(1, CALLS + 1)), CUTS, st.data())
def test_answers_among_junk_reach_their_callers(
    junk: list[bytes], order: list[int], cuts: list[int], data: st.DataObject
) -> None:
    answers = [b'{"jsonrpc":"2.0","id":%d,"result":{"n":%d}}' % (number, number) for number in order]
    said = list(junk)
    places = sorted(data.draw(st.lists(st.integers(0, len(junk)), min_size=CALLS, max_size=CALLS)))
    for place, answer in reversed(list(zip(places, answers, strict=True))):
        said.insert(place, answer)
    with server() as one:
        one.say(b"".join(line + b"\n" for line in said), cuts)
        for number, call in enumerate(one.calls, start=1):
            assert call.ends == [(b'{"n":%d}' % number, None)]
        assert_bounded(one)
        assert one.over == []


@examples(100)
@given(st.lists(lines(st.integers(0, CALLS + 1) | SCALARS), max_size=12), st.binary(max_size=20), CUTS)
def test_whatever_a_server_says_each_call_ends_at_most_once(
    junk: list[bytes], rest: bytes, cuts: list[int]
) -> None:
    with server() as one:
        one.say(b"".join(line + b"\n" for line in junk) + rest, cuts)
        for call in one.calls:
            assert len(call.ends) <= 1
            for result, error in call.ends:
                assert (result is None) != (error is None)
                if result is not None:
                    _look_at(result)
        assert_bounded(one)


def _look_at(result: bytes) -> None:
    with suppress(WireFault):  # said in words, and of this result only
        decode_result(result)


@given(st.lists(FRAGMENTS.filter(lambda line: line.strip() and b'"' not in line), max_size=30), CUTS)
def test_junk_is_counted(junk: list[bytes], cuts: list[int]) -> None:
    wrong = [line for line in junk if not _is_envelope(line)]
    with server() as one:
        one.say(b"".join(line + b"\n" for line in junk), cuts)
        counted = sum(count for kind, count in one.peer.notes.counts.items() if "UTF-8" not in kind)
        assert counted >= len(wrong)


def _is_envelope(line: bytes) -> bool:
    """What may pass in silence: an empty batch."""
    return line.strip() == b"[]"


def test_a_server_that_invents_methods_is_not_remembered_by_each_of_them() -> None:
    with server() as one:
        for number in range(500):
            one.say(dumped({"method": f"notifications/{number}", "params": [number]}) + b"\n", [])
        assert_bounded(one)
        assert one.peer.notes.counts["a malformed notification"] == 500


def test_an_answer_with_a_long_id_is_noted_in_short() -> None:
    with server() as one:
        one.say(dumped({"id": "x" * 4000, "result": {}}) + b"\n", [])
        assert_bounded(one)
        assert one.peer.notes.counts["an answer nobody asked for"] == 1


@for_each("rpc_id", [2**64, -(2**70), 10**400, 1.7e308, "\0", ""], ids=lambda id: repr(id)[:8])
@for_each("params", [None, [], {}, {"_meta": {"progressToken": 10**30}}])
def test_a_request_is_answered_under_the_id_it_came_with(rpc_id: Any, params: Any) -> None:
    with server() as one:
        for method in ("ping", "roots/list"):
            one.say(dumped({"id": rpc_id, "method": method, "params": params}) + b"\n", [])
        for asked, _, _ in one.hooks.requests:
            one.peer.reply(asked, {})
        one.say(b"", [])
        assert [json.loads(answer)["id"] for answer in one.heard.splitlines()] == [rpc_id, rpc_id]


@examples(20)
@given(st.lists(lines(STRANGERS), max_size=8), CUTS)
@pytest.mark.parametrize("loop", ["trio", "asyncio"])
def test_the_same_in_a_real_loop(loop: str, junk: list[bytes], cuts: list[int]) -> None:
    async def main() -> None:
        with pipes(2) as (to_us, from_us):
            loop_backend, hooks, over = current_backend(), Recorder(), anyio.Event()
            peer = LinePeer(
                loop_backend,
                hooks,
                read_fd=to_us[0],
                write_fd=from_us[1],
                max_line=MAX_LINE,
                on_over=lambda _: over.set(),
            )
            call = Call("tools/call")
            async with anyio.create_task_group() as group:
                group.start_soon(loop_backend.read_forever, to_us[0], peer.read)
                group.start_soon(peer.write_forever)
                peer.request(call)
                said = [*junk, b'{"id":1,"result":{}}', b""]
                for chunk in cut_up(b"\n".join(said), cuts):
                    await write_all(to_us[1], chunk)
                with anyio.fail_after(PATIENCE):
                    await call.done.wait()
                os.close(to_us[1])
                with anyio.fail_after(PATIENCE):
                    await over.wait()
                peer.silence()
                group.cancel_scope.cancel()
            assert call.ends == [(b"{}", None)]

    run(loop, main)


@contextmanager
def pipes(count: int) -> Generator[list[tuple[int, int]]]:
    made = [os.pipe() for _ in range(count)]
    for fd in (fd for ends in made for fd in ends):
        os.set_blocking(fd, False)
    try:
        yield made
    finally:
        for fd in (fd for ends in made for fd in ends):
            try:
                os.close(fd)
            except OSError:
                continue


async def write_all(fd: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:
            await anyio.wait_writable(fd)


# ---- the door ------------------------------------------------------------------------------------------------------


class Outlet:
    """What a client is sent: each line must be JSON-RPC, whatever the client said."""

    busy = False

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, line: bytes) -> bool:
        assert line.endswith(b"\n")
        assert line.count(b"\n") == 1
        message = json.loads(line.decode())
        assert message["jsonrpc"] == "2.0"
        self.sent.append(message)
        return True


def session(outlet: Any, spawn: Callable[..., object], notes: Callable[[str], None]) -> ClientSession:
    room: Any = FakeRoom()
    room.answer = {"content": []}
    return ClientSession(Endpoint("9.9", notes, InboundBudget(lambda: 1 << 30)), Proxy(room), outlet, spawn)


MCP = st.builds(
    lambda id, arguments, more: dumped(
        {
            "jsonrpc": "2.0",
            "id": id,
            "method": "tools/call",
            "params": {"name": "mcp", "arguments": arguments, **more},
        }
    ),
    st.integers(1, 3) | SCALARS,
    st.dictionaries(
        st.sampled_from(
            ["tool", "args", "server", "search", "describe", "connect", "action", "limit", "regex"]
        ),
        VALUES
        | st.sampled_from(["github_create_issue", "github", "(a+)+$", '{"title": 1}', "{", "[" * 5000]),
        max_size=4,
    )
    | VALUES,
    st.dictionaries(st.sampled_from(["_meta", "timeout", "task"]), VALUES, max_size=2),
)


@examples(80)
@given(st.lists(lines(st.integers(0, 3) | SCALARS) | MCP, max_size=10))
def test_whatever_a_client_says_gets_an_answer_or_is_no_request(said: list[bytes]) -> None:
    outlet, notes = Outlet(), list[str]()

    async def main() -> None:
        async with anyio.create_task_group() as group:
            talk = session(outlet, group.start_soon, notes.append)
            for line in said:
                before = len(outlet.sent) + talk.in_flight
                talk.receive(line)
                await anyio.wait_all_tasks_blocked()
                assert len(outlet.sent) + talk.in_flight > before or not _wants_an_answer(line)
            talk.close()
            group.cancel_scope.cancel()

    run("trio", main)
    assert not [note for note in notes if "bug" in note]


@pytest.mark.parametrize(
    ("line", "echoed"),
    [
        (b'{"id":"\x80","method":"ping"}', "\ufffd"),
        (b'{"id":"\x80","method":"tools/call","params":[]}', "\ufffd"),
        (b'{"id":1,"method":"ping","x":"\xc3"}', 1),
    ],
)
def test_what_is_not_utf8_is_answered_and_never_sent_back(line: bytes, echoed: object) -> None:
    outlet = Outlet()
    session(outlet, lambda _work: None, lambda _note: None).receive(line)

    assert [message["id"] for message in outlet.sent] == [echoed]


def _wants_an_answer(line: bytes) -> bool:
    """Whether JSON-RPC asks for one: it is a request, or nothing that can be read."""
    try:
        message = json.loads(line.decode(errors="replace"))  # as it is read (`protocol.safe_text`)
    except (ValueError, RecursionError):
        return True
    if not isinstance(message, dict):
        return True
    return isinstance(message.get("method"), str) and message.get("id") is not None


@examples(20)
@given(st.lists(lines(st.integers(0, 3) | SCALARS), max_size=8), CUTS)
@pytest.mark.parametrize("loop", ["trio", "asyncio"])
def test_after_any_junk_the_door_still_answers(loop: str, said: list[bytes], cuts: list[int]) -> None:
    async def main() -> None:
        with pipes(2) as (stdin, stdout):
            door = StdioDoor(current_backend(), stdin[0], stdout[1], max_line=MAX_LINE)
            notes = list[str]()
            with door.opened():
                async with anyio.create_task_group() as group:
                    talk = session(door, group.start_soon, notes.append)
                    group.start_soon(door.write)
                    group.start_soon(door.read, talk.receive)
                    ping = b'{"jsonrpc":"2.0","id":"last","method":"ping"}'
                    for chunk in cut_up(b"\n".join([*said, ping, b""]), cuts):
                        await write_all(stdin[1], chunk)
                    with anyio.fail_after(PATIENCE):
                        await _until_answered(stdout[0], "last")
                    talk.close()
                    group.cancel_scope.cancel()
            assert not [note for note in notes if "bug" in note]

    run(loop, main)


async def _until_answered(fd: int, wanted: str) -> None:
    rest = b""
    while True:
        await anyio.wait_readable(fd)
        *whole, rest = (rest + os.read(fd, 1 << 16)).split(b"\n")
        if any(json.loads(line).get("id") == wanted for line in whole):
            return
