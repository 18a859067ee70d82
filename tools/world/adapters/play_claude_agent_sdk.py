"""Claude Agent SDK: Claude Code itself, whose model is a scripted one behind an HTTP server in this process."""

import asyncio
import json
import os
import re
from contextlib import asynccontextmanager

from claude_agent_sdk import (
    ClaudeSDKClient,
    PermissionResultAllow,
    PermissionResultDeny,
    ResultMessage,
    create_sdk_mcp_server,
    tool,
)
from record import Run, Shown
from stage import EXAMPLE_CALL, Framework, play, smudge

from greenroom.adapters.claude_agent_sdk import RoomServer

NAME = "greenroom"
PREFIX = f"mcp__{NAME}__"


class Model:
    """Answers as the API of Claude: these calls, one a turn, whatever it is told. With `mcp__` a name is whole."""

    def __init__(self, calls, record, prefix=PREFIX):
        self._left = iter(enumerate(calls))
        self.record = record
        self._prefix = prefix

    @asynccontextmanager
    async def served(self):
        """Where Claude Code finds it, in its environment."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            yield {
                "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{port}",
                "ANTHROPIC_API_KEY": "none",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                "CLAUDE_CONFIG_DIR": os.path.join(os.getcwd(), "claude"),
                "DISABLE_AUTOUPDATER": "1",
                "ENABLE_TOOL_SEARCH": "false",
            }

    async def _serve(self, reader, writer):
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                size = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                body = await reader.readexactly(int(size[0].split(b":")[1])) if size else b""
                await self._answer(head.split(b"\r\n")[0].decode(), body, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, line, body, writer):
        said = json.loads(body) if body else {}
        kind, text = "application/json", "{}"
        if "/v1/messages" in line and "count_tokens" not in line:
            kind, text = "text/event-stream", "".join(self._events(said))
        data = text.encode()
        writer.write(
            f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data
        )
        await writer.drain()

    def _events(self, said):
        tools = {tool["name"] for tool in said.get("tools", ())}
        if not any(name.startswith(self._prefix) for name in tools):
            return self._stream([{"type": "text", "text": "ok"}])
        self.record.offered.append({name.removeprefix(self._prefix) for name in tools})
        results = [
            block
            for message in said["messages"]
            if isinstance(message["content"], list)
            for block in message["content"]
            if block["type"] == "tool_result"
        ]
        self.record.shown = [shown(block) for block in results]
        number, (name, arguments) = next(self._left, (0, (None, None)))
        if name is None:
            return self._stream([{"type": "text", "text": "done"}])
        name = name if name.startswith("mcp__") else self._prefix + name
        call = {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": arguments}
        return self._stream([call])

    def _stream(self, blocks):
        usage = {"input_tokens": 1, "output_tokens": 1}
        message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": []}
        yield event("message_start", message={**message, "stop_reason": None, "usage": usage})
        for index, block in enumerate(blocks):
            if block["type"] == "text":
                start, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
            else:
                start = {**block, "input": {}}
                delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
            yield event("content_block_start", index=index, content_block=start)
            yield event("content_block_delta", index=index, delta=delta)
            yield event("content_block_stop", index=index)
        reason = "tool_use" if blocks[-1]["type"] == "tool_use" else "end_turn"
        yield event("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage=usage)
        yield event("message_stop")


def event(kind, **said):
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **said})}\n\n"


def shown(block):
    content = block.get("content") or []
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    text = "\n".join(part["text"] for part in parts if part["type"] == "text")
    text = re.sub(r"/\S+/tool-results/\S+", "a file of Claude Code", text)  # a new one each time
    images = sum(part["type"] == "image" for part in parts)
    how = "`is_error`" if block.get("is_error") else "result"
    return Shown(f"{how}, in a file of Claude Code" if text.startswith("<persisted") else how, text, images)


async def run(
    room, calls, *, answer=None, meta=None, on_progress=None, asks=True, name=NAME, prefix=PREFIX, **others
):
    record = Run()

    async def ask(name, given, context):
        record.asked.append(name.removeprefix(prefix))
        return PermissionResultAllow() if answer else PermissionResultDeny(message="Not this one.")

    server = RoomServer(room, name=name, meta=lambda: meta, on_progress=on_progress)
    async with Model(calls, record, prefix).served() as env:
        options = server.options(ask if asks else None, env=env, tools=[], setting_sources=[], **others)
        async with ClaudeSDKClient(options) as client:
            await client.query("play")
            async for message in client.receive_response():
                if isinstance(message, ResultMessage):
                    record.result = message
    return record


async def nobody(stage, room):
    """A call that must be allowed, where nobody is asked."""
    record = await run(room, [("desk_wipe", {"path": "/nobody"}), ("w_echo", {"n": 1})], asks=False)
    stage.expect([told.how for told in record.shown] == ["`is_error`", "result"], f"{record.shown}")
    stage.expect(not stage.wiped, f"wiped {stage.wiped}")


async def renamed(stage, room):
    """A server whose name Claude Code writes in another way."""
    calls = [("w_echo", {"n": 1}), ("desk_wipe", {"path": "/renamed"})]
    record = await run(room, calls, answer=True, name="my.room +1", prefix="mcp__my_room__1__")
    stage.expect(record.asked == ["desk_wipe"], f"asks about {record.asked}")
    stage.expect(stage.wiped == ["/renamed"], f"{stage.wiped}: {record.shown}")
    stage.wiped.clear()


async def other(stage, room):
    """Another server, whose name begins as the room's does: about its tools the person is asked."""

    @tool("danger", "Dangerous.", {})
    async def danger(_given):
        return {"content": [{"type": "text", "text": "harm"}]}

    name = f"{NAME}__other"
    servers = {name: create_sdk_mcp_server(name, tools=[danger])}
    record = await run(room, [(f"mcp__{name}__danger", {})], answer=False, mcp_servers=servers)
    stage.expect(record.asked == ["other__danger"], f"asks about {record.asked}: {record.shown}")


async def example(module):
    record = Run()
    async with Model([EXAMPLE_CALL], record).served() as env:
        os.environ.update(env)
        await module.answer("What time is it?")
    return record.shown[0].text


if __name__ == "__main__":
    play(
        Framework(
            run,
            example=example,
            ok="result",
            error="`is_error`",
            flooded="result, in a file of Claude Code",
            flood_words="Output too large",
            list_follows=False,
            session_per_run=run,
            more=(smudge, nobody, renamed, other),
        )
    )
