"""Large results at the direct door, in slices.

A result is passed on as it is, but for a few members: what it says in our name is left out, and each era wants other
members beside. So whatever looks at a large result is given its outline, in which a short string stands for each long
member. The members themselves are put back into the finished answer, in one copy.
"""

from __future__ import annotations

import secrets
from typing import Final

import attrs
import msgspec

from ...protocol.jsonrpc import WireFault
from ...protocol.large_json import decoding, outlining
from ...protocol.slices import Slices, letting_go
from ._links import LINK, Links

_LONG: Final = 4096  # bytes of a member that is put back at the end
_POINTING: Final = ("content", "messages", "contents")
_MARK: Final = secrets.token_hex(16)  # no server knows it, so none can say what stands for a member


@attrs.frozen(eq=False)
class Outline:
    """`small`: the result with short strings for its long members."""

    small: bytes
    _members: dict[bytes, bytes]  # what stands for each

    def filled(self, line: bytes) -> bytes:
        """A line made of `small`, with the members in their places."""
        places = sorted((line.find(short), short) for short in self._members)
        pieces, at = list[bytes](), 0
        for place, short in places:
            if place >= 0:
                pieces += line[at:place], self._members[short]
                at = place + len(short)
        return b"".join((*pieces, line[at:]))


def outline_of(result: bytes) -> Slices[Outline | None]:
    """None: it cannot be told from its outline what clients need beside."""
    try:
        members = yield from outlining(result)
    except WireFault:
        return None
    if "structuredContent" in members and members.get("content", b"null") == b"null":
        return None  # its content is made of that
    parts, long = dict[str, msgspec.Raw](), dict[bytes, bytes]()
    for number, (name, member) in enumerate(members.items()):
        if len(member) >= _LONG and name != "_meta":
            short = b'"%b-%d"' % (_MARK.encode(), number)
            long[short] = member
            member = short
        parts[name] = msgspec.Raw(member)
    return Outline(msgspec.json.encode(parts), long)


def learning_links(links: Links, server: str, result: bytes) -> Slices[None]:
    """`Links.learn`, in slices."""
    if result.find(LINK) < 0:
        return
    yield
    members = yield from outlining(result, frozenset(_POINTING))
    for name, member in members.items():
        value = yield from decoding(member)
        links.learn_value(server, {name: value})
        yield from letting_go(value)
