"""Tapes that were cut, changed, or written to do harm: each is refused with its line, or bounded."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import run, run_virtual
from tests.support.patience import PATIENCE
from tests.support.tape_lines import event

from greenroom import Greenroom
from greenroom.errors import CallError, UsageError
from greenroom.tape.call_matching import CallIndex, MatchRule, RecordedCalls
from greenroom.tape.story import told
from greenroom.tape.tape_comparison import compare_tapes
from greenroom.tape.tape_lines import CallLine, decoded
from greenroom.tape.tape_reader import BadTape, config_of, read_tape

HEAD = {"k": "tape", "v": 1, "at": 0.0, "greenroom": "1", "python": "3", "config": {"mcpServers": {}}}
CALL = {
    "k": "call",
    "n": 1,
    "order": 1,
    "accepted": 0.1,
    "ended": 0.2,
    "server": "shop",
    "scope": "shared",
    "incarnation": 1,
    "method": "tools/call",
    "params": {"name": "echo", "arguments": {}},
    "outcome": "result",
    "reach": "answered",
    "result": {"content": []},
}

TOOLS = [{"name": "echo", "inputSchema": {"type": "object"}}]
LISTED: dict[str, Any] = {
    "k": "listed",
    "t": 0.0,
    "server": "shop",
    "scope": "shared",
    "incarnation": 1,
    "version": "2025-06-18",
    "capabilities": {"tools": {}},
    "info": {},
}


def written(folder: Path, *lines: Any, end: bytes = b"\n") -> Path:
    path = folder / "one.tape"
    texts = (line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
    path.write_bytes(b"\n".join(texts) + end)
    return path


def test_a_tape_that_is_cut_off_is_read_up_to_there(tmp_path: Path) -> None:
    path = written(tmp_path, HEAD, CALL, b'{"k":"call","n":2', end=b"")
    tape = read_tape(path)
    assert (len(tape.calls), tape.is_cut) == (1, True)


@pytest.mark.parametrize(
    "lines",
    [
        (b"",),
        (CALL,),
        ({**HEAD, "v": 2},),
        (HEAD, HEAD),
        ({**HEAD, "config": {"mcpServers": 5}},),
        (HEAD, {"k": "config", "t": 1.0, "config": {"mcpServers": []}}),
        (HEAD, b"{"),
        (HEAD, b"[" * 100_000),
        (HEAD, {"k": "start", "command": "rm"}),
        (HEAD, {**CALL, "order": "first"}),
        (HEAD, {**CALL, "ended": 1e300}),
        (b"\xff\xfe", HEAD),
        (HEAD, CALL, CALL),
        (HEAD, {name: each for name, each in CALL.items() if name != "result"}),
    ],
)
def test_what_is_no_tape_is_refused_with_its_place(tmp_path: Path, lines: tuple[Any, ...]) -> None:
    path = written(tmp_path, *lines)
    with pytest.raises(BadTape, match=r"one\.tape"):
        read_tape(path)


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ({**CALL, "accepted": -0.1}, "accepted"),
        ({**CALL, "sent": 0.05}, "sent"),
        ({**CALL, "sent": 0.3}, "ended"),
        ({**CALL, "ended": 0.0}, "ended"),
        ({**CALL, "progress": [[-1, {}]]}, "progress[0][0]"),
        ({**CALL, "reach": "far"}, "reach"),
        ({**CALL, "n": -1}, "n"),
        ({**CALL, "left_out": {"result": 1e99}}, "left_out[...]"),
        (event(0.5, "Transition", to="flying"), "event.to"),
        (event(0.5, "Transition", incarnation="first"), "event.incarnation"),
        (event(0.5, "BreakerDecision", cause=[]), "event.cause"),
        (event(0.4, "Note"), "t"),
        ({"k": "notice", "t": 0.4, "server": "shop", "scope": "shared", "method": "x"}, "t"),
    ],
)
def test_what_no_room_would_have_written_is_refused_with_its_line_and_field(
    tmp_path: Path, line: dict[str, Any], place: str
) -> None:
    path = written(tmp_path, HEAD, {**LISTED, "t": 0.5}, line)
    with pytest.raises(BadTape, match=rf"one\.tape, line 3: .* - at `\$\.{re.escape(place)}`\."):
        read_tape(path)


def test_a_number_that_is_none_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(BadTape, match=r"one\.tape, line 2: "):
        read_tape(written(tmp_path, HEAD, {**CALL, "ended": math.nan}))


@pytest.mark.parametrize(
    "content", [b"\x7fELF\x02\x01\n\0", "{}".encode("utf-16"), b"SQLite format 3\0", b"hello\n"]
)
def test_what_is_something_else_is_called_no_tape(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "one.tape"
    path.write_bytes(content)
    with pytest.raises(BadTape, match=r"one\.tape is not a tape of Greenroom\."):
        read_tape(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"seq":1,"at":1.0,"kind":"transition","event":"Transition"}\n', "log of events"),
        ('{"v":1,"seq":1,"prev":"00","hash":"00"}\n', "audit file.* greenroom audit show"),
        (
            '{"$report_type":"SessionStart","pytest_version":"8"}\n{"nodeid":""}\n',
            "To record a tape: greenroom",
        ),
        ('{"created":1.5,"tests":[]}', "To record a tape: greenroom serve --record FOLDER"),
        ('{\n  "created": 1.5\n}\n', "To record a tape"),
        ('{"mcpServers":{}}\n', "is a configuration"),
        ('{"k":"call","n":1}\n', "first lines are missing"),
        ('{"k":7}\n', "To record a tape"),
        ("", "To record a tape"),
    ],
)
def test_lines_of_another_kind_are_called_no_tape_and_the_next_step_is_named(
    tmp_path: Path, content: str, said: str
) -> None:
    path = tmp_path / "one.tape"
    path.write_text(content)
    with pytest.raises(BadTape, match=rf"one\.tape is not a tape of Greenroom\..*{said}"):
        read_tape(path)


def test_a_tape_of_a_later_version_is_refused_for_its_version(tmp_path: Path) -> None:
    path = written(tmp_path, {**HEAD, "v": 2}, {"k": "what nobody knows yet"})
    with pytest.raises(BadTape, match="version 2, and this Greenroom reads version 1"):
        read_tape(path)


def test_of_many_calls_that_are_the_same_each_is_found_without_a_search(tmp_path: Path) -> None:
    """A write is every 50th. To look through all of them for each would take minutes."""
    count = 40_000
    numbers = range(1, count + 1)
    names = ["write" if n % 50 == 0 else "read" for n in numbers]
    lines = [
        {**CALL, "n": n, "order": n, "params": {"name": name}} for n, name in zip(numbers, names, strict=True)
    ]
    recorded = RecordedCalls(
        CallIndex(read_tape(written(tmp_path, HEAD, *lines)).calls, MatchRule(), {"read"})
    )

    def numbers_of(name: str, times: int) -> list[int]:
        found = (taken(recorded, "tools/call", {"name": name}) for _ in range(times))
        return [call.n for call in found if call is not None]

    assert numbers_of("write", 400) == list(range(50, 20_001, 50))
    reads = numbers_of("read", count)
    after, before = (
        [n for n in numbers if n % 50 and n > 20_000],
        [n for n in numbers if n % 50 and n < 20_000],
    )
    assert reads == after + before


@pytest.mark.parametrize("member", ["params", "result"])
def test_what_nests_as_deeply_as_was_ever_read_is_read_and_told(tmp_path: Path, member: str) -> None:
    depth = sys.getrecursionlimit() - 20  # more than can be read from here
    line = json.dumps({**CALL, member: "deep"}).replace('"deep"', "[" * depth + "]" * depth)
    tape = read_tape(written(tmp_path, HEAD, line.encode(), {**CALL, "n": 2}))
    assert [call.n for call in tape.calls] == [1, 2]
    assert "#1 tools/call" in "".join(told(tape))
    assert compare_tapes(tape, tape).is_same


def test_many_servers_take_no_quadratic_time(tmp_path: Path) -> None:
    listed = {**LISTED, "tools": []}
    names = [f"s{number}" for number in range(8_000)]
    lines = [
        {**line, "server": name} for n, name in enumerate(names, 1) for line in (listed, {**CALL, "n": n})
    ]
    place = written(tmp_path, HEAD, *lines)
    began = time.process_time()
    room = Greenroom.replay(place)
    assert room.tape is not None
    assert len(room.tape.untaken) == len(names)
    assert time.process_time() - began < 6, "a second, and not ten"


@pytest.mark.parametrize(
    ("options", "is_answered"),
    [
        ({}, False),
        ({"nearest": 1.0}, False),
        ({"nearest": 0.7, "faults": ["shop call nth=9: hang"]}, True),
    ],
)
def test_to_find_the_nearest_of_many_long_calls_holds_up_nobody(
    tmp_path: Path, options: dict[str, Any], is_answered: bool
) -> None:
    """Texts of which `difflib` compares each two for ten seconds."""
    texts = [f"{number} " + "ab" * 500 for number in range(2000)]
    calls = [
        {**CALL, "n": n, "params": {"name": "echo", "arguments": {"text": t}}} for n, t in enumerate(texts, 1)
    ]
    place = written(tmp_path, HEAD, {**LISTED, "tools": TOOLS}, *calls)

    async def main() -> None:
        async with Greenroom.replay(place, **options) as room:
            await room.call("shop_echo", {"text": texts[0]})
            ended = anyio.CancelScope()

            async def ask() -> None:
                refused = pytest.raises(CallError, match=r"nearest recorded call is #1\d*:")
                with nullcontext() if is_answered else refused:
                    await room.call("shop_echo", {"text": "999 " + "aabb" * 250})
                ended.cancel()

            gaps = list[float]()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                while not ended.cancel_called:
                    before = time.thread_time()
                    await anyio.lowlevel.checkpoint()
                    gaps.append(time.thread_time() - before)
            assert len(gaps) > 100
            assert max(gaps) < 0.1

    run("asyncio", main)


def taken(recorded: RecordedCalls, method: str, params: dict[str, Any]) -> CallLine | None:
    """What answers this call, if nothing else is done meanwhile."""
    steps = recorded.find(method, params)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return None if end.value is None else recorded.take(end.value, method, params)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a" * 64, "0" * 63, ""])
def test_a_large_result_comes_from_its_own_folder_or_not_at_all(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_text("not for you")
    folder = tmp_path / "one.tape.d"
    folder.mkdir()
    (folder / ("a" * 64)).write_text("not what was recorded")
    call = {**CALL, "large": {"sha256": name, "bytes": 11}}
    del call["result"]
    tape = read_tape(written(tmp_path, HEAD, call))
    with pytest.raises(BadTape):
        tape.result_of(tape.calls[0])


def test_a_large_result_behind_a_link_is_not_read(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("{}")
    folder = tmp_path / "one.tape.d"
    folder.mkdir()
    name = hashlib.sha256(b"{}").hexdigest()
    os.symlink(outside, folder / name)
    call = {**CALL, "large": {"sha256": name, "bytes": 2}}
    tape = read_tape(written(tmp_path, HEAD, call))
    with pytest.raises(BadTape):
        tape.result_of(tape.calls[0])


@pytest.mark.parametrize("content", [None, "{}", '{"content":{}}'])
def test_a_large_result_that_is_not_there_is_told_before_and_counts_when_it_is_missed(
    tmp_path: Path, content: str | None
) -> None:
    name = hashlib.sha256(b'{"content":[]}').hexdigest()
    calls = [{**CALL, "n": n, "order": n, "large": {"sha256": name, "bytes": 14}} for n in (1, 2)]
    for call in calls:
        del call["result"]
    place, beside = written(tmp_path, HEAD, LISTED | {"tools": TOOLS}, *calls), tmp_path / "one.tape.d"
    if content is not None:
        beside.mkdir()
        (beside / name).write_text(content)
    if content is None or len(content) != 14:
        assert "1 large result should be in one.tape.d, and is not." in list(told(read_tape(place)))

    async def main() -> None:
        async with Greenroom.replay(place, bootstrap=False) as room:
            assert room.tape is not None
            with pytest.raises(CallError) as failed:
                await room.call("shop_echo", {})
            assert str(failed.value).count(name) == 1
            assert "Get the folder one.tape.d from whoever made the tape" in str(failed.value)
            assert [(server, method) for server, method, _ in room.tape.refused] == [("shop", "tools/call")]
            assert str(beside / name) in room.tape.refusals[0]

    run_virtual("asyncio", main)


def test_nothing_of_a_recorded_configuration_can_start_or_reach_anything(tmp_path: Path) -> None:
    entry = {
        "command": "rm",
        "args": ["-rf", "/"],
        "url": "http://example.org",
        "env": {"X": "!cat /etc/passwd"},
        "auth": "oauth",
        "lifecycle": "keep-alive",
        "disabled": True,
    }
    settings = {
        "http": {"listen": "0.0.0.0:1"},
        "tasks": {"keep": "/tmp/of-somebody-else"},
        "semanticSearch": True,
        "oauthDir": "/tmp/of-somebody-else",
        "toolPrefix": "none",
    }
    config = {"mcpServers": {"shop": entry, "off": {"disabled": True}}, "settings": settings}
    read = config_of(read_tape(written(tmp_path, {**HEAD, "config": config}, CALL)))
    assert read == {
        "mcpServers": {
            "shop": {"command": "tape", "disabled": False},
            "off": {"command": "tape", "disabled": True},
        },
        "settings": {"toolPrefix": "none"},
    }
    with pytest.raises(BadTape, match="another form"):
        config_of(read_tape(written(tmp_path, {**HEAD, "config": {"mcpServers": {"shop": 1}}}, CALL)))


def test_a_number_that_python_does_not_read_is_no_reason_to_fail(tmp_path: Path) -> None:
    line = json.dumps({**CALL, "params": {"name": "echo", "arguments": {"n": "HERE"}}})
    (call,) = read_tape(written(tmp_path, HEAD, line.replace('"HERE"', "1e400").encode())).calls
    assert call.said == {}


def test_a_line_and_a_tape_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = {**CALL, "result": {"content": [{"type": "text", "text": "x" * (17 << 20)}]}}
    with pytest.raises(BadTape, match="over the bound"):
        read_tape(written(tmp_path, HEAD, long))
    with pytest.raises(UsageError, match=r"is a folder\. Name a tape\. The newest in it is .*one\.tape\."):
        read_tape(tmp_path)
    sparse = tmp_path / "sparse.tape"
    with sparse.open("wb") as file:
        file.truncate(2 << 30)
    with pytest.raises(BadTape, match="over"):
        read_tape(sparse)


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2)), max_size=12),
    st.randoms(use_true_random=False),
    st.sets(st.sampled_from("ab")),
)
def test_every_recorded_call_answers_exactly_one_of_the_same_calls_in_any_order(
    made: list[tuple[str, int]], dice: Any, reads: set[str]
) -> None:
    def params(tool: str, number: int) -> dict[str, Any]:
        return {"name": tool, "arguments": {"n": number}}

    path_lines = [{**CALL, "n": at, "order": at, "params": params(*each)} for at, each in enumerate(made, 1)]
    calls: Any = [decoded(json.dumps(line).encode()) for line in path_lines]
    recorded = RecordedCalls(CallIndex(calls, MatchRule(), reads))
    shuffled = list(made)
    dice.shuffle(shuffled)
    found = [taken(recorded, "tools/call", params(*each)) for each in shuffled]
    assert sorted(call.n for call in found if call is not None) == list(range(1, len(made) + 1))
    assert recorded.next_at == math.inf, "none is left"
    assert all(taken(recorded, "tools/call", params(*each)) is None for each in made)
    again = RecordedCalls(CallIndex(calls, MatchRule(), reads))
    assert [call.n for each in made if (call := taken(again, "tools/call", params(*each)))] == list(
        range(1, len(made) + 1)
    ), "the same calls in the same order get the same answers"


def test_a_replay_starts_nothing_and_opens_no_file_but_its_own(tmp_path: Path) -> None:
    """As the interpreter itself tells it, in a process of its own: a hook that audits cannot be taken away again."""
    bait = tmp_path / "bait"
    entry = {
        "command": "touch",
        "args": [os.fspath(bait)],
        "cwd": os.fspath(tmp_path),
        "env": {"X": f"!touch {bait}"},
        "url": "http://127.0.0.1:9/",
        "socket": os.fspath(tmp_path / "socket"),
        "auth": "oauth",
        "lifecycle": "keep-alive",
    }
    settings = {
        "http": {"listen": "127.0.0.1:0"},
        "cachePath": os.fspath(tmp_path / "cache.json"),
        "audit": os.fspath(tmp_path / "audit.jsonl"),
        "semanticSearch": True,
    }
    listed = {
        "k": "listed",
        "t": 0.05,
        "server": "shop",
        "scope": "shared",
        "incarnation": 1,
        "version": "2025-06-18",
        "capabilities": {"tools": {}},
        "info": {"name": "shop", "version": "1"},
        "tools": [{"name": "echo", "inputSchema": {"type": "object"}}],
    }
    large = hashlib.sha256(b'{"content":[]}').hexdigest()
    call = {**CALL, "large": {"sha256": large, "bytes": 14}}
    del call["result"]
    head = {**HEAD, "config": {"mcpServers": {"shop": entry}, "settings": settings}}
    beside = tmp_path / "one.tape.d"
    beside.mkdir()
    (beside / large).write_bytes(b'{"content":[]}')
    tape = written(tmp_path, head, listed, call)
    done = subprocess.run(
        [sys.executable, "-c", AUDITS, os.fspath(tape)],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    opened = [each for each in json.loads(done.stdout) if each[0] != "open" or not each[1].isdecimal()]
    assert opened == [["open", os.fspath(tape)], ["open", os.fspath(beside / large)]]
    assert not bait.exists()


AUDITS = """
import json, sys
from contextlib import suppress
import anyio
from greenroom import Greenroom

seen = None
WATCHED = ("open", "os.", "subprocess.", "socket.bind", "socket.connect", "socket.getaddrinfo", "sqlite3.", "shutil.")

def look(event, args):
    if seen is not None and event.startswith(WATCHED):
        seen.append([event, *map(str, args[:1])])

async def replay():
    async with Greenroom.replay(sys.argv[1], strict=False) as room:
        await room.connect("shop")
        await room.call("shop_echo", {})

anyio.run(replay)  # what Python imports for this is not what is asked
sys.addaudithook(look)
seen = []
anyio.run(replay)
found, seen = seen, None
print(json.dumps(found))
"""
