"""The vectors of tools on disk: `catalogue.vectors` beside `catalogue.json`.

Each stands under the digest of the text that it was made of, with the time of its last use. The head names the model
that made them, and has a checksum. A file that is damaged, of another model or not ours is as good as none, and is
replaced by the next write. Vectors that were not used for long are dropped then, and those beyond the bound, the oldest
first. Nothing here raises. Everything here blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Final

import msgspec

from ..config.private_files import LOCK_TIMEOUT, BrokenFile, LockedFile, make_folder
from ..protocol.bounds import VECTORS

_FORM: Final = "1"


class _Head(msgspec.Struct, array_like=True):
    form: str
    model: str
    checksum: bytes
    records: bytes


_Records = dict[bytes, tuple[float, bytes]]  # by digest, the time of the last use and the vector
_head: Final = msgspec.msgpack.Decoder(_Head)
_records: Final = msgspec.msgpack.Decoder(_Records)


class VectorFile(LockedFile):
    """Of the model of this name, whose vectors have `width` bytes. Those that were not used for `max_age` seconds are
    not kept (0: no limit)."""

    def __init__(
        self, path: Path, model: str, width: int, *, max_age: float, lock_timeout: float = LOCK_TIMEOUT
    ) -> None:
        super().__init__(path, lock_timeout)
        self._model = model
        self._width = width
        self._max_age = max_age

    def load(self) -> dict[bytes, bytes]:
        """The vectors, by the digests of their texts."""
        return {digest: vector for digest, (_, vector) in self._kept().items()}

    def save(self, used: Mapping[bytes, bytes], now: float) -> None:
        """Write these beside what is there."""
        with suppress(OSError, ValueError):
            make_folder(self.path.parent)
            with self.locked():
                kept = {digest: one for digest, one in self._kept().items() if self._is_fresh(one[0], now)}
                kept |= {digest: (now, vector) for digest, vector in used.items()}
                newest = sorted(kept.items(), key=lambda item: item[1][0], reverse=True)[:VECTORS]
                records = msgspec.msgpack.encode(dict(newest))
                head = _Head(_FORM, self._model, _checksum(records), records)
                self.replace(msgspec.msgpack.encode(head))

    def _kept(self) -> _Records:
        try:
            head = _head.decode(self.read())
            if (head.form, head.model, head.checksum) != (_FORM, self._model, _checksum(head.records)):
                return {}
            kept = _records.decode(head.records)
        except (OSError, BrokenFile, msgspec.MsgspecError, ValueError):
            return {}
        return {digest: one for digest, one in kept.items() if len(one[1]) == self._width}

    def _is_fresh(self, at: float, now: float) -> bool:
        return self._max_age <= 0 or 0 <= now - at <= self._max_age


def digest_of(text: str) -> bytes:
    """Under what a text's vector stands."""
    return _checksum(text.encode("utf-8", "surrogatepass"))


def _checksum(records: bytes) -> bytes:
    return blake2b(records, digest_size=16).digest()
