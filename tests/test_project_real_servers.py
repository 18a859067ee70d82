"""Each real server starts from its entry and has what we say it has, asked over plain pipes without our runtime."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.support.real_servers import REAL_SERVERS, RealServer, real_server

HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


def _converse(server: RealServer) -> list[dict[str, Any]]:
    environment = {"PATH": os.environ["PATH"], **server.entry.get("env", {})}
    command = [server.entry["command"], *server.entry["args"]]
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def tell(message: dict[str, Any]) -> None:
            assert process.stdin is not None
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            process.stdin.flush()

        def ask(number: int, method: str, params: dict[str, Any]) -> dict[str, Any]:
            tell({"id": number, "method": method, "params": params})
            assert process.stdout is not None
            return next(m["result"] for line in process.stdout if (m := json.loads(line)).get("id") == number)

        hello = ask(1, "initialize", HELLO)
        tell({"method": "notifications/initialized"})
        listing = ask(2, "tools/list", {})
        answer = ask(3, "tools/call", {"name": server.tool, "arguments": dict(server.arguments)})
        process.stdin.close()
        process.stdout.read()
        return [hello, listing, answer]


@pytest.mark.parametrize("name", REAL_SERVERS)
def test_a_real_server_is_what_we_say(name: str, tmp_path: Path) -> None:
    server = real_server(name, tmp_path)

    hello, listing, answer = _converse(server)

    assert hello["protocolVersion"] == "2025-11-25"
    assert len(listing["tools"]) == server.tool_count
    assert server.tool in {tool["name"] for tool in listing["tools"]}
    assert server.answer in answer["content"][0]["text"]
