"""The pins on disk: what each tool was when it was first shown (`protocol.pinning`).

There is one file for all projects of a user, beside the catalogue. An entry's key is that of the server's entry in the
catalogue; a key that is new inherits (`protocol.pinning.found_in`). Every change is made on what the file says at that
moment, under its lock. So when two rooms see a server for the first time, the second one compares with what the first
one saw, and nobody's acceptance is lost.

A file that cannot be used is set aside, with a warning: whatever servers list next is then taken for the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from .._own_files import make_folder
from ..protocol import bounds, lenient
from ..protocol.pinning import PinKey, ServerPins, found_in, kept_as, too_many
from ._locked_file import Broken, LockedFile

VERSION: Final = 1


class _Server(msgspec.Struct, omit_defaults=True):
    since: float
    seen: float = 0.0
    tools: dict[str, str] = {}
    changed: dict[str, str] = {}
    turns: dict[str, list[float]] = {}
    origin: str = ""  # none: written when the origin was the key

    def pins(self) -> ServerPins:
        return ServerPins(self.since, self.seen, self.tools, self.changed, self.turns, self.origin).copy()

    @classmethod
    def of(cls, pins: ServerPins, origin: str) -> _Server:
        return cls(pins.since, pins.seen, pins.tools, pins.changed, pins.turns, origin)


class _File(msgspec.Struct):
    version: int
    servers: dict[str, _Server]


_as_file: Final = msgspec.json.Decoder(_File)

Change = Callable[[str, ServerPins | None], ServerPins | None]


class PinsFile(LockedFile):
    """The pins of this user, in the file at `path`."""

    def load(self, wanted: Mapping[str, PinKey]) -> tuple[dict[str, ServerPins], str | None]:
        """The pins of the servers in `wanted` (by name), and a warning in words. Never raises."""
        try:
            kept = _parse(self.read())
        except OSError as error:
            return (
                {},
                f"The pinned definitions cannot be read: {error}. Changes of tools are not noticed now.",
            )
        except Broken:
            return self.change(wanted, lambda _, pins: pins)
        return _of(kept, wanted), None

    def change(
        self, wanted: Mapping[str, PinKey], change: Change
    ) -> tuple[dict[str, ServerPins], str | None]:
        """Let `change` say what the pins of these servers are from now on, given what they are (None: there are none).
        Returns them, and a warning in words. Never raises."""
        try:
            make_folder(self.path.parent)
            with self.locked():
                warning = None
                try:
                    kept = _parse(self.read())
                except Broken as broken:
                    kept = dict[str, _Server]()
                    warning = (
                        f"The pinned definitions {self.path} {broken}; set aside as {self.set_aside()}. What servers "
                        "list next is taken for the first."
                    )
                found = _of(kept, wanted)
                for name, key in wanted.items():
                    after = change(name, found.get(name))
                    if after is not None:
                        kept[kept_as(name, key.key)] = _Server.of(after, key.origin)
                for name in too_many(kept, wanted.values()):
                    del kept[name]
                self.replace(_encoded(kept))
        except (OSError, ValueError) as error:
            return {}, f"The pinned definitions were not written: {error}."
        return _of(kept, wanted), warning


def _of(kept: Mapping[str, _Server], wanted: Mapping[str, PinKey]) -> dict[str, ServerPins]:
    return {name: one.pins() for name, one in found_in(kept, wanted).items()}


def _parse(data: bytes) -> dict[str, _Server]:
    """The servers of a file's content; nothing of an empty one. Raises `Broken`."""
    if not data:
        return {}
    try:
        file = lenient.decode(_as_file, data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Broken(f"cannot be understood ({error})") from error
    if file.version != VERSION:
        raise Broken(f"is of version {file.version}, not {VERSION}")
    return file.servers


def _encoded(kept: dict[str, _Server]) -> bytes:
    """The file's content. If it is too large, without the servers that were not seen for longest."""
    data = msgspec.json.encode(_File(VERSION, kept))
    oldest = sorted(kept, key=lambda key: kept[key].seen)
    while len(data) > bounds.CACHE_BYTES and oldest:
        for key in oldest[: max(1, len(oldest) // 4)]:
            del kept[key]
        oldest = sorted(kept, key=lambda key: kept[key].seen)
        data = msgspec.json.encode(_File(VERSION, kept))
    return data
