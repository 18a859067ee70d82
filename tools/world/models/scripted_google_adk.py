"""A model of Google ADK that makes the calls of the scene, one a turn."""

import json
from typing import Any

from google.adk.models import BaseLlm, LlmResponse
from google.genai import types
from record import Shown

CONFIRMATION = "adk_request_confirmation"


class ScriptedModel(BaseLlm):
    calls: list
    record: Any

    async def generate_content_async(self, llm_request, stream=False):
        declared = [tool.function_declarations for tool in llm_request.config.tools or ()]
        self.record.offered.append({one.name for each in declared for one in each})
        self.record.defined = [one.model_dump() for each in declared for one in each]
        answers = [
            part.function_response
            for content in llm_request.contents
            for part in content.parts
            if part.function_response and part.function_response.name != CONFIRMATION
        ]
        self.record.shown = [shown(answer) for answer in answers]
        self.record.structured = [answer.response.get("result") for answer in answers]
        if self.calls:
            name, arguments = self.calls.pop(0)
            part = types.Part.from_function_call(name=name, args=arguments)
        else:
            told = self.record.shown[-1].text if answers else "nothing"
            part = types.Part.from_text(text=f"done, and told {told}")
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def scripted(calls, record):
    return ScriptedModel(model="scripted", calls=[*calls], record=record)


def shown(answer):
    said = answer.response
    how = "error" if "error" in said else "result"
    told = said.get(how, said)
    return Shown(
        f'`{{"{how}": …}}`', told if isinstance(told, str) else json.dumps(told), len(answer.parts or ())
    )
