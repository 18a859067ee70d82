"""Tries each real server without the gateway and through it.

Its lists and answers are compared field by field: `direct` may change a tool's name, and say of one that runs only as a
task that it can be called without one too, because the gateway awaits its task. Nothing else. All servers are in one
configuration, with an empty cache, so the first list is a first start of all of them at once.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
from tests.support.line_client import LineClient

from ._table import RowResult, ScriptedCall, ServerRow, WorldRun
from .installing import InstallFailed, program

Tools = Mapping[str, Mapping[str, Any]]
MARK = "GREENROOM_WORLD_RUN"  # in the environment of everything that is started here
FIRST_LIST = 300.0  # seconds for all servers to have been discovered
_ANSWER, _END, _GONE = (
    60.0,
    10.0,
    20.0,
)  # seconds for an answer, for a gateway's end, and for all processes to go
_MOST_PAGES = 100
_HELLO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "world", "version": "1"},
}
_NOT_HERE = {"error": {"code": -32601, "message": "not here"}}
_ALWAYS = ("PATH", "HOME", "LANG", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS")


class RequestFailed(Exception):
    """A peer answered with an error, or not at all."""


class PlainClient(LineClient):
    """A process that speaks MCP on its standard streams, asked without an SDK, which would drop the fields that it does
    not know. It may ask for a ping, and nothing else."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], cwd: Path) -> None:
        self._stderr, pipe = cwd / "stderr.txt", subprocess.PIPE
        with self._stderr.open("wb") as stderr:
            apart: Any = {"env": env, "cwd": cwd, "start_new_session": True}
            super().__init__(
                subprocess.Popen[bytes](command, stdin=pipe, stdout=pipe, stderr=stderr, **apart)
            )

    def __enter__(self) -> PlainClient:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.close()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()

    def _take(self, line: bytes) -> None:
        with suppress(ValueError, TypeError, KeyError):  # a banner
            super()._take(line)
        while self.asked:
            request = self.asked.pop()
            self.write(
                {"id": request["id"], **({"result": {}} if request["method"] == "ping" else _NOT_HERE)}
            )

    @property
    def said(self) -> str:
        """The end of what it wrote to stderr."""
        return self._stderr.read_text(encoding="utf-8", errors="replace").strip()[-300:]

    def ask(self, method: str, params: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """The result of one request. Raises `RequestFailed`."""
        try:
            answer = self.answer(self.send(method, params), _ANSWER)
        except (AssertionError, OSError) as error:
            raise RequestFailed(f"{method}: {error!r}: {self.said}") from None
        if "error" in answer:
            raise RequestFailed(json.dumps(answer["error"]))
        return answer["result"]

    def initialize(self) -> Mapping[str, Any]:
        """The handshake of a client that declares no capabilities. Returns the server's."""
        hello = self.ask("initialize", _HELLO)
        self.tell("notifications/initialized")
        return hello["capabilities"]

    def tools(self) -> Tools:
        """Every page of its list."""
        found: dict[str, Mapping[str, Any]] = {}
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            page = self.ask("tools/list", {"cursor": cursor} if cursor else None)
            found |= {tool["name"]: tool for tool in page["tools"]}
            if not (cursor := page.get("nextCursor")):
                break
        return found

    def leave(self) -> tuple[int, float]:
        """Close its stdin. Returns its exit code and the seconds it took to end. Raises `RequestFailed`."""
        assert self.process.stdin is not None
        began = time.monotonic()
        self.process.stdin.close()
        try:
            return self.process.wait(_END), time.monotonic() - began
        except subprocess.TimeoutExpired:
            raise RequestFailed(f"still there {_END:g} s after its stdin was closed") from None


@attrs.frozen
class _Alone:
    """A server as it answers without the gateway, and its entry in a configuration."""

    server: ServerRow
    entry: Mapping[str, Any]
    tools: Tools
    answer: Mapping[str, Any]
    result: RowResult


def play_servers(servers: Sequence[ServerRow], run: WorldRun) -> list[RowResult]:
    """All of them, first each alone, then all behind one gateway."""
    results, known, mark = list[RowResult](), list[_Alone](), {MARK: uuid.uuid4().hex}
    for server in servers:
        results.append(result := RowResult([server.name, f"`{server.pins}`", "0", "–"]))
        try:
            known.append(_alone(server, run.folder / server.name, mark, result))
        except (InstallFailed, RequestFailed, OSError) as error:
            result.problems.append(f"cannot be run alone: {error}")
    if known:
        try:
            note = _behind(known, run.folder, mark)
        except RequestFailed as error:
            note = f"The gateway: {error}"
            for each in known:
                each.result.problems.append("the gateway failed")
        if left := _left_after_a_moment(mark):
            known[0].result.problems.append("left processes behind, it or another")
        results[-1].note = f"{note}; processes left: {left}."
    return results


def _alone(server: ServerRow, home: Path, mark: Mapping[str, str], result: RowResult) -> _Alone:
    home.mkdir()
    name, *more = server.words
    started = [*program(server.installed("servers"), server.index, name), *_with_home(more, home)]
    env = {**_with_home(server.env, home), **mark}
    entry = {"command": started[0], "args": started[1:], "env": env, "cwd": str(home)}
    always = {key: os.environ[key] for key in _ALWAYS if key in os.environ}
    with PlainClient(started, always | env, home) as peer:
        tools = peer.tools() if "tools" in peer.initialize() else dict[str, Any]()
        call = _asked(server.call, "", home) if server.call else None
        answer = peer.ask("tools/call", call) if call else dict[str, Any]()
    result.cells[2] = str(len(tools))
    return _Alone(server, entry, tools, answer, result)


def _behind(known: Sequence[_Alone], folder: Path, mark: Mapping[str, str]) -> str:
    """What is to be said of the gateway. Raises `RequestFailed`."""
    config = folder / "mcp.json"
    entries = {each.server.name: each.entry for each in known}
    settings = {"idleTimeout": 0, "maxConnections": 50}
    config.write_text(json.dumps({"mcpServers": entries, "settings": settings}), encoding="utf-8")
    env = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), **mark}
    command = [sys.executable, "-m", "greenroom", "serve", "--expose", "direct", "--config", str(config)]
    with PlainClient(command, env, folder) as gateway:
        began = time.monotonic()
        gateway.initialize()
        behind = _all_known(gateway, known, began + FIRST_LIST)
        known_after = time.monotonic() - began
        for each in known:
            each.result.problems += [*_differences(each, behind), *_differences_of_call(each, gateway)]
        code, seconds = gateway.leave()
    # A machine that is too slow for an orderly end in 1.2 s hears the gateway's alarm, and its guard does the rest.
    if code not in (0, -signal.SIGALRM):
        raise RequestFailed(f"it left with exit code {code}")
    return (
        f"All were known {known_after:.1f} s after a start on an empty cache. "
        f"On stdin's end the gateway left with exit code {code} after {seconds:.2f} s"
    )


def _all_known(gateway: PlainClient, known: Sequence[_Alone], until: float) -> Tools:
    """The gateway's list, once it has every server that has tools, or when the time is up."""
    while True:
        behind = gateway.tools()
        missing = [
            each
            for each in known
            if each.tools and not any(_shown(each, tool, behind) for tool in each.tools)
        ]
        if not missing or time.monotonic() > until:
            return behind
        time.sleep(0.2)


def _shown(alone: _Alone, tool: str, behind: Tools) -> Mapping[str, Any] | None:
    """A tool of this server in the gateway's list."""
    name = alone.server.name
    return behind.get(f"{name}_{tool}") or behind.get(f"{name.replace('-', '_')}_{tool}")


def _differences(alone: _Alone, behind: Tools) -> list[str]:
    problems: list[str] = []
    for name, tool in alone.tools.items():
        shown = _shown(alone, name, behind)
        if shown is None:
            problems.append(f"{name} is not listed")
            continue
        needs_task = tool.get("execution") == {"taskSupport": "required"}
        expected = {**tool, "execution": {"taskSupport": "optional"}} if needs_task else tool
        fields = {key for key in {*shown, *expected} if shown.get(key, ...) != expected.get(key, ...)}
        if fields - {"name"}:
            problems.append(f"{name} differs in {', '.join(sorted(fields - {'name'}))}")
    return problems


def _differences_of_call(alone: _Alone, gateway: PlainClient) -> list[str]:
    call = alone.server.call
    if call is None:
        return []
    alone.result.cells[3] = "yes"
    try:
        answer = gateway.ask("tools/call", _asked(call, f"{alone.server.name}_", Path(alone.entry["cwd"])))
    except RequestFailed as error:
        return [f"{call.tool}: {error}"]
    problems: list[str] = []
    text = " ".join(str(block.get("text", "")) for block in answer.get("content", ()))
    if call.answer not in text:
        problems.append(f"{call.tool} answered {text[:80]!r}")
    if set(answer) - {"_meta"} != set(alone.answer) - {"_meta"}:
        problems.append(f"{call.tool}: other fields than alone: {sorted(answer)}")
    return problems


def _asked(call: ScriptedCall, prefix: str, home: Path) -> Mapping[str, Any]:
    return {"name": prefix + call.tool, "arguments": _with_home(call.arguments, home)}


def _with_home(data: Any, home: Path) -> Any:
    return json.loads(json.dumps(data).replace("{home}", str(home)))


def _left_after_a_moment(mark: Mapping[str, str]) -> int:
    """What was killed may take its time to go, on a busy machine."""
    until = time.monotonic() + _GONE
    while (left := _still_there(mark)) and time.monotonic() < until:
        time.sleep(0.1)
    return left


def _still_there(mark: Mapping[str, str]) -> int:
    """Processes that carry this run's mark."""
    count = 0
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            count += f"{MARK}={mark[MARK]}".encode() in (entry / "environ").read_bytes().split(b"\0")
    return count
