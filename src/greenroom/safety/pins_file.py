"""The pins on disk: what each tool was when it was first shown (`catalogue.fingerprints`).

There is one file for all projects of a user, beside the catalogue. An entry's key is that of the server's entry in the
catalogue; a key that is new inherits (`found_in`). Every change is made on what the file says at that
moment, under its lock. So when two rooms see a server for the first time, the second one compares with what the first
one saw, and nobody's acceptance is lost.

A file that cannot be used is set aside, with a warning: whatever servers list next is then taken for the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from ..catalogue.entries import DefinitionPins, Raw
from ..catalogue.fingerprints import (
    MEANING_LENGTH,
    PinKey,
    agree,
    changes,
    found_in,
    is_by_meaning,
    kept_as,
    kind_of,
    remembered_print,
    too_many,
)
from ..catalogue.store import CatalogueStore, FileStore
from ..config.member_lines import from_lines, in_lines
from ..config.private_files import BrokenFile, LockedFile, make_folder
from ..protocol import bounds
from ..protocol.jsonrpc import encoding

_MOST: Final = 20_000  # items of one server that are remembered
_PLACES: Final = frozenset({"resource", "template"})
_WAS_BYTES: Final = 1 << 18  # of one server's definitions that are kept as they were before they changed
_FLAPS: Final = 3  # so many changes within a day
_DAY: Final = 86_400.0


class ServerPins(msgspec.Struct, omit_defaults=True):
    """The pins of one server, as they stand in the file. All times are of the wall clock."""

    since: float  # when it was first known
    seen: float = 0.0  # when it last listed its tools
    tools: dict[str, str] = {}  # by the server's own names; "": no hash was taken
    changed: dict[str, str] = {}  # the last definition of tools that have changed
    turns: dict[str, list[float]] = {}  # when tools last changed
    origin: str = ""  # none: written when the origin was the key
    was: dict[str, Raw] = {}  # what a person is shown of them as they were before

    def copy(self) -> ServerPins:
        turns = {tool: list(times) for tool, times in self.turns.items()}
        return replace(
            self, tools=dict(self.tools), changed=dict(self.changed), turns=turns, was=dict(self.was)
        )

    def learn(self, prints: Mapping[str, str], now: float) -> bool:
        """Compare what the server lists `now` with its pins, and pin what is new. Returns whether something is to be
        written."""
        is_news = False
        self._forget_places(prints)
        for tool, print_ in prints.items():
            known = self.tools.get(tool)
            if known is None and len(self.tools) < _MOST:
                self.tools[tool], is_news = remembered_print(print_), True
            elif not print_ or (known and is_by_meaning(known) and not is_by_meaning(print_)):
                continue  # the latter was not seen now: a room remembers it from before there were meanings
            elif known == "" or (known and not is_by_meaning(known) and len(print_) == MEANING_LENGTH):
                self.tools[tool], is_news = remembered_print(print_), True  # by a room that has compared it
            elif known is not None and agree(known, print_):
                if known != remembered_print(print_):
                    self.tools[tool], is_news = remembered_print(print_), True
                if self.changed.pop(tool, None) is not None:
                    self.was.pop(tool, None)
                    is_news = self._turned(tool, now)
            elif tool not in self.changed or not agree(self.changed[tool], print_):
                self.changed[tool], is_news = print_, self._turned(tool, now)
        return is_news

    def keep(self, before: Mapping[str, Raw]) -> None:
        """Keep how changed tools were before, of which this is what a person is shown; as far as there is room."""
        size = sum(map(_size, self.was.values()))
        for tool, record in before.items():
            if tool not in self.changed or tool in self.was or size + _size(record) > _WAS_BYTES:
                continue
            self.was[tool] = record
            size += _size(record)

    def _forget_places(self, prints: Mapping[str, str]) -> None:
        """Make room for what is new by forgetting resources that are not listed, those first that were known first. A
        server may list other files each day, and nothing else should be taken for changed because of that."""
        over = len(self.tools) + sum(pin not in self.tools for pin in prints) - _MOST
        if over > 0:
            kept = {*prints, *self.changed}
            gone = [pin for pin in self.tools if kind_of(pin) in _PLACES and pin not in kept]
            for pin in gone[:over]:
                del self.tools[pin]
                self.turns.pop(pin, None)

    def _turned(self, tool: str, now: float) -> bool:
        self.turns[tool] = [*self.turns.get(tool, ()), now][-_FLAPS:]
        return True

    def accept(self, tools: Iterable[str] | None = None, shown: Mapping[str, str] | None = None) -> list[str]:
        """Accept the present definitions of changed tools (None: of all), if they still are those that were `shown`.
        Returns these tools."""
        now = self.changed if shown is None else shown
        taken = [
            tool
            for tool in (list(self.changed) if tools is None else tools)
            if tool in self.changed and tool in now and agree(self.changed[tool], now[tool])
        ]
        for tool in taken:
            self.tools[tool] = remembered_print(self.changed.pop(tool))
            self.was.pop(tool, None)
        return taken

    @property
    def flapping(self) -> frozenset[str]:
        """The tools that have changed several times within a day."""
        return frozenset(
            tool
            for tool, times in self.turns.items()
            if len(times) == _FLAPS and times[-1] - times[0] <= _DAY
        )

    @property
    def pinned(self) -> DefinitionPins:
        return DefinitionPins(
            {tool: changes(self.tools.get(tool, ""), new, tool) for tool, new in self.changed.items()},
            self.flapping & self.changed.keys(),
            dict(self.was),
        )


def _size(record: Raw) -> int:
    return len(msgspec.json.encode(record))


Change = Callable[[str, ServerPins | None], ServerPins | None]


class PinStore(Protocol):
    """Where pins are kept. See `PinsFile`."""

    def load(self, wanted: Mapping[str, PinKey]) -> tuple[dict[str, ServerPins], str | None]: ...

    def change(
        self, wanted: Mapping[str, PinKey], change: Change
    ) -> tuple[dict[str, ServerPins], str | None]: ...


class MemoryPins(msgspec.Struct):
    kept: dict[str, ServerPins] = msgspec.field(default_factory=dict[str, ServerPins])

    def load(self, wanted: Mapping[str, PinKey]) -> tuple[dict[str, ServerPins], str | None]:
        return _of(self.kept, wanted), None

    def change(
        self, wanted: Mapping[str, PinKey], change: Change
    ) -> tuple[dict[str, ServerPins], str | None]:
        found, _ = self.load(wanted)
        for name, key in wanted.items():
            after = change(name, found.get(name))
            if after is not None:
                self.kept[kept_as(name, key.key)] = replace(after, origin=key.origin)
        return self.load(wanted)


def pin_store(store: CatalogueStore) -> PinStore:
    return pins_file(store.file.path) if isinstance(store, FileStore) else MemoryPins()


def pins_file(catalogue: Path) -> PinsFile:
    """The pins that belong to the catalogue's file: `catalogue.pins.json` beside `catalogue.json`."""
    return PinsFile(catalogue.with_name(f"{catalogue.stem}.pins.json"))


VERSION: Final = 1


class _PinsDocument(msgspec.Struct):
    version: int
    servers: dict[str, ServerPins]


_HEAD: Final = b'{"version":%d,"servers":{' % VERSION
_TAIL: Final = b"}}"
_as_file: Final = msgspec.json.Decoder(_PinsDocument)
_as_line: Final = msgspec.json.Decoder(dict[str, ServerPins])


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
        except BrokenFile:
            return self.change(wanted, lambda _, pins: pins)
        return _of(kept, wanted), None

    def change(
        self, wanted: Mapping[str, PinKey], change: Change
    ) -> tuple[dict[str, ServerPins], str | None]:
        """Let `change` return the pins of these servers from now on, given the present ones (None: there are none).
        Returns them, and a warning in words. Never raises."""
        try:
            make_folder(self.path.parent)
            with self.locked():
                warning = None
                try:
                    kept = _parse(self.read())
                except BrokenFile as broken:
                    kept = dict[str, ServerPins]()
                    warning = (
                        f"The pinned definitions {self.path} {broken}; set aside as {self.set_aside()}. What servers "
                        "list next is taken for the first."
                    )
                found = _of(kept, wanted)
                for name, key in wanted.items():
                    after = change(name, found.get(name))
                    if after is not None:
                        kept[kept_as(name, key.key)] = replace(after, origin=key.origin)
                for name in too_many(kept, wanted.values()):
                    del kept[name]
                self.replace(_lines(kept))
        except (OSError, ValueError) as error:
            text = f"The pinned definitions were not written: {error}."
            return {}, f"{text} The next gateway does not notice what has changed by then."
        return _of(kept, wanted), warning


def _of(kept: Mapping[str, ServerPins], wanted: Mapping[str, PinKey]) -> dict[str, ServerPins]:
    return {name: one.copy() for name, one in found_in(kept, wanted).items()}


def _parse(data: bytes) -> dict[str, ServerPins]:
    """The servers in the content of a file; none in an empty one. Raises `BrokenFile`."""
    if not data:
        return {}
    lines = from_lines(data, _HEAD, _as_line)
    if lines is not None and lines[1] == _HEAD + _TAIL:
        return lines[0]
    try:
        file = encoding.decode(_as_file, data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BrokenFile(f"cannot be understood ({error})") from error
    if file.version != VERSION:
        raise BrokenFile(f"is of version {file.version}, not {VERSION}")
    return file.servers


def _lines(kept: Mapping[str, ServerPins]) -> Iterator[bytes]:
    """The content of the file. If it would be too large, those servers are left out that were not seen for longest."""
    written = {key: msgspec.json.encode(one) for key, one in kept.items()}
    while written and sum(map(len, in_lines(_HEAD, written.items(), _TAIL))) > bounds.CACHE_BYTES:
        oldest = sorted(written, key=lambda key: kept[key].seen)
        for key in oldest[: max(1, len(oldest) // 4)]:
            del written[key]
    return in_lines(_HEAD, written.items(), _TAIL)
