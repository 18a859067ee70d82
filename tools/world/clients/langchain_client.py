"""LangChain's adapters: tools made of a session, invoked as a model's tool calls are."""

import asyncio

from langchain_core.tools import ToolException
from langchain_mcp_adapters.client import MultiServerMCPClient
from scene import play, text_of


async def scene(command, arguments, tools):
    client = MultiServerMCPClient({"all": {"transport": "stdio", "command": command, "args": arguments}})
    async with client.session("all") as session:
        from langchain_mcp_adapters.tools import load_mcp_tools

        made = {tool.name: tool for tool in await load_mcp_tools(session)}
        shown = []
        for name, args in tools:
            try:
                shown.append((False, text_of(plain(await made[name].ainvoke(args)))))
            except ToolException as error:
                shown.append((True, str(error)))
        return list(made), shown


def plain(blocks):
    """Without the ids that the adapters draw for each block."""
    return blocks if isinstance(blocks, str) else [{**block, "id": ""} for block in blocks]


play(lambda *given: asyncio.run(scene(*given)))
