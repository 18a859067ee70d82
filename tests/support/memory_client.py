"""A client of the gateway in the test's own process: it gives its session lines, and keeps those that come back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Self

import anyio

from greenroom.gateway.endpoint import ClientSession, Endpoint
from greenroom.gateway.inbound_budget import InboundBudget

HELLO: Mapping[str, Any] = {"protocolVersion": "2025-11-25", "clientInfo": {"name": "t", "version": "1"}}


class MemoryClient:
    """One client of `exposure`; or of whatever else opens it a `session`. It has said nothing yet.

    `said` has every message that came to it, in order, and `lines` has them as they were written. `fresh` are those
    since its last request. `spawn` starts what the gateway does beside it, and `options` are the endpoint's.
    """

    session: Any  # a `ClientSession`

    def __init__(self, exposure: Any = None, spawn: Any = None, **options: Any) -> None:
        self.busy = False
        self.takes_long_lines = True
        self.lines: list[bytes] = []
        self.said: list[dict[str, Any]] = []
        self.answers: dict[str, Any] = {}  # what it answers at once, by the method it is asked
        self.on_message: Callable[[Any], object] = lambda _message: None
        self.spawn = spawn
        self.notes: list[str] = []
        self.last_id: Any = 0
        self._number = 0
        self._seen = 0
        if exposure is not None:
            options.setdefault("inbound_budget", InboundBudget(lambda: 1 << 30))
            endpoint = Endpoint("9.9", self.notes.append, **options)
            self.session = ClientSession(endpoint, exposure, self, lambda *work: self.spawn(*work))

    @classmethod
    def met(cls, exposure: Any, spawn: Any = None, **capabilities: Any) -> Self:
        """A client of `exposure` that is initialized by handshake, and declares `capabilities`."""
        client = cls(exposure, spawn)
        client.initialize(**capabilities)
        client.look()
        return client

    # ---- what comes --------------------------------------------------------------------------------------------------

    def send(self, line: bytes) -> bool:
        """The gateway's side: a line for this client. False: it has no room for it."""
        if len(line) > 4096 and not self.takes_long_lines:
            return False
        assert line.endswith(b"\n")
        assert line.count(b"\n") == 1
        message = json.loads(line)
        self.lines.append(line)
        self.said.append(message)
        self.on_message(message)
        if "id" in message and message.get("method") in self.answers:
            self.say({"id": message["id"], "result": self.answers[message["method"]]})
        return True

    @property
    def fresh(self) -> list[dict[str, Any]]:
        return self.said[self._seen :]

    def look(self) -> None:
        """Nothing that has come so far is fresh any more."""
        self._seen = len(self.said)

    @property
    def outcome(self) -> Any:
        """The result, or the error, of the one message that is fresh."""
        (message,) = self.fresh
        return message.get("result", message.get("error"))

    def methods(self) -> list[str]:
        """The methods of all that it was asked and told."""
        return [said["method"] for said in self.said if "method" in said]

    async def heard(self, wanted: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        """The first message that is `wanted`, which may still have to come. It is looked for again and again: virtual
        time would jump over whole minutes while a thread makes the answer."""
        while not (found := [said for said in self.said if wanted(said)]):
            await anyio.sleep(0.01)
        return found[0]

    async def answer(self, number: Any) -> dict[str, Any]:
        """The answer to a request, which may still have to come."""
        return await self.heard(lambda said: said.get("id") == number and "method" not in said)

    # ---- what it says ------------------------------------------------------------------------------------------------

    def say(self, message: bytes | Mapping[str, Any]) -> list[dict[str, Any]]:
        """Send bytes as they are, or a message, which may be without its version. Returns what came at once."""
        before = len(self.said)
        line = message if isinstance(message, bytes) else json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.session.receive(line)
        return self.said[before:]

    def tell(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        self.say({"method": method, "params": dict(params or {})})

    def begin(self, method: str, params: Any = None, *, id: Any = None) -> Any:
        """Send a request, without `params` if there are none. Returns its id: `id`, or the next number."""
        if id is None:
            self._number += 1
        self.last_id = self._number if id is None else id
        self.look()
        self.say({"id": self.last_id, "method": method, **({} if params is None else {"params": params})})
        return self.last_id

    def ask_at_once(self, method: str, params: Any = None, *, id: Any = None) -> Any:
        """The result, or the error, of a request to which one answer, and nothing else, comes at once."""
        number = self.begin(method, params, id=id)
        assert [each["id"] for each in self.fresh] == [number], self.fresh
        return self.outcome

    async def ask(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The whole answer to a request."""
        return await self.answer(self.begin(method, dict(params or {})))

    def initialize(self, **capabilities: Any) -> Any:
        """Shake hands. Returns the id of the request."""
        number = self.begin("initialize", {**HELLO, "capabilities": capabilities})
        self.tell("notifications/initialized")
        return number

    def reply(self, result: Mapping[str, Any], to: Mapping[str, Any] | None = None) -> None:
        """Answer a request of the gateway: `to`, or the last one."""
        asked = to or [said for said in self.said if "id" in said and "method" in said][-1]
        self.say({"id": asked["id"], "result": result})
