"""mcp-use: an agent whose model says what the scene wants, one call a turn, and is shown what came of it."""

import asyncio
import os

os.environ["MCP_USE_ANONYMIZED_TELEMETRY"] = "false"

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from mcp_use import MCPAgent, MCPClient
from scene import play, text_of


class ScriptedModel(BaseChatModel):
    """Makes these calls, whatever it is told."""

    calls: list
    shown: list

    @property
    def _llm_type(self):
        return "scripted"

    def bind_tools(self, _tools, **_options):
        return self

    def _generate(self, messages, *_given, **_options):
        last = messages[-1]
        if isinstance(last, ToolMessage):
            self.shown.append((last.status == "error", text_of(last.content)))
        if not self.calls:
            return ChatResult(generations=[ChatGeneration(message=AIMessage("done"))])
        name, arguments = self.calls.pop(0)
        call = {"name": name, "args": arguments, "id": str(len(self.calls)), "type": "tool_call"}
        return ChatResult(generations=[ChatGeneration(message=AIMessage("", tool_calls=[call]))])


async def scene(command, arguments, tools):
    client = MCPClient.from_dict({"mcpServers": {"all": {"command": command, "args": arguments}}})
    try:
        session = await client.create_session("all")
        listed = [tool.name for tool in await session.list_tools()]
        model = ScriptedModel(calls=[*tools], shown=[])
        await MCPAgent(llm=model, client=client, max_steps=2 * len(tools) + 2).run("play the scene")
        return listed, model.shown
    finally:
        await client.close_all_sessions()


play(lambda *given: asyncio.run(scene(*given)))
