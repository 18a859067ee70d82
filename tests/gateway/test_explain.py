"""`greenroom explain`: what a server does, why, and what happens next, with a command where somebody has to act."""

from __future__ import annotations

import json
import math
import re
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.gateway import faulty, serve
from tests.support.homes import own_config
from tests.support.patience import until
from tests.support.raw_http import Handler, Seen, raw_http
from tests.support.rows import for_each

from greenroom.cli.main import run
from greenroom.config.model import Isolation, Lifecycle, RestartPolicy, ServerDefinition, Settings, idle_time
from greenroom.gateway.explain import past_of, reasons
from greenroom.gateway.next_steps import Commands
from greenroom.protocol.address import Address
from greenroom.protocol.events import CallAccepted, Event, Place, Transition
from greenroom.protocol.lifecycle import Cause, State
from greenroom.protocol.status import ServerStatus
from greenroom.protocol.tree import TreeDeadline

SECRET = "sk-planted-4711"
NAME = "a b"  # a shell needs quotes for it
SETTINGS = Settings(max_connections=7, start_permits=3, install_turns=2, idle_timeout=600.0)
COMMANDS = Commands()
KNOWN: dict[str, Any] = {"tool_count": 2}
UP: dict[str, Any] = {**KNOWN, "state": State.CONNECTED, "pid": 4711, "in_flight": 1, "queued": 5}
LAZY = "It does not run, because it is lazy (lifecycle): the next call of one of its tools starts it."
IDLE = "It is stopped when nobody has called it for 10 min (idleTimeout)."
AGAIN = "It is stopped again when nobody has called it for 10 min (idleTimeout)."
NEVER = "It is never stopped because nobody calls it (idleTimeout)."
ALIVE = "It is kept alive: it is never stopped because nobody calls it (lifecycle)."
CALLS = "It runs as process 4711; calls: 1 in flight, 5 queued."
STAYS_DOWN = "If its process is lost, it stays down until somebody connects it (restartPolicy)."
NEXT_CALL = "If its process is lost, the next call starts it again (restartPolicy)."
BY_ITSELF = "If its process is lost, it is started again by itself (restartPolicy)."
THEN = "then the next call of one of its tools tries to start it again"
TOOLS = ("Known: 2 tools.", None)
NO_TOOLS = ("Its tools are not known yet.", None)

Said = tuple[str, str | None]


def said(
    row: dict[str, Any],
    entry: dict[str, Any],
    settings: Settings = SETTINGS,
    commands: Commands = COMMANDS,
    *,
    runs: bool = True,
    others: Sequence[ServerStatus] = (),
) -> list[Said]:
    whole: dict[str, Any] = {"command": "x", **entry}
    definition = ServerDefinition(name=NAME, **whole)
    found = reasons(ServerStatus(NAME, **row), definition, settings, commands, runs=runs, others=others)
    return [(one.what, one.step) for one in found]


def without_step(what: str) -> Said:
    return what, None


RESTING: list[tuple[dict[str, Any], dict[str, Any], Said]] = [
    ({}, {}, without_step(f"{LAZY} {AGAIN}")),
    ({}, {"idle_timeout": 0.0}, without_step(LAZY)),
    ({}, {"idle_timeout": 119.0}, without_step(f"{LAZY} {AGAIN.replace('10 min', '119 s')}")),
    ({}, {"idle_timeout": 150.0}, without_step(f"{LAZY} {AGAIN.replace('10 min', '150 s')}")),
    ({}, {"idle_timeout": 0.25}, without_step(f"{LAZY} {AGAIN.replace('10 min', '0.25 s')}")),
    ({}, {"idle_timeout": 86_400.0}, without_step(f"{LAZY} {AGAIN.replace('10 min', '24 h')}")),
    ({}, {"idle_timeout": 302_400.0}, without_step(f"{LAZY} {AGAIN.replace('10 min', '84 h')}")),
    ({"state": State.CLOSED}, {"idle_timeout": 120.0}, without_step(f"{LAZY} {AGAIN.replace('10', '2')}")),
    (
        {},
        {"lifecycle": Lifecycle.EAGER},
        without_step(
            "It does not run now, although its lifecycle is eager. The next call starts it at the latest."
        ),
    ),
    (
        {},
        {"lifecycle": Lifecycle.KEEP_ALIVE},
        without_step(
            "It does not run now, although its lifecycle is keep-alive. The next call starts it at the latest."
        ),
    ),
    (
        {},
        {"isolation": Isolation.PER_SESSION},
        without_step("It has no shared process: each session has its own (isolation)."),
    ),
    (
        {},
        {"isolation": Isolation.PER_CALL, "command": None, "url": "http://127.0.0.1:1/"},
        without_step("It does not run between calls: each call has its own connection (isolation)."),
    ),
    (
        {"session_variables": ("TOKEN", "USER")},
        {"isolation": Isolation.PER_SESSION},
        without_step("It runs only for sessions that give it what its entry asks for: TOKEN, USER."),
    ),
    (
        {"needs_auth": True, "down": 'Server "a b" needs a login.'},  # each row of the one has the other
        {},
        (
            'It refuses every request until somebody logs in, or its entry has its token ("bearerToken").',
            "greenroom auth 'a b'",
        ),
    ),
    (
        {"down": "It was drained."},
        {},
        ("It was drained.", "greenroom reconnect 'a b'"),
    ),
    (
        {"retry_in": 3.0},
        {"lifecycle": Lifecycle.KEEP_ALIVE},
        (
            "Its circuit breaker refuses calls for 3 s more (restartBackoff, cooldownMs).",
            "when the cause is mended, do not wait: greenroom refresh 'a b'",
        ),
    ),
    (
        {"waiting_for": Place.BREAKER.value},
        {},
        without_step("A start waits until its circuit breaker lets it pass."),
    ),
]


@pytest.mark.parametrize(("row", "entry", "expected"), RESTING)
def test_why_it_does_not_run(row: dict[str, Any], entry: dict[str, Any], expected: Said) -> None:
    found = said({**KNOWN, **row}, entry)
    assert (found[0], found[-1]) == (expected, TOOLS)
    assert len(found) == 2


def test_the_settings_say_what_an_entry_does_not() -> None:
    per_session = msgspec.structs.replace(SETTINGS, isolation=Isolation.PER_SESSION)
    assert said(KNOWN, {}, per_session)[0][0].startswith("It has no shared process")
    assert said(KNOWN, {"isolation": Isolation.PERSISTENT}, per_session)[0] == (f"{LAZY} {AGAIN}", None)


@for_each(
    ("entry", "settings", "expected"),
    [
        ({}, {}, f"{IDLE} {NEXT_CALL}"),
        ({"idle_timeout": 7200.0}, {}, f"{IDLE.replace('10 min', '2 h')} {NEXT_CALL}"),
        ({"idle_timeout": 172_800.0}, {}, f"{IDLE.replace('10 min', '2 days')} {NEXT_CALL}"),
        ({}, {"idle_timeout": 0.0}, f"{NEVER} {NEXT_CALL}"),
        ({"lifecycle": Lifecycle.EAGER}, {}, f"{NEVER} {NEXT_CALL}"),
        ({"lifecycle": Lifecycle.KEEP_ALIVE}, {}, f"{ALIVE} {BY_ITSELF}"),
        ({"restart_policy": RestartPolicy.NEVER}, {}, f"{IDLE} {STAYS_DOWN}"),
        ({}, {"restart_policy": RestartPolicy.ALWAYS}, f"{IDLE} {BY_ITSELF}"),
        ({"command": None, "url": "http://h/"}, {}, f"{IDLE} {NEXT_CALL.replace('process', 'connection')}"),
    ],
)
def test_of_one_that_runs_until_when(entry: dict[str, Any], settings: dict[str, Any], expected: str) -> None:
    assert said(UP, entry, msgspec.structs.replace(SETTINGS, **settings)) == [
        (CALLS, None),
        (expected, None),
        TOOLS,
    ]


CONNECTING: dict[str, Any] = {**KNOWN, "state": State.CONNECTING}


@for_each(
    ("row", "entry", "expected"),
    [
        ({"waiting": 3.4}, {}, "This try may take 30 s (connectTimeoutMs)."),
        (
            {"waiting": 3.4, "last_line": "loading"},
            {"connect_timeout": 2.5},
            "This try may take 2.5 s (connectTimeoutMs). Its last line: loading",
        ),
        (
            {"waiting": 61.0, "waiting_for": "install", "last_line": "added"},
            {},
            "Its command installs the program first; the limit is 10 min (installTimeoutMs). Its last line: added",
        ),
        (
            {"waiting_for": "install"},
            {"install_timeout": 9.0},
            "Its command installs the program first; the limit is 9 s (installTimeoutMs).",
        ),
    ],
)
def test_of_one_that_connects_for_how_long(row: dict[str, Any], entry: dict[str, Any], expected: str) -> None:
    assert said({**CONNECTING, **row}, entry) == [(expected, None), TOOLS]


@pytest.mark.parametrize(
    ("entry", "thing"), [({}, "process"), ({"command": None, "url": "http://h/"}, "connection")]
)
def test_of_one_that_is_stopped_what_may_finish(entry: dict[str, Any], thing: str) -> None:
    may = "It is being stopped: 4 calls in flight may finish (drainTimeoutMs), then"
    found = said({**KNOWN, "state": State.DRAINING, "in_flight": 4}, entry)
    assert found == [(f"{may} its {thing} is ended.", None), TOOLS]
    found = said({**KNOWN, "state": State.DRAINING}, entry)
    assert found == [(f"It is being stopped: its {thing} is ended.", None), TOOLS]


@for_each(
    ("place", "what", "step"),
    [
        (
            Place.SLOT,
            "A start waits for a slot: all 7 of the pool are taken (maxConnections).",
            "wait until another server is idle, or raise maxConnections",
        ),
        (Place.PERMIT, "A start waits for its turn: 3 servers start at a time (startPermits).", None),
        (Place.TURN, "A look at its tools waits until fewer servers start (startPermits: 3).", None),
        (
            Place.INSTALL_TURN,
            "Its first start waits for its turn: 2 may install at a time (installTurns).",
            None,
        ),
        (Place.BREAKER, "A start waits until its circuit breaker lets it pass.", None),
    ],
)
def test_what_a_start_waits_for(place: Place, what: str, step: str | None) -> None:
    row = {"waiting_for": place.value, "waiting": 12.0}
    assert said(row, {}) == [(what, step), NO_TOOLS], "how long is said above; it is on its way to its tools"
    assert said({"waiting_for": place.value}, {})[0] == (what, step)
    failed = {**row, "failure": "no", "tool_count": 1}
    assert (f"{what} It has waited for 12 s.", step) in said(failed, {})


def test_of_one_that_does_not_answer_that_is_said_first() -> None:
    (what, step), runs, *_ = said({**UP, "silent_failures": 4}, {})
    assert what.startswith(
        "Its last call timed out, and nothing else was heard of it. After 5 failures in a row "
    )
    assert what.endswith("its process is ended, and its circuit breaker refuses calls (cooldownMs).")
    assert (step, runs) == ("greenroom reconnect 'a b'", (CALLS, None))
    assert said({**UP, "silent_failures": 1}, {})[0] == (CALLS, None), "a slow call is no hang"


def test_of_one_that_is_down_the_reason_is_said_once() -> None:
    row = {"down": 'Server "a b" is down (lost: exited). Connect it.', "failure": "exited", **KNOWN}
    assert said(row, {}) == [(row["down"], "greenroom reconnect 'a b'"), TOOLS]


def test_how_it_failed_and_when_it_is_tried_again() -> None:
    row = {
        "failure": "exited with code 1",
        "failed_ago": 199.0,
        "retry_in": 4.2,
        "problems": ("cut at 100 pages",),
    }
    trouble = [
        ("It ended while it ran: exited with code 1", "greenroom logs 'a b'"),  # why it does not run
        (
            f"Its circuit breaker refuses calls for 5 s more (restartBackoff, cooldownMs); {THEN}.",
            "when the cause is mended, do not wait: greenroom refresh 'a b'",
        ),
    ]
    assert said({**row, "tool_count": 1}, {}) == [
        *trouble,
        ("Known: 1 tool.", None),
        ("Its lists are not whole: cut at 100 pages", None),
    ]
    assert said({**row, "problems": ()}, {}) == [*trouble, NO_TOOLS]  # it has a step already
    itself = said({**row, "next_try": 300.0}, {})[1][0]
    assert itself.endswith("5 s more (restartBackoff, cooldownMs); it is tried again by itself in 5 min.")
    _, (why, _), (then, _), *_ = said({**row, "quarantined": "6 restarts in 60 s"}, {})
    assert why.startswith("It is quarantined, because it was restarted too often (6 restarts in 60 s), ")
    assert then.startswith("Its circuit breaker refuses calls "), "why comes before what follows"
    waits = {**row, "waiting_for": Place.BREAKER.value, "next_try": 4.2}
    (_, (refuses, _), *_) = said({**waits, "problems": ()}, {"lifecycle": Lifecycle.KEEP_ALIVE})
    assert refuses.endswith("5 s more (restartBackoff, cooldownMs); then it is tried again by itself.")
    assert len(said({**waits, "problems": ()}, {})) == 3, "one time is said once"
    alive = said(row, {"lifecycle": Lifecycle.KEEP_ALIVE})[1][0]
    assert alive.endswith("; then it is started again by itself (lifecycle: keep-alive).")


@pytest.mark.parametrize("runs", [True, False])
def test_one_that_has_failed_does_not_run_because_of_that(runs: bool) -> None:
    """It was said to rest because it is lazy, and the failure came after that."""
    row = {"failure": "exited with code 1", "failed_ago": 4.0, "failed_starts": 5}
    failed, *rest, tools = said(row, {}, runs=runs)
    assert failed == (
        "Its last start failed (5 in a row): exited with code 1",
        "greenroom logs 'a b'",
    )
    tried = "The next call of one of its tools tries to start it again."
    assert rest == [(tried, None)] * runs, "whether a gateway runs does not matter before it can start"
    assert tools == (NO_TOOLS[0], "try it now: greenroom refresh 'a b'")
    connecting = said({**row, "state": State.CONNECTING}, {})[0][0]
    assert connecting.startswith("Its last start failed 4 s ago (5 in a row): "), "its state has another time"
    assert said({**UP, **row}, {}, runs=True)[0] == (CALLS, None), "what runs now is said first"


@for_each(
    ("row", "step"),
    [
        ({}, "greenroom refresh 'a b'"),
        ({"needs_auth": True, "down": "no login"}, None),
        ({"down": "drained"}, None),
        ({"retry_in": 2.0}, None),
        ({"state": State.CONNECTING, "waiting": 1.0}, None),
    ],
)
def test_who_has_another_step_to_do_is_not_told_to_refresh(row: dict[str, Any], step: str | None) -> None:
    assert said(row, {})[-1] == (NO_TOOLS[0], step)


def test_what_keeps_it_out_is_said_alone() -> None:
    untrusted = ("Its file belongs to this project, and nobody has trusted it yet.", "greenroom trust")
    broken = ("It cannot be used: no command", "correct its entry, or: greenroom disable 'a b'")
    off = ("It is disabled in mcp.json.", "greenroom enable 'a b'")
    row = {"broken": "no command", "disabled": True, "failure": "lost"}
    assert said({**row, "untrusted": True}, {}) == [untrusted]
    assert said(row, {}) == [broken]
    assert said({**row, "broken": None}, {"sources": {"disabled": "mcp.json"}}) == [off]
    assert said({"disabled": True}, {}, runs=False) == [("It is disabled.", "greenroom enable 'a b'")]
    gone = reasons(ServerStatus(NAME), None, SETTINGS, COMMANDS, runs=True)
    assert [one.what for one in gone] == ["It cannot be used: its entry is not valid."]


def test_without_a_gateway_that_is_the_reason() -> None:
    step = "greenroom serve --background"
    reason = ("It does not run, because no gateway of this configuration does.", step)
    assert said(KNOWN, {}, runs=False) == [reason, TOOLS]
    assert said({}, {}, runs=False) == [
        reason,
        ("Its tools are not known yet.", "greenroom refresh 'a b'"),
    ]


def test_commands_are_for_this_configuration_and_this_gateway() -> None:
    typed = Commands("my file.json", 4711)
    assert typed.about("trust") == "greenroom trust --config 'my file.json'"
    assert typed.about("enable", "a") == "greenroom enable --config 'my file.json' a"
    assert typed.live("refresh", "a") == "greenroom refresh --config 'my file.json' --pid 4711 a"
    assert COMMANDS.live("refresh", "-x") == "greenroom refresh -- -x"
    row = {"failure": "lost", "failed_ago": 1.0, "retry_in": 2.0}
    steps = [
        *(step for _, step in said({**row, "needs_auth": True}, {}, commands=typed)),
        *(step for _, step in said({"down": "x"}, {}, commands=typed)),
        *(step for _, step in said({}, {}, commands=typed)),
        *(step for _, step in said({}, {}, commands=typed, runs=False)),
        *(step for _, step in said({"untrusted": True}, {}, commands=typed)),
        *(step for _, step in said({"broken": "x"}, {}, commands=typed)),
        *(step for _, step in said({"disabled": True}, {}, commands=typed)),
    ]
    named = [step for step in steps if step is not None]
    assert len(named) == 9
    assert all("greenroom" in step and "--config 'my file.json'" in step for step in named)
    assert sum("--pid 4711" in step for step in named) == 3


def test_what_it_does_for_each_session_is_said_with_its_process_and_its_trouble() -> None:
    trouble: dict[str, Any] = {"failure": "lost", "failed_ago": 4.0, "retry_in": 1.3}
    rows = [
        ServerStatus(NAME, scope="session:x", state=State.CONNECTED, pid=5, in_flight=2),
        ServerStatus(NAME, scope="session:y", queued=1, **trouble),
        ServerStatus(NAME, scope="call:7", waiting_for=Place.PERMIT.value),
    ]
    found = said(KNOWN, {"isolation": Isolation.PER_SESSION}, others=rows)
    assert found[1:-1] == [
        ("For session:x it is connected, process 5; calls: 2 in flight, 0 queued.", None),
        ("For session:y it is idle; calls: 0 in flight, 1 queued.", None),
        ("For session:y: It ended while it ran 4 s ago: lost", "greenroom logs 'a b'"),
        (
            f"For session:y: Its circuit breaker refuses calls for 2 s more (restartBackoff, cooldownMs); {THEN}.",
            "when the cause is mended, do not wait: greenroom refresh 'a b'",
        ),
        ("For call:7 it is idle; no calls now.", None),
        ("For call:7: A start waits for its turn: 3 servers start at a time (startPermits).", None),
    ]


def test_one_that_older_clients_use_is_not_said_to_rest() -> None:
    older = ServerStatus(NAME, scope="handshake", state=State.CONNECTED, pid=5)
    assert said(KNOWN, {}, others=[older]) == [
        ("For older clients it is connected, process 5; no calls now.", None),
        TOOLS,
    ]
    assert said(UP, {}, others=[older])[0] == (CALLS, None)


def test_a_discovery_is_no_address_of_its_own_and_ends_by_itself() -> None:
    discovery = ServerStatus(NAME, scope="call:catalogue", state=State.CONNECTED, pid=4711)
    what = "It is asked for its lists now, process 4711, and is stopped after that."
    assert said({**UP, "tool_count": None}, {}, others=[discovery])[0] == (what, None)
    assert all("call:" not in what for what, _ in said(UP, {}, others=[discovery]))


@given(
    state=st.sampled_from(State),
    waiting_for=st.none() | st.sampled_from([place.value for place in Place]) | st.just("install"),
    waiting=st.none() | st.floats(0, 1e6),
    pid=st.none() | st.integers(1, 99_999),
    failed_ago=st.none() | st.floats(0, 1e6),
    tool_count=st.none() | st.integers(0, 9),
    lifecycle=st.sampled_from(Lifecycle),
    isolation=st.none() | st.sampled_from(Isolation),
)
def test_of_every_row_something_is_said(
    lifecycle: Lifecycle, isolation: Isolation | None, **row: Any
) -> None:
    row["failure"] = None if row["failed_ago"] is None else "lost"
    for runs in (True, False):
        found = said(row, {"lifecycle": lifecycle, "isolation": isolation}, runs=runs)
        assert len(found) >= 2
        assert all(what and "None" not in what and "inf" not in what for what, _ in found)


@for_each(
    ("lifecycle", "own", "general", "expected"),
    [
        (Lifecycle.LAZY, None, 5.0, 5.0),
        (Lifecycle.LAZY, None, 0.0, math.inf),
        (Lifecycle.LAZY, 7.0, 5.0, 7.0),
        (Lifecycle.LAZY, 0.0, 5.0, math.inf),
        (Lifecycle.EAGER, None, 5.0, math.inf),
        (Lifecycle.EAGER, 7.0, 5.0, 7.0),
        (Lifecycle.KEEP_ALIVE, 7.0, 5.0, math.inf),
        (Lifecycle.KEEP_ALIVE, None, 5.0, math.inf),
    ],
)
def test_the_idle_time_is_the_servers_own_or_that_of_the_settings_and_keep_alive_has_none(
    lifecycle: Lifecycle, own: float | None, general: float, expected: float
) -> None:
    definition = ServerDefinition(name="a", command="x", lifecycle=lifecycle, idle_timeout=own)
    assert idle_time(definition, Settings(idle_timeout=general)) == expected


def test_what_has_happened_of_late_is_told_with_its_times_and_its_callers() -> None:
    at, now = Address(NAME), 1_000.0

    def failed(ago: float, words: str) -> Transition:
        steps: dict[str, Any] = {"before": State.CONNECTING, "after": State.DRAINING}
        return Transition(0, now - ago, at, 1, **steps, cause=Cause.CONNECT_FAILED, words=words)

    def called(ago: float, client: str | None) -> CallAccepted:
        return CallAccepted(0, now - ago, at, 1, call=1, method="tools/call", tool="t", client=client)

    other = msgspec.structs.replace(failed(1.0, "of another"), address=Address("other"))
    stopped = msgspec.structs.replace(failed(2.0, ""), cause=Cause.IDLE_TIMEOUT)
    events: list[Event] = [
        failed(300.0, "no answer within 2.9 s"),
        failed(299.0, "no answer within 3 s"),
        failed(40.0, "exited"),
        called(30.0, "command-7"),
        called(20.0, "cli-1"),
    ]
    events += [called(9.0, "cli-1"), failed(3.0, "exited"), stopped, other]
    past = past_of(NAME, events, now, TreeDeadline("idle eviction", 41.2))
    typed = "the command line (1 call, the last 30 s ago)"
    assert [one.what for one in past.told()] == [
        "It failed 4 times in the last 10 min: 3 s, 40 s, 5 min and 5 min ago.",
        "Before, 5 min ago, it failed otherwise: no answer within 3 s",
        f"Called in the last 10 min by cli-1 (2 calls, the last 9 s ago), {typed}.",
    ]
    often = past_of(NAME, [failed(60.0 * ago, "exited") for ago in range(7, 0, -1)], now, None)
    assert [one.what for one in often.told()] == [
        "It failed 7 times in the last 10 min; the last 5 times: 60 s, 2 min, 3 min, 4 min and 5 min ago."
    ]
    row, definition = ServerStatus(NAME, **UP), ServerDefinition(name=NAME, command="x")
    found = reasons(row, definition, SETTINGS, COMMANDS, runs=True, past=past)
    assert found[1].what.startswith("It is stopped in 42 s unless somebody calls it (idleTimeout).")
    assert [one.about for one in found] == ["state", "state", "history", "history", "history", "tools"]


def test_when_it_is_tried_again_by_itself_and_how_long_it_may_connect() -> None:
    row = {"failure": "exited", "failed_ago": 4.0, "retry_in": 8.0, "next_try": 300.0}
    assert "refuses calls for 8 s more" in said(row, {})[1][0]
    del row["retry_in"]
    assert said(row, {})[1] == without_step("It is tried again by a call, or by itself in 5 min.")
    lasting = {"failure": "no such command", "failed_ago": 4.0, "failure_kind": "program"}
    assert said(lasting, {})[1][0].endswith("tried again when its entry, its command or its files change.")
    assert "change" not in said(lasting, {"bootstrap": False})[1][0], "nothing is started in the background"


@pytest.mark.parametrize(
    ("waiting", "left", "expected"),
    [
        (16.0, 9.6, "may take 10 s more (connectTimeoutMs)."),
        (46.0, 9.6, "may take 10 s more: one in the background has more time than {}."),
        (46.0, None, "goes on: one in the background has more time than {}."),
        (16.0, None, "may take {}."),
    ],
)
def test_one_that_connects_has_the_limit_of_this_try(
    waiting: float, left: float | None, expected: str
) -> None:
    """It said 48 s of 30 s."""
    connecting = ServerStatus(NAME, state=State.CONNECTING, waiting=waiting)
    past = past_of(NAME, [], 0.0, None if left is None else TreeDeadline("connect timeout", left))
    definition = ServerDefinition(name=NAME, command="x", connect_timeout=30.0)
    (first, *_) = reasons(
        definition=definition, row=connecting, settings=SETTINGS, commands=COMMANDS, runs=True, past=past
    )
    assert first.what == "This try " + expected.format("30 s (connectTimeoutMs)")


# ---- the command -----------------------------------------------------------------------------------------------------


def test_it_shows_the_entry_with_its_file_what_doctor_finds_and_no_secret(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = {
        "a": {"command": "nowhere-4711", "env": {"TOKEN": SECRET}, "comand": 1, "idleTimeout": 5},
        "ab": {"command": "nowhere-4712"},
        "bad": {"command": 3},
    }
    file = own_config(home, json.dumps({"mcpServers": entries}))
    assert run(["explain", "a"]) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert lines[0] == "a: not connected"
    assert lines[1] == "  It does not run, because no gateway of this configuration does."
    assert lines[3:5] == ["  → greenroom serve --background", "  → greenroom refresh a"]
    assert lines[5].startswith("✗ its program is not found or cannot be run: nowhere-4711")
    assert lines[6].startswith("    → ")
    assert f"{file}: mcpServers.a.comand: unknown key" in lines[7]
    assert lines[9].startswith(
        "its policies: lifecycle lazy, isolation persistent, restartPolicy on_demand, "
    )
    assert lines[10:] == [
        f"its entry, from {file}:",
        '  command: "nowhere-4711"',
        '  env: {"TOKEN": "***"}',
        "  idleTimeout: 5",
        '  comand: "***"',
    ]
    assert "idleTimeout 5 min, connectTimeoutMs 30 s" in lines[9], "its file stands below, with the entry"
    assert SECRET not in shown.out + shown.err
    assert run(["explain", "a", "--json"]) == 0
    policies = json.loads(capsys.readouterr().out)["policies"]
    assert [one["file"] for one in policies if one["key"] in ("idleTimeout", "lifecycle")] == ["", str(file)]
    assert "4712" not in shown.out

    assert "comand" not in shown.err, "it is said once"
    assert run(["explain", "bad"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "bad: broken",
        f"  It cannot be used: {file}: mcpServers.bad.command: must be a string, is a number: put it in quotes",
        "  → correct its entry, or: greenroom disable bad",
    ]
    assert run(["explain", "c"]) == 2
    assert 'There is no server "c" in this configuration. There are: a, ab, bad.' in capsys.readouterr().err


def test_the_names_that_there_are_stand_in_one_line(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own_config(home, json.dumps({"mcpServers": {name: {"command": "x"} for name in ("a\nb", "c")}}))
    assert run(["explain", "x\n\x1b[2J"]) == 2
    assert 'There is no server "x" in this configuration. There are: a b, c.' in capsys.readouterr().err


def test_each_key_comes_with_its_file_when_they_are_of_several(
    home: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = own_config(home, json.dumps({"mcpServers": {"a": {"disabled": True}}}))
    shared = home / ".config" / "mcp" / "mcp.json"
    shared.parent.mkdir()
    shared.write_text(json.dumps({"mcpServers": {"a": {"command": sys.executable}}}))
    assert run(["explain", "a"]) == 0
    said = capsys.readouterr().out
    assert f"  It is disabled in {file}.\n  → greenroom enable a\n" in said
    assert f"  command: {json.dumps(sys.executable)} ({shared})\n" in said
    assert f"  disabled: true ({file})\n" in said
    assert run(["explain", "a", "--json"]) == 0
    details = json.loads(capsys.readouterr().out)
    assert details["sources"] == {"command": str(shared), "disabled": str(file)}
    assert (details["server"], details["source"], details["findings"]) == ("a", "cache", [])
    assert details["reasons"] == [
        {"about": "state", "what": f"It is disabled in {file}.", "step": "greenroom enable a"}
    ]


@pytest.mark.parametrize("name", ["a.b", "a b", "a"])
def test_what_is_found_about_it_is_shown_whatever_its_name_and_about_its_files(
    name: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secrets = home / "secrets.env"
    secrets.write_text("TOKEN=x")
    secrets.chmod(0o644)
    other = home / "other.env"
    other.write_text("TOKEN=x")
    other.chmod(0o644)
    entries = {
        name: {"command": sys.executable, "comand": 1, "env": {"TOKEN": SECRET}, "envFile": str(secrets)},
        f"{name}c": {"command": sys.executable, "comand": 2, "envFile": str(other)},
    }
    file = own_config(home, json.dumps({"mcpServers": entries}), 0o644)
    assert run(["explain", name, "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    of_key = (
        'mcpServers["a.b"]' if name == "a.b" else 'mcpServers["a b"]' if name == "a b" else "mcpServers.a"
    )
    assert {(one["check"], one["about"]) for one in findings} == {
        ("configuration", f"{file}: {of_key}.comand"),
        ("rights", str(file)),
        ("rights", str(secrets)),
    }


def test_a_running_gateway_explains_what_it_knows_itself(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)  # the gateway has it

    def refuses(handler: Handler, _seen: Seen) -> bool:
        handler.send_response(401)
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return True

    def explain(name: str) -> tuple[dict[str, Any], str]:
        capfd.readouterr()
        assert run(["explain", name, "--json", "--config", "mcp.json"]) == 0
        details = json.loads(capfd.readouterr().out)
        assert run(["explain", name, "--config", "mcp.json"]) == 0
        return details, capfd.readouterr().out

    with raw_http() as far:
        far.hook = refuses
        servers = {
            "calm": faulty(tmp_path, "calm"),
            "dies": {"command": sys.executable, "args": ["-c", "raise SystemExit(3)"]},
            "there": {"url": "http://127.0.0.1:1${XDG_RUNTIME_DIR}"},
            "login": {"url": far.url},
        }
        with serve(tmp_path, servers, "--idle-timeout", "5000") as gateway:
            gateway.initialize()
            for name in ("calm", "dies", "login"):
                gateway.mcp(connect=name)
            calm, _ = explain("calm")
            _, dead = explain("dies")
            there, _ = explain("there")
            login, _ = explain("login")
            gateway.end()
    assert (calm["source"], calm["status"]["state"], calm["addresses"]) == ("gateway", "connected", [])
    whats = [one["what"] for one in calm["reasons"]]
    assert whats[0] == f"It runs as process {calm['status']['pid']}; no calls now."
    assert calm["since"] >= 0.0
    until = r"Nobody has called it since it started; it is stopped in \d s unless somebody does\. "
    assert re.fullmatch(until + re.escape(NEXT_CALL), whats[1]), "as its option says"
    assert whats[2].startswith("Called in the last 10 min by ") is False, "a connect is no call"
    policies = {one["key"]: (one["value"], one["file"]) for one in calm["policies"]}
    assert policies["lifecycle"] == ("lazy", "")
    assert policies["idleTimeout"][0] == "5 s"
    assert re.match(r"dies: failed \d+ s ago\n  Its last start failed: exited with code 3", dead)
    assert there["reasons"][0]["what"].startswith("As read here its entry cannot be used: ")
    assert there["reasons"][1]["what"].startswith("It does not run, because it is lazy")
    steps = [one["step"] for one in login["reasons"] if one["step"] is not None]
    assert steps == ["greenroom auth --config mcp.json login"]


def test_one_that_was_called_after_its_lists_were_read_has_its_whole_idle_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It was said to be stopped in the ten seconds of one that only its lists were read of."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with serve(tmp_path, {"s": faulty(tmp_path, "s")}, bootstrap=True) as gateway:
        gateway.initialize()
        until(lambda: "1/1 server" in gateway.mcp()["content"][0]["text"])  # it was started to be listed
        gateway.mcp(tool="s_echo", args={"text": "x"})
        capfd.readouterr()
        assert run(["explain", "s", "--config", "mcp.json"]) == 0
        assert "It is stopped in 10 min unless somebody calls it (idleTimeout)." in capfd.readouterr().out
        gateway.end()


def test_a_cause_is_told_once_with_what_mends_it(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    entries = {"gone": {"command": "nowhere-4711"}, "down": {"url": f"http://127.0.0.1:{port}/mcp"}}
    own_config(home, json.dumps({"mcpServers": entries}))
    assert run(["refresh"]) == 1
    told = capsys.readouterr().err.splitlines()[-1]
    step, *others = sorted(told.removeprefix("greenroom: to see why: ").split("; "))
    assert [step, *others] == ["greenroom explain down", "greenroom explain gone"]
    for name, cause, step in (
        ("gone", "nowhere-4711", 'correct "command" of gone'),
        ("down", "no connection can be made", "start the server"),
    ):
        assert run(["explain", name]) == 0
        said = capsys.readouterr().out
        head, failed, *more = said.splitlines()
        assert re.fullmatch(rf"{name}: failed \d+ s ago", head), said
        assert cause in failed
        assert failed.endswith("."), "what mends it is the step's to say"
        (mend,) = [line for line in more if line.startswith(f"  → {step}")]
        assert mend[4:].casefold() not in failed.casefold()
        assert "✗" not in said
        assert "⚠" not in said
        assert "gateway" not in said
    assert run(["refresh", "gone"]) == 1
    assert capsys.readouterr().err.endswith("greenroom: to see why: greenroom explain gone\n")


def test_one_whose_start_failed_is_to_be_run_by_hand_as_it_is_typed(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "a program"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o700)
    entries: dict[str, Any] = {
        "exits": {"command": str(program)},
        "hangs": {"command": "sleep", "args": ["60"], "cwd": str(tmp_path), "connectTimeoutMs": 200},
        "other": {"command": str(program), "args": ["${HOME}"]},
    }
    own_config(home, json.dumps({"mcpServers": entries}))
    assert run(["refresh"]) == 1
    said: dict[str, str] = {}
    for name in entries:
        capsys.readouterr()
        assert run(["explain", name]) == 0
        said[name] = capsys.readouterr().out
    assert f"  → run it by hand: '{program}'\n" in said["exits"]
    assert "Is it an MCP server on stdio?" in said["hangs"]
    assert "  → run it by hand (with the cwd that it has below): sleep 60\n" in said["hangs"]
    assert "  → run it by hand: its command, which is below\n" in said["other"]
