"""The first HTTP server, or API, of a process makes nobody wait: what it needs is loaded beside the loop."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
from tests.support.api_server import api_server, write_document
from tests.support.raw_http import raw_http

# Which modules the thread of the loop has looked for while it connects and calls, whether it read certificates, and how
# much processor time it took at most from one turn of another task to the next.
PROGRAM = """
import json, ssl, sys, threading, time
import anyio
from greenroom import Greenroom

loop = threading.get_ident()
found, read, turns = {True: [], False: []}, {True: 0, False: 0}, []

class Watch:
    def find_spec(self, name, path=None, target=None):
        found[threading.get_ident() == loop].append(name)

def watched(real):
    def load(self, *args, **kwargs):
        read[threading.get_ident() == loop] += 1
        return real(self, *args, **kwargs)
    return load

async def take_turns():
    while True:
        before = time.thread_time()
        await anyio.sleep(0.001)
        turns.append(time.thread_time() - before)

async def main(entry, tool, arguments):
    config = {"mcpServers": {"first": entry}, "settings": {"toolPrefix": "none"}}
    async with Greenroom.open(config, cache_path=":memory:", bootstrap=False) as room:
        await anyio.sleep(0)
        sys.meta_path.insert(0, Watch())
        for name in ("load_verify_locations", "set_default_verify_paths", "load_default_certs"):
            setattr(ssl.SSLContext, name, watched(getattr(ssl.SSLContext, name)))
        async with anyio.create_task_group() as group:
            group.start_soon(take_turns)
            await room.connect("first")
            await room.call(tool, arguments)
            group.cancel_scope.cancel()
        sys.meta_path.pop(0)
    print(json.dumps([found[True], len(found[False]), read[True], read[False], max(turns)]))

entry, tool, arguments, backend = json.loads(sys.argv[1])
anyio.run(main, entry, tool, arguments, backend=backend)
"""


def test_the_first_http_server_is_loaded_beside_the_loop(backend: str) -> None:
    with raw_http() as server:
        _check([{"url": server.url}, "ok", {}, backend])


def test_the_first_http_api_is_loaded_beside_the_loop(backend: str, tmp_path: Path) -> None:
    with api_server() as api:
        entry = {"openapi": str(write_document(tmp_path)), "baseUrl": api.url}
        _check([entry, "get_item", {"id": "1"}, backend])


def _check(told: list[Any]) -> None:
    command = [sys.executable, "-c", PROGRAM, msgspec.json.encode(told).decode()]
    ended = subprocess.run(command, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr.decode()
    on_the_loop, elsewhere, read_on_the_loop, read_elsewhere, longest = msgspec.json.decode(ended.stdout)
    assert elsewhere > 50, "the HTTP library was loaded before: this test sees nothing"
    assert len(on_the_loop) <= 3, on_the_loop
    assert read_elsewhere
    assert not read_on_the_loop
    assert longest < 0.05, f"{longest:.3f} s of its own processor time"
