"""The loop of a gateway."""

from __future__ import annotations

import asyncio
from typing import Any

from greenroom.gateway.event_loop import GatewayLoop


def test_a_task_that_is_cancelled_as_its_socket_is_heard_is_no_error_and_any_other_is() -> None:
    told: list[Any] = []

    def fail() -> None:
        raise asyncio.InvalidStateError("mine")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: told.append(context["exception"]))
        future = loop.create_future()
        future.cancel()
        loop.call_soon(future.set_result, None)
        loop.call_soon(fail)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    loop = GatewayLoop()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()
    assert [str(error) for error in told] == ["mine"]
