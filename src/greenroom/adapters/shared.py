"""What all adapters do alike: list a room's tools, call them for a model, and say which failures may be tried again.

A call that was not sent had no effect, so a framework that knows retries is asked for one, unless a person has to do
something first. Any other failure is told to the model, which reads there whether the call may have run, and decides.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

import anyio
import msgspec

from .. import CallError, Greenroom, ModelResult, Reach, Session, Target, UsageError
from ..errors import (
    ApprovalDenied,
    ApprovalNeeded,
    Busy,
    NeedsAuth,
    RoomClosed,
    ServerDown,
    SessionNeeded,
    ToolChanged,
)

Room = Greenroom | Session
Progress = Callable[[str, Mapping[str, Any]], None]  # the tool's name, and the params of the notification
T = TypeVar("T")
_PAUSE: Final = 1.0  # seconds before a call is made again, if nobody says how long


class Tools(Generic[T]):
    """The tools of a room, each made into the framework's own by `make`, once for each list of them."""

    def __init__(self, room: Room, make: Callable[[Target], T], on_progress: Progress | None = None) -> None:
        self.room = room
        self._make = make
        self._on_progress = on_progress
        self._targets: tuple[Target, ...] = ()
        self._made: dict[str, T] = {}

    async def listed(self) -> dict[str, T]:
        """Those that can be called, by name. Waits until every server of which nothing is known was asked once."""
        await self.room.catalogued()
        targets = self.room.tools()
        if targets is not self._targets:  # it is the same tuple until something has changed
            self._made = {target.name: self._make(target) for target in targets if target.may_be_called}
            self._targets = targets
        return dict(self._made)

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None,
        *,
        meta: Mapping[str, Any] | None = None,
        allowed: bool = False,
    ) -> ModelResult:
        """See `Greenroom.call_for_model`. Every image can be read: of one that cannot, only that is told, because a
        provider would refuse the whole conversation for it."""
        on_progress = self._on_progress

        def report(params: Mapping[str, Any]) -> None:
            if on_progress is not None:
                on_progress(tool, params)

        told = await self.room.call_for_model(
            tool,
            arguments,
            meta=meta,
            on_progress=None if on_progress is None else report,
            allowed=allowed,
        )
        return (
            msgspec.structs.replace(told, blocks=[_readable(block) for block in told.blocks])
            if told.images
            else told
        )

    async def call_with_retries(
        self, tool: str, arguments: Mapping[str, Any] | None, retries: int
    ) -> ModelResult:
        """`call`, and while it had no effect and another one may do better, again: at most so often."""
        told = await self.call(tool, arguments)
        for _ in range(retries):
            if not may_be_tried_again(told):
                break
            await anyio.sleep(told.error.retry_in if isinstance(told.error, Busy) else _PAUSE)
            told = await self.call(tool, arguments)
        return told

    def need_approval(self, tool: str) -> bool:
        """Whether the framework has to ask its person about each call of this tool. An unknown one needs no question:
        its call is told what is wrong."""
        try:
            return self.room.needs_approval(tool)
        except UsageError:
            return False


# Nothing was sent, and sending it again changes nothing: a person has to do something first.
_FOR_A_PERSON = (
    ApprovalDenied,
    ApprovalNeeded,
    NeedsAuth,
    RoomClosed,
    ServerDown,
    SessionNeeded,
    ToolChanged,
)


def may_be_tried_again(told: ModelResult) -> bool:
    """Whether the call had no effect, and another one (of the same tool later, or of the right one) may do better."""
    error = told.error
    return error is not None and error.reach is Reach.NOT_SENT and not isinstance(error, _FOR_A_PERSON)


def image_of(block: Mapping[str, Any]) -> bytes:
    """The bytes of an image block. Raises `ValueError` when its server has not encoded them as it should."""
    return b64decode(block["data"], validate=True)


def _readable(block: dict[str, Any]) -> dict[str, Any]:
    if block["type"] != "image":
        return block
    try:
        image_of(block)
    except ValueError:
        return {"type": "text", "text": f"[An image that cannot be read: {block['mimeType']}]"}
    return block


def said_besides(told: ModelResult) -> dict[str, Any]:
    """What a program is told of a call and a model is not: the structured content and the `_meta` of the server; or our
    error."""
    if told.error is not None:
        return {"_meta": meta_of(told.error)}
    said = {} if told.result is None else {"_meta": told.result.raw.get("_meta")}
    said["structuredContent"] = told.structured
    return {name: value for name, value in said.items() if isinstance(value, dict)}


def meta_of(error: CallError) -> dict[str, Any]:
    """The `_meta` of a call that failed: as at our direct door, with all that is known of the error."""
    said = error.as_dict()
    return {"greenroom/error": {"error": said.pop("code"), **said}}


_INSTRUCTIONS = 8_000  # characters of one server


def instructions_of(room: Room) -> str:
    """What the servers of the room say of themselves, a chapter each."""
    entries = [room.entry(server) for server in sorted({target.server for target in room.tools()})]
    said = [
        (entry.server, entry.instructions) for entry in entries if entry is not None and entry.instructions
    ]
    return "\n\n".join(f"# {server}\n\n{(text or '')[:_INSTRUCTIONS]}" for server, text in said)
