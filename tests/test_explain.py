"""`greenroom explain`: what a server does, why, and what happens next, with a command where somebody has to act."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.gateway import faulty, serve
from tests.support.homes import own_config

from greenroom.gateway._cli._main import run
from greenroom.gateway._setup._why import of_sessions, reasons
from greenroom.protocol.config import Isolation, Lifecycle, RestartPolicy, ServerDefinition, Settings
from greenroom.protocol.effective import idle_time
from greenroom.protocol.lifecycle import State
from greenroom.protocol.start import Place
from greenroom.protocol.status import ServerStatus

SECRET = "sk-planted-4711"
NAME = "a b"  # a shell needs quotes for it
SETTINGS = Settings(max_connections=7, start_permits=3, install_turns=2, idle_timeout=600.0)
KNOWN: dict[str, Any] = {"tool_count": 2}
UP: dict[str, Any] = {**KNOWN, "state": State.CONNECTED, "pid": 4711, "in_flight": 1, "queued": 5}
LAZY = "It does not run, because it is lazy: the next call of one of its tools starts it."
IDLE = "It is stopped when nobody has called it for 10 min (idleTimeout)."
NEVER = "It is never stopped because nobody calls it (idleTimeout)."
ALIVE = "It is kept alive: it is never stopped because nobody calls it (lifecycle)."
CALLS = "It is connected, process 4711; calls: 1 in flight, 5 queued."
STAYS_DOWN = "If its process is lost it stays down until somebody connects it (restartPolicy)."
NEXT_CALL = "If its process is lost the next call starts it again (restartPolicy)."
AT_ONCE = "If its process is lost it is started again at once (restartPolicy)."
TOOLS = ("2 tools are known.", None)

Said = tuple[str, str | None]


def said(
    row: dict[str, Any], entry: dict[str, Any], settings: Settings = SETTINGS, *, runs: bool = True
) -> list[Said]:
    definition = ServerDefinition(name=NAME, command="x", **entry)
    found = reasons(ServerStatus(NAME, **row), definition, settings, runs=runs)
    return [(one.what, one.step) for one in found]


RESTING: list[tuple[dict[str, Any], dict[str, Any], Said]] = [
    ({}, {}, (f"{LAZY} {IDLE}", None)),
    ({}, {"idle_timeout": 0.0}, (LAZY, None)),
    (
        {},
        {"idle_timeout": 119.0},
        (f"{LAZY} It is stopped when nobody has called it for 119 s (idleTimeout).", None),
    ),
    ({"state": State.CLOSED}, {"idle_timeout": 120.0}, (f"{LAZY} {IDLE.replace('10', '2')}", None)),
    (
        {},
        {"lifecycle": Lifecycle.EAGER},
        (
            "It does not run now, although its lifecycle is eager. The next call starts it at the latest.",
            None,
        ),
    ),
    (
        {},
        {"lifecycle": Lifecycle.KEEP_ALIVE},
        (
            "It does not run now, although its lifecycle is keep-alive. The next call starts it at the latest.",
            None,
        ),
    ),
    (
        {},
        {"isolation": Isolation.PER_SESSION},
        ("It does not run for everybody: each session has its own process (isolation).", None),
    ),
    (
        {},
        {"isolation": Isolation.PER_CALL},
        ("It does not run between calls: each call has its own process (isolation).", None),
    ),
    (
        {"session_variables": ("TOKEN", "USER")},
        {"isolation": Isolation.PER_SESSION},
        ("It runs only for sessions that give it what its entry asks for: TOKEN, USER.", None),
    ),
    (
        {"needs_auth": True},
        {},
        ("It refuses every request until somebody logs in.", "greenroom auth 'a b'"),
    ),
    (
        {"down": "It was drained.", "needs_auth": True},
        {},
        ("It is down: It was drained.", "greenroom reconnect 'a b'"),
    ),
]


@pytest.mark.parametrize(("row", "entry", "expected"), RESTING)
def test_why_it_does_not_run(row: dict[str, Any], entry: dict[str, Any], expected: Said) -> None:
    assert said({**KNOWN, **row}, entry) == [expected, TOOLS]


@pytest.mark.parametrize(
    ("entry", "settings", "expected"),
    [
        ({}, {}, f"{IDLE} {NEXT_CALL}"),
        ({"idle_timeout": 7200.0}, {}, f"{IDLE.replace('10 min', '2 h')} {NEXT_CALL}"),
        ({"idle_timeout": 172_800.0}, {}, f"{IDLE.replace('10 min', '2 days')} {NEXT_CALL}"),
        ({}, {"idle_timeout": 0.0}, f"{NEVER} {NEXT_CALL}"),
        ({"lifecycle": Lifecycle.EAGER}, {}, f"{NEVER} {NEXT_CALL}"),
        ({"lifecycle": Lifecycle.KEEP_ALIVE}, {}, f"{ALIVE} {AT_ONCE}"),
        ({"restart_policy": RestartPolicy.NEVER}, {}, f"{IDLE} {STAYS_DOWN}"),
        ({}, {"restart_policy": RestartPolicy.ALWAYS}, f"{IDLE} {AT_ONCE}"),
    ],
)
def test_of_one_that_runs_until_when(entry: dict[str, Any], settings: dict[str, Any], expected: str) -> None:
    assert said(UP, entry, attrs.evolve(SETTINGS, **settings)) == [(CALLS, None), (expected, None), TOOLS]


CONNECTING: dict[str, Any] = {**KNOWN, "state": State.CONNECTING}


@pytest.mark.parametrize(
    ("row", "entry", "expected"),
    [
        ({"waiting": 3.4}, {}, "It has been connecting for 3 s, at most 30 s (connectTimeoutMs)."),
        (
            {"waiting": 3.4, "last_line": "loading"},
            {"connect_timeout": 2.5},
            "It has been connecting for 3 s, at most 2.5 s (connectTimeoutMs). Its last line: loading",
        ),
        (
            {"waiting": 61.0, "waiting_for": "install", "last_line": "added it"},
            {},
            "Its program is being installed for 61 s, at most 600 s (installTimeoutMs). Its last line: added it",
        ),
        (
            {"waiting_for": "install"},
            {"install_timeout": 9.0},
            "Its program is being installed, at most 9 s (installTimeoutMs).",
        ),
    ],
)
def test_of_one_that_connects_for_how_long(row: dict[str, Any], entry: dict[str, Any], expected: str) -> None:
    assert said({**CONNECTING, **row}, entry) == [(expected, None), TOOLS]


def test_of_one_that_is_stopped_what_may_finish() -> None:
    what = "It is being stopped: its calls in flight (4) may finish. Then its process is ended."
    assert said({**KNOWN, "state": State.DRAINING, "in_flight": 4}, {}) == [(what, None), TOOLS]


@pytest.mark.parametrize(
    ("place", "what", "step"),
    [
        (
            Place.SLOT,
            "A start waits for a slot: all 7 of the pool are taken (maxConnections). It has waited for 12 s.",
            "wait until another server is idle, or raise maxConnections",
        ),
        (
            Place.PERMIT,
            "A start waits for its turn: 3 servers start at a time (startPermits). It has waited for 12 s.",
            None,
        ),
        (
            Place.TURN,
            "Its first start waits for its turn: 2 may install at a time (installTurns). It has waited for 12 s.",
            None,
        ),
        (
            Place.INSTALL_TURN,
            "Its first start waits for its turn: 2 may install at a time (installTurns). It has waited for 12 s.",
            None,
        ),
        (Place.GATE, "A start waits until its gate opens. It has waited for 12 s.", None),
    ],
)
def test_what_a_start_waits_for(place: Place, what: str, step: str | None) -> None:
    row = {"waiting_for": place.value, "waiting": 12.0}
    assert said(row, {}) == [
        (f"{LAZY} {IDLE}", None),
        (what, step),
        ("Nothing is known of its tools yet.", None),  # it is on its way to them
    ]


def test_how_it_failed_and_when_it_is_tried_again() -> None:
    row = {
        "failure": "exited with code 1",
        "failed_ago": 180.0,
        "retry_in": 4.2,
        "problems": ("cut at 100 pages",),
    }
    assert said({**row, "tool_count": 1}, {})[1:] == [
        ("It last failed 3 min ago: exited with code 1", None),
        (
            "Its gate is shut after that: calls are refused for 5 s more.",
            "wait, or try it now: greenroom reconnect 'a b'",
        ),
        ("1 tool is known.", None),
        ("Its lists are not whole: cut at 100 pages", None),
    ]


def test_what_keeps_it_out_is_said_alone() -> None:
    untrusted = ("Its file belongs to this project, and nobody has trusted it yet.", "greenroom trust")
    broken = ("It cannot be used: no command", "correct its entry, or: greenroom disable 'a b'")
    off = ("It is disabled in mcp.json.", "greenroom enable 'a b'")
    row = {"broken": "no command", "disabled": True, "failure": "lost"}
    assert said({**row, "untrusted": True}, {}) == [untrusted]
    assert said(row, {}) == [broken]
    assert said({**row, "broken": None}, {"sources": {"disabled": "mcp.json"}}) == [off]
    assert said({"disabled": True}, {}, runs=False) == [("It is disabled.", "greenroom enable 'a b'")]


def test_without_a_gateway_that_is_the_reason() -> None:
    step = "greenroom serve, or greenroom init CLIENT and a start of that client"
    reason = ("It does not run: there is no gateway of this configuration.", step)
    assert said(KNOWN, {}, runs=False) == [reason, TOOLS]
    assert said({}, {}, runs=False) == [
        reason,
        ("Nothing is known of its tools yet.", "greenroom refresh 'a b'"),
    ]


def test_what_it_does_for_each_session_is_said_with_its_process() -> None:
    rows = [
        ServerStatus(NAME, scope="session:x", state=State.CONNECTED, pid=5, in_flight=2),
        ServerStatus(NAME, scope="session:y", queued=1),
    ]
    assert [one.what for one in of_sessions(rows)] == [
        "For session:x it is connected, process 5; calls: 2 in flight, 0 queued.",
        "For session:y it is idle; calls: 0 in flight, 1 queued.",
    ]


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


@pytest.mark.parametrize(
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


# ---- the command -----------------------------------------------------------------------------------------------------


def test_it_shows_the_entry_with_its_file_what_doctor_finds_and_no_secret(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = {
        "a": {"command": "nowhere-4711", "env": {"TOKEN": SECRET}, "comand": 1},
        "ab": {"command": "nowhere-4712"},
        "bad": {"command": 3},
    }
    file = own_config(home, json.dumps({"mcpServers": entries}))
    assert run(["explain", "a"]) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert lines[0] == "a"
    assert lines[1] == "  It does not run: there is no gateway of this configuration."
    assert lines[4] == "    → greenroom refresh a"
    assert lines[5].startswith("✗ its program is not found or cannot be run: nowhere-4711")
    assert lines[6].startswith("    → ")
    assert f"{file}: mcpServers.a.comand: unknown key" in lines[7]
    assert lines[9:] == [
        f"its entry, from {file}:",
        '  command: "nowhere-4711"',
        '  env: {"TOKEN": "***"}',
        '  comand: "***"',
    ]
    assert SECRET not in shown.out + shown.err
    assert "4712" not in shown.out

    assert run(["explain", "bad"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "bad",
        f"  It cannot be used: {file}: mcpServers.bad.command: must be a string, is a number",
        "    → correct its entry, or: greenroom disable bad",
    ]
    assert run(["explain", "c"]) == 2
    assert 'There is no server "c" in this configuration. There are: a, ab.' in capsys.readouterr().err


def test_each_key_comes_with_its_file_when_they_are_of_several(
    home: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = own_config(home, json.dumps({"mcpServers": {"a": {"disabled": True}}}))
    shared = home / ".config" / "mcp" / "mcp.json"
    shared.parent.mkdir()
    shared.write_text(json.dumps({"mcpServers": {"a": {"command": sys.executable}}}))
    assert run(["explain", "a"]) == 0
    said = capsys.readouterr().out
    assert f"  It is disabled in {file}.\n    → greenroom enable a\n" in said
    assert f"  command: {json.dumps(sys.executable)} ({shared})\n" in said
    assert f"  disabled: true ({file})\n" in said
    assert run(["explain", "a", "--json"]) == 0
    details = json.loads(capsys.readouterr().out)
    assert details["sources"] == {"command": str(shared), "disabled": str(file)}
    assert (details["server"], details["source"], details["findings"]) == ("a", "cache", [])
    assert details["reasons"] == [{"what": f"It is disabled in {file}.", "step": "greenroom enable a"}]


def test_a_running_gateway_is_asked(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    dies = {"command": sys.executable, "args": ["-c", "raise SystemExit(3)"]}
    with serve(tmp_path, {"calm": faulty(tmp_path, "calm"), "dies": dies}) as gateway:
        gateway.greet()
        gateway.mcp(connect="calm")
        gateway.mcp(connect="dies")
        capfd.readouterr()
        assert run(["explain", "calm", "--json", "--config", "mcp.json"]) == 0
        calm = json.loads(capfd.readouterr().out)
        assert run(["explain", "dies", "--config", "mcp.json"]) == 0
        dead = capfd.readouterr().out
        gateway.end()
    assert (calm["source"], calm["status"]["state"]) == ("gateway", "connected")
    whats = [one["what"] for one in calm["reasons"]]
    assert whats[0] == f"It is connected, process {calm['status']['pid']}; calls: 0 in flight, 0 queued."
    assert whats[1] == f"{IDLE} {NEXT_CALL}"
    assert re.search(r"^  It last failed \d+ s ago: exited with code 3", dead, re.MULTILINE)
