"""A file of JSON whose one object has a member for each of thousands of servers, with a line for each member.

So it is read and written member by member. A decoder that reads tens of megabytes in one go, and an encoder that writes
them, keep the interpreter's lock until they are done, and a thread of a gateway that uses the file would hold up every
call meanwhile. What has other lines is the same JSON, only not in this form.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec

T = TypeVar("T")


def in_lines(head: bytes, members: Iterable[tuple[str, bytes]], tail: bytes) -> Iterator[bytes]:
    """The pieces of the file. `head`: what stands before the first member; `tail`: from the brace on that ends the
    object. The value of a member is JSON without line breaks."""
    yield head
    comma = b"\n"
    for key, value in members:
        yield b"%b%b:%b" % (comma, msgspec.json.encode(key), value)
        comma = b",\n"
    yield b"\n%b" % tail


def from_lines(
    data: bytes, head: bytes, decoder: msgspec.json.Decoder[dict[str, T]]
) -> tuple[dict[str, T], bytes] | None:
    """The members in the content of a file, each decoded by itself, and the content without them. None: it has another
    form, or one of them cannot be read."""
    if not data.startswith(head + b"\n"):
        return None
    found: dict[str, T] = {}
    at = len(head) + 1
    try:
        while (end := data.find(b"\n", at)) >= 0:
            found.update(decoder.decode(b"{%b}" % data[at:end].removesuffix(b",")))
            at = end + 1
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return found, head + data[at:]
