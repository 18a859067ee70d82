"""What all peers have in common, without a wire: which request an answer ends, what is counted, noted or told, and
that nothing comes after silence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from tests.support import in_real_time
from tests.support.stdio import Call, Recorder

from greenroom.actors.backend import current_backend
from greenroom.actors.exchanges import ExchangeTable
from greenroom.actors.open_requests import RequestTable, mark_sent
from greenroom.actors.server_notes import ServerNotes
from greenroom.protocol.errors import Reach
from greenroom.protocol.jsonrpc.incoming import decode_message
from greenroom.protocol.jsonrpc.terms import RpcError
from greenroom.protocol.safe_text import repair_utf8


class Sent:
    """An `MessageSender` that keeps what would leave."""

    def __init__(self) -> None:
        self.said: list[Any] = []

    def notify(self, method: str, params: Mapping[str, Any] | None) -> None:
        self.said.append((method, params))

    def reply(self, rpc_id: Any, result: Mapping[str, Any] | None, error: RpcError | None) -> None:
        self.said.append((rpc_id, result, error.code if error is not None else None))

    def withdraw(self, exchange: Any) -> None:
        self.said.append(("withdrawn", exchange))


class Table:
    """A table in which a request is sent as soon as it is opened."""

    def __init__(self) -> None:
        self.hooks, self.out = Recorder(), Sent()
        self.exchanges = ExchangeTable(
            current_backend(), self.hooks, ServerNotes(self.hooks.on_note), self.out
        )

    def ask(self, method: str = "tools/call") -> Call:
        call = Call(method)
        self.exchanges._opened(call)
        mark_sent(call)
        return call

    @property
    def counts(self) -> tuple[int, int]:
        return self.exchanges.junk, self.exchanges.unasked


RESULT = b'{"jsonrpc":"2.0","id":1,"result":{}}'
SAID: list[tuple[bytes, tuple[int, int], str | None]] = [
    # a line; what it counts as: (junk, unasked); how the note about it begins
    (RESULT, (0, 0), None),
    (b'{"jsonrpc":"2.0","id":"1","result":{}}', (0, 0), None),
    (b'{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no"}}', (0, 0), None),
    (b'{"jsonrpc":"2.0","id":2,"result":{}}', (0, 0), "a late or second answer: id 2"),
    (b'{"jsonrpc":"2.0","id":3,"result":{}}', (1, 0), "an answer nobody asked for: id 3"),
    (b'{"jsonrpc":"2.0","id":0,"result":{}}', (1, 0), "an answer nobody asked for: id 0"),
    (b'{"jsonrpc":"2.0","id":-2,"result":{}}', (1, 0), "an answer nobody asked for: id -2"),
    (b'{"jsonrpc":"2.0","error":{"code":-1,"message":"no"}}', (1, 0), "an error about no request: "),
    (b'{"jsonrpc":"2.0"}', (1, 0), "a message that is neither"),
    (b'{"jsonrpc":"2.0","method":"notifications/x"}', (0, 1), None),
    (b'{"jsonrpc":"2.0","method":"notifications/x","params":7}', (0, 1), "a malformed notification: "),
    *(
        (
            b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":%b}}'
            % number,
            (0, 1),
            "a malformed notification: notifications/progress: its number is out of range",
        )
        for number in (b"1" + 400 * b"0", b"-1" + 400 * b"0", b'1,"total":1' + 400 * b"0")
    ),
    (b'{"jsonrpc":"2.0","id":"a","method":"roots/list"}', (0, 1), None),
    (b'{"jsonrpc":"2.0","id":"a","method":"ping"}', (0, 1), None),
    (b"hello", (1, 0), 'junk on its stream: "hello"'),
    (b"", (1, 0), None),
    (b" \t \r", (1, 0), None),
]


@in_real_time
async def test_the_late_answer_to_a_probe_that_we_gave_up_on_is_no_news() -> None:
    table = Table()
    for method in ("server/discover", "initialize"):
        probe = table.ask(method)
        table.exchanges.abandon(probe, "timed out")
    for number, news in ((1, 0), (2, 0), (2, 1)):
        table.exchanges.take_line(b'{"jsonrpc":"2.0","id":%d,"result":{}}' % number)
        assert table.exchanges.notes.counts["a late or second answer"] == news
        assert table.counts == (0, 0)


@pytest.mark.parametrize("is_large", [False, True])
@in_real_time
async def test_each_line_counts_as_what_it_is(is_large: bool) -> None:
    for line, counts, note in SAID:
        table = Table()
        table.ask()
        second = table.ask()
        table.exchanges.abandon(second, "enough")
        if is_large:
            table.exchanges.decode_large(repair_utf8(line))()
        else:
            table.exchanges.take_line(line)
        assert table.counts == counts, line
        assert len(table.hooks.notes) == (note is not None), line
        assert all(each.startswith(note or "") for each in table.hooks.notes), line


@in_real_time
async def test_text_that_is_no_utf8_is_repaired_and_noted() -> None:
    table = Table()
    call, line = table.ask(), b'{"jsonrpc":"2.0","id":1,"result":{"text":"\xff"}}'
    table.exchanges.take_line(line)
    ((result, error),) = call.ends
    assert error is None
    assert "\ufffd".encode() in (result or b"")
    (note,) = table.hooks.notes
    assert note.startswith("bad UTF-8 on its stream: ")


BROKEN = b'{"jsonrpc":"2.0","id":1,"result":{'


@in_real_time
async def test_a_broken_answer_ends_its_request_as_a_fault() -> None:
    table = Table()
    first, second, third = table.ask(), table.ask(), table.ask()
    table.exchanges.take_line(BROKEN)
    table.exchanges.take_overlong(BROKEN.replace(b"1,", b"2,"), "10 bytes")
    table.exchanges.take_line(b'{"jsonrpc":"2.0","id":3,"result":[1]}')
    for call, why in (
        (first, "the answer is not JSON-RPC: "),
        (second, "the answer is over the bound of 10 bytes"),
        (third, 'the answer has no result object ("[1]")'),
    ):
        ((result, error),) = call.ends
        assert (result, error and error.fault, call.reach) == (None, True, Reach.ANSWERED)
        assert ((error and error.message) or "").startswith(why)
    assert table.hooks.notes == []
    table.exchanges.take_overlong(b"x" * 9, "10 bytes")
    (note,) = table.hooks.notes
    assert note.startswith('a message over the bound of 10 bytes was thrown away: "xxx')


BEGINS = b'{"result":{"content":[{"type":"text","text":"'


@pytest.mark.parametrize(
    ("head", "tail", "ends"),
    [
        (BEGINS, b'x"}]},"jsonrpc":"2.0","id":1}', True),
        (b'{"jsonrpc": "2.0", "result": {', b'"x"}, "id": "1" }\r', True),
        (b'{"error":{"code":1,"data":"', b'"},"id":1,"jsonrpc":"2.0"}', True),
        (BEGINS, b'x"}]},"jsonrpc":"2.0","id":2}', False),  # another one
        (BEGINS, b'"structuredContent":{"id":1}}', False),  # of the result
        (BEGINS, b'x"}]},"id":1}, more', False),
        (b'{"method":"sampling/createMessage","params":{', b'},"jsonrpc":"2.0","id":1}', False),  # its own id
        (b"x" * 99, b'"id":1}', False),
    ],
)
@in_real_time
async def test_an_overlong_answer_is_known_by_its_end(head: bytes, tail: bytes, ends: bool) -> None:
    table = Table()
    call, other = table.ask(), table.ask("ping")
    table.exchanges.abandon(other, "enough")
    assert table.exchanges.take_overlong(head, "10 bytes") is False
    assert table.exchanges.end_overlong(head, tail, "10 bytes") is ends
    assert [error.message for _, error in call.ends if error] == [
        "the answer is over the bound of 10 bytes"
    ] * ends
    table.exchanges.silence()
    assert table.exchanges.end_overlong(head, tail, "10 bytes") is False


@in_real_time
async def test_after_silence_nothing_is_sent_ended_noted_or_counted() -> None:
    table = Table()
    call = table.ask()
    exchanges = table.exchanges
    exchanges.reply(1, {"a": 1})
    exchanges.notify("notifications/x")
    assert table.out.said == [(1, {"a": 1}, None), ("notifications/x", None)]
    exchanges.silence()
    exchanges.silence()
    assert exchanges.is_silent
    table.out.said.clear()
    exchanges.reply(2, {})
    exchanges.notify("notifications/x", {})
    for line, _, _ in SAID:
        exchanges.take_line(line)
        exchanges.decode_large(line)()
    exchanges.take_line(BROKEN)
    exchanges.take_overlong(BROKEN, "10 bytes")
    exchanges.take_overlong(b"junk", "10 bytes")
    assert (call.ends, call.reach, table.counts) == ([], Reach.SENT, (0, 0))
    assert (table.hooks.notes, table.hooks.notifications, table.hooks.requests) == ([], [], [])
    exchanges.abandon(call, "enough")
    assert table.out.said == [("withdrawn", call)], "what is on its way is stopped, and nobody told"


@pytest.mark.parametrize("method", ["tools/call", "initialize"])
@pytest.mark.parametrize("is_sent", [True, False])
@in_real_time
async def test_who_leaves_a_request_tells_its_server_of_what_may_run_and_may_be_cancelled(
    method: str, is_sent: bool
) -> None:
    table = Table()
    call = table.ask(method)
    if not is_sent:
        call.reach = Reach.NOT_SENT
    table.exchanges.abandon(call, "enough")
    table.exchanges.abandon(call, "twice")
    told = ("notifications/cancelled", {"requestId": 1, "reason": "enough"})
    tells = is_sent and method == "tools/call"
    assert table.out.said == [("withdrawn", call), *([told] if tells else [])]


@in_real_time
async def test_a_server_request_is_told_with_the_request_on_whose_stream_it_came() -> None:
    table = Table()
    told: list[Any] = []
    table.hooks.on_request = lambda *request: told.append(request)  # type: ignore[method-assign]
    call, message = table.ask(), b'{"jsonrpc":"2.0","id":"q","method":"roots/list","params":{"a":1}}'
    table.exchanges.take(decode_message(message), call)
    table.exchanges.take(decode_message(message))
    assert told == [("q", "roots/list", {"a": 1}, call), ("q", "roots/list", {"a": 1}, None)]


# ---- requests ------------------------------------------------------------------------------------------------------


def test_a_request_of_another_connection_takes_off_none_that_has_its_number_here() -> None:
    before, here = RequestTable(), RequestTable()
    old, new = Call("tools/call"), Call("tools/call")
    before.open(old)
    here.open(new)
    assert old.rpc_id == new.rpc_id == 1
    assert not here.withdraw(old)
    assert here.get(1) is new
    assert here.withdraw(new)
    assert not here.withdraw(new)
    assert (len(here), here.get(1), here.last_id) == (0, None, 1)
    here.open(old)
    assert (old.rpc_id, here.get(1), here.pop(2, None), here.get(2)) == (2, None, old, None)


def test_what_was_not_sent_is_not_answered_and_what_was_is_answered_once() -> None:
    table, call = RequestTable(), Call("tools/call")
    table.open(call)
    assert table.answered(1) is None
    assert table.get(1) is call, "an answer to it was guessed"
    mark_sent(call)
    mark_sent(call)
    assert call.sent_at == [Reach.SENT], "it is told once"
    table.progress(1, {"progress": 1})
    assert table.answered(1) is call
    assert (call.reach, call.seen) == (Reach.ANSWERED, [1])
    assert table.answered(1) is None
    table.progress(1, {"progress": 2})
    assert call.seen == [1]
    table.open(Call("a"))
    table.open(Call("b"))
    assert [each.method for each in table.values()] == ["a", "b"]


def test_notes_are_said_in_full_first_and_then_by_their_count() -> None:
    said: list[str] = []
    notes = ServerNotes(lambda _code, words: said.append(words))
    for at in range(1000):
        notes.add("junk", str(at))
    assert said == [
        *(f"junk: {at}" for at in range(3)),
        *(f"junk: {count} times so far" for count in ("10", "100", "1,000")),
    ]
