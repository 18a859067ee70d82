"""The warm pool: how many children of isolated servers are started ahead, and which of them are used again. Pure
functions say what to do next.

A server whose sessions or calls have a child each pays for a start with each of them. With `warm` in its entry so many
children are started before anybody needs them, and not spoken to. The next session or call takes one over: nothing is
left to wait for but the handshake.

`fill` reads a `WarmSnapshot` and answers with the servers that get one more child now, and those that have too many. It
remembers nothing. Rules (why: `docs/decisions/warm-pool.md`):

* A server never has more warm children than its entry says. The children of calls hold at most half the slots of the
  pool, the warm ones for them among these.
* A warm child holds a slot, of the kind that it will be used for; whoever takes it over takes the slot with it. It
  never takes the last free one, nor any while somebody waits for one. Where a slot is needed, the pool (`policy.pool`)
  ends warm children before any connection that somebody has used.
* While it starts it uses one of the start permits that nobody holds and nobody waits for. No called server waits for
  it.
* The emptiest server comes first, so that none stays without.
* Of a lazy server they stand from its first use until nobody has needed a child for its idle time; of an eager one
  from the opening of the room on.
* Warm children that die, or cannot be started, have a circuit breaker of their own (`since`). When it has tripped, one
  child alone is tried, until somebody has used it. No call is ever refused for them.

A server may have a tool that resets it (`reset` in its entry). Then a child comes back when its session or call is over
(`why_not_again`), and the room calls that tool before anybody else has it. `warm` says how many children there are in
all: one in use that may come back has none started in its place. Rules:

* A child comes back only if its session or call ended in order, and nothing of it is left at the connection. What
  leaves nothing is a list of what is known (`is_passing`), and anything else lasts.
* It goes only to whoever would say the same in the handshake, for that is not made again (`choose`).
* The process ends in every other case: where somebody waits for a slot, where there are enough children, where the tool
  has not answered, or with anything but a plain result (`why_not_reset`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from ...protocol.jsonrpc.terms import LISTEN

# What may be said to a server in the name of a session and leaves nothing at the connection, once it is answered.
_PASSING: Final = frozenset(
    {
        *("server/discover", "initialize", "notifications/initialized", "ping"),
        *("tools/list", "resources/list", "resources/templates/list", "prompts/list"),
        *("skills/list", "skills/get", "resources/directory/read"),
        *("tools/call", "resources/read", "prompts/get", "completion/complete"),
    }
)
# What a stream of news (2026-07-28) may be about and be nobody's own: the lists of the server.
_OF_LISTS: Final = frozenset({"toolsListChanged", "promptsListChanged", "resourcesListChanged"})
# Members of a request's params with which it goes on after its answer (a task), or belongs to an earlier one.
_LASTING_PARAMS: Final = ("task", "inputResponses", "requestState")
# The notifications that a server may send when it has nothing open. The second is about a stream that is closed by
# then. Progress of an open request is not asked about here.
_PASSING_NEWS: Final = frozenset({"notifications/message", "notifications/subscriptions/acknowledged"})


class WarmServer(msgspec.Struct, frozen=True):
    """A server whose children may be started ahead. `most`: how many; 0 while it may have none."""

    name: str
    most: int
    of_sessions: bool = True  # its children have the slots of sessions; else they are for single calls
    held: int = 0  # children that are warm or about to be, and not ending
    in_use: int = 0  # children that somebody uses, and that may come back
    in_group: int = 0  # slots that its children for single calls hold, these among them
    until: float = math.inf  # when it is to have none any more
    since: float = -math.inf  # none is started before
    is_probed: bool = False  # so many have died in a row that only one is tried

    def wanted(self, now: float) -> int:
        """How many it is to have now."""
        return 0 if now >= self.until else min(self.most, 1) if self.is_probed else self.most

    @property
    def there(self) -> int:
        """How many it has, with those that may come back."""
        return self.held + self.in_use


class WarmSnapshot(msgspec.Struct, frozen=True):
    """All servers with warm children at one moment, in the order of the configuration."""

    now: float
    servers: Sequence[WarmServer]
    # How many slots nobody holds; True: of those for children of sessions. 0 while somebody waits for one.
    free: Mapping[bool, int]
    permits: int  # start permits that nobody holds or waits for
    most_of_group: int  # slots that the children for single calls of one server may hold


class WarmDecision(msgspec.Struct, frozen=True):
    starts: tuple[str, ...] = ()  # servers that get one more child each time they are named
    surplus: Mapping[str, int] = msgspec.field(default_factory=dict[str, int])  # children to end, by server
    look_at: float = math.inf  # when time alone may change the answer


def fill(it: WarmSnapshot) -> WarmDecision:
    """Which children to start and which to end, now."""
    held = {each.name: each.there for each in it.servers}
    too_many = {each.name: min(each.held, each.there - each.wanted(it.now)) for each in it.servers}
    surplus = {name: more for name, more in too_many.items() if more > 0}
    starts, free = list[str](), dict(it.free)
    while len(starts) < it.permits:
        able = [each for each in it.servers if _has_room(it, each, held[each.name], free[each.of_sessions])]
        if not able:
            break
        emptiest = min(able, key=lambda each: held[each.name] / each.wanted(it.now))
        starts.append(emptiest.name)
        held[emptiest.name] += 1
        free[emptiest.of_sessions] -= 1
    return WarmDecision(tuple(starts), surplus, min(_changes(it), default=math.inf))


def _has_room(it: WarmSnapshot, server: WarmServer, held: int, free: int) -> bool:
    """Whether one more child of it may be started. `free`: slots of its kind."""
    in_group = server.in_group + held - server.there
    fits = server.of_sessions or in_group < it.most_of_group
    return held < server.wanted(it.now) and it.now >= server.since and free > 1 and fits


def _changes(it: WarmSnapshot) -> Sequence[float]:
    """The times at which something changes by itself."""
    ends = [each.until for each in it.servers if each.held and it.now < each.until]
    begins = [each.since for each in it.servers if each.there < each.wanted(it.now) and it.now < each.since]
    return [*ends, *begins]


# ---- children that are used again ------------------------------------------------------------------------------------


def is_passing(method: str, params: Mapping[str, Any] | None) -> bool:
    """Whether a request or notification of ours leaves nothing at the connection, once it is answered."""
    return method in _PASSING and not any(name in _LASTING_PARAMS for name in params or ())


def is_passing_stream(method: str, params: Mapping[str, Any] | None) -> bool:
    """Whether a request opens a stream of news that leaves nothing once it is closed: it is about lists alone."""
    wanted: object = (params or {}).get("notifications")
    return method == LISTEN and isinstance(wanted, Mapping) and _OF_LISTS.issuperset(cast("Any", wanted))


def is_passing_news(method: str) -> bool:
    """Whether a server that has nothing open may send this notification, too, so that it is no sign of more to come."""
    return method in _PASSING_NEWS


def may_be_told_later(capabilities: Mapping[str, Any]) -> bool:
    """Whether a client that can do this may be told something when its request has long been answered: how a page ended
    that somebody was to open."""
    elicitation: object = capabilities.get("elicitation")
    return isinstance(elicitation, Mapping) and "url" in elicitation


class UsedChild(msgspec.Struct, frozen=True):
    """A child whose user leaves, at that moment."""

    server: WarmServer  # this child is not among those in use
    is_over: bool = True  # its session or call is over, and it is connected; nothing else ends it
    is_current: bool = True  # it runs what the entry of its server says now
    is_changed: bool = (
        False  # the tool that resets is not as it was first shown, and nobody has accepted that
    )
    lasting: str | None = None  # what is left of its user at the connection, in words
    is_waited_for: bool = False  # somebody waits for a slot of its kind


def why_not_again(it: UsedChild, now: float) -> str | None:
    """Why this child ends with its user, in words. None: it may be reset."""
    if not it.is_over:
        return "its session or call did not end in order"
    if not it.is_current:
        return "its server has been redefined, restarted or taken down"
    if it.is_changed:
        return "the tool that resets it has changed"
    if it.lasting is not None:
        return it.lasting
    if it.is_waited_for:
        return "somebody waits for its slot"
    return "there are enough children" if it.server.there >= it.server.wanted(now) else None


def why_not_reset(result: Mapping[str, Any]) -> str | None:
    """Why a result of the tool that resets is no proof that it has, in words. None: it has."""
    if result.get("isError", False) is not False:
        return "its result is an error"
    if result.get("resultType", "complete") != "complete":
        return "its result is not complete"
    return None if isinstance(result.get("content"), list) else "its result is none of a tool"


class FreeChild(msgspec.Struct, frozen=True):
    """A child that nobody has claimed. `fits`: whoever wants one would say in the handshake what was said in the one
    that this child has had; true of one that has had none."""

    is_ready: bool = True  # else it is being started, or reset
    is_used: bool = False
    fits: bool = True


def choose(free: Sequence[FreeChild]) -> int | None:
    """The place of the child that is taken over: of those that fit, the one with the least left to wait for, and of
    several such the first. `free`: the one that waits longest first. None: no child fits."""
    able = [place for place, child in enumerate(free) if child.fits]
    return min(able, key=lambda place: _delay(free[place]), default=None)


def _delay(child: FreeChild) -> int:
    """The order of what there is to wait for: nothing, a handshake, a reset, a start."""
    order = [(True, True), (True, False), (False, True), (False, False)]
    return order.index((child.is_ready, child.is_used))


def in_the_way(free: Sequence[FreeChild]) -> int | None:
    """When none could be chosen: the one that ends, because nobody who comes now can use it. None: there is none."""
    return next((place for place, child in enumerate(free) if child.is_ready and not child.fits), None)
