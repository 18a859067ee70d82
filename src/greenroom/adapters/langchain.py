"""LangChain and LangGraph: the tools of a room as LangChain's tools.

    async with Greenroom.open("mcp.json") as room:
        agent = create_agent("openai:…", await room_tools(room))
        result = await agent.ainvoke({"messages": [{"role": "user", "content": "…"}]})

* *Errors* are told to the model, as a `ToolMessage` whose status is "error". The framework has no word for "try again";
  the text says whether the call may have run.
* *Results*: text and images as content; what a program gets beside them is the artifact, also of an error. (The
  framework gives an error none, so it is put there when the framework has made the message.)
* *Approval* is LangGraph's interrupt, in the form of LangChain's own `HumanInTheLoopMiddleware`, so that what can
  answer the one can answer the other. At a resume LangGraph runs the tool again from its start, so the question comes
  before anything else. Outside a graph nobody can be asked, and the room refuses the call.
* The arguments of a server may have any name, so a tool takes none of its own: what it needs of a run it reads from the
  run's context. (With `StructuredTool` a parameter of a server that is called `config` gets the framework's.)
* *A session for each run* cannot be had by itself, because the framework does not say when a run ends. Open one, and
  give it in place of the room.
* The framework asks for tools once, so a new list is seen by the next agent that is made.
* Tried with langchain-core 1.8.3, langgraph 1.2.24 and langchain 1.5.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, cast

from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config
from langchain_core.tools import BaseTool, ToolException
from pydantic import PrivateAttr

from .. import ModelResult, Target, UsageError
from .shared import Progress, Room, Tools, said_besides

_failed: ContextVar[list[dict[str, Any]] | None] = ContextVar("_failed", default=None)
MetaOf = Callable[[RunnableConfig], Mapping[str, Any] | None]


async def room_tools(
    room: Room, *, meta: MetaOf | None = None, on_progress: Progress | None = None
) -> list[BaseTool]:
    """The tools of a room or session, which must be open while they are used.

    Waits until every server whose tools are unknown was started once. `meta(config)` makes the `_meta` of a call from
    the config of the run. `on_progress(tool, params)` gets the progress of servers."""
    tools = Tools(room, lambda target: _tool(target, tools, meta), on_progress)
    return list((await tools.listed()).values())


class RoomTool(BaseTool):
    """A tool of a room. It can only be called asynchronously (`ainvoke`)."""

    _tools: Tools[RoomTool] = PrivateAttr()
    _meta: MetaOf | None = PrivateAttr()

    async def arun(self, *args: Any, **kwargs: Any) -> Any:
        artifacts: list[dict[str, Any]] = []
        token = _failed.set(artifacts)
        try:
            said = await super().arun(*args, **kwargs)
        finally:
            _failed.reset(token)
        if artifacts and isinstance(said, ToolMessage):
            [said.artifact] = artifacts
        return said

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        raise UsageError(f'The tool "{self.name}" is asynchronous: use ainvoke.')

    async def _arun(self, /, **arguments: Any) -> tuple[Any, Any]:
        allowed = False
        if self._tools.need_approval(self.name):
            answer = _ask(self.name, self.description, arguments)
            if answer is not None and not _is_yes(answer):
                raise ToolException(
                    f'The call of "{self.name}" was not allowed, and was not sent.{_why(answer)}'
                )
            allowed = answer is not None
        meta = None if self._meta is None else self._meta(ensure_config())
        told = await self._tools.call(self.name, arguments, meta=meta, allowed=allowed)
        if told.is_error:
            artifacts = _failed.get()
            if artifacts is not None:
                artifacts.append(said_besides(told))
            raise ToolException(_content(told))
        return _content(told), said_besides(told)


def _tool(target: Target, tools: Tools[RoomTool], meta: MetaOf | None) -> RoomTool:
    made = RoomTool(
        name=target.name,
        description=target.description,
        args_schema=target.schema(),
        response_format="content_and_artifact",
        handle_tool_error=True,
        metadata={"server": target.server, "annotations": target.record.get("annotations")},
    )
    made._tools, made._meta = tools, meta  # pyright: ignore[reportPrivateUsage]
    return made


def _content(told: ModelResult) -> Any:
    """As the content of a message: a text, or blocks if there are images."""
    if not told.images:
        return told.text
    return [
        block
        if block["type"] == "text"
        else {"type": "image", "base64": block["data"], "mime_type": block["mimeType"]}
        for block in told.blocks
    ]


# ---- approval -------------------------------------------------------------------------------------------------------
def _ask(name: str, description: str, arguments: Mapping[str, Any]) -> Any:
    """Interrupt the graph, and return what it is resumed with. None where there is no graph."""
    try:
        from langgraph.types import interrupt
    except ModuleNotFoundError:
        return None
    if "thread_id" not in (ensure_config().get("configurable") or {}):
        return None
    request = {"name": name, "args": dict(arguments), "description": description}
    review = {"action_name": name, "allowed_decisions": ["approve", "reject"]}
    try:
        return interrupt({"action_requests": [request], "review_configs": [review]})
    except (KeyError, RuntimeError):  # this is what it raises outside a graph
        return None


def _is_yes(answer: Any) -> bool:
    return answer is True or _decision(answer).get("type") == "approve"


def _why(answer: Any) -> str:
    """What the person says to it."""
    words = _decision(answer).get("message")
    return f" {words}" if words else ""


def _decision(answer: Any) -> Mapping[str, Any]:
    """The one decision of such an answer."""
    match answer:
        case {"decisions": [{"type": _} as decision]}:
            return cast("Mapping[str, Any]", decision)
        case _:
            return {}
