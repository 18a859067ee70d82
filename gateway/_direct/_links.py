"""Remembers which server gave a client which URI.

Servers point to resources that they never list: by a link in a tool's result, an embedded resource, a part of what
was read, or an update. No list and no template says which server has such a resource. So the server that gave the
URI is remembered, for that client. A resource that a server lists is read from that server, whichever other server
links to it. When two servers give the same URI, the later one counts, because the client saw that one last. Our
qualified spelling names its server, so no other server can claim it. The memory is bounded: the oldest entries are
dropped first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final, cast

import msgspec

from ...protocol.bounds import LINKS, LINKS_AT_ONCE
from ...protocol.index import unqualified

_MOST: Final = LINKS
_MOST_AT_ONCE: Final = LINKS_AT_ONCE
_LONGEST: Final = 4096  # characters of a URI


class _Contents(msgspec.Struct):
    uri: Any = None


class _Block(msgspec.Struct):
    uri: Any = None
    resource: _Contents | None = None


class _Message(msgspec.Struct):
    content: _Block | list[_Block] | None = None


class _Result(msgspec.Struct):
    content: list[_Block] = []
    messages: list[_Message] = []
    contents: list[_Contents] = []


_result: Final = msgspec.json.Decoder(_Result)


LINK: Final = b'"resource'  # a tool's result that holds a link or an embedded resource has this in it


class Links:
    def __init__(self) -> None:
        self._givers: OrderedDict[str, str] = OrderedDict()

    def learn(self, server: str, result: bytes) -> None:
        """Remember the URIs in a result of `server`. A result of another shape has none."""
        with suppress(msgspec.MsgspecError, ValueError, RecursionError):
            self._learn(server, _result.decode(result))

    def learn_value(self, server: str, result: dict[str, Any]) -> None:
        """The same of a result that is decoded; of each of its lists only as much is read as can be remembered."""
        first = {
            name: cast("list[Any]", value)[:_MOST_AT_ONCE] if isinstance(value, list) else value
            for name, value in result.items()
        }
        with suppress(msgspec.MsgspecError, ValueError, RecursionError):
            self._learn(server, msgspec.convert(first, _Result))

    def _learn(self, server: str, found: _Result) -> None:
        for count, uri in enumerate(_uris(found)):
            if count >= _MOST_AT_ONCE:
                return
            self.add(server, uri)

    def add(self, server: str, uri: object) -> None:
        if isinstance(uri, str) and 0 < len(uri) <= _LONGEST and unqualified(uri) is None:
            self._givers[uri] = server
            self._givers.move_to_end(uri)
            if len(self._givers) > _MOST:
                self._givers.popitem(last=False)

    def giver(self, uri: str) -> str | None:
        return self._givers.get(uri)


def _uris(result: _Result) -> Iterator[Any]:
    blocks = list(result.content)
    for message in result.messages:
        said = message.content
        blocks += said if isinstance(said, list) else [said] if said is not None else []
    for block in blocks:
        yield block.uri
        if block.resource is not None:
            yield block.resource.uri
    for contents in result.contents:
        yield contents.uri
