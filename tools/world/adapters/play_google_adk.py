"""Google ADK: an agent whose model makes the calls of the scene, one a turn."""

from google.adk.agents import LlmAgent
from google.adk.runners import InMemoryRunner
from google.genai import types
from record import Run
from scripted_google_adk import CONFIRMATION, scripted
from stage import Framework, play, smudge

from greenroom.adapters.google_adk import RoomToolset


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
