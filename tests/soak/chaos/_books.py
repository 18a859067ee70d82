"""The driver's own account: each request it sent has exactly one answer, or was cancelled by it.

An answer to a cancelled request may still come, once: the two cross on the wire. An answer that belongs to another
question, a second one, or one to a question never asked contradicts the books, and so does the text of an honest server
that is not the text it was given.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import attrs


class Contradiction(AssertionError):
    """What the books, the log or the machine say cannot be."""


@attrs.define(eq=False)
class Question:
    number: int
    what: str
    expects: str | None
    asked_at: float
    cancelled: bool = False
    outcome: str | None = None


@attrs.define
class Books:
    questions: dict[int, Question] = attrs.field(factory=dict[int, Question])
    open: dict[int, Question] = attrs.field(factory=dict[int, Question])
    outcomes: Counter[str] = attrs.field(factory=Counter[str])
    longest: float = 0.0

    def ask(self, what: str, expects: str | None = None) -> int:
        """Enter a question; its number."""
        number = len(self.questions) + 1
        question = Question(number, what, expects, time.monotonic())
        self.questions[number] = self.open[number] = question
        return number

    def cancel(self, number: int) -> bool:
        """Enter a cancellation. False: it is over already."""
        question = self.open.pop(number, None)
        if question is not None:
            question.cancelled = True
            self.outcomes["cancelled by the client"] += 1
        return question is not None

    def hear(self, message: Mapping[str, Any]) -> None:
        """Enter an answer. Raises `Contradiction`."""
        question = self.questions.get(message["id"])
        if question is None:
            raise Contradiction(f"an answer to a question never asked: {_short(message)}")
        if question.outcome is not None:
            raise Contradiction(f"a second answer to {question.what}: {_short(message)}")
        question.outcome = outcome_of(message)
        if question.outcome in ("bug", "JSON-RPC error -32603"):
            raise Contradiction(f"{question.what} met a bug: {_short(message)}")
        if question.outcome == "result" and question.expects not in (None, text_of(message)):
            raise Contradiction(f"the answer to {question.what} is another's: {_short(message)}")
        question.expects = None
        if self.open.pop(question.number, None) is not None:
            self.outcomes[question.outcome] += 1
            self.longest = max(self.longest, time.monotonic() - question.asked_at)

    @property
    def adds_up(self) -> bool:
        return len(self.questions) == self.outcomes.total() + len(self.open)


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
