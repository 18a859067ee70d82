"""What a reload would do, decided without doing it."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.support.rows import for_each

from greenroom.config.parse import parse_config
from greenroom.protocol.errors import Problem
from greenroom.supervisor.reload import ReloadPlan, plan_reload


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


@for_each("group", ["live", "replace", "start", "remove"])
def test_any_one_change_is_a_change(group: str) -> None:
    assert not ReloadPlan(**{group: ("a",)}).is_empty
    assert str(ReloadPlan(**{group: ("a",)})) != "nothing to do"


def test_no_servers_before_and_after_is_nothing_to_do() -> None:
    assert ReloadPlan().is_empty
    assert str(ReloadPlan()) == "nothing to do"


def test_a_server_that_became_unusable_is_removed_and_one_that_was_is_started() -> None:
    usable, broken = _config(a={"command": "a"}), _config(a={"args": ["a"]})

    assert plan_reload(usable, broken) == ReloadPlan(remove=("a",))
    assert plan_reload(broken, usable) == ReloadPlan(start=("a",))


def test_another_rule_for_the_environment_replaces_the_servers_that_have_none_of_their_own() -> None:
    servers = {"a": {"command": "a"}, "b": {"command": "b", "inheritEnv": False}}
    old = parse_config({"mcpServers": servers, "settings": {"inheritEnv": False}})
    new = parse_config({"mcpServers": servers, "settings": {"inheritEnv": True}})

    assert plan_reload(old, new) == ReloadPlan(keep=("b",), replace=("a",))
    assert plan_reload(new, new) == ReloadPlan(keep=("a", "b"))


def test_another_isolation_replaces_the_servers_that_have_none_of_their_own() -> None:
    servers = {"a": {"command": "a"}, "b": {"command": "b", "isolation": "persistent"}}
    old = parse_config({"mcpServers": servers, "settings": {"isolation": "persistent"}})
    new = parse_config({"mcpServers": servers, "settings": {"isolation": "per_session"}})

    assert plan_reload(old, new) == plan_reload(new, old) == ReloadPlan(keep=("b",), replace=("a",))


IDENTITY = {"command", "args", "env", "cwd", "inheritEnv", "isolation"}
ENTRIES = st.fixed_dictionaries(
    {"command": st.sampled_from("ab")},
    optional={
        "args": st.sampled_from([["1"], ["2"]]),
        "env": st.sampled_from([{"X": "1"}, {"X": "2"}]),
        "cwd": st.just("/"),
        "inheritEnv": st.just(True),
        "isolation": st.sampled_from(["per_call", "per_session"]),
        "lifecycle": st.sampled_from(["lazy", "eager"]),
        "idleTimeout": st.integers(0, 2),
        "restartPolicy": st.sampled_from(["never", "always"]),
        "requestTimeoutMs": st.integers(1, 2),
        "disabled": st.booleans(),
    },
)
UNUSABLE = st.just({"args": ["no command"]})
CONFIGS = st.dictionaries(st.sampled_from("pqrs"), st.one_of(ENTRIES, ENTRIES, ENTRIES, UNUSABLE))


@given(old=CONFIGS, new=CONFIGS)
def test_a_server_is_kept_applied_live_replaced_started_or_removed_as_the_design_says(
    old: dict[str, Any], new: dict[str, Any]
) -> None:
    """A policy-only change is applied live, the process kept; any other change starts the next incarnation."""
    before, after = _config(**old), _config(**new)
    plan = plan_reload(before, after)

    for name in old.keys() | new.keys():
        was, will_be = before.servers.get(name), after.servers.get(name)
        if was is None or will_be is None:
            group = "remove" if was else "start" if will_be else None
        elif was == will_be:
            group = "keep"
        else:
            other_process = any(old[name].get(key) != new[name].get(key) for key in IDENTITY)
            group = "replace" if other_process else "live"
        found = [
            each for each in ("keep", "live", "replace", "start", "remove") if name in getattr(plan, each)
        ]
        assert found == ([group] if group else [])


@given(old=CONFIGS, new=CONFIGS)
def test_nothing_is_lost_and_nothing_is_touched_twice(old: dict[str, Any], new: dict[str, Any]) -> None:
    before, after = _config(**old), _config(**new)
    plan = plan_reload(before, after)

    arriving = [*plan.keep, *plan.live, *plan.replace, *plan.start]
    assert sorted(arriving) == sorted(after.servers)
    assert sorted([*plan.keep, *plan.live, *plan.replace, *plan.remove]) == sorted(before.servers)
    assert all(before.servers[name] == after.servers[name] for name in plan.keep)
    assert plan_reload(after, after).is_empty


def test_what_is_broken_now_goes_also_when_its_definition_is_there() -> None:
    whole = _config(a={"command": "a"}, b={"command": "b"})
    broken = msgspec.structs.replace(whole, broken={"a": Problem("m.json: mcpServers.a", "no")})

    assert plan_reload(whole, broken) == ReloadPlan(keep=("b",), remove=("a",))
    assert plan_reload(broken, whole) == ReloadPlan(keep=("b",), start=("a",))
