"""A stdio MCP server that misbehaves on request, to show what happens then.

    python -S faulty.py [--FAULT ...]          or: python -m greenroom.testing.servers.faulty [--FAULT ...]

It is correct but for the faults it is given, speaks the handshake era, and has these tools: `echo` (text, size),
`sleep` (seconds), `progress` (steps), `crash` (code), `pid`, `env`, `grow` (adds a tool, announces it), `stderr`
(text), `junk` (text on stdout), `ask` (a request to the client, whose answer it returns). A step is the name of a
method, or `call:` and the name of a tool.

    --crash-at STEP        exit with code 3, after a line on stderr, when STEP arrives (`start`: at once)
    --hang-at STEP         never answer STEP (`start`: never read at all)
    --late SECONDS         answer everything this late
    --banner TEXT          print TEXT on stdout before anything else
    --junk-before          a junk line, one with bad UTF-8 and one with a foreign id before each answer
    --bad-utf8             put a byte that is no UTF-8 into each text
    --twice                answer everything twice
    --id-last              the id stands behind the result, as the SDK for TypeScript writes it
    --stderr BYTES         write that much to stderr before each answer
    --fat BYTES            results of tool calls carry that much text
    --not-json             tool calls are answered with NaN, which is no JSON
    --not-object           tool calls are answered with an array
    --malformed-error      tool calls are answered with an error that is a string
    --ignore-eof           stay when stdin ends
    --ignore-term          ignore SIGTERM
    --close-stdout-at STEP close stdout, and stay
    --close-stdin-at STEP  close stdin, and stay
    --disk FILE            read one byte of FILE before each answer (a FIFO: as slow as whoever fills it)
    --deaf-after STEP      read no more after STEP
    --fork KIND            start a grandchild that holds the pipes and ignores SIGTERM: `group`, `setsid` or `double`
    --leave-at STEP        exit with code 7 at STEP while the grandchild holds the pipes
    --version V            answer initialize with this protocol version
    --pages N              list tools on N pages of one
    --loop                 every page points to the same next page
    --schemas              the tools declare their arguments; otherwise they take any
    --bad-tools            three broken tools among the good ones
    --fail-list METHOD     answer this list with an error
    --kinds A,B            the capabilities to declare (default: tools)
    --discover             speak 2026-07-28 and refuse initialize
    --log FILE             append `start PID`, `child PID`, `call NAME` and `got METHOD` as they happen
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False  # `typing` would double the time this takes to start
if TYPE_CHECKING:
    import json
    from typing import Any

    Json = dict[str, Any]
else:
    sys.path.insert(0, os.path.dirname(__file__))
    import quick_json as json

    del sys.path[0]

HELP = __doc__ or ""
FLAGS = {"junk-before", "bad-utf8", "twice", "id-last", "not-json", "not-object", "malformed-error"} | {
    *("ignore-eof", "ignore-term", "loop", "schemas", "bad-tools", "discover"),
}
MODERN = "2026-07-28"


class Faults:
    """The options, each a string; absent ones are empty."""

    def __init__(self, argv: list[str]) -> None:
        self.given: dict[str, str] = {}
        words = iter(argv)
        for word in words:
            name = word.removeprefix("--")
            if f"--{name}" not in HELP:
                sys.exit(f"faulty.py: unknown option {word}. It knows:\n{HELP}")
            self.given[name] = "yes" if name in FLAGS else next(words)

    def get(self, name: str, default: str = "") -> str:
        return self.given.get(name, default)

    def number(self, name: str) -> float:
        return float(self.get(name, "0"))


class FaultyServer:
    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.lines: Any = sys.stdin.buffer
        self.tools: list[str] = [
            "echo",
            "sleep",
            "progress",
            "crash",
            "pid",
            "env",
            "grow",
            "stderr",
            "junk",
            "ask",
        ]

    # -- talking --

    def log(self, text: str) -> None:
        if path := self.faults.get("log"):
            with open(path, "a", encoding="utf-8") as file:
                file.write(text + "\n")

    def write(self, data: bytes) -> None:
        while data:
            data = data[os.write(1, data) :]

    def send(self, message: Json) -> None:
        message = {"jsonrpc": "2.0", **message}
        if self.faults.get("id-last") and "id" in message:
            message["id"] = message.pop("id")
        line = json.dumps(message).encode() + b"\n"
        if self.faults.get("bad-utf8"):
            line = line.replace(b"BADBYTE", b"\xff")
        for _ in range(2 if self.faults.get("twice") else 1):
            self.write(line)

    def answer(self, rpc_id: object, result: object) -> None:
        time.sleep(self.faults.number("late"))
        if disk := self.faults.get("disk"):
            with open(disk, "rb", buffering=0) as file:
                file.read(1)
        if size := int(self.faults.number("stderr")):
            os.write(2, b"e" * (size - 1) + b"\n")
        if self.faults.get("junk-before"):
            self.write(b'hello, I am a banner\n\xff\xfe{"\n{"jsonrpc":"2.0","id":987654,"result":{}}\n')
        self.send({"id": rpc_id, "result": result})

    def refuse(self, rpc_id: object, code: int, text: str, data: object = None) -> None:
        self.send({"id": rpc_id, "error": {"code": code, "message": text, "data": data}})

    # -- the steps --

    def step(self, name: str) -> bool:
        """The faults that belong to a step. False: say nothing more about it."""
        if self.faults.get("crash-at") == name:
            os.write(2, b"cannot go on\nfatal: asked to crash at " + name.encode() + b"\n")
            os._exit(3)
        if self.faults.get("leave-at") == name:
            os._exit(7)
        for option, fd in (("close-stdin-at", 0), ("close-stdout-at", 1)):
            if self.faults.get(option) == name:
                os.close(fd)
                stay()
        if self.faults.get("hang-at") == "start" == name:
            stay()
        return self.faults.get("hang-at") != name

    def serve(self) -> None:
        self.log(f"start {os.getpid()}")
        if banner := self.faults.get("banner"):
            self.write(banner.encode() + b"\n")
        if self.step("start"):
            for line in self.lines:
                self.take(json.loads(line))
        if self.faults.get("ignore-eof"):
            stay()

    def take(self, message: Json) -> None:
        method = str(message.get("method"))
        self.log(f"got {method}")
        if self.step(method) and "method" in message and "id" in message:
            self.reply(message["id"], method, message.get("params") or {})
        if self.faults.get("deaf-after") == method:
            stay()

    def reply(self, rpc_id: object, method: str, params: Json) -> None:
        if method == self.faults.get("fail-list"):
            self.refuse(rpc_id, -32603, "this list is out of order")
        elif method == "initialize" and not self.faults.get("discover"):
            self.answer(rpc_id, self.initialize_result(str(params.get("protocolVersion"))))
        elif method == "initialize":
            self.refuse(rpc_id, -32022, "Unsupported protocol version", {"supported": [MODERN]})
        elif method == "server/discover" and self.faults.get("discover"):
            self.answer(rpc_id, self.discovery())
        elif method == "tools/list":
            self.answer(rpc_id, self.page(str(params.get("cursor") or "0")))
        elif method.endswith("/list"):
            self.answer(rpc_id, OTHER_LISTS[method])
        elif method == "tools/call":
            self.call(rpc_id, params)
        elif method == "ping":
            self.answer(rpc_id, {})
        else:
            self.refuse(rpc_id, -32601, f"Method not found: {method}")

    def capabilities(self) -> Json:
        return {kind: {"listChanged": True} for kind in self.faults.get("kinds", "tools").split(",") if kind}

    def initialize_result(self, offered: str) -> Json:
        return {
            "protocolVersion": self.faults.get("version") or offered,
            "capabilities": self.capabilities(),
            "serverInfo": {"name": "faulty", "version": "1"},
            "instructions": "Ask for trouble.",
        }

    def discovery(self) -> Json:
        meta = {"io.modelcontextprotocol/serverInfo": {"name": "faulty", "version": "1"}}
        return {"supportedVersions": [MODERN], "capabilities": self.capabilities(), "_meta": meta}

    def page(self, cursor: str) -> Json:
        schema: Json = {"type": "object"}
        if self.faults.get("schemas"):
            schema["properties"] = ARGUMENTS
        tools: list[object] = [
            {"name": name, "inputSchema": schema, "x-vendor": {"kept": True}} for name in self.tools
        ]
        if self.faults.get("loop"):
            return {"tools": tools[:1], "nextCursor": "again"}
        if self.faults.get("bad-tools"):
            return {"tools": ["no object", {"description": "no name"}, {"name": 7}, *tools]}
        if pages := int(self.faults.number("pages")):
            at = int(cursor)
            page: Json = {"tools": [{"name": f"tool_{at}", "inputSchema": {"type": "object"}}]}
            return page if at + 1 >= pages else {**page, "nextCursor": str(at + 1)}
        return {"tools": tools}

    # -- the tools --

    def call(self, rpc_id: object, params: Json) -> None:
        name = str(params.get("name"))
        self.log(f"call {name}")
        if not self.step(f"call:{name}"):
            return
        if self.faults.get("not-json"):
            self.write(f'{{"jsonrpc":"2.0","id":{rpc_id},"result":{{"x":NaN}}}}\n'.encode())
        elif self.faults.get("malformed-error"):
            self.send({"id": rpc_id, "error": "boom"})
        elif self.faults.get("not-object"):
            self.answer(rpc_id, [1, 2])
        else:
            text = self.run_tool(name, params.get("arguments") or {}, params.get("_meta") or {})
            self.answer(rpc_id, {"content": [{"type": "text", "text": text}], "x-vendor": [1, None]})

    def run_tool(self, name: str, arguments: Json, meta: Json) -> str:
        if name == "sleep":
            time.sleep(float(arguments.get("seconds", 1)))
        elif name == "crash":
            os.write(2, b"crashed as asked\n")
            os._exit(int(arguments.get("code", 1)))
        elif name == "progress":
            for at in range(1, int(arguments.get("steps", 3)) + 1):
                params = {"progressToken": meta.get("progressToken"), "progress": at}
                self.send({"method": "notifications/progress", "params": params})
        elif name == "grow":
            self.tools.append(f"grown_{len(self.tools)}")
            self.send({"method": "notifications/tools/list_changed"})
        elif name == "stderr":
            os.write(2, str(arguments.get("text", "")).encode() + b"\n")
        elif name == "junk":
            self.write(str(arguments.get("text", "")).encode() + b"\n")
        elif name == "ask":
            self.send({"id": "q1", "method": str(arguments.get("method", "ping"))})
            return self.lines.readline().decode().strip()
        return self.text_of(name, arguments)

    def text_of(self, name: str, arguments: Json) -> str:
        if name == "pid":
            return str(os.getpid())
        if name == "env":
            return json.dumps(dict(os.environ))
        if size := int(str(arguments.get("size") or self.faults.get("fat", "0"))):
            return "x" * size
        return "BADBYTE" if self.faults.get("bad-utf8") else str(arguments.get("text", "done"))


ARGUMENTS: Json = {"text": {"type": "string"}, "size": {"type": "integer"}, "seconds": {"type": "number"}}
OTHER_LISTS: dict[str, Json] = {
    "resources/list": {"resources": [{"uri": "note://one", "name": "one"}]},
    "resources/templates/list": {"resourceTemplates": [{"uriTemplate": "note://{id}", "name": "note"}]},
    "prompts/list": {"prompts": [{"name": "greet"}]},
}


def fork_grandchild(kind: str, server: FaultyServer) -> None:
    """A grandchild that keeps our pipes open and ignores SIGTERM, in our group or out of it."""
    if os.fork():
        time.sleep(0.02)  # let it leave the group before anybody is served
        return
    ignore_sigterm()
    if kind in ("setsid", "double"):
        os.setsid()
    if kind == "double" and os.fork():
        os._exit(0)
    server.log(f"child {os.getpid()}")
    stay()


def ignore_sigterm() -> None:
    import signal  # it takes a third of the time that this takes to start

    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def stay() -> None:
    while True:
        time.sleep(3600)


def main() -> None:
    faults = Faults(sys.argv[1:])
    server = FaultyServer(faults)
    if faults.get("ignore-term"):
        ignore_sigterm()
    if kind := faults.get("fork"):
        fork_grandchild(kind, server)
    server.serve()


if __name__ == "__main__":
    main()
    os._exit(0)
