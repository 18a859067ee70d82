"""The synchronous door: the same room on a thread of its own, whatever the program around it is."""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.gateway import PATIENCE, faulty, gone_within, logged_pids
from tests.support.patience import until
from tests.support.rooms import open_room
from tests.support.rows import for_each

import greenroom.sync
from greenroom import CallError, DrainReport, Greenroom, Reach, Session, UnknownTool, UsageError
from greenroom.errors import RoomClosed
from greenroom.events import Kind
from greenroom.testing.fake_servers import HANG, FakeCall, FakeServer, tool

LOOPS = pytest.mark.parametrize("backend", ["asyncio", "trio"])


def sync_room(backend: str, server: FakeServer | None = None, **options: Any) -> greenroom.sync.Room:
    return greenroom.sync.Room(open_room({"a": server or FakeServer()}, **options), backend=backend)


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "greenroom room" and thread.ident}


@LOOPS
def test_calls_need_no_loop_and_nothing_is_left(backend: str) -> None:
    server = FakeServer()
    with sync_room(backend, server) as room:
        assert room.call("a_echo", {"text": "hi"}).text == '{"text": "hi"}'
        assert [target.name for target in room.tools()] == ["a_echo"]
        assert room.status()[0].server == "a"
        answers = room.call_many([("a_echo", {}), ("a_nothing", {})])
        assert [type(answer) for answer in answers][1] is UnknownTool
    assert server.live == 0
    assert not threads()
    assert room.drain_report is not None
    assert room.drain_report.is_final
    assert room.drain_report.adds_up
    room.close()


@LOOPS
def test_errors_are_those_of_the_room_and_say_how_far_a_call_got(backend: str) -> None:
    server = FakeServer(call_error=(-32000, "no"))
    room = sync_room(backend, server)
    with pytest.raises(UsageError, match="not open yet"):
        room.call("a_echo")
    with room:
        with pytest.raises(CallError) as refused:
            room.call("a_echo")
        assert refused.value.reach is Reach.ANSWERED
        with pytest.raises(UsageError, match="opened once"):
            room.start()
    with pytest.raises(RoomClosed):
        room.call("a_echo")


@LOOPS
def test_what_cannot_be_opened_says_why_and_leaves_no_thread(tmp_path: Path, backend: str) -> None:
    room = greenroom.sync.Room(Greenroom.open({"mcpServers": {}}, audit=tmp_path), backend=backend)
    with pytest.raises(UsageError, match="audit"):
        room.start()
    assert not threads()


@LOOPS
def test_many_threads_call_at_once(backend: str) -> None:
    server = FakeServer(call_latency=0.01)
    with sync_room(backend, server) as room, ThreadPoolExecutor(16) as pool:
        said = list(pool.map(lambda number: room.call("a_echo", {"n": number}).text, range(64)))
    assert said == [json.dumps({"n": number}) for number in range(64)]
    assert server.starts == 1


@LOOPS
def test_what_is_open_for_a_block_is_entered_and_left_in_one_task(backend: str) -> None:
    def steps(call: FakeCall) -> str:
        for number in range(3):
            call.progress(number, message=f"step {number}")
        return "done"

    server = FakeServer(handler=steps, resources={"x://y": "old"}, tools=[tool("echo")])
    entry = {"a": {"isolation": "per_session"}}
    with sync_room(backend, server) as room:
        with room.events([Kind.TRANSITION]) as events:
            with room.stream_call("a_echo") as run:
                assert [params["progress"] for params in run] == [0, 1, 2]
                assert run.result().text == "done"
                assert run.message == "step 2"
            assert next(events).kind is Kind.TRANSITION
        task = room.start_task("a_echo")
        assert task.result().text == "done"
        assert (task.status, repr(task)) == ("completed", "<CallTask 'a_echo', completed>")
        room.connect("a")
        with room.subscribe("x://y") as updates:
            server.change_resource("x://y", "new")
            assert next(updates)["uri"] == "x://y"
    with sync_room(backend, FakeServer(), entries=entry) as room:
        with room.session("alice") as alice, room.session("bob") as bob:
            alice.call("a_echo")
            bob.call("a_echo")
            assert len([row for row in room.status() if row.pid or row.state.value == "connected"]) == 2
        with pytest.raises(UsageError, match="is over"):
            alice.call("a_echo")


@LOOPS
def test_a_room_that_ends_ends_what_others_wait_for(backend: str) -> None:
    server = FakeServer(call_latency=HANG)
    room = sync_room(backend, server)
    room.start()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(room.call, "a_echo")
        until(lambda: server.calls)
        room.close(0)
        with pytest.raises(CallError):
            waiting.result(PATIENCE)


@LOOPS
def test_a_callback_that_would_wait_for_itself_is_refused(backend: str) -> None:
    def steps(call: FakeCall) -> str:
        call.progress(1)
        return "done"

    refused: list[BaseException] = []

    def called(_params: Mapping[str, Any]) -> None:
        try:
            room.call("a_echo")
        except UsageError as error:
            refused.append(error)

    with sync_room(backend, FakeServer(handler=steps)) as room:
        room.call("a_echo", on_progress=called)
    assert "room's own thread" in str(refused[0])


def test_a_running_loop_is_not_disturbed() -> None:
    """As in a notebook, whose kernel runs one."""

    async def cell() -> str:
        with greenroom.sync.Room(open_room({"a": FakeServer()})) as room:
            said = room.call("a_echo", {"n": 1}).text
        await asyncio.sleep(0)
        return said

    assert asyncio.run(cell()) == '{"n": 1}'


def test_a_room_that_nobody_holds_any_more_ends() -> None:
    """As in a cell that is run again."""
    server = FakeServer()
    room = greenroom.sync.Room(open_room({"a": server}))
    room.start()
    room.connect("a")
    del room
    gc.collect()
    until(lambda: not threads() and not server.live, "the end of the room")


@for_each(
    "cell",
    [
        "room.call('a_nothing')",
        "room.tools_for('nothing')",
        "room.stream_call('').__enter__()",
        "room.search(0)",
    ],
)
def test_what_keeps_the_last_traceback_does_not_keep_the_room(cell: str) -> None:
    """As a notebook does: there a cell failed, and the one that opens the room is run again."""
    server = FakeServer()
    names = {"room": greenroom.sync.Room(open_room({"a": server}))}
    names["room"].start()
    names["room"].connect("a")
    with pytest.raises((CallError, TypeError, AttributeError)) as caught:
        exec(cell, names)
    names.clear()
    gc.collect()
    until(lambda: not threads() and not server.live, "the end of the room")
    assert caught.tb


def test_a_room_that_was_made_before_a_fork_is_opened_after_it() -> None:
    """As the workers of Celery do, or of gunicorn with `preload`: the module is imported once, then forked."""
    room = greenroom.sync.Room(open_room({"a": FakeServer()}))
    children: list[int] = []
    for _ in range(2):
        child = os.fork()
        if not child:
            try:
                with room:
                    os._exit(0 if room.call("a_echo", {"n": 1}).text == '{"n": 1}' else 1)
            finally:
                os._exit(2)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    with room:
        assert room.call("a_echo").text == "{}"


def test_a_forked_copy_refuses_and_the_parent_goes_on() -> None:
    server = FakeServer()
    with greenroom.sync.Room(open_room({"a": server})) as room:
        room.call("a_echo")
        child = os.fork()
        if not child:
            try:
                room.call("a_echo")
            except RoomClosed as error:
                room.close()
                os._exit(0 if "forked" in str(error) else 1)
            os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        assert room.call("a_echo", {"still": "there"}).text == '{"still": "there"}'
        assert server.starts == 1


def test_a_room_is_not_pickled() -> None:
    with pytest.raises(TypeError, match="Open a room in each process"):
        pickle.dumps(greenroom.sync.Room(open_room({"a": FakeServer()})))


def run_script(folder: Path, text: str, server: dict[str, Any]) -> subprocess.Popen[bytes]:
    config = folder / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"slow": server}}))
    script = folder / "script.py"
    script.write_text(f"import sys\nimport greenroom.sync\nCONFIG = {os.fspath(config)!r}\n{text}")
    env = {**os.environ, "XDG_CACHE_HOME": os.fspath(folder)}
    return subprocess.Popen(
        [sys.executable, os.fspath(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
    )


def has_logged(folder: Path, word: str) -> Callable[[], bool]:
    return lambda: (log := folder / "slow.log").exists() and word in log.read_text()


def test_an_interrupt_leaves_the_call_and_ends_the_room_in_order(tmp_path: Path) -> None:
    text = """
try:
    with greenroom.sync.open(CONFIG) as room:
        room.call("slow_echo")
except KeyboardInterrupt:
    print(room.drain_report)
"""
    with run_script(tmp_path, text, faulty(tmp_path, "slow", "--hang-at", "call:echo")) as process:
        until(has_logged(tmp_path, "tools/call"))
        process.send_signal(signal.SIGINT)
        said, wrong = process.communicate(timeout=PATIENCE)
    assert (process.returncode, wrong) == (0, b"")
    assert said.startswith(b"1 call accepted: 0 completed, 0 failed, 1 cancelled")
    assert "notifications/cancelled" in (tmp_path / "slow.log").read_text()
    assert gone_within(logged_pids(tmp_path)) == set()


def reported(room: greenroom.sync.Room) -> DrainReport:
    report = room.drain_report
    assert report is not None
    return report


SOON = [25e-6 * 1.2**number for number in range(40)]  # seconds: some of these end while a call begins


def interrupted(work: Callable[[], object], seconds: float) -> None:
    """Do this until an interrupt so many seconds after its beginning, as by Ctrl-C."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def timed() -> None:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        work()

    before = signal.signal(signal.SIGALRM, interrupt)
    gc.disable()  # what is raised in a collection is lost
    try:
        with pytest.raises(KeyboardInterrupt):
            timed()
    finally:
        gc.enable()
        signal.signal(signal.SIGALRM, before)


@LOOPS
def test_an_interrupt_at_any_moment_leaves_no_call_in_flight(backend: str) -> None:
    """Also while the room's thread takes the call over, which takes long where many programs run."""
    server = FakeServer(call_latency=HANG)
    with sync_room(backend, server) as room:
        room.connect("a")
        for seconds in SOON:
            interrupted(lambda: room.call("a_echo"), seconds)
            until(lambda: reported(room).open == 0, f"the end of a call left after {seconds:g} s")
    assert reported(room).cancelled == reported(room).accepted


@LOOPS
def test_an_interrupt_at_any_moment_leaves_no_session(backend: str) -> None:
    def block() -> None:
        with room.session("alice") as alice:
            alice.connect("a")
            until(lambda: False)

    server = FakeServer()
    with sync_room(backend, server, entries={"a": {"isolation": "per_session"}}) as room:
        for seconds in SOON:
            interrupted(block, seconds)
            until(lambda: not server.live, f"the end of a session left after {seconds:g} s")
        with room.session("alice") as alice:
            assert alice.call("a_echo").text == "{}"


@LOOPS
def test_an_interrupt_at_any_moment_leaves_no_room(backend: str) -> None:
    def block(room: greenroom.sync.Room) -> None:
        with room:
            until(lambda: False)

    for seconds in SOON:
        interrupted(partial(block, sync_room(backend)), seconds)
        until(lambda: not threads(), f"the end of a room left after {seconds:g} s")


@LOOPS
def test_an_interrupt_while_a_room_ends_still_waits_for_its_end(backend: str) -> None:
    room = sync_room(backend, FakeServer(call_latency=HANG))
    room.start()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(room.call_for_model, "a_echo")
        until(lambda: reported(room).open == 1)
        interrupted(lambda: room.close(3600), 0.05)
        assert reported(room).is_final
        assert waiting.result(PATIENCE).is_error
    assert not threads()


def test_a_second_interrupt_leaves_no_time_to_calls_in_flight(tmp_path: Path) -> None:
    text = """
import threading
with greenroom.sync.open(CONFIG) as room:
    other = threading.Thread(target=lambda: room.call_for_model("slow_echo"))
    other.start()
    try:
        room.call("slow_echo")
    finally:
        print("leaving", flush=True)
"""
    server = {**faulty(tmp_path, "slow", "--hang-at", "call:echo"), "timeout": 3_600_000}
    with run_script(tmp_path, text, server) as process:
        until(lambda: (tmp_path / "slow.log").exists())
        until(lambda: (tmp_path / "slow.log").read_text().count("tools/call") == 2)
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        assert process.stdout.readline() == b"leaving\n"
        process.send_signal(signal.SIGINT)
        _, wrong = process.communicate(timeout=PATIENCE)
    assert b"KeyboardInterrupt" in wrong
    assert gone_within(logged_pids(tmp_path)) == set()


def test_a_room_that_nobody_has_closed_ends_with_the_program(tmp_path: Path) -> None:
    """Also where the room's loop has threads of its own, for which the program waits at its end."""
    text = """
import anyio
room = greenroom.sync.open(CONFIG)
room.start()
print(room.call("slow_echo").text)
async def work():
    await anyio.to_thread.run_sync(int)
room._thread.run(work)
"""
    with run_script(tmp_path, text, faulty(tmp_path, "slow")) as process:
        _, wrong = process.communicate(timeout=PATIENCE)
    assert (process.returncode, wrong) == (0, b"")
    assert gone_within(logged_pids(tmp_path)) == set()


def test_a_spawned_process_opens_its_own(tmp_path: Path) -> None:
    text = """
import multiprocessing
def work(number):
    with greenroom.sync.open(CONFIG) as room:
        return room.call("slow_echo", {"text": str(number)}).text
if __name__ == "__main__":
    for method in ("spawn", "fork"):
        with greenroom.sync.open(CONFIG) as room, multiprocessing.get_context(method).Pool(2) as pool:
            room.call("slow_echo")
            print(pool.map(work, range(2)))
            pool.close()
            pool.join()
"""
    with run_script(tmp_path, text, faulty(tmp_path, "slow")) as process:
        said, wrong = process.communicate(timeout=PATIENCE)
    assert (process.returncode, wrong) == (0, b"")
    assert said.decode().splitlines() == ["['0', '1']"] * 2
    assert gone_within(logged_pids(tmp_path)) == set()


@pytest.mark.parametrize(
    ("door", "front"), [(Greenroom, greenroom.sync.Room), (Session, greenroom.sync.Session)]
)
def test_every_method_is_there_with_its_own_signature(door: type, front: type) -> None:
    """Whoever adds a method to the public door adds it here."""
    methods = {name for name, _ in inspect.getmembers(door, inspect.isfunction) if not name.startswith("_")}
    for name in methods - {"aclose", "start"}:
        assert list(inspect.signature(getattr(front, name)).parameters.values()) == list(
            inspect.signature(getattr(door, name)).parameters.values()
        ), name
        assert getattr(front, name).__doc__
        assert not inspect.iscoroutinefunction(getattr(front, name)), name
    assert list(inspect.signature(greenroom.sync.open).parameters) == list(
        inspect.signature(Greenroom.open).parameters
    )
    assert inspect.signature(greenroom.sync.open).return_annotation == "Room"
