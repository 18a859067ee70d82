"""verifiers: its own launcher starts the toolset of a room, its own client calls it, and a server dies."""

import asyncio
import contextlib
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from stage import example_module, play
from verifiers.v1 import ToolsetError
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp
from verifiers.v1.mcp import serve

from greenroom.adapters.verifiers import RoomConfig, RoomState, RoomToolset, must_be_whole

ROLLOUTS = 8
SECRET = "the rollout's own"


class Channel(BaseHTTPRequestHandler):
    """Where verifiers keeps the state of a rollout."""

    state = b"{}"

    def do_GET(self):
        if self.path == "/task":
            return self.answer(json.dumps({"cls": "verifiers.v1.task:TaskData", "task": "{}"}).encode())
        return self.answer(Channel.state)

    def do_PUT(self):
        Channel.state = self.rfile.read(int(self.headers["content-length"]))
        self.answer(b"")

    def answer(self, body):
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args):
        pass


@contextlib.contextmanager
def channel():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Channel)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextlib.asynccontextmanager
async def rollout(config, base=None):
    """The toolset of one rollout, as verifiers starts and reaches it: what may be called, and how."""
    toolset = RoomToolset(RoomConfig(servers=config))
    async with (
        serve(toolset, state_secret=SECRET, state_base=base) as url,
        contextlib.AsyncExitStack() as stack,
    ):
        schemas, dispatch, servers = await connect_mcp({"mcpServers": {"": {"url": url}}}, stack)
        yield (
            {each["function"]["name"]: each for each in schemas},
            lambda name, **arguments: call_mcp(servers, dispatch, name, arguments),
        )


def configured(folder):
    log = folder / "calls.log"
    args = ["-m", "greenroom.testing.servers.faulty", "--schemas", "--log", str(log)]
    file = folder / "servers.json"
    file.write_text(
        json.dumps({"mcpServers": {"f": {"command": sys.executable, "args": args}}}), encoding="utf-8"
    )
    return str(file), log


async def apart(stage, config, log):
    """Each rollout has a process of its own, and none is left."""

    async def one():
        async with rollout(config) as (offered, call):
            stage.expect("f_echo" in offered, f"offers {sorted(offered)}")
            stage.expect("properties" in offered["f_echo"]["function"]["parameters"], f"{offered['f_echo']}")
            stage.expect(await call("f_echo", text="hello") == "hello", "echo")
            first, second = await call("f_pid"), await call("f_pid")
            stage.expect(first == second, f"one rollout, two processes: {first}, {second}")
            return first

    pids = await asyncio.gather(*(one() for _ in range(ROLLOUTS)))
    stage.expect(len(set(pids)) == ROLLOUTS, f"processes: {pids}")
    async with asyncio.timeout(60):
        while any(Path(f"/proc/{pid}").exists() for pid in pids):
            await asyncio.sleep(0.05)


async def lost(stage, config, log):
    """A call whose server dies runs once, is told with its reach, and makes the rollout an error and not a score."""
    log.write_text("")
    with channel() as base:
        async with rollout(config, base) as (_, call):
            told = await call("f_crash")
            stage.expect("may have run" in told, f"told: {told}")
        ran = log.read_text().count("call crash")
        stage.expect(ran == 1, f"a lost call ran {ran} times")
        state = RoomState.model_validate_json(Channel.state)
    try:
        must_be_whole(state)
    except ToolsetError as error:
        stage.expect("may have run" in str(error), f"{error}")
    else:
        stage.expect(False, f"nobody hears that the server was lost: {Channel.state}")


async def example(stage):
    [toolset] = example_module().RoomTask.toolsets(None)
    stage.expect(isinstance(toolset, RoomToolset), f"the example has {toolset}")


async def scenes(stage):
    config, log = configured(stage.folder)
    for scene in (apart, lost):
        await stage.part(scene(stage, config, log))
    await stage.part(example(stage))


play(None, scenes)
