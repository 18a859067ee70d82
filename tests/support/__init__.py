"""What the tests share: running one body on both backends, on the real clock or on a virtual one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio

T = TypeVar("T")


def run(backend: str, body: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Run `body(*args)` to its end on `backend` ("trio" or "asyncio"), real clock."""
    options: dict[str, Any] = {"debug": True} if backend == "asyncio" else {}
    return anyio.run(body, *args, backend=backend, backend_options=options)
