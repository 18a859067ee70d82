"""T37: who floods pays for it. A real gateway, a good server, and one that says too much."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support import run
from tests.support.gateway import Gateway, faulty, serve
from tests.support.stalls import assert_not_held_up, hostile, memory_of, waits
from tests.support.stdio import Call, Recorder

from greenroom.actors.backend import current_backend
from greenroom.actors.transports.line_peer import LinePeer
from greenroom.gateway.doors.stdio_door import StdioDoor

MANY = "20000000"  # lines: none of them gets to the end of it
FLOODS = {
    "pings": {"id": 7, "method": "ping"},
    "requests": {"id": 7, "method": "roots/list"},
    "news": {"method": "notifications/message", "params": {"level": "info", "data": "x"}},
    "progress": {"method": "notifications/progress", "params": {"progressToken": 1, "progress": 1}},
}
JUNK = {
    "letters": "y",
    "nothing": "",
    "empty": "{}",
    "strange": '{"id":987654321,"result":{}}',
    "batch": "[{}]",
}


def _calm(gateway: Gateway) -> list[float]:
    gateway.initialize()
    waits(gateway, "good_echo", 5)
    return waits(gateway, "good_echo")


def _connect(gateway: Gateway, server: str) -> int:
    return gateway.send("tools/call", {"name": f"{server}_echo", "arguments": {}})


@pytest.mark.parametrize("flood", FLOODS)
def test_t37_a_server_that_floods_holds_nobody_up_and_fills_no_memory(tmp_path: Path, flood: str) -> None:
    line = json.dumps({"jsonrpc": "2.0", **FLOODS[flood]}, separators=(",", ":"))
    servers = {"good": faulty(tmp_path, "good"), "bad": hostile("2025-11-25", line, MANY)}
    with serve(tmp_path, servers, "--expose", "direct", stopTimeoutMs=500) as gateway:
        calm = _calm(gateway)
        before = memory_of(gateway)
        _connect(gateway, "bad")  # whether it is answered is the flood's affair
        meanwhile = waits(gateway, "good_echo", 5) and waits(gateway, "good_echo")

        assert_not_held_up(calm, meanwhile)
        assert memory_of(gateway) - before < 32 << 20
        gateway.end()


def test_t37_replies_to_one_that_does_not_read_them_are_bounded_in_number(backend: str) -> None:
    async def body() -> None:
        to_us, from_us = os.pipe(), os.pipe()
        for fd in (to_us[0], from_us[1]):
            os.set_blocking(fd, False)
        hooks = Recorder()
        peer: Any = LinePeer(
            current_backend(),
            hooks,
            read_fd=to_us[0],
            write_fd=from_us[1],
            max_line=1 << 26,
            on_over=hooks.notes.append,
        )
        try:
            for _ in range(60):
                os.write(to_us[1], b'{"jsonrpc":"2.0","id":7,"method":"ping"}\n' * 1000)
                while peer.read() and peer._rest:
                    pass
            assert len(peer._writer._queue) <= 1024
            assert "a message was dropped: it does not read its stdin: 1,024 messages" in str(hooks.notes)
            peer.request(call := Call("ping"))  # a call of ours has its place all the same
            assert call in [exchange for _line, exchange in peer._writer._queue]
        finally:
            for fd in (*to_us, *from_us):
                os.close(fd)

    run(backend, body)


@pytest.mark.parametrize("junk", JUNK)
def test_t37_a_server_that_says_nothing_but_junk_is_ended_as_failed(tmp_path: Path, junk: str) -> None:
    servers = {"good": faulty(tmp_path, "good"), "bad": hostile("2025-11-25", JUNK[junk], MANY)}
    with serve(tmp_path, servers, "--expose", "direct", stopTimeoutMs=500) as gateway:
        calm = _calm(gateway)
        number = _connect(gateway, "bad")
        meanwhile = waits(gateway, "good_echo")

        said = json.dumps(gateway.answer(number))
        assert "10,0" in said, said
        assert "lines to stdout without one message of the protocol" in said
        assert_not_held_up(calm, meanwhile)
        assert gateway.end() == 0


def test_t37_a_command_that_is_no_server_is_ended_at_once(tmp_path: Path) -> None:
    for command in (["yes"], ["cat", "/dev/zero"]):
        servers = {"bad": {"command": command[0], "args": command[1:]}}
        with serve(tmp_path, servers, stopTimeoutMs=500) as gateway:
            gateway.initialize()
            said = json.dumps(gateway.mcp(connect="bad"))
            assert "to stdout without one message of the protocol" in said, said
            assert memory_of(gateway) < 256 << 20
            assert gateway.end() == 0


def test_t37_a_client_that_floods_has_its_lines_taken_in_turns(backend: str) -> None:
    """Others have theirs between: here a task that counts them."""
    lines, turns = 3000, 0

    async def count() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async def body() -> None:
        stdin, stdout = os.pipe(), os.pipe()
        heard: list[bytes] = []
        try:
            door: Any = StdioDoor(current_backend(), stdin[0], stdout[1], max_line=1 << 20)
            with door.opened():
                os.write(stdin[1], b"hello\n" * lines)
                os.close(stdin[1])
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(count)
                    await door.read(heard.append)
                    tasks.cancel_scope.cancel()
        finally:
            for fd in (stdin[0], *stdout):
                os.close(fd)
        assert len(heard) == lines
        assert turns >= lines / 100 / 2

    run(backend, body)
