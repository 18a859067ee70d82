"""Reads a server's lists, page by page, up to the bounds of one server.

The tools are a server's purpose, so their list must succeed. Another list that fails is recorded as unknown. A
broken item costs only itself (`catalogue.list_pages`). A list ends where the server says, or at a bound: the number of
pages, a repeated cursor, the items, their parts and the bytes over all lists of the server. What is over a bound is
left out. `Listing.problems` says so, and the server's status shows it.

The lists are requested side by side. Where the bounds are concerned, the tools come first: the other lists use
only what is left once the tools have been read. So the result does not depend on which answer was quicker. A page
that is larger than what is left is not decoded.

A server that is connected again mostly lists the same as before. Its pages have the same digest then, and `list_all`
returns the listing of before: it need not be hashed for pinning, compared, published or written once more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import anyio
import msgspec

from ..catalogue.entries import Raw, definitions_of
from ..catalogue.fingerprints import PINNED, pin_name, print_of
from ..catalogue.list_pages import Items
from ..catalogue.skills import EXTENSION, fault_of, has_skills, weight_of
from ..config.model import Pinning, Scrub, Settings
from ..config.scrubbing import Secrets
from ..protocol import bounds
from ..protocol.jsonrpc.encoding import encode
from ..protocol.jsonrpc.terms import WireFault, fault
from .backend import Backend
from .handshake import RpcFailure, ask_raw
from .peer import Handshake, Listing, Peer
from .timers import Timers
from .workers import CATALOGUE, LONG_WORK, aside, aside_if_many


class _ListKind(msgspec.Struct, frozen=True):
    """One list a server may have. `pinned`: as what its items are remembered (`catalogue.fingerprints`)."""

    pinned: str
    method: str
    field: str  # the field of the result, and of `Listing` unless that is named separately
    capability: str
    key: str  # a field that every item must have

    def is_declared(self, capabilities: Raw) -> bool:
        if self is _SKILLS:
            return has_skills(capabilities)
        return capabilities.get(self.capability) is not None


_TOOLS: Final = _ListKind("tool", "tools/list", "tools", "tools", "name")
_RESOURCES: Final = _ListKind("resource", "resources/list", "resources", "resources", "uri")
_TEMPLATES: Final = _ListKind(
    "template", "resources/templates/list", "resourceTemplates", "resources", "uriTemplate"
)
_PROMPTS: Final = _ListKind("prompt", "prompts/list", "prompts", "prompts", "name")
_SKILLS: Final = _ListKind("skill", "skills/list", "skills", EXTENSION, "uri")
NO_SECRETS: Final = Secrets()
_KINDS: Final = (_TOOLS, _RESOURCES, _TEMPLATES, _PROMPTS, _SKILLS)


async def list_all(
    peer: Peer,
    backend: Backend,
    timers: Timers,
    handshake: Handshake,
    settings: Settings,
    before: Listing | None = None,
    *,
    secrets: Secrets = NO_SECRETS,
) -> Listing:
    """Every list that the server declares, read side by side, each within `settings.connect_timeout`. The items are
    pinned as `settings.pinning` says, and come without the server's `secrets`, unless `settings.scrub` is off. If the
    server lists the same as `before`, that object is returned.

    Raises `RpcFailure` when the list of tools fails; `Listing.problems` names everything else that went wrong.
    """
    kinds = [kind for kind in _KINDS if kind.is_declared(handshake.capabilities)]
    deadline = backend.now() + settings.connect_timeout
    share = _Share(
        peer, backend, timers, settings, deadline, settings.max_list_bytes, settings.max_list_items
    )
    if _TOOLS not in kinds:
        share.tools_are_read.set()
    removed = None if settings.scrub is Scrub.OFF else secrets
    lists = {kind: _List(kind, share, removed) for kind in kinds}
    async with anyio.create_task_group() as tasks:
        for each in lists.values():
            tasks.start_soon(each.fetch)
    tools = lists.get(_TOOLS)
    if tools is not None and tools.failure is not None:
        if not tools.failure.is_lacking:
            raise tools.failure
        what = "the server says that it has tools, and does not know this method"
        raise RpcFailure(_TOOLS.method, what, error=tools.failure.error)
    digest = _digest(lists.values(), settings)
    if before is not None and before.digest == digest:
        return before
    found = {kind: each.found for kind, each in lists.items()}
    problems = tuple(secrets.without(problem) for each in lists.values() for problem in each.problems)
    listed = {kind.pinned: items or () for kind, items in found.items()}
    many = sum(map(len, listed.values())) + weight_of(found.get(_SKILLS)) + definitions_of(found.get(_TOOLS))
    prints = await aside_if_many(many, partial(prints_of, listed, settings.pinning))
    return Listing(
        found.get(_TOOLS),
        found.get(_RESOURCES),
        found.get(_TEMPLATES),
        found.get(_PROMPTS),
        found.get(_SKILLS),
        problems,
        prints,
        digest,
    )


def _digest(lists: Iterable[_List], settings: Settings) -> bytes:
    """The digest of the pages, and of the settings that decide about a `Listing`."""
    whole = hashlib.sha256(settings.pinning.value.encode())
    for each in lists:
        whole.update(repr((each.kind.method, each.failure is None, each.problems)).encode())
        whole.update(each.pages.digest())
    return whole.digest()


def prints_of(listed: Mapping[str, Sequence[Raw]], pinning: Pinning) -> dict[str, str]:
    """The fingerprint of each item, under the name by which it is remembered; only the names when nothing is pinned.
    `listed`: the items of each kind. What is listed twice counts once."""
    prints = dict[str, str]()
    for kind, (_, key) in PINNED.items():
        for record in listed.get(kind, ()):
            original = record.get(key)
            if isinstance(original, str) and (pin := pin_name(kind, original)) not in prints:
                prints[pin] = "" if pinning is Pinning.OFF else print_of(kind, record)
    return prints


class _Share(msgspec.Struct, eq=False):
    """What all lists of one server have together: the time for their pages, and the items, their parts and the bytes
    that are left."""

    peer: Peer
    backend: Backend
    timers: Timers
    settings: Settings
    deadline: float
    bytes: int
    items: int
    parts: int = bounds.LIST_PARTS
    tools_are_read: anyio.Event = msgspec.field(default_factory=anyio.Event)

    async def page(self, method: str, cursor: str | None) -> bytes:
        """Ask for a page. Raises `RpcFailure`."""
        left = max(self.deadline - self.backend.now(), 0.0)
        params = {"cursor": cursor} if cursor else None
        within = self.settings.connect_timeout
        return await ask_raw(self.peer, self.backend, self.timers, method, params, left, within=within)


class _List(msgspec.Struct, eq=False):
    """One list while it is read."""

    kind: _ListKind
    share: _Share
    secrets: Secrets | None  # that are removed from it
    items: list[Raw] = msgspec.field(default_factory=list[Raw])
    problems: list[str] = msgspec.field(default_factory=list[str])
    failure: RpcFailure | None = None
    pages: Any = msgspec.field(default_factory=hashlib.sha256)  # of their bytes, in order

    @property
    def found(self) -> tuple[Raw, ...] | None:
        return tuple(self.items) if self.failure is None else None

    async def fetch(self) -> None:
        """Follow the pages. A failure is kept, not raised, and the other lists go on."""
        try:
            await self._follow()
        except RpcFailure as failure:
            if failure.is_lacking and self.kind is not _TOOLS:
                return  # it has none of these: many declare resources, and have no templates
            self.failure = failure
            self.problems.append(str(failure))
        finally:
            if self.kind is _TOOLS:
                self.share.tools_are_read.set()

    async def _follow(self) -> None:
        seen: set[str] = set()
        cursor: str | None = None
        most = self.share.settings.max_pages
        for _ in range(most):
            page = await self.share.page(self.kind.method, cursor)
            if self.kind is not _TOOLS:
                await self.share.tools_are_read.wait()
            cursor = self._usable(await self._take(page))
            if cursor is None:
                return
            if cursor in seen:
                self._say(f"the server repeats its cursor {cursor[:40]!r}; what came until then is kept")
                return
            seen.add(cursor)
        self._say(f"cut after {most} pages")

    async def _take(self, page: bytes) -> object:
        """Take the items of a page, as far as there is room. Returns its `nextCursor`; None where the list ends."""
        share, settings = self.share, self.share.settings
        if len(page) > share.bytes:
            self._say(
                f"a page of {len(page):,} bytes, and what comes after it, is left out: all lists of one server may "
                f"have {settings.max_list_bytes:,} bytes (maxListBytes)"
            )
            return None
        share.bytes -= len(page)
        fault_of_item = fault_of if self.kind is _SKILLS else None
        items = Items(self.kind.field, self.kind.key, share.items, share.parts, fault_of_item)
        try:
            read = partial(self._read, items, page)
            cursor = read() if len(page) < LONG_WORK else await aside(read, CATALOGUE)
        except WireFault as problem:
            raise RpcFailure(self.kind.method, str(problem), error=fault(str(problem))) from None
        share.items -= len(items.found) + items.left_out.total()
        share.parts = items.parts
        self.items += items.found
        for sentence in items.in_words():
            self._say(sentence)
        if items.is_full:
            most = items.bound_in_words(settings.max_list_items)
            self._say(f"the rest is left out: all lists of one server may have {most}")
        return cursor

    def _read(self, items: Items, page: bytes) -> object:
        self.pages.update(page)
        if self.secrets is not None and self.secrets.known_in(page):
            items.secrets = self.secrets
            cursor = items.read(page)
            self.pages.update(encode([items.found, items.left_out.total()]))  # what is known may change
            return cursor
        return items.read(page)

    def _usable(self, cursor: object) -> str | None:
        if cursor is not None and not isinstance(cursor, str):
            self._say("its nextCursor is not a string; what came until then is kept")
            return None
        if cursor and len(cursor) > bounds.NAME_CHARACTERS:
            self._say("its nextCursor is too long; what came until then is kept")
            return None
        return cursor or None

    def _say(self, problem: str) -> None:
        said = f"{self.kind.method}: {problem}"
        if len(self.problems) < bounds.PROBLEMS and said not in self.problems:
            self.problems.append(said)
