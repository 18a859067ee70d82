"""A document of somebody else's server, fetched by one GET: bounded in bytes, in redirects and in time.

Imported only where one is fetched: the HTTP library comes with it."""

from __future__ import annotations

import contextlib

import anyio
import httpx2

from ...protocol.config import ServerDefinition
from ...protocol.errors import ConnectFailed
from ._client import exchanged, make_client
from ._faults import Broken, status_in_words

_WITHIN = 10.0  # seconds for all of it


async def fetched(url: str, most: int) -> bytes:
    """What is there, at most `most` bytes. Raises `ExchangeFault`, in words, when it cannot be had."""
    definition = ServerDefinition(name="", url=url)
    try:
        with anyio.fail_after(_WITHIN):
            client = make_client(definition, None, _WITHIN)
            async with client, exchanged(client, client.build_request("GET", url)) as response:
                if response.status_code != 200:
                    raise Broken(status_in_words(response.status_code))
                body = bytearray()
                async with contextlib.aclosing(response.aiter_bytes()) as pieces:
                    async for piece in pieces:
                        body += piece
                        if len(body) > most:
                            raise Broken(f"it has more than {most:,} bytes")
                return bytes(body)
    except TimeoutError:
        raise Broken("it did not come in time") from None
    except ConnectFailed as error:
        raise Broken(error.message) from None
    except httpx2.InvalidURL:
        raise Broken("its URL cannot be read") from None
