"""Tasks that outlive their gateway: a folder has them, and the next gateway goes on with it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.gateway.test_client_tasks import UNKNOWN, Gateway, TaskClient, open_gateway, text
from tests.support import in_real_time
from tests.support.gateway import PATIENCE, faulty, serve

from greenroom.gateway import client_tasks as kept
from greenroom.gateway import task_folder
from greenroom.protocol.errors import RpcRefusal
from greenroom.testing.fake_servers import FakeCall, FakeServer, tool


async def work(call: FakeCall) -> str:
    if call.get("n") is None:
        await anyio.sleep_forever()
    return f"done {call.get('n')}"


@asynccontextmanager
async def keeping(folder: Path, server: FakeServer | None = None, **settings: Any) -> AsyncGenerator[Gateway]:
    said: dict[str, Any] = {"tasks": {"keep": str(folder)}, **settings}
    async with open_gateway(server or FakeServer(handler=work), **said) as gateway:
        try:
            yield gateway
            await gateway.clients.task_store.kept()
        finally:
            gateway.clients.task_store.close()


def test_whoever_is_at_standard_input_has_one_owner_for_all_gateways() -> None:
    """The files of tests/hostile are theirs."""
    assert kept.owner_of(None, None) == hashlib.sha256(b"[null,null,true]").hexdigest()
    assert kept.owner_of(None, None, is_known=False) != kept.owner_of(None, None)


async def begin(who: TaskClient, **arguments: Any) -> str:
    made = await who.ask("tools/call", {"name": "a_echo", "arguments": arguments, "task": {"ttl": 100_000}})
    return made["task"]["taskId"]


async def status(who: TaskClient, task: str) -> str:
    return (await who.ask("tasks/get", {"taskId": task})).get("status", "unknown")


async def ended(who: TaskClient, task: str) -> str:
    """Its status once it has ended."""
    with anyio.fail_after(PATIENCE):
        while (found := await status(who, task)) == "working":
            await anyio.sleep(0.01)
    return found


def files(folder: Path) -> dict[str, Any]:
    """What the files say, by the ids of their tasks."""
    found = [json.loads(head_of(path)) for path in folder.glob("*/*.task")]
    return {each["id"]: each for each in found}


def head_of(path: Path) -> bytes:
    return path.read_bytes().partition(b"\n")[0]


def change(path: Path, **changes: Any) -> None:
    """Change what the file of a task says, and its time with it."""
    head, _, result = path.read_bytes().partition(b"\n")
    said = {**json.loads(head), **changes}
    path.write_bytes(json.dumps(said).encode() + b"\n" + result)
    with suppress(TypeError, OverflowError):
        os.utime(path, (said["until"], said["until"]))


@in_real_time
async def test_a_result_outlives_its_gateway_for_its_principal_and_for_its_time(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "tasks"
    async with keeping(folder) as gateway, gateway.person() as ann:
        task = await begin(ann, n=1)
        assert await ended(ann, task) == "completed"
        before = await ann.ask("tasks/get", {"taskId": task})
    (path,) = folder.glob("*/*.task")
    modes = [each.stat().st_mode & 0o777 for each in (folder, path.parent, path)]
    assert modes == [0o700, 0o700, 0o600]
    assert b"ann" not in path.read_bytes()
    async with keeping(folder) as gateway, gateway.person() as ann, gateway.person(subject="bob") as bob:
        after = await ann.ask("tasks/get", {"taskId": task})
        assert after == {**before, "lastUpdatedAt": after["lastUpdatedAt"]}
        assert text(await ann.ask("tasks/result", {"taskId": task})) == "done 1"
        of_ann = await bob.ask("tasks/get", {"taskId": task})
        assert of_ann == await bob.ask("tasks/get", {"taskId": "nobody's"})
        assert of_ann["code"] == UNKNOWN
    change(path, until=time.time() - 1)
    async with keeping(folder):
        with anyio.fail_after(PATIENCE):
            while path.parent.exists():
                await anyio.sleep(0.01)
    async with keeping(folder) as gateway, gateway.person() as ann:
        assert await status(ann, task) == "unknown"
        assert len(list(folder.glob("gateway-*"))) == 1, "what is empty goes"


EITHER = {"oneOf": [{"type": "object"}, {"type": "array"}, {"type": "null"}]}
NOT_OBJECTS: dict[str, Any] = {
    "an object that might be a list": ({"a": 1}, EITHER),
    "a list": ([1], {"type": "array"}),
    "null, which an SDK has left out": (None, EITHER),
}
OLDER = ("2024-11-05", "2025-06-18", "2025-11-25")
AUDIO = {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}


# To a client that speaks by handshake a server of both versions does, too, and leaves no null out.
@pytest.mark.parametrize(
    ("of", "modern"), [*((of, True) for of in NOT_OBJECTS), *((of, False) for of in list(NOT_OBJECTS)[:2])]
)
@in_real_time
async def test_whoever_began_a_task_its_result_is_told_in_the_version_of_who_fetches_it(
    of: str, modern: bool, tmp_path: Path
) -> None:
    value, schema = NOT_OBJECTS[of]
    has_begun = anyio.Event()

    async def work(_call: FakeCall) -> Any:
        await has_begun.wait()
        result = {"content": [AUDIO], "resultType": "complete"}
        return result if value is None else {**result, "structuredContent": value}

    tools = [{**tool("echo"), "outputSchema": schema}]
    server = FakeServer(tools, handler=work)
    found = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
    server.methods["server/discover"] = lambda _params: found
    async with keeping(tmp_path, server, taskAfterMs=1) as gateway, gateway.person(modern=modern) as ann:
        if modern:
            task = (await ann.ask("tools/call", {"name": "a_echo"}))["taskId"]
        else:
            task = await begin(ann)
        has_begun.set()
        assert await ended(ann, task) == "completed"
        await fetched(gateway, task, value)
    async with keeping(tmp_path, server) as gateway:
        await fetched(gateway, task, value)


async def fetched(gateway: Gateway, task: str, value: Any) -> None:
    """What clients of each version are told, is what such a client knows."""
    async with gateway.person(modern=True) as new:
        told = (await new.ask("tasks/get", {"taskId": task}))["result"]
        assert told["resultType"] == "complete"
        assert (told.get("structuredContent"), told["content"]) == (value, [AUDIO])
    for version in OLDER:
        async with gateway.person(version=version) as old:
            told = await old.ask("tasks/result", {"taskId": task})
            assert (told["structuredContent"], "resultType" in told) == ({"result": value}, False)
            is_new = version < "2025-03-26"
            assert told["content"][0]["type"] == ("text" if is_new else "audio")


@in_real_time
async def test_how_a_task_failed_or_was_cancelled_outlives_its_gateway_too(tmp_path: Path) -> None:
    server = FakeServer(handler=work)
    async with keeping(tmp_path / "t", server) as gateway, gateway.person() as ann:
        cancelled = await begin(ann)
        await ann.ask("tasks/cancel", {"taskId": cancelled})
        server.call_error = (-32_001, "no disk")
        failed = await begin(ann, n=2)
        assert await ended(ann, failed) == "failed"
    async with keeping(tmp_path / "t") as gateway, gateway.person() as ann:
        assert await status(ann, cancelled) == "cancelled"
        assert (await ann.ask("tasks/get", {"taskId": failed}))["statusMessage"] == "[a] no disk"
        assert (await ann.ask("tasks/result", {"taskId": failed}))["code"] == -32_001


@in_real_time
async def test_a_task_that_ran_when_the_gateway_was_killed_has_failed(tmp_path: Path) -> None:
    async with keeping(tmp_path / "t", taskAfterMs=500) as gateway, gateway.person(modern=True) as ann:
        task = (await ann.ask("tools/call", {"name": "a_echo"}))["taskId"]
        await gateway.clients.task_store.kept()
        shutil.copytree(tmp_path / "t", tmp_path / "killed")
        await ann.ask("tasks/cancel", {"taskId": task})
    (tmp_path / "killed").chmod(0o700)
    for _ in range(2):  # the second finds what the first has written
        async with keeping(tmp_path / "killed") as gateway, gateway.person(modern=True) as ann:
            found = await ann.ask("tasks/get", {"taskId": task})
            assert found["status"] == "failed"
            assert found["error"]["data"] == {"error": "call_failed", "reach": "sent"}
            assert "the call was sent and may have run" in found["error"]["message"]


@in_real_time
async def test_a_task_is_told_completed_when_its_result_is_in_the_folder(tmp_path: Path) -> None:
    on_disk = list[str]()
    async with keeping(tmp_path / "t") as gateway, gateway.person() as ann:
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
async def test_files_that_are_torn_or_of_others_are_passed_over_with_one_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with keeping(tmp_path / "t") as gateway, gateway.person() as ann:
        tasks = [await begin(ann, n=number) for number in range(7)]
        assert [await ended(ann, task) for task in tasks] == ["completed"] * 7
    (own,) = (tmp_path / "t").glob("gateway-*")
    paths = [next(own.glob(f"*-{task}.task")) for task in tasks]
    paths[0].write_bytes(paths[0].read_bytes()[:-20])
    paths[1].write_bytes(b"")
    paths[2].chmod(0o666)
    (tmp_path / "elsewhere").write_bytes(paths[3].read_bytes())
    paths[3].unlink()
    paths[3].symlink_to(tmp_path / "elsewhere")
    paths[4].unlink()
    os.mkfifo(paths[4])
    is_root = os.geteuid() == 0  # without root nobody else's files can be made
    os.chown(paths[6], 65534 if is_root else -1, -1)
    odd: list[dict[str, Any]] = [
        {"size": 7}, {"size": 10**30}, {"size": -1}, {"status": "failed"}, {"status": "odd"}, {"until": "x"},
        {"until": 1e300}, {"ttl": 10**30}, {"owner": "0" * 64}, {"error": 7, "status": "failed"},
        {"message": "x" * (1 << 20)},
    ]  # fmt: skip
    for number, changes in enumerate(odd):
        path = own / paths[5].name.replace(tasks[5], f"{number:032}")
        path.write_bytes(paths[5].read_bytes())
        change(path, **{"id": f"{number:032}", "until": time.time() + 60, **changes})
    other = own / paths[5].name.replace(tasks[5], "x" * 32)
    other.write_bytes(paths[5].read_bytes())
    half = own / f".{paths[5].name}.abc.tmp"
    half.write_bytes(b"{")
    for folder in ("t", own):
        (tmp_path / folder / "mine.txt").write_text("")
    linked = tmp_path / "t" / f"gateway-{'l' * 22}"
    linked.symlink_to(own)
    open_to_all = tmp_path / "t" / f"gateway-{'o' * 22}"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    (open_to_all / paths[0].name).write_bytes(
        paths[5].read_bytes().replace(tasks[5].encode(), tasks[0].encode())
    )
    async with keeping(tmp_path / "t") as gateway, gateway.person() as ann:
        assert [await status(ann, task) for task in tasks[:6]] == ["unknown"] * 5 + ["completed"]
        assert await status(ann, tasks[6]) == ("unknown" if is_root else "completed")
        names = ["x" * 32, "../" * 10, "", "\0" * 32, *(f"{number:032}" for number in range(len(odd)))]
        assert {await status(ann, name) for name in names} == {"unknown"}
        listed = await ann.ask("tasks/list")
        assert tasks[5] in [each["taskId"] for each in listed["tasks"]]
        assert not half.exists()
    assert capsys.readouterr().out.count("a task cannot be read, and is passed over") == 1
    assert (tmp_path / "t" / "mine.txt").exists()
    assert (own / "mine.txt").exists()


DAMAGES: dict[str, Callable[[bytes, bytes], bytes]] = {
    "two lines": lambda head, result: resized(head, result + b"\n" + result),
    "two objects": lambda head, result: resized(head, result + result),
    "a line break in it": lambda head, result: resized(head, result[:1] + b"\n" + result[1:]),
    "a carriage return in it": lambda head, result: resized(head, result[:1] + b"\r" + result[1:]),
    "more after it": lambda head, result: head + b"\n" + result + b"\n" + result,
    "two heads": lambda head, result: head + b"\n" + head + b"\n" + result,
    "no JSON": lambda head, result: resized(head, result[:-1] + b","),
    "half of it": lambda head, result: resized(head, result[: len(result) // 2]),
    "a list": lambda head, _: resized(head, b"[]"),
    "too deep": lambda head, _: resized(head, b'{"content":' + b"[" * 5_000 + b"]" * 5_000 + b"}"),
    "other bytes": lambda head, result: resized(head, result.replace(b"done", b"d\xffne")),
    "long and other bytes": lambda head, _: resized(head, b'{"content":"\xff' + b"x" * 2_000_000 + b'"}'),
    "too many values": lambda head, _: resized(head, b'{"content":[' + b"1," * 3_000_000 + b"1]}"),
    "a time that is none": lambda head, result: with_members(head, result, created="yesterday"),
    "a failure without its error": lambda head, result: with_members(head, result, status="failed"),
    "an error that is none": lambda head, result: with_members(
        head, result, status="failed", error={"code": "x"}
    ),
}


def resized(head: bytes, result: bytes) -> bytes:
    return with_members(head, result, size=len(result))


def with_members(head: bytes, result: bytes, **members: Any) -> bytes:
    return json.dumps({**json.loads(head), **members}).encode() + b"\n" + result


@pytest.mark.parametrize(("damage", "modern"), [(name, bool(n % 2)) for n, name in enumerate(DAMAGES)])
@in_real_time
async def test_a_damaged_file_is_told_and_left_aside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str, modern: bool
) -> None:
    async with keeping(tmp_path / "t") as gate, gate.person() as ann:
        task = await begin(ann, n=1)
        assert await ended(ann, task) == "completed"
    (path,) = (tmp_path / "t").glob("*/*.task")
    until = path.stat().st_mtime
    head, _, result = path.read_bytes().partition(b"\n")
    path.write_bytes(DAMAGES[damage](head, result))
    os.utime(path, (until, until))
    async with keeping(tmp_path / "t") as gate, gate.person(modern=modern) as ann:
        for method in ("tasks/get", "tasks/cancel", *(() if modern else ("tasks/result",))):
            assert (await ann.ask(method, {"taskId": task}))["code"] == UNKNOWN, method
        if not modern:
            assert "tasks" in await ann.ask("tasks/list")
    said = capsys.readouterr().out
    assert said.count("a task cannot be read, and is passed over") == 1
    assert str(path) in said
    assert "bug" not in said


@in_real_time
async def test_the_folder_is_bounded_in_number_and_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = FakeServer(handler=lambda call: "x" * call["size"])

    async def of(subject: str, gateway: Gateway, *sizes: int) -> list[str]:
        async with gateway.person(subject=subject) as who:
            tasks = list[str]()
            for size in sizes:
                tasks.append(await begin(who, size=size))
                assert await ended(who, tasks[-1]) == "completed"
            return tasks

    monkeypatch.setattr(kept, "TASKS_OF_ONE", 3)
    async with keeping(tmp_path / "t", server) as gateway:
        of_ann = await of("ann", gateway, 10, 10, 10, 10)
        await gateway.clients.task_store.kept()
        assert files(tmp_path / "t").keys() == set(of_ann[1:])
        of_bob = await of("bob", gateway, 2_000)
    monkeypatch.setattr(task_folder, "TASK_BYTES", 2_000)
    async with keeping(tmp_path / "t", server):
        assert files(tmp_path / "t").keys() == set(of_ann[1:])
    monkeypatch.setattr(task_folder, "TASKS_OF_ONE", 2)
    async with keeping(tmp_path / "t", server) as gateway:
        assert files(tmp_path / "t").keys() == set(of_ann[2:])
        late = await of("bob", gateway, 10)
        await gateway.clients.task_store.kept()
    monkeypatch.setattr(task_folder, "TASKS", 1)
    async with keeping(tmp_path / "t", server):
        assert files(tmp_path / "t").keys() == set(late), "the oldest goes first"
    assert of_bob


@in_real_time
async def test_what_a_server_says_at_length_of_a_task_is_kept_in_part_and_keeps_no_task_from_the_folder(
    tmp_path: Path,
) -> None:
    async def loud(call: FakeCall) -> str:
        call.progress(1, message="m" * 3_000_000)
        if call.get("n") is None:
            return "done"
        raise RpcRefusal(-32_001, "e" * call["n"], {"x": "d" * 3_000_000})

    async with keeping(tmp_path / "t", FakeServer(handler=loud)) as gateway, gateway.person() as ann:
        done, failed, worse = await begin(ann), await begin(ann, n=3), await begin(ann, n=3_000_000)
        assert [await ended(ann, each) for each in (done, failed, worse)] == ["completed", "failed", "failed"]
        before = [await ann.ask("tasks/get", {"taskId": each}) for each in (done, failed, worse)]
        assert all(len(json.dumps(each)) < 10_000 for each in before)
        error = await ann.ask("tasks/result", {"taskId": failed})
        assert (error["code"], error["message"]) == (-32_001, "[a] eee")
    async with keeping(tmp_path / "t") as gateway, gateway.person() as ann:
        assert [await status(ann, each) for each in (done, failed, worse)] == [
            "completed",
            "failed",
            "failed",
        ]
        assert (await ann.ask("tasks/result", {"taskId": worse}))["code"] == -32_001


@in_real_time
async def test_what_cannot_be_removed_keeps_none_of_the_others(tmp_path: Path) -> None:
    async with keeping(tmp_path / "t") as gateway, gateway.person() as ann:
        assert await ended(ann, await begin(ann, n=1)) == "completed"
    (path,) = (tmp_path / "t").glob("*/*.task")
    for name in (f"{'f' * 64}-{'x' * 32}.task", f".{path.name}.abc.tmp"):
        (path.parent / name).mkdir()
        os.utime(path.parent / name, (1, 1))
    change(path, until=time.time() - 1)
    os.utime(path, (0, 0))
    async with keeping(tmp_path / "t"):
        assert not path.exists()


@in_real_time
async def test_a_folder_that_cannot_be_used_is_told_and_tasks_end_with_the_gateway(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "t"
    folder.mkdir(mode=0o755)
    async with keeping(folder) as gateway, gateway.person() as ann:
        assert "it must be a directory of mode 0700" in capsys.readouterr().out
        assert await ended(ann, await begin(ann, n=1)) == "completed"


@in_real_time
async def test_several_gateways_keep_their_tasks_and_each_finds_those_of_all(tmp_path: Path) -> None:
    server, released = FakeServer(), anyio.Event()

    async def work(call: FakeCall) -> str:
        if call["n"] == 2:
            await released.wait()
        return f"done {call['n']}"

    server.handler = work
    async with keeping(tmp_path / "t", server) as first, keeping(tmp_path / "t") as second:
        async with first.person() as ann, second.person() as late, second.person(subject="bob") as bob:
            done, runs = await begin(ann, n=1), await begin(ann, n=2)
            assert await ended(ann, done) == "completed"
            assert await status(late, done) == "completed"
            assert text(await late.ask("tasks/result", {"taskId": done})) == "done 1"
            own = await begin(late, n=3)
            listed = [each["taskId"] for each in (await late.ask("tasks/list"))["tasks"]]
            assert listed == [done, runs, own]
            assert (await bob.ask("tasks/list")) == {"tasks": []}
            assert (await bob.ask("tasks/get", {"taskId": done}))["code"] == UNKNOWN
            assert await status(late, runs) == "working", "its gateway lives"
            elsewhere = await late.ask("tasks/cancel", {"taskId": runs})
            assert elsewhere["code"] == UNKNOWN
            assert "another gateway works on this task" in elsewhere["message"]
            awaited = late.begin("tasks/result", {"taskId": runs})
            await anyio.sleep(0.1)
            released.set()
            assert text(await late.answer(awaited)) == "done 2"
        async with second.person(modern=True) as modern:
            stream = modern.begin("subscriptions/listen", {"notifications": {"taskIds": [done, own]}})
            with anyio.fail_after(PATIENCE):
                while len(modern.said_on(stream)) < 3:
                    await anyio.sleep(0.01)
            assert [params.get("taskId") for _, params in modern.said_on(stream)] == [None, done, own]


@in_real_time
async def test_a_task_is_in_the_folder_before_its_client_knows_of_it(tmp_path: Path) -> None:
    on_disk = list[bool]()

    def hear(message: Any) -> None:
        said = message.get("result", {})
        if "task" in said or said.get("resultType") == "task":
            on_disk.append(said.get("task", said)["taskId"] in files(tmp_path / "t"))

    async with (
        keeping(tmp_path / "t", taskAfterMs=50) as gateway,
        gateway.person() as ann,
        gateway.person(modern=True) as new,
    ):
        ann.on_message = new.on_message = hear
        await ann.ask("tasks/cancel", {"taskId": await begin(ann)})
        made = await new.ask("tools/call", {"name": "a_echo"})
        await new.ask("tasks/cancel", {"taskId": made["taskId"]})
        assert on_disk == [True, True]


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


@pytest.mark.parametrize("keeps", [True, False])
def test_a_gateway_that_is_ended_answers_who_awaits_a_task(tmp_path: Path, keeps: bool) -> None:
    settings: dict[str, Any] = {"tasks": {"keep": str(tmp_path / "t")}} if keeps else {}
    with serve(tmp_path, {"a": faulty(tmp_path, "a")}, "--expose", "direct", **settings) as gateway:
        gateway.initialize()
        gateway.answer(gateway.send("tools/call", {"name": "a_echo", "arguments": {}}))  # its server runs
        params = {"name": "a_sleep", "arguments": {"seconds": 1}, "task": {}}
        task = gateway.answer(gateway.send("tools/call", params))["result"]["task"]["taskId"]
        awaited = gateway.send("tasks/result", {"taskId": task})
        gateway.answer(gateway.send("ping"))
        gateway.process.send_signal(signal.SIGTERM)
        result = gateway.answer(awaited)["result"]
        assert not result.get("isError"), result
        told = [each["params"] for each in gateway.told if each["method"] == "notifications/tasks/status"]
        assert any("The gateway ends in " in each.get("statusMessage", "") for each in told)
        assert any(each["pollInterval"] == (10_000 if keeps else 250) for each in told), told
        assert gateway.end() == 0
    kept_files = files(tmp_path / "t")
    assert [each["status"] for each in kept_files.values()] == (["completed"] if keeps else [])


def test_a_client_that_has_left_is_told_nothing_of_its_tasks(tmp_path: Path) -> None:
    with serve(tmp_path, {"a": faulty(tmp_path, "a")}) as gateway:
        gateway.initialize()
        gateway.mcp(tool="a_echo", args={"text": "hi"})  # its server runs
        assert not gateway.mcp(tool="a_sleep", args={"seconds": 100}, background=True).get("isError")
        assert gateway.end() == 0
        assert gateway.process.stdout is not None
        assert gateway.process.stdout.read() == b""
