"""`greenroom page` and a gateway that ends while somebody looks."""

from __future__ import annotations

import socket
from pathlib import Path
from threading import Thread
from urllib.request import Request, urlopen

import anyio
import anyio.to_thread
import pytest
from tests.support import run
from tests.support.patience import PATIENCE

from greenroom.gateway.doors.control_client import Gateway
from greenroom.gateway.page.page_bridge import serve_page


def _watched(url: str) -> bytes:
    address, _, token = url.partition("#token=")
    asked = Request(f"{address}page/watch", headers={"Authorization": f"Bearer {token}"})
    with urlopen(asked, timeout=PATIENCE) as answer:
        return answer.read()


def _end_when_asked(far: socket.socket) -> None:
    with far:
        assert far.recv(4096)


@pytest.mark.parametrize("is_asked", [False, True])
def test_a_gateway_that_ends_ends_the_stream_and_is_no_bug(is_asked: bool) -> None:
    notes, lines, said = list[str](), list[socket.socket](), list[bytes]()

    def find() -> Gateway:
        near, far = socket.socketpair()
        lines.append(near)
        if is_asked:
            Thread(target=_end_when_asked, args=(far,)).start()
        else:
            far.close()
        return Gateway(1, near, Path("unused"))

    async def main() -> None:
        async with anyio.create_task_group() as tasks:

            async def look(url: str) -> None:
                said.append(await anyio.to_thread.run_sync(_watched, url))
                tasks.cancel_scope.cancel()

            await serve_page(find, 0, lambda url: tasks.start_soon(look, url), notes.append)

    run("asyncio", main)
    assert (said, notes) == ([b""], [])
    assert [line.fileno() for line in lines] == [-1]
