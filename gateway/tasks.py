"""Tasks for clients: a call goes on after its request was answered, and its result is kept until it is fetched.

A client of 2025-11-25 asks for a task with its call (`task` in the params). A model whose client knows no tasks asks
the `mcp` tool for it (`background`). A client of 2026-07-28 that declares the extension gets one when the server makes
a task of the call, or when the call takes longer than the setting `taskAfterMs`. It is told of each change on a
`subscriptions/listen` that names the task. The id is ours, so it means one task,
whichever servers and incarnations there are. The task of a server that is lost ends as its call does.

The work is a `Job` as any other. Only its answer goes to the `KeptTask`, which is its sink, and not to the client. So
every exposure can run in one, and knows nothing of it. A job that is answered with "input required" leaves the task in
need of input, and the client's answers begin another job, as they would without a task.

All tasks of a gateway are in one `KeptTasks`. A task belongs to its owner, which is the principal behind a client and
the profile that it sees: any connection of the same owner finds it, and to anybody else it is unknown. It outlives its
client, and while it runs, so does the client's session, with the processes that belong to it (`Conversations`). Number
and bytes are bounded. When they are reached, the oldest finished tasks of the owner make room, and nobody else's; if
all still run, no further one is accepted. A task is dropped when its time to live is over.

With the setting `tasks.keep` there is a folder in which tasks outlive the gateway (`task_folder`). A result is in it
before the task is told completed. A task that ran when the gateway was killed has failed in the next one.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
import msgspec

from ..protocol import jsonrpc as rpc
from ..protocol.bounds import LARGE_MESSAGE, TASK_BYTES, TASKS, TASKS_OF_ONE
from ..protocol.errors import CallError, Reach
from ..protocol.jsonrpc.terms import RpcFault
from ..protocol.tasks import CANCEL, EXTENSION, GET, RELATED, RESULT, UPDATE, Status
from .requests import UNTOLD, Job

if TYPE_CHECKING:
    from .endpoint import ClientSession
    from .task_folder import TaskFolder, TaskRecord

METHODS: Final = frozenset({GET, CANCEL, UPDATE, RESULT})
_TTL: Final = (60_000, 3_600_000, 86_400_000)  # milliseconds from the creation: at least, usually, at most
_INTERVAL: Final = 1_000  # milliseconds between two looks, as we suggest
_MISSING: Final = -32021  # a capability that the client did not declare
_UNKNOWN: Final = (
    "Invalid params: there is no such task. It may have been dropped when its time to live was over."
)
_TIDIED: Final = 60.0  # seconds between two looks for files whose time is over
_LOST: Final = f"The gateway ended while the task was running; {Reach.SENT.words}."
_TOLD: Final = "notifications/tasks"
_TOLD_OLDER: Final = "notifications/tasks/status"


class KeptTask:
    """One task: what its jobs have said, and how it ended."""

    def __init__(
        self, store: KeptTasks, owner: str, session: ClientSession | None, ttl: int, *, modern: bool
    ) -> None:
        self.id: str = secrets.token_urlsafe(24)
        self.owner = owner
        self.modern = modern  # in which version its client spoke
        self.status: Status = Status.WORKING
        self.message: str = ""
        self.result: bytes | None = None
        self.error: RpcFault | None = None
        self.ttl = ttl
        self.expires: float = anyio.current_time() + ttl / 1000
        self.call: Job | None = None  # the request that it began with
        self._job: Job | None = None  # what works for it now
        self._store = store
        self._session = session  # until it has ended
        self._created = self._changed = _now()
        self._news = anyio.Event()
        self._requests: Mapping[str, Any] = {}
        self._state: object = None
        self.hearers: dict[TaskStream, Mapping[str, Any]] = {}  # each with the `_meta` of its subscription
        self._round = 0

    @property
    def size(self) -> int:
        return len(self.result or b"")

    def is_of(self, session: ClientSession) -> bool:
        return self._session is session

    # ---- what works for it ------------------------------------------------------------------------------------------

    def carry(self, job: Job, begin: Callable[[Job], object]) -> None:
        """Begin a job that works for it from now on. `begin` may end it at once; what it raises ends the job."""
        self._job = job
        if self.call is None:
            self.call = job
        try:
            if begin(job) is False:
                raise RpcFault(rpc.METHOD_NOT_FOUND, f"Method not found: {job.method}")
        except Exception as error:
            job.broke(error)

    def adopt(self, job: Job) -> None:
        """A job that has begun works for it from now on."""
        self.call = self._job = job
        job.goes_to(self)

    def cancel(self) -> None:
        """Nobody wants its result any more. Idempotent."""
        if self.status.is_final:
            return
        job = self._job
        self._end(Status.CANCELLED)
        if job is not None:
            job.cancel()

    def give(self, responses: Mapping[str, Any]) -> None:
        """Go on with the client's answers to what was asked. Answers to anything else are passed over."""
        given = {key: responses[name] for name, key in self._names() if name in responses}
        call = self.call
        if self.status is not Status.INPUT_REQUIRED or not given or call is None:
            return
        more = {"inputResponses": given} | ({} if self._state is None else {"requestState": self._state})
        params = {**call.params, **{key: msgspec.Raw(rpc.encode(value)) for key, value in more.items()}}
        session = self._session
        assert session is not None
        self._requests, self._state = {}, None
        self._set(Status.WORKING)
        self.carry(session.task_job(self, call, params), session.begin_task)

    def _names(self) -> Iterator[tuple[str, str]]:
        """The names of what is asked: for the client each is used once in the life of a task."""
        return ((f"{self._round}-{key}", key) for key in self._requests)

    async def wait(self, seconds: float) -> None:
        """Wait until it has ended or needs input, at most so long."""
        with anyio.move_on_after(seconds):
            while self.status is Status.WORKING:
                await self._news.wait()

    async def ended(self) -> None:
        """Wait until it has ended. When its time to live is over, it is cancelled."""
        with anyio.CancelScope(deadline=self.expires):
            while not self.status.is_final:
                await self._news.wait()
        self.cancel()

    # ---- as the sink of its jobs ------------------------------------------------------------------------------------

    def job_done(self, job: Job, result: Mapping[str, Any] | None, error: RpcFault | None) -> None:
        if error is not None:
            self._fail(error)
            return
        try:
            if self._session is not None:
                self.job_line(job, self._session.task_result(job, result or {}))
        except Exception as problem:
            self.job_broke(job, problem)

    def line_of(self, job: Job, result: bytes, *, modern: bool) -> bytes:
        try:
            return b"" if self._session is None else self._session.task_bytes(job, result, modern=modern)
        except Exception as problem:
            self.job_broke(job, problem)
            return b""

    def job_line(self, job: Job, line: bytes) -> None:
        if self.status.is_final:
            return
        # One that asks for input is never large, and a large one is not looked into on the loop.
        if len(line) <= LARGE_MESSAGE and b"input_required" in line:
            parts = rpc.read_parts(msgspec.Raw(line))
            if rpc.read_value(parts.get("resultType")) == "input_required":
                self._round += 1
                asked = rpc.read_value(parts.get("inputRequests"))
                self._requests = cast("dict[str, Any]", asked) if isinstance(asked, dict) else {}
                self._state = rpc.read_value(parts.get("requestState"))
                self._set(Status.INPUT_REQUIRED)
                return
        if not self._store.has_room_for(self, len(line)):
            self._fail(RpcFault(rpc.OVERLOADED, f"The result ({len(line):,} bytes) is too large to be kept."))
            return
        session = self._session
        if not self._store.keeps or session is None:
            self._complete(line)
            return
        self._store.keep(self, self.record(Status.COMPLETED, line))
        session.spawn_beside(partial(self._complete_once_kept, line))

    async def _complete_once_kept(self, line: bytes) -> None:
        await self._store.kept()
        if not self.status.is_final:
            self._complete(line)

    def _complete(self, line: bytes) -> None:
        if self._store.has_room_for(self, len(line)):
            self.result = line
            self._end(Status.COMPLETED)
        else:
            self._fail(RpcFault(rpc.OVERLOADED, "There is no room left to keep the result."))

    def job_progress(self, job: Job, params: Mapping[str, Any]) -> None:
        message = params.get("message")
        if not self.status.is_final:
            self._set(self.status, message if isinstance(message, str) else f"{params.get('progress')}")

    def job_broke(self, job: Job, error: Exception) -> None:
        if self._session is not None:
            self._fail(self._session.task_bug(error))

    def _fail(self, error: RpcFault) -> None:
        if not self.status.is_final:
            self.error = error
            self._end(Status.FAILED, error.message)

    def _end(self, status: Status, message: str = "") -> None:
        self._job = self.call = None
        self._requests = {}
        session = self._session
        self._set(status, message)
        self._session = None
        self._store.ended(self)
        if self._store.keeps and status is not Status.COMPLETED and session is not None:
            self._store.keep(self, self.record(status))
            session.spawn_beside(self._store.kept)

    def _set(self, status: Status, message: str = "") -> None:
        self.status, self.message, self._changed = status, message or self.message, _now()
        self._news.set()
        self._news = anyio.Event()
        session = self._session
        if not self.modern and session is not None and session.initialized:
            session.tell(_TOLD_OLDER, self.said())
        for stream, meta in tuple(self.hearers.items()):
            stream.tell(self, meta)

    # ---- in a file --------------------------------------------------------------------------------------------------

    def record(self, status: Status, result: bytes | None = None) -> TaskRecord:
        """What its file says when it is in this status."""
        from .task_folder import NOTHING, TaskRecord

        return TaskRecord(
            self.id, self.owner, self.modern, status, self.message.encode(errors="replace").decode(),
            self._created, self._changed if status is self.status else _now(), self.ttl,
            time.time() + self.expires - anyio.current_time(),
            NOTHING if result is None else msgspec.Raw(result),
            NOTHING if self.error is None else msgspec.Raw(rpc.encode(_as_error(self.error))),
        )  # fmt: skip

    @classmethod
    def restored(cls, store: KeptTasks, record: TaskRecord) -> KeptTask:
        """The task of an earlier gateway. If it still ran then, it has failed."""
        task = cls(store, record.owner, None, record.ttl, modern=record.modern)
        task.id, task.message = record.id, record.message
        task._created, task._changed = record.created, record.changed
        task.expires = anyio.current_time() + min(record.ttl / 1000, record.until - time.time())
        if record.status.is_final:
            task.status = record.status
            task.result = bytes(record.result) if record.status is Status.COMPLETED else None
            task.error = _error_in(record.error) if record.status is Status.FAILED else None
        else:
            task._fail(
                RpcFault(rpc.INTERNAL_ERROR, _LOST, {"error": CallError.code, "reach": Reach.SENT.value})
            )
        return task

    # ---- what a client is told --------------------------------------------------------------------------------------

    def said(self) -> dict[str, Any]:
        """What it is, in the words of its client's version, without its result."""
        times = {"createdAt": self._created, "lastUpdatedAt": self._changed}
        said: dict[str, Any] = {"taskId": self.id, "status": self.status.value, **times}
        said |= (
            {"ttlMs": self.ttl, "pollIntervalMs": _INTERVAL}
            if self.modern
            else {"ttl": self.ttl, "pollInterval": _INTERVAL}
        )
        return {**said, "statusMessage": self.message} if self.message else said

    def in_full(self) -> dict[str, Any]:
        """The same with its result, its error or what it asks, as the extension says it."""
        said = self.said()
        if self.result is not None:
            said["result"] = msgspec.Raw(self.result)
        if self.error is not None:
            said["error"] = _as_error(self.error)
        if self._requests:
            said["inputRequests"] = {name: self._requests[key] for name, key in self._names()}
        return said


class KeptTasks:
    """All tasks of one gateway. `folder`: where they outlive it; None: they end with it."""

    def __init__(self, folder: TaskFolder | None = None) -> None:
        self._folder = folder
        self._is_open = False
        self._tasks: dict[str, KeptTask] = {}
        self._of: dict[str, dict[str, KeptTask]] = {}  # the same by their owners, the oldest first
        self._bytes = 0
        self._look_at: float = math.inf  # when the first of them is overdue, or earlier

    def __len__(self) -> int:
        return len(self._tasks)

    # ---- in the folder ----------------------------------------------------------------------------------------------

    @property
    def keeps(self) -> bool:
        """Whether tasks outlive the gateway."""
        return self._is_open

    async def open(self) -> None:
        """Take in what an earlier gateway has kept. Idempotent. Raises `OSError` when the folder cannot be used: then
        tasks end with the gateway."""
        folder = self._folder
        if folder is None or self._is_open:
            return
        try:
            records = await folder.open()
        except OSError:
            self._folder = None
            raise
        self._is_open = True
        for record in records:
            try:
                task = KeptTask.restored(self, record)
            except (RpcFault, msgspec.MsgspecError):
                continue  # an error that is none: the file is torn
            if len(self._of.get(task.owner, ())) < TASKS_OF_ONE:
                self._add(task)
                self._bytes += task.size
                if not record.status.is_final:
                    self.keep(task, task.record(task.status))
            else:
                folder.put(task.id, None)
        await folder.written()

    async def tidy(self) -> None:
        """Remove the files of tasks whose time to live is over, until cancelled."""
        while True:
            await anyio.sleep(_TIDIED)
            self._drop_overdue()
            await self.kept()

    def close(self) -> None:
        """Let another gateway have the folder. Idempotent."""
        if self._is_open and self._folder is not None:
            self._is_open = False
            self._folder.close()

    def keep(self, task: KeptTask, record: TaskRecord | None) -> None:
        """Note what the file of this task shall be; see `TaskFolder`."""
        if self._is_open and self._folder is not None and (record is None or task.id in self._tasks):
            self._folder.put(task.id, record)

    async def kept(self) -> None:
        """Write what was noted."""
        if self._is_open and self._folder is not None:
            await self._folder.written()

    # ---- one task ---------------------------------------------------------------------------------------------------

    def create(self, owner: str, session: ClientSession, *, modern: bool, ttl: object = None) -> KeptTask:
        """A new task. Raises `RpcFault` when there is no room for one more."""
        self._drop_overdue()
        own = self._of.get(owner, {})
        if len(own) >= TASKS_OF_ONE or len(self._tasks) >= TASKS:
            oldest = next((task for task in own.values() if task.status.is_final), None)
            if oldest is None:
                text = f"Too many tasks ({len(own)}) are running; nothing was called. Retry when some have ended."
                raise RpcFault(rpc.OVERLOADED, text)
            self._drop(oldest)
        least, usual, most = _TTL
        wanted = ttl if isinstance(ttl, int) and not isinstance(ttl, bool) else usual
        task = KeptTask(self, owner, session, max(least, min(most, wanted)), modern=modern)
        self._add(task)
        if self._is_open:
            self.keep(task, task.record(task.status))
            session.spawn_beside(self.kept)
        return task

    def _add(self, task: KeptTask) -> None:
        self._tasks[task.id] = self._of.setdefault(task.owner, {})[task.id] = task
        self._look_at = min(self._look_at, task.expires)

    def find(self, task_id: object, owner: str) -> KeptTask:
        """Raises `RpcFault`, which is the same for a task of somebody else."""
        self._drop_overdue()
        task = self._tasks.get(task_id) if isinstance(task_id, str) else None
        if task is None or task.owner != owner:
            raise RpcFault(rpc.INVALID_PARAMS, _UNKNOWN)
        return task

    def running(self, session: ClientSession) -> list[KeptTask]:
        """The tasks of this client that have not ended."""
        return [task for task in self._tasks.values() if task.is_of(session)]

    def has_room_for(self, task: KeptTask, size: int) -> bool:
        """Whether a result of this size can be kept. Older ones of the same owner make room for it."""
        for old in [old for old in self._of.get(task.owner, {}).values() if old.size]:
            if self._bytes + size <= TASK_BYTES:
                break
            self._drop(old)
        return self._bytes + size <= TASK_BYTES

    def ended(self, task: KeptTask) -> None:
        """A task has ended: its result counts from now on."""
        if task.id in self._tasks:
            self._bytes += task.size

    def _drop(self, task: KeptTask) -> None:
        own = self._of[task.owner]
        del self._tasks[task.id], own[task.id]
        if not own:
            del self._of[task.owner]
        self._bytes -= task.size
        task.cancel()
        self.keep(task, None)

    def _drop_overdue(self) -> None:
        now = anyio.current_time()
        if now < self._look_at:
            return
        for task in [task for task in self._tasks.values() if task.expires <= now]:
            self._drop(task)
        self._look_at = min((task.expires for task in self._tasks.values()), default=math.inf)


class TaskStream:
    """The tasks of which a client is told on one `subscriptions/listen`."""

    def __init__(self, session: ClientSession, tasks: Sequence[KeptTask]) -> None:
        self._session = session
        self._tasks = tasks

    @property
    def ids(self) -> list[str]:
        return [task.id for task in self._tasks]

    @contextmanager
    def told(self, meta: Mapping[str, Any]) -> Generator[None]:
        """See `ToldTasks`. What had changed before the client asked is told at once, because nothing else might
        follow."""
        for task in self._tasks:
            task.hearers[self] = meta
            if task.status is not Status.WORKING:
                self.tell(task, meta)
        try:
            yield
        finally:
            for task in self._tasks:
                del task.hearers[self]

    def tell(self, task: KeptTask, meta: Mapping[str, Any]) -> None:
        with suppress(*rpc.UNWRITABLE):  # then nobody can be told, and `tasks/get` says why
            self._session.tell(_TOLD, {**task.in_full(), "_meta": meta})


# ---- The tasks of one client: what it asks for, and what it is told -------------------------------------------------


class ClientTasks:
    """Carries out the requests of one client that are about tasks. `after`: the setting `taskAfterMs`, in seconds.
    `passes`: whether a server that it sees makes tasks itself."""

    def __init__(
        self,
        store: KeptTasks,
        owner: str,
        session: ClientSession,
        after: Callable[[], float | None],
        passes: Callable[[], bool],
    ) -> None:
        self._store = store
        self._owner = owner
        self._session = session
        self._after = after
        self._passes = passes

    @property
    def running(self) -> int:
        return len(self._store.running(self._session))

    @property
    def makes_some(self) -> bool:
        """Whether calls of a client of 2026-07-28 may become tasks."""
        return self._after() is not None or self._passes()

    async def ended(self) -> None:
        """Wait until none of them runs any more."""
        for task in self._store.running(self._session):
            await task.ended()

    def takes(self, job: Job) -> bool:
        """Whether the request is about a task, or asks for one; then it has been carried out. Raises `RpcFault`."""
        if job.method in METHODS:
            self._about_task(job)
            return True
        if job.method == rpc.LISTEN:
            self._listen(job)
            return False
        if job.method != "tools/call":
            return False
        if job.modern:
            if self.makes_some and _declares(job):
                self._watch(job)
            return False
        if "task" not in job.params:
            return False
        wanted = rpc.read_value(job.params["task"])
        if not isinstance(wanted, dict):
            raise RpcFault(rpc.INVALID_PARAMS, "Invalid params: task must be an object.")
        said = cast("dict[str, Any]", wanted)
        params = {key: value for key, value in job.params.items() if key != "task"}
        task = self._store.create(self._owner, self._session, modern=False, ttl=said.get("ttl"))
        task.carry(self._session.task_job(task, job, params), self._session.begin_task)
        job.answer({"task": task.said()})
        return True

    def begin(self, job: Job, begin: Callable[[Job], object]) -> KeptTask:
        """Begin the work of a request as a task of its own. Raises `RpcFault` when there is no room for one more."""
        task = self._store.create(self._owner, self._session, modern=False)
        own = self._session.task_job(task, job, job.params)
        own.modern = False  # no later request can carry what a server asks
        task.carry(own, begin)
        return task

    def find(self, task_id: object) -> KeptTask:
        """Raises `RpcFault`."""
        return self._store.find(task_id, self._owner)

    def _watch(self, job: Job) -> None:
        """A call of 2026-07-28 goes on as a task when its server makes one of it, or when it takes long."""
        job.on_task = partial(self._hand_over, job)
        job.token = UNTOLD if job.token is None else job.token
        if (seconds := self._after()) is not None:
            self._session.spawn_beside(partial(self._hand_over_later, job, seconds))

    async def _hand_over_later(self, job: Job, seconds: float) -> None:
        await anyio.sleep(seconds)
        self._hand_over(job)

    def _hand_over(self, job: Job) -> None:
        if job.ended or not self._session.is_open(job):
            return
        try:
            task = self._store.create(self._owner, self._session, modern=True)
        except RpcFault:
            return  # then it stays a call
        self._session.answer_with_task(job, {"resultType": "task", **task.said()})
        task.adopt(job)

    def _listen(self, job: Job) -> None:
        """A stream that names tasks tells of those that are its client's. The others are left out."""
        wanted = rpc.read_value(job.params.get("notifications"))
        if not isinstance(wanted, dict) or "taskIds" not in wanted:
            return
        _need_extension(job)
        ids: object = cast("dict[str, Any]", wanted)["taskIds"]
        found = dict[str, KeptTask]()
        for task_id in cast("list[object]", ids) if isinstance(ids, list) else ():
            with suppress(RpcFault):
                task = self.find(task_id)
                found[task.id] = task
        job.tasks = TaskStream(self._session, tuple(found.values()))

    def _about_task(self, job: Job) -> None:
        if job.modern:
            _need_extension(job)
        task = self.find(rpc.read_value(job.params.get("taskId")))
        if job.method == RESULT:
            job.run(partial(self._result, job, task))
        elif job.method == GET:
            job.answer(task.in_full() if job.modern else task.said())
        elif job.method == CANCEL:
            if not job.modern and task.status.is_final:
                raise RpcFault(
                    rpc.INVALID_PARAMS, f"Invalid params: the task has ended ({task.status.value})."
                )
            task.cancel()
            job.answer({} if job.modern else task.said())
        else:
            given = rpc.read_value(job.params.get("inputResponses"))
            if not isinstance(given, dict):
                raise RpcFault(rpc.INVALID_PARAMS, "Invalid params: inputResponses must be an object.")
            task.give(cast("dict[str, Any]", given))
            job.answer({})

    async def _result(self, job: Job, task: KeptTask) -> None:
        """The result of a task of 2025-11-25, once it has ended."""
        await task.ended()
        if task.result is None:
            error = task.error or RpcFault(rpc.INVALID_PARAMS, "Invalid params: the task was cancelled.")
            job.fail(error.code, error.message, error.data)
            return
        parts = rpc.read_parts(msgspec.Raw(task.result))
        meta = {**(rpc.read_meta(parts) or {}), RELATED: {"taskId": task.id}}
        job.answer({**parts, "_meta": meta})


def _declares(job: Job) -> bool:
    said: object = (job.meta or {}).get(rpc.CAPABILITIES_KEY)
    for name in ("extensions", EXTENSION):
        said = cast("Mapping[str, Any]", said).get(name) if isinstance(said, Mapping) else None
    return isinstance(said, Mapping)


def _need_extension(job: Job) -> None:
    """Raises `RpcFault` when the client did not declare that it knows tasks."""
    if not _declares(job):
        data: dict[str, Any] = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
        raise RpcFault(_MISSING, f"Missing required client capability: {EXTENSION}", data)


def owner_of(subject: str | None, profile: str | None) -> str:
    """To whom tasks belong: a digest of the principal, as its door names it, and the profile."""
    return hashlib.sha256(rpc.encode([subject, profile])).hexdigest()


def _error_in(raw: msgspec.Raw) -> RpcFault:
    said = msgspec.convert(rpc.read_value(raw), _Error)
    return RpcFault(said.code, said.message, said.data)


class _Error(msgspec.Struct):
    code: int = rpc.INTERNAL_ERROR
    message: str = ""
    data: Any = None


def _as_error(error: RpcFault) -> dict[str, Any]:
    body = {"code": error.code, "message": error.message}
    return body if error.data is None else {**body, "data": error.data}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
