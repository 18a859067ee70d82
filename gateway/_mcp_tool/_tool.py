"""The `mcp` tool at work: each request is read, answered from what is known, or carried out.

Looking (status, list, search, describe, instructions) never touches a server, never waits and is answered in the step
that read the request; a `Librarian` does it for any `Library`, a running room or only its cache. Calling and
connecting need a `Room`: a name the index knows goes straight to `start_call`, without a task; only a name it does not
know, whose server may yet turn out to have it, is worth one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import anyio.to_thread

from ...protocol.errors import (
    AmbiguousTool,
    CallError,
    GreenroomError,
    ProtocolFault,
    Reach,
    UnknownServer,
    UnknownTool,
    UsageError,
)
from ...protocol.index import Ambiguous, Missing, Target
from ...protocol.names import has_prefix
from ...protocol.search import search, search_matching
from .._jobs import Job
from .._parking import Errand, Parking
from .._room import CallLike, Library, PlainRow, Room, StatusRow
from . import _refusals as refusals
from . import _texts as texts
from ._answer import Answer
from ._definition import Mode, Request, parse_request
from ._hints import FOR_MODELS, Hints
from ._outcome import Outcome, decode_result, outcome_of
from ._patterns import matcher
from ._spill import Spill
from ._unknown import is_unknown


class Librarian:
    """Answers the modes that only look."""

    def __init__(self, library: Library, *, hints: Hints = FOR_MODELS) -> None:
        self._library = library
        self._hints = hints
        self._answers: Final[Mapping[Mode, Callable[[Request], Answer]]] = {
            Mode.STATUS: self.status,
            Mode.LIST: self._list,
            Mode.SEARCH: self._search,
            Mode.DESCRIBE: self._describe,
            Mode.INSTRUCTIONS: self._instructions,
        }

    def answer(self, request: Request) -> Answer | None:
        """The answer, or None when this request needs a room."""
        answer = self._answers.get(request.mode)
        return answer(request) if answer is not None else None

    def rows(self) -> list[StatusRow]:
        """One row per server, in the order of the configuration: that of its shared address where there is one.

        A server whose definition is broken has no actor to report it, and is shown all the same, after the others.
        """
        broken = self._library.config.broken
        found: dict[str, StatusRow] = {
            name: PlainRow(name, "lazy", broken=str(why)) for name, why in broken.items()
        }
        for row in self._library.status():
            if row.server not in broken and (row.scope == "shared" or row.server not in found):
                found[row.server] = row
        return [found[name] for name in self._names() if name in found]

    def status(self, _request: Request | None = None) -> Answer:
        return texts.status(self.rows(), self._hints)

    def refusal(self, mode: Mode, server: str | None) -> Answer | None:
        """Why nothing can be asked of `server`, if so."""
        config = self._library.config
        if server is None:
            return None
        if server in config.broken:
            return refusals.broken_server(mode.value, server, str(config.broken[server]))
        definition = config.servers.get(server)
        if definition is None:
            return refusals.unknown_server(mode.value, server, self._hints)
        return refusals.disabled_server(mode.value, server) if definition.disabled else None

    def missing(self, mode: Mode, tool: str, server: str | None, *, connected_now: bool = False) -> Answer:
        """No such tool: whose it would be if that server could be used, or else what there is instead."""
        unusable = self._unusable_owner(tool) if server is None else None
        if unusable is not None:
            refusal = self.refusal(mode, unusable)
            assert refusal is not None
            return refusal
        unknown = [] if connected_now else self.unknown(server)
        owners = [row for row in unknown if server is not None or has_prefix(tool, row.server)]
        if owners:
            return refusals.not_known_yet(mode.value, tool, owners, self._hints)
        index = self._library.index
        names = [target.name for target in index.tools(server)] if server else []
        return refusals.unknown_tool(
            mode.value,
            tool,
            server=server,
            names=names,
            suggestions=index.suggest(tool),
            connected_now=connected_now,
            unknown=unknown,
            hints=self._hints,
        )

    def _unusable_owner(self, tool: str) -> str | None:
        """The disabled or broken server whose prefix `tool` has: the index knows nothing of either."""
        config = self._library.config
        disabled = (name for name, definition in config.servers.items() if definition.disabled)
        return max(
            (name for name in (*config.broken, *disabled) if has_prefix(tool, name)), key=len, default=None
        )

    def listing(self, server: str) -> Answer:
        row = next((row for row in self.rows() if row.server == server), None)
        if row is None:
            return refusals.unknown_server("list", server, self._hints)
        library = self._library
        return texts.server_list(row, library.index.tools(server), library.entry(server), self._hints)

    def _names(self) -> Sequence[str]:
        config = self._library.config
        return [*config.servers, *(name for name in config.broken if name not in config.servers)]

    def _list(self, request: Request) -> Answer:
        return self.refusal(request.mode, request.subject) or self.listing(request.subject)

    def _instructions(self, request: Request) -> Answer:
        server = request.subject
        refusal = self.refusal(request.mode, server)
        return refusal or texts.instructions(server, self._library.entry(server), self._hints)

    def _describe(self, request: Request) -> Answer:
        refusal = self.refusal(request.mode, request.server)
        if refusal is not None:
            return refusal
        found = self._library.index.resolve(request.subject, request.server)
        if isinstance(found, Ambiguous):
            return refusals.ambiguous_tool("describe", request.subject, found.candidates)
        if isinstance(found, Missing):
            return self.missing(request.mode, request.subject, request.server)
        return texts.describe(found)

    def _search(self, request: Request) -> Answer:
        refusal = self.refusal(request.mode, request.server)
        if refusal is not None:
            return refusal
        query = request.subject
        if not query.strip() and request.server is None:
            return refusals.refused_request(
                "search", UsageError("Search query cannot be empty", code="empty_query")
            )
        where = {"server": request.server, "limit": request.limit, "offset": request.offset}
        try:
            page = self._page(request, where)
        except UsageError as error:
            return refusals.refused_request("search", error)
        return texts.search(
            query,
            page,
            server=request.server,
            full=request.include_schemas,
            offset=request.offset,
            connecting=self._connecting(request.server),
            unknown=[row for row in self.unknown(request.server) if not _is_merely_connecting(row)],
            hints=self._hints,
        )

    def unknown(self, server: str | None = None) -> list[StatusRow]:
        """The servers that nothing is known of yet (or that one, if so)."""
        return [row for row in self.rows() if is_unknown(row) and server in (None, row.server)]

    def _page(self, request: Request, where: Mapping[str, Any]) -> Any:
        index = self._library.index
        if request.regex and request.subject.strip():
            return search_matching(index, matcher(request.subject), **where)
        return search(index, request.subject, **where)

    def _connecting(self, server: str | None) -> list[str]:
        return [row.server for row in self.unknown(server) if _is_merely_connecting(row)]


def _is_merely_connecting(row: StatusRow) -> bool:
    """It will be known in a moment."""
    return row.connecting and row.waiting_for is None


class McpTool:
    """The tool itself. `begin` takes a job and sees to it that it is answered."""

    def __init__(
        self,
        room: Room,
        *,
        hints: Hints = FOR_MODELS,
        spill: Spill | None = None,
        parking: Parking | None = None,
    ) -> None:
        self._room = room
        self._parking = parking or Parking(room.config.settings.call_total_timeout)
        self._spill = spill or Spill()
        self._librarian = Librarian(room, hints=hints)

    def begin(self, arguments: Mapping[str, Any], job: Job) -> None:
        """Answer `job`, now or when the call it needs has ended."""
        try:
            request = parse_request(arguments)
        except UsageError as error:
            mode = "call" if arguments.get("tool") else "request"
            job.answer(refusals.refused_request(mode, error).as_result())
            return
        if request.mode is Mode.CALL:
            self._call(request, job)
        elif request.mode is Mode.CONNECT:
            self._connect(request, job)
        else:
            answer = self._librarian.answer(request)
            assert answer is not None
            job.answer(answer.as_result())

    def refuse(self, name: str, job: Job) -> None:
        """Answer a call of some other tool than this one."""
        job.answer(refusals.other_tool(name).as_result())

    # ---- connect -------------------------------------------------------------------------------------------------

    def _connect(self, request: Request, job: Job) -> None:
        refusal = self._librarian.refusal(request.mode, request.subject)
        if refusal is not None:
            job.answer(refusal.as_result())
        else:
            job.run(partial(self._connect_and_list, request.subject, job))

    async def _connect_and_list(self, server: str, job: Job) -> None:
        try:
            await self._room.connect(server)
        except UsageError as error:
            answer = refusals.refused_request("connect", error)
        except CallError as error:
            answer = refusals.failed_connect(server, error)
        else:
            answer = self._librarian.listing(server)
        job.answer(answer.as_result())

    # ---- call ----------------------------------------------------------------------------------------------------

    def _call(self, request: Request, job: Job) -> None:
        found = self._room.index.resolve(request.subject, request.server)
        if isinstance(found, Target):
            self._start(found, request, job)
            return
        refusal = self._librarian.refusal(Mode.CALL, request.server)
        if refusal is not None:
            job.answer(refusal.as_result())
        elif isinstance(found, Ambiguous):
            job.answer(refusals.ambiguous_tool("call", request.subject, found.candidates).as_result())
        elif found.servers:
            job.run(partial(self._call_unknown, request, job))
        else:
            job.answer(self._librarian.missing(Mode.CALL, request.subject, request.server).as_result())

    def _start(self, target: Target, request: Request, job: Job) -> None:
        """The short way: the call is accepted or refused here, and its end comes by callback."""
        if job.modern:
            self._start_errand(target, request, job)
            return
        on_progress = job.progress if job.wants_progress else None
        try:
            call = self._room.start_call(
                target, request.args, partial(self._ended, target, request, job), on_progress=on_progress
            )
        except UsageError as error:  # a reload has just removed the server, and the index is about to follow
            job.answer(self._refused(error, request).as_result())
        except CallError as error:
            job.answer(refusals.failed_call(error, target).as_result())
        else:
            job.follow(call)

    def _start_errand(self, target: Target, request: Request, job: Job) -> None:
        """For a client that is asked by ending its request: the call may outlive this job."""
        errand = Errand(self._parking, job, target.server, partial(self._ended, target, request))
        on_progress = errand.progress if job.wants_progress else None
        try:
            call = self._room.start_call(target, request.args, errand.ended, on_progress=on_progress)
        except UsageError as error:
            errand.refused()
            job.answer(self._refused(error, request).as_result())
        except CallError as error:
            errand.refused()
            job.answer(refusals.failed_call(error, target).as_result())
        else:
            errand.follow(call)

    def _ended(self, target: Target, request: Request, job: Job, call: CallLike) -> None:
        if call.error is not None:
            job.answer(self._failed(call.error, target, request).as_result())
            return
        result = decode_result(call.result or b"")
        if result is None:
            error = ProtocolFault(
                "the answer is not a result object", server=target.server, reach=Reach.ANSWERED
            )
            job.answer(refusals.failed_call(error, target).as_result())
            return
        self._conclude(target.server, target, result, job)

    def _failed(self, error: CallError, target: Target, request: Request) -> Answer:
        """A tool that was known from the cache may be gone now that the server has been asked again."""
        if error.reach is not Reach.SENT and isinstance(self._resolve_again(request), Missing):
            return self._librarian.missing(Mode.CALL, request.subject, target.server, connected_now=True)
        return refusals.failed_call(error, target)

    async def _call_unknown(self, request: Request, job: Job) -> None:
        """The long way: a name the index lacks. The room connects whoever may have it, and asks again."""
        on_progress = job.progress if job.wants_progress else None
        try:
            result = await self._room.call(
                request.subject, request.args, server=request.server, on_progress=on_progress
            )
        except GreenroomError as error:
            job.answer(self._refused(error, request).as_result())
            return
        found = self._resolve_again(request)
        target = found if isinstance(found, Target) else None
        server = target.server if target is not None else request.server or ""
        self._conclude(server, target, result.raw, job)

    def _refused(self, error: GreenroomError, request: Request) -> Answer:
        if isinstance(error, CallError) and not isinstance(error, UsageError):
            found = self._resolve_again(request)
            return refusals.failed_call(error, found if isinstance(found, Target) else None)
        if isinstance(error, AmbiguousTool):
            return refusals.ambiguous_tool("call", error.tool, error.candidates)
        if isinstance(error, UnknownTool):
            owners = found.servers if isinstance(found := self._resolve_again(request), Missing) else ()
            return self._librarian.missing(
                Mode.CALL,
                request.subject,
                request.server or next(iter(owners), None),
                connected_now=request.server is not None,
            )
        if isinstance(error, UnknownServer):
            refusal = self._librarian.refusal(Mode.CALL, error.server)
            return refusal or refusals.refused_request("call", error)
        return refusals.refused_request("call", error)

    def _resolve_again(self, request: Request) -> object:
        return self._room.index.resolve(request.subject, request.server)

    def _conclude(self, server: str, target: Target | None, result: Mapping[str, Any], job: Job) -> None:
        settings = self._room.config.settings
        outcome = outcome_of(
            server,
            target,
            result,
            max_bytes=settings.output_max_bytes,
            max_lines=settings.output_max_lines,
        )
        if outcome.spill_text is None:
            job.answer(outcome.answer().as_result())
        else:
            job.run(partial(self._save_and_answer, outcome, job))

    async def _save_and_answer(self, outcome: Outcome, job: Job) -> None:
        assert outcome.spill_text is not None
        try:
            path = await anyio.to_thread.run_sync(self._spill.write, outcome.spill_text)
        except OSError as error:
            answer = outcome.answer(error=error.strerror or str(error))
        else:
            answer = outcome.answer(path)
        job.answer(answer.as_result())
