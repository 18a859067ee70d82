"""`greenroom call` through a gateway that ends meanwhile."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.attached import Background, background
from tests.support.forked import GREENROOM, popen_forked
from tests.support.gateway import PATIENCE, faulty
from tests.support.patience import until

from greenroom.gateway.doors import control_client
from greenroom.protocol.errors import Reach


@contextmanager
def calling(room: Background, *words: str) -> Generator[subprocess.Popen[str]]:
    """`greenroom call`, in flight at the server."""
    process = popen_forked(
        [*GREENROOM, "call", *words, "--config", os.fspath(room.config)],
        env=room.environment,
        cwd=room.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:

        def is_in_flight() -> bool:
            said = room.command("status", "--json")
            return any(each["inFlight"] for each in json.loads(said.stdout)["servers"])

        until(is_in_flight, "the call in flight")
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("as_json", [True, False])
def test_a_call_whose_gateway_is_killed_may_have_run_and_is_not_to_be_just_repeated(
    as_json: bool, tmp_path: Path
) -> None:
    with background(tmp_path, {"f": faulty(tmp_path, "f")}) as room:
        room.command("serve", "--background")
        with calling(room, "f_sleep", "seconds=3600", *(["--json"] if as_json else [])) as call:
            room.kill()
            out, err = call.communicate(timeout=PATIENCE)
        assert call.returncode == 1
        if as_json:
            told: dict[str, Any] = json.loads(out)
            assert (told["mode"], told["tool"], told["reach"]) == ("call", "f_sleep", "sent")
            assert "may have run" in told["message"]
        assert ("the call was sent and may have run" in err) is not as_json
        assert "again" not in out + err


def test_a_call_through_a_gateway_that_is_interrupted_says_that_it_may_have_run(tmp_path: Path) -> None:
    with background(tmp_path, {"f": faulty(tmp_path, "f")}) as room:
        room.command("serve", "--background")
        with calling(room, "f_sleep", "seconds=3600") as call:
            call.send_signal(signal.SIGINT)
            out, err = call.communicate(timeout=PATIENCE)
    told = "greenroom: interrupted: the call was sent and may have run.\n"
    assert (call.returncode, out, err) == (130, "", told)


@pytest.mark.parametrize("is_gone", [True, False])
def test_only_a_request_that_was_written_is_told_as_sent(is_gone: bool, tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with control_client.Gateway(os.getpid(), ours, tmp_path / "none.sock") as gateway:
        if is_gone:
            theirs.close()
        else:
            theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(control_client.GatewayLost, match=r"Run the command again\.") as caught:
            gateway.ask("mcp")
        assert caught.value.reach is (Reach.NOT_SENT if is_gone else Reach.SENT)
    theirs.close()


def test_a_room_that_is_stopped_lets_a_commands_call_finish_as_those_of_clients(tmp_path: Path) -> None:
    with background(tmp_path, {"f": faulty(tmp_path, "f")}) as room, room.attach() as client:
        client.initialize()
        with calling(room, "f_sleep", "seconds=2", "--json") as call:
            attached = client.start_mcp(tool="f_sleep", args={"seconds": 2})
            client.answer(client.send("ping"))
            assert room.command("stop").returncode == 0
            assert not client.answer(attached)["result"].get("isError")
            out, err = call.communicate(timeout=PATIENCE)
        assert (call.returncode, err) == (0, "")
        assert "error" not in json.loads(out)


@pytest.mark.parametrize("how", ["broken", "gone", "by its process"])
def test_a_room_whose_file_is_broken_or_gone_can_be_stopped(how: str, tmp_path: Path) -> None:
    with background(tmp_path, {"f": faulty(tmp_path, "f")}) as room:
        room.command("serve", "--background")
        pid = room.pid()
        room.config.write_text("{")
        if how == "gone":
            room.config.unlink()
        words = ["--pid", str(pid)] if how == "by its process" else []
        assert room.command("stop", "--pid", str(os.getpid())).returncode == 2, "it is no room"
        done = room.command("stop", *words)
        assert (done.returncode, done.stderr) == (
            0,
            f"greenroom: the background gateway (pid {pid}) has ended.\n",
        )
        until(lambda: not room.rooms(), "the end of the room")
        assert room.command("stop").returncode == 2, "now only the file is told of"


def test_a_room_that_is_suspended_is_named_and_not_waited_for(tmp_path: Path) -> None:
    with background(tmp_path, {"f": faulty(tmp_path, "f")}) as room:
        room.command("serve", "--background")
        pid = room.pid()
        os.kill(pid, signal.SIGSTOP)
        try:
            done = room.command("stop")
        finally:
            os.kill(pid, signal.SIGCONT)
        assert done.returncode == 1
        assert f"The gateway (pid {pid}) does not answer: nothing came from it for 2 s" in done.stderr
