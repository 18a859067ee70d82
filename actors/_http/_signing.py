"""Headers that a program gives for each request: `requestHeadersCommand`, as the pi adapter has it.

The program gets one JSON object on its standard input, `{"version": 1, "method", "url", "bodyBase64"}`, and writes one
JSON object of headers. It runs for each request to the server, also for the streams that we open and when a request is
redirected, but not for those that log us in. It is run as commands of secrets are (`secret_commands`). Any failure of
it ends the exchange before anything is sent. What it gives is hidden like every other secret, and is kept nowhere.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, cast

from ...protocol.config import ServerDefinition
from ...protocol.interpolate import header_problem
from ...protocol.secrets import Hidden
from ._bodies import OURS
from ._faults import Broken

if TYPE_CHECKING:
    import httpx2

LARGEST: Final = 1 << 16  # bytes
# What frames the request; another value would make it another request.
_FRAMING: Final = frozenset({"connection", "content-encoding", "content-length", "host", "transfer-encoding"})

Learn = Callable[[tuple[Hidden, ...]], object]


def signing(definition: ServerDefinition, learn: Learn) -> Callable[[httpx2.Request], Awaitable[None]]:
    """What gives each request of ours the headers of the server's command. `learn` is told their values."""
    asked = definition.request_headers_command or {}

    async def sign(request: httpx2.Request) -> None:
        if OURS not in request.extensions:
            return
        from ..secret_commands import Job, failure_of

        await request.aread()
        job = Job(
            (asked["command"], *asked["args"]),
            asked["timeoutMs"],
            'its "timeoutMs"',
            most=LARGEST,
            given=lambda: _told(request),
            environ={**os.environ, **asked["env"]},
        )
        said = await job.output()
        headers = failure_of(said) or _headers(said)
        if isinstance(headers, str):
            step = "Run it in a shell with such an input, and correct it there or in the configuration"
            raise Broken(f"its requestHeadersCommand {headers}. {step}")
        learn(tuple(Hidden(f"the header {name}", value) for name, value in headers.items()))
        request.headers.update(headers)

    return sign


def _told(request: httpx2.Request) -> bytes:
    body = base64.b64encode(request.content).decode()
    said = {"version": 1, "method": request.method, "url": str(request.url), "bodyBase64": body}
    return json.dumps(said).encode()


def _headers(said: Any) -> dict[str, str] | str:
    """The headers in what the command has written, or what is wrong with it."""
    try:
        found: Any = json.loads(said)
    except (ValueError, RecursionError):
        return "wrote something that is no JSON"
    if not isinstance(found, dict):
        return "wrote no JSON object"
    headers = cast("dict[str, Any]", found)
    for name, value in headers.items():
        if not isinstance(value, str):
            return "wrote a header that is no text"
        if name.lower() in _FRAMING:
            return f"gives the header {name}, which frames the request"
        if (wrong := header_problem(name, value)) is not None:
            return f"gives a header that cannot be sent: {wrong}"
    return headers
