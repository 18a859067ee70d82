"""The parts of an actor that decide about its calls, each alone: places, waiting, ends, and what may interrupt them."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from tests.support import in_real_time, in_virtual_time
from tests.support.stdio import Recorder

from greenroom.actors.backend import current_backend
from greenroom.actors.exchanges import ExchangeTable, Notes
from greenroom.actors.handshake import RpcFailure, _newest, shake_hands
from greenroom.actors.host import Greeting, covers, joined, lacking
from greenroom.actors.incarnation import _without_secrets
from greenroom.actors.peer import Exchange, LostReason, WhenEnded
from greenroom.actors.workers import FIRST_PAUSE, LAST_PAUSE, Part
from greenroom.config.model import Era, Settings
from greenroom.protocol.jsonrpc.terms import RpcError

# ---- how it was greeted --------------------------------------------------------------------------------------------


def test_the_newest_version_in_common_is_taken() -> None:
    ours = ("1", "2", "3")
    assert [_newest(ours, theirs) for theirs in (("1", "2"), ("3", "1"), ("2", "0"), ("0",), ())] == [
        "2", "3", "2", None, None,
    ]  # fmt: skip


@pytest.mark.parametrize("era", [Era.HANDSHAKE, Era.STATELESS])
@pytest.mark.parametrize("error", [RpcError(-32000, "no"), None])
@in_virtual_time
async def test_a_refusal_of_the_only_era_stays_what_it_was(era: Era, error: RpcError | None) -> None:
    class Peer:
        protocol_version: str | None = None

        def request(self, exchange: Exchange) -> None:
            if error is not None:
                exchange.owner.exchange_ended(exchange, None, error)

        def abandon(self, exchange: Exchange, reason: str) -> None:
            pass

    peer: Any = Peer()
    settings = Settings(connect_timeout=3.0, probe_timeout=1.0)
    with pytest.raises(RpcFailure, match=f'"era": "{era.value}": try "auto"') as caught:
        await shake_hands(
            peer, current_backend(), settings=settings, client_info={}, greeting=Greeting(), era=era
        )
    if era is Era.HANDSHAKE:
        assert (caught.value.error, caught.value.timed_out) == (error, error is None)
    assert caught.value.method == ("initialize" if era is Era.HANDSHAKE else "server/discover")


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


def test_a_part_that_fails_for_days_is_tried_every_minute_and_told_of_once() -> None:
    said: list[str] = []
    now = [0.0]
    part = Part("the part", said.append, now=lambda: now[0])
    pauses = [part.failed("no") for _ in range(3_000)]
    assert pauses[:3] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert set(pauses[6:]) == {LAST_PAUSE}
    assert len(said) == 1
    part.works()
    now[0] += LAST_PAUSE
    assert part.failed("no") == LAST_PAUSE, "it has not worked for longer than that"
    part.works()
    now[0] += LAST_PAUSE + 1
    assert part.failed("no") == FIRST_PAUSE


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
        found = joined([Greeting(left), Greeting(right)])
        assert found == Greeting(both)
        assert covers(both, left)
        assert covers(both, right)
        assert covers(left, both) is (left == both)
    for hands in product((True, False), repeat=3):
        assert joined(Greeting(by_handshake=each) for each in hands).by_handshake is any(hands)
    assert joined([]) == Greeting()


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
