"""smolagents: tools as plain callables, asked for structured output where there is any."""

from mcp import StdioServerParameters
from scene import play, text_of
from smolagents import ToolCollection


def scene(command, arguments, tools):
    parameters = StdioServerParameters(command=command, args=arguments)
    with ToolCollection.from_mcp(parameters, trust_remote_code=True, structured_output=True) as found:
        made = {tool.name: tool for tool in found.tools}
        shown = []
        for name, args in tools:
            try:
                shown.append((False, text_of(made[name](**args))))
            except Exception as error:
                shown.append((True, str(error)))
        return list(made), shown


play(scene)
