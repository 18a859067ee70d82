"""What a terminal would obey is not shown to a person, wherever it comes from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.support.forked import GREENROOM, run_forked
from tests.support.gateway import serve
from tests.support.rows import for_each

from greenroom.gateway.event_log import EventLog
from greenroom.protocol.safe_text import one_line, printable, seen_in_json, shortened, typed

EVIL = "\x1b[2J\x1b]0;owned\x07\x9b31mred\u202egnp.exe\u2066\x08\x7f\u200f\U000e0041 \x1b]52;c;aGk=\x1b\\end"
OBEYED = {*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0)), *"\u202a\u202b\u202d\u202e\u2066\u2069\u2028"}


@for_each(
    ("text", "shown"),
    [
        (EVIL, "redgnp.exe end"),
        ("plain, caf\u00e9 \U0001f600\tand\nlines", "plain, caf\u00e9 \U0001f600\tand\nlines"),
        ("one\rtwo\r\nthree\u2028four", "one\ntwo\nthree\nfour"),
        ("\x1b]0;never ended\nthe next line", "\nthe next line"),
        ("\x1b(B\x1bMx", "x"),
    ],
)
def test_what_is_left_of_a_text(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_one_line_is_one_line_and_no_longer_than_it_may_be() -> None:
    assert one_line("a\n✓ bank: connected\r\n b") == "a ✓ bank: connected b"
    assert one_line("x" * 50, 10) == "x" * 9 + "…"
    started = time.process_time()
    assert len(one_line("\x1b]" * 5_000_000)) <= 2_000
    assert len(printable("\x1b]" * 100_000 + "\x1b[" * 100_000)) == 0
    assert time.process_time() - started < 5


@given(st.text(alphabet=st.characters() | st.sampled_from([*sorted(OBEYED), "\x1b", "[", "]", "m"])))
def test_nothing_is_left_that_is_obeyed_and_json_keeps_its_value(text: str) -> None:
    assert OBEYED.isdisjoint(printable(text).replace("\n", "").replace("\t", ""))
    assert OBEYED.isdisjoint(one_line(text))
    said = seen_in_json(json.dumps({"a": text}, ensure_ascii=False, indent=1))
    assert json.loads(said) == {"a": text}
    assert OBEYED.isdisjoint(said.replace("\n", ""))


def test_a_log_line_is_one_and_shows_what_is_there() -> None:
    reading, writing = os.pipe()
    EventLog(writing).line(f"s: {EVIL}\ngreenroom: room: forged")
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as file:
        assert file.read() == "greenroom: s: redgnp.exe end greenroom: room: forged\n"


_SERVER = """
import json, sys
EVIL = {evil!r}
if sys.argv[1:] == ["dies"]:
    sys.stderr.write("Error: " + EVIL + "\\n")
    raise SystemExit(3)
for line in sys.stdin:
    said = json.loads(line)
    if "id" not in said:
        continue
    result = {{"content": [{{"type": "text", "text": EVIL}}]}}
    if said["method"] == "initialize":
        result = {{"protocolVersion": "2025-11-25", "capabilities": {{"tools": {{}}}}, "serverInfo": {{}}}}
    if said["method"] == "tools/list":
        result = {{"tools": [{{"name": "say", "description": EVIL, "inputSchema": {{"type": "object"}}}}]}}
    print(json.dumps({{"jsonrpc": "2.0", "id": said["id"], "result": result}}), flush=True)
"""


def test_no_command_and_no_log_passes_on_what_a_terminal_obeys(tmp_path: Path) -> None:
    program = tmp_path / "evil.py"
    program.write_text(_SERVER.format(evil=EVIL))
    entry: dict[str, Any] = {"command": sys.executable, "args": ["-S", os.fspath(program)]}
    entries = {"talks": entry, "dies": {**entry, "args": [*entry["args"], "dies"]}}
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": os.fspath(tmp_path),
        "XDG_CACHE_HOME": os.fspath(tmp_path / "cache"),
        "XDG_RUNTIME_DIR": os.fspath(tmp_path),
    }
    config = os.fspath(tmp_path / "mcp.json")
    said: list[str] = []
    events = tmp_path / "events.jsonl"
    with serve(tmp_path, entries, "--events", os.fspath(events)) as gateway:
        gateway.initialize()
        gateway.mcp(connect="talks")
        gateway.mcp(connect="dies")
        for command in (
            "status",
            "describe talks_say",
            "call talks_say",
            "call talks_say --json",
            "reconnect dies",
        ):
            done = run_forked(
                [*GREENROOM, *command.split(), "--config", config],
                env={**environment, "PYTHONIOENCODING": "utf-8"},
                cwd=tmp_path,
            )
            said += [done.stdout.decode(), done.stderr.decode()]
        assert gateway.end() == 0
    said += [(tmp_path / "stderr.txt").read_text(), events.read_text()]
    text = "".join(said)
    assert "redgnp.exe" in text
    assert OBEYED.isdisjoint(text.replace("\n", "").replace("\t", ""))


def test_a_line_that_just_fits_is_whole_and_one_that_was_cut_says_so() -> None:
    assert one_line("x" * 10, 10) == "x" * 10
    assert one_line("x" * 11, 10) == "x" * 9 + "…"
    assert one_line("x" * 2_000) == "x" * 2_000
    assert one_line("x" * 2_001) == "x" * 1_999 + "…"
    assert one_line("x" + " " * 79 + "y", 10) == "x…", "what was not looked at is not said to be nothing"
    assert one_line("x" + " " * 78 + "y", 10) == "x y"
    assert one_line("a\u200bb\u00ad c", 10) == "ab c"
    assert seen_in_json("a\u200b\u202e") == "a\\u200b\\u202e"


@for_each("name", ["a\nb", "it's\t\\x", "\u202ea", "e\x1b[2J ü", "-\u2028\U000e0001", "it's ü"])
def test_a_name_is_typed_on_one_line_and_a_shell_reads_the_name(name: str) -> None:
    words = typed(name)
    assert len(words.splitlines()) == 1
    environ = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
    said = subprocess.run(["bash", "-c", f"printf %s {words}"], env=environ, capture_output=True, check=True)
    assert said.stdout.decode().removeprefix("--") == name


@given(st.lists(st.text("abc", min_size=1, max_size=400), max_size=40), st.integers(20, 300))
def test_a_long_failure_keeps_its_beginning_and_its_end_and_no_half_of_a_word(
    words: list[str], most: int
) -> None:
    text = " ".join(words)
    cut = shortened(text, most)
    assert len(cut) <= most
    if len(text) <= most:
        assert cut == text
        return
    head, _, tail = cut.partition("…")
    assert text.startswith(head.rstrip())
    assert text.endswith(tail.strip())
    if tail:
        assert set(tail.split()) <= set(words)
        assert set(head.split()) <= set(words)


def test_the_last_line_of_a_long_exception_is_kept() -> None:
    frames = "".join(f'  File "/x/{number}.py", line 1, in f\n    go()\n' for number in range(400))
    text = f"Traceback (most recent call last):\n{frames}ValueError: no such table: users"
    for said in (shortened(text, 2_000), one_line(text, 400), one_line(text)):
        assert said.startswith("Traceback (most recent")
        assert said.endswith("ValueError: no such table: users")
    assert one_line("a name that is long " * 20, 100).startswith("a name that is long a")
