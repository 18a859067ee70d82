"""The gateway's MCP methods, one handler for every door.

A door reads and writes lines. Everything in between is here, and only here: both eras of the protocol,
requests in flight in both directions, cancellation, progress. Each client has a `ClientSession`, which keeps
what is in flight. The `Endpoint` behind it is shared and has no state, so a door with many clients opens many
sessions of one endpoint.

`jobs` says which method exists in which era of the protocol and answers those that take time, and `ClientRequests`
has our own requests to the client. An unknown method is -32601, and so is one that the
exposure does not have.

A bad message affects nothing else: it is answered with a JSON-RPC error, if it can be answered at all, and
the next line is read. An error in Greenroom itself is answered with -32603 and reported to `note`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import anyio
import msgspec

from ..actors.current_trace import current_trace, within
from ..actors.host import in_common
from ..actors.login.caller_identity import CallerIdentity
from ..actors.open_requests import IncomingTable, RequestTable, mark_sent
from ..actors.peer import Exchange
from ..actors.timers import at_most
from ..actors.workers import aside
from ..protocol import jsonrpc as rpc
from ..protocol.bounds import DECODED_VALUES, ERROR_BYTES, LARGE_MESSAGE
from ..protocol.errors import RpcRefusal
from ..protocol.json_values import is_object
from ..protocol.jsonrpc.terms import RpcError, RpcFault
from ..protocol.tasks import ABOUT_TASKS, with_extension
from ..protocol.trace_context import trace_in
from ..protocol.value_count import takes_long_to_decode
from ..safety.audit import AUDITED
from .inbound_budget import InboundBudget
from .jobs import (
    JOBS,
    LISTS,
    METHODS,
    REFUSALS,
    AnswerSink,
    Job,
    OpenJobs,
    Spawn,
    check_cursor,
    no_method,
    read_large,
    stateless_meta,
)
from .next_steps import PLAIN, Commands

if TYPE_CHECKING:
    from .client_tasks import ClientTask, TaskHandler
    from .exposures.exposure import Exposure


class Outlet(Protocol):
    """What sends lines to one client of a door."""

    @property
    def busy(self) -> bool:
        """Whether so much waits for the client to read that no further notification should be sent."""
        ...

    def send(self, line: bytes, /) -> bool:
        """Send one line, newline included. Returns False if it was dropped because too much is waiting already. A short
        line is never dropped. Must not block or raise."""
        ...


def _nobody_asks(*_what: object, **_how: object) -> None:
    pass


class Endpoint(msgspec.Struct, frozen=True, eq=False):
    """What all client sessions of a gateway share.

    `version` is Greenroom's own, which clients are told. `note` is given the texts that belong in the log.
    `inbound_budget` bounds the bytes of all requests that wait, and `max_open` the requests that one client may have in
    flight. `commands` are the commands that clients are told of.
    """

    version: str
    note: Callable[[str], None]
    inbound_budget: InboundBudget
    commands: Commands = PLAIN
    max_open: int = 1024

    def server_info(self) -> dict[str, str]:
        return {"name": "greenroom", "title": "Greenroom", "version": self.version}


class ClientSession:
    """One client, which is shown `exposure`. `receive` is given its lines, one at a time; answers go to its outlet, in
    any order. `spawn` runs a coroutine function in a task group that outlives these answers."""

    def __init__(self, endpoint: Endpoint, exposure: Exposure, outlet: Outlet, spawn: Spawn) -> None:
        self._endpoint = endpoint
        self._exposure = exposure
        self.kind_of_job: type[Job] = Job
        self._outlet = outlet
        self._spawn = spawn
        self._open: OpenJobs = IncomingTable(endpoint.max_open, REFUSALS)
        self.answers: AnswerSink = AnswerSink(
            self._open, outlet.send, self.tell, endpoint.server_info(), endpoint.note
        )
        self._client_requests = ClientRequests(outlet.send)
        self._lists_by: float | None = None  # until when its lists may wait; set when it asks for one
        self._at_once: Final[Mapping[str, Callable[[rpc.ClientMessage], Mapping[str, Any]]]] = {
            "initialize": self._initialize,
            "ping": self._ping,
            "server/discover": self._discover,
            **dict.fromkeys(LISTS, self._list),
        }
        self._declared: Mapping[str, Any] = {}  # by its last request, or by `initialize`
        self._varies = False  # its requests have declared different things
        self.on_introduced: Callable[[object], object] = _nobody_asks
        self.on_refused: Callable[..., object] = _nobody_asks
        self.identify: Callable[[CallerIdentity], object] = _nobody_asks
        self._introduced = False
        self.client_name: str | None = None  # what the client calls itself, once it has said so
        self.tasks: TaskHandler | None = None  # if its calls can become tasks
        self.spawn_beside: Spawn = spawn  # runs what outlives the client
        # Several programs may be this client: they send the same token and client info (2026-07-28 over HTTP).
        self.may_be_several = False
        # Its last request was of 2026-07-28. It cannot be sent requests: its own is answered with `input_required`.
        self.modern = False
        # It has sent `notifications/initialized`, so that it may be sent notifications. Never from 2026-07-28 on.
        self.initialized = False
        self._gone = False

    async def ask(
        self, method: str, params: Mapping[str, Any], on_progress: OnProgress | None = None
    ) -> Mapping[str, Any]:
        """Send a request and return the client's result. Raises `RpcRefusal` for its error. Cancelling this cancels the
        request."""
        return await self._client_requests.ask(method, params, on_progress)

    @property
    def commands(self) -> Commands:
        """Ours, as they are typed for the configuration of its door."""
        return self._endpoint.commands

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """The client capabilities that it declared. From 2026-07-28 on each request declares them anew; then these are
        what all of its open calls have declared, because any of them may carry a server request."""
        if not self._varies:
            return self._declared
        open_calls = (job for job in self._open.values() if job.modern and job.method in AUDITED)
        said = [job.declared for job in open_calls if job.meta is not None]
        return reduce(in_common, said) if said else self._declared

    def tell_errors_as_results(self) -> None:
        """From now on a call of a tool never ends with a JSON-RPC error: what a server (or we) would answer with one
        becomes a result with `isError`. For clients that take such an error for the end of everything."""
        self.answers.errors_as_results = True

    @property
    def in_flight(self) -> int:
        """Requests that have no answer yet, and calls that wait until the client comes back with an answer."""
        running = self.tasks.running if self.tasks is not None else 0
        return len(self._open) + len(self._exposure.suspended) + running

    def initialize_again(self, initialize: bytes, *, initialized: bool, gateways: int) -> None:
        """Take in how the client introduced itself to an earlier gateway, which has answered it already. `initialized`:
        the client has also sent `notifications/initialized`. `gateways`: how many gateways it has had before; without
        any, nothing happens."""
        self._client_requests.number_after(gateways)
        if initialize:
            with suppress(RpcFault):
                self._initialize(rpc.read_client_line(initialize))
                self.initialized = initialized

    def receive(
        self, line: bytes | bytearray, envelope: rpc.ClientMessage | None = None, size: int = 0
    ) -> None:
        """Handle one line. `envelope`: of the line, if a door has read it already; `size`: the bytes of that message.
        Never raises."""
        key = b""
        try:
            if envelope is None:
                envelope = rpc.read_client_line(line)
            key = rpc.read_id(envelope)
            method = envelope.method
            if key and method in JOBS:
                job = self._begin(method, envelope, key)
                if job.waits:
                    self._hold(job, size or len(line))
            else:
                self._take(envelope, key, size or len(line))
        except Exception as error:
            self._refuse(key, line, error)

    async def receive_large(self, line: bytes | bytearray) -> None:
        """Handle a line of megabytes. Its envelope is read in a thread. Never raises."""
        key, parts = b"", None
        try:
            envelope = await aside(partial(rpc.read_client_line, line))
            key = rpc.read_id(envelope)
            if key and envelope.method in JOBS:
                parts = await aside(partial(read_large, envelope.params))
        except Exception as error:
            self._refuse(key, line, error)
        else:
            self.take_large(envelope, key, parts)

    def take_large(
        self, envelope: rpc.ClientMessage, key: bytes, parts: Mapping[str, msgspec.Raw] | None
    ) -> None:
        """Handle a message of megabytes whose envelope has been read. `parts` are the members of its params, each still
        JSON. Never raises."""
        try:
            method = envelope.method
            if key and method in JOBS:
                job = self._begin(method, envelope, key, parts)
                if job.waits:
                    self._hold(job, rpc.nbytes(envelope.params))
            elif key and method is not None and method not in METHODS:
                raise no_method(method)
            elif method is not None:
                text = f"Invalid request: only a request about an item may be as long as this, not {method}."
                raise RpcFault(rpc.INVALID_REQUEST, text)
            else:
                self._take_answer(envelope, key)
        except Exception as error:
            self._refuse(key, b"", error)

    def _refuse(self, key: bytes, line: bytes | bytearray, error: Exception) -> None:
        """Answer a message that raised this. `key` is its id, if that could be read; else its head may show one. If the
        message is itself an answer, the server request that it belongs to fails."""
        if not isinstance(error, RpcFault):
            self._outlet.send(rpc.error_line(key, self.answers.bug(error)))
            return
        if not key:
            key = rpc.read_head_id(line)
            if self._client_requests.broken(key, error):
                return
        self._outlet.send(rpc.error_line(key, error))

    def refuse_line(self, head: bytes, text: str) -> None:
        """Answer a line that was dropped unread. Only its head was kept."""
        self._refuse(b"", head, RpcFault(rpc.INVALID_REQUEST, text))

    def refuse_new(self) -> None:
        """Refuse new requests from now on, except those about tasks. Those in flight are still answered."""
        self._open.closing = True

    def close(self) -> None:
        """The client is gone: cancel its requests, and answer and tell nothing more."""
        self._gone = True
        self._open.cancel_all()
        self._client_requests.close()
        self._exposure.left(self)

    def leave(self) -> None:
        """The client is gone, but its tasks go on: from 2026-07-28 on a later client may answer what they ask."""
        if not self.modern:
            self.close()
            return
        self._open.cancel_all()
        self._client_requests.close()

    # ---- incoming -------------------------------------------------------------------------------------------------

    def _take(self, envelope: rpc.ClientMessage, key: bytes, size: int) -> None:
        method = envelope.method
        if method is None:
            self._take_answer(envelope, key)
        elif not key:
            self._take_notification(method, envelope)
        elif method in LISTS and self._exposure.settling_time:
            self._list_later(method, envelope, key, size)
        elif method in self._at_once:
            self._outlet.send(rpc.result_line(key, self._at_once[method](envelope)))
        else:
            raise no_method(method)

    def _take_answer(self, envelope: rpc.ClientMessage, key: bytes) -> None:
        if not rpc.nbytes(envelope.result) and not rpc.nbytes(envelope.error):
            fault = RpcFault(rpc.INVALID_REQUEST, "Invalid request: it has no method.")
            if not self._client_requests.broken(key, fault):
                raise fault
        self._client_requests.answered(key, envelope)

    def _take_notification(self, method: str, envelope: rpc.ClientMessage) -> None:
        if method == rpc.CANCELLED:
            self._cancelled(envelope)
        elif method == rpc.PROGRESS:
            self._client_requests.progressed(envelope)
        elif method == "notifications/initialized":
            self.initialized: bool = True
        else:
            self._exposure.heard(self, method)

    def _initialize(self, envelope: rpc.ClientMessage) -> Mapping[str, Any]:
        params = rpc.read_object(envelope.params)
        self._is_modern("initialize", params.get("_meta"))
        asked = params.get("protocolVersion")
        if not isinstance(asked, str):
            raise RpcFault(rpc.INVALID_PARAMS, "Invalid params: initialize needs protocolVersion, a string.")
        self._learn(params.get("capabilities"), params.get("clientInfo"), modern=False)
        version = asked if asked in rpc.HANDSHAKE_VERSIONS else rpc.HANDSHAKE_VERSIONS[-1]
        self.answers.version = version
        return {
            "protocolVersion": version,
            "capabilities": {**self._exposure.capabilities(), **(self.tasks.declared if self.tasks else {})},
            "serverInfo": self._endpoint.server_info(),
            **_instructions(self._exposure),
        }

    def _ping(self, envelope: rpc.ClientMessage) -> Mapping[str, Any]:
        self._is_modern("ping", rpc.read_object(envelope.params).get("_meta"))
        return {}

    def _discover(self, envelope: rpc.ClientMessage) -> Mapping[str, Any]:
        self._is_modern("server/discover", rpc.read_object(envelope.params).get("_meta"))
        said = self._exposure.capabilities()
        result = {
            "supportedVersions": list(rpc.MODERN_VERSIONS),
            "capabilities": with_extension(said)
            if self.tasks is not None and self.tasks.makes_some
            else said,
            **_instructions(self._exposure),
        }
        return self.answers.stamped(result, cacheable=True)

    def _list(self, envelope: rpc.ClientMessage) -> Mapping[str, Any]:
        assert envelope.method is not None
        params = rpc.read_object(envelope.params)
        modern = self._is_modern(envelope.method, params.get("_meta"))
        result = self._exposure.listing(envelope.method, modern=modern)
        if result is None:
            raise no_method(envelope.method)
        check_cursor(params.get("cursor"))
        return self.answers.stamped(result, cacheable=True) if modern else result

    def _list_later(self, method: str, envelope: rpc.ClientMessage, key: bytes, size: int) -> None:
        """Answer a list request later, because lists of servers are still being read. All lists of one client wait
        until the same moment at the latest."""
        job = self.kind_of_job(self.answers, self._spawn, key, method, envelope.params)
        job.client = self
        self._look_into(job)
        check_cursor(rpc.read_value(job.params.get("cursor")))
        self._open.check(key)
        self._open[key] = job
        job.begin_span()
        if self._lists_by is None:
            self._lists_by = anyio.current_time() + self._exposure.settling_time
        job.run(partial(_settle_and_list, self._exposure, job, self._lists_by))
        self._hold(job, size)

    def _begin(
        self,
        method: str,
        envelope: rpc.ClientMessage,
        key: bytes,
        parts: Mapping[str, msgspec.Raw] | None = None,
    ) -> Job:
        """Begin a request that may take time, as a job. `parts`: the members of its params, if they have been read."""
        kind = self.kind_of_job
        job = kind(self.answers, self._spawn, key, method, envelope.params)
        job.client = self
        job.trace = current_trace()  # what its door was told beside it
        if parts is not None:
            job.is_large = True
        if method == "tools/call":
            job.plain = rpc.read_plain_call(envelope.params) if parts is None else rpc.plain_call(parts)
        if job.plain is None:
            self._look_into(job, parts)
        jobs = self._open
        if jobs.closing or key in jobs or len(jobs) >= jobs.limit:
            goes_on = method in ABOUT_TASKS and key not in jobs and len(jobs) < jobs.limit
            if not goes_on:
                self.on_refused(job, closing=jobs.closing, doubled=key in jobs)
                jobs.check(key)  # raises
        jobs[key] = job
        try:
            if kind is not Job:  # only a traced one has a span
                job.begin_span()
            if job.plain is None and self.tasks is not None and self.tasks.takes(job):
                return job
            if job.trace is None:
                is_known = self._exposure.begin(job)
            else:
                with within(job.trace):
                    is_known = self._exposure.begin(job)
            if not is_known:
                raise no_method(job.method)
        except Exception as error:
            job.broke(error)
        return job

    # ---- for its tasks --------------------------------------------------------------------------------------------

    def task_job(self, task: ClientTask, asked: Job, params: Mapping[str, msgspec.Raw]) -> Job:
        """A job like the one that was asked for, with these params, whose answer goes to the task."""
        job = Job(task, self.spawn_beside, asked.key, asked.method, msgspec.Raw(rpc.encode(params)))
        job.client, job.trace, job.meta = self, asked.trace, asked.meta
        job.params, job.modern, job.token, job.in_task = params, asked.modern, "task", True
        return job

    @property
    def version(self) -> str:
        """The version that it speaks, or 2026-07-28."""
        return rpc.MODERN_VERSIONS[-1] if self.modern else self.answers.version

    def begin_task(self, job: Job) -> bool:
        """Begin a job that works for a task."""
        if job.trace is None:
            return self._exposure.begin(job)
        with within(job.trace):
            return self._exposure.begin(job)

    def task_of(self, call: object) -> ClientTask | None:
        """The task of this client for which the call works, if it does. A task that a model has begun is none of a
        client of 2026-07-28: it could not answer."""
        task = None if self.tasks is None or call is None else self.tasks.working_on(call)
        return task if task is not None and task.modern is self.modern else None

    async def answer_long(self, job: Job, result: Mapping[str, Any]) -> None:
        """Answer with a result of ours that holds megabytes. The line is made in a thread."""
        job.answer_line(await aside(partial(self.answers.line_for, job, result)))

    async def answer_kept(self, job: Job, result: bytes, *, modern: bool = True) -> None:
        """Answer with a result as a task keeps it. `modern`: it is still in the form of 2026-07-28."""
        make = partial(self.answers.line_of, job, result, modern=modern, is_kept=True)
        job.answer_line(await aside(make) if len(result) > LARGE_MESSAGE else make())

    def is_open(self, job: Job) -> bool:
        """Whether the client still waits for the answer to this request."""
        return self._open.get(job.key) is job

    def _hold(self, job: Job, size: int) -> None:
        """No call has taken the request over yet: count it among what waits at the doors, or refuse it if that is too
        much."""
        inbound_budget = self._endpoint.inbound_budget
        try:
            inbound_budget.take(size)
        except RpcFault as fault:
            self.on_refused(job, closing=False, doubled=False)
            job.broke(fault)
        else:
            job.on_handed_over = partial(inbound_budget.give_back, size)

    def _look_into(self, job: Job, parts: Mapping[str, msgspec.Raw] | None = None) -> None:
        """Read what a request says about itself: its era, its `_meta`, its progress token. Raises `RpcFault`."""
        job.params = rpc.read_parts(job.raw) if parts is None else parts
        job.meta = rpc.read_meta(job.params)
        job.modern = self._is_modern(job.method, job.meta)
        if job.meta is not None:
            job.token = job.meta.get("progressToken")
            job.trace = trace_in(job.meta) or job.trace

    def _cancelled(self, envelope: rpc.ClientMessage) -> None:
        try:
            self._open.cancel(rpc.read_cancel(envelope.params))
        except RpcFault as fault:
            self._endpoint.note(f"ignored a cancellation: {fault.message}")

    def _is_modern(self, method: str, meta: object) -> bool:
        """Whether a request is of 2026-07-28. Raises `RpcFault` for an unknown version, and for a method that
        does not exist in the request's era."""
        said = stateless_meta(method, meta)
        if said is None:
            return False
        capabilities = said.get(rpc.CAPABILITIES_KEY)
        if not (self.modern and self._introduced and capabilities == self._declared):
            self._learn(capabilities, said.get(rpc.CLIENT_INFO_KEY), modern=True)
        return True

    def _learn(self, capabilities: object, info: object, *, modern: bool) -> None:
        """Learn who the client is and what it can answer. From 2026-07-28 on every request of a client says so, nearly
        always in the same way."""
        self.modern: bool = modern
        said = _declared(capabilities)
        if said != self._declared or not self._introduced:
            self._varies = modern and (self._varies or self._introduced)
            self._introduced = True
            self._declared = said
            self.client_name = _name_in(info)
            self.on_introduced(info)
            self._exposure.came(self)

    # ---- outgoing -------------------------------------------------------------------------------------------------

    def tell(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification, unless the client is behind with its reading, or gone: the SDK's client of 1.x raises
        when something comes after it has left."""
        if not self._gone and not self._outlet.busy:
            self._outlet.send(rpc.encode_notification(method, params, rpc.encode))

    async def tell_long(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification whose params hold megabytes, as `tell` does. What cannot be written is not sent."""
        with suppress(*rpc.UNWRITABLE):
            line = await aside(partial(rpc.encode_notification, method, params, rpc.encode))
            if not self._gone and not self._outlet.busy:
                self._outlet.send(line)


def _name_in(info: object) -> str | None:
    """The name in a client's introduction of itself."""
    name = info.get("name") if is_object(info) else None
    return name[:_LONGEST_NAME] if isinstance(name, str) and name else None


def _declared(capabilities: object) -> Mapping[str, Any]:
    return cast("dict[str, Any]", capabilities) if isinstance(capabilities, dict) else {}


async def _settle_and_list(exposure: Exposure, job: Job, by: float) -> None:
    async with at_most(by - anyio.current_time()):
        await exposure.settle()
    result = exposure.listing(job.method, modern=job.modern)
    if result is not None:
        job.answer(result)
    else:
        fault = no_method(job.method)
        job.fail(fault.code, fault.message)


def _instructions(exposure: Exposure) -> dict[str, str]:
    text = exposure.instructions()
    return {} if text is None else {"instructions": text}


# ---- Our requests to a client, and its answers ----------------------------------------------------------------------
#
# The ids are ours (`greenroom-1`, and so on), so that requests of several servers are never confused. They
# serve as progress tokens too. Such a request ends when the client answers, when we cancel it (then the client is
# told), or when the client disconnects. A client's malformed answer is read as far as possible, and the server
# that asked gets an error that names the fault.

OnProgress = Callable[[Mapping[str, Any]], None]
_OURS: Final = "greenroom-"
_LONGEST_NAME: Final = 60  # characters of what a client calls itself
_IDS_OF_ONE: Final = 1_000_000_000  # requests of one gateway to one client, at most


class _OpenRequest:
    """The owner of one request to the client, with its answer."""

    def __init__(self) -> None:
        self.answered = anyio.Event()
        self.result = b""
        self.error: RpcError | None = None

    def exchange_sent(self, exchange: Exchange, /) -> None:
        pass

    def exchange_ended(self, exchange: Exchange, result: bytes | None, error: RpcError | None, /) -> None:
        self.result, self.error = result or b"", error
        self.answered.set()

    def exchange_progressed(self, exchange: Exchange, params: Mapping[str, Any], /) -> None:
        if exchange.on_progress is not None:
            exchange.on_progress(params)


class ClientRequests:
    """The open requests to one client. `send` takes lines."""

    def __init__(self, send: Callable[[bytes], bool]) -> None:
        self._send = send
        self._requests = RequestTable()

    def number_after(self, gateways: int) -> None:
        """Use no id that an earlier gateway may have used: the client has had so many gateways, and may still answer
        their requests."""
        self._requests.last_id = gateways * _IDS_OF_ONE

    async def ask(
        self, method: str, params: Mapping[str, Any], on_progress: OnProgress | None = None
    ) -> Mapping[str, Any]:
        """Send a request and return the client's result. With `on_progress` the client is asked to report
        progress. Raises `RpcRefusal` for the client's error, or when the client is gone. Cancelling this
        tells the client that its answer is no longer wanted."""
        name = f"{_OURS}{self._requests.last_id + 1}"
        meta: Mapping[str, Any] = params.get("_meta") or {}
        if on_progress is not None:
            params = {**params, "_meta": {**meta, "progressToken": name}}
        request = _OpenRequest()
        exchange = Exchange(request, method, params, on_progress=on_progress)
        line = rpc.request_line(rpc.encode(name), method, params)
        self._requests.open(exchange)
        mark_sent(exchange)
        self._send(line)
        try:
            await request.answered.wait()
        finally:
            if self._requests.withdraw(exchange):  # it has no answer yet
                told = {"requestId": name, "reason": "the server no longer waits for it"}
                self._send(rpc.encode_notification(rpc.CANCELLED, told, rpc.encode))
        result: Mapping[str, Any] = {}
        error = request.error
        if error is None:
            read = partial(_result_in, request.result)
            result, error = await aside(read) if len(request.result) >= LARGE_MESSAGE else read()
        if error is not None:
            raise RpcRefusal(error.code, error.message, error.data)
        return result

    def answered(self, key: bytes, envelope: rpc.ClientMessage) -> None:
        """An answer came. If nobody waits for it, it is dropped: it crossed our cancellation on the wire."""
        request = self._requests.answered(_number(_name(key)))
        if request is None:
            return
        size = rpc.nbytes(envelope.error)
        if size > ERROR_BYTES:
            text = f"The client's error has more than {ERROR_BYTES:,} bytes."
            request.owner.exchange_ended(request, None, RpcError(rpc.INTERNAL_ERROR, text))
        elif size and bytes(envelope.error) != b"null":
            request.owner.exchange_ended(request, None, _error_in(envelope.error))
        else:
            request.owner.exchange_ended(request, bytes(envelope.result), None)

    def broken(self, key: bytes, fault: RpcFault) -> bool:
        """A message with this id came that cannot be read. Fails the request that it answers. Returns False if it
        answers none."""
        request = self._requests.answered(_number(_name(key)))
        if request is None:
            return False
        request.owner.exchange_ended(request, None, _unreadable(fault))
        return True

    def progressed(self, envelope: rpc.ClientMessage) -> None:
        try:
            params = rpc.read_object(envelope.params)
        except RpcFault:
            return  # nothing to do: it names no request of ours, and a notification gets no answer
        self._requests.progress(_number(str(params.get("progressToken"))), params)

    def close(self) -> None:
        """The client is gone: fail all requests to it."""
        requests, gone = list(self._requests.values()), RpcError(rpc.INTERNAL_ERROR, "The client is gone.")
        self._requests.clear()
        for request in requests:
            request.owner.exchange_ended(request, None, gone)


def _name(key: bytes) -> str:
    return key[1:-1].decode(errors="replace")


def _number(name: str) -> int:
    """The number in an id of ours; 0, which no id of ours has, for any other id."""
    return rpc.as_id(name.removeprefix(_OURS)) if name.startswith(_OURS) else 0


def _result_in(raw: bytes) -> tuple[Mapping[str, Any], RpcError | None]:
    """The client's result, and why there is none."""
    if len(raw) >= LARGE_MESSAGE and takes_long_to_decode(raw):
        text = f"The client's answer has more than {DECODED_VALUES:,} values and keys, or too many escapes."
        return {}, RpcError(rpc.INTERNAL_ERROR, text)
    try:
        result = rpc.read_value(msgspec.Raw(raw))
    except RpcFault as fault:
        return {}, _unreadable(fault)
    if is_object(result):
        return result, None
    return {}, RpcError(rpc.INTERNAL_ERROR, "The client's answer is not an object.")


def _error_in(raw: msgspec.Raw) -> RpcError:
    """The client's error, read as far as possible."""
    try:
        error = rpc.read_value(raw)
    except RpcFault as fault:
        return _unreadable(fault)
    said: Mapping[str, Any] = error if is_object(error) else {}
    code = said.get("code")
    return RpcError(
        code if isinstance(code, int) else rpc.INTERNAL_ERROR,
        str(said.get("message", "The client refused.")),
        said.get("data"),
    )


def _unreadable(fault: RpcFault) -> RpcError:
    return RpcError(rpc.INTERNAL_ERROR, f"The client's answer cannot be read: {fault.message}")
