"""Google ADK: a room as a toolset of an agent.

    async with Greenroom.open("mcp.json") as room:
        agent = LlmAgent(name="helper", model="gemini-…", tools=[RoomToolset(room)])

* *Errors* are `{"error": …}`, never exceptions: those end the run. The framework has no word for "try again"; the text
  says whether the call may have run.
* *Results*: `{"result": …}`, the structured content or else the text; images as parts, which the framework takes out.
* *Approval* is the framework's confirmation: it asks before a call, and calls again with the answer.
* *Sessions*: the framework does not say when a run begins or ends, and one toolset may serve many users. So a program
  opens sessions itself, and either makes the toolset of one, or says which of them a run has.
* *Schemas* go to the model as JSON schema, unchanged.
* The framework keeps the list of tools for a run, so a new list is seen by the next run.
* Tried with google-adk 2.13.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from .. import ModelResult, Target
from .shared import Progress, Room, Tools, image_of

MetaOf = Callable[[ToolContext], Mapping[str, Any] | None]


class RoomToolset(BaseToolset):
    """The tools of a room or session, as a toolset of the framework.

    `room` must be open while this is used. `session(context)` returns the open session of a run: `lambda context:
    sessions[context.user_id]`; None: the room or session that was passed. `meta(context)` makes the `_meta` of a call.
    `on_progress(tool, params)` gets the progress of servers. `options`: the arguments of `BaseToolset`."""

    def __init__(
        self,
        room: Room,
        *,
        session: Callable[[ReadonlyContext], Room] | None = None,
        meta: MetaOf | None = None,
        on_progress: Progress | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._room = room
        self._session = session
        self._meta = meta
        self._on_progress = on_progress

    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
        choose = self._session
        room = self._room if choose is None or readonly_context is None else choose(readonly_context)

        def make(target: Target) -> RoomTool:
            return RoomTool(target, tools, self._meta)

        tools = Tools(room, make, self._on_progress)
        listed = await tools.listed()
        return [tool for tool in listed.values() if self._is_tool_selected(tool, readonly_context)]


class RoomTool(BaseTool):
    """A tool of a room."""

    def __init__(self, target: Target, tools: Tools[RoomTool], meta: MetaOf | None) -> None:
        annotations = target.record.get("annotations")
        super().__init__(
            name=target.name,
            description=target.description,
            custom_metadata={"server": target.server, "annotations": annotations},
        )
        self._target = target
        self._tools = tools
        self._meta = meta

    def _get_declaration(self) -> types.FunctionDeclaration:
        return types.FunctionDeclaration(
            name=self.name,
            description=self.description,
            parameters_json_schema=self._target.schema(),
            response_json_schema=self._target.record.get("outputSchema"),
        )

    async def check_require_confirmation(self, args: dict[str, Any], tool_context: ToolContext) -> bool:
        return self._tools.need_approval(self._target.name)

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> dict[str, Any]:
        confirmation = tool_context.tool_confirmation
        told = await self._tools.call(
            self._target.name,  # the framework may have put a prefix before the tool's own
            args,
            meta=None if self._meta is None else self._meta(tool_context),
            allowed=confirmation is not None and confirmation.confirmed,
        )
        return {"error": told.text} if told.is_error else _response(told)


def _response(told: ModelResult) -> dict[str, Any]:
    result = told.text if told.structured is None else told.structured
    images = [
        types.Part.from_bytes(data=image_of(block), mime_type=block["mimeType"]) for block in told.images
    ]
    return {"result": result, "images": images} if images else {"result": result}
