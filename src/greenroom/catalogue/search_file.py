"""What search has made of tools, on disk (`search_cache`): `catalogue.search` beside `catalogue.json`.

A record stands under the key of the server's entry in the catalogue, with the time when it was written and a checksum.
Records that are too old are dropped when others are written, and when the space is limited the newest come first.
A file or a record that is damaged, of another form, or not ours is as good as none: it is ignored, and replaced at the
next write. Each record is read and written by itself: the file may have tens of megabytes, and a decoder or an encoder
that takes them in one go keeps the interpreter's lock meanwhile. Nothing here raises, or is worth a line in a log: the
catalogue has everything that this is made of. Everything here blocks; call it from a thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from ..config.private_files import LOCK_TIMEOUT, BrokenFile, LockedFile, make_folder
from ..protocol import bounds
from .search_cache import record_of

if TYPE_CHECKING:
    from .namespace import Target


_FORM: Final = (
    b"greenroom search 3\n"  # what the file begins with; of each record follow its length, and then it
)
_LENGTH: Final = 4  # bytes


class _SearchedTool(msgspec.Struct, array_like=True):
    key: str
    at: float  # wall clock, seconds since the epoch
    checksum: bytes
    record: bytes


_as_record: Final = msgspec.msgpack.Decoder(_SearchedTool)


class SearchFile(LockedFile):
    """The file that belongs to the catalogue at `catalogue`. Records older than `max_age` seconds are not kept (0: no
    limit)."""

    def __init__(self, catalogue: Path, *, max_age: float, lock_timeout: float = LOCK_TIMEOUT) -> None:
        super().__init__(catalogue.with_name(f"{catalogue.name.removesuffix('.json')}.search"), lock_timeout)
        self.max_age = max_age

    def load(self, wanted: Iterable[str]) -> dict[str, bytes]:
        """The records of these keys."""
        kept = self._kept()
        found = {key: kept[key] for key in wanted if key in kept}
        return {key: record for key, one in found.items() if (record := _whole(one))}

    def save(self, news: Mapping[str, Sequence[Target]], now: float) -> None:
        """Write what search has made of these tools, by key, beside what is there."""
        with suppress(OSError, ValueError):
            make_folder(self.path.parent)
            with self.locked():
                kept = {key: one for key, one in self._kept().items() if self._is_fresh(one, now)}
                for key, targets in news.items():
                    record = record_of(targets, _whole(kept.get(key)))
                    kept[key] = _SearchedTool(key, now, _checksum(record), record)
                self.replace(_written(kept))

    def _kept(self) -> dict[str, _SearchedTool]:
        found: dict[str, _SearchedTool] = {}
        try:
            data = self.read()
            at = len(_FORM) if data.startswith(_FORM) else len(data)
            while at < len(data):
                begins = at + _LENGTH
                at = begins + int.from_bytes(data[at:begins], "big")
                one = _as_record.decode(data[begins:at])
                found[one.key] = one
        except (OSError, BrokenFile, msgspec.MsgspecError, ValueError):
            return {}
        return found

    def _is_fresh(self, one: _SearchedTool, now: float) -> bool:
        return self.max_age <= 0 or 0 <= now - one.at <= self.max_age


def _written(kept: Mapping[str, _SearchedTool]) -> Iterator[bytes]:
    """The pieces of the file."""
    left = bounds.CACHE_BYTES - len(_FORM)
    yield _FORM
    for one in sorted(kept.values(), key=lambda one: one.at, reverse=True):
        piece = msgspec.msgpack.encode(one)
        left -= _LENGTH + len(piece)
        if left < 0:
            return
        yield len(piece).to_bytes(_LENGTH, "big") + piece


def _whole(kept: _SearchedTool | None) -> bytes:
    """The record, if there is one and it is not damaged."""
    return kept.record if kept is not None and kept.checksum == _checksum(kept.record) else b""


def _checksum(record: bytes) -> bytes:
    return blake2b(record, digest_size=16).digest()
