"""The modes of the `mcp` tool that only look: status, list, search, describe, instructions.

These modes use no server. So a `CatalogueReader` can answer them from any `Catalogue`: a running room, or
only the cache. With thousands of tools or servers an answer takes longer than one turn of the loop may. So it can be
made in a thread, from a `CatalogueSnapshot` of the room.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from ...catalogue.names import has_prefix, owner_among
from ...catalogue.namespace import AmbiguousName, MissingName
from ...catalogue.search import SearchPage, fits_well, search, search_matching
from ...config.model import SERVER_KEY
from ...protocol.errors import UNTRUSTED, UnknownServer, UsageError
from ...protocol.status import ServerStatus
from . import tool_texts as texts
from .tool_definition import FOR_MODELS, MAX_REGEX, MOST_LINES, Hints, McpToolAnswer, McpToolRequest, Mode
from .tool_texts import Bounds, is_unknown

if TYPE_CHECKING:
    from ...catalogue.entries import ServerEntry
    from ...catalogue.index import Index
    from ...config.model import Config
    from ...supervisor.port import Catalogue, RoomPort


class CatalogueSnapshot(msgspec.Struct, frozen=True, eq=False):
    """A catalogue as it is at one moment, which a thread may read."""

    config: Config
    index: Index
    rows: Sequence[ServerStatus]

    @classmethod
    async def of(cls, room: RoomPort) -> CatalogueSnapshot:
        """What a room knows now. Others have their turns while the rows of thousands of servers are made."""
        rows = await room.catalogue.surveyed()
        return cls(room.catalogue.config, room.catalogue.index, rows)

    @classmethod
    def of_some(cls, room: RoomPort, servers: Iterable[str]) -> CatalogueSnapshot:
        """What a room knows now, with the rows of a few servers alone. One that is gone has none."""
        rows: list[ServerStatus] = []
        for name in servers:
            with suppress(UnknownServer):
                rows += room.catalogue.status(name)
        return cls(room.catalogue.config, room.catalogue.index, rows)

    def status(self, server: str | None = None) -> list[ServerStatus]:
        return [row for row in self.rows if server in (None, row.server)]

    def entry(self, server: str) -> ServerEntry | None:
        return self.index.entry(server)


class CatalogueReader:
    """Answers the modes that only look."""

    def __init__(self, catalogue: Catalogue, *, hints: Hints = FOR_MODELS) -> None:
        self._catalogue = catalogue
        config = catalogue.config
        is_empty = hints.for_people and not (config.servers or config.broken)
        self._hints = hints.without_servers() if is_empty else hints
        self._answers: Final[Mapping[Mode, Callable[[McpToolRequest], McpToolAnswer]]] = {
            Mode.STATUS: self._status,
            Mode.LIST: self._list,
            Mode.SEARCH: self._search,
            Mode.DESCRIBE: self._describe,
            Mode.INSTRUCTIONS: self._instructions,
        }

    def answer(self, request: McpToolRequest) -> McpToolAnswer:
        """The answer to a request that only looks."""
        is_about_server = request.mode in (Mode.LIST, Mode.INSTRUCTIONS)
        refusal = self.refusal(request.mode, request.subject if is_about_server else request.server)
        return refusal or self._answers[request.mode](request)

    def rows(self, server: str | None = None) -> list[ServerStatus]:
        """One row for each server, in the order of the configuration; with `server`, only its row. If a server has
        several addresses, it is the row of the shared one.

        A server with a broken definition has no actor that could report it. Its row comes after the others.
        """
        broken = self._catalogue.config.broken
        found: dict[str, ServerStatus] = {
            name: ServerStatus(name, broken=str(why), untrusted=why.code == UNTRUSTED)
            for name, why in broken.items()
            if server in (None, name)
        }
        for row in self._catalogue.status(server):
            if row.server not in broken and (row.scope == "shared" or row.server not in found):
                found[row.server] = row
        return [found[name] for name in self._names() if name in found]

    @property
    def bounds(self) -> Bounds:
        settings = self._catalogue.config.settings
        return Bounds(settings.output_max_bytes, settings.output_max_lines)

    def refusal(self, mode: Mode, server: str | None) -> McpToolAnswer | None:
        """The answer that refuses `server` because it is unknown, disabled or broken. None: it can be used."""
        config = self._catalogue.config
        if server is None:
            return None
        if server in config.broken:
            return texts.broken_server(mode.value, server, config.broken[server])
        definition = config.servers.get(server)
        if definition is None:
            return texts.unknown_server(mode.value, server, self._names(), self._hints)
        return texts.disabled_server(mode.value, server) if definition.disabled else None

    def missing(
        self, mode: Mode, tool: str, server: str | None, *, connected_now: bool = False, args: object = None
    ) -> McpToolAnswer:
        """The answer when there is no such tool. If the tool's prefix belongs to a server that is disabled, broken or
        not known yet, it names that server, otherwise similar tools. `args`: what it was called with."""
        if tool in self._catalogue.config.servers and self._hints.for_people:
            return texts.server_as_tool(mode.value, tool)
        if (excluded := self.excluded(mode, tool, server)) is not None:
            return excluded
        unusable = owner_among(self._catalogue.config.unusable, tool) if server is None else None
        if unusable is not None:
            refusal = self.refusal(mode, unusable)
            assert refusal is not None
            return refusal
        unknown = [] if connected_now else self.unknown(server)
        owners = [row for row in unknown if server is not None or has_prefix(tool, row.server)]
        if owners:
            return texts.not_known_yet(mode.value, tool, owners, self._hints)
        index = self._catalogue.index
        names = [target.name for target in index.tools(server)] if server else []
        return texts.unknown_tool(
            mode.value,
            tool,
            server=server,
            names=names,
            suggestions=[target for name in index.suggest(tool) if (target := index.get(name))],
            are_full_names=self._hints.for_people and bool(index.named_by_servers(tool)),
            connected_now=connected_now,
            unknown=unknown,
            args=cast("Mapping[str, Any]", args) if isinstance(args, Mapping) else {},
            hints=self._hints,
        )

    def excluded(self, mode: Mode, tool: str, server: str | None) -> McpToolAnswer | None:
        """The answer about a tool that the configuration excludes. None: it excludes no tool of this name, or a model
        asks, for which such a tool does not exist."""
        found = self._catalogue.index.excluded_by(tool, server) if self._hints.for_people else None
        if found is None:
            return None
        owner, key = found
        file = self._catalogue.config.servers[owner].sources.get(SERVER_KEY[key].attribute, "")
        return texts.excluded_tool(mode.value, tool, owner, key, file)

    def listing(self, server: str, *, limit: int = MOST_LINES, offset: int = 0) -> McpToolAnswer:
        row = next(iter(self.rows(server)), None)
        if row is None:
            return texts.unknown_server("list", server, self._names(), self._hints)
        catalogue = self._catalogue
        return texts.server_list(
            row,
            catalogue.index.findable(server) if self._hints.skill else catalogue.index.tools(server),
            catalogue.entry(server),
            self._hints,
            limit=limit,
            offset=offset,
            bounds=self.bounds,
        )

    def _names(self) -> Sequence[str]:
        config = self._catalogue.config
        return [*config.servers, *(name for name in config.broken if name not in config.servers)]

    def _status(self, request: McpToolRequest) -> McpToolAnswer:
        rows, bounds = self.rows(), self.bounds
        return texts.status(rows, self._hints, limit=request.limit, offset=request.offset, bounds=bounds)

    def _list(self, request: McpToolRequest) -> McpToolAnswer:
        return self.listing(request.subject, limit=request.limit, offset=request.offset)

    def _instructions(self, request: McpToolRequest) -> McpToolAnswer:
        server = request.subject
        return texts.instructions(server, self._catalogue.entry(server), self._hints)

    def _describe(self, request: McpToolRequest) -> McpToolAnswer:
        index, name, server = self._catalogue.index, request.subject, request.server
        found = index.resolve(name, server)
        if isinstance(found, MissingName) and self._hints.skill:
            skill = index.resolve_skill(name, server)
            found = found if isinstance(skill, MissingName) else skill
        if isinstance(found, AmbiguousName):
            return texts.ambiguous_tool("describe", name, found.candidates)
        if isinstance(found, MissingName):
            return self.missing(request.mode, name, server)
        return (
            texts.describe_skill(found, self._hints)
            if found.kind == "skill"
            else texts.describe(found, self._hints)
        )

    def _search(self, request: McpToolRequest) -> McpToolAnswer:
        if not request.subject.strip() and request.server is None:
            return texts.refused_request(
                "search", UsageError("Search query cannot be empty", code="empty_query")
            )
        try:
            page = self._page(request, request.limit, request.offset)
        except UsageError as error:
            return texts.refused_request("search", error)
        unknown = self.unknown(request.server)
        return texts.search(
            request.subject,
            page,
            server=request.server,
            full=request.include_schemas,
            offset=request.offset,
            connecting=[row.server for row in unknown if _is_merely_connecting(row)],
            unknown=[row for row in unknown if not _is_merely_connecting(row)],
            fits_well=bool(unknown) and self._fits_well(request),
            hints=self._hints,
            bounds=self.bounds,
        )

    def is_answered(self, request: McpToolRequest) -> bool:
        """Whether waiting would not help this search: it has found something that fits well, or all servers are
        known."""
        if self.refusal(request.mode, request.server) is not None:
            return True
        try:
            return self._fits_well(request) or not self.unknown(request.server)
        except UsageError:
            return True

    def _fits_well(self, request: McpToolRequest) -> bool:
        """Whether what is known has a tool that fits well. Raises `UsageError` for a pattern that is refused."""
        if request.regex:
            return self._page(request, 1, 0).total > 0
        if request.subject.strip():
            return fits_well(self._catalogue.index, request.subject, server=request.server)
        return request.server is None

    def unknown(self, server: str | None = None) -> list[ServerStatus]:
        """The servers of which nothing is known yet; with `server`, only that one."""
        return [row for row in self.rows(server) if is_unknown(row)]

    def _page(self, request: McpToolRequest, limit: int, offset: int) -> SearchPage:
        index, query, server = self._catalogue.index, request.subject, request.server
        skills = bool(self._hints.skill)
        if request.regex and query.strip():
            matches = matcher(query)
            return search_matching(index, matches, server=server, limit=limit, offset=offset, skills=skills)
        near = request.near
        return search(index, query, server=server, limit=limit, offset=offset, near=near, skills=skills)


def _is_merely_connecting(row: ServerStatus) -> bool:
    """Whether the server is connecting now, and so will be known in a moment."""
    return row.connecting and row.waiting_for is None


# ---- Search patterns that cannot hang the room ----------------------------------------------------------------------
#
# A pattern comes from a model and is matched against every tool, in the loop that serves everybody. So RE2
# matches it: its time is linear in the length of the text, whatever the pattern. Rejected: a backtracking
# engine with a timeout. A timeout only limits the harm that one request does, while linear time does none. The
# price is that look-around and back-references are not available. The error for a pattern that uses them
# differs from that for an invalid one.

_MEMORY = 1 << 20  # bytes a compiled pattern may take


def matcher(pattern: str) -> Callable[[str], bool]:
    """A function that says whether the pattern occurs in a text, ignoring case.

    Raises `UsageError` with code `query_too_long`, `invalid_pattern` or `unsafe_pattern`.
    """
    if len(pattern) > MAX_REGEX:
        text = f"Regex query is too long; maximum length is {MAX_REGEX} characters."
        raise UsageError(text, code="query_too_long")
    engine: Any = importlib.import_module("re2")  # it has no type hints
    options = engine.Options()
    options.case_sensitive = False
    options.log_errors = False
    options.max_mem = _MEMORY
    try:
        search = engine.compile(pattern, options).search
    except UnicodeEncodeError:
        raise _invalid(ascii(pattern)[1:-1], "it has half of a surrogate pair") from None
    except engine.error as error:
        raise _refusal(pattern, error) from None
    return lambda text: search(text) is not None


def _refusal(pattern: str, error: Exception) -> UsageError:
    """The error for a pattern that RE2 refuses: unsafe if a backtracking engine accepts it, invalid
    otherwise."""
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as wrong:
        return _invalid(pattern, str(wrong))
    reason = error.args[0] if error.args else "not supported"
    if isinstance(reason, bytes):
        reason = reason.decode(errors="replace")
    return UsageError(f"Regex query rejected as unsafe ({reason}).", code="unsafe_pattern")


def _invalid(pattern: str, why: str) -> UsageError:
    text = f'Invalid regex "{pattern}": {why}. To search for it as words, leave out regex.'
    return UsageError(text, code="invalid_pattern")
