"""The parts of an actor that decide about its calls, each alone: places, waiting, ends, and what may interrupt them."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from tests.support import in_real_time
from tests.support.stdio import Recorder

from greenroom.actors.backend import current_backend
from greenroom.actors.exchanges import ExchangeTable, Notes
from greenroom.actors.host import Declaration, covers, joined, lacking
from greenroom.actors.incarnation import _without_secrets
from greenroom.actors.peer import Exchange, LostReason, WhenEnded

# ---- how it was initialized -----------------------------------------------------------------------------------------


@in_real_time
async def test_each_request_is_stamped_as_the_version_of_the_moment_requires() -> None:
    hooks = Recorder()
    out: Any = None
    table = ExchangeTable(current_backend(), hooks, Notes(hooks.on_note), out)
    table.client_info = {"name": "x"}
    ours = WhenEnded(lambda *_: None)
    stamped: list[bool] = []
    for version in (None, "2026-07-28", "2025-11-25", "2026-07-28", None):
        table.protocol_version = version
        stamped.append(b"protocolVersion" in table._opened(Exchange(ours, "ping", None)))
    assert stamped == [False, True, False, True, False]


# ---- optional parts ------------------------------------------------------------------------------------------------


# ---- what a client can answer --------------------------------------------------------------------------------------

ELICIT, SAMPLE, ROOTS = "elicitation/create", "sampling/createMessage", "roots/list"


@pytest.mark.parametrize(
    ("method", "params", "declared", "lacks"),
    [
        (ROOTS, {}, {}, "roots"),
        (ROOTS, {}, {"roots": {}}, None),
        (ROOTS, {}, {"roots": None}, "roots"),
        (ROOTS, {}, {"sampling": {}, "elicitation": {}}, "roots"),
        (SAMPLE, {}, {"roots": {}}, "sampling"),
        (SAMPLE, {}, {"sampling": {}}, None),
        (SAMPLE, {"tools": []}, {"sampling": {}}, None),
        (SAMPLE, {"tools": [{}]}, {"sampling": {}}, "sampling.tools"),
        (SAMPLE, {"tools": [{}]}, {"sampling": {"tools": {}}}, None),
        (SAMPLE, {"mode": "url"}, {"sampling": {}}, None),
        (ELICIT, {}, {"sampling": {}}, "elicitation"),
        (ELICIT, {}, {"elicitation": {}}, None),
        (ELICIT, {"mode": "form"}, {"elicitation": {}}, None),
        (ELICIT, {"mode": "url"}, {"elicitation": {}}, "elicitation.url"),
        (ELICIT, {"mode": "url"}, {"elicitation": {"url": {}}}, None),
        (ELICIT, {}, {"elicitation": {"url": {}}}, "elicitation.form"),
        (ELICIT, {"mode": "form"}, {"elicitation": {"url": {}, "form": {}}}, None),
        (ELICIT, {"tools": [{}]}, {"elicitation": {}}, None),
        ("vendor/asks", {}, {}, None),
    ],
)
def test_what_a_client_has_not_declared_it_is_not_asked(
    method: str, params: dict[str, Any], declared: dict[str, Any], lacks: str | None
) -> None:
    assert lacking(declared, method, params) == lacks


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ({}, {"roots": {}}, {"roots": {}}),
        ({"roots": {"listChanged": True}}, {"roots": {}}, {"roots": {"listChanged": True}}),
        (
            {"roots": {"listChanged": False}},
            {"roots": {"listChanged": True}},
            {"roots": {"listChanged": True}},
        ),
        ({"sampling": {"tools": {}}}, {"sampling": {"x": {}}}, {"sampling": {"tools": {}, "x": {}}}),
        ({"a": {}}, {"b": {"c": 1}}, {"a": {}, "b": {"c": 1}}),
    ],
)
def test_a_server_that_several_share_is_told_what_any_of_them_can(
    one: dict[str, Any], other: dict[str, Any], both: dict[str, Any]
) -> None:
    for left, right in ((one, other), (other, one)):
        found = joined([Declaration(left), Declaration(right)])
        assert found == Declaration(both)
        assert covers(both, left)
        assert covers(both, right)
        assert covers(left, both) is (left == both)
    for hands in product((True, False), repeat=3):
        assert joined(Declaration(by_handshake=each) for each in hands).by_handshake is any(hands)
    assert joined([]) == Declaration()


# ---- what servers say of themselves --------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["closed its stdout", "a secret"])
@pytest.mark.parametrize("tail", [(), ("fine",), ("fine", "a secret")])
def test_the_reason_of_a_lost_connection_has_lost_its_secrets_in_each_of_its_parts(
    text: str, tail: tuple[str, ...]
) -> None:
    said = LostReason(text, 3, stderr_tail=tail)
    found = _without_secrets(said, lambda text: text.replace("secret", "***"))
    assert (found.text, found.stderr_tail, found.exit_code) == (
        text.replace("secret", "***"),
        tuple(line.replace("secret", "***") for line in tail),
        3,
    )
