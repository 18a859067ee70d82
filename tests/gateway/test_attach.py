"""`greenroom attach`: one background gateway for all clients of a configuration, with real processes."""

from __future__ import annotations

import array
import fcntl
import json
import os
import signal
import sys
import termios
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support import in_virtual_time
from tests.support.attached import Background, background
from tests.support.gateway import HELLO, PATIENCE, Gateway, alive, faulty, gone_within, logged_pids
from tests.support.patience import until
from tests.support.rooms import open_room

from greenroom.config import private_files
from greenroom.gateway.doors.attach_protocol import Hello, RoomLines, send_hello
from greenroom.gateway.doors.attach_server import Doorway
from greenroom.testing.fake_servers import FakeServer, tool


def text(result: dict[str, Any]) -> str:
    return result["content"][0]["text"]


def server_pid(client: Gateway, server: str = "f") -> str:
    return text(client.mcp(tool=f"{server}_pid", args={}))


def initialized(stack: ExitStack, room: Background, *options: str, **environment: str) -> Gateway:
    client = stack.enter_context(room.attach(*options, **environment))
    client.initialize()
    return client


def asked_for_roots(client: Gateway) -> str:
    """Have the server ask the client, which must have told its room that it can answer. Returns the request's id."""
    call = client.start_mcp(tool="f_ask", args={"method": "roots/list"})

    def request() -> dict[str, Any] | None:
        client.answer(client.send("ping"))
        found = [each for each in client.asked if each["method"] == "roots/list"]
        return found[-1] if found else None

    asked = until(request, "the request")
    client.asked.clear()
    client.write({"id": asked["id"], "result": {"roots": [{"uri": "file:///here"}]}})
    assert "file:///here" in text(client.answer(call)["result"])
    return asked["id"]


def unread(client: Gateway) -> int:
    """Bytes that the client has written and nobody has read."""
    count = array.array("i", [0])
    assert client.process.stdin is not None
    fcntl.ioctl(client.process.stdin.fileno(), termios.FIONREAD, count)
    return count[0]


def test_t20_clients_that_start_at_once_share_one_room_and_none_loses_anothers_calls(tmp_path: Path) -> None:
    servers = {"f": faulty(tmp_path, "f"), "g": faulty(tmp_path, "g")}
    with background(tmp_path, servers) as room, ExitStack() as stack:
        clients = [stack.enter_context(room.attach()) for _ in range(8)]
        for client in clients:
            client.initialize()
        assert len(room.rooms()) == 1
        assert len({server_pid(client) for client in clients}) == 1
        assert len({server_pid(client, "g") for client in clients[:5]}) == 1
        assert len(logged_pids(tmp_path)) == 2, "one process for each server, whatever the number of clients"
        seen = room.status()
        assert len(seen["clients"]) == 8
        assert "8 clients are attached" in room.command("status").stdout

        first, second, third, *others = clients
        waiting = [client.start_mcp(tool="f_sleep", args={"seconds": 0.2}) for client in clients]
        first.process.kill()  # the bridge
        first.process.wait(PATIENCE)
        assert second.end() == 0, "its client has closed its end"
        assert third.process.stdout is not None
        for client, number in zip(others, waiting[3:], strict=True):
            assert "error" not in client.answer(number)
        until(lambda: len(room.status()["clients"]) == 6)

        assert room.command("stop").returncode == 0
        assert [client.process.wait(PATIENCE) for client in (third, *others)] == [0] * 6
        until(lambda: not room.rooms(), "the end of the room")
        assert not room.place.socket.exists()
        assert not gone_within(logged_pids(tmp_path))


def test_one_room_is_started_even_if_the_first_to_start_it_is_killed(tmp_path: Path) -> None:
    with background(tmp_path, {"f": faulty(tmp_path, "f")}) as room, ExitStack() as stack:
        first = stack.enter_context(room.attach())
        until(room.rooms, "the start of a room")
        first.process.kill()
        first.process.wait(PATIENCE)
        clients = [stack.enter_context(room.attach()) for _ in range(3)]
        assert len({server_pid(client) for client in clients if client.initialize()}) == 1
        until(lambda: len(room.rooms()) == 1, "one room")


def test_a_client_goes_on_with_another_room_after_its_room_was_killed(tmp_path: Path) -> None:
    with background(tmp_path, {"f": faulty(tmp_path, "f")}) as room, ExitStack() as stack:
        client, other = stack.enter_context(room.attach()), initialized(stack, room)
        client.answer(client.send("initialize", {**HELLO, "capabilities": {"roots": {}}}))
        client.tell("notifications/initialized")
        old = asked_for_roots(client)
        before = server_pid(client)
        lost = client.start_mcp(tool="f_sleep", args={"seconds": 3600})
        half = b'{"jsonrpc":"2.0","id":"half","method":"tools/call","params":{"name":"mcp",'
        assert other.process.stdin is not None
        other.process.stdin.write(half)
        other.process.stdin.flush()
        until(lambda: not unread(other), "reading half a line")
        client.mcp()
        until(lambda: any(each["inFlight"] for each in room.status()["clients"]), "the call in flight")
        first = room.pid()
        os.kill(first, signal.SIGSTOP)
        unseen = client.start_mcp(tool="f_echo", args={"text": "never read by the first room"})
        os.kill(first, signal.SIGKILL)

        failure = client.answer(lost)["error"]
        assert failure["data"] == {"error": "room_lost", "reach": "sent"}
        assert "may have run" in failure["message"]
        assert "never read by the first room" in text(client.answer(unseen)["result"])
        assert server_pid(client) != before
        assert room.pid() != first
        assert asked_for_roots(client) != old, (
            "an answer to the first room can be for no request of the second"
        )

        other.process.stdin.write(b'"arguments":{}}}\n')
        other.process.stdin.flush()
        assert server_pid(other) == server_pid(client), "still one room, and its other client is there"
        answers: Any = other.answered
        assert "f (10 tools)" in text(answers["half"]["result"]), (
            "the half that came while there was another room is not lost"
        )
        assert not gone_within({int(before)}), "the guard has ended the servers of the killed room"
        assert client.end() == 0


def test_a_room_that_is_lost_right_after_another_was_is_not_replaced(tmp_path: Path) -> None:
    """Each room that the client finds takes it, and ends at once."""
    with background(tmp_path, {}) as room:
        room.place.socket.parent.mkdir(parents=True, mode=0o700)
        listener = private_files.bind_own(room.place.socket, 4)
        with listener, room.attach() as client:
            listener.settimeout(PATIENCE)
            for _ in range(2):
                line, _address = listener.accept()
                with line:
                    assert line.recv(1 << 16)
                    line.sendall(b"{}\n")
            assert client.process.wait(PATIENCE) == 1
            listener.settimeout(0.0)
            with pytest.raises(BlockingIOError):
                listener.accept()


def test_a_room_that_is_stopped_lets_every_clients_calls_finish(tmp_path: Path) -> None:
    profiles = {"few": {"tools": ["sleep"]}}
    with background(tmp_path, {"f": faulty(tmp_path, "f")}, profiles) as room, ExitStack() as stack:
        clients = [
            initialized(stack, room),
            initialized(stack, room, "--expose", "direct", "--profile", "few"),
        ]
        server_pid(clients[0])
        listed = clients[1].answer(clients[1].send("tools/list"))["result"]["tools"]
        assert [tool["name"] for tool in listed] == ["f_sleep"], "each client sees what its own attach says"
        with room.attach("--profile", "unknown") as refused:
            assert refused.process.wait(PATIENCE) == 2
        numbers = [
            clients[0].start_mcp(tool="f_sleep", args={"seconds": 0.5}),
            clients[1].send("tools/call", {"name": "f_sleep", "arguments": {"seconds": 0.5}}),
        ]
        pid = room.pid()
        for client in clients:
            client.answer(client.send("ping"))  # so the calls were read, too
        os.kill(pid, signal.SIGTERM)
        for client, number in zip(clients, numbers, strict=True):
            assert not client.answer(number)["result"].get("isError")
        assert [client.process.wait(PATIENCE) for client in clients] == [0, 0]


def test_a_second_signal_hurries_a_room_that_waits_for_its_clients_calls(tmp_path: Path) -> None:
    servers = {"f": faulty(tmp_path, "f")}
    with background(tmp_path, servers, drainTimeoutMs=600_000) as room, room.attach() as client:
        client.initialize()
        client.start_mcp(tool="f_sleep", args={"seconds": 3600})
        until(lambda: any(each["inFlight"] for each in room.status()["clients"]), "the call in flight")
        pid = room.pid()
        os.kill(pid, signal.SIGTERM)
        until(lambda: not room.place.socket.exists(), "the end of the door")
        assert alive({pid})
        os.kill(pid, signal.SIGTERM)
        assert not gone_within({pid})


def test_a_room_in_the_background_is_started_shown_and_stopped_by_name(tmp_path: Path) -> None:
    with background(tmp_path, {"f": faulty(tmp_path, "f")}) as room:
        assert (
            room.command("stop").stderr == "greenroom: no background gateway runs for this configuration.\n"
        )
        assert "is ready" in room.command("serve", "--background", "--max-connections", "3").stderr
        assert "runs already" in room.command("serve", "--background").stderr
        pid = room.pid()
        assert room.rooms() == {pid}
        assert b"--max-connections\x003\x00" in Path(f"/proc/{pid}/cmdline").read_bytes()
        assert os.getsid(pid) != os.getsid(0)
        assert os.readlink(f"/proc/{pid}/fd/0") == os.readlink(f"/proc/{pid}/fd/1") == os.devnull
        assert os.readlink(f"/proc/{pid}/cwd") == os.fspath(tmp_path)
        assert room.place.socket.stat().st_mode & 0o777 == 0o600
        assert room.place.socket.parent.stat().st_mode & 0o777 == 0o700
        room.kill()
        assert room.place.socket.exists(), "a killed room leaves its socket"
        with room.attach() as client:
            client.initialize()
            assert room.pid() != pid
            assert "has ended" in room.command("stop").stderr
            assert client.process.wait(PATIENCE) == 0
        assert not room.place.socket.exists()


def test_a_room_without_clients_leaves_by_itself(tmp_path: Path) -> None:
    with background(tmp_path, {"f": faulty(tmp_path, "f")}, backgroundIdle=0.02) as room:
        with room.attach() as client:
            client.initialize()
            server_pid(client)
            pid = room.pid()
            assert client.end() == 0
        assert not gone_within({pid})
        assert not room.place.socket.exists()
        assert not alive(logged_pids(tmp_path))


@in_virtual_time
async def test_a_call_from_a_shell_lets_the_background_gateway_stay() -> None:
    """It ended ten minutes after its start, and with it what its servers kept, however often it was called."""
    notes: list[str] = []
    left = anyio.Event()

    async def slow(_arguments: object) -> str:
        await anyio.sleep(900.0)
        return "done"

    servers = {"s": FakeServer(tools=[tool("ping")]), "slow": FakeServer(tools=[tool("wait")], handler=slow)}
    async with (
        open_room(servers) as room,
        anyio.create_task_group() as tasks,
    ):
        unused: Any = None
        doorway = Doorway(room, unused, "0", None, 1000, notes.append, left.set, left.is_set)
        tasks.start_soon(doorway.leave_when_idle, 600.0)
        for _ in range(3):
            await anyio.sleep(400.0)
            await room.call("ping", server="s")
        await room.call("wait", server="slow", timeout=1000.0)
        await anyio.sleep(590.0)
        assert not left.is_set()
        await anyio.sleep(100.0)
        assert left.is_set()
    assert notes == ["nobody has used it for 10 min: the background gateway ends"]


def test_a_room_leaves_for_a_newer_greenroom_unless_it_has_clients(tmp_path: Path) -> None:
    def answer(room: Background) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        line = room.place.dial()
        assert line is not None
        with line:
            line.settimeout(PATIENCE)
            send_hello(line, Hello(version="999.0"), [])
            words = RoomLines(line)
            return words.next(), words.next()

    with background(tmp_path, {"f": faulty(tmp_path, "f")}) as room:
        with room.attach() as client:
            client.initialize()
            pid = room.pid()
            said, _ = answer(room)
            assert said is not None
            assert said["error"]["code"] == "invalid_request", "it was taken, but brought no descriptors"
            assert client.end() == 0
        until(lambda: not room.status()["clients"])
        assert answer(room) == ({"leaving": True}, None)
        assert not gone_within({pid})


def test_each_client_brings_the_values_of_its_own_session_and_nothing_else(tmp_path: Path) -> None:
    own = {**faulty(tmp_path, "f"), "isolation": "per_session", "env": {"TOKEN": "${session.MY_TOKEN}"}}
    own["scrub"] = "off"
    with background(tmp_path, {"f": own}) as room, ExitStack() as stack:
        one = initialized(stack, room, MY_TOKEN="one", UNRELATED="private")
        two = initialized(stack, room, MY_TOKEN="two")
        none = initialized(stack, room)
        for client, token in ((one, "one"), (two, "two")):
            assert json.loads(text(client.mcp(tool="f_env", args={})))["TOKEN"] == token
        refusal = none.mcp(tool="f_env", args={})
        assert refusal["isError"]
        assert "MY_TOKEN" in text(refusal)
        pids = {server_pid(one), server_pid(two)}
        assert len(pids) == 2
        environment = Path(f"/proc/{room.pid()}/environ").read_bytes()
        assert b"MY_TOKEN" not in environment
        one.process.kill()
        until(lambda: len(alive({int(pid) for pid in pids})) == 1, "the end of the killed client's child")
        assert json.loads(text(two.mcp(tool="f_env", args={})))["TOKEN"] == "two"


def test_a_client_that_ends_does_not_wait_for_its_servers_to_end(tmp_path: Path) -> None:
    own = {**faulty(tmp_path, "f", "--ignore-eof", "--ignore-term"), "isolation": "per_session"}
    with background(tmp_path, {"f": own}, stopTimeoutMs=600_000) as room:
        with room.attach() as client:
            client.initialize()
            child = int(server_pid(client))
            assert client.end() == 0
        assert alive({child}), "it ignores everything short of SIGKILL"
        os.kill(child, signal.SIGKILL)
        assert not gone_within({child})


def test_nobody_is_hurt_by_what_is_no_hello(tmp_path: Path) -> None:
    with background(tmp_path, {"f": faulty(tmp_path, "f")}) as room, ExitStack() as stack:
        client = initialized(stack, room)
        for junk in (b"junk\n", b'{"version": 3}\n', b"[]\n", b"x" * (1 << 21)):
            line = room.place.dial()
            assert line is not None
            with line:
                line.settimeout(PATIENCE)
                try:
                    line.sendall(junk)
                except OSError:
                    continue  # it was cut off in the middle, which is right
                answer = RoomLines(line).next()
                assert answer is None or answer["error"]["code"] == "invalid_request"
        half = room.place.dial()
        assert half is not None
        with half:
            half.sendall(b'{"version":')
            assert server_pid(client)


@pytest.mark.skipif(sys.platform != "linux", reason="it needs a file in memory")
def test_t60_no_memory_is_shared_that_a_client_could_shrink(tmp_path: Path) -> None:
    """A client brings files in memory as its pipes, or beside them, and empties them under the room's hands."""
    with background(tmp_path, {"one": faulty(tmp_path, "one")}) as room, room.attach() as bystander:
        bystander.initialize()
        running = bystander.start_mcp(tool="one_sleep", args={"seconds": 1})
        pid = room.pid()
        said = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping", "junk": "x" * 5_000}).encode() + b"\n"
        for count in (2, 3):
            memories = [os.memfd_create("m", os.MFD_ALLOW_SEALING) for _ in range(count)]
            os.write(memories[0], said * 100)
            os.lseek(memories[0], 0, os.SEEK_SET)
            line = room.place.dial()
            assert line is not None
            with line:
                line.settimeout(PATIENCE)
                send_hello(line, Hello(version="0", pid=os.getpid()), memories)
                for memory in memories:
                    os.ftruncate(memory, 0)
                word = RoomLines(line).next()
                assert word is not None
                assert "error" not in word
            for memory in memories:
                os.close(memory)
        assert "result" in bystander.answer(running)
        assert room.pid() == pid
        assert "memfd" not in Path(f"/proc/{pid}/maps").read_text()
        assert bystander.end() == 0
