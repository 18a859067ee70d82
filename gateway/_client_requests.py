"""Our requests to a client, and its answers.

The ids are ours (`greenroom-1`, and so on), so that questions of several servers are never confused. They
serve as progress tokens too. A question ends when the client answers, when we cancel it (then the client is
told), or when the client disconnects. A client's malformed answer is read as far as possible, and the server
that asked gets an error that names the fault.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import anyio
import msgspec

from ..actors import Exchange, RequestTable, in_turns, mark_sent
from ..protocol import jsonrpc as rpc
from ..protocol.errors import RpcRefusal
from ..protocol.jsonrpc import RpcError, RpcFault, WireFault
from ..protocol.large_json import decoding_result
from ..protocol.large_message import LARGE_MESSAGE

OnProgress = Callable[[Mapping[str, Any]], None]
_OURS: Final = "greenroom-"
_IDS_OF_ONE: Final = 1_000_000_000  # questions of one gateway to one client, at most


class _Question:
    """The owner of one request to the client: it waits for the answer."""

    def __init__(self, on_progress: OnProgress | None) -> None:
        self._on_progress = on_progress
        self.answered = anyio.Event()
        self.large: bytes | None = None  # a result that is too large to be read in one go
        self.result: Mapping[str, Any] = {}
        self.error: RpcRefusal | None = None

    def exchange_sent(self, exchange: Exchange, /) -> None:
        pass

    def exchange_ended(self, exchange: Exchange, result: bytes | None, error: RpcError | None, /) -> None:
        if error is None and result is not None and len(result) >= LARGE_MESSAGE:
            self.large = result
        elif error is None:
            self.result, error = _result_in(result or b"")
        if error is not None:
            self.error = RpcRefusal(error.code, error.message, error.data)
        self.answered.set()

    def exchange_progressed(self, exchange: Exchange, params: Mapping[str, Any], /) -> None:
        if self._on_progress is not None:
            self._on_progress(params)


class ClientRequests:
    """The open questions to one client. `send` takes lines."""

    def __init__(self, send: Callable[[bytes], bool]) -> None:
        self._send = send
        self._requests = RequestTable()

    def number_after(self, gateways: int) -> None:
        """So many gateways have asked this client before, and it may still answer their questions: use no id of
        theirs."""
        self._requests.last_id = gateways * _IDS_OF_ONE

    async def ask(
        self, method: str, params: Mapping[str, Any], on_progress: OnProgress | None = None
    ) -> Mapping[str, Any]:
        """Send a request and return the client's result. With `on_progress` the client is asked to report
        progress. Raises `RpcRefusal` for the client's error, or when the client is gone. Cancelling this
        tells the client that its answer is no longer wanted."""
        name = f"{_OURS}{self._requests.last_id + 1}"
        meta: Mapping[str, Any] = params.get("_meta") or {}
        if on_progress is not None:
            params = {**params, "_meta": {**meta, "progressToken": name}}
        question = _Question(on_progress)
        exchange = Exchange(question, method, params, wants_progress=on_progress is not None)
        line = rpc.request_line(rpc.encode(name), method, params)
        self._requests.open(exchange)
        mark_sent(exchange)
        self._send(line)
        try:
            await question.answered.wait()
        finally:
            if self._requests.withdraw(exchange):  # it has no answer yet
                told = {"requestId": name, "reason": "the server no longer waits for it"}
                self._send(rpc.encode_notification(rpc.CANCELLED, told, rpc.encode))
        if question.large is not None:
            return await _reading_result(question.large)
        if question.error is not None:
            raise question.error
        return question.result

    def answered(self, key: bytes, envelope: rpc.ClientMessage) -> None:
        """An answer came. If nobody waits for it, it is dropped: it crossed our cancellation on the wire."""
        question = self._requests.answered(_number(_name(key)))
        if question is None:
            return
        error = bytes(envelope.error)
        if error and error != b"null":
            question.end(None, _error_in(envelope.error))
        else:
            question.end(bytes(envelope.result), None)

    def broken(self, key: bytes, fault: RpcFault) -> bool:
        """A message with this id came that cannot be read. False: it does not answer any question."""
        question = self._requests.answered(_number(_name(key)))
        if question is None:
            return False
        question.end(None, _unreadable(fault))
        return True

    def progressed(self, envelope: rpc.ClientMessage) -> None:
        try:
            params = rpc.read_object(envelope.params)
        except RpcFault:
            return  # nothing to do: it names no question of ours, and a notification gets no answer
        self._requests.progress(_number(str(params.get("progressToken"))), params)

    def close(self) -> None:
        """The client is gone."""
        for question in self._requests.clear():
            question.end(None, RpcError(rpc.INTERNAL_ERROR, "The client is gone."))


def _name(key: bytes) -> str:
    return key[1:-1].decode(errors="replace")


def _number(name: str) -> int:
    """The number in an id of ours; 0, which no id of ours has, for any other id."""
    return rpc.as_id(name.removeprefix(_OURS)) if name.startswith(_OURS) else 0


async def _reading_result(raw: bytes) -> Mapping[str, Any]:
    """A large result, read in slices. Raises `RpcRefusal`."""
    try:
        return await in_turns(decoding_result(raw))
    except WireFault as fault:
        text = f"The client's answer cannot be read: {fault}"
        raise RpcRefusal(rpc.INTERNAL_ERROR, text, None) from None


def _result_in(raw: bytes) -> tuple[Mapping[str, Any], RpcError | None]:
    try:
        result = rpc.read_value(msgspec.Raw(raw))
    except RpcFault as fault:
        return {}, _unreadable(fault)
    if isinstance(result, dict):
        return cast("Mapping[str, Any]", result), None
    return {}, RpcError(rpc.INTERNAL_ERROR, "The client's answer is no object.")


def _error_in(raw: msgspec.Raw) -> RpcError:
    """The client's error, read as far as possible."""
    try:
        error = rpc.read_value(raw)
    except RpcFault as fault:
        return _unreadable(fault)
    said: Mapping[str, Any] = cast("Any", error) if isinstance(error, dict) else {}
    code = said.get("code")
    return RpcError(
        code if isinstance(code, int) else rpc.INTERNAL_ERROR,
        str(said.get("message", "The client refused.")),
        said.get("data"),
    )


def _unreadable(fault: RpcFault) -> RpcError:
    return RpcError(rpc.INTERNAL_ERROR, f"The client's answer cannot be read: {fault.message}")
