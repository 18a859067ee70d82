"""The plugin for pytest, in somebody else's pytest: a process of its own, with none of our configuration."""

from __future__ import annotations

import os
import sys
from importlib.metadata import entry_points

import pytest
from tests.support.gateway import gone_within
from tests.support.patience import PATIENCE

pytest_plugins = ("pytester",)


RUNNERS = """
    import asyncio, functools, trio
    import pytest
    from greenroom.testing import tool

    def as_trio(test):
        @functools.wraps(test)
        def body(**fixtures):
            trio.run(functools.partial(test, **fixtures))
        return body

    def as_asyncio(test):
        @functools.wraps(test)
        def body(**fixtures):
            asyncio.run(test(**fixtures))
        return body
"""
FAKES = """
    {decorator}
    async def test_servers_{name}(fake_server, room):
        shop = fake_server("shop", tools=[tool("order")], entry={{"approve": "all"}})
        async with room(settings={{"toolPrefix": "none"}}) as opened:
            assert opened.config.settings.tool_prefix.value == "none"
            assert opened.config.servers["shop"].approve is not None
        assert shop.starts == 0

    {decorator}
    async def test_one_server_{name}(room):
        async with room() as opened:
            assert (await opened.call("fake_echo", {{"text": "hi"}})).text
"""
DECORATORS = {"anyio": "@pytest.mark.anyio", "trio": "@as_trio", "asyncio": "@as_asyncio"}
REAL = """
    import sys, anyio, pytest
    from anyio.from_thread import start_blocking_portal
    from greenroom import Greenroom

    CLOCK = {"command": sys.executable, "args": ["-m", "greenroom.testing.servers.demo_clock"]}
    CONFIG = {"mcpServers": {"clock": CLOCK}}

    def test_a_room_that_is_closed(room):
        async def main():
            async with room(CONFIG) as opened:
                assert (await opened.call("clock_now")).text
        anyio.run(main)

    def test_a_room_that_is_never_entered(room):
        room()

    def test_a_config_has_its_own_settings(room):
        with pytest.raises(TypeError, match="write them into the config"):
            room(CONFIG, settings={})

    @pytest.fixture(scope="module")
    def shared():
        with start_blocking_portal() as portal:
            room = Greenroom.open(CONFIG, cache_path=":memory:", bootstrap=False)
            with portal.wrap_async_context_manager(room) as opened:
                yield lambda: portal.call(opened.call, "clock_now")

    def test_starts_no_server(shared):
        pass

    def test_starts_a_server_that_stays_because_its_room_is_open(shared):
        assert shared().text

    def test_uses_that(shared):
        assert shared().text
"""
# A process with the mark of a closed room stands for whatever escaped it.
LEAVES = """
    import subprocess, sys, anyio, pytest
    from pathlib import Path
    from anyio.from_thread import start_blocking_portal

    kept = []

    def test_leaves_a_process(room):
        async def main():
            async with room() as opened:
                await opened.call("fake_echo", {})
            env = {"GREENROOM_ROOM": opened.run_id}
            kept.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=env))
            with Path("pids").open("a") as file:
                print(kept[-1].pid, file=file)
        anyio.run(main)

    def test_next(room):
        pass

    def test_leaves_a_process_that_is_no_business_of_ours():
        kept.append(subprocess.Popen([sys.executable, "-c", ""]))

    @pytest.fixture(scope="module")
    def enter():
        with start_blocking_portal() as portal:
            entered = []
            def enter(room):
                entered.append(portal.wrap_async_context_manager(room))
                entered[-1].__enter__()
            yield enter
            for each in entered:
                each.__exit__(None, None, None)

    def test_leaves_a_room_open(room, enter):
        enter(room())
"""


def played(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    """Run pytest as its user does, who loads the plugin by a line in `conftest.py`."""
    pytester.makeconftest('pytest_plugins = ["greenroom.testing.pytest_plugin"]')
    return pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider", *options, timeout=PATIENCE)


def test_pytest_leaves_the_assertions_of_the_package_as_they_are() -> None:
    """It rewrites those of a whole distribution that has an entry point for it."""
    assert not [each for each in entry_points(group="pytest11") if each.value.startswith("greenroom")]


def test_a_test_that_wants_none_of_it_loads_none_of_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_it():
            heavy = {"anyio", "trio", "msgspec", "attrs", "greenroom.supervisor", "greenroom.actors"}
            assert "greenroom.testing.pytest_plugin" in sys.modules
            assert not heavy & set(sys.modules)
        """
    )
    others = ("anyio", "trio", "hypothesispytest")
    played(pytester, *(f"-pno:{name}" for name in others)).assert_outcomes(passed=1)


def test_rooms_work_whatever_runs_the_test_and_one_that_is_open_has_no_orphans(
    pytester: pytest.Pytester,
) -> None:
    fakes = "".join(FAKES.format(name=name, decorator=said) for name, said in DECORATORS.items())
    pytester.makepyfile(test_fakes=RUNNERS + fakes, test_real=REAL)
    played(pytester).assert_outcomes(passed=2 * (2 + 1 + 1) + 6)  # AnyIO's plugin runs each on both loops


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
def test_what_a_test_has_left_fails_that_test_and_no_other(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # other plugins take two thirds of the time
    pytester.makepyfile(LEAVES)
    try:
        result = played(pytester)
        result.assert_outcomes(passed=4, errors=2)
        result.stdout.fnmatch_lines(["*1 processes were left behind:*", "*time.sleep(600)*"])
        result.stdout.fnmatch_lines(["*This room has not closed yet*"])
        ends = [line.split()[1].rpartition("::")[2] for line in result.outlines if line.startswith("ERROR ")]
        assert ends == ["test_leaves_a_process", "test_leaves_a_room_open"]
        pytester.makeini("[pytest]\ngreenroom_orphans = false")
        played(pytester, "-k", "not room_open").assert_outcomes(passed=3, deselected=1)
    finally:
        pids = {int(pid) for pid in (pytester.path / "pids").read_text().split()}
        for pid in pids:
            os.kill(pid, 9)
        assert not gone_within(pids)
