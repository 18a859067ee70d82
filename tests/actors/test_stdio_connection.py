"""A real child, from its start to the end of everything it started."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import anyio
import msgspec
import pytest
from tests.support import in_real_time, run
from tests.support.loops import on_asyncio, on_one_loop
from tests.support.patience import PATIENCE
from tests.support.rooms import settle
from tests.support.stdio import (
    CLIENT,
    RUN,
    Call,
    Link,
    Recorder,
    definition_of,
    gone_within,
    linked,
    logged,
    tool,
    unmarked,
    until,
)

from greenroom.actors.backend import current_backend
from greenroom.actors.handshake import RpcFailure, ask, shake_hands
from greenroom.actors.host import Declaration
from greenroom.actors.transports import stdio
from greenroom.actors.transports.child_environment import incarnation_tag
from greenroom.actors.transports.child_process import start_child
from greenroom.actors.transports.guard import Guard
from greenroom.actors.transports.stdio import StdioConnector
from greenroom.config.model import ServerDefinition, Settings
from greenroom.protocol.address import Address
from greenroom.protocol.errors import ConnectFailed, Reach


@pytest.fixture(autouse=True)
def patient_with_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was killed may take its time on a busy machine; a stop is over when it is gone."""
    monkeypatch.setattr(stdio, "_FORCED", 100.0)
    monkeypatch.setattr(stdio, "_SWEEP_WITHIN", 60.0)


@in_real_time
async def test_a_call_goes_and_comes_back() -> None:
    async with linked(definition_of("echo.py")) as link:
        await link.initialize()
        assert await link.call("echo", text="héllo") == "héllo"
    assert link.hooks.reasons == []  # an ending that was asked for is no loss
    assert link.hooks.notes == []


@in_real_time
async def test_an_answer_of_any_length_comes_whole() -> None:
    async with linked(definition_of("echo.py")) as link:
        await link.initialize()
        for size in (1, 65_535, 65_536, 65_537, 3_000_000):
            assert await link.call("echo", size=size) == "x" * size


@in_real_time
async def test_a_polite_child_is_gone_in_milliseconds() -> None:
    async with linked(definition_of("echo.py"), stop=False) as link:
        await link.initialize()
        with anyio.fail_after(PATIENCE):
            await link.connection.stop(
                1_500.0
            )  # of which a child that does not leave at once is given a part
        await link.connection.stop(150.0)  # idempotent


@in_real_time
async def test_t05_initialize_never_answered_ends_at_its_deadline() -> None:
    settings = Settings(connect_timeout=1.2, probe_timeout=0.1)
    async with linked(definition_of("faulty.py", "--hang-at", "start")) as link:
        with pytest.raises(RpcFailure, match=r"initialize: no answer within") as caught:
            await shake_hands(
                link.peer,
                link.backend,
                link.timers,
                settings=settings,
                client_info=CLIENT,
                declaration=Declaration(),
            )
        assert caught.value.timed_out
        await link.connection.stop(0.3)


@in_real_time
async def test_t05_a_crash_at_initialize_carries_exit_code_and_stderr() -> None:
    async with linked(definition_of("faulty.py", "--crash-at", "initialize")) as link:
        link.peer.request(Call("initialize", {}))
        await link.hooks.lost.wait()
        reason = link.hooks.reasons[0]
        assert reason.text == "exited with code 3"
        assert reason.exit_code == 3
        assert reason.stderr_tail == ("cannot go on", "fatal: asked to crash at initialize")


@in_real_time
async def test_t06_exit_is_an_event_while_a_grandchild_holds_the_pipe() -> None:
    faults = ("--fork", "group", "--leave-at", "tools/call")
    async with linked(definition_of("faulty.py", *faults)) as link:
        await link.initialize()
        call = tool("echo")
        link.peer.request(call)
        with anyio.fail_after(PATIENCE):
            await link.hooks.lost.wait()
        assert link.hooks.reasons[0].exit_code == 7
        assert call.reach is Reach.SENT
        assert call.ends == []  # left to the actor


@pytest.mark.parametrize("closed", ["stdin", "stdout"])
@in_real_time
async def test_t06_a_closed_pipe_is_an_event_while_the_child_lives(closed: str) -> None:
    async with linked(definition_of("faulty.py", f"--close-{closed}-at", "call:echo")) as link:
        await link.initialize()
        link.peer.request(tool("echo"))
        while not link.hooks.reasons:
            link.peer.notify("notifications/nothing")  # a broken pipe shows at a write
            await anyio.sleep(0.01)
        assert link.hooks.reasons[0].text == f"closed its {closed}"
        assert link.hooks.reasons[0].exit_code is None
        await link.connection.stop(0.5)


@in_real_time
async def test_an_answer_written_before_the_exit_is_heard() -> None:
    script = 'import sys; sys.stdin.readline(); print(\'{"id":1,"result":{}}\', flush=True); sys.exit(4)'
    async with linked(ServerDefinition("child", command=sys.executable, args=("-c", script))) as link:
        call = Call("ping")
        link.peer.request(call)
        await link.hooks.lost.wait()
        assert call.ends == [(b"{}", None)]
        assert link.hooks.reasons[0].exit_code == 4


@pytest.mark.parametrize("kind", ["group", "setsid", "double"])
@in_real_time
async def test_t08_nothing_of_a_stubborn_tree_is_left(kind: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    faults = ("--ignore-eof", "--ignore-term", "--fork", kind, "--log", str(log))
    async with linked(definition_of("faulty.py", *faults), stop=False) as link:
        await link.initialize()
        pids = await logged(log, "start") + await logged(log, "child")
        await link.connection.stop(0.5)
        assert await gone_within(0, pids)


@pytest.mark.parametrize("patience", [("--ignore-eof", "--ignore-term"), ()], ids=["stubborn", "obedient"])
@in_real_time
async def test_t08_a_group_is_ended_by_its_id_alone(patience: tuple[str, ...], tmp_path: Path) -> None:
    """No mark in the environment for the guard to find. The obedient leader exits at once and leaves its grandchild:
    the group must be killed while the leader is still a zombie, for later its id may be anybody's."""
    log = tmp_path / "log"
    definition = definition_of("faulty.py", *patience, "--fork", "group", "--log", str(log))
    async with linked(unmarked(definition), stop=False) as link:
        await link.initialize()
        pids = await logged(log, "start") + await logged(log, "child")
        await link.connection.stop(0.5)
        assert await gone_within(0, pids)


@in_real_time
async def test_t08_leaving_without_a_stop_kills_a_group_by_its_id_alone(tmp_path: Path) -> None:
    log = tmp_path / "log"
    definition = definition_of("faulty.py", "--ignore-eof", "--fork", "group", "--log", str(log))
    async with linked(unmarked(definition), stop=False) as link:
        await link.initialize()
        pids = await logged(log, "start") + await logged(log, "child")
    assert await gone_within(PATIENCE, pids)


@pytest.mark.parametrize("kind", ["group", "double"])
@in_real_time
async def test_t08_leaving_without_a_stop_kills_the_tree(kind: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    faults = ("--ignore-eof", "--ignore-term", "--fork", kind, "--log", str(log))
    async with linked(definition_of("faulty.py", *faults), stop=False) as link:
        await link.initialize()
        pids = await logged(log, "start") + await logged(log, "child")
    assert await gone_within(PATIENCE, pids)


@on_asyncio
@in_real_time
async def test_t08_native_cancellation_kills_the_tree(tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def owner() -> None:
        async with linked(
            definition_of("faulty.py", "--fork", "group", "--log", str(log)), stop=False
        ) as link:
            await link.initialize()
            with anyio.CancelScope(shield=True):  # which native cancellation does not heed
                await anyio.sleep_forever()

    task = asyncio.ensure_future(owner())
    pids = await logged(log, "start") + await logged(log, "child")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await gone_within(PATIENCE, pids)


def test_t15_full_pipes_both_ways_do_not_deadlock(backend: str) -> None:
    size = 8 * 1024 * 1024

    async def body() -> None:
        faults = ("--stderr", str(1024 * 1024))
        async with linked(definition_of("faulty.py", *faults)) as link:
            await link.initialize()
            with anyio.fail_after(PATIENCE):
                async with anyio.create_task_group() as tasks:
                    for _ in range(2):
                        tasks.start_soon(_both_ways, link, size)

    async def _both_ways(link: Link, size: int) -> None:
        assert len(await link.call("echo", size=size, ballast="b" * size)) == size

    run(backend, body)


@in_real_time
async def test_t16_banners_and_junk_are_counted_and_never_fatal() -> None:
    async with linked(definition_of("faulty.py", "--banner", "Welcome!", "--junk-before")) as link:
        await link.initialize()
        for _ in range(20):
            assert await link.call("echo", text="a") == "a"
        counts = link.peer.notes.counts
        assert counts["junk on stdout"] == 43  # the banner, and two before each of 21 answers
        assert counts["bad UTF-8 on stdout"] == 21
        assert counts["an answer nobody asked for"] == 21
        assert len(link.hooks.notes) < 15  # reported, not shouted
        assert any("Welcome!" in note for note in link.hooks.notes)


@pytest.mark.parametrize("faults", [(), ("--id-last",)])
@in_real_time
async def test_t19_a_line_over_the_bound_ends_only_its_call(faults: tuple[str, ...]) -> None:
    async with linked(definition_of("faulty.py", *faults), settings=Settings(max_line=100_000)) as link:
        await link.initialize()
        for _ in range(12):  # more than it may write without a message
            with pytest.raises(
                RpcFailure, match=r"over the bound of 100,000 bytes a line \(maxLineBytes"
            ) as caught:
                await link.call("echo", size=150_000)
            assert caught.value.error is not None
            assert caught.value.error.fault
        assert await link.call("echo", text="still here") == "still here"


@in_real_time
async def test_a_line_that_does_not_end_ends_the_connection_and_names_the_bound() -> None:
    settings = Settings(max_line=100_000)
    async with linked(definition_of("faulty.py", "--id-last"), settings=settings, stop=False) as link:
        await link.initialize()
        link.peer.request(call := tool("echo", size=3_000_000))
        await link.hooks.lost.wait()
        assert call.ends == []
        assert "of one line to stdout, and maxLineBytes allows 100,000" in link.hooks.reasons[0].text


@on_one_loop
@in_real_time
async def test_t19_huge_lines_take_linear_time() -> None:
    async with linked(definition_of("faulty.py")) as link:
        await link.initialize()
        took: list[float] = []
        for size in (8 << 20, 32 << 20):
            start = time.process_time()  # which others who keep the machine busy do not add to
            assert len(await link.call("echo", size=size)) == size
            took.append(time.process_time() - start)
        assert took[1] < 8 * took[0] + 0.5  # four times the bytes; quadratic would be sixteen


@in_real_time
async def test_t21_abandoning_a_sent_call_tells_the_server_and_drops_the_late_answer(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with linked(definition_of("faulty.py", "--late", "0.05", "--log", str(log))) as link:
        await link.initialize()
        call = tool("echo", text="late")
        link.peer.request(call)
        assert call.reach is Reach.SENT
        link.peer.abandon(call, "the caller left")
        link.peer.abandon(call, "twice")
        assert await link.call("echo", text="next") == "next"
        assert call.ends == []
        assert log.read_text().count("got notifications/cancelled") == 1
        assert link.peer.notes.counts["a late or second answer"] == 1


@in_real_time
async def test_t21_abandoning_a_queued_call_takes_it_out(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with linked(definition_of("faulty.py", "--deaf-after", "call:nothing", "--log", str(log))) as link:
        await link.initialize()
        big, queued = tool("sleep", seconds=0.1, ballast="b" * 1_000_000), tool("crash")
        link.peer.request(big)
        link.peer.request(queued)
        assert (big.reach, queued.reach) == (Reach.SENT, Reach.NOT_SENT)
        link.peer.abandon(queued, "the caller left")
        assert await link.call("echo", text="alive") == "alive"
        assert big.ends
        assert "call crash" not in log.read_text()
        assert "cancelled" not in log.read_text()


@in_real_time
async def test_t21_a_cancelled_ask_is_abandoned(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with linked(definition_of("faulty.py", "--log", str(log), "--hang-at", "call:echo")) as link:
        await link.initialize()
        async with anyio.create_task_group() as tasks:
            params = {"name": "sleep", "arguments": {"seconds": 0.3}}
            tasks.start_soon(ask, link.peer, link.backend, link.timers, "tools/call", params, 60)
            await settle()  # it has been sent
            tasks.cancel_scope.cancel()
        assert await link.call("pid")
        assert log.read_text().count("got notifications/cancelled") == 1


PRIVATE = {"AWS_KEY": "k", "AWS_REGION": "r", "GITHUB_TOKEN": "t", "SSH_AUTH_SOCK": "s", "XLC_TIME": "x"}
NEEDED = {"LC_TIME": "C", "HTTPS_PROXY": "p", "no_proxy": "r", "SSL_CERT_FILE": "c"}


@pytest.mark.parametrize(
    ("inherits", "more"),
    [
        (None, set[str]()),
        (False, set[str]()),
        (("AWS_*", "GITHUB_TOKEN", "NOPE"), {"AWS_KEY", "AWS_REGION", "GITHUB_TOKEN"}),
        (True, PRIVATE.keys()),
    ],
)
@on_one_loop
@in_real_time
async def test_t31_a_child_sees_what_programs_need_and_what_its_entry_names(
    inherits: bool | tuple[str, ...] | None, more: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**PRIVATE, **NEEDED, "GREENROOM_DEPTH": "2"}.items():
        monkeypatch.setenv(name, value)
    forged = {"GREENROOM_DEPTH": "0", "GREENROOM_ROOM": "forged", "GREENROOM_INCARNATION": "forged"}
    own = {"OWN": "yes", "PATH": "/bin", **forged}
    async with linked(definition_of("faulty.py", env=own, inherit_env=inherits)) as link:
        await link.initialize()
        seen = json.loads(await link.call("env"))
    assert seen.keys() & PRIVATE.keys() == more
    assert {name: seen.get(name) for name in NEEDED} == NEEDED
    assert (seen["OWN"], seen["PATH"]) == ("yes", "/bin")
    assert seen["GREENROOM_DEPTH"] == "3", "one deeper than we are, whatever its entry says"
    assert (seen["GREENROOM_ROOM"], seen["GREENROOM_INCARNATION"]) == (RUN, f"{RUN}:child#1")


def _write_scripts(tmp_path: Path) -> None:
    for name, mode, said in (
        ("plain", 0o644, b"echo"),
        ("headless", 0o755, b"#!/no/such/interpreter\n"),
        ("text", 0o755, b"echo"),
        ("foreign", 0o755, b"MZ\x90\x00"),
        ("returned", 0o755, b"#!/bin/sh\r\necho\r\n"),
        ("by_env", 0o755, b"#!/usr/bin/env sh\r\necho\r\n"),
    ):
        (tmp_path / name).write_bytes(said)
        (tmp_path / name).chmod(mode)


def _broken(tmp_path: Path) -> dict[str, tuple[ServerDefinition, str]]:
    plain, headless, text, foreign, returned = (
        tmp_path / name for name in ("plain", "headless", "text", "foreign", "returned")
    )
    here = str(tmp_path / "nowhere")

    def server(command: object, *args: str, cwd: str | None = None) -> ServerDefinition:
        return ServerDefinition("x", command=str(command), args=args, cwd=cwd)

    return {
        "missing": (
            server("no-such-binary"),
            'command "no-such-binary" was not found. Install it, or give its full path in "command".',
        ),
        "line": (
            server(f"{sys.executable} -m http.server"),
            f'is a whole line. Write "command": "{sys.executable}", and put the rest into "args"',
        ),
        "cwd": (server(sys.executable, cwd=here), f'directory "{here}" does not exist'),
        "not executable": (server(plain), "may not be executed. Make it executable (chmod +x), or"),
        "interpreter": (server(headless), "the interpreter named in the first line"),
        "interpreter, by PATH": (
            msgspec.structs.replace(server("headless"), env={"PATH": str(tmp_path)}),
            "does not exist: /no/such/interpreter",
        ),
        "carriage return": (
            server(returned),
            f"names no program. Save it with the line ends of this system: sed -i 's/\\r$//' {returned}.",
        ),
        "folder": (server(tmp_path), "is a folder. Name the program"),
        "another system": (server(foreign), "is a program for another system or processor"),
        "the shell of Windows": (
            server("cmd", "/c", "npx", "-y", "x"),
            'is the shell of Windows, and this is another system. Write "command": "npx", and only what follows it',
        ),
        "with its ending": (server("cmd.exe", "/C", "npx"), 'Write "command": "npx"'),
        "a path of Windows": (server("C:\\Program Files\\node\\npx.cmd"), "is a path of Windows"),
        "a path of Windows, with slashes": (server("C:/node/node.exe"), "is a path of Windows"),
        "a path with backslashes": (server(".venv\\Scripts\\python"), "is a path of Windows"),
        "a program of Windows": (
            server("npx.cmd"),
            'is a program of Windows, and this is another system. Write "command": "npx".',
        ),
        "the launcher": (server("py"), 'Write "command": "python3".'),
        "a URL": (server("https://example.com/mcp"), 'is a URL. Write it as "url", without "command".'),
        "a line for a shell": (server("cd /tmp && npx x"), 'is a line for a shell. Write "command": "sh"'),
        "quotation marks": (
            server('"no-such-binary"'),
            'or a quotation mark. Write "command": "no-such-binary".',
        ),
        "no such file": (server("/no/such/file"), "there is no such file. Correct the path"),
        "no file from here": (
            server("./no-such-file", cwd=str(tmp_path)),
            f"there is no file {tmp_path}/no-such-file",
        ),
        "no program": (server(text), 'is not a program. Name its interpreter in "command"'),
        "too long": (
            server(sys.executable, "x" * 200_000),
            "Argument list too long",
        ),
        "nul": (
            server(sys.executable, "a\0b"),
            'embedded null byte. Check its "command", "args" and "env".',
        ),
    }


@pytest.mark.parametrize("case", _broken(Path("/")))
@in_real_time
async def test_what_cannot_be_started_says_why_and_what_to_do(case: str, tmp_path: Path) -> None:
    _write_scripts(tmp_path)
    definition, text = _broken(tmp_path)[case]
    with pytest.raises(ConnectFailed, match=re.escape(text)) as caught:
        async with linked(definition):
            raise AssertionError("it started")
    assert (caught.value.reach, caught.value.server) == (Reach.NOT_SENT, "x")


@in_real_time
async def test_env_in_a_first_line_of_windows_finds_no_program_and_it_is_said_why(tmp_path: Path) -> None:
    _write_scripts(tmp_path)
    async with linked(ServerDefinition("x", command=str(tmp_path / "by_env"))) as link:
        await link.hooks.lost.wait()
        assert "exited with code 127: the first line of" in link.hooks.reasons[0].text
        assert "ends with a carriage return" in link.hooks.reasons[0].text


@in_real_time
async def test_progress_reaches_its_exchange_in_order() -> None:
    async with linked(definition_of("faulty.py")) as link:
        await link.initialize()
        params = {
            "name": "progress",
            "arguments": {"steps": 5},
            "_meta": {"progressToken": "mine", "x": 1},
        }
        call = Call("tools/call", params, wants_progress=True)
        link.peer.request(call)
        await call.done.wait()
        assert call.seen == [1, 2, 3, 4, 5]
        assert call.sent_at == [Reach.SENT]


@in_real_time
async def test_a_ping_of_the_server_is_answered_and_other_requests_are_passed_on() -> None:
    async with linked(definition_of("faulty.py")) as link:
        await link.initialize()
        assert json.loads(await link.call("ask")) == {"jsonrpc": "2.0", "id": "q1", "result": {}}
        call = tool("ask", method="roots/list")
        link.peer.request(call)
        assert await until(lambda: bool(link.hooks.requests))
        assert link.hooks.requests == [("q1", "roots/list", None)]
        link.peer.reply("q1", {"roots": []})
        await call.done.wait()
        assert await link.call("grow")
        assert link.hooks.notifications == [("notifications/tools/list_changed", None)]


@pytest.mark.parametrize(
    ("fault", "text"),
    [("not-json", "not JSON-RPC"), ("not-object", "no result object")],
)
@in_real_time
async def test_an_answer_that_is_none_ends_its_call_as_a_fault(fault: str, text: str) -> None:
    async with linked(definition_of("faulty.py", f"--{fault}")) as link:
        await link.initialize()
        with pytest.raises(RpcFailure, match=text) as caught:
            await link.call("echo")
        assert caught.value.error is not None
        assert caught.value.error.fault


@in_real_time
async def test_a_server_that_does_not_read_is_bounded() -> None:
    settings = Settings(max_line=200_000)
    async with linked(definition_of("faulty.py", "--hang-at", "start"), settings=settings) as link:
        calls = [tool("echo", ballast="b" * 90_000) for _ in range(6)]
        for call in calls:
            link.peer.request(call)
        with anyio.fail_after(PATIENCE):
            await calls[-1].done.wait()
        assert calls[0].reach is Reach.SENT
        assert calls[1].reach is Reach.NOT_SENT
        ended = calls[-1].ends[0][1]
        assert ended is not None
        assert "does not read its stdin" in ended.message
        assert calls[-1].reach is Reach.NOT_SENT
        await link.connection.stop(0.3)


@in_real_time
async def test_without_a_pidfd_a_thread_sees_the_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_none(*_args: int) -> int:
        raise OSError(errno.ENOSYS, "not implemented")  # from 3.15 on, `subprocess` asks, too

    monkeypatch.setattr(os, "pidfd_open", open_none)
    async with linked(definition_of("faulty.py", "--crash-at", "call:echo")) as link:
        await link.initialize()
        link.peer.request(tool("echo"))
        await link.hooks.lost.wait()
        assert link.hooks.reasons[0].exit_code == 3


@in_real_time
async def test_the_bodys_error_comes_out_as_itself() -> None:
    loop_backend = current_backend()
    guard = Guard(loop_backend, RUN)
    connector = StdioConnector(
        definition_of("echo.py"),
        Address("child"),
        1,
        backend=loop_backend,
        guard=guard,
        settings=Settings(),
        run_id=RUN,
    )
    try:
        with pytest.raises(ZeroDivisionError):
            async with connector.open(Recorder()):
                raise ZeroDivisionError
    finally:
        guard.close()


@in_real_time
async def test_what_was_written_before_the_exit_is_read_though_no_pump_has() -> None:
    """The exit may be seen before the pumps have had their turn: only the watchers run here."""
    loop_backend, hooks = current_backend(), Recorder()
    guard = Guard(loop_backend, RUN)
    script = (
        "import sys; sys.stdin.readline(); print('last words', file=sys.stderr); "
        'print(\'{"id":1,"result":{}}\', flush=True); sys.exit(4)'
    )
    definition = ServerDefinition("child", command=sys.executable, args=("-I", "-S", "-c", script))
    connector = StdioConnector(
        definition,
        Address("child"),
        1,
        backend=loop_backend,
        guard=guard,
        settings=Settings(),
        run_id=RUN,
    )
    connection = connector._start(hooks)
    try:
        call = Call("ping")
        connection.peer.request(call)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(connection._watch_exit)
            tasks.start_soon(connection._watch_end)
            await hooks.lost.wait()
        assert call.ends == [(b"{}", None)]
        (reason,) = hooks.reasons
        assert (reason.text, reason.exit_code) == ("exited with code 4", 4)
        assert reason.stderr_tail == ("last words",)
    finally:
        connection.kill_now()
        connection.close()
        guard.close()


@pytest.mark.parametrize("with_pidfd", [True, False])
def test_a_dying_leader_is_waited_for_and_a_living_one_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, with_pidfd: bool
) -> None:
    if not with_pidfd:
        monkeypatch.delattr(os, "pidfd_open")
    for lives_for, waits, dies in ((0.1, 10 * PATIENCE, True), (600, 0.05, False)):
        code = f"import time; time.sleep({lives_for})"
        definition = ServerDefinition("x", command=sys.executable, args=("-I", "-S", "-c", code))
        child = start_child(definition, {})
        try:
            began = time.monotonic()
            child.block_until_dead(waits)
            assert child.is_dead is dies
            assert not child.is_reaped
            assert dies or time.monotonic() - began >= 0.05
        finally:
            child.signal_group(signal.SIGKILL)
            child.block_until_dead(PATIENCE)
            assert child.exit_code == (0 if dies else -signal.SIGKILL)
            child.reap()
            assert child.exit_code == (0 if dies else -signal.SIGKILL), "known though nobody can be asked"
            child.close()


def test_a_child_is_marked_with_whose_it_is_legibly_and_whatever_a_session_is_named() -> None:
    for scope, quoted in (("shared", "a%20b"), ("session:x/ö#1", "a%20b[session:x%2F%C3%B6%231]")):
        tag = incarnation_tag("run-7", Address("a b", scope), 3)
        assert tag == f"GREENROOM_INCARNATION=run-7:{quoted}#3"


@in_real_time
async def test_where_a_zombie_cannot_be_asked_its_seen_end_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "waitid")
    definition = ServerDefinition("x", command=sys.executable, args=("-I", "-S", "-c", ""))
    child = start_child(definition, {})
    try:
        await child.wait_exit(current_backend())
        assert child.is_dead
        assert child.exit_code is None
        child.reap()
        assert child.exit_code == 0
    finally:
        child.close()
