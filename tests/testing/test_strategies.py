"""The public strategies draw only what is valid, reach what is interesting, and shrink to something short."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import pairwise
from typing import Any, TypeVar

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample
from mcp_types import CallToolResult

from greenroom import Greenroom
from greenroom.catalogue.entries import ServerEntry
from greenroom.catalogue.index import Index
from greenroom.config.model import SERVER_KEYS, SETTING_KEYS, Config
from greenroom.config.parse import parse_config
from greenroom.protocol.fault_plan import DEEDS, FIELDS, problem_with
from greenroom.protocol.lifecycle import TABLE, Effect, Life, State, Trigger
from greenroom.protocol.result import ToolResult
from greenroom.testing import Fault, FaultScript, tool
from greenroom.testing.strategies import (
    Occurrence,
    _fitted,
    configs,
    fault_scripts,
    lifecycle_events,
    server_entries,
    server_names,
    tool_names,
    tool_results,
)

T = TypeVar("T")
F = TypeVar("F")
unhurried = settings(deadline=None)


def shortest(strategy: st.SearchStrategy[T], wanted: Callable[[T], bool] = lambda _: True) -> T:
    """The smallest one that is wanted. Raises when none is found."""
    phases = (
        Phase.generate,
        Phase.shrink,
    )  # to explain it takes as many examples again, and is heard by nobody
    how = settings(database=None, max_examples=1_000, deadline=None, phases=phases)
    return find(strategy, wanted, settings=how)


def seen(
    strategy: st.SearchStrategy[T],
    features: Callable[[T], Iterable[F]],
    all_of: Iterable[F],
    most: int = 4_000,
) -> set[F]:
    """The features of what is drawn, until each of `all_of` was among them, or `most` were drawn.

    Hypothesis draws constants of the modules that are loaded, so what comes first depends on them, and on their texts.
    `most` is far more than is ever needed.
    """
    found, wanted = set[F](), set(all_of)

    def is_enough(value: T) -> bool:
        found.update(features(value))
        return wanted <= found

    how = settings(
        database=None, derandomize=True, max_examples=most, deadline=None, phases=(Phase.generate,)
    )
    with suppress(NoSuchExample):
        find(strategy, is_enough, settings=how)
    return found


def read(config: dict[str, Any]) -> Config:
    return parse_config(config, environ={})


# ---- configurations ------------------------------------------------------------------------------------------------


@unhurried
@given(configs())
def test_a_config_is_read_without_a_word(config: dict[str, Any]) -> None:
    loaded = read(config)

    assert loaded.problems == ()
    assert loaded.broken == {}
    assert set(loaded.servers) == set(config["mcpServers"])
    assert Greenroom.open(config, cache_path=":memory:").drain_report is None
    json.dumps(config)


@unhurried
@given(server_names(), server_entries())
def test_an_entry_is_read_without_a_word(name: str, entry: dict[str, Any]) -> None:
    loaded = read({"mcpServers": {name: entry}})

    assert loaded.problems == ()
    assert list(loaded.servers) == [name]


INTERESTING: dict[str, Callable[[dict[str, Any]], bool]] = {
    "to be kept alive": lambda entry: entry.get("lifecycle") == "keep-alive",
    "one for each call": lambda entry: entry.get("isolation") == "per_call",
    "never idles": lambda entry: entry.get("idleTimeout") == 0,
    "an HTTP API of a document": lambda entry: "openapi" in entry,
    "an HTTP API by hand": lambda entry: "openapi" not in entry and bool(entry.get("http")),
}


def test_every_key_of_a_server_is_drawn_and_every_interesting_entry() -> None:
    wanted = {key.name for key in SERVER_KEYS} | set(INTERESTING)

    def features(entry: dict[str, Any]) -> Iterable[str]:
        return {*entry, *(what for what, holds in INTERESTING.items() if holds(entry))}

    assert seen(server_entries(), features, wanted) == wanted


def test_every_setting_is_drawn() -> None:
    keys = {key.name.partition(".")[0] for key in SETTING_KEYS}

    assert seen(configs(servers=0), lambda config: config.get("settings", {}), keys) == keys


def test_interesting_configs_are_drawn() -> None:
    def features(servers: dict[str, Any]) -> Iterable[str]:
        if len({name.replace("-", "_") for name in servers}) < len(servers):
            yield "two names that are one"
        if {"url", "command"} <= {key for entry in servers.values() for key in entry}:
            yield "both transports"

    names = st.dictionaries(server_names(), st.fixed_dictionaries({}), min_size=8, max_size=8)
    assert seen(names, features, {"two names that are one"}) == {"two names that are one"}
    few = configs(servers=6).map(lambda config: config["mcpServers"])
    assert "both transports" in seen(few, features, {"both transports"}, most=400)


@pytest.mark.parametrize(
    ("settings", "most"),
    [({"maxConnections": 1}, 3), ({"maxConnections": 9}, 9), ({"minConnections": 5, "maxConnections": 5}, 6)],
)
def test_there_are_slots_for_all_that_stay(settings: dict[str, Any], most: int) -> None:
    keep = {"command": "x", "lifecycle": "keep-alive"}
    servers = {"a": keep, "b": keep, "off": {**keep, "disabled": True}, "c": {"command": "x"}}
    config = _fitted(servers, settings)
    assert config["settings"]["maxConnections"] == most
    assert read(config).problems == ()


def test_an_entry_shrinks_to_what_it_is_about() -> None:
    assert shortest(server_entries(), lambda entry: "args" in entry) == {"command": "0", "args": []}


# ---- fault scripts -------------------------------------------------------------------------------------------------


@unhurried
@given(fault_scripts())
def test_every_fault_can_be_played(script: FaultScript) -> None:
    assert len(script) <= 4
    assert [problem_with(fault.as_dict()) for fault in script] == [None] * len(script)


@unhurried
@given(fault_scripts(faults=2, steps=["call", "stop"], deeds=["delay", "crash"], longest=1.0))
def test_scripts_keep_to_what_was_asked_for(script: FaultScript) -> None:
    assert len(script) <= 2
    for fault in script:
        assert (fault.at, fault.do) in {("call", "delay"), ("stop", "delay"), ("call", "crash")}
        assert (fault.seconds or 0) <= 1.0


def test_every_deed_is_drawn_at_every_step_with_every_choice() -> None:
    choices: set[str | tuple[str, str]] = {(do, at) for do in DEEDS for at in DEEDS[do].steps} | set(FIELDS)

    def features(script: FaultScript) -> Iterable[str | tuple[str, str]]:
        for fault in script:
            yield (fault.do, fault.at)
            yield from fault.as_dict()

    assert seen(fault_scripts(faults=12), features, choices) == choices


def test_the_smallest_script_has_no_fault() -> None:
    assert shortest(fault_scripts()) == FaultScript()
    assert shortest(fault_scripts(), bool) == FaultScript.of(Fault("start", "delay", seconds=0.0))


# ---- the lifecycle -------------------------------------------------------------------------------------------------


def _walk(events: list[Occurrence]) -> tuple[list[Life], list[Effect]]:
    lives, effects = [Life()], list[Effect]()
    for event in events:
        life, more = event.apply(lives[-1])
        lives.append(life)
        effects += more
    return lives, effects


@unhurried
@given(lifecycle_events())
def test_every_walk_is_one_the_table_has(events: list[Occurrence]) -> None:
    lives, effects = _walk(events)  # raises for what the table lacks

    assert all(
        after.state is before.state or after.state in TABLE[before.state].values()
        for before, after in pairwise(lives)
    )
    assert not [
        (life, event.trigger)
        for life, event in zip(lives, events, strict=False)
        if life.state is State.DRAINING
        and event.trigger is (Trigger.DEADLINE if life.stopping else Trigger.GONE)
    ], "a tree that is being stopped has no deadline to pass, and none is gone that was not stopped"
    assert effects.count(Effect.STOP_TREE) <= 1
    assert (effects[-1:] == [Effect.ANNOUNCE]) == (lives[-1].state is State.CLOSED)


@unhurried
@given(lifecycle_events(most=3))
def test_a_walk_is_no_longer_than_was_asked_for(events: list[Occurrence]) -> None:
    assert len(events) <= 3


def test_the_smallest_walk_is_none() -> None:
    assert shortest(lifecycle_events()) == []


def test_every_row_of_the_table_is_walked_and_calls_settle() -> None:
    def steps(events: list[Occurrence]) -> Iterable[tuple[State, Trigger | None]]:
        return [(life.state, event.trigger) for life, event in zip(_walk(events)[0], events, strict=False)]

    rows = {(state, trigger) for state, row in TABLE.items() for trigger in row} | {(State.DRAINING, None)}
    assert seen(lifecycle_events(), steps, rows) == rows


# ---- what servers have and answer ----------------------------------------------------------------------------------


@unhurried
@given(st.lists(tool_names(), unique=True, max_size=6))
def test_a_room_can_name_every_tool(names: list[str]) -> None:
    json.dumps(names, ensure_ascii=False).encode()
    entry = ServerEntry("far", "", tools=tuple(tool(name) for name in names))

    config = read({"mcpServers": {"far": {"command": "x"}}})
    index = Index.build(config.servers, {"far": entry}, config.settings)

    assert sorted(target.original for target in index.tools("far")) == sorted(names)


def test_interesting_names_are_drawn() -> None:
    interesting = {"long", "foreign", "get-user", "get_user"}

    def features(name: str) -> Iterable[str]:
        return {name, *(["long"] * (len(name) > 64)), *(["foreign"] * (not name.isascii()))}

    assert seen(tool_names(), features, interesting) >= interesting


@unhurried
@given(tool_results())
def test_a_result_is_one_the_protocol_knows(result: dict[str, Any]) -> None:
    json.dumps(result, allow_nan=False).encode()

    assert isinstance(ToolResult(result).to_mcp(), CallToolResult)


def test_every_kind_of_block_is_drawn() -> None:
    kinds = {"text", "image", "audio", "resource_link", "resource", "error", "structured"}

    def features(result: dict[str, Any]) -> Iterable[str]:
        yield from (block["type"] for block in result["content"])
        yield from ["error"] * bool(result.get("isError")) + ["structured"] * ("structuredContent" in result)

    assert seen(tool_results(), features, kinds) == kinds


def test_the_smallest_of_them_are_small() -> None:
    assert len(shortest(tool_names())) == 1
    assert shortest(tool_results()) == {"content": []}
    # A key that is not needed may stay: without it, what was drawn for the next key would stand for another.
    error = shortest(tool_results(), lambda result: result.get("isError", False))
    smallest = {"content": [], "isError": True, "structuredContent": {}, "x-vendor": None}
    assert {"content", "isError"} <= set(error)
    assert error == {key: smallest[key] for key in error}
