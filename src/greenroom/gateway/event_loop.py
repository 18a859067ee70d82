"""The event loop of a gateway: uvloop's, and asyncio's own on Windows, where there is no uvloop.

Names are resolved in threads that nobody waits for. Both loops wait at their end for their own resolver threads, and
a resolver may hang for half a minute.

When a socket can be read, a loop calls what anyio gave it: the future of the task that waits for the socket. If that
task is cancelled in the same turn, the future is called although it has ended. That is no error, so no log has a line
of it.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from functools import partial
from typing import Any

from ..actors.workers import apart

if sys.platform == "win32":
    from asyncio import ProactorEventLoop as _Loop
else:
    from uvloop import Loop as _Loop


class GatewayLoop(_Loop):
    async def getaddrinfo(
        self,
        host: Any,
        port: Any,
        *,
        family: int = 0,
        type: int = 0,
        proto: int = 0,
        flags: int = 0,
    ) -> Any:
        return await apart(partial(socket.getaddrinfo, host, port, family, type, proto, flags))

    def call_exception_handler(self, context: Any) -> None:
        is_late = isinstance(context.get("exception"), asyncio.InvalidStateError)
        if not (is_late and "method set_result of _asyncio.Future" in context.get("message", "")):
            super().call_exception_handler(context)
