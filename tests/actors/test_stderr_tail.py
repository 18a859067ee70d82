"""What is quoted of a failing program's stderr: why it failed, wherever that stands."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import in_real_time, run
from tests.support.rows import for_each

from greenroom import Greenroom
from greenroom.actors.peer import LostReason, connect_failed
from greenroom.actors.transports.stderr_ring import StderrRing, telling
from greenroom.errors import ConnectFailed, ServerLost
from greenroom.protocol.safe_text import without_stderr

# In the manner of these programs, paths and registries shortened; two are also run for real below.
SAID: dict[str, tuple[str, tuple[str, ...]]] = {
    "node: a module is missing": (
        """\
node:internal/modules/cjs/loader:1228
  throw err;
  ^

Error: Cannot find module '/srv/index.js'
    at Module._resolveFilename (node:internal/modules/cjs/loader:1225:15)
    at Module._load (node:internal/modules/cjs/loader:1051:27)
    at node:internal/main/run_main_module:36:49 {
  code: 'MODULE_NOT_FOUND',
  requireStack: []
}

Node.js v20.18.0
""",
        ("Error: Cannot find module '/srv/index.js'", "code: 'MODULE_NOT_FOUND',", "requireStack: []"),
    ),
    "node: thrown by the server itself": (
        """\
/srv/index.js:3
throw new Error("BRAVE_API_KEY environment variable is required");
^

Error: BRAVE_API_KEY environment variable is required
    at Object.<anonymous> (/srv/index.js:3:7)
    at async run (file:///srv/main.mjs:12:3)

Node.js v22.3.0
""",
        ("Error: BRAVE_API_KEY environment variable is required",),
    ),
    "npm: no such package": (
        """\
npm error code E404
npm error 404 Not Found - GET https://registry.invalid/nope - Not found
npm error 404
npm error 404  'nope@*' is not in this registry.
npm error 404
npm error 404 Note that you can also install from a
npm error 404 tarball, folder, http url, or git folder.
npm error A complete log of this run can be found in: /home/me/.npm/_logs/2026-08-01T10_00_00_000Z-debug-0.log
""",
        (
            "npm error 404 Not Found - GET https://registry.invalid/nope - Not found",
            "npm error 404  'nope@*' is not in this registry.",
        ),
    ),
    "npm: a script of a package fails": (
        """\
npm error code 1
npm error path /home/me/.npm/_npx/5f2a/node_modules/native
npm error command failed
npm error command sh -c node-gyp rebuild
npm error gyp ERR! build error
npm error A complete log of this run can be found in: /home/me/.npm/_logs/2026-08-01T10_00_00_000Z-debug-0.log
""",
        (
            "npm error code 1",
            "npm error path /home/me/.npm/_npx/5f2a/node_modules/native",
            "npm error command failed",
            "npm error command sh -c node-gyp rebuild",
            "npm error gyp ERR! build error",
            "A complete log of this run can be found in: /home/me/.npm/_logs/2026-08-01T10_00_00_000Z-debug-0.log",
        ),
    ),
    "npm, as it spoke before version 7: a script of a package fails": (
        """\
npm ERR! code ELIFECYCLE
npm ERR! errno 1
npm ERR! native@1.0.0 postinstall: `node build.js`
npm ERR! Exit status 1
npm ERR! Failed at the native@1.0.0 postinstall script.
npm ERR! A complete log of this run can be found in:
npm ERR!     /home/me/.npm/_logs/2020-08-01T10_00_00_000Z-debug.log
""",
        (
            "npm ERR! Failed at the native@1.0.0 postinstall script.",
            "A complete log of this run can be found in: /home/me/.npm/_logs/2020-08-01T10_00_00_000Z-debug.log",
        ),
    ),
    "npm, as it spoke before version 10": (
        """\
npm ERR! code EACCES
npm ERR! syscall mkdir
npm ERR! Error: EACCES: permission denied, mkdir '/home/me/.npm/_cacache'
npm ERR!  { [Error: EACCES: permission denied, mkdir '/home/me/.npm/_cacache']
npm ERR! }
""",
        (
            "npm ERR! Error: EACCES: permission denied, mkdir '/home/me/.npm/_cacache'",
            "npm ERR!  { [Error: EACCES: permission denied, mkdir '/home/me/.npm/_cacache']",
        ),
    ),
    "Python: a traceback": (
        """\
Traceback (most recent call last):
  File "/srv/server.py", line 9, in <module>
    raise ImportError("wrong error here") from None
  File "/srv/other.py", line 2, in f
    import nope
    ^^^^^^^^^^^
ModuleNotFoundError: No module named 'nope'
""",
        ("ModuleNotFoundError: No module named 'nope'", 'File "/srv/other.py", line 2, in f'),
    ),
    "Python: in its own library, and frames without their source": (
        """\
Traceback (most recent call last):
  File "<string>", line 4, in <module>
  File "/srv/server.py", line 6, in start
    os.environ["KEY"]
    ~~~~~~~~~~^^^^^^^
  File "<frozen os>", line 679, in __getitem__
KeyError: 'KEY'
""",
        ("KeyError: 'KEY'", 'File "/srv/server.py", line 6, in start'),
    ),
    "Python: one error over another, with details below": (
        """\
Traceback (most recent call last):
  File "/srv/server.py", line 3, in load
    return os.environ["TOKEN"]
KeyError: 'TOKEN'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/srv/server.py", line 7, in <module>
    main()
pydantic_core._pydantic_core.ValidationError: 1 validation error for Settings
token
  Field required [type=missing, input_value={}, input_type=dict]
""",
        (
            "KeyError: 'TOKEN'",
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for Settings",
            "Field required [type=missing, input_value={}, input_type=dict]",
            'File "/srv/server.py", line 7, in <module>',
        ),
    ),
    "uvx: no such package": (
        """\
  × No solution found when resolving tool dependencies:
  ╰─▶ Because nope was not found in the package registry and you require nope, we can
      conclude that your requirements are unsatisfiable.
""",
        (
            "× No solution found when resolving tool dependencies:",
            "╰─▶ Because nope was not found in the package registry and you require nope, we can",
            "conclude that your requirements are unsatisfiable.",
        ),
    ),
    "uv: cannot start it": (
        "error: Failed to spawn: `nope`\n  Caused by: No such file or directory (os error 2)\n",
        ("error: Failed to spawn: `nope`", "Caused by: No such file or directory (os error 2)"),
    ),
    "docker: no such image": (
        """\
Unable to find image 'nope:latest' locally
docker: Error response from daemon: pull access denied for nope, access to the resource is denied
See 'docker run --help'.
""",
        (
            "Unable to find image 'nope:latest' locally",
            "docker: Error response from daemon: pull access denied for nope, access to the resource is denied",
        ),
    ),
    "docker: no daemon": (
        """\
docker: Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?

Run 'docker run --help' for more information
""",
        (
            "docker: Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
        ),
    ),
    "Go: a panic": (
        """\
panic: runtime error: invalid memory address or nil pointer dereference
[signal SIGSEGV: segmentation violation code=0x1 addr=0x0 pc=0x47b5a6]

goroutine 1 [running]:
main.serve(0x0)
	/app/main.go:10 +0x1d
main.main()
	/app/main.go:5 +0x17
exit status 2
""",
        ("panic: runtime error: invalid memory address or nil pointer dereference",),
    ),
    "Rust: a panic": (
        """\
thread 'main' panicked at src/main.rs:4:10:
called `Result::unwrap()` on an `Err` value: Os { code: 2, kind: NotFound, message: "No such file" }
note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace
""",
        (
            "thread 'main' panicked at src/main.rs:4:10:",
            'called `Result::unwrap()` on an `Err` value: Os { code: 2, kind: NotFound, message: "No such file" }',
        ),
    ),
    "Java: an exception and its cause": (
        """\
Exception in thread "main" java.lang.IllegalStateException: no configuration
	at com.example.Main.main(Main.java:5)
Caused by: java.io.FileNotFoundException: config.yml (No such file or directory)
	at java.base/java.io.FileInputStream.open0(Native Method)
	... 1 more
""",
        (
            'Exception in thread "main" java.lang.IllegalStateException: no configuration',
            "Caused by: java.io.FileNotFoundException: config.yml (No such file or directory)",
        ),
    ),
    "Java: no such jar": (
        "Error: Unable to access jarfile x.jar\n",
        ("Error: Unable to access jarfile x.jar",),
    ),
    "nothing looks like an error": ("one\ntwo\n\nthree\nfour\n", ("two", "three", "four")),
    "nothing but brackets": ("{\n]\n}\n", ("{", "]", "}")),
    "nothing": ("\n \n", ()),
    "a log full of errors": (
        "".join(f"ERROR attempt {n} failed\n" for n in range(9)) + "giving up\n",
        tuple(f"ERROR attempt {n} failed" for n in range(3, 9)),
    ),
}


@for_each("program", SAID)
def test_the_reason_is_quoted_not_what_stands_below_it(program: str) -> None:
    said, quoted = SAID[program]
    ring = StderrRing(8192)
    ring.feed(said.encode())
    assert ring.tail() == quoted


@given(st.lists(st.text(max_size=20)))
def test_what_is_quoted_was_said_in_that_order_and_is_never_much(lines: list[str]) -> None:
    quoted = telling(lines)
    rest = iter(lines)
    assert all(line in rest for line in quoted)
    assert len(quoted) <= 6
    assert bool(quoted) == any(line.strip() for line in lines)


def test_a_long_line_costs_no_more_than_reading_it() -> None:
    """Twice as long, about twice the time; a pattern that tries everything would take minutes."""
    for filler in ("at ", "(", "a.b(", "npm error ", "1: ", " "):
        telling([filler * 100_000])


def test_a_real_node_says_what_it_missed(tmp_path: Path, backend: str) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    _expect(
        backend, {"command": node, "args": [os.fspath(tmp_path / "gone.js")]}, "Error: Cannot find module"
    )


def test_a_real_python_says_what_it_missed(tmp_path: Path, backend: str) -> None:
    script = tmp_path / "server.py"
    script.write_text("def f():\n    import no_such_module_here\nf()\n")
    said = "ModuleNotFoundError: No module named 'no_such_module_here'"  # 3.15 goes on, of `-S`
    wanted = f"(stderr: {said}"
    _expect(backend, {"command": sys.executable, "args": ["-S", os.fspath(script)]}, wanted)


def _expect(backend: str, entry: dict[str, object], wanted: str) -> None:
    async def body() -> None:
        config = {"mcpServers": {"a": entry}}
        async with Greenroom.open(config, cache_path=":memory:", bootstrap=False) as room:
            with pytest.raises(ConnectFailed) as caught:
                await room.connect("a")
            assert wanted in str(caught.value)
            assert str(caught.value).count("Failed to connect") == 1

    run(backend, body)


_WRITES = """\
import json, os, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    names = "fine", "dies", "breaks", "says"
    result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]}
    if asked["method"] == "initialize":
        result = {"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}}}
        result["serverInfo"] = {"name": "a", "version": "1"}
    name = asked["params"].get("name") if asked["method"] == "tools/call" else None
    if name == "fine":
        print("ValueError: of an earlier call", "INFO: all is well", sep="\\n", file=sys.stderr, flush=True)
        result = {"content": []}
    elif name == "dies":
        os._exit(3)
    elif name == "says":
        print('{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":1}}', flush=True)
        print("fatal: the disk is full", "bye", sep="\\n", file=sys.stderr, flush=True)
        os._exit(5)
    elif name == "breaks":
        print("INFO: breaking", "fatal: the disk is full", sep="\\n", file=sys.stderr, flush=True)
        os._exit(4)
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


@in_real_time
async def test_what_a_server_wrote_before_it_answered_again_is_not_the_reason_for_its_end() -> None:
    config = {"mcpServers": {"a": {"command": sys.executable, "args": ["-I", "-S", "-c", _WRITES]}}}
    async with Greenroom.open(config, cache_path=":memory:", bootstrap=False) as room:
        await room.call("a_fine")
        await room.call("a_fine")  # what was written during the first has surely been read
        with pytest.raises(ServerLost) as lost:
            await room.call("a_dies")
        assert "ValueError" not in lost.value.message
        await room.connect("a")
        with pytest.raises(ServerLost) as lost:
            await room.call("a_breaks")
        assert "exited with code 4 (stderr: fatal: the disk is full); " in lost.value.message


@for_each("backend", ["asyncio", "trio"])
def test_what_a_server_says_just_before_its_last_words_does_not_hide_them(backend: str) -> None:
    async def body() -> None:
        config = {
            "mcpServers": {"a": {"command": sys.executable, "args": ["-I", "-S", "-c", _WRITES]}},
            "settings": {"restartBackoff": {"minMs": 1, "maxMs": 1}, "failureThreshold": 1000},
        }
        async with Greenroom.open(config, cache_path=":memory:", bootstrap=False) as room:
            for _ in range(5):  # which of both is read first is by chance
                await room.connect("a")
                with pytest.raises(ServerLost) as lost:
                    await room.call("a_says")
                assert "exited with code 5 (stderr: fatal: the disk is full — bye); " in lost.value.message

    run(backend, body)


def test_lines_that_do_not_look_like_an_error_are_only_the_last_ones() -> None:
    lost = LostReason("exited with code 3", 3, ("INFO: no failed calls", "INFO: called"))
    assert lost.in_words() == "exited with code 3 (last on stderr: INFO: no failed calls — INFO: called)"
    old = LostReason("killed by SIGKILL", None, ("ValueError: no",), is_stderr_old=True)
    assert old.in_words() == "killed by SIGKILL (last on stderr: ValueError: no)"
    assert without_stderr(old.in_words()) == "killed by SIGKILL"


@for_each("line, is_error", [
    ("Error: cannot connect. Set DEBUG=1 to see more", True),
    ("Error: cannot connect. For more use the level DEBUG", True),
    ("could not connect (DEBUG=1 shows more)", True),
    ("2026-01-01 10:00:00 shop.error INFO no failed calls", False),
    ("INFO: Error: of a call", False),
    ("[TRACE] failed: once", False),
    ("ERROR shop: INFO is missing", True),
])  # fmt: skip
def test_the_level_of_a_line_says_whether_it_may_be_the_reason(line: str, is_error: bool) -> None:
    words = LostReason("exited with code 3", 3, (line,)).in_words()
    assert words == f"exited with code 3 ({'stderr' if is_error else 'last on stderr'}: {line})"


def test_after_an_answer_only_what_came_since_is_quoted_or_a_last_line_that_looks_like_an_error() -> None:
    ring = StderrRing(64)
    ring.feed(b"Error: the first\nINFO: called\n")
    ring.grow_old()
    assert (ring.has_news, ring.tail(news_only=True)) == (False, ())
    assert ring.tail() == ("Error: the first", "INFO: called")
    ring.feed(b"Error: the second\n")
    assert (ring.has_news, ring.tail(news_only=True)) == (True, ("Error: the second",))
    ring.grow_old()
    assert (ring.has_news, ring.tail(news_only=True)) == (False, ("Error: the second",))
    ring.feed(b"x" * 100 + b"\nError: the third\n")
    assert ring.tail(news_only=True) == ("Error: the third",), "a line that lost its head is left out"


def test_a_line_that_goes_on_after_an_answer_is_quoted_whole() -> None:
    ring = StderrRing(64)
    ring.feed(b"called\nError: the login https://me:pass")
    ring.grow_old()
    ring.feed(b"word@host/ is wrong\n")
    assert ring.tail(news_only=True) == ("Error: the login https://***@host/ is wrong",)


def test_a_failed_start_carries_what_the_program_left_behind() -> None:
    lost = LostReason("exited with code 3", 3, ("npm error 404", "not found"))
    error = connect_failed("a", lost)
    assert "exited with code 3 (stderr: npm error 404 — not found)" in error.message
    assert (error.server, error.exit_code) == ("a", 3)
    assert tuple(error.stderr_tail) == ("npm error 404", "not found")
    assert LostReason("closed its stdout").in_words() == "closed its stdout"


def test_what_is_kept_of_stderr_quotes_the_last_lines_printable() -> None:
    ring = StderrRing(64)
    ring.feed(b"old\n" * 1000)
    ring.feed("\x1b[31mred\x1b[0m\n\n  two  \r\nthr\xffee\n".encode("latin-1"))
    assert ring.tail() == ("red", "two", "thr\ufffdee")
    assert StderrRing(8).tail() == ()


def test_what_is_kept_of_stderr_keeps_its_size_however_it_is_fed() -> None:
    ring = StderrRing(7)
    for chunk in (b"ab\n", b"cd\n", b"ef\n"):
        ring.feed(chunk)
    assert ring.tail() == ("cd", "ef")
    ring.feed(b"a\nb\nc\nd\n")
    assert ring.tail() == ("b", "c", "d")
    assert StderrRing(500).tail() == ()
    long = StderrRing(1000)
    long.feed(b"x" * 400 + b"y" * 500)
    (line,) = long.tail()
    assert line.startswith("x" * 390)
    assert len(line) <= 400
    assert (long.last_line(), StderrRing(1).last_line()) == (line, "")


def test_what_is_written_after_stderr_was_forgotten_is_whole_from_its_first_new_line_on() -> None:
    ring = StderrRing(64)
    ring.clear()
    for chunk, kept in ((b"old\n", ("one", "two")), (b"older, and a secr", ("two",)), (b"", ("one", "two"))):
        ring.feed(chunk)
        ring.clear()
        ring.feed(b"one\ntwo\n")
        assert ring.tail() == kept
    ring.clear()
    ring.feed(b"of a line\n" * 8)
    assert set(ring.tail()) == {"of a line"}, "what lost its head is left out as ever"


def test_what_is_kept_of_stderr_counts_all_that_came_and_knows_the_last_line_that_says_something() -> None:
    ring = StderrRing(8)
    for chunk in (b"0123456789", b"", b"ab  \n\n \n"):
        ring.feed(chunk)
    assert (ring.total, ring.tail(), ring.last_line()) == (18, (), ""), (
        "a line that lost its head is left out"
    )
    ring.feed(b"cd  \n\n")
    assert (ring.total, ring.tail(), ring.last_line()) == (24, ("cd",), "cd")
    whole = StderrRing(4)
    whole.feed(b"abcd")
    assert whole.tail() == ("abcd",)
