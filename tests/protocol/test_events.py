"""Events: what each says in words, and whose it is."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.rows import for_each

from greenroom.protocol import events
from greenroom.protocol.address import Address, depth
from greenroom.protocol.errors import Reach
from greenroom.protocol.events import (
    HOLDS_SLOT,
    TURNS,
    WAITING,
    ApprovalDecision,
    ApprovalMove,
    BreakerDecision,
    BreakerMove,
    CallAccepted,
    CallEnded,
    CallRefused,
    CallSent,
    CatalogueChanged,
    ConnectStep,
    EndDecision,
    Event,
    Eviction,
    Kind,
    Note,
    NoteCode,
    Place,
    StartMoved,
    Step,
    Transition,
    WarmChildMoved,
    WarmMove,
)
from greenroom.protocol.lifecycle import Cause, Reason, State

HEAD: dict[str, Any] = {"seq": 1, "at": 2.0}
MOVED: dict[str, Any] = {**HEAD, "before": State.CONNECTED, "after": State.DRAINING}
CALL: dict[str, Any] = {**HEAD, "call": 7, "method": "tools/call", "tool": "t", "client": None}
ASKED: dict[str, Any] = {**HEAD, "tool": "t", "client": None}

SAID: list[tuple[Event, Kind, str]] = [
    (Transition(**MOVED), Kind.TRANSITION, ""),
    (Transition(**MOVED, reason=Reason.NO_CALL, seconds=0.0), Kind.TRANSITION, "no call for 0 s"),
    (Transition(**MOVED, reason=Reason.NO_CALL, seconds=1.5, words="by hand"), Kind.TRANSITION, "by hand"),
    (Step(**HEAD, step=ConnectStep.STARTED), Kind.STEP, "started"),
    (Step(**HEAD, step=ConnectStep.INITIALIZED), Kind.STEP, "greeted"),
    (StartMoved(**HEAD, place=Place.PERMIT), Kind.START, "permit"),
    (
        BreakerDecision(**HEAD, move=BreakerMove.FAILED, failures=3, words="it exited"),
        Kind.DECISION,
        "circuit breaker: failure 3: it exited",
    ),
    (
        BreakerDecision(**HEAD, move=BreakerMove.SILENT, failures=4),
        Kind.DECISION,
        "circuit breaker: 4 timeouts or failures in a row",
    ),
    (
        BreakerDecision(**HEAD, move=BreakerMove.QUARANTINED, words="6 restarts"),
        Kind.DECISION,
        "circuit breaker: quarantined: 6 restarts",
    ),
    (
        BreakerDecision(**HEAD, move=BreakerMove.HALF_OPEN),
        Kind.DECISION,
        "circuit breaker: half-open: one probe passes",
    ),
    (
        BreakerDecision(**HEAD, move=BreakerMove.BY_NAME),
        Kind.DECISION,
        "circuit breaker: connected by name: the next call is the probe",
    ),
    (
        BreakerDecision(**HEAD, move=BreakerMove.PROBE_LEFT),
        Kind.DECISION,
        "circuit breaker: the probe has left: the next call is the probe",
    ),
    (BreakerDecision(**HEAD, move=BreakerMove.ANSWERED), Kind.DECISION, "circuit breaker: reset: it answered"),
    (
        BreakerDecision(**HEAD, move=BreakerMove.SESSION_CONNECTED),
        Kind.DECISION,
        "circuit breaker: reset: a session connected",
    ),
    (
        BreakerDecision(**HEAD, move=BreakerMove.REDEFINED),
        Kind.DECISION,
        "circuit breaker: reset: the server has another definition",
    ),
    (
        BreakerDecision(**HEAD, move=BreakerMove.TOLD, words="it exited"),
        Kind.DECISION,
        "circuit breaker: open as on another host: it exited",
    ),
    (EndDecision(**HEAD, cause=Cause.LOST, then="connect"), Kind.DECISION, "lost: then connect"),
    (Eviction(**HEAD, reason=Reason.OVER_LIMIT), Kind.DECISION, "pool: evicted more are live than there are slots"),
    (
        WarmChildMoved(**HEAD, move=WarmMove.TAKEN, child="warm:3", warm=2, by="session:x"),
        Kind.DECISION,
        "warm:3 taken over by session:x",
    ),
    (
        WarmChildMoved(**HEAD, move=WarmMove.LOST, child="warm:4", warm=1, words="exited with code 1"),
        Kind.DECISION,
        "warm:4 lost: exited with code 1",
    ),
    (ApprovalDecision(**ASKED, move=ApprovalMove.DENIED), Kind.DECISION, "approval: t: denied"),
    (
        ApprovalDecision(**ASKED, move=ApprovalMove.ALLOWED_FOR_SESSION, at_terminal=True),
        Kind.DECISION,
        "approval: t: allowed for the session at a terminal",
    ),
    (CallAccepted(**CALL), Kind.CALL, "accepted"),
    (CallSent(**CALL), Kind.CALL, "sent"),
    (CallEnded(**CALL, outcome="result", reach=Reach.ANSWERED), Kind.CALL, "ended"),
    (CallRefused(**HEAD, method="tools/call", tool="t", client=None, outcome="busy"), Kind.CALL, "refused: busy"),
    (CatalogueChanged(**HEAD, address=Address("a")), Kind.CATALOGUE, "a"),
    (CatalogueChanged(**HEAD), Kind.CATALOGUE, ""),
    (Note(**HEAD, code=NoteCode.ODD, words="junk"), Kind.NOTE, "junk"),
]  # fmt: skip


@for_each(("event", "kind", "detail"), SAID, ids=lambda each: type(each).__name__)
def test_an_event_has_its_kind_and_says_what_happened(event: Event, kind: Kind, detail: str) -> None:
    assert (event.kind, event.detail) == (kind, detail)


def test_every_event_and_every_move_of_a_breaker_is_in_the_table_above() -> None:
    every = {each for each in vars(events).values() if isinstance(each, type) and issubclass(each, Event)}
    assert {type(event) for event, *_ in SAID} == every - {Event, events.CallEvent}
    assert {event.move for event, *_ in SAID if isinstance(event, BreakerDecision)} == set(BreakerMove)


def test_an_event_is_of_a_server_and_a_scope_or_of_the_room() -> None:
    own = Step(seq=1, at=0.0, address=Address.of_session("a", "x"), step=ConnectStep.STARTED)
    assert (own.server, own.scope) == ("a", "session:x")
    rooms = Note(seq=1, at=0.0, code=NoteCode.GUARD)
    assert (rooms.server, rooms.scope) == (None, None)


def test_a_breaker_is_reset_after_an_answer_after_a_session_connected_and_by_another_definition() -> None:
    resets = {move for move in BreakerMove if BreakerDecision(seq=1, at=0.0, move=move).is_reset}
    assert resets == {BreakerMove.ANSWERED, BreakerMove.SESSION_CONNECTED, BreakerMove.REDEFINED}


def test_a_call_that_was_never_sent_says_so_and_has_taken_no_time() -> None:
    ended = CallEnded(**CALL)
    assert (ended.reach, ended.waited, ended.taken, ended.outcome) == (Reach.NOT_SENT, 0.0, None, "")


def test_an_eviction_is_an_ending_with_that_cause() -> None:
    assert Eviction(**HEAD, reason=Reason.MAKES_ROOM).cause is Cause.EVICTED


# ---- addresses -----------------------------------------------------------------------------------------------------

ADDRESSES = [
    (Address("a"), "shared", (True, False, False), None, "a"),
    (Address.of_session("a", "x"), "session:x", (False, True, False), "x", "a[session:x]"),
    (Address.of_session("a", ""), "session:", (False, True, False), "", "a[session:]"),
    (Address.of_call("a", "7"), "call:7", (False, False, True), None, "a[call:7]"),
    (Address.of_warm("a", 3), "warm:3", (False, False, False), None, "a[warm:3]"),
    (Address.of_call("a", "7", "x"), "call:7", (False, False, True), "x", "a[call:7]"),
]


@for_each(("address", "scope", "kinds", "session", "text"), ADDRESSES)
def test_an_address_says_who_shares_the_child(
    address: Address, scope: str, kinds: tuple[bool, bool, bool], session: str | None, text: str
) -> None:
    assert (address.server, address.scope) == ("a", scope)
    assert (address.is_shared, address.is_session, address.is_call) == kinds
    assert (address.session, str(address)) == (session, text)


def test_whose_call_it_is_does_not_make_another_address() -> None:
    assert Address.of_call("a", "7", "x") == Address.of_call("a", "7")
    assert hash(Address.of_call("a", "7", "x")) == hash(Address.of_call("a", "7"))
    assert len({address for address, *_ in ADDRESSES}) == 5
    assert Address("a") != Address("b")


@pytest.mark.parametrize(
    ("told", "rooms"), [({}, 0), ({"GREENROOM_DEPTH": "2"}, 2), ({"GREENROOM_DEPTH": "x"}, 0)]
)
def test_how_many_rooms_are_above_is_in_the_environment(told: dict[str, str], rooms: int) -> None:
    assert depth(told) == rooms


# ---- places of a start ---------------------------------------------------------------------------------------------


def test_what_a_start_waits_for_is_shown_in_these_words() -> None:
    assert {place.value for place in WAITING} == {
        "breaker", "its turn to install", "its turn for discovery", "slot", "permit",
    }  # fmt: skip
    assert {place.value for place in TURNS} == {"its turn to install", "its turn for discovery"}
    assert {place.value for place in HOLDS_SLOT} == {"permit", "starting", "live", "leaving"}
