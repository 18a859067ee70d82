"""The desk: the calls about which somebody is asked now, for people at terminals (`approve`, `status --watch`).

* *Numbers.* Each question has a number, which no other question of the room gets. The first one is random. So a number
  that was read off one room most likely means nothing in the room that takes its place.
* *Who is first.* A question that a client or a program is asked can be answered here as well. The first answer counts,
  and the others' question is withdrawn. An answer takes effect at once: when it is told to be done, it is done.
* *Watching.* A terminal watches the desk by looking at it again and again; each look says for how long it counts. A
  call about which nobody else can be asked is held only while somebody watches, and is refused when the last terminal
  has not looked again in time, as when it was killed.
* *Too late.* The last outcomes are remembered. So whoever answers too late is told what has become of the call.
* *Commands.* `greenroom call` asks the person who typed it. Its calls are never held for a terminal, so nobody allows
  by accident in one window what was typed in another.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from itertools import count, islice
from typing import Final

import anyio
import msgspec

from ..protocol.bounds import APPROVALS_ENDED, APPROVALS_LISTED
from ..protocol.errors import UsageError
from ..protocol.events import ApprovalMove
from .approval import ApprovalRequest, Verdict

LONGEST_LOOK: Final = 90.0  # seconds for which one look counts at most
_FIRST: Final = range(1_000, 10_000)
_BECAME: Final[Mapping[ApprovalMove, str]] = {
    ApprovalMove.ALLOWED: "has been allowed already",
    ApprovalMove.ALLOWED_FOR_SESSION: "has been allowed already, for its session",
    ApprovalMove.DENIED: "has been refused already",
    ApprovalMove.UNANSWERED: "has been refused already, because nobody answered in time or its server was changed",
    ApprovalMove.LEFT: "was withdrawn: its caller left, or its session or the gateway ended",
}


class ApprovalQuestion(msgspec.Struct, frozen=True, eq=False):
    """An open question. Times are those of the room's clock."""

    number: int
    request: ApprovalRequest
    since: float  # when its call came
    until: float  # when its call is refused, if nobody has answered
    decide: Callable[[Verdict], None]


class ApprovalDesk:
    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self._numbers = count(secrets.choice(_FIRST))
        self._open: dict[int, ApprovalQuestion] = {}
        self._ended: OrderedDict[int, ApprovalMove] = OrderedDict()
        self._watched_until = float("-inf")
        self._asked_elsewhere: set[str | None] = set()
        self._to_be_told: set[str | None] = set()

    # ---- for terminals ----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """How many questions are open."""
        return len(self._open)

    def waiting(self, most: int = APPROVALS_LISTED) -> list[ApprovalQuestion]:
        """The open questions, the oldest first."""
        return list(islice(self._open.values(), most))

    def get(self, number: int) -> ApprovalQuestion | None:
        return self._open.get(number)

    def has_ended(self, number: int) -> bool:
        """Whether a question with this number was open, not too long ago."""
        return number in self._ended

    def answer(self, number: int, verdict: Verdict) -> ApprovalQuestion:
        """Decide about the call with this number. Raises `UsageError` when it does not wait any more, or never did."""
        found = self._open.get(number)
        if found is None:
            became = self._ended.get(number)
            what = (
                f"Call {number} {_BECAME[became]}." if became else f"No call with the number {number} waits."
            )
            raise UsageError(f"{what} To see which calls wait: greenroom approve", code="not_waiting")
        found.decide(verdict)
        return found

    def watch(self, seconds: float) -> None:
        """Somebody looks at the desk, and will look again within this many seconds."""
        self._watched_until = max(self._watched_until, self.now() + min(LONGEST_LOOK, max(0.0, seconds)))

    @contextmanager
    def asked_elsewhere(self, session: str, *, will_be_told: bool = False) -> Generator[None]:
        """While this is open, whoever makes the calls of this session asks about them. `will_be_told`: a refused call
        is made again with the answer, so the refusal is not reported as a question that nobody answered."""
        self._asked_elsewhere.add(session)
        if will_be_told:
            self._to_be_told.add(session)
        try:
            yield
        finally:
            self._asked_elsewhere.discard(session)
            self._to_be_told.discard(session)

    # ---- for the approvals ------------------------------------------------------------------------------------------

    def is_watched(self, session: str | None) -> bool:
        """Whether somebody at a terminal can be asked about the calls of this session."""
        return self.now() < self._watched_until and session not in self._asked_elsewhere

    def will_be_told(self, session: str | None) -> bool:
        """Whether a refused call of this session will be made again with the answer."""
        return session in self._to_be_told

    async def unwatched(self, session: str | None) -> None:
        """Wait until nobody watches the desk any more."""
        while self.is_watched(session):  # noqa: ASYNC110  (it ends when a time is over, and no event tells that)
            await anyio.sleep(
                max(0.0, self._watched_until - self.now())
            )  # another look may have come meanwhile

    def put(
        self, request: ApprovalRequest, since: float, until: float, decide: Callable[[Verdict], None]
    ) -> int:
        """Show this request to terminals. `decide` is called with the answer of one, at most once."""
        number = next(self._numbers)
        self._open[number] = ApprovalQuestion(number, request, since, until, decide)
        return number

    def take(self, number: int, move: ApprovalMove) -> None:
        """Take the question off the desk. `move`: how it ended."""
        if self._open.pop(number, None) is not None:
            self._ended[number] = move
            if len(self._ended) > APPROVALS_ENDED:
                self._ended.popitem(last=False)
