"""Finished tasks over known tools: what is given in all their turns, and up to how many tools it is cheaper to show
all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.test_cost import known
from tests.support.profiles import examples

from greenroom.catalogue.entries import ServerEntry
from greenroom.cli.main import run
from greenroom.cli.task_costs import (
    ALL_SHOWN,
    CODE,
    CONTEXT,
    EXPOSURES,
    PINNED,
    PROXY,
    RESULT,
    TASKS,
    PlayedTask,
    TaskCost,
    TaskPlayer,
    TurnTokens,
    crossovers,
    played,
    query_of,
)
from greenroom.config.model import Config, ServerDefinition, Settings
from greenroom.gateway.offline_catalogue import OfflineCatalogue

ONCE = "one tool, once"


def catalogue(number: int, **more: Any) -> OfflineCatalogue:
    schema = {"type": "object", "properties": {"zone": {"type": "string"}}, "required": ["zone"]}
    tools = tuple(
        {"name": f"tool{at}", "description": f"Turns lathe {at} on. At once.", "inputSchema": schema, **more}
        for at in range(number)
    )
    entries = {"works": ServerEntry("works", "h", tools=tools)}
    return OfflineCatalogue(Config({"works": ServerDefinition("works", command="x")}, Settings()), entries)


def tasks_of(player: TaskPlayer, task: str = ONCE) -> dict[str, TaskCost]:
    return {one.exposure: one.cost for one in player.play() if one.task == task}


def test_each_turn_is_given_all_that_was_said_before() -> None:
    cost = played(100, [TurnTokens(3, 10), TurnTokens(5, 20)])
    assert (cost.turns, cost.tokens) == (3, 100 + 113 + 138)
    assert cost.cached == pytest.approx(100 + (13 + 10) + (25 + 11.3))
    assert played(100, []) == TaskCost(1, 100, 100)


def test_all_shown_needs_a_turn_for_each_call_and_the_last_answer() -> None:
    played_by = TaskPlayer(catalogue(6), len, context=1_000)
    asked = len('{"name":"works_tool0","arguments":{"zone":"a value"}}')
    shown = 1_000 + played_by.all_shown
    cost = tasks_of(played_by)[ALL_SHOWN]
    assert (cost.turns, cost.tokens) == (2, 2 * shown + asked + RESULT)
    assert cost.cached == pytest.approx(shown + asked + RESULT + shown / 10)
    assert tasks_of(played_by, "one tool, five times")[ALL_SHOWN].turns == 6


def test_behind_one_tool_it_is_searched_first_and_code_makes_all_calls_in_one_turn() -> None:
    played_by = TaskPlayer(catalogue(40), len)
    once, often, three = (tasks_of(played_by, task) for task in TASKS)
    assert [once[each].turns for each in EXPOSURES] == [2, 3, 3, 2, 3]
    assert [often[each].turns for each in EXPOSURES] == [6, 7, 7, 6, 3]
    assert [three[each].turns for each in EXPOSURES] == [4, 7, 7, 4, 5]
    assert once[PINNED].tokens < once[PROXY].tokens
    assert once[PINNED].tokens < once[ALL_SHOWN].tokens
    assert often[CODE].tokens < often[PROXY].tokens


def test_a_tool_that_no_search_shows_whole_is_described() -> None:
    large = {
        "type": "object",
        "properties": {f"p{n}": {"type": "string", "description": "x" * 90} for n in range(60)},
    }
    needed = {**large, "required": list(large["properties"])}
    assert tasks_of(TaskPlayer(catalogue(3, inputSchema=needed), len))[PROXY].turns == 4


@pytest.mark.parametrize(
    ("description", "query"),
    [
        ("Creates an issue. Then waits.", "Creates an issue"),
        ("one two three four five six seven eight nine ten", "one two three four five six seven eight"),
        ("", "tool0"),
    ],
)
def test_it_is_looked_for_by_the_first_words_of_its_description(description: str, query: str) -> None:
    [target] = catalogue(1, description=description).index.tools()
    assert query_of(target) == query


@examples(100)
@given(
    proxy=st.integers(10_000, 400_000),
    rest=st.integers(10_000, 400_000),
    each=st.integers(20, 500),
    tools=st.integers(1, 300),
)
def test_up_to_the_crossover_it_is_cheaper_to_show_all_and_beyond_it_is_not(
    proxy: int, rest: int, each: int, tools: int
) -> None:
    def direct(number: int) -> float:
        return rest + 2 * each * number

    done = [
        PlayedTask(task, exposure, TaskCost(2, tokens, tokens))
        for task in TASKS
        for exposure, tokens in ((ALL_SHOWN, direct(tools)), (PROXY, proxy))
    ]
    for found in crossovers(done, tools, each * tools):
        assert direct(found.tools + 1) > proxy
        assert direct(found.tools) <= proxy or found.tools == 0


def test_the_command_plays_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known(tmp_path, monkeypatch, {"clock": {"command": "no-such-clock"}})
    assert run(["cost", "--per-task", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["perTask"]
    assert (said["tools"], said["context"], said["result"]) == (2, CONTEXT, RESULT)
    assert len(said["tasks"]) == len(TASKS) * len(EXPOSURES)
    assert [one["task"] for one in said["crossover"]] == list(TASKS)
    assert run(["cost", "--per-task", "--context", "77"]) == 0
    shown = capsys.readouterr().out
    assert "with the client's own 77 in each (--context)" in shown
    assert "cheaper than the mcp tool: all shown, up to" in shown
    assert all(exposure in shown for exposure in EXPOSURES)
    assert all(len(line) <= 80 for line in shown.splitlines())
