"""A server that does not answer the handshake, but writes something else: what it wrote is in the error, wherever that
is shown."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import anyio
import pytest
from tests.support import in_real_time
from tests.support.forked import GREENROOM, run_forked

from greenroom import Greenroom
from greenroom.errors import ConnectFailed

_READS = "import sys, json\nfor line in sys.stdin:\n  id = json.loads(line).get('id')\n  "
ANSWER = "{'jsonrpc': '2.0', 'id': %s, 'result': {'protocolVersion': '2025-11-25', 'capabilities': {}}}"
SERVERS = {
    "framed": ("print('Content-Length: 20', '', '{}', sep='\\n', flush=True)", "Content-Length: 20"),
    "pretty": (
        f"print(json.dumps({ANSWER % 'id'}, indent=2), flush=True)",
        "that are not JSON-RPC, the first",
    ),
    "prefixed": (f"print('[INFO]', json.dumps({ANSWER % 'id'}), flush=True)", "[INFO]"),
    "other id": (f"print(json.dumps({ANSWER % 9999}), flush=True)", "it answered to id 9999"),
    "no end": ("sys.stdout.write('half a line'); sys.stdout.flush()", 'no end of the line: "half a line'),
    "usage": ("print('usage: server --stdio'); sys.exit(2)", "usage: server --stdio"),
}


@in_real_time
async def test_what_a_server_wrote_instead_of_an_answer_is_in_the_error() -> None:
    config = {
        "mcpServers": {
            name: {"command": sys.executable, "args": ["-S", "-c", _READS + does], "connectTimeoutMs": 2500}
            for name, (does, _) in SERVERS.items()
        },
        "settings": {"probeTimeoutMs": 500},
    }
    errors: dict[str, str] = {}

    async def connect(room: Greenroom, name: str) -> None:
        with pytest.raises(ConnectFailed) as caught:
            await room.connect(name)
        errors[name] = str(caught.value)

    async with Greenroom.open(config, bootstrap=False) as room:
        async with anyio.create_task_group() as tasks:
            for name in SERVERS:
                tasks.start_soon(connect, room, name)
        rows = {row.server: row.failure or "" for row in room.status()}
    for name, (_, said) in SERVERS.items():
        assert said in errors[name]
        assert said in rows[name]


def test_commands_show_it_too(tmp_path: Path) -> None:
    program = tmp_path / "server.py"
    program.write_text(_READS + SERVERS["prefixed"][0])
    config = tmp_path / "mcp.json"
    entry = {"command": sys.executable, "args": ["-S", str(program)], "connectTimeoutMs": 1500}
    config.write_text(json.dumps({"mcpServers": {"a": entry}, "settings": {"probeTimeoutMs": 500}}))
    for words in (
        ["call", "a_x"],
        ["status", "-o", "wide"],
        ["explain", "a"],
        ["doctor", "--start"],
        ["logs", "a"],
    ):
        done = run_forked(
            [*GREENROOM, *words, "--config", str(config)],
            env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "XDG_CACHE_HOME": str(tmp_path / "cache")},
            cwd=tmp_path,
            text=True,
        )
        assert "[INFO]" in done.stdout + done.stderr, (words, done)
