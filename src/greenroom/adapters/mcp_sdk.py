"""A room with the methods of a session of the MCP SDK, for code that lists and calls: `RoomSession(room)`.

It has the methods of `ClientSession` that others' code uses, with the SDK's own types in and out, and nothing between
them and the room: no message, no task. Nobody checks for the class. DSPy (`Tool.from_mcp_tool`) and LlamaIndex
(`McpToolSpec`) take it. What needs a conversation, such as being asked by a server, is `InProcessDoor.streams` with the
real `ClientSession`.

Those two make a type of each schema and never come to the end of one that contains itself: `cycles=False` gives them
schemas without references, each cut where it would begin again.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, cast

from .. import CallError, Greenroom, Session
from .shared import meta_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mcp.types import (
        CallToolResult,
        GetPromptResult,
        ListPromptsResult,
        ListResourcesResult,
        ListResourceTemplatesResult,
        ListToolsResult,
        ReadResourceResult,
    )

    from .. import Target

_MOST: Final = 10_000  # parts of a schema whose references are written out


class RoomSession:
    """The tools, resources and prompts of a room or session, with the methods of the SDK's `ClientSession`.

    `cycles`: False changes recursive schemas, for code that cannot handle them."""

    def __init__(self, room: Greenroom | Session, *, cycles: bool = True) -> None:
        self._room = room
        self._cycles = cycles

    async def initialize(self) -> None:
        """Does nothing, because the room is already open."""

    async def list_tools(self, *_cursor: Any, **_params: Any) -> ListToolsResult:
        """All tools that can be called, on one page. Waits until every server whose tools are unknown was started
        once."""
        from mcp.types import ListToolsResult

        await self._room.catalogued()
        tools = (target for target in self._room.tools() if target.kind == "tool" and target.may_be_called)
        return ListToolsResult(tools=[self._listed(target) for target in tools])

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        read_timeout_seconds: float | timedelta | None = None,
        progress_callback: Callable[[float, float | None, str | None], Awaitable[None]] | None = None,
        *,
        meta: Mapping[str, Any] | None = None,
    ) -> CallToolResult:
        """Call a tool. A failed call raises nothing: the result has `isError`, its text says why, and `_meta` says
        under `greenroom/error` how far the call got. Cancelling this cancels the call."""
        from mcp.types import CallToolResult

        limit = read_timeout_seconds
        timeout = limit.total_seconds() if isinstance(limit, timedelta) else limit
        try:
            if progress_callback is None:
                return (await self._room.call(name, arguments, timeout=timeout, meta=meta)).to_mcp()
            async with self._room.stream_call(name, arguments, timeout=timeout, meta=meta) as run:
                async for said in run:
                    await progress_callback(said["progress"], said.get("total"), said.get("message"))
                return (await run.result()).to_mcp()
        except CallError as error:
            told = {"content": [{"type": "text", "text": error.message}], "isError": True}
            return CallToolResult.model_validate({**told, "_meta": meta_of(error)})

    async def list_resources(self, *_cursor: Any, **_params: Any) -> ListResourcesResult:
        """All resources, on one page. Waits as `list_tools` does."""
        from mcp.types import ListResourcesResult

        await self._room.catalogued()
        records = [{**place.record, "uri": place.uri} for place in self._room.resources()]
        return ListResourcesResult.model_validate({"resources": records})

    async def list_resource_templates(self, *_cursor: Any, **_params: Any) -> ListResourceTemplatesResult:
        """All templates of resources, on one page. Waits as `list_tools` does."""
        from mcp.types import ListResourceTemplatesResult

        await self._room.catalogued()
        records = [{**place.record, "uriTemplate": place.uri} for place in self._room.templates()]
        return ListResourceTemplatesResult.model_validate({"resourceTemplates": records})

    async def read_resource(self, uri: Any, **_params: Any) -> ReadResourceResult:
        """Read a resource. Raises as `Greenroom.read_resource` does."""
        return (await self._room.read_resource(str(uri))).to_mcp()

    async def list_prompts(self, *_cursor: Any, **_params: Any) -> ListPromptsResult:
        """All prompts, on one page. Waits as `list_tools` does."""
        from mcp.types import ListPromptsResult

        await self._room.catalogued()
        records = [{**target.record, "name": target.name} for target in self._room.prompts()]
        return ListPromptsResult.model_validate({"prompts": records})

    async def get_prompt(
        self, name: str, arguments: Mapping[str, str] | None = None, **_params: Any
    ) -> GetPromptResult:
        """Get a prompt. Raises as `Greenroom.get_prompt` does."""
        return (await self._room.get_prompt(name, arguments)).to_mcp()

    def _listed(self, target: Target) -> Any:
        tool = target.to_mcp()
        if self._cycles:
            return tool
        field = (
            "input_schema" if hasattr(tool, "input_schema") else "inputSchema"
        )  # of the SDK's 2.x, or its 1.x
        return tool.model_copy(update={field: without_references(target.schema())})


def without_references(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The same schema with its references replaced by what they point to. A schema inside itself, or one that would
    become too large, is replaced by its type."""
    return cast("dict[str, Any]", _ExpandedSchema(schema).of(schema, ()))


class _ExpandedSchema:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._left = _MOST

    def of(self, value: Any, inside: tuple[str, ...], *, is_schema: bool = True) -> Any:
        """A part of the schema; `inside`: the references that led here."""
        self._left -= 1
        if isinstance(value, list):
            return [self.of(each, inside) for each in cast("list[Any]", value)]
        if not isinstance(value, Mapping):
            return value
        said = cast("Mapping[str, Any]", value)
        reference = said.get("$ref") if is_schema else None
        if isinstance(reference, str):
            target = self._target(reference)
            beside = {key: each for key, each in said.items() if key != "$ref"}
            if reference in inside or self._left < 0 or not isinstance(target, Mapping):
                kind = cast("Mapping[str, Any]", target).get("type") if isinstance(target, Mapping) else None
                return {**({"type": kind} if isinstance(kind, str) else {}), **self.of(beside, inside)}
            whole = {**cast("Mapping[str, Any]", target), **beside}
            return self.of(whole, (*inside, reference))
        # Names of parameters are no keywords: one may be called `$ref`.
        return {
            key: self.of(
                each, inside, is_schema=not (is_schema and key in ("properties", "patternProperties"))
            )
            for key, each in said.items()
            if not (is_schema and key in ("$defs", "definitions"))
        }

    def _target(self, reference: str) -> Any:
        found: Any = self._root if reference.startswith("#") else None
        for part in reference[1:].split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            found = cast("Mapping[str, Any]", found).get(key) if isinstance(found, Mapping) else None
        return found
