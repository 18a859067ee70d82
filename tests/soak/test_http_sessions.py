"""Many HTTP sessions with a child each, opened and ended over few slots: memory, processes, descriptors and tasks are
back where they were. Half of the clients end their session by DELETE, half just leave, and the idle limit ends it.
`make soak` runs it with a thousand sessions and twenty slots; otherwise it is small and short."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import httpx2
import pytest
from tests.gateway.test_http_serve import Served, call, served
from tests.support.gateway import alive, faulty, gone_within, logged_pids
from tests.support.patience import PATIENCE, until

from greenroom.gateway.doors import control_client as control
from greenroom.gateway.doors.control_protocol import identity

GROWTH = (
    24 << 20
)  # bytes of resident memory, which an allocator may keep; a thousand kept sessions are far more
IDLE = 0.02  # minutes


@attrs.frozen
class Scale:
    sessions: int
    slots: int
    at_once: int  # clients; the sessions of one server have half the slots


FULL = Scale(sessions=1000, slots=20, at_once=16)
SMALL = Scale(sessions=6, slots=4, at_once=3)


def vitals(folder: Path) -> dict[str, int]:
    """What the gateway holds: tasks, threads, and descriptors without the one that watches its files, which it opens
    some time after it has begun to serve."""
    gateway = control.find_gateway(identity([os.fspath(folder / "mcp.json")]))
    assert gateway is not None
    with gateway:
        told = gateway.ask("vitals")
        kinds = [_target(entry) for entry in Path(f"/proc/{told['pid']}/fd").iterdir()]
    return {**told, "descriptors": sum(kind != "anon_inode:inotify" for kind in kinds)}


def _target(descriptor: Path) -> str:
    try:
        return os.readlink(descriptor)
    except FileNotFoundError:  # it was closed since the folder was read
        return ""


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def visit(one: Served, http: httpx2.Client, number: int) -> None:
    """A client with a session and a call of its own server. It comes anew when its session idled away before the call,
    as may happen on a busy machine."""
    while True:
        headers = one.session()
        said = json.dumps(call("own_echo", text=f"word {number}"))
        answer = http.post(one.url, content=said, headers=headers)
        if answer.status_code != 404:
            break
    assert answer.status_code == 200, answer.text
    assert f"word {number}" in answer.text, answer.text
    if number % 2:
        http.delete(one.url, headers=headers)


def test_sessions_that_come_and_go_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = FULL if os.environ.get("GREENROOM_SOAK") else SMALL
    for name, folder in (("XDG_CACHE_HOME", tmp_path / "cache"), ("XDG_RUNTIME_DIR", tmp_path)):
        monkeypatch.setenv(name, os.fspath(folder))
    servers = {"own": {**faulty(tmp_path, "own"), "isolation": "per_session"}}
    settings: dict[str, Any] = {"maxConnections": size.slots, "http": {"sessionIdle": IDLE}}
    with served(tmp_path, servers, **settings) as one:

        def is_calm() -> bool:
            status = one.http.get(one.url.replace("/mcp", "/status")).json()
            return status["sessions"] == 0 and not alive(logged_pids(tmp_path))

        visit(one, one.http, 1)
        until(is_calm, "the end of the first session")
        base, memory = vitals(tmp_path), resident(one.process.pid)
        with (
            httpx2.Client(trust_env=False, timeout=PATIENCE, headers=one.http.headers) as http,
            ThreadPoolExecutor(size.at_once) as clients,
        ):
            list(clients.map(lambda number: visit(one, http, number), range(size.sessions)))
        until(is_calm, "the end of all sessions and children")
        one.http.close()
        keys = ("tasks", "threads", "descriptors")
        until(lambda: all(vitals(tmp_path)[key] <= base[key] for key in keys), f"at most {base}")
        grown = resident(one.process.pid) - memory
        print(
            f"\n{size.sessions} sessions over {size.slots} slots: {grown / (1 << 20):.1f} MiB more resident memory"
        )
        assert grown < GROWTH
    assert not gone_within(logged_pids(tmp_path))
