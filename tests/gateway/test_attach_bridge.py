"""What an attaching process does for its client, against rooms that the test plays: every request has one outcome."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.patience import PATIENCE, until

from greenroom.gateway.doors.attach_bridge import GIVEN_UP, Bridge, Pipes
from greenroom.gateway.doors.attach_protocol import OF_CLIENT, STOPPED, RoomLines, say

LOST = {"error": "room_lost", "reach": "sent"}


def call(number: object, size: int = 0) -> bytes:
    said = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {"x": "x" * size}}
    return json.dumps(said).encode() + b"\n"


def answer(number: object, size: int = 0) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": number, "result": {"x": "x" * size}}).encode() + b"\n"


INITIALIZE = b'{"jsonrpc":"2.0","id":"i","method":"initialize","params":{}}\n'
READY = b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n'


@attrs.define
class Room:
    """One room. `end` ends it with a word, or kills it; then `why` is what the bridge found."""

    pipes: Pipes
    line: socket.socket
    bridging: threading.Thread
    found: list[str]

    def read(self, most: int = 1 << 16) -> bytes:
        """What has come, at most so many bytes."""
        until(self.pipes.unread)
        return os.read(self.pipes.theirs[0], most)

    def reads(self, expected: bytes) -> None:
        got = b""
        while len(got) < len(expected):
            got += self.read(len(expected) - len(got))  # what comes behind it is for whoever reads next
        assert got == expected

    def write(self, data: bytes) -> None:
        os.write(self.pipes.theirs[1], data)

    def end(self, why: str | None = None) -> str:
        if why is not None:
            say(self.line, end=why)
        self.line.close()
        return self.why()

    def why(self) -> str:
        self.bridging.join(PATIENCE)
        assert not self.bridging.is_alive()
        return self.found[0]


@attrs.define
class BridgedClient:
    """The bytes of a client, and the bridge that passes them on."""

    max_line: int = 1 << 22
    ends: list[int] = attrs.field(factory=list[int], init=False)
    bridge: Bridge = attrs.field(init=False)
    got: bytes = attrs.field(default=b"", init=False)
    stdin: int = attrs.field(init=False)
    stdout: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        reads, self.stdin = os.pipe()
        self.stdout, writes = os.pipe()
        os.set_blocking(writes, False)
        os.set_blocking(self.stdout, False)
        self.ends = [reads, self.stdin, self.stdout, writes]
        self.bridge = Bridge(reads, writes, self.max_line)

    @contextmanager
    def joined(self) -> Generator[Room]:
        pipes = Pipes()
        ours, theirs = socket.socketpair()
        found: list[str] = []
        thread = threading.Thread(
            target=lambda: found.append(self.bridge.run(ours, RoomLines(ours), pipes)), daemon=True
        )
        thread.start()
        room = Room(pipes, theirs, thread, found)
        try:
            yield room
        finally:
            theirs.close()
            room.why()
            ours.close()
            if not found[0]:
                self.bridge.lose(pipes)
            pipes.close()

    def say(self, data: bytes) -> None:
        while data:
            data = data[os.write(self.stdin, data) :]

    def read(self) -> bytes:
        with suppress(BlockingIOError):
            while data := os.read(self.stdout, 1 << 16):
                self.got += data
        return self.got

    def hears(self, expected: bytes) -> None:
        until(lambda: len(self.read()) >= len(expected))
        assert self.got == expected
        self.got = b""

    def close_input(self) -> None:
        os.close(self.stdin)
        self.ends.remove(self.stdin)

    def close_output(self) -> None:
        os.close(self.stdout)
        self.ends.remove(self.stdout)


@pytest.fixture
def client() -> Generator[BridgedClient]:
    one = BridgedClient()
    yield one
    for end in one.ends:
        os.close(end)


def outcomes(text: bytes) -> dict[Any, Any]:
    """What was said of each request: its result, or the data of its error. Each has one, in a line of its own."""
    told = [json.loads(line) for line in text.splitlines()]
    found = {one["id"]: one.get("result") or one["error"]["data"] for one in told}
    assert len(found) == len(told)
    return found


def test_lines_pass_both_ways_and_a_room_says_how_it_ends(client: BridgedClient) -> None:
    with client.joined() as room:
        client.say(call(1) + call(2)[:20])
        room.reads(call(1))
        client.say(call(2)[20:])
        room.reads(call(2))
        room.write(answer(1) + answer(2)[:5])
        client.hears(answer(1))
        room.write(answer(2)[5:])
        assert room.end(STOPPED) == STOPPED
    client.bridge.finish()
    client.hears(answer(2))


def test_what_may_have_run_is_answered_and_what_has_not_is_for_the_next_room(client: BridgedClient) -> None:
    with client.joined() as room:
        client.say(call(1) + call("two") + call(3))
        room.reads(call(1) + call("two") + call(3))
        room.write(answer(1) + answer(3)[:10])
        client.hears(answer(1))
        client.say(call(4) + READY + call(5)[:9])
        until(lambda: room.pipes.unread() == len(call(4) + READY))
        room.read(7)
        assert room.end() == ""
    with client.joined() as room:
        until(lambda: client.read().count(b"\n") == 2)
        assert outcomes(client.got) == {"two": LOST, 3: LOST}, "of half an answer nothing is seen"
        client.got = b""
        room.reads(call(4) + READY)
        client.say(call(5)[9:])
        room.reads(call(5))
        room.write(answer(4) + answer(5))
        client.hears(answer(4) + answer(5))


def test_a_cancelled_request_has_no_answer_either_way(client: BridgedClient) -> None:
    cancel = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}\n'
    with client.joined() as room:
        client.say(call(1) + call(2) + cancel)
        room.reads(call(1) + call(2) + cancel)
        room.end()
    client.bridge.finish()
    assert outcomes(client.read()) == {2: LOST}


def test_an_id_that_is_used_again_is_open_again(client: BridgedClient) -> None:
    with client.joined() as room:
        for number in (1, 1, 2):
            client.say(call(number))
            room.reads(call(number))
            room.write(answer(number))
            client.hears(answer(number))
        client.say(call(1))
        room.reads(call(1))
        room.end()
    client.bridge.finish()
    assert outcomes(client.read()) == {1: LOST}


@pytest.mark.parametrize("answered", [True, False])
@pytest.mark.parametrize("ready", [True, False])
def test_an_introduction_is_known_once_it_is_answered_and_else_made_again(
    client: BridgedClient, answered: bool, ready: bool
) -> None:
    with client.joined() as room:
        client.say(INITIALIZE)
        room.reads(INITIALIZE)
        if answered:
            room.write(answer("i"))
            client.hears(answer("i"))
            client.say(READY)
            until(lambda: room.pipes.unread() == len(READY))
            if ready:
                room.reads(READY)
        room.end()
    assert client.bridge.initialize == (INITIALIZE.decode().rstrip() if answered else None)
    assert client.bridge.initialized == (answered and ready)
    with client.joined() as room:
        if not (answered and ready):
            room.reads(READY if answered else INITIALIZE)
        assert client.read() == b""


def test_a_room_that_says_nothing_after_the_client_has_ended_is_left(client: BridgedClient) -> None:
    with client.joined() as room:
        client.close_input()
        assert room.why() == GIVEN_UP


def test_a_room_sees_the_end_of_its_client_behind_all_that_was_said(client: BridgedClient) -> None:
    with client.joined() as room:
        client.say(call(1))
        client.close_input()
        room.reads(call(1))
        assert os.read(room.pipes.theirs[0], 1) == b""
        room.write(answer(1))
        assert room.end(OF_CLIENT) == OF_CLIENT
    client.bridge.finish()
    client.hears(answer(1))


def test_a_client_that_no_longer_reads_has_ended(client: BridgedClient) -> None:
    with client.joined() as room:
        client.close_output()
        room.write(answer(1))
        assert room.why() == OF_CLIENT


def test_a_side_that_does_not_read_holds_up_the_other_and_nothing_of_it_is_lost(
    client: BridgedClient,
) -> None:
    with client.joined() as room:
        requests = b"".join(call(number, 2_000) for number in range(200))
        saying = threading.Thread(target=client.say, args=[requests])
        saying.start()
        time.sleep(0.05)
        room.reads(requests)
        saying.join()
        answers = b"".join(answer(number, 2_000) for number in range(200))
        writing = threading.Thread(
            target=lambda: [room.write(answers[i : i + 4096]) for i in range(0, len(answers), 4096)]
        )
        writing.start()
        time.sleep(0.05)
        client.say(call("while it does not read"))
        room.reads(call("while it does not read"))
        client.hears(answers)
        writing.join()


def test_large_lines_pass_and_one_over_the_bound_is_refused(client: BridgedClient) -> None:
    with client.joined() as room:
        large, over = call(1, 1 << 21), call(2, 1 << 23)
        saying = threading.Thread(target=client.say, args=[large + over + call(3)])
        saying.start()
        room.reads(large + call(3))
        saying.join()
        until(lambda: b"\n" in client.read())
        (refusal,) = map(json.loads, client.got.splitlines())
        assert refusal["id"] == 2
        assert "4,194,304 bytes" in refusal["error"]["message"]
        client.got = b""
        room.end()
    client.bridge.finish()
    assert outcomes(client.read()) == {1: LOST, 3: LOST}


def test_a_large_line_of_which_a_killed_room_has_read_a_part_is_whole_for_the_next(
    client: BridgedClient,
) -> None:
    large = call(1, 1 << 18)
    with client.joined() as room:
        client.say(call(0))
        saying = threading.Thread(target=client.say, args=[large + call(2)])
        saying.start()
        room.reads(call(0))
        room.read(50_000)
        room.end()
    with client.joined() as room:
        room.reads(large + call(2))
        saying.join()
    client.bridge.finish()
    assert outcomes(client.read()) == {0: LOST, 1: LOST, 2: LOST}


def test_what_is_no_message_passes_and_hurts_nothing(client: BridgedClient) -> None:
    junk = (
        b'\n \nnot json\n[]\n{}\n\xff\n{"id":{},"method":"x"}\n{"id":7,"result":{}}\n' + b"[" * 9999 + b"\n"
    )
    with client.joined() as room:
        client.say(junk)
        room.reads(junk)
        client.say(b"\xef\xbb\xbf" + call(1))
        room.reads(b"\xef\xbb\xbf" + call(1))
        room.end()
    client.bridge.finish()
    assert outcomes(client.read()) == {1: LOST}


def test_an_answer_that_cannot_be_read_is_an_answer(client: BridgedClient) -> None:
    """The client has it, so it gets no second one when the room is killed."""
    deep = b'{"jsonrpc":"2.0","id":1,"result":' + b"[" * 5000 + b"]" * 5000 + b"}\n"
    with client.joined() as room:
        client.say(call(1) + call(2))
        room.reads(call(1) + call(2))
        room.write(deep)
        client.hears(deep)
        room.end()
    client.bridge.finish()
    assert outcomes(client.read()) == {2: LOST}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 400), min_size=1, max_size=8),  # requests of these sizes
            st.integers(0, 4_000),  # bytes of the client's last line that are still to come
            st.integers(0, 6_000),  # bytes that the room reads
            st.integers(0, 8),  # requests that it answers
            st.integers(0, 60),  # bytes of one more answer that it writes
        ),
        min_size=1,
        max_size=4,
    )
)
def test_every_request_has_one_outcome_whenever_rooms_are_killed(rooms: list[Any]) -> None:
    client, number, waiting = BridgedClient(), 0, b""
    expected: dict[Any, Any] = {}
    passed = b""  # whole lines that a room has not read whole
    for sizes, missing, most, count, more in rooms:
        with client.joined() as room:
            said = waiting
            for size in sizes:
                said += call(number, size)
                number += 1
            cut = max(0, len(said) - missing)
            client.say(said[len(waiting) : cut] if cut > len(waiting) else b"")
            said_now = said[: max(cut, len(waiting))]
            whole = said_now[: said_now.rfind(b"\n") + 1]
            passed += whole
            until(lambda: room.pipes.unread() == len(passed))  # noqa: B023
            read = os.read(room.pipes.theirs[0], most) if most and passed else b""
            taken = read[: read.rfind(b"\n") + 1]
            begun = [json.loads(line)["id"] for line in taken.splitlines()]
            for one in begun[:count]:
                room.write(answer(one))
                expected[one] = {"x": ""}
            for one in begun[count:]:
                expected[one] = LOST
            if begun[count:]:
                room.write(answer(begun[count])[: min(more, 30)])
            room.end()
        passed = passed[len(taken) :]
        rest = said[len(said_now) :]
        waiting = said_now[len(whole) :]
        if rest:  # the client goes on where it was
            client.say(rest)
            waiting += rest
            passed += waiting[: waiting.rfind(b"\n") + 1]
            waiting = waiting[waiting.rfind(b"\n") + 1 :]
    with client.joined() as room:
        room.reads(passed)
        for line in passed.splitlines():
            one = json.loads(line)["id"]
            room.write(answer(one))
            expected[one] = {"x": ""}
        until(lambda: client.read().count(b"\n") >= number)
    assert outcomes(client.got) == {**dict.fromkeys(range(number)), **expected}
    for end in client.ends:
        os.close(end)
