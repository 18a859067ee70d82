"""Carries out the requests to the `mcp` tool.

`CatalogueReader` handles the modes that only look (status, list, search, describe, instructions). Such a request is
answered in the step that read it, unless that would take longer than one turn of the loop may: with thousands of tools
or servers, a task first lets a thread make what takes long. A search that finds nothing good waits a while for the
servers that are being asked what they have. Calling and connecting need a `RoomPort`. A name that the index knows goes
straight to `start_call`, without a task. A task is needed only for a name that the index does not know, if a server may
still turn out to have it.

`result_texts` turns results into answers and ends the jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
import msgspec

from ...actors.call import Call
from ...actors.router import is_quick, make_resolvable, make_searchable
from ...actors.timers import at_most
from ...actors.workers import CATALOGUE, LONG_WORK, MANY_ITEMS, aside
from ...catalogue.namespace import AmbiguousName, MissingName, Target
from ...config.model import Scrub
from ...protocol.errors import (
    AmbiguousTool,
    Bug,
    CallError,
    GreenroomError,
    Reach,
    UnknownServer,
    UnknownTool,
    UsageError,
)
from ...protocol.jsonrpc.encoding import encode
from ...protocol.jsonrpc.incoming import decode_result, read_value
from ...protocol.jsonrpc.terms import RpcFault
from ...protocol.safe_text import in_words
from ...safety.scrubber import scrubbed_progress
from ..input_required import SuspendableCall, SuspendedCalls
from ..jobs import Job
from . import tool_texts as texts
from .output_files import Spill
from .query_modes import CatalogueReader, CatalogueSnapshot
from .result_texts import McpToolResponder
from .tool_definition import FOR_MODELS, FOR_PEOPLE, Hints, McpToolAnswer, McpToolRequest, Mode, parse_request

if TYPE_CHECKING:
    from ...supervisor.port import RoomPort
    from ..client_tasks import TaskHandler
    from ..endpoint import ClientSession

T = TypeVar("T")
# Seconds of a search for unknown servers: a person is told of these, and asks again.
_PERSON_WAITS: Final = 1.0
_LOOK_EVERY: Final = 0.25  # seconds between two looks of a search that waits
_TASK_SECONDS: Final = 20.0  # that one look at a task waits for its end: less than clients wait for an answer


class McpTool:
    """The `mcp` tool. `begin` takes a job and makes sure that it is answered."""

    def __init__(
        self,
        room: RoomPort,
        *,
        hints: Hints = FOR_MODELS,
        spill: Spill | None = None,
        suspended: SuspendedCalls | None = None,
        promote: Callable[[Target], tuple[str, ...] | None] | None = None,
        on_answer: Callable[[str], None] | None = None,
    ) -> None:
        """`promote` lists a tool beside this one for its client, and returns all that are listed so; None: it cannot.
        `on_answer` is told the name of each tool whose call was answered."""
        self._room = room
        self._progress = partial(scrubbed_progress, room.scrubber, Scrub.MCP)
        self._promote = promote
        self._on_answer = on_answer
        if suspended is None:
            suspended = SuspendedCalls(room.catalogue.config.settings.call_total_timeout)
        self._suspended = suspended
        self._reader = CatalogueReader(room.catalogue, hints=hints)
        self._hints = hints
        self._answers = McpToolResponder(room, spill or Spill(), hints)
        self._searches_by: float | None = None  # until when its searches may wait; set by the first one

    def begin(self, arguments: Mapping[str, Any], job: Job) -> None:
        """Answer `job`, now or when the call that it needs has ended."""
        try:
            request = parse_request(arguments)
        except UsageError as error:
            self.misread(error, arguments, job)
        else:
            self.carry_out(request, job)

    def carry_out(self, request: McpToolRequest, job: Job) -> None:
        """Answer `job` as `begin` does, for a request that has been read already."""
        if request.mode is Mode.CALL and request.background:
            self._begin_task(request, job)
        elif request.mode is Mode.CALL:
            self.call(request, job)
        elif request.mode is Mode.CONNECT:
            self._connect(request, job)
        elif request.mode is Mode.PROMOTE:
            self._reply(partial(self._promoted, request), job)
        elif request.mode is Mode.SKILL:
            job.run(partial(self._read_skill, request, job))
        elif request.mode in (Mode.TASK, Mode.OUTPUT):
            self._look_at_kept(request, job)
        else:
            self.look(request, job)

    def look(self, request: McpToolRequest, job: Job, more: str = "") -> None:
        """Answer a request that only looks, and add this text to the answer."""
        waits = request.mode is Mode.SEARCH and (
            self._room.catalogue.is_learning or self._room.catalogue.finds_by_meaning
        )
        if waits or not self._is_quick(request):
            job.run(partial(self._look_long, request, job, more))
        else:
            self._answers.reply(_with(self._reader.answer(request), more), job)

    def _is_quick(self, request: McpToolRequest | None = None) -> bool:
        """Whether the request can be answered in one turn of the loop."""
        room = self._room
        if len(room.catalogue.config.servers) >= MANY_ITEMS:
            return False
        goes_through_all = request is not None and request.regex
        return room.catalogue.index.size < MANY_ITEMS if goes_through_all else is_quick(room.catalogue.index)

    async def _look_long(self, request: McpToolRequest, job: Job, more: str) -> None:
        if request.mode is Mode.SEARCH:
            if self._room.catalogue.is_learning:
                await self._wait_for_servers(request)
            if self._room.catalogue.finds_by_meaning and not request.regex:
                request = msgspec.structs.replace(
                    request, near=await self._room.catalogue.near(request.subject)
                )
        answer = await self._read(lambda reader: reader.answer(request), request)
        self._answers.reply(_with(answer, more), job)

    async def _read(self, ask: Callable[[CatalogueReader], T], request: McpToolRequest) -> T:
        """What `ask` reads from the catalogue. It runs in a thread if that takes long."""
        if self._is_quick(request):
            return ask(self._reader)
        return await aside(partial(ask, await self._still_reader()), CATALOGUE)

    async def _still_reader(self) -> CatalogueReader:
        """A reader of the catalogue as it is now, which does not change."""
        return CatalogueReader(await CatalogueSnapshot.of(self._room), hints=self._hints)

    async def _wait_for_servers(self, request: McpToolRequest) -> None:
        """Wait for servers whose lists are being read, as long as these may improve the search."""
        room = self._room
        if self._searches_by is None:
            longest = room.catalogue.config.settings.first_list_timeout
            if self._hints is FOR_PEOPLE:
                longest = min(longest, _PERSON_WAITS)
            self._searches_by = anyio.current_time() + longest
        async with at_most(self._searches_by - anyio.current_time()):
            while room.catalogue.is_learning:
                if await self._read(lambda reader: reader.is_answered(request), request):
                    return
                async with at_most(_LOOK_EVERY):
                    await room.catalogued()

    def _reply(self, answer: Callable[[CatalogueReader], McpToolAnswer | None], job: Job) -> None:
        """Answer with the result of `answer(reader)`."""
        if self._is_quick():
            self._answers.reply(answer(self._reader), job)
        else:
            job.run(partial(self._reply_later, answer, job))

    async def _reply_later(self, answer: Callable[[CatalogueReader], McpToolAnswer | None], job: Job) -> None:
        self._answers.reply(answer(await self._prepared_reader()), job)

    async def _prepared_reader(self) -> CatalogueReader:
        """A reader that has all that any name and any search may need."""
        if self._is_quick():
            return self._reader
        await make_searchable(self._room.catalogue.index)
        return await self._still_reader()

    def refuse(self, name: str, job: Job, arguments: object = None) -> None:
        """Answer a call of an unknown tool, which is not ours."""
        answer = texts.other_tool(name, self._hints)
        self._turn_away(name, None, arguments, answer)
        self._answers.reply(answer, job)

    def tell(self, result: Mapping[str, Any], job: Job, **details: Any) -> None:
        """Answer with a result of our own, within the bounds."""
        job.run(partial(self._answers.telling, result, details, job))

    def misread(self, error: UsageError, arguments: Mapping[str, Any], job: Job) -> None:
        """Answer a request whose arguments cannot be read."""
        self._reply(lambda _reader: self._misread(error, arguments), job)

    def _misread(self, error: UsageError, arguments: Mapping[str, Any]) -> McpToolAnswer:
        """The answer to a request that cannot be read. If it meant to call a known tool, the answer says what that tool
        expects."""
        name, server = arguments.get("tool"), arguments.get("server")
        if not name:
            return texts.refused_request("request", error)
        found = None
        if isinstance(name, str) and (not server or isinstance(server, str)):
            found = self._room.catalogue.index.resolve(name, server or None)
        target = found if isinstance(found, Target) else None
        answer = texts.refused_request("call", error, target, self._hints)
        named = server if isinstance(server, str) and server else None
        self._turn_away(str(name), named, arguments.get("args"), answer)
        return answer

    def _promoted(self, request: McpToolRequest, reader: CatalogueReader) -> McpToolAnswer:
        """The answer to a request to promote a tool: list it from now on, if the client can be told of that."""
        found = self._room.catalogue.index.resolve(request.subject, request.server)
        if isinstance(found, AmbiguousName):
            return texts.ambiguous_tool(request.mode.value, request.subject, found.candidates)
        if isinstance(found, MissingName):
            refusal = reader.refusal(request.mode, request.server)
            return refusal or reader.missing(request.mode, request.subject, request.server)
        promoted = None if self._promote is None else self._promote(found)
        return texts.not_promoted(found) if promoted is None else texts.promoted(found, promoted)

    # ---- skills ----------------------------------------------------------------------------------------------------

    async def _read_skill(self, request: McpToolRequest, job: Job) -> None:
        refusal = self._reader.refusal(request.mode, request.server)
        if refusal is not None:
            self._answers.reply(refusal, job)
            return
        name, _, path = request.subject.partition("/")
        try:
            read = await self._room.skills.read(name, path or None, request.server, door=Scrub.MCP)
        except GreenroomError as error:
            self._answers.reply(texts.failed_skill(error, self._hints), job)
            return
        if read.text is None:
            self._answers.conclude_long(read.skill.server, None, encode(read.result), job)
        else:
            tell = partial(texts.skill, read, self._hints)
            text, details = await aside(tell) if len(read.text) >= LONG_WORK else tell()
            await self._answers.telling({"content": [{"type": "text", "text": text}]}, details, job)

    # ---- tasks ---------------------------------------------------------------------------------------------------

    def _begin_task(self, request: McpToolRequest, job: Job) -> None:
        """Call a tool in the background, and say by which id its result is found."""
        tasks = _tasks_of(job)
        if tasks is None:
            self._answers.reply(texts.no_tasks(), job)
            return
        try:
            task = tasks.begin(job, partial(self.call, msgspec.structs.replace(request, background=False)))
        except RpcFault as fault:
            self._answers.reply(texts.not_in_background(request.subject, fault.message), job)
        else:
            self._answers.reply(texts.in_background(request.subject, task.id), job)

    def _look_at_kept(self, request: McpToolRequest, job: Job) -> None:
        """Answer with the result of a task, or with how it is; or with a page of an output, if that has this id."""
        tasks = _tasks_of(job)
        if tasks is not None and tasks.may_have(request.subject):
            job.run(partial(self._look_for_task, request, tasks, job))
        else:
            self._look_without_task(request, job)

    def _look_without_task(self, request: McpToolRequest, job: Job) -> None:
        """The client has no task of this id."""
        if request.mode is Mode.OUTPUT:
            self._answers.turn_page(request, job)
        else:
            self._answers.reply(texts.unknown_task(request.subject), job)

    async def _look_for_task(self, request: McpToolRequest, tasks: TaskHandler, job: Job) -> None:
        client: ClientSession = job.client
        try:
            task = await tasks.waited_for(await tasks.find(request.subject), _TASK_SECONDS)
        except RpcFault:
            self._look_without_task(request, job)
            return
        if task.result is not None:
            await client.answer_kept(job, task.result)
        else:
            self._answers.reply(texts.task_told(task.id, task.status, task.outlook), job)

    # ---- connect -------------------------------------------------------------------------------------------------

    def _connect(self, request: McpToolRequest, job: Job) -> None:
        refusal = self._reader.refusal(request.mode, request.subject)
        if refusal is not None:
            self._answers.reply(refusal, job)
        else:
            job.run(partial(self._connect_and_list, request.subject, job))

    async def _connect_and_list(self, server: str, job: Job) -> None:
        try:
            await self._room.connections.connect_by_name(server)
        except UsageError as error:
            answer = texts.refused_request("connect", error)
        except CallError as error:
            answer = texts.failed_connect(server, error)
        else:
            await make_resolvable(self._room.catalogue.index)
            answer = self._reader.listing(server)
        self._answers.reply(answer, job)

    # ---- call ----------------------------------------------------------------------------------------------------

    def call(self, request: McpToolRequest, job: Job) -> None:
        """Carry out a request to call a tool."""
        found = self._room.catalogue.index_now().get(request.subject)
        if found is not None and request.server in (None, found.server):
            self._start(found, request, job)
        else:
            self._reply(partial(self._call_as_said, request, job), job)

    def _call_as_said(
        self, request: McpToolRequest, job: Job, reader: CatalogueReader
    ) -> McpToolAnswer | None:
        """Find a name that the index does not have in this spelling. Returns the answer, or None if the tool is
        called."""
        answer = self._start_as_said(request, job, reader)
        if answer is not None:
            self._turn_away(request.subject, request.server, request.args, answer)
        return answer

    def _turn_away(self, name: str, server: str | None, arguments: object, answer: McpToolAnswer) -> None:
        """This call ends here, with this answer."""
        call = Call("tools/call", {"name": name, "arguments": arguments}, tool=name)
        error = UsageError(answer.text, code=answer.details["error"], server=server or "")
        self._room.turn_away(call, error, server)

    def _start_as_said(
        self, request: McpToolRequest, job: Job, reader: CatalogueReader
    ) -> McpToolAnswer | None:
        found = self._room.catalogue.index.resolve(request.subject, request.server)
        if isinstance(found, Target):
            self._start(found, request, job)
            return None
        refusal = reader.refusal(Mode.CALL, request.server)
        if refusal is not None:
            return refusal
        if isinstance(found, AmbiguousName):
            return texts.ambiguous_tool("call", request.subject, found.candidates)
        excluded = reader.excluded(Mode.CALL, request.subject, request.server)
        if excluded is not None:
            return excluded
        if found.servers:
            job.run(partial(self._connect_and_call, request, job))
            return None
        return reader.missing(Mode.CALL, request.subject, request.server, args=request.args)

    def _start(self, target: Target, request: McpToolRequest, job: Job, begun: Call | None = None) -> None:
        """Start the call of a tool that the index knows. It is accepted or refused here, and ends by callback.
        `begun`: the call, if it began when its name was looked up."""
        on_progress = None
        if job.plain is None:  # a plain one is of the handshake era, and asks for no progress
            if job.modern:
                self._start_suspendable(target, request, job, begun)
                return
            if job.token is not None:
                on_progress = self._progress(target.server, job.progress)
        on_end = partial(self._ended, target, request, job)
        try:
            call = self._room.start_call(target, request.args, on_end, None, on_progress, None, False, begun)
        except UsageError as error:  # a reload has just removed the server; the index follows later
            self._reply(partial(self._refused, error, request), job)
        except CallError as error:
            self._answers.reply(texts.failed_call(error, target, self._hints), job)
        else:
            job.follow(call)

    def _start_suspendable(
        self, target: Target, request: McpToolRequest, job: Job, begun: Call | None
    ) -> None:
        """Start the call as `_start` does, for a client of 2026-07-28: a server request ends the job while the call
        goes on (`_suspended`)."""
        suspendable = SuspendableCall(
            self._suspended, job, target.server, partial(self._ended, target, request)
        )
        on_progress = self._progress(target.server, suspendable.progress) if job.token is not None else None
        try:
            call = self._room.start_call(
                target, request.args, suspendable.ended, on_progress=on_progress, begun=begun
            )
        except UsageError as error:
            suspendable.refused()
            self._reply(partial(self._refused, error, request), job)
        except CallError as error:
            suspendable.refused()
            self._answers.reply(texts.failed_call(error, target, self._hints), job)
        else:
            suspendable.follow(call)

    def _ended(self, target: Target, request: McpToolRequest, job: Job, call: Call) -> None:
        error = call.error
        try:
            if error is None:
                if self._on_answer is not None:
                    self._on_answer(target.name)
                self._answers.conclude(target, call.result or b"", job)
            elif error.reach is Reach.SENT or self._is_still(target, request):
                self._answers.reply(texts.failed_call(error, target, self._hints), job)
            else:
                failed = partial(self._failed, error, target, request, call.met_a_start)
                self._reply(failed, job)
        except Exception as error:
            job.broke(error)

    def _is_still(self, target: Target, request: McpToolRequest) -> bool:
        """Whether this name still means the same tool of this server."""
        found = self._room.catalogue.index.get(request.subject)
        return found is not None and found.server == target.server

    def _failed(
        self,
        error: CallError,
        target: Target,
        request: McpToolRequest,
        met_a_start: bool,
        reader: CatalogueReader,
    ) -> McpToolAnswer:
        """The answer to a call that failed. It says so if the server no longer has the tool: the index may have come
        from the cache, or the server has changed its list."""
        found = self._room.catalogue.index.resolve(request.subject, request.server)
        if isinstance(found, MissingName):
            return reader.missing(Mode.CALL, request.subject, target.server, connected_now=met_a_start)
        return texts.failed_call(error, target, self._hints)

    async def _connect_and_call(self, request: McpToolRequest, job: Job) -> None:
        """Call a tool that the index does not know: the room connects the server that may have it, and looks
        again."""
        call = Call("tools/call", {"name": request.subject, "arguments": request.args}, tool=request.subject)
        try:
            async with self._room.found(call, request.args, request.server) as target:
                self._start(target, request, job, call)
        except GreenroomError as error:
            self._answers.reply(await self.why_refused(error, request), job)

    async def why_refused(self, error: GreenroomError, request: McpToolRequest) -> McpToolAnswer:
        """The answer to a call that ended with this error."""
        return self._refused(error, request, await self._prepared_reader())

    def _refused(
        self, error: GreenroomError, request: McpToolRequest, reader: CatalogueReader
    ) -> McpToolAnswer:
        found = self._room.catalogue.index.resolve(request.subject, request.server)
        if isinstance(error, CallError) and not isinstance(error, UsageError):
            return texts.failed_call(error, found if isinstance(found, Target) else None, self._hints)
        if isinstance(error, AmbiguousTool):
            return texts.ambiguous_tool("call", error.tool, error.candidates)
        if isinstance(error, UnknownTool):
            owners = found.servers if isinstance(found, MissingName) else ()
            server = request.server or next(iter((*error.connected, *owners)), None)
            connected_now = server in error.connected
            return reader.missing(
                Mode.CALL, request.subject, server, connected_now=connected_now, args=request.args
            )
        if isinstance(error, UnknownServer):
            refusal = reader.refusal(Mode.CALL, error.server)
            return refusal or texts.refused_request("call", error)
        at_fault = found if isinstance(found, Target) and error.code == "invalid_args" else None
        return texts.refused_request("call", error, at_fault, self._hints)


def _tasks_of(job: Job) -> TaskHandler | None:
    return None if job.client is None else job.client.tasks


def _with(answer: McpToolAnswer, more: str) -> McpToolAnswer:
    added = McpToolAnswer.of(more).content if more else ()
    return McpToolAnswer((*answer.content, *added), answer.details)


# ---- The `mcp` tool for our own programs -----------------------------------------------------------------------------
#
# Sends it a request and returns the result, without a client in between.


class _JobSink:
    """A sink for one job."""

    def __init__(self) -> None:
        self.done = anyio.Event()
        self.result: Mapping[str, Any] = {}
        self.error: CallError | None = None

    def job_done(self, job: Job, result: Mapping[str, Any] | None, error: RpcFault | None) -> None:
        self.result = {
            key: read_value(part) if isinstance(part, msgspec.Raw) else part
            for key, part in (result or {}).items()
        }
        if error is not None:
            self.error = CallError(error.message, server="", reach=Reach.NOT_SENT)
        self.done.set()

    def line_of(self, job: Job, result: bytes, *, modern: bool) -> bytes:
        return result

    def line_for(self, job: Job, result: Mapping[str, Any], *, is_large: bool = False) -> bytes:
        return encode(result)

    def job_line(self, job: Job, line: bytes) -> None:
        self.job_done(job, decode_result(line), None)

    def job_progress(self, job: Job, params: Mapping[str, Any]) -> None:
        pass

    def job_broke(self, job: Job, error: Exception) -> None:
        text = f"A bug in Greenroom, please report it: {in_words(error)}"
        self.error = Bug(text, server="")
        self.done.set()


async def ask(tool: McpTool, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The result of one request to `tool`, as a client would get it. Cancelling this cancels the request.

    Raises `Bug` for an error of our own.
    """
    sink = _JobSink()
    async with anyio.create_task_group() as group:
        job = Job(sink, group.start_soon, b"1")
        tool.begin(arguments, job)
        try:
            await sink.done.wait()
        finally:
            job.cancel()
    if sink.error is not None:
        raise sink.error
    return sink.result
