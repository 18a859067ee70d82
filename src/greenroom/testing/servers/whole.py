"""A stdio MCP server that has everything the protocol has, in either era, with no SDK beneath it.

    python -S whole.py [--name NAME] [--modern] [--log FILE]

Until 2025-11-25 it asks its client by requests; with `--modern` it speaks 2026-07-28 only, and answers that it needs
input instead. It has one class with a method per message of the protocol, and is one file on purpose: it runs alone,
and the class is as long as the protocol. Every object it sends carries a field that no version knows, so that whoever
drops one is found out.

Tools: `echo` (anything), `steps` (count: progress, one each), `sleep` (seconds, heeds its cancellation), `ask`
(method, params: of the client; answers with what it said), `ask_and_leave` (asks, and cancels its own request),
`state` (rounds that need no input), `log` (level, text), `touch` (uri: it has changed), `grow` and `same` (its tools
changed; it only says so), `refuse` (a JSON-RPC error with data), `odd` (a result like no other), `heard` (what it was
told).
"""

from __future__ import annotations

import os
import select
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

MODERN = "2026-07-28"
META = "io.modelcontextprotocol/"
VENDOR: dict[str, Any] = {"x-vendor": {"kept": [1, None, "é"]}}
LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
TOOLS = (
    "echo", "steps", "sleep", "ask", "ask_and_leave", "state", "log", "touch", "grow", "same", "refuse", "odd", "heard",
)  # fmt: skip
DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


class RequestRefusal(Exception):
    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(message)
        self.error: dict[str, Any] = {
            "code": code,
            "message": message,
            **({} if data is None else {"data": data}),
        }


class WholeServer:
    def __init__(self, name: str, *, modern: bool, log: str) -> None:
        self.name = name
        self.modern = modern
        self.log = log
        self.tools: list[str] = list(TOOLS)
        self.level: str | None = None
        self.watched: set[str] = set()
        self.streams: dict[object, Json] = {}  # open subscriptions/listen, by request id
        self.asked: dict[str, object] = {}  # our requests, by id: the call that waits for the answer
        self.sleeping: dict[object, float] = {}  # calls, by id: until when
        self.got: list[str] = []
        self.count: int = 0

    # -- the loop --

    def serve(self) -> None:
        rest = b""
        while True:
            soonest = min(self.sleeping.values(), default=None)
            if select.select([0], [], [], None if soonest is None else max(0.0, soonest - time.monotonic()))[
                0
            ]:
                chunk = os.read(0, 1 << 16)
                if not chunk:
                    return
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self.take(json.loads(line))
            for rpc_id in [each for each, until in self.sleeping.items() if until <= time.monotonic()]:
                del self.sleeping[rpc_id]
                self.finish(rpc_id, text("slept"))

    def send(self, message: Json) -> None:
        data = json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"
        while data:
            data = data[os.write(1, data) :]

    def finish(self, rpc_id: object, result: Json) -> None:
        if self.modern:
            info = {META + "serverInfo": {"name": self.name, "version": "1"}}
            result = {"resultType": "complete", **result, "_meta": {**result.get("_meta", {}), **info}}
        self.send({"id": rpc_id, "result": result})

    def tell(self, method: str, params: Json | None = None, wanted: str = "") -> None:
        """A notification; in the newer era to the streams that asked for it."""
        if not self.modern or not wanted:
            self.send({"method": method, **({} if params is None else {"params": params})})
            return
        for rpc_id, filter_ in self.streams.items():
            said = filter_.get(wanted)
            if said is True or (isinstance(said, list) and params and params.get("uri") in said):
                meta = {META + "subscriptionId": rpc_id}
                self.send({"method": method, "params": {**(params or {}), "_meta": meta}})

    def take(self, message: Json) -> None:
        method, rpc_id = message.get("method"), message.get("id")
        if method is None:
            self.take_answer(message)
            return
        self.note(method)
        params: Json = message.get("params") or {}
        if rpc_id is None:
            self.take_notification(method, params)
            return
        try:
            result = self.answer(rpc_id, method, params)
        except RequestRefusal as refusal:
            self.send({"id": rpc_id, "error": refusal.error})
        else:
            if result is not None:
                self.finish(rpc_id, result)

    def note(self, method: str) -> None:
        self.got.append(method)
        if self.log:
            with open(self.log, "a", encoding="utf-8") as file:
                file.write(f"got {method}\n")

    def take_notification(self, method: str, params: Json) -> None:
        if method == "notifications/cancelled":
            self.sleeping.pop(params.get("requestId"), None)
            self.streams.pop(params.get("requestId"), None)

    def take_answer(self, message: Json) -> None:
        """The client has answered a request of ours: so end the call that asked it."""
        call = self.asked.pop(str(message.get("id")), None)
        if call is not None:
            said = {key: message[key] for key in ("result", "error") if key in message}
            self.finish(call, structured(said))

    # -- requests --

    def answer(self, rpc_id: object, method: str, params: Json) -> Json | None:
        handler = getattr(self, "on_" + method.replace("/", "_").lower(), None)
        older = method in (
            "initialize",
            "ping",
            "logging/setLevel",
            "resources/subscribe",
            "resources/unsubscribe",
        )
        newer = method in ("server/discover", "subscriptions/listen")
        if handler is None or (self.modern and older) or (newer and not self.modern):
            raise RequestRefusal(-32601, f"Method not found: {method}")
        return handler(rpc_id, params)

    def capabilities(self) -> Json:
        return {
            "tools": {"listChanged": True},
            "resources": {"listChanged": True, "subscribe": True},
            "prompts": {"listChanged": True},
            "completions": {},
            "logging": {},
        }

    def on_initialize(self, _id: object, params: Json) -> Json:
        self.client: Any | None = params.get("capabilities")
        return {
            "protocolVersion": params.get("protocolVersion"),
            "capabilities": self.capabilities(),
            "serverInfo": {"name": self.name, "version": "1"},
            "instructions": f"This is {self.name}.",
            **VENDOR,
        }

    def on_server_discover(self, _id: object, _params: Json) -> Json:
        return {"supportedVersions": [MODERN], "capabilities": self.capabilities(), **cacheable()}

    def on_ping(self, _id: object, _params: Json) -> Json:
        return {}

    def on_tools_list(self, _id: object, _params: Json) -> Json:
        return {"tools": [described(name) for name in self.tools], **cacheable(self.modern)}

    def on_resources_list(self, _id: object, _params: Json) -> Json:
        found = [
            {"uri": uri, "name": uri.rpartition("/")[2], "mimeType": "text/plain", "size": 3, **VENDOR}
            for uri in (f"{self.name}://one", f"{self.name}://two", "shared://same")
        ]
        return {"resources": found, **cacheable(self.modern)}

    def on_resources_templates_list(self, _id: object, _params: Json) -> Json:
        found = [
            {"uriTemplate": f"{self.name}://day/{{day}}", "name": "day", **VENDOR},
            {"uriTemplate": "shared://{+rest}", "name": "rest", **VENDOR},
        ]
        return {"resourceTemplates": found, **cacheable(self.modern)}

    def on_prompts_list(self, _id: object, _params: Json) -> Json:
        arguments = [{"name": "day", "required": True, **VENDOR}]
        found = [
            {"name": "greet", "title": "Greet", "arguments": arguments, **VENDOR},
            {"name": "plain", **VENDOR},
        ]
        return {"prompts": found, **cacheable(self.modern)}

    def on_resources_read(self, _id: object, params: Json) -> Json:
        uri = str(params.get("uri"))
        if not uri.startswith((f"{self.name}://", "shared://")):
            raise RequestRefusal(-32602 if self.modern else -32002, "Resource not found", {"uri": uri})
        contents = [
            {"uri": uri, "text": f"{self.name} says {uri}", **VENDOR},
            {"uri": uri + "#", "blob": "AAE="},
        ]
        return {"contents": contents, **VENDOR, **cacheable(self.modern)}

    def on_resources_subscribe(self, _id: object, params: Json) -> Json:
        self.watched.add(str(params.get("uri")))
        return {}

    def on_resources_unsubscribe(self, _id: object, params: Json) -> Json:
        self.watched.discard(str(params.get("uri")))
        return {}

    def on_subscriptions_listen(self, rpc_id: object, params: Json) -> None:
        self.streams[rpc_id] = params["notifications"]
        told = {"notifications": params["notifications"], "_meta": {META + "subscriptionId": rpc_id}}
        self.tell("notifications/subscriptions/acknowledged", told)

    def on_prompts_get(self, _id: object, params: Json) -> Json:
        name = params.get("name")
        if name not in ("greet", "plain"):
            raise RequestRefusal(-32602, f"Unknown prompt: {name}")
        words = f"{name} {json.dumps(params.get('arguments'))}"
        message = {"role": "user", "content": {"type": "text", "text": words, **VENDOR}, **VENDOR}
        return {"description": f"from {self.name}", "messages": [message], **VENDOR}

    def on_completion_complete(self, _id: object, params: Json) -> Json:
        begun = str(params["argument"]["value"])
        values = [day for day in DAYS if day.startswith(begun)]
        return {
            "completion": {"values": values, "total": len(values), "hasMore": False, **VENDOR},
            "x-ref": params["ref"],
        }

    def on_logging_setlevel(self, _id: object, params: Json) -> Json:
        if params.get("level") not in LEVELS:
            raise RequestRefusal(-32602, "no such level")
        self.level = params["level"]
        return {}

    def on_tools_call(self, rpc_id: object, params: Json) -> Json | None:
        name = params.get("name")
        handler = getattr(self, f"tool_{name}", None)
        if name not in self.tools or handler is None:
            raise RequestRefusal(-32602, f"Unknown tool: {name}")
        return handler(rpc_id, params.get("arguments") or {}, params)

    # -- tools --

    def tool_echo(self, _id: object, arguments: Json, params: Json) -> Json:
        meta = {key: value for key, value in meta_of(params).items() if not key.startswith(META)}
        return {**structured(arguments), "_meta": {"x-echo": meta}}

    def tool_steps(self, _id: object, arguments: Json, params: Json) -> Json:
        token = meta_of(params).get("progressToken")
        for step in range(1, int(arguments.get("count", 3)) + 1):
            if token is not None:
                told = {
                    "progressToken": token,
                    "progress": step,
                    "total": 3,
                    "message": f"step {step}",
                    **VENDOR,
                }
                self.tell("notifications/progress", told)
        return text("done")

    def tool_sleep(self, rpc_id: object, arguments: Json, _params: Json) -> None:
        self.sleeping[rpc_id] = time.monotonic() + float(arguments.get("seconds", 60))

    def tool_ask(self, rpc_id: object, arguments: Json, params: Json) -> Json | None:
        method, said = arguments.get("method", "roots/list"), arguments.get("params", {})
        if not self.modern:
            self.send_request(rpc_id, method, said)
            return None
        answers = params.get("inputResponses")
        if answers is None or params.get("requestState") != "state-1":
            requests = {"first": {"method": method, "params": said}}
            return {"resultType": "input_required", "inputRequests": requests, "requestState": "state-1"}
        return structured({"result": answers["first"]})

    def tool_ask_and_leave(self, rpc_id: object, arguments: Json, _params: Json) -> Json:
        number = self.send_request(rpc_id, arguments.get("method", "sampling/createMessage"), {})
        del self.asked[number]
        self.tell("notifications/cancelled", {"requestId": number, "reason": "never mind"})
        return text("left")

    def tool_state(self, _id: object, arguments: Json, params: Json) -> Json:
        rounds = int(params.get("requestState", "0"))
        if rounds < int(arguments.get("rounds", 2)):
            return {"resultType": "input_required", "requestState": str(rounds + 1)}
        return text(f"after {rounds}")

    def tool_log(self, _id: object, arguments: Json, params: Json) -> Json:
        level = arguments.get("level", "info")
        least = meta_of(params).get(META + "logLevel") if self.modern else self.level
        if least is not None and LEVELS.index(level) >= LEVELS.index(least):
            told = {
                "level": level,
                "logger": self.name,
                "data": {"text": arguments.get("text", "")},
                **VENDOR,
            }
            self.tell("notifications/message", told)
        return text(str(least))

    def tool_touch(self, _id: object, arguments: Json, _params: Json) -> Json:
        uri = arguments.get("uri")
        if self.modern or uri in self.watched:
            self.tell("notifications/resources/updated", {"uri": uri, **VENDOR}, "resourceSubscriptions")
        return text(f"{sorted(self.watched)}")

    def tool_grow(self, _id: object, _arguments: Json, _params: Json) -> Json:
        self.tools.append(f"grown_{len(self.tools)}")
        self.tell("notifications/tools/list_changed", None, "toolsListChanged")
        return text("grown")

    def tool_same(self, _id: object, _arguments: Json, _params: Json) -> Json:
        for _ in range(20):
            self.tell("notifications/tools/list_changed", None, "toolsListChanged")
        return text("as before")

    def tool_refuse(self, _id: object, arguments: Json, _params: Json) -> Json:
        raise RequestRefusal(
            int(arguments.get("code", -31999)), "I would rather not", {"why": ["it", "is", None]}
        )

    def tool_odd(self, _id: object, _arguments: Json, _params: Json) -> Json:
        return {
            "content": [{"type": "smell", "of": "roses"}],
            "structuredContent": [1, 2],
            "isError": True,
            **VENDOR,
        }

    def tool_heard(self, _id: object, _arguments: Json, _params: Json) -> Json:
        return structured({"methods": self.got})

    def send_request(self, call: object, method: str, params: Json) -> str:
        self.count += 1
        number = f"q{self.count}"
        self.asked[number] = call
        self.send({"id": number, "method": method, "params": params})
        return number


def meta_of(params: Json) -> Json:
    return params.get("_meta") or {}


def cacheable(modern: bool = True) -> Json:
    return {"ttlMs": 5, "cacheScope": "public"} if modern else {}


def described(name: str) -> Json:
    schema = {"type": "object", "properties": {"text": {"type": "string", **VENDOR}}}
    return {
        "name": name,
        "title": name.title(),
        "description": f"does {name}",
        "inputSchema": schema,
        **VENDOR,
    }


def text(words: str) -> Json:
    return {"content": [{"type": "text", "text": words, **VENDOR}], **VENDOR}


def structured(value: Json) -> Json:
    return {**text(json.dumps(value)), "structuredContent": value}


def main() -> None:
    words = sys.argv[1:]

    def option(name: str, default: str) -> str:
        return words[words.index(name) + 1] if name in words else default

    WholeServer(option("--name", "whole"), modern="--modern" in words, log=option("--log", "")).serve()


if __name__ == "__main__":
    main()
    os._exit(0)
