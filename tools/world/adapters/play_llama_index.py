"""LlamaIndex: an agent of its own, whose model makes the calls of the scene, one a turn."""

import asyncio
from typing import Any

from llama_index.core.agent.workflow import FunctionAgent, ToolCallResult
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, LLMMetadata, ToolCallBlock
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from llama_index.tools.mcp import McpToolSpec
from record import Shown
from stage import Framework, in_session, play

from greenroom.adapters.mcp_sdk import RoomSession


class ScriptedModel(FunctionCallingLLM):
    """Makes these calls, whatever it is told, and notes what it is offered and told."""

    calls: list
    record: Any = None

    @property
    def metadata(self):
        return LLMMetadata(is_function_calling_model=True, model_name="scripted")

    def _prepare_chat_with_tools(self, tools, user_msg=None, chat_history=None, **_options):
        self.record.offered.append({tool.metadata.name for tool in tools})
        return {"messages": chat_history}

    async def astream_chat_with_tools(self, tools, user_msg=None, chat_history=None, **_options):
        self._prepare_chat_with_tools(tools, chat_history=chat_history)
        told = [message for message in chat_history if message.role == "tool"]
        self.record.shown = [Shown("`is_error` is not set", str(message.content)) for message in told]
        blocks = []
        if self.calls:
            name, arguments = self.calls.pop(0)
            blocks = [
                ToolCallBlock(tool_name=name, tool_kwargs=arguments, tool_call_id=f"call-{len(self.calls)}")
            ]
        message = ChatMessage(role="assistant", content=None if blocks else "done")
        message.blocks += blocks

        async def stream():
            yield ChatResponse(message=message, delta="")

        return stream()

    def get_tool_calls_from_response(self, response, error_on_no_tool_call=True, **_options):
        return [
            ToolSelection(
                tool_id=block.tool_call_id, tool_name=block.tool_name, tool_kwargs=block.tool_kwargs
            )
            for block in response.message.blocks
            if isinstance(block, ToolCallBlock)
        ]

    def chat(self, *_given, **_options):
        raise AssertionError("it is asked in the loop")

    achat = astream_chat = stream_chat = complete = acomplete = stream_complete = astream_complete = chat


async def play_all(room, calls, record):
    tools = await McpToolSpec(RoomSession(room, cycles=False)).to_tool_list_async()
    agent = FunctionAgent(tools=tools, llm=ScriptedModel(calls=list(calls), record=record), streaming=True)
    handler = agent.run(user_msg="play", max_iterations=50)
    outcomes = []
    try:
        async for event in handler.stream_events():
            if isinstance(event, ToolCallResult):
                outcomes.append(event.tool_output)
        await handler
    except asyncio.CancelledError:
        await handler.cancel_run()  # its work runs in tasks of its own
        raise
    for told, outcome in zip(record.shown, outcomes, strict=True):
        told.how = "`is_error`" if outcome.is_error else "`is_error` is not set"
        content = getattr(outcome.raw_output, "content", ())
        told.images = sum(getattr(block, "type", "") == "image" for block in content)
        texts = [block.text for block in content if getattr(block, "type", "") == "text"]
        told.text = "\n".join(texts) if texts else told.text


play(
    Framework(
        in_session(play_all),
        lambda calls, record: ScriptedModel(calls=calls, record=record),
        ok="`is_error` is not set",
        error="`is_error` is not set",
        unknown="`is_error`",
        list_follows=False,
        extras=False,
        bounded=False,
    )
)
