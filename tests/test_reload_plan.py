"""What a reload would do, decided without doing it."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from greenroom.protocol.config_parse import parse_config
from greenroom.supervisor._reload import ReloadPlan, plan_reload


def _config(**servers: dict[str, Any]) -> Any:
    return parse_config({"mcpServers": servers}, strict=False)


def test_each_server_is_in_one_group() -> None:
    old = _config(
        same={"command": "a"},
        policy={"command": "b", "idleTimeout": 10},
        other={"command": "c", "args": ["1"]},
        gone={"command": "d"},
    )
    new = _config(
        same={"command": "a"},
        policy={"command": "b", "idleTimeout": 1},
        other={"command": "c", "args": ["2"]},
        new={"command": "e"},
    )

    plan = plan_reload(old, new)

    assert plan == ReloadPlan(
        keep=("same",), live=("policy",), replace=("other",), start=("new",), remove=("gone",)
    )
    assert str(plan) == "keep 1, apply live 1, drain 2, start 2"


def test_the_same_configuration_changes_nothing() -> None:
    config = _config(a={"command": "a"}, b={"command": "b", "env": {"X": "1"}})

    plan = plan_reload(config, config)

    assert plan.is_empty
    assert str(plan) == "keep 2"


def test_a_server_that_became_unusable_is_removed_and_one_that_was_is_started() -> None:
    usable, broken = _config(a={"command": "a"}), _config(a={"args": ["a"]})

    assert plan_reload(usable, broken) == ReloadPlan(remove=("a",))
    assert plan_reload(broken, usable) == ReloadPlan(start=("a",))


ENTRIES = st.fixed_dictionaries(
    {"command": st.sampled_from("ab")}, optional={"idleTimeout": st.integers(0, 2), "disabled": st.booleans()}
)
CONFIGS = st.dictionaries(st.sampled_from("pqrs"), ENTRIES)


@given(old=CONFIGS, new=CONFIGS)
def test_nothing_is_lost_and_nothing_is_touched_twice(old: dict[str, Any], new: dict[str, Any]) -> None:
    before, after = _config(**old), _config(**new)
    plan = plan_reload(before, after)

    arriving = [*plan.keep, *plan.live, *plan.replace, *plan.start]
    assert sorted(arriving) == sorted(after.servers)
    assert sorted([*plan.keep, *plan.live, *plan.replace, *plan.remove]) == sorted(before.servers)
    assert all(before.servers[name] == after.servers[name] for name in plan.keep)
    assert plan_reload(after, after).is_empty
