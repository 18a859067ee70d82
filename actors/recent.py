"""The last events of a room, kept for who asks later: `greenroom trace` of a running gateway.

A room keeps none unless its door wants it (`EventStream.keep_recent`). Of a call there is one line, made when it ends,
with all its times, as a plain tuple. So it costs a call half a microsecond, where its events would cost several. What
is over the bound is forgotten, the oldest first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from ..protocol.address import Address
from ..protocol.bounds import RECENT_CALLS, RECENT_EVENTS
from ..protocol.errors import Reach
from ..protocol.events import CallAccepted, CallEnded, CallSent, Event, Kind

if TYPE_CHECKING:
    from .call import Call

KINDS = frozenset(Kind) - {Kind.CALL, Kind.CATALOGUE}


class RecentCall(NamedTuple):
    """One call, ended or not. Times are those of the room's clock. (A named tuple takes five times as long to make as a
    plain one, so it is made when somebody asks.)"""

    ended_at: float | None
    address: Address
    incarnation: int
    number: int
    method: str
    tool: str | None
    client: str | None
    accepted_at: float
    sent_at: float
    reach: Reach
    outcome: str

    @classmethod
    def open(cls, call: Call, address: Address, incarnation: int) -> RecentCall:
        """One that has not ended."""
        return cls(
            None, address, incarnation, call.number, call.method, call.tool, call.client,
            call.accepted_at, call.sent_at, call.reach, "",
        )  # fmt: skip

    def events(self) -> Iterable[Event]:
        """As the stream tells it."""
        said = (self.address, self.incarnation, self.number, self.method, self.tool, self.client)
        names = ("address", "incarnation", "call", "method", "tool", "client")
        about = dict(zip(names, said, strict=True))
        yield CallAccepted(0, self.accepted_at, **about)  # pyright: ignore[reportArgumentType]
        was_sent = self.reach is not Reach.NOT_SENT
        if was_sent:
            waited = self.sent_at - self.accepted_at
            yield CallSent(0, self.sent_at, waited=waited, **about)  # pyright: ignore[reportArgumentType]
        if self.ended_at is not None:
            since = self.sent_at if was_sent else self.ended_at
            yield CallEnded(
                0,
                self.ended_at,
                outcome=self.outcome,
                reach=self.reach,
                waited=since - self.accepted_at,
                taken=self.ended_at - since if was_sent else None,
                **about,  # pyright: ignore[reportArgumentType]
            )


# The fields of a `RecentCall` that has ended.
Kept = tuple[float, Address, int, int, str, str | None, str | None, float, float, Reach, str]


class Recent:
    def __init__(self) -> None:
        self.calls: deque[Kept] = deque(maxlen=RECENT_CALLS)
        self.events: deque[Event] = deque(maxlen=RECENT_EVENTS)


def in_order(events: Iterable[Event], calls: Iterable[RecentCall], since: float) -> list[Event]:
    """All of it since then, as the stream would have told it. A call counts if it ended later than that."""
    late = [event for event in events if event.at >= since]
    of_calls = [
        event for call in calls if call.ended_at is None or call.ended_at >= since for event in call.events()
    ]
    return sorted((*late, *of_calls), key=lambda event: event.at)
