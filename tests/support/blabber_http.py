"""The `blabber` over HTTP: `python -S blabber_http.py` prints its port. A program of its own, for what it imports takes
three times as long as all that the one on stdio does.

It knows each request's path and headers. The path says what it does: `401`, `500`, `moved`; or else the called tool.
"""

from __future__ import annotations

import base64
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

from blabber import error, result_of  # beside it


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
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()
