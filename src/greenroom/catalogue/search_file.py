"""What search has made of tools, on disk (`search_cache`): `catalogue.search` beside `catalogue.json`.

A record stands under the key of the server's entry in the catalogue, with the time when it was written and a checksum.
Records that are too old are dropped when others are written, and when the space is limited the newest come first.
A file or a record that is damaged, of another form, or not ours is as good as none: it is ignored, and replaced at the
next write. Nothing here raises, or is worth a line in a log: the catalogue has everything that this is made of.
Everything here blocks; call it from a thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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


_FORM: Final = "2"


class _SearchedTool(msgspec.Struct, array_like=True):
    at: float  # wall clock, seconds since the epoch
    checksum: bytes
    record: bytes


class _SearchFile(msgspec.Struct, array_like=True):
    form: str
    records: dict[str, _SearchedTool]


_as_file: Final = msgspec.msgpack.Decoder(_SearchFile)


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
                    kept[key] = _SearchedTool(now, _checksum(record), record)
                self.replace(msgspec.msgpack.encode(_SearchFile(_FORM, _that_fits(kept))))

    def _kept(self) -> dict[str, _SearchedTool]:
        try:
            file = _as_file.decode(self.read())
        except (OSError, BrokenFile, msgspec.MsgspecError, ValueError):
            return {}
        return file.records if file.form == _FORM else {}

    def _is_fresh(self, one: _SearchedTool, now: float) -> bool:
        return self.max_age <= 0 or 0 <= now - one.at <= self.max_age


def _that_fits(kept: Mapping[str, _SearchedTool]) -> dict[str, _SearchedTool]:
    left, found = bounds.CACHE_BYTES - 1_000, dict[str, _SearchedTool]()
    for key, one in sorted(kept.items(), key=lambda item: item[1].at, reverse=True):
        left -= len(one.record) + 4 * len(key) + 100
        if left < 0:
            break
        found[key] = one
    return found


def _whole(kept: _SearchedTool | None) -> bytes:
    """The record, if there is one and it is not damaged."""
    return kept.record if kept is not None and kept.checksum == _checksum(kept.record) else b""


def _checksum(record: bytes) -> bytes:
    return blake2b(record, digest_size=16).digest()
