"""The status of a server: one record, through every door and back."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import in_virtual_time
from tests.support.gateway import faulty, serve
from tests.support.rooms import open_room
from tests.support.rows import for_each

from greenroom import DrainReport, ServerStatus
from greenroom.events import NoteCode
from greenroom.protocol.lifecycle import State
from greenroom.protocol.status import json_of, status_from
from greenroom.testing.fake_servers import FakeServer

TEXTS = st.text(max_size=5)
TENTHS = st.integers(0, 10_000).map(lambda tenths: tenths / 10)
STATUSES = st.builds(
    ServerStatus,
    server=TEXTS,
    scope=st.sampled_from(["shared", "session:ann"]),
    lifecycle=st.sampled_from(["lazy", "eager", "keep-alive"]),
    state=st.sampled_from(State),
    incarnation=st.integers(0, 9),
    in_flight=st.integers(0, 9),
    queued=st.integers(0, 9),
    waiting_for=st.none() | TEXTS,
    waiting=st.none() | TENTHS,
    last_line=st.none() | TEXTS,
    tool_count=st.none() | st.integers(0, 9),
    problems=st.lists(TEXTS, max_size=2).map(tuple),
    pid=st.none() | st.integers(1, 9),
    failure=st.none() | TEXTS,
    failed_ago=st.none() | TENTHS,
    start_took=st.none() | TENTHS,
    odd=st.none() | TEXTS,
    retry_in=st.none() | TENTHS,
    needs_auth=st.booleans(),
    disabled=st.booleans(),
    broken=st.none() | TEXTS,
    down=st.none() | TEXTS,
    faults=st.lists(TEXTS, max_size=2).map(tuple),
)


@given(STATUSES)
def test_what_is_written_is_read_back(status: ServerStatus) -> None:
    assert status_from(json.loads(json.dumps(json_of(status)))) == status


def test_every_field_is_written_by_its_name_in_json() -> None:
    said = json_of(ServerStatus("clock", tool_count=3, waiting=1.234, faults=("a name",)))
    assert said.pop("cached")
    assert (said.pop("server"), said.pop("status")) == ("clock", "cached")
    assert len(said) == len(ServerStatus.__struct_fields__)
    assert (said["name"], said["toolCount"], said["waiting"], said["state"]) == ("clock", 3, 1.2, "idle")
    assert (said["faults"], said["inFlight"], said["retryIn"], said["needsAuth"]) == (
        ["a name"],
        0,
        None,
        False,
    )


@pytest.mark.parametrize(
    ("wrong", "named"),
    [({"state": "asleep"}, "status.state"), ({"inFlight": "many"}, "status.in_flight"), ({"name": 0}, None)],
)
def test_what_is_wrong_is_named(wrong: dict[str, Any], named: str | None) -> None:
    said = {**json_of(ServerStatus("clock")), **wrong}
    if named is None:
        assert status_from(said).server == "0"
        return
    with pytest.raises(ValueError, match=named):
        status_from(said)


def test_a_running_gateway_and_its_commands_tell_the_same_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from greenroom.cli.main import run

    monkeypatch.chdir(tmp_path)  # sockets are reached by short names here
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # they are there
    servers = {name: faulty(tmp_path, name) for name in ("a", "b")}
    with serve(tmp_path, {**servers, "off": {"command": "x", "disabled": True}}) as gateway:
        gateway.initialize()
        gateway.mcp(tool="a_echo", args={"text": "one"})
        shown = gateway.mcp()["_meta"]["greenroom/details"]["servers"]
        capfd.readouterr()
        assert run(["status", "--json", "--config", str(tmp_path / "mcp.json")]) == 0
        said = json.loads(capfd.readouterr().out)
        gateway.end()
    assert said["source"] == "gateway"
    rows = {row["name"]: status_from(row) for row in said["servers"]}
    assert [row["name"] for row in shown] == list(rows) == ["a", "b", "off"]
    assert [row["status"] for row in said["servers"]] == [row["status"] for row in shown]
    assert (rows["a"].state, rows["a"].tool_count, rows["a"].in_flight) == (
        State.CONNECTED,
        shown[0]["toolCount"],
        0,
    )
    assert rows["a"].pid is not None
    assert (rows["off"].disabled, rows["off"].tool_count, rows["off"].cached) == (True, None, False)


@pytest.mark.parametrize("isolation", ["persistent", "per_session"])
@in_virtual_time
async def test_it_says_how_long_the_last_start_took_and_what_was_odd_since(isolation: str) -> None:
    server = FakeServer(start_latency=2.0, initialize_latency=3.0, list_latency=1.0)
    async with (
        open_room({"a": server}, entries={"a": {"isolation": isolation}}) as room,
        room.session("ann") as ann,
    ):
        assert (room.status()[0].start_took, room.status()[0].odd) == (None, None)
        await ann.call("a_echo")
        server.connections[-1].note(NoteCode.LATE_ANSWER, "a late or second answer: id 2")
        assert room.status()[0].odd is None, "it is over"
        for words in ("junk on stdout: hello", "junk on stdout: again"):
            server.connections[-1].note(NoteCode.JUNK, words)
        for row in room.status():
            assert (row.start_took, row.odd, row.odd_code) == (6.0, "junk on stdout: hello", "junk")
        server.crash()
        server.start_latency = 1.0
        await anyio.sleep(60)
        assert room.status()[0].odd == "junk on stdout: hello"  # until it starts again
        await ann.call("a_echo")
        for row in room.status():
            assert (row.start_took, row.odd) == (5.0, None)


def test_to_write_it_needs_no_library() -> None:
    script = (
        "import sys; from greenroom.protocol.status import ServerStatus, json_of; "
        "json_of(ServerStatus('a')); print('cattrs' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_seconds_have_one_decimal_and_none_of_nothing_is_known_of_a_view_without_tools() -> None:
    said = json_of(ServerStatus("a", waiting=0.04, failed_ago=1.25, retry_in=2.96, tool_count=0))
    assert (said["waiting"], said["failedAgo"], said["retryIn"], said["cached"]) == (0.0, 1.2, 3.0, True)
    assert json_of(ServerStatus("a"))["cached"] is False
    view = {**said, "cached": False, "more": "of a view"}
    assert status_from(view).tool_count is None
    assert status_from({**said, "cached": True}).tool_count == 0
    assert status_from({"name": "a"}) == ServerStatus("a")
    for state in State:
        one = ServerStatus("a", state=state)
        assert (one.connecting, one.connected) == (state is State.CONNECTING, state is State.CONNECTED)


@for_each("numbers", [*product((0, 3), repeat=4)])
def test_a_drain_report_adds_up_when_each_accepted_call_has_one_end(
    numbers: tuple[int, int, int, int],
) -> None:
    accepted, completed, failed, cancelled = numbers
    report = DrainReport(accepted, completed, failed, cancelled, 2, {"timeout": 1, "server_busy": 2})
    assert report.adds_up is (completed + failed + cancelled == accepted)
    assert str(report) == (
        f"{accepted} calls accepted: {completed} completed, {failed} failed, {cancelled} cancelled "
        "(2 refused: 1 timeout, 2 server_busy)"
    )
    assert str(DrainReport(1, 1, 0, 0, 0)).endswith("(0 refused)")
