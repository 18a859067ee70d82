"""Our requests to a client, and its answers.

The ids are ours (`greenroom-1`, and so on), so that questions of several servers are never confused; they serve as
progress tokens too. A question ends when the client answers, when we cancel it (the client is told), or when the client
leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import anyio
import attrs

from ..protocol import jsonrpc as rpc
from ..protocol.errors import RpcRefusal
from ..protocol.jsonrpc import RpcFault

OnProgress = Callable[[Mapping[str, Any]], None]


@attrs.define(eq=False)
class _Question:
    on_progress: OnProgress | None
    answered: anyio.Event = attrs.field(factory=anyio.Event)
    result: Mapping[str, Any] | None = None
    error: RpcRefusal | None = None


class ClientRequests:
    """The open questions to one client. `send` takes lines."""

    def __init__(self, send: Callable[[bytes], bool]) -> None:
        self._send = send
        self._open: dict[str, _Question] = {}
        self._number = 0

    async def ask(
        self, method: str, params: Mapping[str, Any], on_progress: OnProgress | None = None
    ) -> Mapping[str, Any]:
        """The client's result. With `on_progress` it is asked for progress. Raises `RpcRefusal` for its error, or when
        it is gone; cancelling tells the client that its answer is no longer wanted."""
        self._number += 1
        name = f"greenroom-{self._number}"
        question = self._open[name] = _Question(on_progress)
        meta: Mapping[str, Any] = params.get("_meta") or {}
        if on_progress is not None:
            params = {**params, "_meta": {**meta, "progressToken": name}}
        self._send(rpc.request_line(rpc.encode(name), method, params))
        try:
            await question.answered.wait()
        finally:
            if self._open.pop(name, None) is not None:  # nobody has answered it
                told = {"requestId": name, "reason": "the server no longer waits for it"}
                self._send(rpc.encode_notification(rpc.CANCELLED, told, rpc.encode))
        if question.error is not None:
            raise question.error
        return question.result or {}

    def answered(self, key: bytes, envelope: rpc.ClientMessage) -> None:
        """An answer came. One that nobody waits for is dropped: the two crossed on the wire."""
        question = self._open.pop(_name(key), None)
        if question is None:
            return
        try:
            _read(question, envelope)
        except RpcFault as fault:
            question.error = _unreadable(fault)
        finally:
            question.answered.set()

    def broken(self, key: bytes, fault: RpcFault) -> bool:
        """A message that cannot be read came with this id. False: it is no answer to a question."""
        question = self._open.pop(_name(key), None)
        if question is None:
            return False
        question.error = _unreadable(fault)
        question.answered.set()
        return True

    def progressed(self, envelope: rpc.ClientMessage) -> None:
        try:
            params = rpc.read_object(envelope.params)
        except RpcFault:
            return  # it names no question of ours, and a notification cannot be answered
        question = self._open.get(str(params.get("progressToken")))
        if question is not None and question.on_progress is not None:
            question.on_progress(params)

    def close(self) -> None:
        """The client is gone."""
        questions, self._open = self._open, {}
        for question in questions.values():
            question.error = RpcRefusal(rpc.INTERNAL_ERROR, "The client is gone.")
            question.answered.set()


def _read(question: _Question, envelope: rpc.ClientMessage) -> None:
    """Raises `RpcFault`."""
    error = bytes(envelope.error)
    if error and error != b"null":
        question.error = _refusal(rpc.read_value(envelope.error))
        return
    result = rpc.read_value(envelope.result)
    if isinstance(result, dict):
        question.result = cast("Mapping[str, Any]", result)
    else:
        question.error = RpcRefusal(rpc.INTERNAL_ERROR, "The client's answer is no object.")


def _unreadable(fault: RpcFault) -> RpcRefusal:
    return RpcRefusal(rpc.INTERNAL_ERROR, f"The client's answer cannot be read: {fault.message}")


def _name(key: bytes) -> str:
    return key[1:-1].decode(errors="replace")


def _refusal(error: object) -> RpcRefusal:
    said: Mapping[str, Any] = cast("Any", error) if isinstance(error, dict) else {}
    code = said.get("code")
    return RpcRefusal(
        code if isinstance(code, int) else rpc.INTERNAL_ERROR,
        str(said.get("message", "The client refused.")),
        said.get("data"),
    )
