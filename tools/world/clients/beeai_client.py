"""BeeAI: its tools, each with a model of its schema that refuses what the schema does not name."""

import asyncio

from beeai_framework.tools import ToolError, ToolInputValidationError
from beeai_framework.tools.mcp import MCPTool
from mcp import ClientSession, StdioServerParameters, stdio_client
from scene import play


def reason(error):
    """The innermost message: the outer ones are the framework's."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}"


async def shown_of(tool, arguments):
    try:
        return False, (await tool.run(arguments)).get_text_content()
    except (ToolError, ToolInputValidationError) as error:
        return True, f"{error} {reason(error)}"


async def scene(command, arguments, calls):
    parameters = StdioServerParameters(command=command, args=arguments)
    async with stdio_client(parameters) as streams, ClientSession(*streams) as session:
        await session.initialize()
        tools = {tool.name: tool for tool in await MCPTool.from_session(session)}
        return list(tools), [await shown_of(tools[name], given) for name, given in calls]


play(lambda *given: asyncio.run(scene(*given)))
