"""The one hostile server: `python -S server.py SCRIPT NAME`, where SCRIPT is JSON.

It is honest (the handshake era, with two tools, `echo` and `attack`) unless its script says otherwise. `{"over":
"stdio"}`, or `"http"`: then it prints the port on which it listens. With `"api"` it does that too, and is an HTTP API
with the paths `/echo` and `/attack`; WHEN is `attack`, or `document` for its own description, which it lacks otherwise.
`{"on": {WHEN: SAY}}`: at WHEN it writes SAY in place of an answer. WHEN is a method, `attack` (a call of that tool),
`start`, `stderr` (written there at the start) or `GET`. Over HTTP it refuses requests of 2026-07-28, unless the script
says what it answers to `server/discover`. A thread writes what belongs to `start`, `stderr` or a notification, beside
the answers.

SAY is a list of pieces. Over HTTP it is the whole answer, from its status line on, and the connection is closed after
it. A piece is text (a lone U+DC80 to U+DCFF is that byte), or one of `["id"]`, `["times", n, piece…]`, `["numbered", n,
before, after]` (with another number in between each time), `["forever", piece…]`, `["gzip", piece…]`, `["sleep",
seconds]` and `["exit"]`. `["leave", what…]` writes nothing: it starts a process with an empty environment that stays,
and that has left its session, its parent or its user. NAME is in the command line, so that a test can find what is
left.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import threading
import time
import zlib
from itertools import groupby, repeat

TYPE_CHECKING = False  # `typing` would double the time this takes to start
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    Write = Callable[[bytes], None]

BLOCK = 1 << 20
CHECKED = 64 << 20  # bytes
SCHEMA = {"type": "object"}
LEAVER = """
import os, sys, time
for what in sys.argv[2:]:
    if what == "session":
        os.setsid()
    elif what == "parent" and os.fork():
        os._exit(0)
    elif what == "user" and os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
time.sleep(600)
"""


def blocks(say: list[Any], rpc_id: object) -> Iterator[bytes]:
    """The bytes to write, in blocks."""
    for piece in say:
        if isinstance(piece, str):
            yield piece.encode("utf-8", "surrogateescape")
            continue
        kind, *rest = piece
        if kind == "id":
            yield json.dumps(rpc_id).encode()
        elif kind == "times":
            yield from _repeated(b"".join(blocks(rest[1:], rpc_id)), rest[0])
        elif kind == "numbered":
            count, before, after = rest
            for start in range(0, count, BLOCK // 8):
                numbers = range(start, min(count, start + BLOCK // 8))
                yield "".join(f"{before}{number}{after}" for number in numbers).encode()
        elif kind == "forever" and any(inner[0] == "sleep" for inner in rest):
            while True:
                yield from blocks(rest, rpc_id)
        elif kind == "forever":
            once = b"".join(blocks(rest, rpc_id))
            yield from repeat(once * max(1, BLOCK // 16 // len(once)))
        elif kind == "gzip":
            yield from _packed(blocks(rest, rpc_id))
        elif kind == "sleep":
            time.sleep(rest[0])
        elif kind == "exit":
            os._exit(0)
        elif kind == "leave":
            os.posix_spawn(sys.executable, [sys.executable, "-S", "-c", LEAVER, sys.argv[2], *rest], {})


def _repeated(once: bytes, count: int) -> Iterator[bytes]:
    many = max(1, BLOCK // len(once))
    whole, left = divmod(count, many)
    yield from repeat(once * many, whole)
    yield once * left


def _packed(parts: Iterator[bytes]) -> Iterator[bytes]:
    """By gzip, equal blocks compressed once. The checksum is right as far as somebody may get."""
    yield b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
    size, checksum = 0, 0
    for part, same in groupby(parts):
        packer = zlib.compressobj(9, zlib.DEFLATED, -15)
        count = len(list(same))
        yield (packer.compress(part) + packer.flush(zlib.Z_FULL_FLUSH)) * count
        size += len(part) * count
        if size < CHECKED:
            checksum = zlib.crc32(part * count, checksum)
    yield b"\x03\0" + struct.pack("<II", checksum, size % 2**32)


class Script:
    def __init__(self, given: dict[str, Any]) -> None:
        self.on: dict[str, list[Any]] = given.get("on", {})

    def said_at(self, message: dict[str, Any]) -> list[Any] | None:
        """What to write in place of an answer to this message; None: an honest answer."""
        if message.get("method") == "tools/call" and message["params"].get("name") == "attack":
            return self.on.get("attack")
        return self.on.get(message.get("method", ""))

    def begin(self, write: Write) -> None:
        if say := self.on.get("stderr"):
            beside(say, lambda data: write_all(2, data))
        if say := self.on.get("start"):
            beside(say, write)


def beside(say: list[Any], write: Write) -> None:
    def run() -> None:
        for block in blocks(say, None):
            write(block)

    threading.Thread(target=run, daemon=True).start()


def honest(message: dict[str, Any]) -> dict[str, Any]:
    method, params = message["method"], message.get("params") or {}
    answer: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
    if method == "initialize":
        info = {"name": "hostile", "version": "1"}
        capabilities = {"tools": {"listChanged": True}, "resources": {}, "prompts": {}}
        version = params.get("protocolVersion")
        return {
            **answer,
            "result": {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info},
        }
    if method == "tools/list":
        tools = [{"name": name, "inputSchema": SCHEMA} for name in ("echo", "attack")]
        return {**answer, "result": {"tools": tools}}
    if method == "tools/call":
        text = json.dumps(params.get("arguments"))
        return {**answer, "result": {"content": [{"type": "text", "text": text}]}}
    if method.endswith("/list"):
        kind = method.removesuffix("/list").replace("resources/templates", "resourceTemplates")
        return {**answer, "result": {kind: []}}
    if method == "ping":
        return {**answer, "result": {}}
    return {**answer, "error": {"code": -32601, "message": "Method not found"}}


def write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


# ---- over stdio ----------------------------------------------------------------------------------------------------


def serve_stdio(script: Script) -> None:
    turn = threading.Lock()

    def write(data: bytes) -> None:
        with turn:
            write_all(1, data)

    script.begin(write)
    for line in sys.stdin.buffer:
        message = json.loads(line)
        say = script.said_at(message)
        if "id" not in message:
            if say is not None:
                beside(say, write)
        elif say is not None:
            for block in blocks(say, message["id"]):
                write(block)
        elif "method" in message:
            write(json.dumps(honest(message)).encode() + b"\n")


# ---- over HTTP -----------------------------------------------------------------------------------------------------


def serve_http(script: Script, serve: Any) -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    print(listener.getsockname()[1], flush=True)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(script, connection), daemon=True).start()


def serve_connection(script: Script, connection: socket.socket) -> None:
    try:
        with connection, connection.makefile("rb") as lines:
            while answer(script, connection, *request(lines)):
                pass
    except (OSError, ValueError):
        pass  # the other side has hung up


def serve_path(script: Script, connection: socket.socket) -> None:
    try:
        with connection, connection.makefile("rb") as lines:
            while path := lines.readline().split(b" ")[1:2]:
                while lines.readline().strip():
                    pass
                when = {b"/attack": "attack", b"/openapi.json": "document"}.get(path[0], "")
                if when in script.on:
                    for block in blocks(script.on[when], 1):
                        connection.sendall(block)
                    return
                status = "404 None" if when == "document" else "200 OK"
                head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{{}}"
                connection.sendall(head.encode())
    except OSError:
        pass  # the other side has hung up


def request(lines: Any) -> tuple[str, dict[str, Any]]:
    verb = lines.readline().split(b" ")[0].decode()
    length, modern = 0, False
    while line := lines.readline().strip():
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
        modern = modern or (name.lower() == b"mcp-protocol-version" and value.strip() == b"2026-07-28")
    message: dict[str, Any] = json.loads(lines.read(length)) if length else {}
    if not verb:
        raise ValueError("no request")
    return ("MODERN" if modern else verb), message


def answer(script: Script, connection: socket.socket, verb: str, message: dict[str, Any]) -> bool:
    """Whether the connection may be used again."""
    if verb == "MODERN" and "server/discover" in script.on:
        verb = "POST"
    say = script.on.get("GET") if verb == "GET" else None if verb == "MODERN" else script.said_at(message)
    if say is not None:
        for block in blocks(say, message.get("id")):
            connection.sendall(block)
        return False
    body, status, more = b"", "202 Accepted", ""
    if verb in ("GET", "MODERN"):
        status = "405 No" if verb == "GET" else "400 Server not initialized"
    elif "id" in message and "method" in message:
        body, status = json.dumps(honest(message)).encode(), "200 OK"
        more = "Mcp-Session-Id: one\r\n" if message["method"] == "initialize" else ""
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    connection.sendall(head.encode() + body)
    return True


def main() -> None:
    given = json.loads(sys.argv[1])
    script, over = Script(given), given.get("over")
    if over in ("http", "api"):
        serve_http(script, serve_path if over == "api" else serve_connection)
    else:
        serve_stdio(script)


if __name__ == "__main__":
    main()
    os._exit(0)
