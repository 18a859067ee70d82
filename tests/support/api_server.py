"""An HTTP API in a thread, and its document: what it answers depends on the path.

`requests` keeps everything that came in. `release` lets what waits answer. Each path of `WAYS` behaves as it is called.
"""

from __future__ import annotations

import json
import os
import urllib.parse
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
from tests.support.staged_http import Stage, StagedHandler, served

from .patience import PATIENCE

MIB = 1 << 20
PNG = bytes.fromhex("89504e470d0a1a0a0000000d49484452")


@attrs.frozen
class Seen:
    """One request as it came in."""

    method: str
    path: str  # as it was written, without the query
    query: str
    headers: Mapping[str, str]  # names in lower case
    body: bytes


class ApiServer(Stage):
    """What the test holds. `tokens`: the bearer tokens that `/private` accepts. `document`: what `/openapi.json` is."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Seen] = []
        self.tokens: set[str] = set()
        self.refuses_all = False  # whatever its token
        self.refreshes: list[str] = []  # the bodies of what asked for a token
        self.document: bytes | None = document()
        self.tag = '"one"'
        self.busy: list[
            tuple[int, str]
        ] = []  # how often `/busy` refuses, each time with a status and a Retry-After

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def seen(self, path: str) -> list[Seen]:
        return [each for each in self.requests if each.path == path]


@contextmanager
def api_server(port: int = 0) -> Generator[ApiServer]:
    """An API on loopback. Every connection is closed at the end."""
    stage = ApiServer()
    with served(stage, _Handler, port):
        yield stage


def document(**more: Any) -> bytes:
    """The document of the API: an operation for each of its ways to answer."""
    paths: dict[str, Any] = {}
    for way in WAYS:
        said = {"operationId": way, "responses": {"200": {"description": "ok"}}, "tags": ["ways"]}
        paths[f"/{way}"] = {"get": said, "post": {**said, "operationId": f"{way}_again"}}
    item = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
    paths["/items/{id}"] = {
        "parameters": [item],
        "get": {
            "operationId": "get_item",
            "summary": "Get an item",
            "tags": ["items"],
            "parameters": [
                {"name": "q", "in": "query", "schema": {"type": "string"}},
                {"name": "X-Mark", "in": "header", "schema": {"type": "string"}},
                {"name": "crumb", "in": "cookie", "schema": {"type": "string"}},
            ],
        },
        "put": {
            "operationId": "put_item",
            "tags": ["items"],
            "requestBody": {
                "required": True,
                "content": {
                    "application/json": {
                        "schema": {
                            "type": "object",
                            "properties": {"size": {"type": "integer"}},
                            "required": ["size"],
                        }
                    }
                },
            },
        },
        "delete": {"operationId": "delete_item", "tags": ["items"]},
    }
    paths["/files"] = {
        "post": {
            "operationId": "send_file",
            "requestBody": {
                "required": True,
                "content": {
                    "multipart/form-data": {
                        "schema": {
                            "type": "object",
                            "properties": {"file": {"type": "string", "format": "binary"}},
                        }
                    }
                },
            },
        }
    }
    return json.dumps(
        {"openapi": "3.0.3", "info": {"title": "Stage", "version": "7"}, "paths": paths, **more}
    ).encode()


def write_document(folder: Path, **more: Any) -> str:
    """The document in a file of this folder."""
    file = folder / "openapi.json"
    file.write_bytes(document(**more))
    return os.fspath(file)


class _Handler(StagedHandler):
    @property
    def stage(self) -> ApiServer:
        return super().stage

    def _take(self) -> None:
        parts = urllib.parse.urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        seen = Seen(self.command, parts.path, parts.query, headers, body)
        self.stage.requests.append(seen)
        way = WAYS.get(parts.path.removeprefix("/v1/"))
        if way is not None:
            way(self, seen)
        elif parts.path == "/openapi.json":
            self._document(seen)
        elif parts.path == "/token":
            self._token(seen)
        elif parts.path.startswith("/.well-known/"):
            self.say(404)
        else:
            said = {"method": seen.method, "path": seen.path, "query": seen.query, "headers": headers}
            self.json({**said, "body": body.decode(errors="replace")})

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_PATCH = _take  # noqa: N815

    def _document(self, seen: Seen) -> None:
        if self.stage.document is None:
            self.say(503)
        elif seen.headers.get("if-none-match") == self.stage.tag:
            self.say(304)
        else:
            self.say(200, self.stage.document, "application/json", {"ETag": self.stage.tag})

    def _token(self, seen: Seen) -> None:
        self.stage.refreshes.append(seen.body.decode())
        token = f"token-{len(self.stage.refreshes)}"
        self.stage.tokens = {token}
        self.json({"access_token": token, "token_type": "Bearer", "expires_in": 3600})


# ---- ways to answer -------------------------------------------------------------------------------------------------

Way = Callable[[_Handler, Seen], None]
WAYS: dict[str, Way] = {}


def _way(behave: Way) -> Way:
    WAYS[behave.__name__] = behave
    return behave


@_way
def slow(handler: _Handler, seen: Seen) -> None:
    handler.stage.release.wait(PATIENCE)
    handler.json({"late": True})


@_way
def hangs(handler: _Handler, seen: Seen) -> None:
    handler.stage.release.wait(PATIENCE)
    handler.cut()


@_way
def dies(handler: _Handler, seen: Seen) -> None:
    """In the middle of its answer."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.send_header("Content-Type", "application/json")
    handler.end_headers()
    handler.wfile.write(b'{"half": ')
    handler.cut()


@_way
def flood(handler: _Handler, seen: Seen) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", str(100 * MIB))
    handler.send_header("Content-Type", "application/json")
    handler.end_headers()
    handler.wfile.write(b'{"x": "')
    for _ in range(100):
        handler.wfile.write(b"x" * MIB)


@_way
def large(handler: _Handler, seen: Seen) -> None:
    handler.say(200, json.dumps({"x": "é\n" * MIB}, ensure_ascii=False).encode(), "application/json")


@_way
def image(handler: _Handler, seen: Seen) -> None:
    handler.say(200, PNG, "image/png")


@_way
def large_image(handler: _Handler, seen: Seen) -> None:
    handler.say(200, PNG * (MIB // 8), "image/png")


@_way
def away(handler: _Handler, seen: Seen) -> None:
    """To another host."""
    handler.say(302, b"", headers={"Location": "http://localhost:9/elsewhere"})


@_way
def along(handler: _Handler, seen: Seen) -> None:
    handler.say(307, b"", headers={"Location": "/v1/items/moved"})


@_way
def busy(handler: _Handler, seen: Seen) -> None:
    if handler.stage.busy:
        status, after = handler.stage.busy.pop(0)
        handler.json({"why": "too much"}, status, {"Retry-After": after} if after else None)
    else:
        handler.json({"ok": True})


@_way
def refuses(handler: _Handler, seen: Seen) -> None:
    handler.json({"message": "the name is taken"}, 422)


@_way
def walled(handler: _Handler, seen: Seen) -> None:
    handler.say(401, b"<h1>Log in first</h1>", "text/html")


@_way
def scoped(handler: _Handler, seen: Seen) -> None:
    challenge = 'Bearer error="insufficient_scope", scope="items:write"'
    handler.json({"message": "no"}, 403, {"WWW-Authenticate": challenge})


@_way
def private(handler: _Handler, seen: Seen) -> None:
    token = seen.headers.get("authorization", "").removeprefix("Bearer ")
    if token in handler.stage.tokens and not handler.stage.refuses_all:
        handler.json({"in": True})
    else:
        handler.say(401, b"who are you?", headers={"WWW-Authenticate": 'Bearer realm="stage"'})


@_way
def sets_cookie(handler: _Handler, seen: Seen) -> None:
    handler.json({"cookie": seen.headers.get("cookie")}, headers={"Set-Cookie": "session=alice; Path=/"})
