"""Which children are used again, and by whom: the pure part."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.profiles import examples
from tests.support.rows import for_each

from greenroom.protocol.jsonrpc.terms import LISTEN
from greenroom.supervisor.policy.warm import (
    FreeChild,
    UsedChild,
    WarmServer,
    choose,
    in_the_way,
    is_passing,
    is_passing_news,
    is_passing_stream,
    may_be_told_later,
    why_not_again,
    why_not_reset,
)

NOW = 100.0
CLEAN = UsedChild(WarmServer("s", 3, held=1, in_use=1))

PASSING = [
    "initialize",
    "ping",
    "tools/list",
    "tools/call",
    "resources/read",
    "prompts/get",
    "completion/complete",
]
LASTING = [
    *("resources/subscribe", "resources/unsubscribe", "logging/setLevel", LISTEN),
    *(
        "tasks/get",
        "tasks/cancel",
        "tasks/result",
        "notifications/roots/list_changed",
        "notifications/cancelled",
    ),
    *("a method of a version that nobody knows yet", "", "TOOLS/CALL", "notifications/progress"),
]


@for_each("method", PASSING)
def test_what_leaves_nothing_is_known_by_name(method: str) -> None:
    assert is_passing(method, None)
    assert is_passing(method, {"name": "x", "arguments": {"task": 1}, "_meta": {"progressToken": 3}})


@for_each("method", LASTING)
def test_all_else_lasts(method: str) -> None:
    assert not is_passing(method, None)


@for_each("member", ["task", "inputResponses", "requestState"])
def test_a_call_that_goes_on_or_belongs_to_an_earlier_one_lasts(member: str) -> None:
    assert not is_passing("tools/call", {"name": "x", member: {}})


@for_each(
    ("method", "params", "passes"),
    [
        (LISTEN, {"notifications": {"toolsListChanged": True, "promptsListChanged": True}}, True),
        (LISTEN, {"notifications": {"toolsListChanged": True, "resourceSubscriptions": ["a:b"]}}, False),
        (LISTEN, {"notifications": "toolsListChanged"}, False),
        (LISTEN, None, False),
        ("tools/call", {"notifications": {"toolsListChanged": True}}, False),
    ],
)
def test_a_stream_of_news_leaves_nothing_if_it_is_about_lists_alone(
    method: str, params: Mapping[str, Any] | None, passes: bool
) -> None:
    assert is_passing_stream(method, params) is passes


@settings(examples(200))
@given(st.text(max_size=40))
def test_of_what_a_server_says_by_itself_only_its_log_leaves_nothing(method: str) -> None:
    assert is_passing_news(method) is (method == "notifications/message")


def test_the_log_leaves_nothing_and_a_changed_list_does() -> None:
    assert is_passing_news("notifications/message")
    assert not is_passing_news("notifications/tools/list_changed")


@for_each(
    ("capabilities", "later"),
    [
        ({}, False),
        ({"elicitation": {}}, False),
        ({"elicitation": {"form": {}}}, False),
        ({"roots": {}}, False),
        ({"elicitation": {"url": {}}}, True),
        ({"elicitation": "url"}, False),
    ],
)
def test_who_may_be_told_how_a_page_ended(capabilities: Mapping[str, Any], later: bool) -> None:
    assert may_be_told_later(capabilities) is later


@st.composite
def used_children(draw: st.DrawFn) -> UsedChild:
    flags = st.sampled_from([True, True, True, False])
    server = WarmServer(
        "s",
        draw(st.integers(0, 3)),
        held=draw(st.integers(0, 3)),
        in_use=draw(st.integers(0, 3)),
        until=draw(st.sampled_from([math.inf, math.inf, NOW])),
        is_probed=not draw(flags),
    )
    return UsedChild(
        server,
        is_over=draw(flags),
        is_current=draw(flags),
        is_changed=not draw(flags),
        lasting=None if draw(flags) else "something lasts",
        is_waited_for=not draw(flags),
    )


@settings(examples(500))
@given(used_children())
def test_a_child_comes_back_only_if_nothing_speaks_against_it(it: UsedChild) -> None:
    fits = it.server.held + it.server.in_use < it.server.wanted(NOW)
    is_clean = it.is_over and it.is_current and it.lasting is None and not it.is_changed
    assert (why_not_again(it, NOW) is None) is (is_clean and not it.is_waited_for and fits)


@for_each(
    "change",
    [
        {"is_over": False},
        {"is_current": False},
        {"is_changed": True},
        {"lasting": "logging/setLevel was sent"},
        {"is_waited_for": True},
        {"server": WarmServer("s", 3, held=3)},
        {"server": WarmServer("s", 3, held=1, in_use=2)},
        {"server": WarmServer("s", 0)},
        {"server": WarmServer("s", 3, until=NOW)},
    ],
)
def test_each_of_these_alone_ends_the_process_and_says_why(change: dict[str, Any]) -> None:
    assert why_not_again(CLEAN, NOW) is None
    why = why_not_again(replace(CLEAN, **change), NOW)
    assert why is not None
    assert len(why) > 10


TEXT: Mapping[str, Any] = {"content": [{"type": "text", "text": "done"}]}


@for_each("result", [TEXT, {"content": [], "isError": False}, {**TEXT, "resultType": "complete"}])
def test_a_plain_result_is_a_reset(result: Mapping[str, Any]) -> None:
    assert why_not_reset(result) is None


@for_each(
    "result",
    [
        {},
        {"content": "done"},
        {**TEXT, "isError": True},
        {**TEXT, "isError": "false"},
        {**TEXT, "isError": None},
        {"resultType": "input_required", "inputRequests": {}},
        {**TEXT, "resultType": "task"},
        {"task": {"taskId": "1"}},
    ],
)
def test_anything_else_is_none(result: Mapping[str, Any]) -> None:
    assert why_not_reset(result) is not None


FREE = st.lists(st.builds(FreeChild, st.booleans(), st.booleans(), st.booleans()), max_size=6)


@settings(examples(500))
@given(FREE)
def test_who_cannot_go_on_with_its_handshake_never_gets_a_child(free: list[FreeChild]) -> None:
    place = choose(free)
    assert (place is None) is not any(child.fits for child in free)
    if place is None:
        unfit = in_the_way(free)
        assert unfit is None or (free[unfit].is_ready and not free[unfit].fits)
        assert (unfit is None) is not any(child.is_ready for child in free)
        return
    assert free[place].fits
    fitting = [child for child in free if child.fits]
    assert free[place].is_ready or not any(child.is_ready for child in fitting)
    first = next(number for number, child in enumerate(free) if child == free[place])
    assert place == first, "of those alike, the one that has waited longest"


def test_the_order_is_that_of_what_there_is_to_wait_for() -> None:
    start, reset = FreeChild(is_ready=False), FreeChild(is_ready=False, is_used=True)
    fresh, used = FreeChild(), FreeChild(is_used=True)
    assert choose([start, reset, fresh, used]) == 3
    assert choose([start, reset, fresh]) == 2
    assert choose([start, reset]) == 1
    assert choose([start]) == 0
