"""The catalogue on disk: what every server listed, so that no server has to run to be searched.

There is one file for all projects of a user. An entry's key is (definition hash, server), so two projects that
call different things `github` neither see nor prune each other's. Reading takes no lock: the file is only ever
replaced whole. Writing is read, merge, replace under a file lock, so no process loses another's entry; of two
answers the one fetched later stays. Entries are removed when they are too old to be used.

The file is a cache. Whatever is wrong with it, the caller gets what could be read and a sentence for the log,
never an exception. A file that is not ours (torn, or of another version) is set aside, not deleted. For the same
reason there is no fsync: after a power failure an old or unreadable file costs one fetch per server, while an
fsync would slow down every save. Another user of the machine may have put something in the place of the file or
its lock. It is not read, followed or waited for (`_own_files`).

Entries stay undecoded until somebody needs them. Merging copies the bytes of the others, so a save costs about the
same for one entry as for a thousand. Each entry is read by itself. An entry that cannot be read, or an item in it
that is over the bounds, costs only itself, and never a start. Everything here blocks; call it from a thread.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import attrs
import msgspec

from .._own_files import NotOurs, make_folder, open_own, read_own
from ..protocol import bounds, lenient
from ..protocol.catalogue import Raw, ServerEntry
from ..protocol.halves import whole, whole_value
from ..protocol.jsonrpc import WireFault
from ..protocol.slices import finish
from ._items import split_object, take_object

VERSION: Final = 1
MAX_AGE: Final = 7 * 86_400.0
LOCK_TIMEOUT: Final = 5.0
CLOCK_SLACK: Final = 300.0  # seconds; a stamp this far ahead is another process's, not a wrong clock
MAX_BROKEN: Final = 5  # files set aside and kept; the last one is replaced


def default_cache_path() -> Path:
    """Where the catalogue is kept unless told otherwise: `catalogue.json` in the user's cache directory."""
    import platformdirs

    return platformdirs.user_cache_path("greenroom", appauthor=False) / "catalogue.json"


@attrs.frozen
class Loaded:
    """The fresh entries, by server, and what was wrong with the file, if anything."""

    entries: dict[str, ServerEntry]
    warning: str | None = None


_EMPTY: Final = msgspec.Raw(b"{}")
_DEEPEST: Final = bounds.DEPTH + 3  # an entry, its body, a list in it, an item of that


class _Body(msgspec.Struct, omit_defaults=True):
    """An entry in the file. Absent is unknown, an empty list is known to be empty."""

    tools: list[msgspec.Raw] | None = None
    resources: list[msgspec.Raw] | None = None
    templates: list[msgspec.Raw] | None = None
    prompts: list[msgspec.Raw] | None = None
    instructions: str | None = None
    server_info: msgspec.Raw = _EMPTY
    capabilities: msgspec.Raw = _EMPTY
    protocol_version: str | None = None
    problems: list[str] = []


class _Kept(msgspec.Struct):
    """An entry with what must be known without decoding it."""

    fetched_at: float
    revision: int
    body: msgspec.Raw

    def newer(self, other: _Kept | None) -> bool:
        return other is None or (self.fetched_at, self.revision) >= (other.fetched_at, other.revision)


class _File(msgspec.Struct):
    version: int
    entries: dict[str, msgspec.Raw]


class _Version(msgspec.Struct):
    version: int


class _BrokenError(Exception):
    """The file is not one of ours; says why. Never leaves this module."""


_as_file: Final = msgspec.json.Decoder(_File)
_as_version: Final = msgspec.json.Decoder(_Version)
_as_kept: Final = msgspec.json.Decoder(_Kept)
_as_body: Final = msgspec.json.Decoder(_Body)


class CatalogueFile:
    """The file at `path`.

    Entries older than `max_age` seconds do not count (0: no limit); a writer waits at most `lock_timeout`
    seconds for another. Nothing else is held between calls.
    """

    def __init__(self, path: Path, *, max_age: float = MAX_AGE, lock_timeout: float = LOCK_TIMEOUT) -> None:
        self.path = path
        self.max_age = max_age
        self.lock_timeout = lock_timeout

    def load(self, wanted: Mapping[str, str], now: float) -> Loaded:
        """What is known of the servers in `wanted` (name to definition hash) at `now`, epoch seconds.

        Left out are servers never connected, or with another definition then, or fetched too long ago or, by the
        stamp, in the future. Never raises.
        """
        try:
            kept, warning = _parse(self._read()), None
        except OSError as error:
            return Loaded({}, f"The catalogue cache cannot be read: {error}. Servers are asked again.")
        except _BrokenError:
            kept, warning = self._mend()
        found: dict[str, ServerEntry] = {}
        for server, definition_hash in wanted.items():
            one = kept.get(_key(server, definition_hash))
            if one is not None and self._fresh(one, now):
                entry = _entry(server, definition_hash, one)
                if entry is not None:
                    found[server] = entry
        return Loaded(found, warning)

    def save(self, entries: Iterable[ServerEntry], now: float) -> str | None:
        """Merge `entries` into the file and drop what is too old at `now`. Returns what went wrong, or None.

        An entry replaces an older one of the same server and definition, never a newer one. Never raises.
        """
        fresh, warning = _encoded(entries)
        try:
            make_folder(self.path.parent)
            with self._locked():
                kept, broken = self._read_or_set_aside()
                usable = {key: one for key, one in kept.items() if self._fresh(one, now)}
                newer = {key: one for key, one in fresh.items() if one.newer(usable.get(key))}
                self._replace({**usable, **newer})
        except OSError as error:
            return f"The catalogue cache was not written: {error}. Servers are asked again next time."
        return broken or warning

    def _fresh(self, one: _Kept, now: float) -> bool:
        """Young enough, and not from the future: such an entry would keep its place for ever."""
        age = now - one.fetched_at
        return age >= -CLOCK_SLACK and (age <= self.max_age or self.max_age <= 0)

    def _read(self) -> bytes:
        """The file's bytes. Raises `_BrokenError` for something that another user may have put there, or that is not a
        file; it is then set aside."""
        try:
            size = self.path.lstat().st_size
            data = read_own(self.path) if size <= bounds.CACHE_BYTES else b""
        except FileNotFoundError:
            return b""
        except NotOurs as error:
            raise _BrokenError(f"is not used ({(error.strerror or '').partition(':')[0]})") from None
        if size > bounds.CACHE_BYTES:
            raise _BrokenError(f"has more than {bounds.CACHE_BYTES:,} bytes")
        return data

    def _mend(self) -> tuple[dict[str, _Kept], str | None]:
        """What a reader does about a broken file: wait for the writers, look again, set it aside."""
        try:
            with self._locked():
                return self._read_or_set_aside()
        except OSError as error:
            return (
                {},
                f"The catalogue cache {self.path} is broken and stays: {error}. Remove it.",
            )

    def _read_or_set_aside(self) -> tuple[dict[str, _Kept], str | None]:
        """The file's entries; if it is broken, none, and a warning. Only under the lock."""
        try:
            return _parse(self._read()), None
        except _BrokenError as broken:
            aside = self._free_name()
            os.replace(self.path, aside)
            return (
                {},
                f"The catalogue cache {self.path} {broken}; set aside as {aside.name}, rebuilt.",
            )

    def _free_name(self) -> Path:
        names = [self.path.with_name(f"{self.path.name}.broken-{n}") for n in range(1, MAX_BROKEN + 1)]
        return next((name for name in names if not name.exists()), names[-1])

    def _replace(self, kept: dict[str, _Kept]) -> None:
        """Replace the file in one step, readable for its owner only."""
        self._sweep()
        data = msgspec.json.encode(_File(VERSION, _that_fits(kept)))
        descriptor, temporary = tempfile.mkstemp(".tmp", f".{self.path.name}.", self.path.parent)  # mode 0600
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
            os.replace(temporary, self.path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise

    def _sweep(self) -> None:
        """Remove what a killed writer left. Under the lock no temporary file is in use."""
        for leftover in self.path.parent.glob(f".{self.path.name}.*.tmp"):
            with suppress(OSError):
                leftover.unlink()

    @contextmanager
    def _locked(self) -> Generator[None]:
        """Hold the writers' lock. Raises `TimeoutError`, an `OSError`, when the lock is not free in time. When the
        task of a worker thread is cancelled, raises that cancellation: nobody who ends waits for a writer that
        hangs."""
        from filelock import FileLock

        place = self.path.with_name(self.path.name + ".lock")
        os.close(open_own(place, os.O_RDWR | os.O_CREAT))  # no link, no pipe, nobody else's to hold for ever
        lock = FileLock(place, timeout=self.lock_timeout, mode=0o600)
        with lock.acquire(poll_interval=0.01, cancel_check=_check_cancelled):
            yield


def _check_cancelled() -> bool:
    """False; raises in a worker thread whose task was cancelled."""
    from anyio import from_thread  # a command that only reads the file has no threads, and starts without it

    with suppress(RuntimeError):  # this is not a worker thread
        from_thread.check_cancelled()
    return False


def _key(server: str, definition_hash: str) -> str:
    return f"{definition_hash} {whole(server)}"


def _parse(data: bytes) -> dict[str, _Kept]:
    """The entries of a file's content; nothing of an empty one. Raises `_BrokenError`."""
    if not data:
        return {}
    try:
        try:
            file = lenient.decode(_as_file, data)
        except RecursionError:
            file = lenient.decode(_as_file, _without_deep_entries(data))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _BrokenError(_version_problem(data) or f"cannot be understood ({error})") from error
    if file.version != VERSION:
        raise _BrokenError(_version_problem(data))
    heads = {key: _head(raw) for key, raw in file.entries.items()}
    return {key: one for key, one in heads.items() if one is not None}


def _head(raw: msgspec.Raw) -> _Kept | None:
    """An entry without its content; None when it is not an entry."""
    try:
        return _as_kept.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _without_deep_entries(data: bytes) -> bytes:
    """A file without the parts that are nested deeper than a decoder goes. Raises `WireFault`."""
    parts = {key: value for key, value, _ in finish(split_object(data))}
    entries = finish(split_object(parts.get(b'"entries"', b"")))
    shallow = b",".join(b"%b:%b" % (key, value) for key, value, depth in entries if depth <= _DEEPEST)
    return b'{"version":%b,"entries":{%b}}' % (parts.get(b'"version"', b"null"), shallow)


def _that_fits(kept: Mapping[str, _Kept]) -> dict[str, msgspec.Raw]:
    """The entries to write; when the space is limited, the newest come first."""
    left, found = bounds.CACHE_BYTES - 1_000, dict[str, msgspec.Raw]()
    for key, one in sorted(kept.items(), key=lambda item: item[1].fetched_at, reverse=True):
        raw = msgspec.Raw(msgspec.json.encode(one))
        left -= len(bytes(raw)) + 6 * len(key) + 8
        if left < 0:
            break
        found[key] = raw
    return found


def _version_problem(data: bytes) -> str:
    """A sentence about a file of another version; empty for one that states none or ours."""
    with suppress(msgspec.MsgspecError, ValueError, RecursionError):
        version = lenient.decode(_as_version, data).version
        if version != VERSION:
            return f"is of version {version}, not {VERSION}"
    return ""


def _encoded(entries: Iterable[ServerEntry]) -> tuple[dict[str, _Kept], str | None]:
    """Entries in the form that is kept, and a warning about those that cannot be written as JSON."""
    kept: dict[str, _Kept] = {}
    warning = None
    for entry in entries:
        try:
            kept[_key(entry.server, entry.definition_hash)] = _kept(entry)
        except (ValueError, TypeError, RecursionError) as error:
            warning = (
                f'The catalogue of "{entry.server}" is not cached: {error}. It is asked again next time.'
            )
    return kept, warning


def _kept(entry: ServerEntry) -> _Kept:
    body = _Body(
        tools=_plain(entry.tools),
        resources=_plain(entry.resources),
        templates=_plain(entry.templates),
        prompts=_plain(entry.prompts),
        instructions=None if entry.instructions is None else whole(entry.instructions),
        server_info=_said(entry.server_info),
        capabilities=_said(entry.capabilities),
        protocol_version=entry.protocol_version,
        problems=[whole(problem) for problem in entry.problems],
    )
    return _Kept(entry.fetched_at, entry.revision, msgspec.Raw(msgspec.json.encode(body)))


def _said(record: Raw) -> msgspec.Raw:
    try:
        return msgspec.Raw(msgspec.json.encode(dict(record)))
    except UnicodeEncodeError:  # half a character: only a server in our own process can send one
        return msgspec.Raw(msgspec.json.encode(whole_value(dict(record))))


def _entry(server: str, definition_hash: str, kept: _Kept) -> ServerEntry | None:
    """The entry in its decoded form; None when it cannot be read."""
    try:
        body = _as_body.decode(kept.body)
        return ServerEntry(
            server=server,
            definition_hash=definition_hash,
            tools=_frozen(body.tools),
            resources=_frozen(body.resources),
            templates=_frozen(body.templates),
            prompts=_frozen(body.prompts),
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


def _frozen(records: list[msgspec.Raw] | None) -> tuple[Raw, ...] | None:
    """The records, without those over the bounds."""
    return None if records is None else tuple(one for one in map(_usable, records) if one is not None)


def _usable(record: msgspec.Raw) -> Raw | None:
    try:
        return take_object(record)
    except WireFault:
        return None
