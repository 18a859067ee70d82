"""The catalogue on disk: what every server listed, so that no server has to run to be searched.

There is one file for all projects of a user. An entry's key is (definition hash, server), so two projects that
call different things `github` neither see nor prune each other's. How a server last failed stands beside its entry,
under the same key, until the server lists what it has again. Writing is read, merge, replace under a file lock
(`config.private_files`), so no process loses another's entry; of two answers the one fetched later stays. Entries are
removed when they are too old to be used.

The file is a cache. Whatever is wrong with it, the caller gets what could be read and a sentence for the log,
never an exception. Another user of the machine may have put something in the place of the file or its lock. It is not
read, followed or waited for (`config.private_files`).

Entries stay undecoded until somebody needs them. Merging copies the bytes of the others, so a save costs about the
same for one entry as for a thousand. Each has a line of its own (`config.member_lines`) and is read by itself. An entry
that cannot be read, or an item in it that is over the bounds, costs only itself, and never a start. Everything here
blocks; call it from a thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from ..config.argument_checks import file_of
from ..config.definition_identity import definition_hash, pin_key
from ..config.member_lines import from_lines, in_lines
from ..config.model import Config, Settings
from ..config.private_files import LOCK_TIMEOUT, BrokenFile, LockedFile, cache_folder, make_folder
from ..protocol import bounds
from ..protocol.jsonrpc import encoding
from ..protocol.jsonrpc.terms import WireFault
from ..protocol.safe_text import whole, whole_value
from .entries import Failures, LastFailure, Raw, ServerEntry
from .fingerprints import PinKey
from .list_pages import split_object, take_object
from .search_cache import key_of
from .search_file import SearchFile
from .skills import fault_of

MEMORY: Final = ":memory:"


def open_store(place: str | os.PathLike[str] | None, settings: Settings) -> CatalogueStore:
    """The store of the catalogue: this user's file (None), the file at `place`, or only in memory
    (`:memory:`)."""
    if place == MEMORY:
        return MemoryStore()
    file = default_cache_path() if place is None else file_of(place, "cache_path")
    return FileStore(CatalogueFile(file, max_age=settings.cache_max_age))


VERSION: Final = 1
MAX_AGE: Final = 7 * 86_400.0
CLOCK_SLACK: Final = 300.0  # seconds; a stamp this far ahead is another process's, not a wrong clock


def default_cache_path() -> Path:
    """Where the catalogue is kept unless told otherwise: `catalogue.json` in the user's cache directory."""
    return cache_folder() / "catalogue.json"


class LoadedCache(msgspec.Struct, frozen=True):
    """The fresh entries and the last failures, by server, and what was wrong with the file, if anything. Of a server
    that was told different things of its clients, `entries` has the newest, and `variants` all. `searched`: what search
    has made of them, from the file beside it."""

    entries: dict[str, ServerEntry]
    warning: str | None = None
    failures: dict[str, LastFailure] = msgspec.field(default_factory=dict[str, LastFailure])
    variants: list[ServerEntry] = msgspec.field(default_factory=list[ServerEntry])
    searched: Mapping[str, bytes] = MappingProxyType({})


_T = TypeVar("_T")
_EMPTY: Final = msgspec.Raw(b"{}")
_DEEPEST: Final = bounds.DEPTH + 3  # an entry, its body, a list in it, an item of that


class _EntryBody(msgspec.Struct, omit_defaults=True):
    """An entry in the file. An absent list is unknown; an empty list is known to be empty."""

    tools: list[msgspec.Raw] | None = None
    resources: list[msgspec.Raw] | None = None
    templates: list[msgspec.Raw] | None = None
    prompts: list[msgspec.Raw] | None = None
    skills: list[msgspec.Raw] | None = None
    instructions: str | None = None
    server_info: msgspec.Raw = _EMPTY
    capabilities: msgspec.Raw = _EMPTY
    protocol_version: str | None = None
    problems: list[str] = []


class _StoredEntry(msgspec.Struct):
    """An entry, with the parts that must be known without decoding it."""

    fetched_at: float
    revision: int
    body: msgspec.Raw

    def newer(self, other: _StoredEntry | None) -> bool:
        return other is None or (self.fetched_at, self.revision) >= (other.fetched_at, other.revision)


class _StoreFile(msgspec.Struct):
    version: int
    entries: dict[str, msgspec.Raw]
    failures: dict[str, msgspec.Raw] = {}


class _StoredCatalogue(msgspec.Struct, frozen=True):
    """What is in a file, by key."""

    entries: dict[str, _StoredEntry] = msgspec.field(default_factory=dict[str, _StoredEntry])
    failures: dict[str, LastFailure] = msgspec.field(default_factory=dict[str, LastFailure])


class _Version(msgspec.Struct):
    version: int


_HEAD: Final = b'{"version":%d,"entries":{' % VERSION
_as_file: Final = msgspec.json.Decoder(_StoreFile)
_as_version: Final = msgspec.json.Decoder(_Version)
_as_kept: Final = msgspec.json.Decoder(_StoredEntry)
_as_line: Final = msgspec.json.Decoder(dict[str, _StoredEntry])
_as_body: Final = msgspec.json.Decoder(_EntryBody)
_as_failed: Final = msgspec.json.Decoder(LastFailure)
_NO_FAILURES: Final[Failures] = MappingProxyType({})


class CatalogueFile(LockedFile):
    """The file at `path`. Entries older than `max_age` seconds do not count (0: no limit)."""

    def __init__(self, path: Path, *, max_age: float = MAX_AGE, lock_timeout: float = LOCK_TIMEOUT) -> None:
        super().__init__(path, lock_timeout)
        self.max_age = max_age

    def load(self, wanted: Mapping[str, str], now: float) -> LoadedCache:
        """What is known of the servers in `wanted` (name to definition hash) at `now`, in seconds since the epoch.

        Left out are servers that never connected or had another definition, and entries that were fetched too long ago
        or, by their stamp, in the future. The same holds for failures; those before the last success are left out too.
        Never raises.
        """
        try:
            content, warning = _parse(self.read()), None
        except OSError as error:
            return LoadedCache({}, f"The catalogue cache cannot be read: {error}. Servers are asked again.")
        except BrokenFile:
            content, warning = self._mend()
        found: dict[str, ServerEntry] = {}
        failures: dict[str, LastFailure] = {}
        told_otherwise, variants = _told_otherwise(content.entries), list[ServerEntry]()
        for server, digest in wanted.items():
            key = _key(server, digest)
            one, failed = content.entries.get(key), content.failures.get(key)
            for told, its_key in (("", key), *told_otherwise.get(key, ())):
                each = content.entries.get(its_key)
                if each is None or not self._fresh(each.fetched_at, now):
                    continue
                entry = _entry(server, digest, each, told)
                if entry is not None:
                    one = each if one is None or each.newer(one) else one
                    variants.append(entry)
                    if server not in found or found[server].fetched_at < entry.fetched_at:
                        found[server] = entry
            if failed is not None and self._stands(failed, one, now):
                failures[server] = failed
        return LoadedCache(found, warning, failures, variants)

    def save(
        self, entries: Iterable[ServerEntry], now: float, failures: Failures = _NO_FAILURES
    ) -> str | None:
        """Merge `entries` and `failures` into the file and drop what is too old at `now`. Returns what went wrong, or
        None.

        An entry replaces an older one of the same server and definition, never a newer one. Never raises.
        """
        fresh, warning = _encoded(entries)
        try:
            make_folder(self.path.parent)
            with self.locked():
                content, broken = self._read_or_set_aside()
                usable = {
                    key: one for key, one in content.entries.items() if self._fresh(one.fetched_at, now)
                }
                newer = {key: one for key, one in fresh.items() if one.newer(usable.get(key))}
                merged = {**usable, **newer}
                failed = self._merged(content.failures, failures, merged, now)
                tail = b'},"failures":%b}' % msgspec.json.encode(failed)
                self.replace(in_lines(_HEAD, _that_fits(merged), tail))
        except OSError as error:
            return f"The catalogue cache was not written: {error}. Servers are asked again next time."
        return broken or warning

    def _merged(
        self,
        known: Mapping[str, LastFailure],
        news: Failures,
        entries: Mapping[str, _StoredEntry],
        now: float,
    ) -> dict[str, msgspec.Raw]:
        """The failures to write: the last of each server that has not worked since; the newest, if they are many."""
        found: dict[str, LastFailure | None] = dict(known)
        for (server, digest), one in news.items():
            key = _key(server, digest)
            found[key] = None if one is None else replace(one, why=whole(one.why)[: bounds.FAILURE])
        standing = ((key, one) for key, one in found.items() if one is not None)
        left = [(key, one) for key, one in standing if self._stands(one, entries.get(key), now)]
        newest = sorted(left, key=lambda item: item[1].at, reverse=True)[: bounds.FAILURES]
        return {key: msgspec.Raw(msgspec.json.encode(one)) for key, one in newest}

    def _stands(self, one: LastFailure, entry: _StoredEntry | None, now: float) -> bool:
        """Whether the failure still counts: it is fresh, and the server has not listed what it has since then."""
        return self._fresh(one.at, now) and (entry is None or entry.fetched_at <= one.at)

    def _fresh(self, at: float, now: float) -> bool:
        """Whether `at` is not too old, and not in the future: such an entry would keep its place for ever."""
        age = now - at
        return age >= -CLOCK_SLACK and (age <= self.max_age or self.max_age <= 0)

    def _mend(self) -> tuple[_StoredCatalogue, str | None]:
        """What a reader does about a broken file: wait for the writers, look again, set it aside."""
        try:
            with self.locked():
                return self._read_or_set_aside()
        except OSError as error:
            return (
                _StoredCatalogue(),
                f"The catalogue cache {self.path} is broken and stays: {error}. Remove it.",
            )

    def _read_or_set_aside(self) -> tuple[_StoredCatalogue, str | None]:
        """What is in the file; if it is broken, nothing, and a warning. Only under the lock."""
        try:
            return _parse(self.read()), None
        except BrokenFile as broken:
            return (
                _StoredCatalogue(),
                f"The catalogue cache {self.path} {broken}; set aside as {self.set_aside()}, rebuilt.",
            )


def _key(server: str, definition_hash: str, told: str = "") -> str:
    """`told`: what the server was told of its client, if it was told anything."""
    return f"{definition_hash}{f'~{told}' if told else ''} {whole(server)}"


def _told_otherwise(keys: Iterable[str]) -> dict[str, list[tuple[str, str]]]:
    """The entries of servers that were told something of their client. By the key that the server has if it was told
    nothing: what it was told, and the key of that entry."""
    found: dict[str, list[tuple[str, str]]] = {}
    for key in keys:
        head, _, server = key.partition(" ")
        if "~" in head:
            definition_hash, _, told = head.partition("~")
            found.setdefault(f"{definition_hash} {server}", []).append((told, key))
    return found


def _parse(data: bytes) -> _StoredCatalogue:
    """What is in a file; nothing in an empty one. Raises `BrokenFile`."""
    if not data:
        return _StoredCatalogue()
    try:
        lines = from_lines(data, _HEAD, _as_line)
        if lines is not None:
            entries, frame = lines
            return _StoredCatalogue(entries, _each(_as_failed, _as_file.decode(frame).failures))
        try:
            file = encoding.decode(_as_file, data)
        except RecursionError:
            file = encoding.decode(_as_file, _without_deep_entries(data))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BrokenFile(_version_problem(data) or f"cannot be understood ({error})") from error
    if file.version != VERSION:
        raise BrokenFile(_version_problem(data))
    return _StoredCatalogue(_each(_as_kept, file.entries), _each(_as_failed, file.failures))


def _each(decoder: msgspec.json.Decoder[_T], parts: Mapping[str, msgspec.Raw]) -> dict[str, _T]:
    """Those of the parts that are what they should be; entries without their content."""
    found: dict[str, _T] = {}
    for key, raw in parts.items():
        with suppress(msgspec.MsgspecError, ValueError, RecursionError):
            found[key] = decoder.decode(raw)
    return found


def _without_deep_entries(data: bytes) -> bytes:
    """A file without the parts that are nested deeper than a decoder goes. Raises `WireFault`."""
    parts = {key: value for key, value, _ in split_object(data)}
    entries = split_object(parts.get(b'"entries"', b""))
    shallow = b",".join(b"%b:%b" % (key, value) for key, value, depth in entries if depth <= _DEEPEST)
    return b'{"version":%b,"entries":{%b}}' % (parts.get(b'"version"', b"null"), shallow)


def _that_fits(kept: Mapping[str, _StoredEntry]) -> Iterator[tuple[str, bytes]]:
    """The entries to write. When the space is limited, the newest come first."""
    left = bounds.CACHE_BYTES - 1_000
    for key, one in sorted(kept.items(), key=lambda item: item[1].fetched_at, reverse=True):
        written = msgspec.json.encode(one)
        left -= len(written) + 6 * len(key) + 8
        if left < 0:
            return
        yield key, written


def _version_problem(data: bytes) -> str:
    """A sentence about a file of another version; empty for one that states none or ours."""
    with suppress(msgspec.MsgspecError, ValueError, RecursionError):
        version = encoding.decode(_as_version, data).version
        if version != VERSION:
            return f"is of version {version}, not {VERSION}"
    return ""


def _encoded(entries: Iterable[ServerEntry]) -> tuple[dict[str, _StoredEntry], str | None]:
    """Entries in the form that is kept, and a warning about those that cannot be written as JSON."""
    kept: dict[str, _StoredEntry] = {}
    warning = None
    for entry in entries:
        try:
            kept[_key(entry.server, entry.definition_hash, entry.told)] = _kept(entry)
        except (ValueError, TypeError, RecursionError) as error:
            warning = (
                f'The catalogue of "{entry.server}" is not cached: {error}. It is asked again next time.'
            )
    return kept, warning


def _kept(entry: ServerEntry) -> _StoredEntry:
    body = _EntryBody(
        tools=_plain(entry.tools),
        resources=_plain(entry.resources),
        templates=_plain(entry.templates),
        prompts=_plain(entry.prompts),
        skills=_plain(entry.skills),
        instructions=None if entry.instructions is None else whole(entry.instructions),
        server_info=_said(entry.server_info),
        capabilities=_said(entry.capabilities),
        protocol_version=entry.protocol_version,
        problems=[whole(problem) for problem in entry.problems],
    )
    return _StoredEntry(entry.fetched_at, entry.revision, msgspec.Raw(msgspec.json.encode(body)))


def _said(record: Raw) -> msgspec.Raw:
    try:
        return msgspec.Raw(msgspec.json.encode(dict(record)))
    except UnicodeEncodeError:  # half a character: only a server in our own process can send one
        return msgspec.Raw(msgspec.json.encode(whole_value(dict(record))))


def _entry(server: str, definition_hash: str, kept: _StoredEntry, told: str) -> ServerEntry | None:
    """The entry in its decoded form; None when it cannot be read."""
    try:
        body = _as_body.decode(kept.body)
        return ServerEntry(
            server=server,
            definition_hash=definition_hash,
            told=told,
            tools=_frozen(body.tools),
            resources=_frozen(body.resources),
            templates=_frozen(body.templates),
            prompts=_frozen(body.prompts),
            skills=_frozen(body.skills, fault_of),
            instructions=body.instructions,
            server_info=take_object(body.server_info),
            capabilities=take_object(body.capabilities),
            protocol_version=body.protocol_version,
            problems=tuple(body.problems),
            fetched_at=kept.fetched_at,
            revision=kept.revision,
        )
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _plain(records: tuple[Raw, ...] | None) -> list[msgspec.Raw] | None:
    """Encode each by itself: a thread that encodes thousands at once would block all others."""
    return None if records is None else [_said(record) for record in records]


def _frozen(
    records: list[msgspec.Raw] | None, fault_of: Callable[[Raw], str] | None = None
) -> tuple[Raw, ...] | None:
    """The records, without those over the bounds, and without those that have a fault."""
    if records is None:
        return None
    found = (one for one in map(_usable, records) if one is not None)
    return tuple(one for one in found if fault_of is None or not fault_of(one))


def _usable(record: msgspec.Raw) -> Raw | None:
    try:
        return take_object(record)
    except WireFault:
        return None


class Store(Protocol):
    """Where entries are kept: the file of this user, or a test's memory."""

    blocks: bool  # its functions do I/O: call them in a thread

    def save(self, entries: Mapping[str, ServerEntry], failures: Failures) -> str | None:
        """Merge `entries` (by server) and `failures` into what is there; what went wrong, in words. Raises nothing."""
        ...


class NoStore:
    blocks = False

    def save(self, entries: Mapping[str, ServerEntry], failures: Failures) -> str | None:
        return None


class CatalogueStore(Store, Protocol):
    """A store that can also be read, at boot."""

    def load(self, wanted: Mapping[str, str]) -> LoadedCache:
        """What is fresh of the servers in `wanted` (name to definition hash)."""
        ...


class MemoryStore(msgspec.Struct):
    entries: dict[str, ServerEntry] = msgspec.field(default_factory=dict[str, ServerEntry])
    blocks: bool = False
    failures: dict[tuple[str, str], LastFailure | None] = msgspec.field(
        default_factory=dict[tuple[str, str], "LastFailure | None"]
    )

    def load(self, wanted: Mapping[str, str]) -> LoadedCache:
        entries = {name: e for name, e in self.entries.items() if wanted.get(name) == e.definition_hash}
        failures = {name: found for name in wanted if (found := self.failures.get((name, wanted[name])))}
        return LoadedCache(entries, failures=failures)

    def save(self, entries: Mapping[str, ServerEntry], failures: Failures) -> str | None:
        self.entries.update(entries)
        self.failures.update(failures)
        return None


class FileStore(msgspec.Struct):
    file: CatalogueFile
    blocks: bool = True

    @property
    def searched(self) -> SearchFile:
        """What search has made of the tools in it."""
        return SearchFile(self.file.path, max_age=self.file.max_age)

    def load(self, wanted: Mapping[str, str]) -> LoadedCache:
        loaded = self.file.load(wanted, time.time())
        return replace(loaded, searched=self.searched.load(map(key_of, loaded.entries.values())))

    def save(self, entries: Mapping[str, ServerEntry], failures: Failures) -> str | None:
        return self.file.save(entries.values(), time.time(), failures)


def own_folder(store: CatalogueStore) -> Path | None:
    """The folder where a room with this store may keep files; None: it is to leave none behind."""
    return store.file.path.parent if isinstance(store, FileStore) else None


def catalogue_keys(config: Config, servers: Iterable[str] | None = None) -> dict[str, str]:
    """The definition hash of each of these servers (None: of all), for the current working directory and environment.
    Looks for files in the directory, so it may block."""
    directory = _directory()
    environ = dict(os.environ)  # read thousands of times, and `os.environ` decodes each time
    exists = _in_folder(directory)
    names = config.servers if servers is None else config.servers.keys() & servers
    return {
        name: definition_hash(config.servers[name], environ, directory, config.settings, exists)
        for name in names
    }


def pin_keys(config: Config, hashes: Mapping[str, str] | None = None) -> dict[str, PinKey]:
    """The key of every server's pinned definitions. `hashes`: its `catalogue_keys`, if they are known."""
    directory = _directory()
    hashes = catalogue_keys(config) if hashes is None else hashes
    return {
        name: PinKey(hashes[name], pin_key(definition, directory))
        for name, definition in config.servers.items()
    }


def _directory() -> str:
    try:
        return os.getcwd()
    except OSError:  # the directory was removed, so relative paths lead nowhere
        return ""


def _in_folder(directory: str) -> Callable[[str], bool]:
    """Whether a path exists in the folder. The folder is listed once, for nearly nothing that is asked for is there."""

    @cache
    def names() -> frozenset[str] | None:
        try:
            return frozenset(name.casefold() for name in os.listdir(directory or "."))
        except OSError:  # it may still be entered
            return None

    def exists(path: str) -> bool:
        there = names()
        first = path.replace("\\", "/").partition("/")[0].casefold()
        return (there is None or first in there) and os.path.exists(os.path.join(directory, path))

    return exists
