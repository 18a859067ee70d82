"""Strands: its MCP client runs a thread of its own."""

from mcp import StdioServerParameters, stdio_client
from scene import play, text_of
from strands.tools.mcp import MCPClient


def scene(command, arguments, tools):
    parameters = StdioServerParameters(command=command, args=arguments)
    with MCPClient(lambda: stdio_client(parameters), startup_timeout=30) as client:
        listed = [tool.tool_name for tool in client.list_tools_sync()]
        shown = []
        for number, (name, args) in enumerate(tools):
            result = client.call_tool_sync(tool_use_id=str(number), name=name, arguments=args)
            shown.append((result["status"] == "error", text_of(result["content"])))
        return listed, shown


play(scene)
