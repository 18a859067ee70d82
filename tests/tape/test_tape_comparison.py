"""What differs between tapes: which calls belong together, what counts of their answers, and what is asked again."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import in_real_time
from tests.support.asking import AskingServer, asking_connectors
from tests.support.gateway import PATIENCE
from tests.support.rows import for_each
from tests.tape.test_hostile_tapes import CALL, HEAD

from greenroom import Greenroom
from greenroom.errors import UsageError
from greenroom.tape.alignment import aligned
from greenroom.tape.tape_reader import BadTape
from greenroom.testing import Comparison, compare_servers, compare_tapes
from greenroom.testing.fake_servers import FakeServer, fake_connectors, fake_room, tool

READS = {"readOnlyHint": True}


def tape_of(folder: Path, name: str, *lines: Any) -> Path:
    path = folder / f"{name}.tape"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in (HEAD, *lines)))
    return path


def call(n: int, name: str = "echo", /, *, at: float | None = None, text: Any = "", **arguments: Any) -> Any:
    """A call that took a tenth of a second. `text`: what it answered."""
    begun = float(n) if at is None else at
    said = text if isinstance(text, str) else json.dumps(text)
    return {
        **CALL,
        "n": n,
        "order": n,
        "accepted": begun,
        "sent": begun,
        "ended": begun + 0.1,
        "tool": f"shop_{name}",
        "params": {"name": name, "arguments": arguments},
        "result": {"content": [{"type": "text", "text": said}]},
    }


def told(found: Comparison) -> list[tuple[str, int | None, int | None]]:
    return [(each.what, each.before, each.after) for each in found.calls]


def paths(found: Comparison) -> list[tuple[str, str | None, str | None]]:
    return [(each.path, each.before, each.after) for one in found.calls for each in one.changes]


def both(folder: Path, first: Sequence[Any], second: Sequence[Any], **how: Any) -> Comparison:
    return compare_tapes(tape_of(folder, "first", *first), tape_of(folder, "second", *second), **how)


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
def test_what_a_server_declares_in_another_version_of_the_protocol_is_no_difference(
    version: str, tmp_path: Path
) -> None:
    def listed(version: str, *, tells: bool) -> Any:
        return {
            "k": "listed", "t": 0.1, "server": "shop", "scope": "shared", "incarnation": 1, "version": version,
            "capabilities": {"tools": {"listChanged": tells}}, "info": {}, "instructions": None,
            "tools": [], "resources": [], "templates": [], "prompts": [], "skills": None, "prints": {},
        }  # fmt: skip

    found = both(tmp_path, [listed("2026-07-28", tells=True)], [listed(version, tells=False)])
    declared = [change.path for one in found.definitions for change in one.changes]
    assert declared == (["capabilities.tools.listChanged"] if version == "2026-07-28" else [])


@given(st.lists(st.integers(0, 5), max_size=14), st.lists(st.integers(0, 5), max_size=14))
def test_short_runs_are_aligned_at_best(first: list[int], second: list[int]) -> None:
    pairs = aligned(first, second)
    assert pairs == sorted(pairs)
    assert len({at for at, _ in pairs}) == len({other for _, other in pairs}) == len(pairs)
    assert all(first[at] == second[other] for at, other in pairs)
    best = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for i, one in enumerate(first):
        for j, other in enumerate(second):
            best[i + 1][j + 1] = best[i][j] + 1 if one == other else max(best[i][j + 1], best[i + 1][j])
    assert len(pairs) == best[-1][-1]


@given(st.permutations(range(300)), st.sets(st.integers(0, 299), max_size=40))
def test_long_runs_are_aligned_in_order(order: list[int], gone: set[int]) -> None:
    left = [item for item in range(300) if item not in gone]
    assert [at for at, _ in aligned(range(300), left)] == left
    pairs = aligned(range(300), order)
    assert all(at == order[other] for at, other in pairs)
    assert pairs == sorted(pairs, key=lambda pair: pair[1]) != []


@for_each(
    ("first", "second"),
    [
        (list(range(20_000)), list(range(20_000))[::-1]),
        ([0] * 20_000, [0] * 10_000 + [1] + [0] * 10_000),
        ([0, 1] * 10_000, [1, 0] * 10_000),
        ([each % 7 for each in range(20_000)], [each * each % 7 for each in range(20_000)]),
    ],
    ids=["reversed", "the same again and again", "shifted", "mixed"],
)
def test_the_worst_orders_take_no_quadratic_time(first: list[int], second: list[int]) -> None:
    began = time.process_time()
    aligned(first, second)
    assert time.process_time() - began < 20, "it takes less than half a second"


def test_calls_added_left_out_changed_and_moved(tmp_path: Path) -> None:
    first = [call(1, n=1), call(2, "find", q="a"), call(3, n=2), call(4, "stop")]
    second = [call(1, n=1), call(2, "find", q="b"), call(3, "stop"), call(4, n=2), call(5, "more")]
    found = both(tmp_path, first, second)
    assert told(found) == [("arguments", 2, 2), ("order", 3, 4), ("added", None, 5)]
    assert paths(found) == [("q", '"a"', '"b"')]
    assert found.same == 2, "the first one, and stop"
    several = both(tmp_path, [call(1, q="a"), call(2, q="b")], [call(1, q="c"), call(2, q="d")])
    assert paths(several) == [("q", '"a"', '"c"'), ("q", '"b"', '"d"')]
    back = both(tmp_path, second, first)
    assert ("left_out", 5, None) in told(back)


def test_calls_made_at_once_may_come_in_any_order(tmp_path: Path) -> None:
    first = [call(1, at=1.0, n=1), call(2, at=1.01, n=2)]
    swapped = [call(1, at=1.0, n=2), call(2, at=1.01, n=1)]
    assert both(tmp_path, first, swapped).is_same
    after = [call(1, at=1.0, n=2), call(2, at=3.0, n=1)]
    assert [each[0] for each in told(both(tmp_path, first, after))] == ["order"]
    ann, bob = {"session": "ann"}, {"session": "bob"}
    of_two = [{**call(1, n=1), **ann}, {**call(2, n=2), **bob}]
    assert both(tmp_path, of_two, [{**call(1, n=2), **bob}, {**call(2, n=1), **ann}]).is_same
    assert not both(tmp_path, of_two, [{**call(1, n=2), **ann}, {**call(2, n=1), **ann}]).is_same


def test_only_what_a_model_gets_of_an_answer_counts(tmp_path: Path) -> None:
    row = {"id": 7, "price": 3, "at": "10:00"}
    first, second = call(1, text=row), call(1, text={**row, "id": 8, "at": "11:00"})
    second["result"] |= {"_meta": {"trace": "x"}, "resultType": "complete", "ttlMs": 5}
    assert paths(both(tmp_path, [first], [second])) == [
        ("content[0].text.id", "7", "8"),
        ("content[0].text.at", '"10:00"', '"11:00"'),
    ]
    found = both(tmp_path, [first], [second], ignore=["id", "at"])
    assert (found.is_same, found.same) == (True, 1)


def test_structured_content_is_compared_once(tmp_path: Path) -> None:
    made = []
    for price in (3, 4):
        each = call(1, text={"price": price})
        each["result"]["structuredContent"] = {"price": price}
        made.append(each)
    assert paths(both(tmp_path, [made[0]], [made[1]])) == [("structuredContent.price", "3", "4")]


def test_one_item_put_in_does_not_change_all_behind_it(tmp_path: Path) -> None:
    rows = [{"n": number, "name": f"row {number}"} for number in range(300)]
    found = both(tmp_path, [call(1, text=rows)], [call(1, text=[{"n": -1}, *rows])])
    assert paths(found) == [("content[0].text[0]", None, '{"n": -1}')]
    lines = [f"line {number}" for number in range(300)]
    found = both(
        tmp_path,
        [call(1, text="\n".join(lines))],
        [call(1, text="\n".join([*lines[:9], "new", *lines[10:]]))],
    )
    assert paths(found) == [("content[0].text line 10", '"line 9"', '"new"')]


def test_true_is_not_one_and_a_hidden_value_is_not_known(tmp_path: Path) -> None:
    found = both(
        tmp_path, [call(1, text={"a": 1, "b": "[REDACTED]"})], [call(1, text={"a": True, "b": "secret"})]
    )
    assert paths(found) == [("content[0].text.a", "1", "true")]


def test_errors_and_ends_are_outcomes(tmp_path: Path) -> None:
    failed = {**call(1), "outcome": "timeout", "error": {"code": "timeout", "message": "no answer in 60 s"}}
    del failed["result"]
    said_so = call(1, text="no such row")
    said_so["result"]["isError"] = True
    outcomes = [both(tmp_path, [call(1)], [other]).calls[0].outcomes for other in (failed, said_so)]
    assert outcomes == [("answer", "timeout"), ("answer", "tool_error")]
    assert both(tmp_path, [failed], [failed]).is_same


def test_what_is_not_on_a_tape_is_no_difference(tmp_path: Path) -> None:
    running = {**call(1), "outcome": "open"}
    too_large = {**call(1), "left_out": {"result": 5_000_000}}
    for other in (running, too_large):
        del other["result"]
        assert both(tmp_path, [call(1, text="x")], [other]).is_same
        assert both(tmp_path, [other], [call(1, text="x")]).is_same


def test_slower_is_a_difference_if_asked_for_and_more_than_noise(tmp_path: Path) -> None:
    def took(seconds: float) -> list[Any]:
        return [{**call(n), "ended": n + seconds * n} for n in range(1, 4)]

    assert both(tmp_path, took(0.1), took(0.3)).is_same
    found = both(tmp_path, took(0.1), took(0.3), slower=2)
    (slow,) = found.slower_tools
    assert (slow.name, slow.calls, found.is_same) == ("shop_echo", 3, False)
    assert (round(slow.before, 3), round(slow.after, 3)) == (0.2, 0.6)
    assert both(tmp_path, took(0.001), took(0.005), slower=2).is_same


def test_what_servers_list_is_compared(tmp_path: Path) -> None:
    def listed(**more: Any) -> Any:
        said = {
            "k": "listed",
            "t": 0.1,
            "server": "shop",
            "scope": "shared",
            "incarnation": 1,
            "version": "1",
        }
        return {**said, "capabilities": {}, "info": {"version": "1"}, **more}

    old = listed(
        tools=[{"name": "a", "x": {"y": 1}}, {"name": "b"}], prompts=[{"name": "p"}], instructions="Do."
    )
    new = listed(tools=[{"name": "a", "x": {"y": 2}}, {"name": "c"}], info={"version": "2"})
    found = both(tmp_path, [old], [new])
    assert [(each.kind, each.name, each.what) for each in found.definitions] == [
        ("server", "shop", "changed"),
        ("tool", "a", "changed"),
        ("tool", "b", "gone"),
        ("tool", "c", "new"),
        ("prompt", "p", "gone"),
    ]
    assert found.versions == (("shop", "1", "2"),)
    assert both(tmp_path, [old], [listed(**{**old, "info": {"version": "9"}})]).is_same


@pytest.mark.parametrize(
    "changed",
    [
        {"params": [1, 2]},
        {"params": 5},
        {"params": {"name": ["a"], "arguments": "x"}},
        {"result": [1]},
        {"result": "text"},
        {"result": {"content": {"text": 1}, "structuredContent": None}},
        {"result": {"content": [1, None, {"text": 5}], "structuredContent": []}},
        {"outcome": "\x1b[31m", "error": {"code": "", "message": "", "rpc": {"code": []}}},
        {"server": "", "session": "", "tool": ""},
        {"accepted": 0, "ended": 1e9, "sent": 1e9},
    ],
)
def test_odd_calls_are_compared_like_others(tmp_path: Path, changed: dict[str, Any]) -> None:
    odd = {**call(1), **changed}
    assert both(tmp_path, [odd], [odd]).is_same
    assert not both(tmp_path, [odd], []).is_same
    both(tmp_path, [call(1)], [odd])


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_what_is_nested_too_deeply_or_too_large_only_differs(tmp_path: Path, opening: bytes) -> None:
    def with_text(name: str, raw: bytes) -> Path:
        path = tape_of(tmp_path, name, call(1, text="HERE"))
        path.write_bytes(path.read_bytes().replace(b"HERE", raw))
        return path

    deep = opening.replace(b'"', b'\\"') * 3000
    closing = (b"]" if opening == b"[" else b"}") * 3000
    first, second = with_text("first", deep + b"1" + closing), with_text("second", deep + b"2" + closing)
    assert [each.what for each in compare_tapes(first, second).calls] == ["answer"]
    large = [with_text(name, name.encode() * (1 << 20)) for name in ("first", "secon")]
    (found,) = compare_tapes(*large).calls
    assert "bytes" in str(found.changes[0].before)
    assert all(len(str(each)) < 10_000 for each in found.changes)


def test_many_differences_of_one_answer_are_counted(tmp_path: Path) -> None:
    rows = {str(number): number for number in range(1000)}
    (found,) = both(
        tmp_path, [call(1, text=rows)], [call(1, text={key: value + 1 for key, value in rows.items()})]
    ).calls
    assert len(found.changes) + found.more == 1000
    assert len(found.changes) <= 20


def test_a_bad_tape_is_refused_whichever_it_is(tmp_path: Path) -> None:
    good, bad = tape_of(tmp_path, "good", call(1)), tmp_path / "bad.tape"
    bad.write_text("{}\n")
    for pair in ((good, bad), (bad, good), (good, tmp_path / "none.tape")):
        with pytest.raises(BadTape, match=r"(bad|none)\.tape"):
            compare_tapes(*pair)
    for servers in (5, ["a", [1]]):
        bad.write_text(json.dumps({**HEAD, "config": {"mcpServers": servers}}) + "\n")
        with pytest.raises(BadTape, match="another form"):
            compare_tapes(good, bad)
    large = {**call(1), "large": {"sha256": "../good.tape", "bytes": 5}}
    del large["result"]
    with pytest.raises(BadTape, match="is not a hash"):
        compare_tapes(good, tape_of(tmp_path, "large", large))


# ---- servers as they are now -----------------------------------------------------------------------------------------


async def recorded(
    place: Path, server: FakeServer, made: Sequence[tuple[str, str | None]], **how: Any
) -> Path:
    """A tape of these calls, each of a tool in a session (or in none)."""
    async with fake_room({"shop": server}, record=place, **how) as room:
        for name, session in made:
            if session is None:
                await room.call(f"shop_{name}", {})
            else:
                async with room.session(session) as own:
                    await own.call(f"shop_{name}", {})
    return place


def against(tape: Path, server: FakeServer, entry: dict[str, Any] | None = None, **how: Any) -> Any:
    config = {"mcpServers": {"shop": {"command": "a fake", **(entry or {})}}}
    connectors = fake_connectors({"shop": server})
    return compare_servers(tape, config, connectors=connectors, cache_path=":memory:", **how)


@in_real_time
async def test_calls_go_in_their_order_one_after_another(tmp_path: Path) -> None:
    open_now, most, seen = 0, 0, list[str]()

    async def handler(call: Any) -> str:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        await anyio.sleep(0.01)
        open_now -= 1
        seen.append(call.tool)
        return "fine"

    server = FakeServer(tools=[tool(name, annotations=READS) for name in "abc"], handler=handler)
    made = [(name, None) for name in "abcab"]
    tape = await recorded(tmp_path / "one.tape", server, made)
    seen.clear()
    found = await against(tape, server)
    assert (found.is_same, found.same, seen, most) == (True, 5, list("abcab"), 1)


@in_real_time
async def test_servers_do_not_wait_for_each_other(tmp_path: Path) -> None:
    is_called = {"a": anyio.Event(), "b": anyio.Event()}

    def waiting_for(own: str, other: str) -> FakeServer:
        async def handler(_call: Any) -> str:
            is_called[own].set()
            await is_called[other].wait()
            return "fine"

        return FakeServer(tools=[tool("get", annotations=READS)], handler=handler)

    servers = {"a": waiting_for("a", "b"), "b": waiting_for("b", "a")}
    tape = tmp_path / "one.tape"
    async with fake_room(servers, record=tape) as room, anyio.create_task_group() as tasks:
        for name in ("a_get", "b_get"):
            tasks.start_soon(room.call, name)
    for name in is_called:
        is_called[name] = anyio.Event()
    config = {"mcpServers": {name: {"command": "a fake"} for name in servers}}
    with anyio.fail_after(PATIENCE):
        found = await compare_servers(
            tape, config, connectors=fake_connectors(servers), cache_path=":memory:"
        )
    assert found.same == 2


@in_real_time
async def test_what_a_server_asks_its_client_is_answered_as_on_the_tape(tmp_path: Path) -> None:
    async def handler(call: Any) -> str:
        return str((await call.elicit(f"Who, {call.get('to')}?")).get("content"))

    async def answer(request: Any) -> Any:
        return {"action": "accept", "content": {"name": request.params["message"]}}

    server = FakeServer(tools=[tool("ask", annotations=READS)], handler=handler)
    tape = tmp_path / "one.tape"
    async with fake_room({"shop": server}, record=tape, on_elicitation=answer) as room:
        for to in ("you", "me"):
            assert to in (await room.call("shop_ask", {"to": to})).text
    found = await against(tape, server)
    assert (found.is_same, found.same) == (True, 2), found


@in_real_time
async def test_a_server_is_told_of_the_same_client_as_on_the_tape(tmp_path: Path) -> None:
    """Some have other tools for other clients, as server-everything has."""

    async def never(_request: Any) -> Any:
        pytest.fail("nothing is asked")

    async def look(_asking: Any, _arguments: Any) -> str:
        return "seen"

    config, tape = {"mcpServers": {"shop": {"command": "a fake"}}}, tmp_path / "one.tape"
    server = AskingServer({"look": look})
    given: dict[str, Any] = {"connectors": asking_connectors({"shop": server}), "cache_path": ":memory:"}
    room = Greenroom.open(
        config, record=tape, roots=["file:///a"], on_sampling=never, bootstrap=False, **given
    )
    async with room:
        await room.call("shop_look", {})
    await compare_servers(tape, config, **given)
    assert [sorted(each) for each in server.initialized_with] == [["roots", "sampling"]] * 2


@in_real_time
async def test_no_server_is_told_of_the_roots_on_a_tape(tmp_path: Path) -> None:
    """Whoever made the tape chose them, and a server may open what is in a root."""

    async def handler(call: Any) -> str:
        return ", ".join(each["uri"] for each in (await call.ask("roots/list"))["roots"])

    server = FakeServer(tools=[tool("look", annotations=READS)], handler=handler)
    tape = tmp_path / "one.tape"
    async with fake_room({"shop": server}, record=tape, roots=["file:///old"]) as room:
        await room.call("shop_look", {})
    tape.write_text(tape.read_text().replace("file:///old", "file:///etc"))
    [looked] = (await against(tape, server)).calls
    assert [(each.before, each.after) for each in looked.changes] == [('"file:///etc"', '""')]
    assert (await against(tape, server, roots=["file:///etc"])).is_same


@in_real_time
async def test_nobody_consents_to_a_question_that_is_not_on_the_tape(tmp_path: Path) -> None:
    words = ["Shall I look?"]

    async def handler(call: Any) -> str:
        return str((await call.elicit(words[-1])).get("action"))

    async def answer(_request: Any) -> Any:
        return {"action": "accept", "content": {}}

    server = FakeServer(tools=[tool("ask", annotations=READS)], handler=handler)
    tape = tmp_path / "one.tape"
    async with fake_room({"shop": server}, record=tape, on_elicitation=answer) as room:
        assert (await room.call("shop_ask", {})).text == "accept"
    words.append("Shall I delete it?")
    found = await against(tape, server)
    assert [each.outcomes for each in found.calls] == [("answer", "call_failed")], found


@in_real_time
@pytest.mark.parametrize("how", ["reads", "only"])
async def test_a_tape_cannot_give_another_tool_the_name_of_a_listed_one(tmp_path: Path, how: str) -> None:
    server = FakeServer(tools=[tool("search"), tool("erase")])
    tape = await recorded(tmp_path / "one.tape", server, [("search", None)])
    before = len(server.calls)
    changed = tape.read_text().replace('"name":"search","arguments"', '"name":"erase","arguments"')
    tape.write_text(changed)
    listed: dict[str, Any] = {how: ["shop_search"]}
    found = await against(tape, server, **listed)
    assert [each.name for each in found.not_sent] == ["shop_search"]
    assert len(server.calls) == before
    tape.write_text(changed.replace('"name":"erase","arguments"', '"name":"search","arguments"'))
    found = await against(tape, server, **listed)
    assert (found.same, len(server.calls)) == (1, before + 1)


@in_real_time
@pytest.mark.parametrize(
    "changed",
    [
        {"params": {"name": ["get"]}},
        {"params": [1]},
        {"params": {"name": "get", "arguments": 5}},
        {
            "params": {"name": "get"},
            "asked": [{"t": 0, "method": "roots/list", "params": {}, "answer": {"roots": 5}}],
        },
        {"method": "resources/read", "params": {"uri": 5}},
        {"method": "completion/complete", "params": {}},
        {"method": "logging/setLevel", "params": {"level": "debug"}},
        {"session": ""},
        {"session": "x\n" * 5000},
        {"server": "../shop"},
        {"n": 0, "order": 0},
    ],
)
async def test_odd_calls_are_asked_or_left_out(tmp_path: Path, changed: dict[str, Any]) -> None:
    server = FakeServer(tools=[tool("get", annotations=READS)])
    tape = await recorded(tmp_path / "one.tape", server, [("get", None)])
    *lines, last = [
        json.loads(line)
        for line in tape.read_text().splitlines()
        if '"k":"event"' not in line and '"k":"end"' not in line
    ]
    tape.write_text(
        "".join(f"{json.dumps(line)}\n" for line in (*lines, {**last, **changed}, {**last, "n": 9}))
    )
    found = await against(tape, server)
    assert found.same + len(found.calls) + sum(each.calls for each in found.not_sent) == 2
    assert found.same >= 1


@in_real_time
async def test_a_call_that_was_cancelled_is_not_made_again(tmp_path: Path) -> None:
    server = FakeServer(tools=[tool("get", annotations=READS)])
    tape = await recorded(tmp_path / "one.tape", server, [("get", None), ("get", None)])
    lines = [json.loads(line) for line in tape.read_text().splitlines()]
    last = [line for line in lines if line["k"] == "call"][-1]
    last["outcome"] = "cancelled"
    tape.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    found = await against(tape, server)
    assert [(each.why, each.calls) for each in found.not_sent] == [("was cancelled", 1)]
    assert len(server.calls) == 3


@in_real_time
async def test_of_a_call_only_its_name_and_arguments_are_sent_again(tmp_path: Path) -> None:
    server = FakeServer(tools=[tool("get", annotations=READS)])
    tape = await recorded(tmp_path / "one.tape", server, [("get", None)])
    tape.write_text(tape.read_text().replace('"params":{"name":', '"params":{"task":{"ttl":1},"name":'))
    await against(tape, server)
    assert [call.get("task") for call in server.calls] == [None, None]


@in_real_time
async def test_a_renamed_tool_is_found_by_its_own_name(tmp_path: Path) -> None:
    server = FakeServer(tools=[tool("get", annotations=READS)])
    tape = await recorded(tmp_path / "one.tape", server, [("get", None)])
    found = await against(tape, server, {"toolOverrides": {"get": {"rename": "fetch"}}, "toolPrefix": "none"})
    assert (found.same, found.is_same) == (1, True), found


@in_real_time
async def test_a_tool_that_is_gone_or_hidden_is_an_error_and_nothing_is_sent(tmp_path: Path) -> None:
    server = FakeServer(tools=[tool("get", annotations=READS), tool("put", annotations=READS)])
    tape = await recorded(tmp_path / "one.tape", server, [("get", None), ("put", None)])
    before = len(server.calls)
    server.tools = server.tools[1:]
    found = await against(tape, server, {"excludeTools": ["put"]})
    assert [each.outcomes for each in found.calls] == [("answer", "tool_not_found")] * 2
    assert [(each.name, each.what) for each in found.definitions] == [("get", "gone")]
    assert len(server.calls) == before


@in_real_time
async def test_plan_and_bad_names_are_told_before_anything_is_started(tmp_path: Path) -> None:
    server = FakeServer(tools=[tool("get", annotations=READS)])
    tape = await recorded(tmp_path / "one.tape", server, [("get", None)])
    starts, plans = server.starts, list[Any]()
    wrongs: list[dict[str, Any]] = [{"servers": ["shap"]}, {"only": ["shop_got"]}, {"reads": ["get"]}]
    for wrong in wrongs:
        with pytest.raises(UsageError, match="on the tape"):
            await against(tape, server, on_plan=plans.append, **wrong)
    assert (server.starts, plans) == (starts, [])
    await against(tape, server, on_plan=plans.append)
    assert [len(calls) for plan in plans for calls in plan.calls.values()] == [1]


@in_real_time
async def test_another_configuration_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    server = FakeServer(tools=[tool("look", annotations=READS)])
    tape = await recorded(tmp_path / "one.tape", server, [("look", None)])
    for servers in ({}, {"bank": {"command": "a fake"}}):
        with pytest.raises(UsageError, match=r"none of the servers on the tape \(shop\)"):
            await compare_servers(tape, {"mcpServers": servers}, connectors=fake_connectors({}))


@in_real_time
async def test_who_leaves_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeServer(tools=[tool("get", annotations=READS)])
    tape = await recorded(tmp_path / "one.tape", server, [("get", None)])
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    server.call_latency = 60.0
    with anyio.move_on_after(0.3) as left:
        await against(tape, server)
    assert left.cancelled_caught
    assert list(folder.iterdir()) == []


@in_real_time
async def test_a_replay_answers_as_its_tape(tmp_path: Path) -> None:
    server = FakeServer(tools=[tool("get", annotations=READS)])
    tape = await recorded(tmp_path / "one.tape", server, [("get", None)] * 3)
    again = tmp_path / "again.tape"
    async with Greenroom.replay(tape, record=again) as room:
        for _ in range(3):
            await room.call("shop_get", {})
    assert compare_tapes(tape, again).is_same
