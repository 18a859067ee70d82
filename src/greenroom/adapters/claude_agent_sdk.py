"""Claude Agent SDK: a room as a server of the framework, in the same process.

    async with Greenroom.open("mcp.json") as room:
        async for message in query(prompt="…", options=RoomServer(room).options()): …

* The framework takes no client and no transport, only a `Server` of the MCP SDK. Ours lists and calls; it has tools
  alone, because Claude Code offers its model nothing else of such a server.
* *A session for each run of Claude Code*: a `query`, or a `ClaudeSDKClient` with all its queries. The framework
  runs the server once for each, so the session is opened and ended with it.
* *Approval* is the framework's: `can_use_tool`. A hook has Claude Code ask about exactly those calls that the room asks
  about, and allows the others. The room then has to know that this very call was allowed. Claude Code names it in the
  `_meta` of a call by the same id under which it asked; no server and no model can write there.
* *Errors* are results that say so. Claude Code cuts long texts itself, and we before that.
* `list_changed` and progress are not forwarded by the framework: a new list is seen by the next query.
* With SDK 1 of MCP the framework cannot cancel a call, so this is for SDK 2 alone.
* Tried with claude-agent-sdk 0.2.189 and the Claude Code 2.1.332 in it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from claude_agent_sdk import (
    ClaudeAgentOptions,
    HookContext,
    HookInput,
    HookMatcher,
    McpSdkServerConfig,
    PermissionResultAllow,
    PermissionResultDeny,
    ToolPermissionContext,
)
from claude_agent_sdk.types import HookEvent, HookJSONOutput
from mcp.server import Server, ServerRequestContext
from mcp.types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    Tool,
)

from .. import Greenroom, Target
from .shared import Progress, Room, Tools, said_besides

CanUseTool = Callable[
    [str, dict[str, Any], ToolPermissionContext], Awaitable[PermissionResultAllow | PermissionResultDeny]
]
_ID: Final = "claudecode/toolUseId"
_MOST: Final = 1_000  # ids of calls that were allowed and have not come yet
_NUMBERS: Final = itertools.count(1)


class RoomServer:
    """An open room or session, as a server for Claude Code.

    `name`: the name of the server. Claude Code calls its tools `mcp__NAME__TOOL`, with `_` instead of characters that
    such a name cannot have. `meta()` makes the `_meta` of a call. `on_progress(tool, params)` gets the progress of
    servers."""

    def __init__(
        self,
        room: Room,
        *,
        name: str = "greenroom",
        meta: Callable[[], Mapping[str, Any] | None] | None = None,
        on_progress: Progress | None = None,
    ) -> None:
        self._room = room
        self._name = name
        self._prefix = f"mcp__{re.sub('[^A-Za-z0-9_-]', '_', name)}__"  # as Claude Code makes it
        self._meta = meta
        self._on_progress = on_progress
        self._listed: set[str] = set()  # what Claude Code was told of
        self._allowed: dict[str, str] = {}  # the tool, by the id of its call

    def options(self, ask: CanUseTool | None = None, **others: Any) -> ClaudeAgentOptions:
        """The options of a query with this server. `others`: more options of `ClaudeAgentOptions`.

        `ask`: your `can_use_tool`. It is called for tools that need approval in the room, and for everything else that
        Claude Code asks. Without it, such calls are refused. To make the options yourself, use `config`, `matcher` and
        `asking(ask)`."""
        servers = {**others.pop("mcp_servers", {}), self._name: self.config}
        hooks: dict[HookEvent, list[HookMatcher]] = dict(others.pop("hooks", None) or {})
        return ClaudeAgentOptions(
            mcp_servers=servers,
            hooks={**hooks, "PreToolUse": [*hooks.get("PreToolUse", []), self.matcher]},
            can_use_tool=None if ask is None else self.asking(ask),
            **others,
        )

    @property
    def config(self) -> McpSdkServerConfig:
        """The value for `mcp_servers`, under the server's name."""
        server = Server[Tools[Tool]](
            self._name, lifespan=self._session, on_list_tools=self._list_tools, on_call_tool=self._call_tool
        )
        return {"type": "sdk", "name": self._name, "instance": server}

    # ---- approval ---------------------------------------------------------------------------------------------------

    @property
    def matcher(self) -> HookMatcher:
        """The matcher for `hooks`, under "PreToolUse"."""
        return HookMatcher(matcher=f"{self._prefix}.*", hooks=[self._before_a_call])

    async def _before_a_call(
        self, asked: HookInput, tool_use_id: str | None, context: HookContext
    ) -> HookJSONOutput:
        tool = self._own(str(asked.get("tool_name", "")))
        if tool is None:
            return {}
        needs = Tools(self._room, Target.to_mcp).need_approval(tool)
        return {
            "hookSpecificOutput": {
                "hookEventName": "PreToolUse",
                "permissionDecision": "ask" if needs else "allow",
            }
        }

    def asking(self, ask: CanUseTool) -> CanUseTool:
        """`ask` as a function for `can_use_tool`. What it allows is remembered for the call with this id."""

        async def can_use_tool(
            name: str, given: dict[str, Any], context: ToolPermissionContext
        ) -> PermissionResultAllow | PermissionResultDeny:
            answer = await ask(name, given, context)
            tool, call = self._own(name), context.tool_use_id
            if isinstance(answer, PermissionResultAllow) and tool is not None and call:
                self._allowed[call] = tool
                while len(self._allowed) > _MOST:
                    del self._allowed[next(iter(self._allowed))]
            return answer

        return can_use_tool

    def _own(self, name: str) -> str | None:
        """The room's name for a tool of this server. None for any other: the name of another server may begin as ours
        does, and what Claude Code asks about its tools is not ours to answer."""
        if not name.startswith(self._prefix):
            return None
        tool = name.removeprefix(self._prefix)
        return tool if tool in self._listed else None

    # ---- the server -------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _session(self, _server: Server[Tools[Tool]]) -> AsyncGenerator[Tools[Tool]]:
        room = self._room
        if not isinstance(room, Greenroom):
            yield Tools(room, Target.to_mcp, self._on_progress)
            return
        async with room.session(f"claude-agent-sdk-{next(_NUMBERS)}") as session:
            yield Tools(session, Target.to_mcp, self._on_progress)

    async def _list_tools(
        self, context: ServerRequestContext[Tools[Tool]], _page: PaginatedRequestParams | None
    ) -> ListToolsResult:
        listed = await context.lifespan_context.listed()
        self._listed.update(listed)
        return ListToolsResult(tools=list(listed.values()))

    async def _call_tool(
        self, context: ServerRequestContext[Tools[Tool]], called: CallToolRequestParams
    ) -> CallToolResult:
        given = dict(context.meta or {})
        given.pop("progressToken", None)  # what it would name is not forwarded
        meta = {**given, **(self._meta() or {})} if self._meta is not None else given
        allowed = self._allowed.pop(str(given.get(_ID)), None) == called.name
        told = await context.lifespan_context.call(called.name, called.arguments, meta=meta, allowed=allowed)
        said = {"content": told.blocks, "isError": told.is_error, **said_besides(told)}
        return CallToolResult.model_validate(said)
