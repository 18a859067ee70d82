"""What search has made of tools, kept from one run to the next.

Reducing five thousand tools to stems and points takes a quarter of a second, which the first search of a program would
wait for. So what was made is kept beside the catalogue (`search_file.py`): for each server one record, with the
stems that its tools have and, for each tool, a digest of everything that search reads of it and what was made of that.
A tool whose digest is not found is read again. So a record may be old, of other settings, or missing, and no search
finds anything else for it. The digest also holds how it was made, so what another version of ours made is not found.

A tool with an override is never kept: its words may be those of the configuration. And nothing is that a session's own
servers listed: an index with such lists is helped by what is kept, and reports nothing.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from hashlib import blake2b
from itertools import islice
from typing import Final

import msgspec

from ..protocol.safe_text import whole
from ..protocol.version import VERSION
from .entries import ServerEntry
from .namespace import Target

_DIGEST: Final = 16  # bytes


@cache
def how_made() -> bytes:
    """What is made of the same tool depends on our version, on the tables of Python, and, between two versions of ours,
    on weights and stems: what a sample is made into shows that these are others."""
    from .ranking import ToolDocument

    sample = ToolDocument.of(
        "git-hub_createIssues",
        "createIssues",
        "git-hub-mcp",
        "Creates issues, running queries on the branches. It has been stopped by a matching policy; use the caches."
        " 搜索",
        title="Issue creation",
        schema={"properties": {"issueId": {"description": "Which one is updated", "enum": ["added"]}}},
    )
    made = (VERSION, sample.names, sample.stems, sample.points, sys.version_info[:2], sys.byteorder)
    return blake2b(repr(made).encode(), digest_size=_DIGEST).digest()


class _ToolRow(msgspec.Struct, array_like=True, gc=False):
    """A tool in a record: its digest, and its document without the words that all share. Thousands of these are made at
    once, which the garbage collector need not know of."""

    digest: bytes
    plain: str
    shown: str
    numbers: bytes
    points: bytes


_Tools = tuple[list[str], Mapping[bytes, _ToolRow]]  # the words of a record, and its rows by digest
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(tuple[list[str], list[_ToolRow]])


def key_of(entry: ServerEntry) -> str:
    """Under which key the record of this server is kept: as in the catalogue."""
    return f"{entry.definition_hash} {whole(entry.server)}"


class SearchCache(msgspec.Struct, frozen=True, eq=False):
    """The records that are known, by their keys. `on_news` is told, by key, of all tools of a server when something is
    to be kept of it. A record that it was told of is known, and empty."""

    records: dict[str, bytes] = msgspec.field(default_factory=dict[str, bytes])
    on_news: Callable[[Mapping[str, Sequence[Target]]], None] | None = None

    def recall(self, targets: Iterable[Target], key: Callable[[str], str]) -> Mapping[str, str]:
        """Give each of these tools what was made of it before. Returns the servers that have tools of which nothing is
        kept, with their keys. `key`: of a server."""
        from .ranking import ToolDocument

        keys, tools, missing = dict[str, str](), dict[str, _Tools](), dict[str, str]()
        for target in targets:
            if target.override is not None:
                continue
            server = target.server
            if server not in keys:
                keys[server] = key(server)
            record = self.records.get(keys[server])
            if record is None:  # what was read may have been by an index that reports nothing
                missing[server] = keys[server]
            elif not target.is_read:
                if server not in tools:
                    tools[server] = _tools_in(record)
                words, rows = tools[server]
                said = _said(target)
                if said is not None:
                    row = rows.get(_digest(said))
                    if row is None:
                        missing[server] = keys[server]
                    else:
                        target.remember(ToolDocument(row.plain, row.shown, words, row.points, row.numbers))
        return missing

    def report(self, targets: Sequence[Target], missing: Mapping[str, str]) -> None:
        """Tell of all tools of the servers that are `missing` some."""
        if self.on_news is None or not missing:
            return
        news = {key: list[Target]() for key in missing.values()}
        for target in targets:
            if target.server in missing and target.override is None:
                news[missing[target.server]].append(target)
        for key in news:
            self.records.setdefault(key, b"")
        self.on_news(news)


def record_of(targets: Iterable[Target], beside: bytes = b"") -> bytes:
    """A server's record. It keeps as many rows of the record `beside` as it has itself: another configuration may show
    the same tools by other names, and what is made for one would be lost to the other each time."""
    words: dict[str, int] = {}
    rows = list[_ToolRow]()
    for target in targets:
        said, document = _said(target), target.document
        if said is not None:
            numbers = array("I", [words.setdefault(stem, len(words)) for stem in document.stems])
            plain, shown = document.names
            rows.append(_ToolRow(_digest(said), plain, shown, numbers.tobytes(), document.points))
    made = {row.digest for row in rows}
    known, old = _tools_in(beside)
    others = (row for digest, row in old.items() if digest not in made)
    for row in islice(others, len(rows)):
        numbers = array("I", [words.setdefault(known[n], len(words)) for n in array("I", row.numbers)])
        rows.append(_ToolRow(row.digest, row.plain, row.shown, numbers.tobytes(), row.points))
    return _encoder.encode((list(words), rows))


def _said(target: Target) -> bytes | None:
    """All that search may read of a tool without an override. None if it cannot be kept: half a character, or what is
    no JSON, which only a server in our own process can say."""
    try:
        return _encoder.encode((target.name, target.server, target.kind, target.record))
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None


def _digest(said: bytes) -> bytes:
    return blake2b(said, digest_size=_DIGEST, key=how_made()).digest()


def _tools_in(record: bytes) -> _Tools:
    """What a record has; nothing if it cannot be understood."""
    try:
        words, rows = _decoder.decode(record) if record else ([], [])
        numbers = array("I", b"".join(row.numbers for row in rows))
    except (msgspec.MsgspecError, ValueError):
        return [], {}
    is_whole = all(len(row.numbers) == numbers.itemsize * len(row.points) for row in rows)
    if not is_whole or max(numbers, default=-1) >= len(words):
        return [], {}
    return words, {row.digest: row for row in rows}
