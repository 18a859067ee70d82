"""Google ADK: an agent whose model makes the calls of the scene, one a turn."""

import json
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types
from stage import Framework, Run, Shown, play, smudge

from greenroom.adapters.google_adk import RoomToolset

CONFIRMATION = "adk_request_confirmation"


class ScriptedModel(BaseLlm):
    """Makes these calls, whatever it is told, and notes what it is offered and told."""

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
    text = said[how] if isinstance(said[how], str) else json.dumps(said[how])
    return Shown(f'`{{"{how}": …}}`', text, len(answer.parts or ()))


async def run(room, calls, *, answer=None, meta=None, on_progress=None, **options):
    record = Run()
    tools = RoomToolset(room, meta=lambda _context: meta, on_progress=on_progress, **options)
    agent = LlmAgent(name="player", model=scripted(calls, record), tools=[tools])
    runner = InMemoryRunner(agent=agent, app_name="stage")
    session = await runner.session_service.create_session(app_name="stage", user_id="user")
    parts = [types.Part.from_text(text="play")]
    try:
        while parts:
            message = types.Content(role="user", parts=parts)
            parts = []
            async for event in runner.run_async(user_id="user", session_id=session.id, new_message=message):
                if event.is_final_response() and event.content:
                    record.said = "".join(part.text or "" for part in event.content.parts)
                for call in event.get_function_calls():
                    if call.name == CONFIRMATION:
                        record.asked.append(call.args["originalFunctionCall"]["name"])
                        said = types.FunctionResponse(
                            id=call.id, name=CONFIRMATION, response={"confirmed": answer}
                        )
                        parts.append(types.Part(function_response=said))
    finally:
        await runner.close()
    return record


async def chosen(stage, room):
    """A run of a user has this user's session; and a prefix is the framework's alone."""
    async with room.session("user") as session:
        calls = [("p_own_pid", {})]
        sessions = {"user": session}
        record = await run(
            room, calls, session=lambda context: sessions[context.user_id], tool_name_prefix="p"
        )
        rows = [row for row in room.status() if row.server == "own" and row.scope == "session:user"]
        stage.expect([record.shown[0].how, len(rows)] == ['`{"result": …}`', 1], f"{record.shown}, {rows}")


play(
    Framework(
        run,
        scripted,
        ok='`{"result": …}`',
        error='`{"error": …}`',
        list_follows=False,
        more=(smudge, chosen),
    )
)
