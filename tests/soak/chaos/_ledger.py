"""The driver's own record: each request that it sent has exactly one answer, or the driver cancelled it.

A cancelled request may still get one answer, for the two can cross on the wire. These answers contradict the ledger: a
second answer, an answer to a request that was never sent, and an answer with the text of another request.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import attrs


class Contradiction(AssertionError):
    """The ledger, the log or the machine shows something that must not happen."""


@attrs.define(eq=False)
class Request:
    number: int
    what: str
    expects: str | None
    asked_at: float
    cancelled: bool = False
    outcome: str | None = None


@attrs.define
class Ledger:
    requests: dict[int, Request] = attrs.field(factory=dict[int, Request])
    open: dict[int, Request] = attrs.field(factory=dict[int, Request])
    outcomes: Counter[str] = attrs.field(factory=Counter[str])
    longest: float = 0.0

    def add(self, what: str, expects: str | None = None) -> int:
        """Record a request; returns its number."""
        number = len(self.requests) + 1
        request = Request(number, what, expects, time.monotonic())
        self.requests[number] = self.open[number] = request
        return number

    def cancel(self, number: int) -> bool:
        """Record a cancellation. False: the request is over already."""
        request = self.open.pop(number, None)
        if request is not None:
            request.cancelled = True
            self.outcomes["cancelled by the client"] += 1
        return request is not None

    def add_answer(self, message: Mapping[str, Any]) -> None:
        """Record an answer. Raises `Contradiction`."""
        request = self.requests.get(message["id"])
        if request is None:
            raise Contradiction(f"an answer to a request that was never sent: {_short(message)}")
        if request.outcome is not None:
            raise Contradiction(f"a second answer to {request.what}: {_short(message)}")
        request.outcome = outcome_of(message)
        if request.outcome in ("bug", "JSON-RPC error -32603"):
            raise Contradiction(f"{request.what} met a bug: {_short(message)}")
        if request.outcome == "result" and request.expects not in (None, text_of(message)):
            raise Contradiction(f"{request.what} got the answer of another request: {_short(message)}")
        request.expects = None
        if self.open.pop(request.number, None) is not None:
            self.outcomes[request.outcome] += 1
            self.longest = max(self.longest, time.monotonic() - request.asked_at)

    @property
    def adds_up(self) -> bool:
        return len(self.requests) == self.outcomes.total() + len(self.open)


def outcome_of(message: Mapping[str, Any]) -> str:
    """One word for an answer, at either door."""
    if "error" in message:
        error = message["error"]
        code = (error.get("data") or {}).get("code") or (error.get("data") or {}).get("error")
        return str(code or f"JSON-RPC error {error['code']}")
    result = message["result"]
    marks = result.get("_meta") or {}
    details = marks.get("greenroom/details") or marks.get("greenroom/error") or {}
    if "error" in details:
        return str(details["error"])
    return "tool's own error" if result.get("isError") else "result"


def text_of(message: Mapping[str, Any]) -> str:
    return "".join(block.get("text", "") for block in message["result"].get("content", ()))


def _short(message: Mapping[str, Any]) -> str:
    text = str(message)
    return text if len(text) < 400 else f"{text[:400]}…"
