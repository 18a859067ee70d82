"""What an HTTP API has: its operations, read from a document and from tools written by hand.

A document is a file, or it is fetched from its URL: with each connect, because that costs nothing where there is
neither process nor session, and only if it has changed (`ETag`). What came last is kept in a folder of ours, and used
where the URL cannot be had, with a note. The credentials of a server go with the request only to the origin that they
are for.

`specHash` is compared with what was read, wherever that came from; another document is refused before it is looked
into. What it says of servers is never used: requests go to the URL in the configuration.

Reading a document takes a tenth of a second where it is large, so it is done in the thread for long work of the
catalogue. It ends when nobody waits for it any more, so a connect that has given up holds up no other one. Sessions
that have a connection each share what was read: it is kept as long as one of them uses it.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlsplit
from weakref import WeakValueDictionary

import anyio
import attrs
from anyio import from_thread

from ...config.model import ServerDefinition
from ...config.private_files import make_own_folder, read_own, read_regular, replacing
from ...config.references import is_url
from ...config.trust import document_print
from ...openapi.document import DOCUMENT_BYTES, SecurityScheme, read_document
from ...openapi.filters import Selection, chosen, unmatched
from ...openapi.http_tools import read_tools
from ...openapi.inputs import ConfiguredNames
from ...openapi.operation import Operation
from ...protocol.errors import ConnectFailed
from ..peer import LostReason, connect_failed
from ..timers import in_time
from ..workers import CATALOGUE, aside
from .http_bounds import read_raw
from .http_client import exchanged, make_client, request_to
from .http_faults import ExchangeBroken, ExchangeFault, refusal_in_words

if TYPE_CHECKING:
    import httpx2

_FETCHED_WITHIN: Final = 20.0  # seconds
_CONNECT_WITHIN: Final = 10.0
_LOGINS: Final = 3  # ways to log in that are named


@attrs.frozen(eq=False)
class Api:
    """What one HTTP API has."""

    operations: Mapping[str, Operation]
    title: str = ""
    version: str = ""
    notes: tuple[str, ...] = ()
    logins: Mapping[str, SecurityScheme] = attrs.field(factory=dict[str, SecurityScheme], repr=False)

    def wants(self, operation: Operation) -> str:
        """What a request of this operation needs to be let in, as the document says, and where it is configured; empty
        where that says nothing of use."""
        schemes = (self.logins.get(name) for one in operation.security for name in sorted(one))
        words = dict.fromkeys(each.in_words for each in schemes if each is not None)
        return "; or ".join([each for each in words if each][:_LOGINS])

    def all_notes(self, operations: int) -> Iterator[str]:
        """The notes, and what each of the first operations lacks. Each of those is looked at when its turn comes: that
        takes a millisecond or some."""
        yield from self.notes
        for each in islice(self.operations.values(), operations):
            yield from (f"{each.name}: {note}" for note in each.notes)


@attrs.frozen(eq=False)
class _DocumentBytes:
    """The bytes of a document, and what is odd about how they came."""

    data: bytes
    note: str = ""


@attrs.frozen(eq=False)
class ApiDocuments:
    """Reads what HTTP APIs have, for one room. `folder`: of ours, for what was fetched; None: nothing is kept."""

    folder: Path | None
    _known: WeakValueDictionary[tuple[Any, ...], Api] = attrs.field(
        factory=WeakValueDictionary[tuple[Any, ...], Api], init=False
    )

    async def api_of(self, definition: ServerDefinition, client: httpx2.AsyncClient) -> Api:
        """What the API of this definition has; `client` has its credentials. Raises `ConnectFailed`."""
        key = _key_of(definition)
        if key is not None and (known := self._known.get(key)) is not None:
            return known
        came = None if definition.openapi is None else await self._document(definition, client)
        try:
            api = await aside(partial(read_api, definition, came, from_thread.check_cancelled), CATALOGUE)
        except ValueError as problem:  # a `DocumentError` is one
            raise _failed(definition, str(problem)) from None
        except MemoryError:
            raise _failed(definition, "there is not enough memory to read its document") from None
        if key is not None:
            self._known[key] = api
        return api

    async def _document(self, definition: ServerDefinition, client: httpx2.AsyncClient) -> _DocumentBytes:
        place = definition.openapi
        assert place is not None
        if not is_url(place):
            return _DocumentBytes(await anyio.to_thread.run_sync(_read_file, definition, place))
        try:
            async with in_time(_FETCHED_WITHIN):
                return await self._fetched(definition, place, client)
        except TimeoutError:
            why = f"it did not come within {_FETCHED_WITHIN:g} s"
        except ExchangeFault as problem:
            why = str(problem)
        except ConnectFailed as problem:
            why = problem.message
        kept = await anyio.to_thread.run_sync(self._kept, place)
        if kept is None:
            raise _failed(definition, f"its document cannot be fetched: {why}")
        return _DocumentBytes(
            kept[0], f"its document cannot be fetched, so the one that came last is used: {why}"
        )

    async def _fetched(
        self, definition: ServerDefinition, url: str, client: httpx2.AsyncClient
    ) -> _DocumentBytes:
        """The document at this URL, or the kept one if the server says that it is the same. Raises `ExchangeFault`."""
        kept = await anyio.to_thread.run_sync(self._kept, url)
        headers = {"Accept": "application/json, application/yaml, text/yaml, */*;q=0.1"}
        if kept is not None and kept[1]:
            headers["If-None-Match"] = kept[1]
        if _is_same_origin(client, url, definition.url or ""):
            data, tag = await _get(client, url, headers)
        else:
            bare = ServerDefinition(definition.name, url=url)
            async with make_client(bare, None, _CONNECT_WITHIN) as other:
                data, tag = await _get(other, url, headers)
        if data is None:
            if kept is None:
                raise ExchangeBroken("it says that it has not changed, and was never had")
            return _DocumentBytes(kept[0])
        await anyio.to_thread.run_sync(self._keep, url, data, tag)
        return _DocumentBytes(data)

    # -- what was fetched --

    def _place(self, url: str) -> Path | None:
        return (
            None
            if self.folder is None
            else self.folder / "openapi" / hashlib.sha256(url.encode()).hexdigest()
        )

    def _kept(self, url: str) -> tuple[bytes, str] | None:
        """The document that came last from this URL, and its tag."""
        place = self._place(url)
        if place is None:
            return None
        try:
            tag, _, data = read_own(place).partition(b"\n")
            return data, tag.decode("ascii")
        except (OSError, UnicodeDecodeError):
            return None

    def _keep(self, url: str, data: bytes, tag: str) -> None:
        place = self._place(url)
        if place is None:
            return
        with contextlib.suppress(OSError):  # it is fetched again then
            make_own_folder(place.parent)
            with replacing(place) as file:
                file.write(tag.encode("ascii") + b"\n" + data)


def api_in_file(definition: ServerDefinition) -> Api:
    """What an API has whose document is a file, or that has none. Blocks. Raises `ConnectFailed`."""
    came = None if definition.openapi is None else _DocumentBytes(_read_file(definition, definition.openapi))
    try:
        return read_api(definition, came)
    except ValueError as problem:
        raise _failed(definition, str(problem)) from None


def read_api(
    definition: ServerDefinition, came: _DocumentBytes | None, checkpoint: Callable[[], object] = lambda: None
) -> Api:
    """What the API has; `came`: its document. Blocks for a tenth of a second where that is large, and calls
    `checkpoint` meanwhile, which may end it. Raises `ValueError` for a document or tools that cannot be used, and for a
    document that `specHash` does not mean."""
    by_hand, problems = read_tools(definition.http or {}, "http")
    if problems:
        raise ValueError("; ".join(map(str, problems)))
    if came is None:
        return Api(by_hand)
    wanted = definition.spec_hash
    if wanted is not None and (found := hashlib.sha256(came.data).hexdigest()) != wanted:
        raise ValueError(
            f"its document is not the one that specHash means: its SHA-256 is {found}. "
            "See what has changed, then write that"
        )
    document = read_document(came.data, "its document", _given_by(definition), checkpoint)
    include, exclude = selection(definition.include_operations), selection(definition.exclude_operations)
    named = chosen(document.operations, include, exclude) if definition.include_operations != () else {}
    notes = [came.note] if came.note else []
    for patterns in (include, exclude):
        notes += (f"no operation is meant by {each!r}" for each in unmatched(document.operations, patterns))
    notes += document.notes
    return Api(
        {**named, **by_hand},
        document.title,
        document.version,
        tuple(notes),
        document.security_schemes,
    )


_TAG: Final = "tag:"


def selection(patterns: Iterable[str] | None) -> Selection:
    """The operations that the patterns of a configuration mean: `tag:issues`, `issues/list`, `GET /repos/*`."""
    tags, operations, paths = list[str](), list[str](), list[str]()
    for each in patterns or ():
        if each.startswith(_TAG):
            tags.append(each.removeprefix(_TAG))
        else:
            (paths if each.startswith("/") or " " in each else operations).append(each)
    return Selection(tuple(tags), tuple(operations), tuple(paths))


def _given_by(definition: ServerDefinition) -> ConfiguredNames:
    """What goes with each request anyway."""
    cookies = "; ".join(value for name, value in definition.headers.items() if name.lower() == "cookie")
    query = parse_qsl(urlsplit(definition.url or "").query, keep_blank_values=True)
    return ConfiguredNames(
        headers=frozenset(map(str.lower, definition.headers)),
        query=frozenset(name for name, _ in query),
        cookies=frozenset(each.partition("=")[0].strip() for each in cookies.split(";")),
    )


def _key_of(definition: ServerDefinition) -> tuple[Any, ...] | None:
    """What decides what is read; None where the document may have changed meanwhile."""
    if definition.openapi is not None and definition.openapi_state is None:
        return None
    return (
        definition.openapi,
        definition.openapi_state,
        definition.spec_hash,
        definition.include_operations,
        definition.exclude_operations,
        repr(definition.http),
        _given_by(definition),
    )


def _read_file(definition: ServerDefinition, path: str) -> bytes:
    """Raises `ConnectFailed`. Blocks."""
    try:
        data = read_regular(path, DOCUMENT_BYTES)
    except OverflowError:
        raise _failed(definition, f"its document has more than {DOCUMENT_BYTES:,} bytes: {path}") from None
    except FileNotFoundError:
        raise _failed(definition, f'there is no document {path}: correct "openapi"') from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not a path"
        raise _failed(definition, f"its document cannot be read ({why}): {path}") from None
    if definition.openapi_agreed is not None and definition.openapi_agreed != document_print(data):
        step = "read it, and run `greenroom trust` to allow it"
        raise _failed(definition, f"its document, {path}, is not as it was when it was trusted: {step}")
    return data


def _failed(definition: ServerDefinition, why: str) -> ConnectFailed:
    return connect_failed(definition.name, LostReason(why))


def _is_same_origin(client: httpx2.AsyncClient, one: str, other: str) -> bool:
    first, second = (client.build_request("GET", each).url for each in (one, other))
    return (first.scheme, first.host, first.port) == (second.scheme, second.host, second.port)


async def _get(client: httpx2.AsyncClient, url: str, headers: Mapping[str, str]) -> tuple[bytes | None, str]:
    """What is at the URL, and its tag; None if it has not changed. Raises `ExchangeFault`."""
    from http import HTTPMethod

    async with exchanged(client, request_to(client, HTTPMethod.GET, url, headers)) as response:
        if response.status_code == 304:
            return None, ""
        if response.status_code != 200:
            raise ExchangeBroken(refusal_in_words(response, b""))
        tag = response.headers.get("etag", "")
        return await read_raw(response, DOCUMENT_BYTES), tag if tag.isascii() and tag.isprintable() else ""
