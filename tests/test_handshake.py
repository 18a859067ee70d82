"""Both eras, hints that prove wrong, and lists that misbehave: against real servers."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.support import run
from tests.support.stdio import CLIENT, Stage, definition_of, on_stage

from greenroom.actors._connection import Hello, Listing
from greenroom.actors._handshake import RpcFailure, list_all, shake_hands
from greenroom.protocol.config import Settings

SETTINGS = Settings(probe_timeout=2.0, connect_timeout=5.0)


async def _greet(stage: Stage, hint: str | None = None, settings: Settings = SETTINGS) -> Hello:
    return await shake_hands(
        stage.peer, stage.rim, settings=settings, client_info=CLIENT, capabilities={}, era_hint=hint
    )


@pytest.mark.parametrize("hint", [None, "2025-06-18", "2026-07-28", "1999-01-01"])
def test_a_handshake_server_is_met_whatever_the_hint(backend: str, hint: str | None) -> None:
    async def body() -> None:
        async with on_stage(definition_of("faulty.py")) as stage:
            hello = await _greet(stage, hint)
            assert hello.protocol_version == stage.peer.protocol_version == "2025-11-25"
            assert hello.server_info == {"name": "faulty", "version": "1"}
            assert hello.instructions == "Ask for trouble."

    run(backend, body)


@pytest.mark.parametrize("hint", [None, "2025-06-18", "2026-07-28"])
def test_a_modern_server_is_met_whatever_the_hint(backend: str, hint: str | None, tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def body() -> None:
        async with on_stage(definition_of("faulty.py", "--discover", "--log", str(log))) as stage:
            hello = await _greet(stage, hint)
            assert hello.protocol_version == stage.peer.protocol_version == "2026-07-28"
            assert hello.server_info == {"name": "faulty", "version": "1"}
            assert ("got initialize" in log.read_text()) is (hint == "2025-06-18")

    run(backend, body)


def test_a_right_hint_saves_the_probe(backend: str, tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def body() -> None:
        async with on_stage(definition_of("faulty.py", "--log", str(log))) as stage:
            await _greet(stage, "2025-06-18")
            assert "server/discover" not in log.read_text()

    run(backend, body)


def test_a_server_silent_on_the_probe_costs_the_probe_only(backend: str, tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def body() -> None:
        faults = ("--hang-at", "server/discover", "--log", str(log))
        async with on_stage(definition_of("faulty.py", *faults)) as stage:
            start = time.perf_counter()
            hello = await _greet(stage, settings=Settings(probe_timeout=0.2))
            assert time.perf_counter() - start < 2.0
            assert hello.protocol_version == "2025-11-25"
            assert "cancelled" not in log.read_text()  # the negotiation may not be cancelled

    run(backend, body)


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18"])
def test_every_handshake_version_is_taken(backend: str, version: str) -> None:
    async def body() -> None:
        async with on_stage(definition_of("faulty.py", "--version", version)) as stage:
            assert (await _greet(stage)).protocol_version == version

    run(backend, body)


def test_an_unknown_version_is_a_clear_error(backend: str) -> None:
    async def body() -> None:
        async with on_stage(definition_of("faulty.py", "--version", "2099-01-01")) as stage:
            with pytest.raises(RpcFailure, match=r"'2099-01-01'; we know 2024-11-05, .*2026-07-28"):
                await _greet(stage)

    run(backend, body)


async def _list(stage: Stage, settings: Settings = SETTINGS) -> Listing:
    return await list_all(stage.peer, stage.rim, await _greet(stage, "2025-11-25"), settings)


def _names(listing: Listing) -> list[str]:
    assert listing.tools is not None
    return [tool["name"] for tool in listing.tools]


def test_lists_keep_every_field_and_only_declared_kinds_are_asked_for(backend: str, tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def body() -> None:
        async with on_stage(definition_of("faulty.py", "--log", str(log))) as stage:
            listing = await _list(stage)
            assert listing.tools is not None
            assert listing.tools[0]["x-vendor"] == {"kept": True}
            assert listing.resources is listing.templates is listing.prompts is None
            assert listing.problems == ()
            assert "resources/list" not in log.read_text()

    run(backend, body)


def test_all_four_lists(backend: str) -> None:
    async def body() -> None:
        async with on_stage(definition_of("faulty.py", "--kinds", "tools,resources,prompts")) as stage:
            listing = await _list(stage)
            assert listing.resources == ({"uri": "note://one", "name": "one"},)
            assert listing.templates == ({"uriTemplate": "note://{id}", "name": "note"},)
            assert listing.prompts == ({"name": "greet"},)

    run(backend, body)


def test_pages_are_followed_up_to_the_cap(backend: str) -> None:
    async def body() -> None:
        async with on_stage(definition_of("faulty.py", "--pages", "5")) as stage:
            assert _names(await _list(stage)) == [f"tool_{at}" for at in range(5)]
            cut = await list_all(stage.peer, stage.rim, await _greet(stage), Settings(max_pages=3))
            assert _names(cut) == ["tool_0", "tool_1", "tool_2"]
            assert cut.problems == ("tools/list: cut after 3 pages",)

    run(backend, body)


def test_a_repeated_cursor_ends_the_list(backend: str) -> None:
    async def body() -> None:
        async with on_stage(definition_of("faulty.py", "--loop")) as stage:
            listing = await _list(stage)
            assert len(_names(listing)) == 2
            assert "repeats its cursor 'again'" in listing.problems[0]

    run(backend, body)


def test_a_broken_tool_costs_only_itself(backend: str) -> None:
    async def body() -> None:
        async with on_stage(definition_of("faulty.py", "--bad-tools")) as stage:
            listing = await _list(stage)
            assert "echo" in _names(listing)
            assert listing.problems == ('tools/list: an item without a "name" was left out',) * 3

    run(backend, body)


def test_a_failed_tools_list_fails_and_another_one_is_unknown(backend: str) -> None:
    async def body() -> None:
        kinds = ("--kinds", "tools,resources,prompts")
        async with on_stage(definition_of("faulty.py", *kinds, "--fail-list", "prompts/list")) as stage:
            listing = await _list(stage)
            assert listing.prompts is None
            assert listing.resources is not None
            assert listing.problems == ("prompts/list: this list is out of order (-32603)",)
        async with on_stage(definition_of("faulty.py", *kinds, "--fail-list", "tools/list")) as stage:
            with pytest.raises(RpcFailure, match="tools/list: this list is out of order"):
                await _list(stage)

    run(backend, body)
