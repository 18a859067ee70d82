"""Tasks that outlive their gateway: a folder has them, and the next gateway goes on with it."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.gateway.test_tasks import UNKNOWN, Gateway, Person, gateway, text
from tests.support import in_real_time
from tests.support.gateway import PATIENCE, faulty, serve

from greenroom.gateway import task_folder
from greenroom.gateway import tasks as kept
from greenroom.testing.fake_servers import FakeCall, FakeServer


async def work(call: FakeCall) -> str:
    if call.get("n") is None:
        await anyio.sleep_forever()
    return f"done {call.get('n')}"


@asynccontextmanager
async def keeping(folder: Path, server: FakeServer | None = None, **settings: Any) -> AsyncGenerator[Gateway]:
    said: dict[str, Any] = {"tasks": {"keep": str(folder)}, **settings}
    async with gateway(server or FakeServer(handler=work), **said) as gate:
        try:
            yield gate
            await gate.clients.tasks.kept()
        finally:
            gate.clients.tasks.close()


async def begin(who: Person, **arguments: Any) -> str:
    made = await who.ask("tools/call", {"name": "a_echo", "arguments": arguments, "task": {"ttl": 100_000}})
    return made["task"]["taskId"]


async def status(who: Person, task: str) -> str:
    return (await who.ask("tasks/get", {"taskId": task})).get("status", "unknown")


async def ended(who: Person, task: str) -> str:
    """Its status once it has ended."""
    with anyio.fail_after(10):
        while (found := await status(who, task)) == "working":
            await anyio.sleep(0.01)
    return found


def files(folder: Path) -> dict[str, Any]:
    """What the files say, by the ids of their tasks."""
    found = [json.loads(path.read_bytes()) for path in folder.glob("task-*.json")]
    return {each["id"]: each for each in found}


@in_real_time
async def test_a_result_outlives_its_gateway_for_its_principal_and_for_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "state" / "tasks"
    async with keeping(folder) as gate, gate.person() as ann:
        task = await begin(ann, n=1)
        assert await ended(ann, task) == "completed"
        before = await ann.ask("tasks/get", {"taskId": task})
    (path,) = folder.glob("task-*.json")
    assert (folder.stat().st_mode & 0o777, path.stat().st_mode & 0o777) == (0o700, 0o600)
    assert b"ann" not in path.read_bytes()
    async with keeping(folder) as gate, gate.person() as ann, gate.person(subject="bob") as bob:
        after = await ann.ask("tasks/get", {"taskId": task})
        assert after == {**before, "lastUpdatedAt": after["lastUpdatedAt"]}
        assert text(await ann.ask("tasks/result", {"taskId": task})) == "done 1"
        of_ann = await bob.ask("tasks/get", {"taskId": task})
        assert of_ann == await bob.ask("tasks/get", {"taskId": "nobody's"})
        assert of_ann["code"] == UNKNOWN
    said = json.loads(path.read_bytes())
    path.write_text(json.dumps({**said, "until": time.time() + 0.5}))
    monkeypatch.setattr(kept, "_TIDIED", 0.1)
    async with keeping(folder):
        assert files(folder)
        with anyio.fail_after(10):
            while files(folder):
                await anyio.sleep(0.01)
    path.write_text(json.dumps({**said, "until": time.time() - 1}))
    async with keeping(folder) as gate, gate.person() as ann:
        assert await status(ann, task) == "unknown"
        assert not files(folder), "its time is over"


@in_real_time
async def test_how_a_task_failed_or_was_cancelled_outlives_its_gateway_too(tmp_path: Path) -> None:
    server = FakeServer(handler=work)
    async with keeping(tmp_path / "t", server) as gate, gate.person() as ann:
        cancelled = await begin(ann)
        await ann.ask("tasks/cancel", {"taskId": cancelled})
        server.call_error = (-32_001, "no disk")
        failed = await begin(ann, n=2)
        assert await ended(ann, failed) == "failed"
    async with keeping(tmp_path / "t") as gate, gate.person() as ann:
        assert await status(ann, cancelled) == "cancelled"
        assert (await ann.ask("tasks/get", {"taskId": failed}))["statusMessage"] == "[a] no disk"
        assert (await ann.ask("tasks/result", {"taskId": failed}))["code"] == -32_001


@in_real_time
async def test_a_task_that_ran_when_the_gateway_was_killed_has_failed(tmp_path: Path) -> None:
    async with keeping(tmp_path / "t", taskAfterMs=500) as gate, gate.person(modern=True) as ann:
        task = (await ann.ask("tools/call", {"name": "a_echo"}))["taskId"]
        await gate.clients.tasks.kept()
        shutil.copytree(tmp_path / "t", tmp_path / "killed")
        await ann.ask("tasks/cancel", {"taskId": task})
    (tmp_path / "killed").chmod(0o700)
    for _ in range(2):  # the second finds what the first has written
        async with keeping(tmp_path / "killed") as gate, gate.person(modern=True) as ann:
            found = await ann.ask("tasks/get", {"taskId": task})
            assert found["status"] == "failed"
            assert found["error"]["data"] == {"error": "call_failed", "reach": "sent"}
            assert "the call was sent and may have run" in found["error"]["message"]


@in_real_time
async def test_a_task_is_told_completed_when_its_result_is_in_the_folder(tmp_path: Path) -> None:
    on_disk = list[str]()
    async with keeping(tmp_path / "t") as gate, gate.person() as ann:
        send = ann.send

        def hear(line: bytes) -> bool:
            if b'"completed"' in line:
                on_disk.extend(each["status"] for each in files(tmp_path / "t").values())
            return send(line)

        ann.send = hear  # type: ignore[method-assign]
        assert await ended(ann, await begin(ann, n=1)) == "completed"
        assert on_disk
        assert set(on_disk) == {"completed"}


@in_real_time
async def test_files_that_are_torn_or_of_others_are_passed_over(tmp_path: Path) -> None:
    async with keeping(tmp_path / "t") as gate, gate.person() as ann:
        tasks = [await begin(ann, n=number) for number in range(4)]
        assert [await ended(ann, task) for task in tasks] == ["completed"] * 4
    paths = [tmp_path / "t" / f"task-{task}.json" for task in tasks]
    paths[0].write_bytes(paths[0].read_bytes()[:-20])
    paths[1].write_bytes(b"")
    paths[2].chmod(0o666)
    for number, changes in enumerate(
        ({"result": 7}, {"status": "failed"}, {"status": "odd"}, {"until": "x"})
    ):
        path = tmp_path / "t" / f"task-{str(number) * 32}.json"
        said = {**json.loads(paths[3].read_bytes()), "id": str(number) * 32}
        path.write_text(json.dumps({**said, **changes}))
    other = tmp_path / "t" / f"task-{'x' * 32}.json"
    other.write_bytes(paths[3].read_bytes())
    half = tmp_path / "t" / f".task-{'x' * 32}.json.abc.tmp"
    half.write_bytes(b"{")
    (tmp_path / "t" / "mine.txt").write_text("")
    async with keeping(tmp_path / "t") as gate, gate.person() as ann:
        assert [await status(ann, task) for task in tasks] == ["unknown"] * 3 + ["completed"]
        assert {await status(ann, name * 32) for name in "x0123"} == {"unknown"}
        assert not half.exists()
    assert (tmp_path / "t" / "mine.txt").exists()


@in_real_time
async def test_the_folder_is_bounded_in_number_and_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = FakeServer(handler=lambda call: "x" * call["size"])

    async def of(subject: str, gate: Gateway, *sizes: int) -> list[str]:
        async with gate.person(subject=subject) as who:
            tasks = list[str]()
            for size in sizes:
                tasks.append(await begin(who, size=size))
                assert await ended(who, tasks[-1]) == "completed"
            return tasks

    monkeypatch.setattr(kept, "TASKS_OF_ONE", 3)
    async with keeping(tmp_path / "t", server) as gate:
        of_ann = await of("ann", gate, 10, 10, 10, 10)
        await gate.clients.tasks.kept()
        assert files(tmp_path / "t").keys() == set(of_ann[1:])
        of_bob = await of("bob", gate, 2_000)
    monkeypatch.setattr(task_folder, "TASK_BYTES", 1_000)
    monkeypatch.setattr(task_folder, "_HEAD", 1_000)
    monkeypatch.setattr(kept, "TASKS_OF_ONE", 2)
    async with keeping(tmp_path / "t", server):
        assert files(tmp_path / "t").keys() <= set(of_ann) - set(of_bob)
        assert len(files(tmp_path / "t")) == 2
    monkeypatch.setattr(task_folder, "TASKS", 1)
    async with keeping(tmp_path / "t", server):
        assert len(files(tmp_path / "t")) == 1


@in_real_time
async def test_a_folder_that_cannot_be_used_is_told_and_tasks_end_with_the_gateway(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "t"
    async with keeping(folder) as gate, gate.person() as ann, keeping(folder) as second:
        assert "another gateway keeps its tasks there" in capsys.readouterr().out
        task = await begin(ann, n=1)
        async with second.person() as late:
            own = await begin(late, n=2)
            assert [await ended(late, each) for each in (task, own)] == ["unknown", "completed"]
            assert await ended(ann, task) == "completed"
        assert files(folder).keys() == {task}
    folder.chmod(0o755)
    async with keeping(folder):
        assert "it must be a directory of mode 0700" in capsys.readouterr().out


@pytest.mark.parametrize("how", [None, signal.SIGTERM, signal.SIGKILL], ids=["left", "ended", "killed"])
def test_a_gateway_process_leaves_its_tasks_to_the_next(tmp_path: Path, how: int | None) -> None:
    settings: dict[str, Any] = {"tasks": {"keep": str(tmp_path / "t")}, "drainTimeoutMs": 200}
    servers = {"a": faulty(tmp_path, "a")}
    with serve(tmp_path, servers, "--expose", "direct", **settings) as first:
        first.initialize()

        def call(name: str, **arguments: Any) -> str:
            params = {"name": name, "arguments": arguments, "task": {}}
            return first.answer(first.send("tools/call", params))["result"]["task"]["taskId"]

        done = call("a_echo", text="hi")
        first.answer(first.send("tasks/result", {"taskId": done}))
        runs = call("a_sleep", seconds=100)
        until = time.monotonic() + PATIENCE
        while runs not in files(tmp_path / "t"):
            assert time.monotonic() < until
            time.sleep(0.01)
        first.end(how)
    with serve(tmp_path, servers, "--expose", "direct", **settings) as second:
        second.initialize()
        fetched = second.answer(second.send("tasks/result", {"taskId": done}))["result"]
        assert text(fetched) == "hi"
        lost = second.answer(second.send("tasks/result", {"taskId": runs}))
        said = lost["error"]["data"] if "error" in lost else lost["result"]["_meta"]["greenroom/error"]
        assert said["reach"] == "sent"
        assert ("error" in lost) is (how == signal.SIGKILL), lost
