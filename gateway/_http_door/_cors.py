"""CORS: what lets a web page read our answers, for the pages that the configuration names (`http.origins`).

A page of this machine may send requests without being named, as any program here may, but a browser lets it neither
read the answers nor send JSON: an origin on localhost is any development server, and is trusted only by name.

A browser asks first (preflight), without the token, and for any path. That answer says what a page may send; it tells
nothing about the path, and the request itself is checked as any other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from ._request import Request

_READABLE: Final = b"Mcp-Session-Id, Mcp-Protocol-Version, WWW-Authenticate, Retry-After"
_METHODS: Final = b"GET, POST, DELETE"
_NAMES: Final = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+(?:[ \t]*,[ \t]*[A-Za-z0-9!#$%&'*+.^_`|~-]+)*")
_REMEMBERED: Final = b"600"  # seconds that a browser may keep the answer to a preflight


class Cors:
    """`origins` are the pages that may read answers."""

    def __init__(self, origins: Iterable[str] = ()) -> None:
        self._origins = frozenset(origin.rstrip("/").lower().encode() for origin in origins)

    def allow(self, request: Request) -> None:
        """Let the page that sends this request read the answer, if it may."""
        if not self._origins:
            return
        origin = request.headers.get(b"origin")
        if origin is not None and origin.lower() in self._origins:
            request.more_headers = (
                (b"access-control-allow-origin", origin),
                (b"access-control-expose-headers", _READABLE),
                (b"vary", b"Origin"),
            )

    @staticmethod
    def is_preflight(request: Request) -> bool:
        """Whether a browser asks on behalf of a page that `allow` has let in."""
        asks = request.method == "OPTIONS" and b"access-control-request-method" in request.headers
        return asks and bool(request.more_headers)

    @staticmethod
    async def answer_preflight(request: Request) -> None:
        headers = [
            (b"access-control-allow-methods", _METHODS),
            (b"access-control-max-age", _REMEMBERED),
        ]
        wanted = request.headers.get(b"access-control-request-headers", b"")
        if _NAMES.fullmatch(wanted):
            headers.append((b"access-control-allow-headers", wanted))
        await request.answer(204, headers=headers)
