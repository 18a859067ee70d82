"""A model of LangChain that makes the calls of the scene, one a turn."""

import uuid

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.utils.function_calling import convert_to_openai_tool
from record import Run, Shown


class ScriptedModel(BaseChatModel):
    """Makes these calls, whatever it is told, and notes what it is offered and told."""

    calls: list
    record: Run

    def __init__(self, calls, record):
        super().__init__(calls=list(calls), record=record)
        self.record = record  # the same object

    @property
    def _llm_type(self):
        return "scripted"

    def bind_tools(self, tools, **_options):
        self.record.offered.append({tool.name for tool in tools})
        self.record.defined = [convert_to_openai_tool(tool) for tool in tools]
        return self

    def _generate(self, messages, stop=None, run_manager=None, **_options):
        told = [message for message in messages if isinstance(message, ToolMessage)]
        self.record.shown = [shown(message) for message in told]
        artifacts = [message.artifact if isinstance(message.artifact, dict) else {} for message in told]
        self.record.structured = [each.get("structuredContent") for each in artifacts]
        if self.calls:
            name, arguments = self.calls.pop(0)
            calls = [{"name": name, "args": arguments, "id": uuid.uuid4().hex}]
            said = AIMessage("", tool_calls=calls)
        else:
            said = AIMessage(f"done, and told {told[-1].text if told else 'nothing'}")
        return ChatResult(generations=[ChatGeneration(message=said)])


def shown(message):
    images = sum(block["type"] == "image" for block in message.content_blocks)
    return Shown(f'`status="{message.status}"`', message.text, images)
