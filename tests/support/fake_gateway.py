"""A gateway as a process of its own, before a room played by `FakeRoom`: real signals, real pipes, a real socket.

    python -m tests.support.fake_gateway CONFIG [--slow-exit]

The tool `clock_now` answers "noon"; `github_list_issues` never answers until the room drains, when it answers
"drained". A room that is left under cancellation prints `room: at once` to stderr, else `room: drained`. With
`--slow-exit` it also hangs for ever on its way out when left at once.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import attrs

from greenroom.gateway._serve import Options, serve
from greenroom.protocol.config import Config

from .rooms import FakeRoom


def text(words: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}]}


class Room(FakeRoom):
    def start_call(self, target: Any, arguments: Any, on_end: Any, **more: Any) -> Any:
        call = super().start_call(target, arguments, on_end, **more)
        if target.original == "now":
            call.end(text("noon"))
        return call


@asynccontextmanager
async def open_room(config: Config, *, slow_exit: bool) -> AsyncIterator[Room]:
    room = Room()
    room.config = attrs.evolve(room.config, files=config.files)
    try:
        yield room
    except BaseException:
        print("room: at once", file=sys.stderr, flush=True)
        if slow_exit:
            time.sleep(30)  # noqa: ASYNC251 - hangs the loop on purpose
        raise
    for call in room.calls:
        if call.result is None:
            call.end(text("drained"))
    print("room: drained", file=sys.stderr, flush=True)


def main(path: str, *flags: str) -> None:
    config = Config(files=(str(Path(path).absolute()),))
    opened = partial(open_room, slow_exit="--slow-exit" in flags)
    options = Options(events=Path(path).with_suffix(".events"), version="9.9")
    anyio.run(serve, config, opened, options, backend="trio")


if __name__ == "__main__":
    main(*sys.argv[1:])
