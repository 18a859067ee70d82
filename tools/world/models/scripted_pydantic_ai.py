"""A model of Pydantic AI that makes the calls of the scene, one a turn."""

from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel
from record import Shown


def scripted(calls, record):
    """The agent checks each call against the definition of its tool."""
    left = iter(calls)

    async def respond(messages, info):
        record.offered.append({tool.name for tool in info.function_tools})
        record.instructions = info.instructions
        record.defined = [
            (tool.name, tool.description, tool.parameters_json_schema) for tool in info.function_tools
        ]
        parts = [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]
        record.shown = [shown(part) for part in parts]
        record.structured = [part.content for part in parts]
        record.metadata = [part.metadata for part in parts]
        name, arguments = next(left, (None, None))
        told = record.shown[-1].text if record.shown else "nothing"
        said = TextPart(f"done, and told {told}") if name is None else ToolCallPart(name, arguments)
        return ModelResponse([said])

    return FunctionModel(respond)


def shown(part):
    items = part.content if isinstance(part.content, list) else [part.content]
    images = sum(getattr(item, "is_image", False) for item in items)
    text = part.content if isinstance(part.content, str) else part.model_response_str()
    return Shown(part.outcome, text, images)
