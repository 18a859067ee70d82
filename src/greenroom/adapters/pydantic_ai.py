"""Pydantic AI: a room as a toolset of an agent.

    async with Greenroom.open("mcp.json") as room:
        agent = Agent("openai:…", toolsets=[RoomToolset(room)])
        result = await agent.run("…")

* *A session for each run.* The framework asks for a toolset of a run before the run begins. It gets one with a session
  of its own, which ends with the run. It asks once for each place in which a toolset stands (as with `filtered`), and
  gets the same one for all of a run. All runs of a toolset that is made of a session have that session.
* *Errors.* `ModelRetry` (try again, which counts) only where nothing was sent and another call may do better, and never
  the last one, which would end the run. Everything else is `ToolFailed`: told, and the model decides.
* *Approval* is the framework's: the run ends with `DeferredToolRequests`, and goes on with `DeferredToolResults`. So
  does a run with a session that was opened for it: the second run has another. Open one yourself to keep its servers.
* *Deferred loading* needs nothing of ours: `RoomToolset(room).defer_loading()`, as with any toolset.
* *Instructions* of servers go into the agent's only if asked for, because a server's words are not the program's.
* Tried with pydantic-ai-slim 2.68.0, which needs no SDK of MCP.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Self, cast
from weakref import WeakValueDictionary

from pydantic_ai import RunContext
from pydantic_ai.exceptions import ApprovalRequired, ModelRetry, ToolFailed
from pydantic_ai.messages import BinaryContent, InstructionPart, ToolReturn
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
from pydantic_core import SchemaValidator, core_schema

from .. import Greenroom, ModelResult, Session, Target
from .shared import Progress, Room, Tools, image_of, instructions_of, may_be_tried_again, said_besides

_NUMBERS: Final = itertools.count(1)
# The arguments are the server's to validate.
_ANY_OBJECT = SchemaValidator(core_schema.dict_schema(core_schema.str_schema(), core_schema.any_schema()))


class RoomToolset(AbstractToolset[Any]):
    """The tools of a room or session, as a toolset of the framework.

    `room` must be open while this is used. `session(ctx)` makes the session of a run, to add variables or a profile:
    `lambda ctx: room.session(ctx.run_id, variables={"TOKEN": ctx.deps.token})`; None: a session with a unique name.
    `meta(ctx)` makes the `_meta` of a call. `on_progress(tool, params)` gets the progress of servers.
    `include_instructions`: pass the servers' instructions to the model. `max_retries`: for each tool; None: the number
    of the agent."""

    def __init__(
        self,
        room: Room,
        *,
        id: str | None = "greenroom",
        session: Callable[[RunContext[Any]], Session] | None = None,
        meta: Callable[[RunContext[Any]], Mapping[str, Any] | None] | None = None,
        on_progress: Progress | None = None,
        include_instructions: bool = False,
        max_retries: int | None = None,
    ) -> None:
        self._room = room
        self._id = id
        self._session = session
        self._meta = meta
        self._on_progress = on_progress
        self._include_instructions = include_instructions
        self._max_retries = max_retries
        self._tools = Tools(room, _definition, on_progress)
        self._runs: WeakValueDictionary[int, _RunToolset] = WeakValueDictionary()  # by the context's identity

    @property
    def id(self) -> str | None:
        return self._id

    # ---- a run ------------------------------------------------------------------------------------------------------

    async def for_run(self, ctx: RunContext[Any]) -> AbstractToolset[Any]:
        if not isinstance(self._room, Greenroom):
            return self
        made = self._runs.get(id(ctx))
        if made is None:
            make = self._session
            name = f"pydantic-ai-{ctx.run_id}-{next(_NUMBERS)}"  # a run may have several toolsets of a room
            made = self._runs[id(ctx)] = _RunToolset(
                self._room.session(name) if make is None else make(ctx),
                ctx,
                id=self._id,
                meta=self._meta,
                on_progress=self._on_progress,
                include_instructions=self._include_instructions,
                max_retries=self._max_retries,
            )
        return made

    async def get_instructions(
        self, ctx: RunContext[Any]
    ) -> str | InstructionPart | Sequence[str | InstructionPart] | None:
        if not self._include_instructions:
            return None
        text = instructions_of(self._tools.room)
        if self._id is None:
            return InstructionPart(text) if text else None
        return InstructionPart(text, on_change="append")  # said even when it is empty: it may come

    # ---- tools ------------------------------------------------------------------------------------------------------

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        listed = await self._tools.listed()
        return {name: self._tool(definition, ctx) for name, definition in listed.items()}

    async def get_tool_for_tool_def(self, tool_def: ToolDefinition, ctx: RunContext[Any]) -> ToolsetTool[Any]:
        return self._tool(tool_def, ctx)

    def _tool(self, definition: ToolDefinition, ctx: RunContext[Any]) -> ToolsetTool[Any]:
        retries = ctx.max_retries if self._max_retries is None else self._max_retries
        return ToolsetTool(toolset=self, tool_def=definition, max_retries=retries, args_validator=_ANY_OBJECT)

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        if not ctx.tool_call_approved and self._tools.need_approval(name):
            raise ApprovalRequired(metadata=tool.tool_def.metadata)
        meta = None if self._meta is None else self._meta(ctx)
        told = await self._tools.call(name, tool_args, meta=meta, allowed=ctx.tool_call_approved)
        if not told.is_error:
            return ToolReturn(_value(told), metadata=said_besides(told))
        if may_be_tried_again(told) and not ctx.last_attempt:
            raise ModelRetry(told.text)
        raise ToolFailed(told.text)


class _RunToolset(RoomToolset):
    """The toolset of one run, which opens its session and ends it, wherever in the run it stands."""

    def __init__(self, session: Session, ctx: RunContext[Any], **options: Any) -> None:
        super().__init__(session, **options)
        self._own = session
        self._ctx = ctx  # as long as this is there, no other context has its identity
        self._entered = 0

    async def __aenter__(self) -> Self:
        self._entered += 1
        if self._entered == 1:
            await self._own.__aenter__()
        return self

    async def __aexit__(self, *args: Any) -> None:
        self._entered -= 1
        if self._entered == 0:
            await self._own.aclose()


def _definition(target: Target) -> ToolDefinition:
    record = target.record
    output = record.get("outputSchema")
    return ToolDefinition(
        name=target.name,
        description=target.description,
        parameters_json_schema=target.schema(),
        return_schema=cast("dict[str, Any]", output) if isinstance(output, dict) else None,
        metadata={
            "server": target.server,
            "annotations": record.get("annotations"),
            "meta": record.get("_meta"),
        },
    )


def _value(told: ModelResult) -> Any:
    """The structured content, or else the text; and the images."""
    pictures = [BinaryContent(image_of(block), media_type=block["mimeType"]) for block in told.images]
    said = told.text if told.structured is None else told.structured
    parts: list[Any] = [*([] if said == "" else [said]), *pictures]
    return parts[0] if len(parts) == 1 else parts
