"""The gateway's MCP methods, one handler for every door.

A door brings lines and takes lines; everything between is here, and here only: both eras of the protocol, requests in
flight, cancellation, progress. One `Conversation` per client keeps what is in flight; the `Endpoint` behind it is
shared and has no state, so a door that serves many clients makes many conversations of one endpoint.

The era is a property of each request, not of the connection: a request that carries a 2026-07-28 envelope in `_meta` is
answered with the stamps of that version, any other as the handshake versions want it. `METHODS` says which method
exists in which era; the rest is -32601.

A bad message costs itself: it is answered with a JSON-RPC error (when it can be answered at all) and the next line is
read. An error of our own is answered -32603 and told to `note`; no traceback is ever sent to a client.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, cast

import attrs

from . import _rpc as rpc
from ._exposure import Exposure
from ._jobs import Job, RpcFault, Spawn

HANDSHAKE_VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
STATELESS_VERSIONS: Final = ("2026-07-28",)
_META: Final = "io.modelcontextprotocol/"
_VERSION_KEY: Final = f"{_META}protocolVersion"
_SERVER_INFO_KEY: Final = f"{_META}serverInfo"


class Era(enum.Flag):
    HANDSHAKE = enum.auto()
    STATELESS = enum.auto()


METHODS: Final[Mapping[str, Era]] = {
    "initialize": Era.HANDSHAKE,
    "ping": Era.HANDSHAKE,
    "server/discover": Era.STATELESS,
    "tools/list": Era.HANDSHAKE | Era.STATELESS,
    "tools/call": Era.HANDSHAKE | Era.STATELESS,
}


class Outlet(Protocol):
    """The way to one client."""

    @property
    def congested(self) -> bool:
        """More is waiting to be read by the client than is good."""
        ...

    def send(self, line: bytes) -> bool:
        """Take one line, newline included. False: it was too much on top of what is waiting and was dropped; a short
        line is always taken. Must not block or raise."""
        ...


def _no_note(_text: str) -> None:
    pass


@attrs.frozen(eq=False)
class Endpoint:
    """What all conversations of a gateway share.

    `version` is our own, told to clients. `max_open` bounds the tools/calls one client may have in flight. `note`
    hears of what deserves a log line.
    """

    exposure: Exposure
    version: str
    max_open: int = 1024
    note: Callable[[str], None] = _no_note

    def open(self, outlet: Outlet, spawn: Spawn) -> Conversation:
        """Begin to talk with one client. `spawn` runs a coroutine function in a task group that outlives the
        conversation's answers."""
        return Conversation(self, outlet, spawn)

    def server_info(self) -> dict[str, str]:
        return {"name": "greenroom", "title": "Greenroom", "version": self.version}

    def capabilities(self) -> dict[str, Any]:
        return {"tools": {"listChanged": False}}


class Conversation:
    """One client. `receive` is given its lines, one at a time; answers go to its outlet, in any order."""

    def __init__(self, endpoint: Endpoint, outlet: Outlet, spawn: Spawn) -> None:
        self._endpoint = endpoint
        self._outlet = outlet
        self._send = outlet.send
        self._spawn = spawn
        self._open: dict[bytes, Job] = {}
        self._closing = False
        self._answer: Final[Mapping[str, Callable[[rpc.Envelope], Mapping[str, Any]]]] = {
            "initialize": self._initialize,
            "ping": self._ping,
            "server/discover": self._discover,
            "tools/list": self._list_tools,
        }

    @property
    def in_flight(self) -> int:
        """Tools/calls that have no answer yet."""
        return len(self._open)

    def receive(self, line: bytes) -> None:
        """Handle one line. Never raises."""
        key = b""
        try:
            envelope = rpc.read_envelope(line)
            key = rpc.read_id(envelope)
            self._take(envelope, key)
        except RpcFault as fault:
            self._send(rpc.error_line(key, fault))
        except Exception as error:
            self._broke(key, error)

    def refuse_new(self) -> None:
        """From here on new calls are refused; those in flight are still answered."""
        self._closing = True

    def close(self) -> None:
        """The client is gone: cancel what it asked for, answer nothing more."""
        jobs, self._open = list(self._open.values()), {}
        for job in jobs:
            job.cancel()

    # ---- what comes in -------------------------------------------------------------------------------------------

    def _take(self, envelope: rpc.Envelope, key: bytes) -> None:
        method = envelope.method
        if method is None:
            if not bytes(envelope.result) and not bytes(envelope.error):
                raise RpcFault(rpc.INVALID_REQUEST, "Invalid request: it has no method.")
        elif not key:
            if method == "notifications/cancelled":
                self._cancelled(envelope)
        elif method == "tools/call":
            self._call_tool(envelope, key)
        else:
            self._send(rpc.result_line(key, self._answered(method, envelope)))

    def _answered(self, method: str, envelope: rpc.Envelope) -> Mapping[str, Any]:
        answer = self._answer.get(method)
        if answer is None:
            raise RpcFault(rpc.METHOD_NOT_FOUND, f"Method not found: {method}")
        return answer(envelope)

    def _initialize(self, envelope: rpc.Envelope) -> Mapping[str, Any]:
        asked = rpc.read_object(envelope.params).get("protocolVersion")
        if not isinstance(asked, str):
            raise RpcFault(rpc.INVALID_PARAMS, "Invalid params: initialize needs protocolVersion, a string.")
        return {
            "protocolVersion": asked if asked in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[-1],
            "capabilities": self._endpoint.capabilities(),
            "serverInfo": self._endpoint.server_info(),
        }

    def _ping(self, envelope: rpc.Envelope) -> Mapping[str, Any]:
        self._era("ping", rpc.read_object(envelope.params).get("_meta"))
        return {}

    def _discover(self, envelope: rpc.Envelope) -> Mapping[str, Any]:
        self._era("server/discover", rpc.read_object(envelope.params).get("_meta"))
        result = {
            "supportedVersions": list(STATELESS_VERSIONS),
            "capabilities": self._endpoint.capabilities(),
        }
        return self._stamped(result, cacheable=True)

    def _list_tools(self, envelope: rpc.Envelope) -> Mapping[str, Any]:
        era = self._era("tools/list", rpc.read_object(envelope.params).get("_meta"))
        result = {"tools": list(self._endpoint.exposure.tools())}
        return self._stamped(result, cacheable=True) if era is Era.STATELESS else result

    def _call_tool(self, envelope: rpc.Envelope, key: bytes) -> None:
        params = rpc.read_call(envelope.params)
        meta = params.meta
        token = meta.get("progressToken") if meta else None
        era = self._era("tools/call", meta)
        self._admit(key)
        job = Job(self, self._spawn, key, token=token, modern=era is Era.STATELESS)
        self._open[key] = job
        try:
            self._endpoint.exposure.call(params.name, params.arguments or {}, job)
        except Exception as error:
            job.cancel()
            self.job_broke(job, error)

    def _admit(self, key: bytes) -> None:
        if self._closing:
            raise RpcFault(rpc.OVERLOADED, "The gateway is shutting down; nothing was called.")
        if key in self._open:
            raise RpcFault(rpc.INVALID_REQUEST, "Invalid request: a call with this id is still in flight.")
        if len(self._open) >= self._endpoint.max_open:
            text = f"Too many calls in flight ({len(self._open)}); nothing was called. Retry when some have ended."
            raise RpcFault(rpc.OVERLOADED, text)

    def _cancelled(self, envelope: rpc.Envelope) -> None:
        """An id that is unknown, or has just been answered, is no fault: the two cross on the wire."""
        try:
            job = self._open.pop(rpc.read_cancel(envelope.params), None)
        except RpcFault as fault:
            self._endpoint.note(f"ignored a cancellation: {fault.message}")
            return
        if job is not None:
            job.cancel()

    def _era(self, method: str, meta: Any) -> Era:
        """Which era a request is of. Raises `RpcFault` when it cannot be served as that."""
        version: object = cast("dict[str, Any]", meta).get(_VERSION_KEY) if isinstance(meta, dict) else None
        if version is not None and version not in STATELESS_VERSIONS:
            data = {"supported": list(STATELESS_VERSIONS), "requested": str(version)}
            raise RpcFault(rpc.UNSUPPORTED_VERSION, f"Unsupported protocol version: {version}", data)
        era = Era.HANDSHAKE if version is None else Era.STATELESS
        if era not in METHODS[method]:
            raise RpcFault(rpc.METHOD_NOT_FOUND, f"Method not found: {method}")
        return era

    # ---- what goes out: the sink of our jobs ---------------------------------------------------------------------

    def job_done(self, job: Job, result: Mapping[str, Any] | None, error: RpcFault | None) -> None:
        if self._open.pop(job.key, None) is None:
            return
        if error is not None:
            self._send(rpc.error_line(job.key, error))
            return
        result = result or {}
        line = rpc.result_line(job.key, self._stamped(result) if job.modern else result)
        if not self._send(line):
            text = f"The answer ({len(line)} bytes) was dropped: the client does not read what was sent before it."
            self._send(rpc.error_line(job.key, RpcFault(rpc.OVERLOADED, text)))

    def job_progress(self, job: Job, params: Mapping[str, Any]) -> None:
        """Progress is news, not an answer: a client that does not keep up does without."""
        if not self._outlet.congested:
            told = {**params, "progressToken": job.token}
            self._send(rpc.notification_line("notifications/progress", told))

    def job_broke(self, job: Job, error: Exception) -> None:
        if self._open.pop(job.key, None) is not None:
            self._broke(job.key, error)

    def _broke(self, key: bytes, error: Exception) -> None:
        self._endpoint.note(f"a bug in Greenroom, please report it: {type(error).__name__}: {error}")
        fault = RpcFault(rpc.INTERNAL_ERROR, "Internal error in the gateway; its log has the details.")
        self._send(rpc.error_line(key, fault))

    def _stamped(self, result: Mapping[str, Any], *, cacheable: bool = False) -> dict[str, Any]:
        """What 2026-07-28 wants on every result, and on those a client may cache."""
        stamped: dict[str, Any] = {"resultType": "complete", **result}
        if cacheable:
            stamped = {"ttlMs": 0, "cacheScope": "private", **stamped}
        stamped["_meta"] = {**(result.get("_meta") or {}), _SERVER_INFO_KEY: self._endpoint.server_info()}
        return stamped
