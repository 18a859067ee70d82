"""`mcp_execute`: code of a model in a sandbox. The children are real, the servers that it calls are not."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from tests.gateway.test_conversations import asking_room, echo, talking
from tests.gateway.test_meta import ALLOWED, ERAS, META, SUM, details, text, use
from tests.support import in_real_time, in_virtual_time
from tests.support.asking import Asking, AskingServer
from tests.support.door_rooms import KnownRoom
from tests.support.gateway import children, gone_within, serve
from tests.support.loops import on_asyncio
from tests.support.memory_client import MemoryClient
from tests.support.patience import until
from tests.support.rooms import open_room, teach
from tests.support.whole import whole

from greenroom import Greenroom
from greenroom.gateway.exposures import _sandbox_program, code_execution
from greenroom.gateway.exposures import meta as _definitions
from greenroom.gateway.exposures.code_execution import Execution, Runs
from greenroom.protocol.bounds import EXECUTE_SECONDS
from greenroom.supervisor.room import port_of
from greenroom.testing.fake_servers import FakeServer, tool
from greenroom.testing.room_inside import RoomInside


def helpers(room: Greenroom) -> set[int]:
    """The guarded process groups. The servers are no processes here, so these are of sandboxes."""
    return set(RoomInside(room).machinery.guard._groups)  # pyright: ignore[reportPrivateUsage]


def group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


async def all_gone(room: Greenroom, *groups: int) -> None:
    """Wait until no sandbox is guarded any more and nothing is left of these."""
    while helpers(room) or any(map(group_lives, groups)):
        await anyio.sleep(0.001)


async def execute(person: MemoryClient, code: str, meta: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return await use(person, "mcp_execute", meta, code=code)


@ERAS
@in_real_time
async def test_code_calls_tools_and_the_model_sees_what_it_prints_and_returns(
    meta: Mapping[str, Any] | None,
) -> None:
    server = FakeServer([SUM])
    async with (
        open_room({"calc": server}) as room,
        talking(room, "meta") as talk,
        talk("ann") as ann,
    ):
        listed = await ann.ask("tools/list", {} if meta is None else {"_meta": meta})
        assert listed["result"]["tools"][-1]["name"] == "mcp_execute"
        code = (
            'one = await call("calc", "sum", {"first": 1})\n'
            'print(one["content"][0]["text"])\n'
            'two = await call(None, "calc_sum", {"first": "\\u00e9 \\ud800"})\n'
            '{"two": two["content"][0]["text"]}'
        )
        result = await execute(ann, code, meta)
        assert text(result).startswith('{"first": 1}\n{\n  "two": ')
        assert details(result) == {"mode": "execute"}
        assert text(await execute(ann, "None", meta)) == "(no output)"
        assert len(server.calls) == 2
        await all_gone(room)


@in_real_time
async def test_what_fails_is_told_and_can_be_caught() -> None:
    server = FakeServer([SUM])
    async with open_room({"calc": server}) as room, talking(room, "meta") as talk:
        await teach(room, "calc", [SUM])
        async with talk("ann") as ann:
            code = (
                "print('before')\n"
                "for name in ('calc_summ', 'sum', 'calc_sum'):\n"
                "    try:\n"
                "        await call(None, name, {'first': 1})\n"
                "    except RuntimeError as error:\n"
                "        print(error)\n"
                "try:\n"
                "    await call('calc', 'sum', {'first': {1, 2}})\n"
                "except TypeError as error:\n"
                "    print(error)\n"
                "1 / 0"
            )
            result = await execute(ann, code)
            said = text(result)
            assert result["isError"]
            assert details(result) == {"mode": "execute", "error": "execute_failed"}
            assert "before" in said
            assert "Did you mean: calc_sum" in said
            assert "set is not JSON" in said
            assert "mcp_execute error: Sandbox error: ZeroDivisionError" in said
            assert "line 11" in said, "a model is told where"
            assert len(server.calls) == 1
            for code, why in (("", "Missing required parameter: code"), ("#" * 51_201, "at most 51,200")):
                assert why in text(await execute(ann, code))


@in_real_time
async def test_two_hundred_calls_at_once_are_made_a_few_at_a_time() -> None:
    in_flight: list[int] = [0]
    most = 0

    async def slow(_asking: Asking, arguments: Mapping[str, Any]) -> Any:
        nonlocal most
        in_flight[0] += 1
        most = max(most, in_flight[0])
        await anyio.sleep(0.001)
        in_flight[0] -= 1
        return arguments["n"]

    async with (
        asking_room({"calc": AskingServer({"slow": slow})}) as room,
        talking(room, "meta") as talk,
        talk("ann") as ann,
    ):
        code = (
            "import asyncio\n"
            "async def one(n):\n"
            "    return int((await call('calc', 'slow', {'n': n}))['content'][0]['text'])\n"
            "said = await asyncio.gather(*[one(n) for n in range(200)])\n"
            "said == list(range(200))"
        )
        assert text(await execute(ann, code)) == "true"
    assert 1 < most <= 8


WRITTEN = os.path.join(tempfile.gettempdir(), f"greenroom-escape-{os.getpid()}")
ESCAPES = (
    "open('/etc/passwd').read()",
    f"open({WRITTEN!r}, 'w').write('x')",
    "__import__('os').system('id')",
    "import os\nos.listdir('/')",
    "import os\nos.environ['HOME']",
    "import os\nos.system('id')",
    "import subprocess",
    "import socket",
    "import ctypes",
    "import sys\nsys.modules",
    "from pathlib import Path\nPath('/etc/passwd').read_text()",
    "().__class__.__bases__[0].__subclasses__()",
    "(lambda: 0).__globals__",
    "call.__globals__",
    "call.__class__",
    "getattr(call, '__self__')",
    "eval('__import__(\"os\")')",
    "exec('import subprocess')",
    "globals()['__builtins__']['__import__']('os')",
    "import asyncio\nasyncio.create_subprocess_shell",
    "breakpoint()",
)


@in_real_time
async def test_code_does_not_get_out_of_its_sandbox() -> None:
    """Every way out is tried in one run. One that does not raise would say so, as the last one does."""
    async with (
        open_room({"calc": FakeServer([SUM])}) as room,
        talking(room, "meta") as talk,
        talk("ann") as ann,
    ):
        tries = "".join(
            f"try:\n    exec({way!r})\n    print('out by', {way!r})\nexcept Exception: pass\n"
            for way in (*ESCAPES, "harmless = 1")
        )
        assert text(await execute(ann, tries)) == "out by harmless = 1"
    assert not os.path.exists(WRITTEN)  # noqa: ASYNC240


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("x = []\nwhile True: x.append('a' * 1_000_000)", "MemoryError"),
        ("x = 'a' * 10 ** 11", "MemoryError"),
        ("while True: pass", "TimeoutError"),
        ("x = []\nfor _ in range(200_000): x = [x]\nx", "RecursionError"),
    ],
)
@in_real_time
async def test_a_bomb_is_refused_and_the_room_serves_on(
    code: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why == "TimeoutError":
        monkeypatch.setattr(code_execution, "COMPUTING", 0.001)
    server = FakeServer([SUM])
    async with (
        open_room({"calc": server}) as room,
        talking(room, "meta") as talk,
        talk("ann") as ann,
    ):
        result = await execute(ann, code)
        assert result["isError"]
        assert why in text(result)
        assert text(await use(ann, "mcp_call", tool="sum", server="calc", args={"x": 1})) == '{"x": 1}'
        await all_gone(room)


@in_real_time
async def test_what_code_returns_has_a_hundred_levels_at_most() -> None:
    """Of a value that is deeper than a thousand, Monty gives only the upper ones."""
    async with open_room({}) as room, talking(room, "meta") as talk, talk("ann") as ann:
        nest = "x = []\nfor _ in range(%d): x = {'a': [x]}\nx"
        assert text(await execute(ann, nest % 49 + "['a']")).count("[") == 50
        assert "nested too deeply" in text(await execute(ann, nest % 50))


LOOPS = {
    "loop": "while True: pass",
    "caught": "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
    "asleep": "import time\nwhile True: time.sleep(30)",
    "waiting": "await call('calc', 'never')",
}


@in_real_time
async def test_what_does_not_end_is_killed_at_its_deadline_while_others_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(code_execution, "COMPUTING", 1_000)  # the sandbox itself would let them go on
    runs: list[Execution] = []
    begin_run = Execution.begin
    monkeypatch.setattr(Execution, "begin", lambda run, *by: (runs.append(run), begin_run(run, *by)))
    begun: set[str] = set()
    all_begun, held, let_go = anyio.Event(), anyio.Event(), anyio.Event()

    async def never(_asking: Asking, _arguments: Mapping[str, Any]) -> Any:
        held.set()
        try:
            await anyio.sleep_forever()
        finally:
            let_go.set()

    async def begin(_asking: Asking, arguments: Mapping[str, Any]) -> Any:
        begun.add(arguments["how"])
        if len(begun) == len(LOOPS):
            all_begun.set()
        await all_begun.wait()

    server = AskingServer({"begin": begin, "never": never, "echo": echo})
    async with (
        asking_room({"calc": server}) as room,
        talking(room, "meta") as talk,
        talk("ann") as ann,
        talk("ben") as ben,
    ):
        await teach(room, "calc", [tool(name) for name in server.acts])
        numbers: list[int] = []
        for how, loop in LOOPS.items():
            code = f"await call('calc', 'begin', {{'how': {how!r}}})\n{loop}"
            numbers.append(ann.begin("tools/call", {"name": "mcp_execute", "arguments": {"code": code}}))
        await held.wait()
        groups = helpers(room)
        assert len(groups) == len(LOOPS)
        for number in range(20):
            said = await use(ben, "mcp_call", tool="calc_echo", args={"n": number})
            assert text(said) == f'{{"n": {number}}}'
        assert not any(said.get("id") in numbers for said in ann.said), "they run, and others are served"
        for execution in runs:
            execution.patience.cancel()  # what its deadline does
        for number in numbers:
            result = (await ann.answer(number))["result"]
            assert result["isError"]
            assert "it was ended after 120 s" in text(result)
        await all_gone(room, *groups)
        await let_go.wait()  # calls of the code are cancelled
        assert text(await execute(ann, "1 + 1")) == "2"


@pytest.mark.parametrize("how", ["cancels", "leaves"])
@in_real_time
async def test_the_run_ends_with_its_client(how: str) -> None:
    held, let_go = anyio.Event(), anyio.Event()

    async def never(_asking: Asking, _arguments: Mapping[str, Any]) -> Any:
        held.set()
        try:
            await anyio.sleep_forever()
        finally:
            let_go.set()

    async with (
        asking_room({"calc": AskingServer({"never": never})}) as room,
        talking(room, "meta") as talk,
    ):
        async with talk("ann") as ann:
            code = "await call('calc', 'never')"
            number = ann.begin("tools/call", {"name": "mcp_execute", "arguments": {"code": code}})
            await held.wait()
            (group,) = helpers(room)
            if how == "cancels":
                ann.say({"method": "notifications/cancelled", "params": {"requestId": number}})
                await let_go.wait()
        await let_go.wait()
        await all_gone(room, group)


@in_real_time
async def test_a_bound_for_the_lines_of_servers_is_none_for_what_code_prints() -> None:
    async with (
        asking_room({"calc": AskingServer({"echo": echo})}, maxLineBytes=1024) as room,
        talking(room, "meta") as talk,
        talk("ann") as ann,
    ):
        assert text(await execute(ann, "'x' * 3000")) == "x" * 3000


@in_real_time
async def test_a_run_that_ends_takes_no_other_with_it() -> None:
    held, go = anyio.Event(), anyio.Event()

    async def wait(_asking: Asking, _arguments: Mapping[str, Any]) -> Any:
        held.set()
        await go.wait()
        return "done"

    async with (
        asking_room({"calc": AskingServer({"wait": wait})}) as room,
        talking(room, "meta") as talk,
        talk("ann") as ann,
    ):
        code = "await call('calc', 'wait')\n'still here'"
        number = ann.begin("tools/call", {"name": "mcp_execute", "arguments": {"code": code}})
        await held.wait()
        first = helpers(room)
        assert text(await execute(ann, "1 + 1")) == "2"
        while helpers(room) != first:
            await anyio.sleep(0.001)
        go.set()
        assert text((await ann.answer(number))["result"]) == "still here"


@in_real_time
async def test_a_sandbox_that_is_killed_is_told_and_the_next_run_has_another() -> None:
    async def kill(_asking: Asking, _arguments: Mapping[str, Any]) -> Any:
        (group,) = helpers(room)
        os.killpg(group, signal.SIGKILL)
        await anyio.sleep_forever()

    async with (
        asking_room({"calc": AskingServer({"kill": kill})}) as room,
        talking(room, "meta") as talk,
        talk("ann") as ann,
    ):
        result = await execute(ann, "await call('calc', 'kill')")
        assert result["isError"]
        assert "killed by SIGKILL" in text(result)
        assert "may have run" in text(result)
        assert text(await execute(ann, "1 + 1")) == "2"


@in_real_time
async def test_its_calls_are_asked_about_before_they_are_sent() -> None:
    server = FakeServer([SUM])
    async with open_room({"calc": server}, approve=True) as room, talking(room, "meta") as talk:
        code = "r = await call('calc', 'sum', {'first': 1})\nr['content'][0]['text']"
        async with talk("mute") as mute:
            assert "approve" in text(await execute(mute, code))
            assert not server.calls
        async with talk("ann", elicitation={}) as ann:
            ann.answers["elicitation/create"] = ALLOWED
            assert text(await execute(ann, code)) == '{"first": 1}'
        assert len(server.calls) == 1


@in_real_time
async def test_a_newer_client_is_asked_about_each_of_several_calls() -> None:
    server = FakeServer([SUM])
    able = {**META, "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}
    code = (
        "import asyncio\n"
        "said = await asyncio.gather(*[call('calc', 'sum', {'first': n}) for n in range(3)])\n"
        "[r['content'][0]['text'] for r in said]"
    )
    async with (
        open_room({"calc": server}, approve=True) as room,
        talking(room, "meta") as talk,
        talk("ann") as ann,
    ):
        request: dict[str, Any] = {"name": "mcp_execute", "arguments": {"code": code}, "_meta": able}
        result = (await ann.ask("tools/call", request))["result"]
        for answered in range(3):
            assert len(server.calls) <= answered
            (key,) = result["inputRequests"]
            again = {"requestState": result["requestState"], "inputResponses": {key: ALLOWED}}
            result = (await ann.ask("tools/call", request | again))["result"]
        assert [f'{{\\"first\\": {n}}}' in text(result) for n in range(3)] == [True] * 3
        assert len(server.calls) == 3
        async with talk("ben") as ben:
            assert "requestState" in (await ben.ask("tools/call", request))["result"]
            assert helpers(room), "the run waits for the answer"
        await all_gone(room)  # with its client
        assert len(server.calls) == 3


@in_real_time
async def test_a_request_that_comes_back_is_asked_about_the_next_call_only_what_it_declares() -> None:
    """All three calls ask at once. When the second asked, the request that was open could be asked."""
    begun, answers = list[Any](), list[Any]()

    async def ask(asking: Asking, arguments: Mapping[str, Any]) -> Any:
        begun.append(arguments)
        answers.append(await asking.ask("elicitation/create", {"message": "Who?", "requestedSchema": {}}))
        return "done"

    capabilities = "io.modelcontextprotocol/clientCapabilities"
    able, unable = ({**META, capabilities: said} for said in ({"elicitation": {}}, {"sampling": {}}))
    code = (
        "import asyncio\n"
        "async def one(n):\n"
        "    try:\n"
        "        return await call('calc', 'ask', {'first': n})\n"
        "    except Exception as error:\n"
        "        return str(error)\n"
        "said = await asyncio.gather(*[one(n) for n in range(3)])\n"
        "str(said)"
    )
    async with (
        asking_room({"calc": AskingServer({"ask": ask})}, {"calc": {"isolation": "per_call"}}) as room,
        talking(room, "meta") as talk,
        talk("ann") as ann,
    ):
        request: dict[str, Any] = {"name": "mcp_execute", "arguments": {"code": code}, "_meta": able}
        first = (await ann.ask("tools/call", request))["result"]
        assert "inputRequests" in first, first
        (key,) = first["inputRequests"]
        again = {"requestState": first["requestState"], "inputResponses": {key: ALLOWED}, "_meta": unable}
        back = (await ann.ask("tools/call", request | again))["result"]
        assert back["resultType"] == "complete", back
        assert (len(begun), len(answers)) == (3, 1)


@in_real_time
async def test_the_same_code_again_gets_the_questions_of_its_suspended_run_and_makes_each_call_once() -> None:
    server = FakeServer([SUM])
    able = {**META, "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}
    code = "a = await call('calc', 'sum', {'first': 1})\nb = await call('calc', 'sum', {'first': 2})\n2"
    async with (
        open_room({"calc": server}, approve=True) as room,
        talking(room, "meta") as talk,
        talk("ann") as ann,
    ):
        request: dict[str, Any] = {"name": "mcp_execute", "arguments": {"code": code}, "_meta": able}
        result: dict[str, Any] = {}
        for answered in range(1, 3):  # begun anew each time, as LangGraph does it
            result = (await ann.ask("tools/call", request))["result"]
            for _ in range(answered):
                (key,) = result["inputRequests"]
                again = {"requestState": result["requestState"], "inputResponses": {key: ALLOWED}}
                result = (await ann.ask("tools/call", request | again))["result"]
        assert text(result) == "2"
        assert [call["arguments"]["first"] for call in server.calls] == [1, 2]
        assert ann.session.in_flight == 0


@in_real_time
async def test_a_result_that_is_too_large_is_an_error_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    async def large(_asking: Asking, arguments: Mapping[str, Any]) -> Any:
        return "x" * arguments["size"]

    async with (
        asking_room({"calc": AskingServer({"large": large})}) as room,
        talking(room, "meta") as talk,
        talk("ann") as ann,
    ):
        code = "len((await call('calc', 'large', {'size': %d}))['content'][0]['text'])"
        empty = len(json.dumps({"content": [{"type": "text", "text": '""'}]}))
        monkeypatch.setattr(code_execution, "EXECUTE_RESULT_BYTES", empty + 100)
        assert text(await execute(ann, code % 100)) == "102"
        assert f"bytes, at most {empty + 100} fit" in text(await execute(ann, code % 101))


@in_real_time
async def test_a_call_that_cannot_be_passed_on_raises_in_the_code_and_ends_nothing() -> None:
    wrong = {
        "'calc', 'sum', {'x': float('nan')}": "ValueError: call(): Out of range float values",
        "'calc', 'sum', {'x': -float('inf')}": "ValueError: call(): Out of range float values",
        "'calc', 'sum', {'x': 'y' * (1 << 20)}": "ValueError: call(): the arguments have 1,0",
        "'calc', 'sum', {'x': deep}": "ValueError: call(): the arguments are nested too deeply",
        "'calc', 5": "TypeError: call(): server and tool are texts",
        "'calc'": "TypeError: call(): call() missing 1 required positional argument",
        "None, 'calc_sum', [1]": "TypeError: call(): args is a dict",
    }
    server = FakeServer([SUM])
    async with open_room({"calc": server}) as room, talking(room, "meta") as talk:
        await teach(room, "calc", [SUM])
        async with talk("ann") as ann:
            tries = "deep = []\nfor _ in range(99): deep = [deep]\n" + "".join(
                f"try:\n    await call({given})\nexcept (ValueError, TypeError) as error:\n"
                "    print(type(error).__name__ + ': ' + str(error)[:100])\n"
                for given in wrong
            )
            said = text(
                await execute(ann, f"{tries}\nprint((await call(None, 'calc_sum', None))['content'])")
            )
            for line, begin in zip(said.splitlines(), (*wrong.values(), "[{"), strict=True):
                assert line.startswith(begin), line
    assert len(server.calls) == 1


@in_real_time
async def test_what_it_prints_and_returns_is_bounded_and_kept() -> None:
    async with (
        open_room({"calc": FakeServer([SUM])}) as room,
        talking(room, "meta") as talk,
        talk("ann") as ann,
    ):
        result = await execute(ann, "print('p' * 100_000)\n'r' * 11_000_000")
        kept = result["_meta"]["greenroom/details"]["outputGuard"]
        assert kept["originalBytes"] == 100_000 + 1 + (10 << 20) + len("... [result truncated]")
        assert "mcp_discover({ output:" in text(result)
        flood = await execute(ann, "for _ in range(12): print('p' * 1_000_000)")
        assert details(flood)["outputGuard"]["originalBytes"] <= (10 << 20) + 30


@in_virtual_time
async def test_few_run_at_once_and_the_others_wait_or_are_refused() -> None:
    runs = Runs()
    began = anyio.current_time()
    assert [await runs.take() for _ in range(4)] == [True] * 4
    assert not await runs.take()
    assert anyio.current_time() - began == pytest.approx(30.0)
    taken: list[bool] = []

    async def take() -> None:
        taken.append(await runs.take())

    async with anyio.create_task_group() as tasks:
        for _ in range(64):
            tasks.start_soon(take)
        await anyio.sleep(1)
        began = anyio.current_time()
        assert not await runs.take(), "too many wait"
        assert anyio.current_time() == began
        for _ in range(64):
            runs.give_back()
    assert taken == [True] * 64


@in_virtual_time
async def test_without_the_sandbox_it_is_not_listed_and_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_definitions, "can_execute", lambda: False)
    async with (
        open_room({"calc": FakeServer([SUM])}) as room,
        talking(room, "meta") as talk,
        talk("ann") as ann,
    ):
        listed = (await ann.ask("tools/list"))["result"]["tools"]
        assert [each["name"] for each in listed] == ["mcp_discover", "mcp_provision", "mcp_call"]
        result = await execute(ann, "1 + 1")
        assert result["isError"]
        assert 'pip install "greenroom[execute]"' in text(result)


def sandbox_of(gateway: int) -> set[int]:
    """The processes of the one run of code that this gateway has started."""
    mark, found = f"GREENROOM_ROOM={gateway}-".encode(), set[int]()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (
                b"_sandbox_program" in (entry / "cmdline").read_bytes()
                and mark in (entry / "environ").read_bytes()
            ):
                found |= {int(entry.name), *children(int(entry.name))}
    return found


@pytest.mark.parametrize("how", [None, signal.SIGKILL], ids=["left", "killed"])
def test_a_gateway_that_ends_leaves_no_sandbox(tmp_path: Path, how: int | None) -> None:
    with serve(tmp_path, {"own": whole("own")}, "--expose", "meta", drainTimeoutMs=100) as gateway:
        gateway.initialize()
        gateway.send("tools/call", {"name": "mcp_execute", "arguments": {"code": "while True: pass"}})
        until(lambda: len(sandbox_of(gateway.process.pid)) >= 2, "the interpreter to run")
        asked = {"name": "mcp_call", "arguments": {"server": "own", "tool": "echo"}}
        said = gateway.answer(gateway.send("tools/call", asked))["result"]
        assert "isError" not in said, "others are served"
        sandbox = sandbox_of(gateway.process.pid)
        assert gateway.end(how) == (0 if how is None else -how)
        assert not gone_within(sandbox)


@pytest.mark.parametrize(("of_call", "seconds"), [(5.0, 5.0), (1e6, float(EXECUTE_SECONDS))])
@on_asyncio
@in_real_time
async def test_a_run_takes_no_longer_than_a_call_may(of_call: float, seconds: float) -> None:
    async with KnownRoom(call_total_timeout=of_call).open() as room:
        execution = Execution(port_of(room), cast("Any", None), cast("Any", None), "1")
        assert execution._seconds == seconds
        assert execution._told()["seconds"] < seconds


@pytest.mark.parametrize(
    ("seconds", "slept"), [(-1.0, 0.0), (0.0, 0.0), (2.0, 2.0), (5.0, 5.0), (100.0, 5.0)]
)
def test_code_sleeps_as_long_as_it_says_and_no_longer_than_it_may(
    seconds: float, slept: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    naps: list[float] = []
    clock = SimpleNamespace(sleep=naps.append, monotonic=lambda: 1_000.0)
    monkeypatch.setattr(_sandbox_program, "time", clock)
    nobody: Any = None
    code: Any = _sandbox_program._CodeRun({"printed": 10, "nap": 5.0, "returned": 10}, nobody)

    def step(name: str) -> Any:
        return SimpleNamespace(args=(seconds,), call_id=7, function_name=name, resume=lambda said: said)

    assert code._begin_nap(step("system.sleep")) == {"return_value": None}
    assert (naps, code._naps) == ([slept], {})
    assert code._begin_nap(step("system.async_sleep")) == {"future": ...}
    assert (naps, code._naps) == ([slept], {7: 1_000.0 + slept})


def test_what_code_prints_is_kept_up_to_its_bound() -> None:
    nobody: Any = None
    for said, kept in (("x" * 10, "x" * 10), ("x" * 11, "x" * 10 + "\n[output truncated]")):
        code: Any = _sandbox_program._CodeRun({"printed": 10, "nap": 5.0, "returned": 10}, nobody)
        for each in (said, "more") if len(said) > 10 else (said,):
            code._print("stdout", each)
        assert code._said("")["content"][0]["text"] == kept
