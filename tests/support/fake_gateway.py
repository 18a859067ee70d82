"""A gateway in its own process, with a `FakeRoom` behind it: real signals, real pipes, a real socket.

    python -m tests.support.fake_gateway CONFIG [--slow-exit]

The tool `clock_now` answers "noon"; `github_list_issues` never answers until the room drains, when it answers
"drained". A room closed without patience prints `room: at once` to stderr, else `room: drained`. With `--slow-exit` it
also hangs when closed without patience; `--slow-drain` drains for ever. But with `--slow-exit` its alarm is far away:
what a slow machine does in time is not what is tried.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import anyio
import msgspec

from greenroom.config.model import Config
from greenroom.gateway import serve as _serve
from greenroom.gateway.serve import Options, serve
from greenroom.safety.approval_desk import ApprovalDesk

from .door_rooms import FakeRoom


def text(words: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}]}


class Room(FakeRoom):
    settled = None  # nothing here waits for it

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.approvals = ApprovalDesk(anyio.current_time)  # nobody has to allow anything

    def start_call(self, target: Any, arguments: Any, on_end: Any, **more: Any) -> Any:
        call = super().start_call(target, arguments, on_end, **more)
        if target.original == "now":
            call.end(text("noon"))
        return call

    def session(self, name: str, **_more: Any) -> Session:
        return Session(self, name)

    def await_client(self, seconds: float) -> None:
        pass

    def keep_recent(self) -> None:
        pass

    def unlisted(self) -> list[str]:
        return []

    def own_entry(self, _server: str) -> None:
        return None

    def attachment(self, _which: Any) -> None:
        return None  # nobody watches it

    def after(self, _seconds: float, _callback: Any) -> Any:
        return anyio.CancelScope()  # its clock does not go on; it can be cancelled

    async def start(self, task_group: Any) -> None:
        self.closed = anyio.Event()

    async def aclose(self, patience: float | None = None) -> None:
        if self.closed.is_set():
            return
        if patience == 0:
            self._give_up()
        elif "--slow-drain" in sys.argv:
            print("room: draining", file=sys.stderr, flush=True)
            await self.closed.wait()
        else:
            self._drain()

    def _give_up(self) -> None:
        print("room: at once", file=sys.stderr, flush=True)
        if "--slow-exit" in sys.argv:
            time.sleep(120)
        self.closed.set()

    def _drain(self) -> None:
        for call in self.calls:
            if not call.ended:
                call.end(text("drained"))
        print("room: drained", file=sys.stderr, flush=True)
        self.closed.set()


class Session:
    """The session of the one client. In this fake it is the room itself."""

    def __init__(self, room: Room, name: str) -> None:
        self.name = name
        self._room = room

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *_error: object) -> None: ...

    @property
    def _port(self) -> Session:
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._room, name, None)


def open_room(config: Config) -> Any:
    room = Room()
    room.config = msgspec.structs.replace(room.config, files=config.files)
    return room


def main(path: str) -> None:
    if "--slow-exit" not in sys.argv:
        setattr(_serve, "_LAST_RESORT", 50.0)  # noqa: B010
    config = Config(files=(str(Path(path).absolute()),))
    options = Options(events=Path(path).with_suffix(".events"), version="9.9")
    anyio.run(serve, config, open_room, options, backend="trio")


if __name__ == "__main__":
    main(sys.argv[1])
