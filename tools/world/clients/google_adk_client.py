"""Google ADK: a toolset, its tools run as its agents run them."""

import asyncio

from google.adk.tools.mcp_tool import McpToolset, StdioConnectionParams
from mcp import StdioServerParameters
from scene import play, text_of


async def scene(command, arguments, tools):
    parameters = StdioServerParameters(command=command, args=arguments)
    toolset = McpToolset(connection_params=StdioConnectionParams(server_params=parameters, timeout=30))
    try:
        made = {tool.name: tool for tool in await toolset.get_tools()}
        shown = []
        for name, args in tools:
            result = await made[name].run_async(args=args, tool_context=Context())
            refused = isinstance(result, dict) and bool(result.get("isError") or result.get("error"))
            shown.append((refused, text_of(result)))
        return list(made), shown
    finally:
        await toolset.close()


class Context:
    """As much of a tool context as a tool without credentials asks for."""

    function_call_id = "call"

    def __init__(self):
        self.state = {}

    def __getattr__(self, name):
        return None


play(lambda *given: asyncio.run(scene(*given)))
