"""Tests over tapes, as somebody writes them: pytest with the plugin, real servers, and the files that stay.

Each run of pytest is in this process, but for the command that a message prints: to import pytest and us anew takes
longer than most of these runs.
"""

from __future__ import annotations

import json
import os
import shlex
import stat
import sys
from pathlib import Path

import pytest
from tests.support.gateway import FAULTY
from tests.support.patience import PATIENCE

pytest_plugins = ("pytester",)

SERVER = ["-S", os.fspath(FAULTY)]
# An agent that does not mind when a call fails: what it says is an argument of its own.
AGENT = """
    import asyncio, functools, os
    import anyio, pytest

    async def agent(room, **more):
        for number, text in enumerate(os.environ.get("SAYS", "milk bread").split()):
            try:
                await room.call("shop_echo", {"text": text, "number": number, **more})
            except Exception as error:
                print(error)
        return "done"
"""
EVERY_LOOP = """
    @pytest.mark.tape("sync.tape", config="mcp.json")
    def test_sync(room, tape):
        async def main():
            async with room() as opened:
                assert await agent(opened) == "done"
        anyio.run(main)
        assert [each["text"] for each in tape.calls("shop_echo")] == ["milk", "bread"]

    @pytest.mark.anyio
    @pytest.mark.tape("tapes/anyio.tape", config="mcp.json")
    async def test_anyio(tape, room):
        async with room() as opened:
            assert await agent(opened) == "done"
        tape.never_called("shop_crash")

    @pytest.mark.anyio
    @pytest.mark.tape("session.tape", config="mcp.json")
    async def test_agent_that_asks_what_there_is(room, tape):
        from greenroom.adapters.mcp_sdk import RoomSession

        async with room() as opened:
            session = RoomSession(opened)
            names = [each.name for each in (await session.list_tools()).tools]
            assert "shop_echo" in names
            await session.call_tool("shop_echo", {"text": "milk"})
        tape.called_once("shop_echo")
        with pytest.raises(AssertionError, match="There is no tool shop_eco"):
            tape.never_called("shop_eco")

    @pytest.mark.trio
    @pytest.mark.tape("tapes/trio.tape")
    async def test_trio(room):
        async with room({"mcpServers": {"shop": CLERK}}) as opened:
            assert await agent(opened) == "done"

    def as_asyncio(test):
        @functools.wraps(test)
        def body(**fixtures):
            asyncio.run(test(**fixtures))
        return body

    @pytest.mark.tape("asyncio.tape", config={"mcpServers": {"shop": CLERK}})
    @as_asyncio
    async def test_asyncio(room, tape):
        async with room() as opened:
            assert await agent(opened) == "done"
        assert tape.refused == tape.untaken == []
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """The folder of somebody who loads the plugin, and has a server."""
    monkeypatch.delenv("SAYS", raising=False)
    for each in (
        "CI",
        "BUILD_NUMBER",
    ):  # with them pytest prints each failure once more, whole, in its summary
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take half of the time
    pytester.makeconftest('pytest_plugins = ["greenroom.testing.pytest_plugin"]')
    (pytester.path / "mcp.json").write_text(
        json.dumps({"mcpServers": {"shop": {"command": sys.executable, "args": SERVER}}})
    )
    return pytester


def played(project: pytest.Pytester, *options: str) -> pytest.RunResult:
    return project.runpytest_inprocess("-q", "-p", "no:cacheprovider", *options)


def tapes(project: pytest.Pytester) -> dict[str, bytes]:
    """Those that were put in place, not those in pytest's temporary folder."""
    found = sorted(path.relative_to(project.path) for path in project.path.rglob("*.tape"))
    return {
        path.as_posix(): (project.path / path).read_bytes()
        for path in found
        if not path.parts[0].startswith("runpytest-")
    }


def test_a_tape_is_recorded_by_the_command_that_is_printed_and_replayed_without_anything(
    project: pytest.Pytester,
) -> None:
    loops = ("-p", "anyio", "-p", "trio")
    clerk = f"\n    CLERK = {{'command': {sys.executable!r}, 'args': {SERVER}}}\n"
    project.makepyfile(test_agent=AGENT + clerk + EVERY_LOOP)
    result = played(project, *loops)
    result.assert_outcomes(errors=7)
    [command] = [
        line.partition("record it: ")[2] for line in result.outlines if "test_asyncio --record" in line
    ]
    words = shlex.split(command)
    assert words[:3] == ["python", "-m", "pytest"]
    printed = project.run(sys.executable, *words[1:3], *loops, *words[3:], timeout=PATIENCE)
    printed.assert_outcomes(passed=1)
    assert list(tapes(project)) == ["asyncio.tape"]

    first = tapes(project)["asyncio.tape"]
    played(project, *loops, "--record-tapes=new").assert_outcomes(passed=7)
    recorded = tapes(project)
    assert sorted(recorded) == [
        "asyncio.tape",
        "session.tape",
        "sync.tape",
        "tapes/anyio.tape",
        "tapes/trio.tape",
    ]
    assert recorded["asyncio.tape"] == first
    assert stat.S_IMODE((project.path / "sync.tape").stat().st_mode) == 0o600

    (project.path / "mcp.json").unlink()
    played(project, *loops).assert_outcomes(passed=7)
    assert tapes(project) == recorded


def test_a_call_that_is_not_on_the_tape_fails_the_test_whatever_the_agent_makes_of_it(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.makepyfile(
        test_agent=AGENT
        + """
    @pytest.mark.tape("a.tape", config="mcp.json")
    def test_silent(room):
        async def main():
            async with room() as opened:
                assert await agent(opened) == "done"
        anyio.run(main)

    @pytest.mark.tape("b.tape", config="mcp.json")
    def test_loud(room, tape):
        async def main():
            async with room() as opened:
                await agent(opened)
        anyio.run(main)
        assert not [each for each in tape.calls("shop_echo") if each["text"] == "honey"]

    @pytest.fixture
    def late(room, request):
        opened = []
        yield opened.append
        async def main():
            async with opened[0] as entered:
                await agent(entered)
        anyio.run(main)

    @pytest.mark.tape("c.tape", config="mcp.json")
    def test_in_a_fixture(room, late):
        late(room())
    """
    )
    played(project, "--record-tapes").assert_outcomes(passed=3)
    before = tapes(project)
    monkeypatch.setenv("SAYS", "milk honey")
    result = played(project)
    result.assert_outcomes(passed=1, failed=2, errors=1)
    result.stdout.fnmatch_lines(
        [
            "1 call of this test is not on its tape, a.tape:",
            '*Not on the tape: shop_echo with {"number":1,"text":"honey"}. The nearest recorded call is #*: *"bread"*',
            "*record the tape anew: python -m pytest test_agent.py::test_silent --record-tapes=all",
        ]
    )
    told = result.stdout.str().count("is not on its tape, b.tape")
    assert told == 1, "an assertion that fails may do so for that"

    failed = played(project, "--record-tapes", "-k", "loud")
    failed.assert_outcomes(failed=1, deselected=2)
    [scratch] = [
        line.partition("greenroom tape ")[2] for line in failed.outlines if "was not written" in line
    ]
    assert "honey" in Path(scratch).read_text()
    assert tapes(project) == before, "a test that failed has replaced its tape"
    played(project, "--record-tapes", "-k", "silent").assert_outcomes(passed=1, deselected=2)
    assert b"honey" in tapes(project)["a.tape"]
    played(project, "-k", "silent").assert_outcomes(passed=1, deselected=2)


def test_a_new_tape_takes_the_place_of_the_old_one_with_all_that_is_beside_it(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.makepyfile(
        """
        import anyio, os, pytest

        @pytest.mark.tape("large.tape", config="mcp.json")
        def test_it(room):
            async def main():
                async with room() as opened:
                    for size in os.environ["SIZES"].split():
                        assert len((await opened.call("shop_echo", {"size": int(size)})).text) >= int(size)
            anyio.run(main)
        """
    )
    beside = project.path / "large.tape.d"
    names: list[set[str]] = []
    for sizes in ("200000 100000", "300000 200000", "10"):
        monkeypatch.setenv("SIZES", sizes)
        played(project, "--record-tapes").assert_outcomes(passed=1)
        names.append({file.name for file in beside.iterdir()} if beside.exists() else set())
        if len(names) == 2:
            played(project).assert_outcomes(passed=1)
    assert [len(each) for each in names] == [2, 2, 0]
    assert len(names[0] & names[1]) == 1
    assert sorted(path.name for path in project.path.iterdir() if "large" in path.name) == ["large.tape"]


def test_the_mark_says_what_may_differ(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    marks = {
        "ignore": 'ignore=["number", "text"]',
        "by_order": "by_order=True",
        "nearest": "nearest=0.5",
        "again": "strict=False",
        "redact": 'redact=["pin"]',
        "recorded": 'pace="recorded"',
    }
    tests = "".join(
        f"""
    @pytest.mark.tape("{name}.tape", config="mcp.json", {said})
    def test_{name}(room, tape):
        async def main():
            async with room() as opened:
                await agent(opened, pin="planted-pin")
                if {name!r} == "again" and os.environ.get("AGAIN"):
                    await agent(opened, pin="planted-pin")
        anyio.run(main)
        assert tape.untaken == []
    """
        for name, said in marks.items()
    )
    project.makepyfile(test_agent=AGENT + tests)
    played(project, "--record-tapes").assert_outcomes(passed=6)
    pinned = [name for name, data in tapes(project).items() if b"planted-pin" not in data]
    assert pinned == ["redact.tape"]
    monkeypatch.setenv("AGAIN", "1")
    played(project).assert_outcomes(passed=6)
    monkeypatch.setenv("SAYS", "silk bred")
    result = played(project)
    result.assert_outcomes(passed=3, failed=3)
    assert {line.split()[1].rpartition("_")[2] for line in result.outlines if line.startswith("FAILED ")} == {
        "again",
        "redact",
        "recorded",
    }


def test_what_is_not_on_the_tape_is_told_at_the_line_of_the_test(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of what is inside a room is about the test (issue 38, 5.7)."""
    project.makepyfile(
        """
        import anyio, os, pytest

        async def agent(room):
            await room.call("shop_echo", {"text": os.environ.get("SAYS", "milk")})

        async def beside(room):
            async with anyio.create_task_group() as group:
                group.start_soon(agent, room)

        @pytest.mark.parametrize("how", [agent, beside])
        @pytest.mark.tape("shop.tape", config="mcp.json", strict=False)
        def test_shop(how, room, tape):
            async def main():
                async with room() as opened:
                    await how(opened)
            anyio.run(main)
        """
    )
    played(project, "--record-tapes").assert_outcomes(passed=2)
    monkeypatch.setenv("SAYS", "silk")
    result = played(project)
    result.assert_outcomes(failed=2)
    said = result.stdout.str()
    assert said.count('await room.call("shop_echo"') >= 2
    assert "RemoteError: Not on the tape: shop_echo" in said
    for ours in ("room.py", "call.py", "port.py", "raise self.error", "replay_servers.py"):
        assert ours not in said, said
    assert "raise self.error" in played(project, "--full-trace").stdout.str()


def test_a_test_with_faults_only_replays_and_fails_if_they_do_not_happen(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import anyio, pytest
        from greenroom import CallError

        async def agent(room):
            try:
                await room.call("shop_echo", {"text": "milk"})
            except CallError as error:
                return error.reach.value
            return "done"

        @pytest.mark.tape("shop.tape", config="mcp.json", faults=["shop call 1: crash after sent"])
        def test_a_crash(room, tape):
            async def main():
                async with room() as opened:
                    assert await agent(opened) == "sent"
            anyio.run(main)
            tape.called_once("shop_echo")

        class TestAll:
            @pytest.mark.tape("shop.tape", config="mcp.json")
            def test_nothing(self, room):
                async def main():
                    async with room() as opened:
                        assert await agent(opened) == "done"
                anyio.run(main)

            @pytest.mark.tape("shop.tape", faults=["shop call nth=2: hang"])
            def test_a_fault_that_does_not_happen(self, room):
                self.test_nothing(room)
        """
    )
    first = played(project, "--record-tapes")
    first.assert_outcomes(passed=2, errors=2)
    assert (
        first.outlines.count(
            "There is no tape shop.tape. To record it: a test with this tape and without faults"
        )
        == 1
    )
    again = played(project, "--record-tapes")
    again.assert_outcomes(passed=3, errors=1)
    again.stdout.fnmatch_lines(["*Faults of this test that did not happen: shop call nth=2: hang*"])


def test_processes_that_run_at_once_record_a_tape_once(project: pytest.Pytester) -> None:
    """Each test gets results of other sizes: if two recorded the tape, one would remove what is beside the other's."""
    starts = project.path / "starts"
    command = f"echo >>{shlex.quote(str(starts))}; exec {shlex.join([sys.executable, *SERVER])}"
    shop = {"command": "sh", "args": ["-c", command]}
    (project.path / "mcp.json").write_text(json.dumps({"mcpServers": {"shop": shop}}))
    project.makepyfile(
        """
        import anyio, pytest

        @pytest.mark.parametrize("number", range(4))
        @pytest.mark.tape("one.tape", config="mcp.json", ignore=["size"])
        def test_it(room, tape, number):
            async def main():
                async with room() as opened:
                    for size in (90_000, 120_000):
                        await opened.call("shop_echo", {"size": size + number})
            anyio.run(main)
            assert tape.untaken == []
        """
    )
    played(project, "-p", "xdist", "-n2", "--record-tapes").assert_outcomes(passed=4)
    assert starts.read_text() == "\n"
    [tape] = tapes(project).values()
    named = {json.loads(line).get("large", {}).get("sha256") for line in tape.splitlines()} - {None}
    assert {path.name for path in (project.path / "one.tape.d").iterdir()} == named
    assert len(named) == 2
    assert sorted(path.name for path in project.path.iterdir() if "one" in path.name) == [
        "one.tape",
        "one.tape.d",
    ]


def test_a_module_says_what_its_tests_have_in_common(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.makepyfile(
        test_agent=AGENT
        + """
    pytestmark = pytest.mark.tape(config="mcp.json", ignore=["number", "text"])

    def run(room):
        async def main():
            async with room() as opened:
                await agent(opened)
        anyio.run(main)

    @pytest.mark.tape("usual.tape")
    def test_usual(room):
        run(room)

    @pytest.mark.tape("other.tape", ignore=[])
    def test_other(room):
        run(room)

    @pytest.mark.parametrize("size", [
        pytest.param(1, marks=pytest.mark.tape("small.tape")),
        pytest.param(9, marks=pytest.mark.tape("large.tape")),
    ])
    def test_each(room, size):
        async def main():
            async with room() as opened:
                await opened.call("shop_echo", {"size": size})
        anyio.run(main)

    def test_without(room, fake_server):
        fake_server("shop")
        run(room)
    """
    )
    played(project, "--record-tapes").assert_outcomes(passed=5)
    assert sorted(tapes(project)) == ["large.tape", "other.tape", "small.tape", "usual.tape"]
    monkeypatch.setenv("SAYS", "honey bread")
    result = played(project)
    result.assert_outcomes(passed=4, failed=1)
    result.stdout.fnmatch_lines(["FAILED test_agent.py::test_other*"])


def test_what_is_wrong_with_such_a_test_is_said(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import anyio, pytest
        from greenroom.testing import FakeServer

        @pytest.mark.tape("a.tape")
        def test_no_room():
            pass

        def test_no_mark(tape):
            pass

        @pytest.mark.tape("a.tape", confg="mcp.json")
        def test_misspelt(room):
            pass

        @pytest.mark.tape("a.tape", config="mcp.json", ignore="at")
        def test_letters(room):
            pass

        @pytest.mark.tape("a.tap", config="mcp.json")
        def test_suffix(room):
            pass

        @pytest.mark.tape("a.tape")
        def test_no_servers(room):
            room()

        @pytest.mark.tape("a.tape", config="mcp.json")
        def test_two_rooms(room):
            room()
            room()

        @pytest.mark.tape("a.tape", config="mcp.json")
        def test_never_opened(room):
            pass

        @pytest.mark.tape("fakes.tape")
        def test_fakes_are_recorded_too(room, fake_server, tape):
            fake_server("shop")
            async def main():
                async with room() as opened:
                    await opened.call("shop_echo", {})
            anyio.run(main)
            assert tape.made == [("shop_echo", {})]
        """
    )
    result = played(project, "--record-tapes")
    result.assert_outcomes(passed=2, failed=3, errors=5)
    said = [
        "marked with `tape` takes the fixture `room`",
        'Say which tape this is: @pytest.mark.tape("….tape")',
        "@pytest.mark.tape(…): got an unexpected keyword argument 'confg'",
        "ignore must be a list of strings: write ignore=['at'].",
        'The name of a tape ends with ".tape", and this does not: a.tap',
        "Which servers is this tape recorded with?",
        "A tape is of one room, and this test has opened one already.",
        "This test has a tape, and has entered no room",
    ]
    assert [words for words in said if words not in result.stdout.str()] == []
    assert list(tapes(project)) == ["fakes.tape"]
    played(project, "-k", "fakes").assert_outcomes(passed=1, deselected=8)
    for wrong in (["--record-tapes", "test_it.py"], ["--record-tapes=once"]):
        refused = played(project, *wrong)
        refused.stderr.fnmatch_lines(["*is none of none, new, all. Before a path write --record-tapes=all"])


def test_a_test_fails_that_does_not_do_what_is_on_its_tape(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.makepyfile(
        """
        import anyio, os, pytest
        from greenroom.testing import tool

        def buys(room, fake_server):
            fake_server("shop", tools=[tool("find", annotations={"readOnlyHint": True}), tool("add")])
            async def main():
                async with room() as opened:
                    for name in os.environ["CALLS"].split():
                        await opened.call(f"shop_{name}", {})
            anyio.run(main)

        @pytest.mark.tape("strict.tape")
        def test_strict(room, fake_server):
            buys(room, fake_server)

        @pytest.mark.tape("lenient.tape", strict=False)
        def test_lenient(room, fake_server, tape):
            buys(room, fake_server)
            assert len(tape.differences) == (os.environ["CALLS"] == "find find")
        """
    )
    monkeypatch.setenv("CALLS", "find add find")
    played(project, "--record-tapes").assert_outcomes(passed=2)
    played(project).assert_outcomes(passed=2)
    monkeypatch.setenv("CALLS", "find find")
    result = played(project)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "This test does not do what is on its tape, strict.tape:",
            "  Answered too early: shop_find with {}, with call #3. *#2, shop_add with {}, which has not been made.",
            "If this is what it should do, record the tape anew: *test_strict --record-tapes=all",
        ]
    )
