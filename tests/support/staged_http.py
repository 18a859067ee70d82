"""An HTTP server in a thread, written on the bare standard library. Its test holds its stage: what came in,
and when what waits may answer. Each server adds a handler with its answers."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast


class Stage:
    """What the test holds."""

    def __init__(self) -> None:
        self.release = threading.Event()  # lets what waits answer
        self.port = 0


@contextmanager
def served(stage: Stage, handler: type[BaseHTTPRequestHandler], port: int) -> Generator[None]:
    """A server on loopback. Every connection is closed at the end."""
    server = StagedServer(("127.0.0.1", port), handler)
    server.stage = stage
    stage.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield
    finally:
        stage.release.set()
        server.shutdown()
        thread.join()
        server.hang_up()
        server.server_close()


class StagedServer(ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 128
    stage: Any

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.connections: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.connections.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        for connection in tuple(self.connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up in the middle is what these tests are about."""


class StagedHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def stage(self) -> Any:
        return cast("StagedServer", self.server).stage

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def say(
        self,
        status: int,
        body: bytes = b"",
        kind: str = "text/plain",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.send_response(status)
        if status != 304:
            self.send_header("Content-Length", str(len(body)))
        if body:
            self.send_header("Content-Type", kind)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def json(self, value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        self.say(status, json.dumps(value).encode(), "application/json", headers)

    def cut(self) -> None:
        """Close the connection as a crash does: with a reset."""
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()
