"""A model of OpenAI Agents that makes the calls of the scene, one a turn."""

import json

from agents import Model, ModelResponse, Usage
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText


class ScriptedModel(Model):
    """The runner checks each call against the definition of its tool."""

    def __init__(self, calls, run):
        self._calls = iter(enumerate(calls))
        self._run = run

    async def get_response(self, *, input, tools, **_given):
        self.told = json.dumps(input[-1], default=str)
        self._run.offered.append({tool.name for tool in tools})
        self._run.defined = [(tool.name, tool.description, tool.params_json_schema) for tool in tools]
        number, (name, arguments) = next(self._calls, (0, (None, None)))
        if name is None:
            text = ResponseOutputText(text=f"done, and told {self.told}", type="output_text", annotations=[])
            said = ResponseOutputMessage(
                id="m", content=[text], role="assistant", status="completed", type="message"
            )
        else:
            said = ResponseFunctionToolCall(
                name=name, arguments=json.dumps(arguments), call_id=f"call-{number}", type="function_call"
            )
        return ModelResponse(output=[said], usage=Usage(), response_id=None)

    def stream_response(self, **_given):
        raise NotImplementedError
