"""Many clients on one background gateway, each of which ends at a random moment: nothing of them is left, and no call
of another is lost. And the gateway is killed at random moments. `make soak` runs it with two hundred clients, thirty
servers and twenty rooms; otherwise it is small and short."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import attrs
from tests.support.attached import Background, background
from tests.support.gateway import PATIENCE, Gateway, alive, faulty, logged_pids
from tests.support.patience import until

from greenroom.gateway.doors import control_client as control


@attrs.frozen
class Scale:
    clients: int
    own: int  # of these, those that call a server which is isolated per session
    steps: int
    sharers: int  # clients that use every server
    servers: int
    kills: int
    burst: int  # calls of each client before a kill
    within: float  # seconds, for the kill after the burst
    calm: float  # seconds between kills


FULL = Scale(
    clients=200, own=8, steps=4000, sharers=5, servers=30, kills=20, burst=150, within=0.15, calm=5.5
)
SMALL = Scale(clients=3, own=1, steps=12, sharers=2, servers=2, kills=1, burst=100, within=0.02, calm=0.0)


def scale() -> Scale:
    return FULL if os.environ.get("GREENROOM_SOAK") else SMALL


@attrs.define(eq=False)
class BusyClient:
    """An attached client, the one server that it calls, and its calls in flight."""

    gateway: Gateway
    server: str
    stack: ExitStack
    waiting: dict[int, str] = attrs.field(
        factory=dict[int, str], init=False
    )  # calls in flight, and their text

    def call(self, word: str) -> None:
        self.waiting[self.gateway.start_mcp(tool=f"{self.server}_echo", args={"text": word})] = word

    def settle(self) -> None:
        """Every call of this client is answered, with its own answer."""
        for number, word in self.waiting.items():
            answer = self.gateway.answer(number)
            assert word in answer["result"]["content"][0]["text"], answer
        self.waiting.clear()


def come(room: Background, server: str) -> BusyClient:
    with ExitStack() as stack:
        gateway = stack.enter_context(room.attach())
        gateway.initialize()
        return BusyClient(gateway, server, stack.pop_all())


def vitals(room: Background) -> dict[str, Any]:
    """What the room holds: tasks, threads, and descriptors without the one that watches its files, which it opens some
    time after it has begun to serve."""
    gateway = control.find_gateway(room.place.name, room.pid())
    assert gateway is not None
    with gateway:
        told = gateway.ask("vitals")
        kinds = [_target(entry) for entry in Path(f"/proc/{told['pid']}/fd").iterdir()]
    return {**told, "descriptors": sum(kind != "anon_inode:inotify" for kind in kinds)}


def _target(descriptor: Path) -> str:
    with suppress(FileNotFoundError):  # it was closed since the folder was read
        return os.readlink(descriptor)
    return ""


def leave(client: BusyClient, chance: random.Random) -> None:
    """End a client at whatever moment it is: in order, or by killing what attached."""
    with client.stack:
        if chance.random() < 0.5:
            client.gateway.process.kill()
        else:
            assert client.gateway.process.stdin is not None
            client.gateway.process.stdin.close()
        client.gateway.process.wait(PATIENCE)


def test_t20_clients_that_end_at_any_moment_leave_nothing_and_lose_nobody_elses_calls(
    tmp_path: Path, monkeypatch: Any
) -> None:
    size, chance = scale(), random.Random(28)
    servers = {"f": faulty(tmp_path, "f"), "own": {**faulty(tmp_path, "own"), "isolation": "per_session"}}
    with background(tmp_path, servers, maxConnections=2 * size.own + 4) as room, ExitStack() as all_clients:
        monkeypatch.setenv("XDG_CACHE_HOME", room.environment["XDG_CACHE_HOME"])
        last = come(room, "f")
        all_clients.callback(last.stack.close)
        last.call("warm")
        last.settle()
        base = vitals(room)
        clients = [come(room, "own" if number < size.own else "f") for number in range(size.clients)]
        for client in clients:
            all_clients.callback(client.stack.close)
        for step in range(size.steps):
            place = chance.randrange(len(clients))
            client = clients[place]
            what = chance.random()
            if what < 0.7:
                client.call(f"word {step}")
            elif what < 0.9:
                client.settle()
            else:
                leave(client, chance)
                clients[place] = come(room, client.server)
                all_clients.callback(clients[place].stack.close)
        for client in clients:
            client.settle()
        for client in clients:
            leave(client, chance)
        until(lambda: len(room.status()["clients"]) == 1, "the end of all others")
        until(lambda: len(alive(logged_pids(tmp_path))) == 1, "the end of their children")
        last.call("still here")
        last.settle()
        keys = ("tasks", "threads", "descriptors")
        until(lambda: all(vitals(room)[key] <= base[key] for key in keys), f"at most {base}")


def test_clients_share_one_process_of_each_server(tmp_path: Path) -> None:
    size = scale()
    names = [f"s{number}" for number in range(size.servers)]
    servers = {name: faulty(tmp_path, name) for name in names}
    with background(tmp_path, servers, maxConnections=size.servers) as room, ExitStack() as stack:
        clients = [stack.enter_context(room.attach()) for _ in range(size.sharers)]
        for client in clients:
            client.initialize()
        asked = [
            (client, [client.start_mcp(tool=f"{name}_pid", args={}) for name in names]) for client in clients
        ]
        seen = [
            [client.answer(number)["result"]["content"][0]["text"] for number in numbers]
            for client, numbers in asked
        ]
        assert all(pids == seen[0] for pids in seen), "every client has the same process of each server"
        assert len(logged_pids(tmp_path)) == size.servers


def test_t20_every_request_has_one_answer_however_often_the_room_is_killed(tmp_path: Path) -> None:
    """Each client writes a burst of calls, and the room is killed somewhere in the middle. A call has its own answer,
    or the error that says that it may have run."""
    size, chance = scale(), random.Random(9)
    with background(tmp_path, {"f": faulty(tmp_path, "f")}) as room, ExitStack() as stack:
        clients = [come(room, "f") for _ in range(size.sharers)]
        for client in clients:
            stack.callback(client.stack.close)
        outcomes = {"answered": 0, "lost": 0}
        for kill in range(size.kills):
            pid = room.pid()
            for client in clients:
                with client.gateway.in_one_write():
                    for number in range(size.burst):
                        client.call(f"kill {kill} call {number}")
            time.sleep(chance.random() * size.within)
            os.kill(pid, signal.SIGKILL)
            for client in clients:
                for number, word in client.waiting.items():
                    answer = client.gateway.answer(number)
                    if "error" in answer:
                        assert answer["error"]["data"] == {"error": "room_lost", "reach": "sent"}
                        outcomes["lost"] += 1
                    else:
                        assert word in answer["result"]["content"][0]["text"], answer
                        outcomes["answered"] += 1
                client.waiting.clear()
            time.sleep(size.calm)  # a room that is lost sooner is not replaced
        assert sum(outcomes.values()) == size.kills * size.burst * size.sharers
        print(f"\n{size.kills} rooms killed: {outcomes}")
