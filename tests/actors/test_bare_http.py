"""The client of a link to a host, against canned answers on real sockets."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import anyio.abc
import pytest
from tests.support import run

from greenroom.actors.transports.bare_http import BareClient
from greenroom.actors.transports.http_client import BadAnswer, Broken, Unreachable, read_bounded
from greenroom.config.model import ServerDefinition

WHOLE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x\r\n[1\r\n1\r\n]\r\n0\r\nEnd: 1\r\n\r\n"
EMPTY = b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"
EARLY = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"


class Host:
    """Answers the requests of its n-th connection with the n-th list: bytes are an answer, None closes."""

    def __init__(self, *connections: list[bytes | None]) -> None:
        self.connections = list(connections)
        self.requests: list[bytes] = []
        self.closed = 0
        self.url = ""

    @asynccontextmanager
    async def served(self) -> AsyncGenerator[BareClient]:
        async with await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0) as listener:
            port = listener.extra(anyio.abc.SocketAttribute.local_port)
            definition = ServerDefinition("a", url=f"http://127.0.0.1:{port}/mcp/a", headers={"epoch": "1.1"})
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(listener.serve, self._answer)
                client = BareClient(definition, 5.0)
                try:
                    yield client
                finally:
                    await client.aclose()
                    tasks.cancel_scope.cancel()

    async def _answer(self, stream: anyio.abc.SocketStream) -> None:
        async with stream:
            for answer in self.connections.pop(0):
                data = b""
                while not data.endswith((b"\r\n\r\n", b"?")):
                    try:
                        data += await stream.receive()
                    except (anyio.EndOfStream, anyio.BrokenResourceError):
                        return
                self.requests.append(data)
                if answer is None:
                    break
                with suppress(anyio.BrokenResourceError):
                    for byte in range(len(answer)):
                        await stream.send(answer[byte : byte + 1])
        self.closed += 1


async def ask(client: BareClient, *told: Any, **headers: str) -> tuple[int, bytes]:
    async with client.exchange("POST", headers, b"?", *told) as answer:
        return answer.status_code, bytes(await read_bounded(answer, 1 << 20))


def test_a_connection_is_used_again_after_whatever_form_of_answer(backend: str) -> None:
    host = Host([WHOLE, CHUNKED, EMPTY, EARLY + WHOLE])

    async def body() -> None:
        async with host.served() as client:
            assert await ask(client, session="s") == (200, b"{}")
            assert await ask(client) == (200, b"[1]")
            async with client.exchange("POST", {}, b"?") as answer:
                assert answer.status_code == 202
            assert await ask(client) == (200, b"{}")

    run(backend, body)
    head, *_ = host.requests[0].partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    assert first == b"POST /mcp/a HTTP/1.1"
    assert {b"epoch: 1.1", b"session: s", b"Content-Length: 1"} <= set(lines)


def test_what_the_host_has_closed_meanwhile_is_not_used_again(backend: str) -> None:
    host = Host([WHOLE], [WHOLE])

    async def body() -> None:
        async with host.served() as client:
            assert await ask(client) == (200, b"{}")
            with anyio.fail_after(5):
                while not host.closed:
                    await anyio.sleep(0.01)
            assert await ask(client) == (200, b"{}")

    run(backend, body)


def test_an_answer_left_in_its_middle_closes_its_connection_alone(backend: str) -> None:
    half = CHUNKED[:-10]
    host = Host([half, None], [WHOLE])

    async def body() -> None:
        async with host.served() as client:
            async with client.exchange("GET", {}) as answer:
                async for _ in (pieces := answer.aiter_bytes()):
                    break
                await pieces.aclose()
            assert await ask(client) == (200, b"{}")

    run(backend, body)


def test_a_host_that_ends_before_its_answer_has_got_the_request(backend: str) -> None:
    host = Host([None], [WHOLE[:-1], None])
    sent: list[bool] = []

    async def body() -> None:
        async with host.served() as client:
            with pytest.raises(Broken, match="the connection broke"):
                await ask(client, lambda: sent.append(True))
            assert sent == [True]

    run(backend, body)


def test_without_a_connection_nothing_is_sent(backend: str) -> None:
    sent: list[bool] = []

    async def body() -> None:
        async with Host().served() as client:
            pass
        with pytest.raises(Unreachable):
            await ask(client, lambda: sent.append(True))

    run(backend, body)
    assert sent == []


def test_a_header_cannot_smuggle_another(backend: str) -> None:
    host = Host()

    async def body() -> None:
        async with host.served() as client:
            with pytest.raises(Broken, match="line break"):
                await ask(client, session="s\r\nepoch: 1.2")

    run(backend, body)
    assert host.requests == []


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: two\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_an_answer_without_a_length_is_no_answer(backend: str, answer: bytes) -> None:
    async def body() -> None:
        async with Host([answer]).served() as client:
            with pytest.raises(BadAnswer):
                await ask(client)

    run(backend, body)
