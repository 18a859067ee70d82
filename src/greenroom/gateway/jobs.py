"""A job: one request at a door that takes time, from its arrival to its only answer.

An exposure (what a door shows) is given a job and ends it with exactly one answer or error. Most jobs need no
task: the exposure starts a call, lets the job `follow` it, and the call's callback answers. Work that has to
wait for more than a call is given to `run`. Whoever made the job can cancel it at any moment. That also
cancels the call it follows and the task it runs, and a late answer is dropped.
"""

from __future__ import annotations

import traceback
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import anyio
import msgspec

from ..actors.call import Call
from ..actors.current_trace import CURRENT
from ..actors.open_requests import IncomingTable, Refusals
from ..actors.workers import aside
from ..protocol import jsonrpc as rpc
from ..protocol.bounds import DECODED_VALUES, LARGE_MESSAGE
from ..protocol.errors import Busy, RoomClosed, UsageError
from ..protocol.jsonrpc.incoming import ABSENT, PlainCall
from ..protocol.jsonrpc.outgoing import raw_line
from ..protocol.jsonrpc.terms import INVALID_PARAMS, RpcFault
from ..protocol.long_text import holds
from ..protocol.tasks import CANCEL, GET, LIST, RESULT, UPDATE
from ..protocol.trace_context import TraceContext
from ..protocol.value_count import takes_long_to_decode
from ..protocol.version_differences import newest_result, older_result
from ..safety.audit import AUDITED
from .message_origin import ESCAPE, NAMED, result_without_ours, without_ours
from .next_steps import PLAIN, Commands
from .result_meta import ERROR

if TYPE_CHECKING:
    from ..supervisor.port import RoomPort
    from .client_tasks import TaskStream


Work = Callable[[], Coroutine[Any, Any, None]]
Spawn = Callable[[Work], object]


def read_large(params: msgspec.Raw) -> Mapping[str, msgspec.Raw]:
    """The params of a large request, each still JSON. Its answers to a server are looked through, because they are
    decoded in one go. Work for a thread. Raises `RpcFault`."""
    parts = rpc.read_large_parts(params)
    said = parts.get("inputResponses", ABSENT)
    if rpc.nbytes(said) >= LARGE_MESSAGE and takes_long_to_decode(bytes(said)):
        text = f"Invalid params: inputResponses has more than {DECODED_VALUES:,} values and keys, or too many escapes."
        raise RpcFault(INVALID_PARAMS, text)
    return parts


class Sink(Protocol):
    """Where the answer of a job goes."""

    def job_done(self, job: Job, result: Mapping[str, Any] | None, error: RpcFault | None) -> None: ...

    def line_of(self, job: Job, result: bytes, *, modern: bool) -> bytes:
        """The line of an answer whose result is as a server sent it. `modern`: that server speaks 2026-07-28. Never
        raises. For a result of megabytes it is called in a thread."""
        ...

    def line_for(self, job: Job, result: Mapping[str, Any], *, is_large: bool = False) -> bytes:
        """The line of an answer whose result is ours. `is_large`: it holds megabytes, and this is called in a
        thread."""
        ...

    def job_line(self, job: Job, line: bytes) -> None:
        """End with an answer that is a line already."""
        ...

    def job_progress(self, job: Job, params: Mapping[str, Any]) -> None: ...

    def job_broke(self, job: Job, error: Exception) -> None:
        """Our own code raised: answer that, and report the bug."""
        ...


class Job:
    """One request. `key` is its id as the client wrote it. `raw` is its params, and `params` the same by
    name, each value still bytes. `token` is its progress token, or None. As in `Exchange`, fields of which
    the short way knows nothing are class attributes, and so are those that are set before they are read.

    A tools/call with only a name and arguments is `plain`: it has no `params`, no `meta` and no token.
    """

    params: Mapping[str, msgspec.Raw] = {}  # never written to
    meta: Mapping[str, Any] | None = None
    token: Any = None
    modern: bool = False
    is_large: bool = False  # `raw` is megabytes, so it is not decoded
    client: Any = None  # the client that sent it
    trace: TraceContext | None = None  # the trace that it belongs to
    tasks: TaskStream | None = None  # of a `subscriptions/listen`: the tasks of which its client is told
    in_task: bool = False  # its answer goes to a task, and not to its client
    has_call: bool = False  # a call of it has begun in the room, and ends there, whatever comes of it
    wrapped_output: Mapping[str, Any] | None = None  # `Target.wrapped_output` of the tool it calls
    is_for_all: bool = False  # its result goes as it is, whatever version its client speaks
    _call: Call | None = None  # that it follows
    _tasks: int = 0  # how many it was given to run
    _scope: anyio.CancelScope | None = None  # of the task that runs

    def __init__(
        self,
        sink: Sink,
        spawn: Spawn,
        key: bytes,
        method: str = "tools/call",
        raw: msgspec.Raw = ABSENT,
    ) -> None:
        self.key = key
        self.method = method
        self.raw = raw
        self.plain: PlainCall | None = None
        self.waits: bool = True  # at the door: it has not ended, and no call has taken it over
        self.on_handed_over: Callable[[], None] | None = None  # called once, when it no longer `waits`
        self.on_task: Callable[[], object] | None = None  # called when a server runs a task for its call
        self.on_end: Callable[[], object] | None = None  # called when it has ended
        self.news: Mapping[str, Any] | None = None  # of ours, for `_meta` of its result
        self._sink = sink
        self._spawn = spawn
        self._ended: bool = False

    # ---- for the exposure --------------------------------------------------------------------------------------

    @property
    def commands(self) -> Commands:
        """Ours, as they are typed for the configuration of its door."""
        return PLAIN if self.client is None else self.client.commands

    @property
    def declared(self) -> Mapping[str, Any]:
        """The client capabilities that this request declares, as requests do from 2026-07-28 on."""
        said = None if self.meta is None else self.meta.get(rpc.CAPABILITIES_KEY)
        return cast("dict[str, Any]", said) if isinstance(said, dict) else {}

    def answer(self, result: Mapping[str, Any]) -> None:
        """End with a result."""
        if self._end():
            self._sink.job_done(self, result, None)

    def answer_raw(self, result: bytes, modern: bool = False) -> None:
        """End with a result as a server sent it. `modern`: that server speaks 2026-07-28."""
        if not self._ended:
            call, sink = self._call, self._sink
            if call is not None and call.news is not None:
                self.news = call.news
            if not self.is_for_all:
                line = sink.line_of(self, result, modern=modern)
            elif self.news is None:
                line = raw_line(self.key, result)
            else:
                line = raw_line(self.key, rpc.result_with_meta(result, self.news))
            self._ended = True  # as in `_end`; nearly every call of a tool ends here, so a step is saved
            self._call = None
            if self.waits:
                self._hand_over()
            if self.on_end is not None:
                self.on_end()
            sink.job_line(self, line)

    async def answer_large(self, result: bytes, *, modern: bool = False) -> None:
        """End with a result of megabytes, as a server sent it. The line is made in a thread."""
        await self._answer_from_thread(lambda sink: sink.line_of(self, result, modern=modern))

    async def answer_large_own(self, result: Mapping[str, Any]) -> None:
        """End with a result of ours that holds megabytes. The line is made in a thread."""
        await self._answer_from_thread(lambda sink: sink.line_for(self, result, is_large=True))

    async def _answer_from_thread(self, make: Callable[[Sink], bytes]) -> None:
        if self._call is not None:
            self.news = self._call.news
        sink, line = self._sink, await aside(partial(make, self._sink))
        while sink is not self._sink:  # it has become a task meanwhile
            sink, line = self._sink, await aside(partial(make, self._sink))
        if self._end():
            sink.job_line(self, line)

    def answer_line(self, line: bytes) -> None:
        """End with a result that is a line already."""
        if self._end():
            self._sink.job_line(self, line)

    def begin_span(self) -> None:
        """The job has been read and begins. If it is traced, its span begins, and `trace` becomes the parent of its
        work."""

    @property
    def ended(self) -> bool:
        return self._ended

    def fail(self, code: int, message: str, data: Any = None) -> None:
        """End with a JSON-RPC error."""
        if self._end():
            self._sink.job_done(self, None, RpcFault(code, message, data))

    def progress(self, params: Mapping[str, Any]) -> None:
        """Report progress to the client, if it asked for that and the job has not ended."""
        if self.token is not None and not self._ended:
            self._sink.job_progress(self, params)

    def broke(self, error: Exception) -> None:
        """End with an error that was raised on the way. An `RpcFault` is answered as it is, a `UsageError` as invalid
        params, and any other as a bug of ours."""
        call, scope = self._call, self._scope
        if not self._end():
            return
        if isinstance(error, UsageError):
            error = RpcFault(INVALID_PARAMS, f"Invalid params: {error.message}", {"error": error.code})
        if isinstance(error, RpcFault):
            self._sink.job_done(self, None, error)
        else:
            self._sink.job_broke(self, error)
        if call is not None:
            call.cancel()
        if scope is not None:
            scope.cancel()

    def concluded_by(self, step: Callable[..., None], *what: Any) -> Callable[[Any], None]:
        """An `on_end` for a call. It calls `step(*what, call)`, which ends the job. If that raises, the error ends the
        job."""
        return partial(self._conclude, step, what)

    def _conclude(self, step: Callable[..., None], what: tuple[Any, ...], call: Any) -> None:
        try:
            step(*what, call)
        except Exception as error:
            self.broke(error)

    def follows(self, call: object) -> bool:
        return call is not None and self._call is call

    def follow(self, call: Call) -> None:
        """From now on, cancelling the job cancels `call`. The call may have ended already."""
        if not self._ended:
            self._call = call
            self.waits = False
            if self.on_task is not None:
                call.on_task = self.on_task
            if self.on_handed_over is not None:
                self._hand_over()

    def goes_to(self, sink: Sink) -> None:
        """Its answer goes to a task from now on: its client has been answered."""
        self._sink, self.in_task = sink, True

    def let_go(self) -> None:
        """Follow no call any more. The call goes on when the job ends."""
        self._call = None

    def run(self, work: Work) -> None:
        """Do `work` in a task of the job's own. It must end the job, or pass it on to a call or to another
        `run`."""
        number = self._tasks = self._tasks + 1
        self._spawn(lambda: self._contained(work, number))

    # ---- for the client session ---------------------------------------------------------------------------------

    def cancel(self) -> None:
        """The client no longer wants an answer. Idempotent."""
        call = self._call
        if not self._end():
            return
        if call is not None:
            call.cancel()
        if self._scope is not None:
            self._scope.cancel()

    def _end(self) -> bool:
        if self._ended:
            return False
        self._ended = True
        if self.waits:
            self._hand_over()
        if self.on_end is not None:
            self.on_end()
        call = self._call
        if call is not None and call.news is not None:
            self.news = call.news  # while the job still knows its call
        self._call = None  # its callback refers to this job: a cycle would need the garbage collector
        return True

    def _hand_over(self) -> None:
        self.waits: bool = False
        done, self.on_handed_over = self.on_handed_over, None
        if done is not None:
            done()

    async def _contained(self, work: Work, number: int) -> None:
        """Run the job's task. A bug in it ends the job, is reported, and affects nothing else. It is also a
        bug if the task leaves the job without a call or a later task that could end it.

        The scope is made here: asyncio has one only in a task, and a callback may have asked for the task."""
        if self._ended:
            return  # cancelled before it began
        with anyio.CancelScope() as scope:
            self._scope = scope
            CURRENT.set(self.trace)
            try:
                await work()
                if not self._ended and self._call is None and self._tasks == number:
                    raise RuntimeError(f"{self.method} was left without an answer")
            except Exception as error:
                if self._scope is scope:
                    self._scope = None  # this task is ending, so nothing in it needs to be cancelled
                self.broke(error)

    def to_tell(self, result: bytes) -> bytes:
        """A result as a server sent it, without what is ours to say, and with what is new."""
        if holds(result, NAMED) or holds(result, ESCAPE):
            result = result_without_ours(result)
        return result if self.news is None else rpc.result_with_meta(result, self.news)

    @property
    def subscription(self) -> Mapping[str, Any]:
        """The `_meta` of all that a client is told on the stream of this `subscriptions/listen`."""
        return {SUBSCRIPTION_KEY: rpc.read_value(msgspec.Raw(self.key))}

    def to_call(self) -> Call:
        """The call that a job asks for, as its client wrote it."""
        plain = self.plain
        if plain is not None:
            return Call(self.method, plain.renamed(plain.name), tool=plain.name)
        params = dict[str, Any]()
        for key in ("name", "uri"):
            with suppress(RpcFault):
                if isinstance(name := rpc.read_value(self.params.get(key)), str):
                    params[key] = name
        if "arguments" in self.params:
            params["arguments"] = self.params["arguments"]
        return Call(self.method, params, tool=params.get("name") if self.method == "tools/call" else None)

    def to_inner_call(self) -> tuple[Call | None, str | None]:
        """The call that a request to the `mcp` tool asks for, and the server that it names; None: it asks for something
        else."""
        try:
            arguments = rpc.read_call(self.raw).arguments or {}
        except RpcFault:
            return None, None
        tool, server = arguments.get("tool"), cast("Any", arguments.get("server"))
        if not isinstance(tool, str) or not tool:
            return None, None
        call = Call("tools/call", {"name": tool, "arguments": arguments.get("args")}, tool=tool)
        return call, server if isinstance(server, str) and server else None


# ---- The requests of one client that have no answer yet, and the answers they get -----------------------------------
#
# A request leaves the table of open ones in the step that sends its answer; only a cancellation removes it
# elsewhere. The exposure makes the answer, and this module adds the fields that the version of the request asks
# for. If an answer cannot be written, the client gets an error that says why. A bug of ours is answered with
# -32603, and no traceback is ever sent.

# A server may let its results be cached; that does not hold for the gateway.
_UNCACHED: Final = {"ttlMs": 0, "cacheScope": "private"}
UNTOLD: Final = object()  # in place of a progress token: only a task that the call may become wants progress
_FRAMES_TOLD: Final = 4  # the innermost frames of a bug's traceback
OpenJobs = IncomingTable[bytes, Job]  # by the request ids, as the client wrote them
REFUSALS: Final = Refusals(
    full="Too many calls in flight ({open}); nothing was called. Retry when some have ended.",
    same_id="Invalid request: a call with this id is still in flight.",
    closing="The gateway is shutting down; nothing was called.",
)


class AnswerSink:
    """The sink of a client's jobs. `send` is given lines, `tell` notifications, `note` reports of bugs."""

    def __init__(
        self,
        jobs: OpenJobs,
        send: Callable[[bytes], bool],
        tell: Callable[[str, Mapping[str, Any]], None],
        server_info: Mapping[str, str],
        note: Callable[[str], None],
    ) -> None:
        self.jobs = jobs
        self._send = send
        self._tell = tell
        self._server_info = server_info
        self._note = note
        self.version = rpc.HANDSHAKE_VERSIONS[-1]  # of a client that speaks by handshake
        self.errors_as_results = False  # a call of a tool never ends with a JSON-RPC error

    def job_done(self, job: Job, result: Mapping[str, Any] | None, error: RpcFault | None) -> None:
        if error is None:
            self.job_line(job, self.line_for(job, result or {}))
            return
        try:
            line = self._error_line(job, error)
        except Exception as problem:
            line = self._unsayable(job, problem)
        self.job_line(job, line)

    def line_for(self, job: Job, result: Mapping[str, Any], *, is_large: bool = False) -> bytes:
        try:
            if job.news is not None:
                result = {**result, "_meta": {**(result.get("_meta") or {}), **job.news}}
            stamped = self.stamped(result, cacheable=job.method in _CACHEABLE) if job.modern else result
            return (rpc.large_result_line if is_large else rpc.result_line)(job.key, stamped)
        except Exception as problem:
            return self._unsayable(job, problem)

    def line_of(self, job: Job, result: bytes, *, modern: bool, is_kept: bool = False) -> bytes:
        """`is_kept`: it has been made to be told before, by `result_to_keep`; then `modern` says its form."""
        try:
            if not is_kept:
                result = job.to_tell(result)
            if job.modern:
                cached = _UNCACHED if job.method == "resources/read" else {}
                result = rpc.for_modern(result, {rpc.SERVER_INFO_KEY: self._server_info}, cached)
            else:
                older = rpc.for_handshake(result) if modern else result
                result = older_result(older, self.version, newer=modern, wrapped=job.wrapped_output)
            return raw_line(job.key, result)
        except Exception as problem:
            return self._unsayable(job, problem)

    def result_to_keep(self, job: Job, result: bytes, *, modern: bool) -> bytes:
        """A result as a server sent it, in the newest form, from which `line_of` makes any other."""
        newest = newest_result(job.to_tell(result), newer=modern, wrapped=job.wrapped_output)
        return rpc.for_modern(newest, {rpc.SERVER_INFO_KEY: self._server_info}, {})

    def job_progress(self, job: Job, params: Mapping[str, Any]) -> None:
        if job.token is UNTOLD:
            return
        self._tell(rpc.PROGRESS, {**without_ours(params), "progressToken": job.token})

    def job_broke(self, job: Job, error: Exception) -> None:
        self.job_line(job, self._error_line(job, self.bug(error)))

    def job_line(self, job: Job, line: bytes) -> None:
        """Remove a request from the table and send its answer. No other place does both. The line is finished
        already, so nothing can fail between the two."""
        if self.jobs.pop(job.key, None) is None or self._send(line):
            return
        text = (
            f"The answer ({len(line)} bytes) was dropped: the client does not read what was sent before it."
        )
        self._send(rpc.error_line(job.key, RpcFault(rpc.OVERLOADED, text)))

    def _unsayable(self, job: Job, problem: Exception) -> bytes:
        """The error in place of an answer that cannot be written. If a server's content is the cause, the
        error names that; any other cause is a bug of ours."""
        if not isinstance(problem, rpc.UNWRITABLE):
            return self._error_line(job, self.bug(problem))
        why = "it is nested too deeply" if isinstance(problem, RecursionError) else str(problem)
        text = f"The answer to {job.method} cannot be passed on: {why}. Its server must send it otherwise."
        return self._error_line(job, RpcFault(rpc.INTERNAL_ERROR, text))

    def _error_line(self, job: Job, error: RpcFault) -> bytes:
        """The line of an error, in the form that the client of this job can take."""
        if not self.errors_as_results or job.method != "tools/call":
            return rpc.error_line(job.key, error)
        said = {"error": "rpc_error", "code": error.code, "message": error.message, "data": error.data}
        result = {
            "content": [{"type": "text", "text": error.message}],
            "isError": True,
            "_meta": {ERROR: said},
        }
        return rpc.result_line(job.key, self.stamped(result) if job.modern else result)

    def bug(self, error: Exception) -> RpcFault:
        """Note a bug of ours. Returns the error that is answered in its place."""
        self._note(bug_in_words(error))
        return RpcFault(rpc.INTERNAL_ERROR, "Internal error in the gateway; its log has the details.")

    def stamped(self, result: Mapping[str, Any], *, cacheable: bool = False) -> dict[str, Any]:
        """The result with the fields that 2026-07-28 requires. `cacheable`: also those of results that a client may
        cache."""
        stamped: dict[str, Any] = {"resultType": "complete", **(_UNCACHED if cacheable else {}), **result}
        stamped["_meta"] = {**(result.get("_meta") or {}), rpc.SERVER_INFO_KEY: self._server_info}
        return stamped


def bug_in_words(error: Exception) -> str:
    """A bug of ours, for the log: the type and the place of the error, but not its message, which may quote what was
    passed on."""
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES_TOLD:]
    places = [f"{Path(frame.filename).name}, line {frame.lineno}" for frame in frames]
    where = f" at {', from '.join(reversed(places))}" if places else ""
    return f"a bug in Greenroom, please report it: {type(error).__name__}{where}"


# ---- The streams of 2026-07-28 --------------------------------------------------------------------------------------

SUBSCRIPTION_KEY: Final = f"{rpc.META}subscriptionId"
_ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"


@asynccontextmanager
async def acknowledged(job: Job, said: Mapping[str, Any]) -> AsyncGenerator[None]:
    """Acknowledge what the client is told on the stream of this job: what `said` says, and its tasks as long as the
    context is open."""
    meta, tasks = job.subscription, job.tasks
    if tasks is not None:
        await tasks.find()
    granted = said if tasks is None else {**said, "taskIds": tasks.ids}
    job.client.tell(_ACKNOWLEDGED, {"notifications": granted, "_meta": meta})
    if tasks is None:
        yield
        return
    with tasks.told(meta):
        yield


# ---- The call of a request that nobody can carry out ---------------------------------------------------------------

_CALLING: Final = ("mcp", "mcp_call")  # our own tools that call another one


def turn_away_unbegun(room: RoomPort, is_direct: bool, job: Job, *, closing: bool, doubled: bool) -> None:
    """A request is refused unread: the gateway is ending, too many are open, or its id is in use."""
    if job.method in AUDITED:
        call = job.to_call()
        is_ours = not is_direct and call.tool in _CALLING and not job.is_large
        found, server = job.to_inner_call() if is_ours else (call, None)
        if found is not None:
            kind = RoomClosed if closing else UsageError if doubled else Busy
            error = UsageError("The request was refused unread.", code=kind.code, server=server or "")
            room.turn_away(found, error, server)


# ---- Which method exists in which era of the protocol, and to which era a request belongs ---------------------------
#
# The era is a property of each request, not of the connection. A request whose `_meta` names the version
# 2026-07-28 is of that version; any other is of the handshake era. A method that does not exist in its
# request's era is -32601.


LISTS: Final = frozenset(
    {"tools/list", "resources/list", "resources/templates/list", "prompts/list", "skills/list"}
)
_OF_BOTH: Final = LISTS | {
    *("tools/call", "resources/read", "resources/directory/read", "prompts/get", "completion/complete"),
    *("skills/get", GET, CANCEL),
}
_HANDSHAKE_METHODS: Final = _OF_BOTH | {
    *("initialize", "ping", "resources/subscribe", "resources/unsubscribe", "logging/setLevel", RESULT, LIST)
}
_STATELESS_METHODS: Final = _OF_BOTH | {"server/discover", UPDATE, rpc.LISTEN}
METHODS: Final = _HANDSHAKE_METHODS | _STATELESS_METHODS
_CACHEABLE: Final = LISTS | {"skills/get"}
# The methods that may take time.
JOBS: Final = METHODS - LISTS - {"initialize", "ping", "server/discover"}


def stateless_meta(method: str, meta: object) -> Mapping[str, Any] | None:
    """The `_meta` of a request of 2026-07-28; None for a request of the handshake era. Raises `RpcFault` for
    an unknown version, and for a method that does not exist in the request's era."""
    said = cast("Mapping[str, Any]", meta) if isinstance(meta, dict) else None
    version: object = None if said is None else said.get(rpc.VERSION_KEY)
    if version is not None and version not in rpc.MODERN_VERSIONS:
        data = {"supported": list(rpc.MODERN_VERSIONS), "requested": str(version)}
        raise RpcFault(rpc.UNSUPPORTED_VERSION, f"Unsupported protocol version: {version}", data)
    if method not in (_HANDSHAKE_METHODS if version is None else _STATELESS_METHODS):
        raise no_method(method)
    return None if version is None else said


def no_cursor() -> RpcFault:
    return RpcFault(rpc.INVALID_PARAMS, "Invalid params: there is no such cursor. List from the start.")


def check_cursor(cursor: object) -> None:
    """Raises `RpcFault` when a list that has one page is asked for another. The server should say so (server/utilities,
    pagination): a client that goes on with a cursor of somebody else would take the first page for the next."""
    if cursor is not None and cursor != "":
        raise no_cursor()


def no_method(method: str) -> RpcFault:
    return RpcFault(rpc.METHOD_NOT_FOUND, f"Method not found: {method}")
