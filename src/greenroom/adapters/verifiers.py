"""verifiers: a room as the toolset of a task, started for each rollout and ended with it.

    class MyTask(vf.Task[vf.TaskData, RoomState]):
        @classmethod
        def toolsets(cls, config):
            return [RoomToolset(RoomConfig(servers="mcp.json"))]

        async def finalize(self, trace, runtime):
            must_be_whole(trace.state)

* *A room for each rollout*, in the toolset's own process, which verifiers starts and ends: so each rollout has servers
  of its own, and what they keep is its own. A toolset that all rollouts share has one room for all.
* *Nothing is repeated blindly.* The client of verifiers makes a call six times when its connection fails, whatever has
  run. Here a call that failed is an answer, with words that say whether it may have run. Only one that was not sent is
  made again, `retries` times.
* *A lost server is no wrong answer.* When a server died while it worked, the trajectory is worth nothing: that stands
  in the rollout's state (`lost`), and `must_be_whole` makes an error of it (`ToolsetError`): nobody trains on it.
* Parameters are told by their own schemas, one by one; what stands above them, such as alternatives, is left out.
* Tried with verifiers 0.4.0, which has mcp 2.0.0.
"""

from __future__ import annotations

import inspect
from typing import Annotated, Any, cast

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ImageContent, TextContent
from pydantic import WithJsonSchema
from verifiers.v1 import (  # pyright: ignore[reportMissingTypeStubs]
    State,
    Toolset,
    ToolsetConfig,
    ToolsetError,
)

from .. import Greenroom, ModelResult, Reach, Target
from ..errors import ServerLost
from .mcp_sdk import without_references
from .shared import Tools


class RoomState(State):
    """The state of a rollout with a room. `lost`: why its trajectory is invalid; None: it is valid."""

    lost: str | None = None


class RoomConfig(ToolsetConfig):
    """`servers`: the path of a configuration. `retries`: how often a call that was not sent is repeated."""

    servers: str = "mcp.json"
    retries: int = 2


class RoomToolset(Toolset[RoomConfig, RoomState]):
    """The tools of a room, by the names that the room gives them."""

    TOOL_PREFIX = None

    async def setup(self) -> None:
        room = await self._exit_stack.enter_async_context(Greenroom.open(self.config.servers))
        self._tools = Tools(room, lambda target: target)
        self._listed = await self._tools.listed()

    def register(self, mcp: MCPServer) -> None:
        for target in self._listed.values():
            function: Any = cast("Any", self)._with_state(self._function(target))  # its types are left open
            mcp.add_tool(function, target.name, description=target.description, structured_output=False)

    def _function(self, target: Target) -> Any:
        async def call(**arguments: Any) -> Any:
            given = {name: each for name, each in arguments.items() if each is not None or name in needed}
            told = await self._tools.call_with_retries(target.name, given, self.config.retries)
            error = told.error
            if isinstance(error, ServerLost) and error.reach is Reach.SENT:
                self.state.lost = told.text
                return [TextContent(text=told.text)]  # as an answer: what is raised would not reach the state
            if told.is_error:
                raise ToolError(told.text)
            return _content(told)

        schema = without_references(target.schema())
        needed = frozenset(cast("list[str]", schema.get("required", [])))
        call.__signature__ = inspect.Signature(  # pyright: ignore[reportFunctionMemberAccess]
            [_parameter(name, each, name in needed) for name, each in schema.get("properties", {}).items()]
        )
        return call


def must_be_whole(state: RoomState) -> None:
    """Raises `ToolsetError` if a server was lost in this rollout."""
    if state.lost is not None:
        raise ToolsetError(state.lost)


def _parameter(name: str, schema: dict[str, Any], is_needed: bool) -> inspect.Parameter:
    default = inspect.Parameter.empty if is_needed else None
    told = Annotated[Any, WithJsonSchema(schema)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=told)


def _content(told: ModelResult) -> list[TextContent | ImageContent]:
    return [
        ImageContent(data=block["data"], mime_type=block["mimeType"])
        if block["type"] == "image"
        else TextContent(text=block["text"])
        for block in told.blocks
    ]


if __name__ == "__main__":
    RoomToolset.run()
