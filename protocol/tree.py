"""The tree of a room at one moment: room → supervisor → servers → sessions, with what holds each and what comes next.

One kind of node at all levels, so that whoever shows a tree (a terminal, Mermaid, the page, a program) is one short
recursion. Calls and waits of a node are those at it and below; everything else is its own. A tree says nothing in
somebody else's words (why a server failed, what it wrote): that is `greenroom explain`.

A server's node is also its shared connection. Below it stands each further address that is there now: that of the
handshake era's clients, of a session, of a call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Literal

import msgspec

from .safe_text import one_line
from .status import ServerStatus, about, scope_in_words

NodeKind = Literal["room", "supervisor", "server", "connection", "session", "call"]


class TreeDeadline(msgspec.Struct, frozen=True, rename="camel"):
    """What time alone will do."""

    what: str  # "idle eviction", "backoff over", "half-open", "connect timeout", "drain over", "next try", …
    seconds: float  # until then

    def __str__(self) -> str:
        return f"{self.what} in {_seconds(self.seconds)}"


class TreeBound(msgspec.Struct, frozen=True, rename="camel"):
    """How much is held of something bounded."""

    name: str  # the key of the configuration that bounds it
    held: int
    most: int

    def __str__(self) -> str:
        return f"{self.name} {self.held}/{self.most}"


class TreeNode(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of a room, and the parts in it, as `room.tree()` returns them. All times are in seconds from this moment,
    to a millisecond."""

    kind: NodeKind  # of what it is a node
    name: str  # of what it is a node
    state: str  # `open`, `closing` of a room; else the word of `greenroom status`
    incarnation: int = 0  # its number, from 1; if none runs, that of the next; 0: of what has none
    in_flight: int = 0  # calls without an answer, here and below
    queued: int = 0  # calls that wait to be sent, here and below
    oldest_wait: float | None = None  # seconds of the longest wait for a connection, here and below
    waits_for: str | None = None  # what its start waits for: slot, permit, breaker …
    breaker: str | None = None  # its circuit breaker, unless it is closed: "open", "half-open"
    restarts_left: int | None = None  # restarts before it counts as restarted too often
    next: TreeDeadline | None = None  # its next deadline
    bounds: tuple[TreeBound, ...] = ()  # its limits, and how much of each is used
    children: tuple[TreeNode, ...] = ()  # the nodes below it

    def __str__(self) -> str:
        return "\n".join(tree_lines(self))

    def mermaid(self) -> str:
        """The tree as a Mermaid flowchart, for a page or an issue that draws these."""
        return "\n".join(_mermaid(self))


def above(kind: NodeKind, name: str, state: str, children: Sequence[TreeNode], **own: Any) -> TreeNode:
    """A node over these: its calls and its oldest wait are theirs and its own (`own`)."""
    waits = [own.pop("oldest_wait", None), *(each.oldest_wait for each in children)]
    return TreeNode(
        kind=kind,
        name=name,
        state=state,
        in_flight=own.pop("in_flight", 0) + sum(each.in_flight for each in children),
        queued=own.pop("queued", 0) + sum(each.queued for each in children),
        oldest_wait=max((each for each in waits if each is not None), default=None),
        children=tuple(children),
        **own,
    )


def tree_of_rows(rows: Iterable[ServerStatus]) -> TreeNode:
    """What is known of a room that does not run."""
    servers = [TreeNode(kind="server", name=row.server, state=row.word) for row in rows]
    return above("room", "", "not running", servers)


# ---- in words --------------------------------------------------------------------------------------------------------

_NAME: Final = 40  # characters of a name that are shown
_FEW: Final = 2  # restarts that are left, of which one should hear


def tree_lines(node: TreeNode, most: int | None = None) -> Iterator[str]:
    """A line for each node. `most`: of the children of one server, at most so many, those with calls first."""
    yield in_words(node)
    yield from _below(node, "", most)


def _below(node: TreeNode, indent: str, most: int | None) -> Iterator[str]:
    shown, left = shown_below(node, most)
    for place, child in enumerate(shown, start=1):
        is_last = place == len(shown) and not left
        yield f"{indent}{'└─' if is_last else '├─'} {in_words(child)}"
        yield from _below(child, f"{indent}{'   ' if is_last else '│  '}", most)
    if left:
        yield f"{indent}└─ and {left} more: greenroom tree --json"


def shown_below(node: TreeNode, most: int | None) -> tuple[Sequence[TreeNode], int]:
    """At most so many of a server's children, those with calls first; and how many are left out."""
    children = node.children
    if most is None or node.kind != "server" or len(children) <= most:
        return children, 0
    busy = sorted(children, key=lambda each: not (each.in_flight or each.queued))
    return busy[:most], len(children) - most


def in_words(node: TreeNode) -> str:
    """One node, as a line of text."""
    return "  ".join([called(node), state_in_words(node.state), *facts(node)])


def state_in_words(state: str) -> str:
    """The word of a state as people read it."""
    return state.replace("-", " ")


def called(node: TreeNode) -> str:
    """What a node is, for people: what the lists are read from, and what older clients share, by what it is for."""
    scope = f"call:{node.name}" if node.kind == "call" else node.name
    if node.kind in ("call", "connection") and (words := scope_in_words(scope)) != scope:
        return words
    name = one_line(node.name, _NAME)
    return name if node.kind in ("server", "connection") else f"{node.kind} {name}".rstrip()


def facts(node: TreeNode) -> Iterator[str]:
    """What else there is to say of a node."""
    yield from (
        str(each)
        for each in node.bounds
        if node.kind != "server" or each.held >= each.most or each.name == "warm"
    )
    if node.in_flight:
        yield f"{node.in_flight} in flight"
    if node.queued:
        yield f"{node.queued} queued"
    if node.oldest_wait is not None:
        yield f"oldest waits {_seconds(node.oldest_wait)}"
    if node.waits_for is not None and node.waits_for != "breaker":
        yield f"waits for {node.waits_for}"
    if node.breaker is not None:
        yield f"breaker {node.breaker}"
    if node.incarnation > 1:
        yield f"incarnation {node.incarnation}"
    if node.restarts_left is not None and (node.breaker is not None or _is_nearly_quarantined(node)):
        yield f"{node.restarts_left} restart{'' if node.restarts_left == 1 else 's'} left before quarantine"
    if node.next is not None:
        yield str(node.next)


def _is_nearly_quarantined(node: TreeNode) -> bool:
    return node.incarnation > 1 and node.restarts_left is not None and node.restarts_left <= _FEW


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else about(seconds)


# ---- as Mermaid ------------------------------------------------------------------------------------------------------

_CLASSES: Final = {  # of states, and how they are drawn
    "well": ("connected", "open"),
    "moving": ("connecting", "draining", "installing", "closing"),
    "bad": ("broken", "down", "failed", "needs-auth", "untrusted"),
}
_STYLES: Final = {
    "well": "stroke:#2a7",
    "moving": "stroke:#b80",
    "bad": "stroke:#c33",
    "failing": "stroke:#c33",
}


def _mermaid(node: TreeNode) -> Iterator[str]:
    yield "flowchart LR"
    numbered = list(_numbered(node, None))
    for number, each, parent in numbered:
        lines = [
            f"{'server ' if each.kind == 'server' else ''}{called(each)}",
            " · ".join([state_in_words(each.state), *facts(each)]),
        ]
        yield f'  n{number}["{"<br/>".join(map(_escaped, lines))}"]'
        if parent is not None:
            yield f"  n{parent} --> n{number}"
    for style, look in _STYLES.items():
        found = [f"n{number}" for number, each, _ in numbered if _class_of(each) == style]
        if found:
            yield f"  classDef {style} {look}"
            yield f"  class {','.join(found)} {style}"


def _numbered(root: TreeNode, parent: int | None) -> Iterator[tuple[int, TreeNode, int | None]]:
    """The nodes, parents first, each with its number and its parent's."""
    waiting: list[tuple[TreeNode, int | None]] = [(root, parent)]
    for number, (node, above_it) in enumerate(waiting):
        yield number, node, above_it
        waiting += [(child, number) for child in node.children]


def _class_of(node: TreeNode) -> str:
    if node.breaker is not None:
        return "failing"
    return next((style for style, states in _CLASSES.items() if node.state in states), "")


def _escaped(text: str) -> str:
    """A label. Names may be anybody's: only letters, digits and a few signs stand for themselves."""
    return "".join(one if one.isalnum() or one in " -_.,:/·" else f"#{ord(one)};" for one in text)
