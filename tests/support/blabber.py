"""A server that gives away everything it was given: `python -S blabber.py [WHEN] ARGUMENT…`, or `… http` over HTTP.

It shows its arguments, its environment, and over HTTP each request's path and headers. WHEN is `start` (it fails at
once) or `list` (it fails when its tools are listed). Otherwise it fails when one of these tools is called: `refuse` (a
JSON-RPC error), `junk` (a line that is not JSON), `die`. Over HTTP the URL's path has these words, or `401`, `500`,
`html`, `login`.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

TOOLS = ("refuse", "junk", "die")


def everything() -> str:
    return " | ".join([*sys.argv, *(f"{name}={value}" for name, value in os.environ.items())])


def result_of(message: dict[str, object]) -> object:
    if message["method"] == "initialize":
        info = {"name": "blabber", "version": "1"}
        return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
    if message["method"] == "tools/list":
        return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]}
    return {} if message["method"] == "ping" else None


def error(key: object, said: str) -> bytes:
    data = {"list": [said, {said: 1}], "quoted": repr(said)}
    return json.dumps(
        {"jsonrpc": "2.0", "id": key, "error": {"code": -32000, "message": said, "data": data}}
    ).encode()


def on_stdio() -> None:
    when = sys.argv[1] if len(sys.argv) > 1 else ""
    if when == "start":
        sys.stderr.write(f"Error: cannot use {everything()}\nfatal: {everything()!r}\n")
        raise SystemExit(3)
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        result = None if message["method"] == when == "tools/list" else result_of(message)
        tool = (message.get("params") or {}).get("name")
        if result is not None:
            write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode())
        elif tool == "die":
            sys.stderr.write(f"Error: {everything()}\n")
            raise SystemExit(4)
        else:
            if tool == "junk":
                write(f"debug: {everything()}".encode())
            write(error(message["id"], everything()))


def write(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


class Handler(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self._say(405, b"", "text/plain")

    def do_DELETE(self) -> None:
        self._say(200, b"", "text/plain")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        login = self.headers.get("Authorization", "").partition(" ")[2]
        decoded = base64.b64decode(login + "==", validate=False).decode(errors="replace")
        said = f"{self.path} {unquote(self.path)} {dict(self.headers)} {decoded}"
        message = json.loads(body)
        if "id" not in message:
            self._say(202, b"", "text/plain")
        elif "/401" in self.path:
            self._say(401, said.encode(), "text/plain", said)
        elif "/500" in self.path:
            self._say(500, said.encode(), "text/plain")
        elif "/moved" in self.path:
            self._say(307, b"", "text/plain", where=f"http://me:{decoded}@127.0.0.1:1/{self.path}")
        elif (result := result_of(message)) is not None:
            answer = {"jsonrpc": "2.0", "id": message["id"], "result": result}
            self._say(200, json.dumps(answer).encode(), "application/json")
        elif (message.get("params") or {}).get("name") == "junk":
            self._say(200, said.encode(), "text/plain")
        else:
            self._say(200, error(message["id"], said), "application/json")

    def _say(self, status: int, body: bytes, kind: str, challenge: str = "", where: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if challenge:
            self.send_header(
                "WWW-Authenticate", f'Bearer error="{challenge}"'.encode("ascii", "backslashreplace").decode()
            )
        if where:
            self.send_header("Location", where)
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    if sys.argv[1:] == ["http"]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        print(server.server_port, flush=True)
        server.serve_forever()
    on_stdio()
