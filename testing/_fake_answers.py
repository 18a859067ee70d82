"""How one incarnation of a fake server behaves: it plays its script, and answers what the script leaves alone.

Each request is answered in a task of its own, after the faults that are due at its step. What a fault does to the
connection is up to the `Wire`: this module only decides what happens, and when.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import anyio
import msgspec

from ..actors import Exchange
from ..protocol.errors import RpcRefusal
from ..protocol.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND, RpcError
from ._fault_plan import FaultPlan, perform
from ._faults import Fault
from ._vocabulary import STEP_OF, Entry

if TYPE_CHECKING:
    from ._fake import FakeServer

Answer = Mapping[str, Any] | RpcError


class Wire(Protocol):
    """The connection, as its far end sees it."""

    @property
    def is_over(self) -> bool: ...

    def is_waiting(self, exchange: Exchange) -> bool:
        """Whether the exchange has no answer yet, and its owner still wants one."""
        ...

    def end(self, exchange: Exchange, answer: Answer) -> None:
        """Answer the exchange, if it is still waiting."""
        ...

    def break_off(self, exchange: Exchange, raised: Exception) -> None:
        """The handler of the test raised."""
        ...

    async def ask(self, method: str, params: Mapping[str, Any], during: Exchange) -> Mapping[str, Any]:
        """Ask the client. Raises `RpcRefusal`."""
        ...

    def watch(self, uri: str, *, on: bool) -> None:
        """The client subscribes to a resource, or does so no more."""
        ...

    def expire(self, exchange: Exchange) -> None:
        """The session is unknown: the exchange did not run, and the connection is over."""
        ...

    def note(self, text: str) -> None:
        """The runtime notes something odd about the server."""
        ...

    def junk(self) -> None:
        """The server writes what is no message."""
        ...

    def tell(self, method: str, params: Mapping[str, Any] | None) -> None:
        """The server sends a notification."""
        ...

    def write_stderr(self, text: str) -> None: ...

    def crash(self, exit_code: int, signal_name: str | None, last_words: str | None) -> None: ...


class FakeCall(dict[str, Any]):
    """The arguments of one call, as a handler gets them, and what else it may know and do."""

    def __init__(self, arguments: Mapping[str, Any], tool: str, exchange: Exchange, wire: Wire) -> None:
        super().__init__(arguments)
        self.tool = tool  # the server's own name for it
        self._exchange = exchange
        self._wire = wire

    @property
    def meta(self) -> Mapping[str, Any]:
        """The `_meta` that the caller gave."""
        return (self._exchange.params or {}).get("_meta") or {}

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Report progress, if the caller wants it."""
        said = {"progress": progress, "total": total, "message": message}
        if self._exchange.wants_progress and self._wire.is_waiting(self._exchange):
            self._exchange.progress({key: value for key, value in said.items() if value is not None})

    async def elicit(self, message: str, schema: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Ask the person behind the client: `{"action": "accept", "content": …}`, or another action."""
        wanted: Mapping[str, Any] = schema or {"type": "object", "properties": {}}
        return await self.ask("elicitation/create", {"message": message, "requestedSchema": wanted})

    async def sample(self, text: str, **more: Any) -> Mapping[str, Any]:
        """Ask the client's model. `more`: further params, or others."""
        said = {"role": "user", "content": {"type": "text", "text": text}}
        params = {"messages": [said], "maxTokens": 1000, **more}
        return await self.ask("sampling/createMessage", params)

    async def ask(self, method: str, params: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Ask the client anything, such as `roots/list`. Raises the `RpcRefusal` with which it refuses; not caught,
        that is how the call ends."""
        return await self._wire.ask(method, params or {}, self._exchange)


class FakeAnswers:
    """The far end of one connection. It is the `Player` of its script."""

    def __init__(self, server: FakeServer, start: int, wire: Wire, tasks: anyio.abc.TaskGroup) -> None:
        self.is_hung = False  # it reads everything and answers nothing more
        self.late: dict[Exchange, Answer] = {}  # answered when they are cancelled
        self._server = server
        self._start = start
        self._wire = wire
        self._tasks = tasks
        self._plan = FaultPlan(server.script.entries, start)
        self._tools: Sequence[Mapping[str, Any]] | None = None  # its own, once they have changed
        self._begun: anyio.Event | None = None  # set once it reads requests
        self._busy = 0  # requests that it works on
        self._quiet = 0  # the number of this quiet time
        self._is_expired = False

    def begin(self) -> None:
        """It has been started. From now on it reads, unless its script says otherwise."""
        if due := self._plan.due("start"):
            self._begun = anyio.Event()
            self._tasks.start_soon(self._begin, due)
        else:
            self._rest()

    async def _begin(self, due: list[Entry]) -> None:
        await self._play(due)
        if self._begun is not None and not self.is_hung:
            self._begun.set()
        self._rest()

    async def close(self) -> None:
        """It is asked to end. Returns when it has ended by itself, which may be never."""
        if self.is_hung:
            return
        await pause(self._server.stop_latency)
        decided = await self._play(self._plan.due("stop"))
        if decided is not None:
            await anyio.sleep_forever()

    # ---- answering --------------------------------------------------------------------------------------------------

    async def answer(self, exchange: Exchange) -> None:
        """Answer one request, as the script wants it."""
        self._busy += 1
        self._quiet += 1
        if self._begun is not None:
            await self._begun.wait()
        step = STEP_OF.get(exchange.method)
        due = self._plan.due(step, (exchange.params or {}).get("name")) if step else []
        decided = await self._play(due) if due else None
        if self._is_expired:
            self._wire.expire(exchange)
        elif decided is None or decided.do in ("answer_twice", "answer_late"):
            await self._answer_well(exchange, decided.do if decided else "")
        elif decided.do == "refuse":
            code = -32603 if decided.code is None else decided.code
            self._wire.end(exchange, RpcError(code, decided.text or ""))
        self._busy -= 1
        self._rest()

    async def _answer_well(self, exchange: Exchange, how: str) -> None:
        try:
            answer = await self._answer_to(exchange)
        except RpcRefusal as refusal:  # so a handler refuses in its own words
            answer = RpcError(refusal.rpc_code, str(refusal), refusal.data)
        except Exception as raised:
            self._server.raised.append(raised)
            self._wire.break_off(exchange, raised)
            return
        if how == "answer_late" and self._wire.is_waiting(exchange):
            self.late[exchange] = answer
            return
        self._wire.end(exchange, answer)
        if how == "answer_twice" and not self._is_mute:
            self._wire.note("a late or second answer: by its script")

    async def _answer_to(self, exchange: Exchange) -> Answer:
        server, params = self._server, exchange.params or {}
        match exchange.method:
            case "initialize":
                await pause(server.greet_latency)
                return self._greeting(params)
            case "tools/list":
                listed = (
                    server.tools if self._tools is None else self._tools
                )  # as they were when it was asked
                await pause(server.list_latency)
                return {"tools": listed}
            case "tools/call":
                await pause(server.call_latency)
                error = server.call_error
                return RpcError(*error) if error else await self._handled(exchange, params)
            case "ping":
                await pause(server.ping_latency)
                return {}
            case _:
                return self._about_others(exchange.method, params)

    async def _handled(self, exchange: Exchange, params: Mapping[str, Any]) -> Answer:
        """What the handler of the test makes of a call. Raises what it raises."""
        given: Any = params.get("arguments") or {}
        if isinstance(given, msgspec.Raw):  # a door that only passes them on has not read them
            given = msgspec.json.decode(given)
        call = FakeCall(given, str(params.get("name")), exchange, self._wire)
        made = self._server.handler(call)
        result = await made if isinstance(made, Awaitable) else made
        if isinstance(result, str):
            return {"content": [{"type": "text", "text": result}]}
        json.dumps(result)  # what cannot be sent is the handler's error, too
        return result

    def _about_others(self, method: str, params: Mapping[str, Any]) -> Answer:
        """Resources and prompts."""
        server, name, uri = self._server, str(params.get("name")), str(params.get("uri"))
        match method:
            case "resources/list" if server.resources:
                return {"resources": [{"uri": each, "name": each} for each in server.resources]}
            case "resources/templates/list" if server.resources:
                return {"resourceTemplates": []}
            case "resources/read" if uri in server.resources:
                return {"contents": [{"uri": uri, "text": server.resources[uri]}]}
            case "resources/read" if server.resources:
                return RpcError(-32002, f"Resource not found: {uri}")
            case "resources/subscribe" | "resources/unsubscribe" if server.resources:
                self._wire.watch(uri, on=method == "resources/subscribe")
                return {}
            case "prompts/list" if server.prompts:
                return {"prompts": [{"name": each} for each in server.prompts]}
            case "prompts/get" if name in server.prompts:
                made = server.prompts[name]
                text = made if isinstance(made, str) else made(params.get("arguments") or {})
                return {"messages": [{"role": "user", "content": {"type": "text", "text": text}}]}
            case "prompts/get" if server.prompts:
                return RpcError(INVALID_PARAMS, f"Unknown prompt: {name}")
            case other:
                return RpcError(METHOD_NOT_FOUND, f"Method not found: {other}")

    def _greeting(self, params: Mapping[str, Any]) -> Answer:
        if self._server.refuse_greeting is not None:
            return RpcError(-32603, self._server.refuse_greeting)
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {
                "tools": {"listChanged": True},
                **({"resources": {"subscribe": True}} if self._server.resources else {}),
                **({"prompts": {}} if self._server.prompts else {}),
            },
            "serverInfo": {"name": "fake", "version": "1"},
        }

    # ---- playing its script -----------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        return self._wire.is_over

    @property
    def _is_mute(self) -> bool:
        return self.is_over or self.is_hung

    async def _play(self, due: list[Entry]) -> Entry | None:
        playing = perform(due, self)
        while True:
            try:
                seconds = next(playing)
            except StopIteration as end:
                return end.value
            await pause(seconds)

    def _rest(self) -> None:
        """Nothing is being answered. Wait for the faults that are due when it has been idle for a while."""
        times = self._plan.idle_times()
        if times and not self._busy:
            self._quiet += 1
            self._tasks.start_soon(self._idle, self._quiet, times)

    async def _idle(self, quiet: int, times: Sequence[float]) -> None:
        waited = 0.0
        for after in times:
            await anyio.sleep(after - waited)
            waited = after
            if self._quiet != quiet or self._is_mute:
                return
            await self._play(self._plan.due_idle(after))

    def note_fault(self, fault: Entry) -> None:
        self._server.played.append((self._start, Fault(**fault.said())))

    def talk_junk(self) -> None:
        if not self._is_mute:
            self._wire.junk()

    def flood(self, notifications: int, stderr: int) -> None:
        if stderr:
            self._wire.write_stderr("e" * stderr)
        for number in range(notifications):
            if self._is_mute:
                return
            self._wire.tell("notifications/message", {"level": "info", "data": number})

    def change_tools(self, names: Sequence[str]) -> None:
        known = {tool["name"]: tool for tool in (*self._server.tools, *(self._tools or ()))}
        self._tools = [known.get(name) or {"name": name, "inputSchema": {"type": "object"}} for name in names]
        if not self._is_mute:
            self._wire.tell("notifications/tools/list_changed", None)

    def hang(self) -> None:
        self.is_hung = True

    def crash(self, exit_code: int, signal_name: str | None, last_words: str | None) -> None:
        self._wire.crash(exit_code, signal_name, last_words)

    def expire(self) -> None:
        self._is_expired = True


async def pause(seconds: float) -> None:
    """Wait. With `inf`, for ever."""
    if seconds == math.inf:
        await anyio.sleep_forever()
    elif seconds:
        await anyio.sleep(seconds)
