"""Inspect AI: a room as a source of tools, with a session for each sample.

    async with Greenroom.open("mcp.json") as room:
        tools = RoomTools(room)
        task = Task(dataset, solver=[use_tools(tools), generate()], cleanup=tools.end_sample)
        await eval_async(task, model="openai/gpt-5")

* *A session for each sample*, whatever tasks of the sample call its tools: with `"isolation": "per_session"` each
  sample has processes of its own. It ends with the sample (`cleanup`), or with the last `mcp_connection` of the sample,
  which `react` opens; `ends_with="sample"` leaves it to `cleanup` alone, for a scorer that looks at what tools did.
  Its name stands in the sample's store as `greenroom_session`, and so in its log. What is left ends with the room.
* *What went wrong is the model's or ours.* What a tool reports, a wrong argument, an unknown tool and a timeout are
  told to the model (`ToolError`). A call that was not sent is made again, `retries` times. If a server was lost while
  it worked, or the sample met a new process that knows nothing of the first, its trajectory is worth nothing: then
  `SampleInvalid` ends the sample with an error, so that it is not scored (`fail_on_error=False` goes on with the
  others, `retry_on_error` runs it anew).
* Tried with inspect_ai 0.3.285, which needs no SDK of MCP for this.

Rejected: to look only at the error of a call. A server that dies between two calls is back at the second one, without
the state, and nothing fails.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Final, Literal, Self, cast

from inspect_ai.solver import TaskState
from inspect_ai.tool import ContentImage, ContentText, MCPServer, Tool, ToolDef, ToolError, ToolParams
from inspect_ai.util import store

from .. import Greenroom, ModelResult, Reach, Session, Target
from ..errors import ServerLost
from .mcp_sdk import without_references
from .shared import Tools

_KEY: Final = "greenroom_session"
_NEW_PROCESS: Final = (
    "greenroom/newProcess"  # in the `_meta` of a session's first result from another process
)
_NUMBERS: Final = itertools.count(1)


class SampleInvalid(Exception):
    """The trajectory of this sample is invalid, because a server was lost in it. It is not the model's fault."""


class RoomTools(MCPServer):
    """The tools of an open room, as a tool source of Inspect.

    `session(name)` makes the session of a sample, to add variables or a profile; None: `room.session(name)`.
    `retries`: how often a call that was not sent is repeated. `is_lost(told)` says whether a call makes the sample
    invalid."""

    def __init__(
        self,
        room: Greenroom,
        *,
        session: Callable[[str], Session] | None = None,
        ends_with: Literal["connection", "sample"] = "connection",
        retries: int = 2,
        is_lost: Callable[[ModelResult], bool] | None = None,
    ) -> None:
        self._make = room.session if session is None else session
        self._ends_with = ends_with
        self._retries = retries
        self._is_lost = lost if is_lost is None else is_lost
        self._samples: dict[str, _Sample] = {}  # by the name of the session

    async def tools(self) -> list[Tool]:
        """All tools that the sample may call. Waits until every server whose tools are unknown was started once."""
        return [tool.as_tool() for tool in (await (await self._sample()).tools.listed()).values()]

    async def end_sample(self, state: TaskState | None = None) -> None:
        """End the session of this sample, with its processes. Pass it to `Task(cleanup=…)`."""
        sample = self._samples.pop(store().get(_KEY, ""), None)
        if sample is not None:
            store().delete(_KEY)
            await sample.session.aclose()

    async def __aenter__(self) -> Self:
        (await self._sample()).entered += 1
        return self

    async def __aexit__(self, *args: object) -> None:
        sample = await self._sample()
        sample.entered -= 1
        if sample.entered == 0 and self._ends_with == "connection":
            await self.end_sample()

    async def _sample(self) -> _Sample:
        """The one whose task this is; a new one, with a session, if it has none."""
        name: str = store().get(_KEY, "")
        if name not in self._samples:
            name = f"inspect-ai-{next(_NUMBERS)}"
            store().set(_KEY, name)
            self._samples[name] = _Sample(self._make(name), self)
            await self._samples[name].session.__aenter__()
        return self._samples[name]

    async def _call(self, tools: Tools[ToolDef], tool: str, arguments: dict[str, Any]) -> Any:
        told = await tools.call_with_retries(tool, arguments, self._retries)
        if self._is_lost(told):
            raise SampleInvalid(
                told.text if told.is_error else f"The server of {tool} has begun anew: {_news(told)}"
            )
        if told.is_error:
            raise ToolError(told.text)
        return [_content(block) for block in told.blocks]


class _Sample:
    def __init__(self, session: Session, owner: RoomTools) -> None:
        self.session = session
        self.entered = 0

        def definition(target: Target) -> ToolDef:
            async def execute(**arguments: Any) -> Any:
                return await owner._call(self.tools, target.name, arguments)  # pyright: ignore[reportPrivateUsage]

            parameters = ToolParams.model_validate(without_references(target.schema()))
            for name, each in parameters.properties.items():
                each.description = each.description or name  # Inspect takes no parameter without one
            return ToolDef(execute, target.name, target.description or target.name, parameters, parallel=True)

        self.tools = Tools(session, definition)


def lost(told: ModelResult) -> bool:
    """Whether a server was lost during the call, or its answer came from a new process."""
    error = told.error
    return _news(told) is not None or (isinstance(error, ServerLost) and error.reach is Reach.SENT)


def _news(told: ModelResult) -> Any:
    meta = None if told.result is None else told.result.raw.get("_meta")
    return cast("dict[str, Any]", meta).get(_NEW_PROCESS) if isinstance(meta, dict) else None


def _content(block: dict[str, Any]) -> ContentText | ContentImage:
    if block["type"] == "image":
        return ContentImage(image=f"data:{block['mimeType']};base64,{block['data']}")
    return ContentText(text=block["text"])
