"""Tasks for clients: a call goes on after its request was answered, and its result is kept until it is fetched.

A client of 2025-11-25 asks for a task with its call (`task` in the params). A model whose client knows no tasks asks
the `mcp` tool for it (`background`). A client of 2026-07-28 that declares the extension gets one when the server makes
a task of the call, or when the call takes longer than the setting `taskAfterMs`. It is told of each change on a
`subscriptions/listen` that names the task. The id is ours, so it means one task,
whichever servers and incarnations there are. The task of a server that is lost ends as its call does.

The work is a `Job` as any other. Only its answer goes to the `ClientTask`, which is its sink, and not to the client. So
every exposure can run in one, and knows nothing of it. A job that is answered with "input required" leaves the task in
need of input, and when the client has answered all of it, another job begins, as it would without a task. What is asked
in the middle of a call is asked in the task, too, and the call goes on with the answer.

All tasks of a gateway are in one `TaskStore`. A task belongs to its owner, which is the principal behind a client and
the profile that it sees: any connection of the same owner finds it, and to anybody else it is unknown. It outlives its
client, and while it runs, so does the client's session, with the processes that belong to it (`Conversations`). Number
and bytes are bounded: of results, and of what waiting tasks ask. When they are reached, the oldest finished tasks of
the owner that has the most make room. So nobody can take all of it, and nobody loses a task to an owner that has more;
if there is none to drop, no further one is accepted. A task is dropped when its time to live is over.

With the setting `tasks.keep` there is a folder in which tasks outlive the gateway (`task_folder`). A task is in it
before its client is told of it, and a result before the task is told completed. Tasks of other gateways are read from
there when they are asked for. One that its gateway still works on can be looked at and awaited; only that gateway can
cancel it or give it input. One that ran when its gateway was killed has failed.

A gateway that ends tells so in the message of each task that still runs, with the time that is left, and when to look
again: at once if its tasks end with it, and otherwise when the next gateway can say what came of them. Requests about
tasks are carried out to the end.

Whatever belongs to a task of 2025-11-25 names it in its `_meta` (`related-task`): what the client is asked meanwhile,
progress, the result. While it is asked something, the task is in need of input.
"""

from __future__ import annotations

import hashlib
import math
import re
import secrets
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import msgspec

from ..actors.timers import at_most
from ..actors.workers import aside
from ..protocol import jsonrpc as rpc
from ..protocol.bounds import ASKED_BYTES_OF_ONE, LARGE_MESSAGE, TASK_BYTES, TASKS, TASKS_OF_ONE
from ..protocol.errors import CallError, Reach, RpcRefusal
from ..protocol.json_values import is_array, is_object
from ..protocol.jsonrpc.terms import MISSING_CAPABILITY, RpcFault
from ..protocol.lazy_patterns import lazy_pattern
from ..protocol.result import says_error
from ..protocol.safe_text import shortened
from ..protocol.tasks import ABOUT_TASKS, CANCEL, EXTENSION, GET, LIST, RELATED, RESULT, Status
from ..protocol.version_differences import ANYTHING
from .jobs import UNTOLD, AnswerSink, Job, no_cursor, no_method
from .message_origin import without_ours

if TYPE_CHECKING:
    from ..actors.timers import Timer
    from .endpoint import ClientSession
    from .task_folder import FolderTask, TaskFolder, TaskRecord

_TTL: Final = (60_000, 3_600_000, 86_400_000)  # milliseconds from the creation: at least, usually, at most
_INTERVAL: Final = 1_000  # milliseconds between two looks, as we suggest
_UNKNOWN: Final = (
    "Invalid params: there is no such task. It may have been dropped when its time to live was over."
)
_SOON: Final = 250  # the same, when a task is about to end with its gateway
_ENDS: Final = "The gateway ends in {left} s at the latest, and its tasks with it: await the result now."
_ENDS_AND_KEEPS: Final = (
    "The gateway ends in {left} s at the latest. Then ask the next one what has come of this task."
)
_ELSEWHERE: Final = (
    "Invalid params: another gateway works on this task. It can be looked at and awaited here; "
    "cancelled, or given input, only there."
)
_TOO_MUCH_ASKED: Final = (
    "There is no room left to keep what the task asks ({size:,} bytes). Retry when some have ended."
)
_MESSAGE: Final = 4_096  # characters of a message that are kept
_ERROR_BYTES: Final = 65_536  # of an error that is kept with what its server says of it
_PAGE: Final = 50  # tasks of one list
_TIDIED: Final = 60.0  # seconds between two looks for files whose time is over
_LOST: Final = f"The gateway ended while the task was running; {Reach.SENT.words}."
_TOOL_FAILED: Final = "The tool failed; its result says why."
_TOLD: Final = "notifications/tasks"
_SHOWN: Final = 8  # characters of an id that people are shown
_TOLD_OLDER: Final = "notifications/tasks/status"


class ClientTask:
    """One task: what its jobs have said, and how it ended."""

    def __init__(
        self, store: TaskStore, owner: str, session: ClientSession | None, ttl: int, *, modern: bool
    ) -> None:
        self.id: str = secrets.token_urlsafe(24)
        self.owner = owner
        self.modern = modern  # in which version its client spoke
        self.token: Any = None  # with which its client of 2025-11-25 hears of progress
        self.is_elsewhere: bool = False  # another gateway works on it
        self.asked_bytes: int = 0  # of what it asks and waits for
        self.is_error: bool = False  # its result says that the tool failed
        self.wraps: bool = False  # older clients get the structure of its result in an object
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
        self._news: anyio.Event | None = None  # set at the next change, if anybody waits for it
        self._asked = dict[str, Any]()  # the requests to its client that have no answer yet, by their names
        self._askers = dict[str, _Asker]()  # who waits for the answers to some of them
        self._keys = dict[str, str]()  # the names of the others in the result that asked for them
        self._given = dict[str, Any]()  # what was answered to these, by the keys there
        self._state: object = None
        self._asking = 0  # how much its client of 2025-11-25 is being asked
        self.hearers: dict[TaskStream, Mapping[str, Any]] = {}  # each with the `_meta` of its subscription
        self._round = 0
        self._line_bytes = 0  # of the result that asked

    @property
    def size(self) -> int:
        """Bytes of its result, or of what it asks while it has none."""
        return len(self.result or b"") + self.asked_bytes

    @property
    def outlook(self) -> str:
        """The message of its status."""
        return self._store.outlook(self)[0]

    def view(self) -> dict[str, Any]:
        """It, for people: without what it says, asks or has found."""
        return {
            "task": self.id[:_SHOWN],
            "status": self.status.value,
            "createdAt": self._created,
            "changedAt": self._changed,
            "isElsewhere": self.is_elsewhere,
        }

    @property
    def order(self) -> str:
        """Where it stands in a list: the oldest first, the same at every gateway."""
        return f"{self._created} {self.id}"

    def is_of(self, session: ClientSession) -> bool:
        return self._session is session

    def works_on(self, call: object) -> bool:
        return self._job is not None and self._job.follows(call)

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
        """Go on with the client's answers to what was asked, some or all. Answers to anything else are passed over."""
        for name in self._asked.keys() & responses.keys():
            response = responses[name]
            if name in self._keys:
                self._given[self._keys.pop(name)] = response
            elif is_object(response):
                self._askers[name].answer(response)
            else:
                continue
            del self._asked[name]
        if not self._asked and self.status is Status.INPUT_REQUIRED and not self._asking:
            self._set(Status.WORKING)
        if self._given and not self._keys:
            self._go_on()

    def _go_on(self) -> None:
        """All is answered that a result asked for: send the call again."""
        call, session = self.call, self._session
        assert call is not None
        assert session is not None
        more = {"inputResponses": self._given} | (
            {} if self._state is None else {"requestState": self._state}
        )
        params = {**call.params, **{key: msgspec.Raw(rpc.encode(value)) for key, value in more.items()}}
        self._given, self._state = {}, None
        self._hold(-self._line_bytes)
        self._line_bytes = 0
        self.carry(session.task_job(self, call, params), session.begin_task)

    async def ask(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ask its client of 2026-07-28, whichever connection that comes back on. Returns the answer. There may be
        several such questions at a time. Cancelling this withdraws the question. Raises `RpcRefusal` when there is no
        room for it."""
        self._round += 1
        name, asker, size = f"{self._round}-question", _Asker(), rpc.weigh(request)
        if not self._store.has_room_for_question(self, size):
            raise RpcRefusal(rpc.OVERLOADED, _TOO_MUCH_ASKED.format(size=size))
        self._asked[name], self._askers[name] = request, asker
        self._hold(size)
        self._set(Status.INPUT_REQUIRED)
        try:
            return await asker.response()
        finally:
            del self._askers[name]
            if not self.status.is_final:
                self._hold(-size)
            if self._asked.pop(name, None) is not None and not self._asked and not self.status.is_final:
                self._set(Status.WORKING)

    @contextmanager
    def asking(self) -> Generator[Mapping[str, Any]]:
        """While the context is open, its client of 2025-11-25 is asked something for it. The value is the mark of what
        belongs to it."""
        self._asking += 1
        if self.status is Status.WORKING:
            self._set(Status.INPUT_REQUIRED)
        try:
            yield {RELATED: {"taskId": self.id}}
        finally:
            self._asking -= 1
            if self.status is Status.INPUT_REQUIRED and not self._asking:
                self._set(Status.WORKING)

    async def wait(self, seconds: float) -> None:
        """Wait until it has ended or needs input for which nobody is being asked, at most so long."""
        async with at_most(seconds):
            while self.status is Status.WORKING or (self._asking and not self.status.is_final):
                await self._change()

    async def ended(self) -> None:
        """Wait until it has ended. When its time to live is over, it is cancelled."""
        async with at_most(self.expires - anyio.current_time()):
            while not self.status.is_final:
                await self._change()
            return
        self.cancel()

    async def _change(self) -> None:
        self._news = self._news or anyio.Event()
        await self._news.wait()

    # ---- as the sink of its jobs ------------------------------------------------------------------------------------

    def job_done(self, job: Job, result: Mapping[str, Any] | None, error: RpcFault | None) -> None:
        if error is not None:
            self._fail(error)
        else:
            self.job_line(job, self.line_for(job, result or {}))

    def line_for(self, job: Job, result: Mapping[str, Any], *, is_large: bool = False) -> bytes:
        return self._kept_form(job, lambda answers: rpc.encode(answers.stamped(result)))

    def line_of(self, job: Job, result: bytes, *, modern: bool) -> bytes:
        self.wraps = job.wrapped_output is not None
        return self._kept_form(job, lambda answers: answers.result_to_keep(job, result, modern=modern))

    def _kept_form(self, job: Job, make: Callable[[AnswerSink], bytes]) -> bytes:
        """A result in the newest form, which is kept. If it cannot be made, the task fails."""
        try:
            return b"" if self._session is None else make(self._session.answers)
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
                if not self._store.has_room_for_question(self, len(line)):
                    self._fail(RpcFault(rpc.OVERLOADED, _TOO_MUCH_ASKED.format(size=len(line))))
                    return
                self._hold(len(line))
                self._line_bytes = len(line)
                self._take_questions(rpc.read_value(parts.get("inputRequests")))
                self._state = rpc.read_value(parts.get("requestState"))
                self._set(Status.INPUT_REQUIRED)
                return
        if not self._store.has_room_for(self, len(line)):
            self._fail(RpcFault(rpc.OVERLOADED, f"The result ({len(line):,} bytes) is too large to be kept."))
            return
        session = self._session
        self.is_error = says_error(line)
        if not self._store.keeps or session is None:
            self._complete(line)
            return
        self._store.keep(self, Status.COMPLETED, line)
        session.spawn_beside(partial(self._complete_once_kept, line))

    def _take_questions(self, asked: object) -> None:
        """What a result asks for. For the client each name is used once in the life of a task."""
        self._round += 1
        for key, request in asked.items() if is_object(asked) else ():
            name = f"{self._round}-{key}"
            self._keys[name], self._asked[name] = key, request

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
        if self.status.is_final:
            return
        message = params.get("message")
        self._set(self.status, message if isinstance(message, str) else f"{params.get('progress')}")
        if self.token is not None:
            said = without_ours(params)
            meta: dict[str, Any] = {**(said.get("_meta") or {}), RELATED: {"taskId": self.id}}
            self._tell(rpc.PROGRESS, {**said, "progressToken": self.token, "_meta": meta})

    def job_broke(self, job: Job, error: Exception) -> None:
        if self._session is not None:
            self._fail(self._session.answers.bug(error))

    def _fail(self, error: RpcFault) -> None:
        if not self.status.is_final:
            self.error = _within_bounds(error)
            self._end(Status.FAILED, error.message)

    def _end(self, status: Status, message: str = "") -> None:
        self._job = self.call = None
        self._asked, self._keys, self._given = {}, {}, {}
        self._hold(-self.asked_bytes)
        session = self._session
        self._set(status, message)
        self._session = None
        self._store.ended(self)
        if self._store.keeps and status is not Status.COMPLETED and session is not None:
            self._store.keep(self, status)
            session.spawn_beside(self._store.kept)

    def _hold(self, size: int) -> None:
        """So many bytes more, or fewer, are kept of what it asks."""
        self.asked_bytes += size
        self._store.resized(self, size)

    def _set(self, status: Status, message: str = "") -> None:
        self.status, self.message, self._changed = (
            status,
            shortened(message, _MESSAGE) or self.message,
            _now(),
        )
        if self._news is not None:
            self._news.set()
            self._news = None
        self.announce()

    # ---- in a file --------------------------------------------------------------------------------------------------

    def record(self, status: Status, size: int) -> TaskRecord:
        """What its file says when it is in this status, with a result of this size."""
        from .task_folder import NOTHING, TaskRecord

        return TaskRecord(
            self.id, self.owner, self.modern, status, self.message.encode(errors="replace").decode(),
            self._created, self._changed if status is self.status else _now(), self.ttl,
            time.time() + self.expires - anyio.current_time(), size, self.is_error,
            NOTHING if self.error is None else msgspec.Raw(rpc.encode(_as_error(self.error))), self.wraps,
        )  # fmt: skip

    @classmethod
    def of_another(cls, store: TaskStore, found: FolderTask) -> ClientTask:
        """The task of another gateway, as that has written it."""
        record = found.record
        task = cls(store, record.owner, None, record.ttl, modern=record.modern)
        task.id, task.message, task.is_error = record.id, record.message, record.is_error
        task.wraps = record.wraps
        task._created, task._changed = record.created, record.changed
        task.expires = anyio.current_time() + min(record.ttl / 1000, record.until - time.time())
        task.status, task.result = record.status, found.result
        task.is_elsewhere = not record.status.is_final
        if found.is_lost:
            data = {"error": CallError.code, "reach": Reach.SENT.value}
            task.error = RpcFault(rpc.INTERNAL_ERROR, _LOST, data)
            task.status, task.message, task.is_elsewhere = Status.FAILED, _LOST, False
        elif found.error is not None:
            task.error = RpcFault(found.error.code, found.error.message, found.error.data)
        return task

    # ---- what a client is told --------------------------------------------------------------------------------------

    def announce(self) -> None:
        """Tell those of its clients that hear of it how it is."""
        if not self.modern:
            self._tell(_TOLD_OLDER, self.said(modern=False))
        for stream, meta in tuple(self.hearers.items()):
            stream.tell(self, meta)

    def _tell(self, method: str, params: Mapping[str, Any]) -> None:
        if self._session is not None and self._session.initialized:
            self._session.tell(method, params)

    def said(self, *, modern: bool) -> dict[str, Any]:
        """What it is, in the words of 2025-11-25 or of 2026-07-28, without its result. In the older ones a task has
        failed whose tool has."""
        failed = self.is_error and not modern and self.result is not None
        status = Status.FAILED if failed else self.status
        said: dict[str, Any] = {"taskId": self.id, "status": status.value}
        said |= {"createdAt": self._created, "lastUpdatedAt": self._changed}
        said["ttlMs" if modern else "ttl"] = self.ttl
        message, interval = self._store.outlook(self)
        said["pollIntervalMs" if modern else "pollInterval"] = interval
        if message := message or (_TOOL_FAILED if failed else ""):
            said["statusMessage"] = message
        return said

    def in_full(self) -> dict[str, Any]:
        """What it is, with its result, its error or what it asks, as the extension says it."""
        said = self.said(modern=True)
        if self.result is not None:
            said["result"] = msgspec.Raw(self.result)
        if self.error is not None:
            said["error"] = _as_error(self.error)
        if self._asked:
            said["inputRequests"] = self._asked
        return said


class _Asker:
    """Waits for the answer to one question."""

    def __init__(self) -> None:
        self._answered = anyio.Event()
        self._response: Mapping[str, Any] = {}

    def answer(self, response: Mapping[str, Any]) -> None:
        self._response = response
        self._answered.set()

    async def response(self) -> Mapping[str, Any]:
        await self._answered.wait()
        return self._response


class TaskStore:
    """All tasks of one gateway. `folder`: where they outlive it; None: they end with it."""

    def __init__(self, folder: TaskFolder | None = None) -> None:
        self._unopened = folder
        self._folder: TaskFolder | None = None  # once it is open
        self.tasks: dict[str, ClientTask] = {}  # by their ids
        self._of: dict[str, dict[str, ClientTask]] = {}  # the same by their owners, the oldest first
        self.held_bytes: int = 0  # of all of them
        self._look_at: float = math.inf  # when the first of them is overdue, or earlier
        self._ends: float | None = None  # when the gateway ends at the latest, if it does

    # ---- when the gateway ends --------------------------------------------------------------------------------------

    def drain(self, seconds: float) -> None:
        """The gateway ends, in so many seconds at the latest. Tell the clients of all tasks that run. Idempotent."""
        if self._ends is None:
            self._ends = anyio.current_time() + seconds
            for task in [task for task in self.tasks.values() if not task.status.is_final]:
                task.announce()

    def view(self) -> list[dict[str, Any]]:
        """The tasks that are kept here, for people, the oldest first. Only the beginning of an id is told: whoever has
        the whole may ask for the result."""
        return [task.view() for task in self.tasks.values()]

    def outlook(self, task: ClientTask) -> tuple[str, int]:
        """The message of its status, and the milliseconds until it should be looked at again."""
        if self._ends is None or task.status.is_final or task.is_elsewhere:
            return task.message, _INTERVAL
        left = max(0, math.ceil(self._ends - anyio.current_time()))
        text = (_ENDS_AND_KEEPS if self.keeps else _ENDS).format(left=left)
        interval = max(_INTERVAL, 1_000 * left) if self.keeps else _SOON
        return f"{text} Before that: {task.message}" if task.message else text, interval

    # ---- in the folder ----------------------------------------------------------------------------------------------

    @property
    def keeps(self) -> bool:
        """Whether tasks outlive the gateway."""
        return self._folder is not None

    async def open(self) -> None:
        """Open the folder. Idempotent. Raises `OSError` when it cannot be used: then tasks end with the gateway."""
        folder, self._unopened = self._unopened, None
        if folder is not None:
            await folder.open()
            self._folder = folder

    async def tidy(self) -> None:
        """Remove the files of tasks whose time to live is over, until cancelled."""
        folder = self._folder
        assert folder is not None
        while True:
            self._drop_overdue()
            await self.kept()
            await folder.sweep()
            await anyio.sleep(_TIDIED)

    def close(self) -> None:
        """The gateway ends: what it has written is for the others. Idempotent."""
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.close()

    def keep(self, task: ClientTask, status: Status, result: bytes = b"") -> None:
        """Note what the file of this task shall say; see `TaskFolder`."""
        if self._folder is not None and task.id in self.tasks:
            self._folder.put(task.record(status, len(result)), result)

    async def kept(self) -> None:
        """Write what was noted."""
        if self._folder is not None:
            await self._folder.written()

    # ---- one task ---------------------------------------------------------------------------------------------------

    def create(self, owner: str, session: ClientSession, *, modern: bool, ttl: object = None) -> ClientTask:
        """A new task. Raises `RpcFault` when there is no room for one more."""
        self._drop_overdue()
        own = self._of.get(owner, {})
        if len(own) >= TASKS_OF_ONE:
            self._make_room([own])
        elif len(self.tasks) >= TASKS:
            larger = [each for each in self._of.values() if each is not own and len(each) > len(own)]
            self._make_room([*sorted(larger, key=len, reverse=True), own])
        least, usual, most = _TTL
        wanted = ttl if isinstance(ttl, int) and not isinstance(ttl, bool) else usual
        task = ClientTask(self, owner, session, max(least, min(most, wanted)), modern=modern)
        self._add(task)
        if self.keeps:
            self.keep(task, task.status)
            session.spawn_beside(self.kept)
        return task

    def _make_room(self, owners: Iterable[Mapping[str, ClientTask]]) -> None:
        """Drop the oldest task that has ended, of the first of these owners that has one. Raises `RpcFault`."""
        for own in owners:
            oldest = next((task for task in own.values() if task.status.is_final), None)
            if oldest is not None:
                self.drop(oldest)
                return
        text = "Too many tasks are running; nothing was called. Retry when some have ended."
        raise RpcFault(rpc.OVERLOADED, text)

    def _add(self, task: ClientTask) -> None:
        self.tasks[task.id] = self._of.setdefault(task.owner, {})[task.id] = task
        self._look_at = min(self._look_at, task.expires)

    def of(self, owner: str) -> list[ClientTask]:
        """The owner's tasks of this gateway."""
        self._drop_overdue()
        return list(self._of.get(owner, {}).values())

    async def all_of(self, owner: str) -> list[ClientTask]:
        """The owner's tasks of this gateway and of others."""
        others = await self._folder.others(owner) if self._folder is not None else ()
        return [*self.of(owner), *(ClientTask.of_another(self, found) for found in others)]

    def get(self, task_id: object, owner: str) -> ClientTask | None:
        """The task of this gateway. None: there is none, or it is somebody else's."""
        self._drop_overdue()
        task = self.tasks.get(task_id) if isinstance(task_id, str) else None
        return task if task is not None and task.owner == owner else None

    async def find(self, task_id: object, owner: str) -> ClientTask:
        """The task of this gateway or of another. Raises `RpcFault`, which is the same for a task of somebody else."""
        task = self.get(task_id, owner)
        if task is None and self._folder is not None and isinstance(task_id, str):
            found = await self._folder.find(owner, task_id)
            task = None if found is None else ClientTask.of_another(self, found)
        if task is None:
            raise RpcFault(rpc.INVALID_PARAMS, _UNKNOWN)
        return task

    def running(self, session: ClientSession, owner: str) -> list[ClientTask]:
        """The tasks of this client that have not ended."""
        return [task for task in self._of.get(owner, {}).values() if task.is_of(session)]

    def has_room_for(self, task: ClientTask, size: int) -> bool:
        """Whether so many bytes more can be kept. The oldest results of the owner that has the most make room for it,
        which may be its own; if that would not do, none."""
        missing = self.held_bytes + size - TASK_BYTES
        if missing <= 0:
            return True
        held = {owner: sum(each.size for each in tasks.values()) for owner, tasks in self._of.items()}
        held[task.owner] = held.get(task.owner, 0) + size
        results = {
            owner: [each for each in tasks.values() if each.result] for owner, tasks in self._of.items()
        }
        leave = list[ClientTask]()
        while missing > 0:
            larger = [owner for owner in held if results.get(owner) and held[owner] >= held[task.owner]]
            if not larger:
                return False
            most = max(larger, key=lambda owner: (held[owner], owner == task.owner))
            oldest = results[most].pop(0)
            held[most] -= oldest.size
            missing -= oldest.size
            leave.append(oldest)
        for each in leave:
            self.drop(each)
        return True

    def has_room_for_question(self, task: ClientTask, size: int) -> bool:
        """Whether so many bytes more of what a task asks can be kept. A task that waits is not dropped, so one owner
        may have only some of them."""
        asked = sum(each.asked_bytes for each in self._of.get(task.owner, {}).values())
        return asked + size <= ASKED_BYTES_OF_ONE and self.has_room_for(task, size)

    def resized(self, task: ClientTask, more: int) -> None:
        """So many bytes more, or fewer, are kept of what a task asks."""
        if task.id in self.tasks:
            self.held_bytes += more

    def ended(self, task: ClientTask) -> None:
        """A task has ended: its result counts from now on."""
        if task.id in self.tasks:
            self.held_bytes += task.size

    def drop(self, task: ClientTask) -> None:
        """Keep it no longer. If it runs, it is cancelled. Idempotent."""
        if task.id not in self.tasks:
            return
        own = self._of[task.owner]
        del self.tasks[task.id], own[task.id]
        if not own:
            del self._of[task.owner]
        self.held_bytes -= task.size
        task.cancel()
        if self._folder is not None:
            self._folder.remove(task.owner, task.id)

    def _drop_overdue(self) -> None:
        now = anyio.current_time()
        if now < self._look_at:
            return
        for task in [task for task in self.tasks.values() if task.expires <= now]:
            self.drop(task)
        self._look_at = min((task.expires for task in self.tasks.values()), default=math.inf)


class TaskStream:
    """The tasks of which a client is told on one `subscriptions/listen`: those of `ids` that are the owner's, and at
    which no other gateway works. Nothing would be heard of the latter."""

    def __init__(self, session: ClientSession, store: TaskStore, owner: str, ids: Sequence[object]) -> None:
        self._session = session
        self._store = store
        self._owner = owner
        self._wanted = ids
        self._tasks = dict[str, ClientTask]()

    async def find(self) -> None:
        """Find those that the client may hear of. Before it, there are none."""
        for task_id in self._wanted[:TASKS]:
            with suppress(RpcFault):
                task = await self._store.find(task_id, self._owner)
                if not task.is_elsewhere:
                    self._tasks[task.id] = task

    @property
    def ids(self) -> list[str]:
        return list(self._tasks)

    @contextmanager
    def told(self, meta: Mapping[str, Any]) -> Generator[None]:
        """Tell the client of each change as long as the context is open, with this `_meta`. What had changed before the
        client asked is told at once, because nothing else might follow."""
        for task in self._tasks.values():
            task.hearers[self] = meta
            if task.status is not Status.WORKING:
                self.tell(task, meta)
        try:
            yield
        finally:
            for task in self._tasks.values():
                del task.hearers[self]

    def tell(self, task: ClientTask, meta: Mapping[str, Any]) -> None:
        params = {**task.in_full(), "_meta": meta}
        if task.size > LARGE_MESSAGE:
            self._session.spawn_beside(partial(self._session.tell_long, _TOLD, params))
            return
        with suppress(*rpc.UNWRITABLE):  # then nobody can be told, and `tasks/get` says why
            self._session.tell(_TOLD, params)


# ---- The tasks of one client: what it asks for, and what it is told -------------------------------------------------


class TaskHandler(msgspec.Struct, frozen=True, eq=False):
    """Carries out the requests of one client that are about tasks. `after`: the setting `taskAfterMs`, in seconds.
    `passes`: whether a server that it sees makes tasks itself. `timer` calls a function after some seconds. `lists`:
    whether it may list its tasks. Where nobody knows who a client is, anybody could list those of all."""

    store: TaskStore
    owner: str
    session: ClientSession
    after: Callable[[], float | None]
    passes: Callable[[], bool]
    timer: Callable[[float, Callable[[], None]], Timer]
    lists: bool = True
    _leaving: set[Job] = msgspec.field(default_factory=set[Job])  # become tasks as soon as that is written
    # `tasks/result`, until answered.
    _fetching: dict[Job, anyio.Event] = msgspec.field(default_factory=dict[Job, anyio.Event])

    @property
    def running(self) -> int:
        return len(self.store.running(self.session, self.owner))

    @property
    def makes_some(self) -> bool:
        """Whether calls of a client of 2026-07-28 may become tasks."""
        return self.after() is not None or self.passes()

    @property
    def declared(self) -> Mapping[str, Any]:
        """What a client of 2025-11-25 is told that it can do with tasks."""
        calls: dict[str, Any] = {"cancel": {}, "requests": {"tools": {"call": {}}}}
        return {"tasks": {"list": {}, **calls} if self.lists else calls}

    async def ended(self) -> None:
        """Wait until none of them runs any more."""
        for task in self.store.running(self.session, self.owner):
            await task.ended()

    async def settled(self) -> None:
        """Wait until none of them runs any more, and each `tasks/result` is answered."""
        await self.ended()
        for answered in tuple(self._fetching.values()):
            await answered.wait()

    def cancel(self) -> None:
        """Cancel those that run."""
        for task in self.store.running(self.session, self.owner):
            task.cancel()

    def takes(self, job: Job) -> bool:
        """Whether the request is about a task, or asks for one; then it has been carried out. Raises `RpcFault`."""
        if job.method in ABOUT_TASKS:
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
        if not is_object(wanted):
            raise RpcFault(rpc.INVALID_PARAMS, "Invalid params: task must be an object.")
        params = {key: value for key, value in job.params.items() if key != "task"}
        task = self.store.create(self.owner, self.session, modern=False, ttl=wanted.get("ttl"))
        task.token = job.token
        created = {"task": task.said(modern=False)}
        task.carry(self.session.task_job(task, job, params), self.session.begin_task)
        if self.store.keeps:
            job.run(partial(self._answer_once_kept, job, created))
        else:
            job.answer(created)
        return True

    async def _answer_once_kept(self, job: Job, created: Mapping[str, Any]) -> None:
        await self.store.kept()
        job.answer(created)

    def begin(self, job: Job, begin: Callable[[Job], object]) -> ClientTask:
        """Begin the work of a request as a task of its own. Raises `RpcFault` when there is no room for one more."""
        task = self.store.create(self.owner, self.session, modern=False)
        own = self.session.task_job(task, job, job.params)
        own.modern = False  # no later request can carry what a server asks
        task.carry(own, begin)
        return task

    def may_have(self, task_id: str) -> bool:
        """Whether `find` may find it."""
        return self.store.get(task_id, self.owner) is not None or self.store.keeps

    async def find(self, task_id: object) -> ClientTask:
        """Raises `RpcFault`."""
        return await self.store.find(task_id, self.owner)

    async def waited_for(self, task: ClientTask, seconds: float = math.inf) -> ClientTask:
        """The task when it has ended or needs input, or after so many seconds. Raises `RpcFault` when another gateway
        that worked on it has it no longer."""
        async with at_most(seconds):
            while task.is_elsewhere:
                await anyio.sleep(_INTERVAL / 1_000)
                task = await self.find(task.id)
        await task.wait(0 if task.is_elsewhere else seconds)
        return task

    def working_on(self, call: object) -> ClientTask | None:
        """The task for which this call is made."""
        running = self.store.running(self.session, self.owner)
        return next((task for task in running if task.works_on(call)), None)

    # ---- from a call to a task, in 2026-07-28 -----------------------------------------------------------------------

    def _watch(self, job: Job) -> None:
        """A call goes on as a task when its server makes one of it, or when it takes long."""
        job.on_task = partial(self._hand_over, job)
        job.token = UNTOLD if job.token is None else job.token
        if (seconds := self.after()) is not None:
            job.on_end = self.timer(seconds, partial(self._hand_over, job)).cancel

    def _hand_over(self, job: Job) -> None:
        if job in self._leaving or not self._is_call(job):
            return
        try:
            task = self.store.create(self.owner, self.session, modern=True)
        except RpcFault:
            return  # then it stays a call
        if self.store.keeps:
            self._leaving.add(job)
            self.session.spawn_beside(partial(self._leave_once_kept, job, task))
        else:
            self._leave(job, task)

    async def _leave_once_kept(self, job: Job, task: ClientTask) -> None:
        try:
            await self.store.kept()
            self._leave(job, task)
        finally:
            self._leaving.discard(job)

    def _leave(self, job: Job, task: ClientTask) -> None:
        if not self._is_call(job):
            self.store.drop(task)
            return
        if job.on_end is not None:
            job.on_end()
        answers = self.session.answers
        told = answers.stamped({"resultType": "task", **task.said(modern=True)})
        answers.job_line(job, rpc.result_line(job.key, told))  # the job goes on
        task.adopt(job)

    def _is_call(self, job: Job) -> bool:
        """Whether its client still waits for the answer."""
        return not job.ended and self.session.is_open(job)

    # ---- requests about tasks ---------------------------------------------------------------------------------------

    def _listen(self, job: Job) -> None:
        """A stream that names tasks tells of those that are its client's. The others are left out."""
        wanted = rpc.read_value(job.params.get("notifications"))
        if not is_object(wanted) or "taskIds" not in wanted:
            return
        _need_extension(job)
        ids = wanted["taskIds"]
        job.tasks = TaskStream(self.session, self.store, self.owner, ids if is_array(ids) else ())

    def _about_task(self, job: Job) -> None:
        if job.modern:
            _need_extension(job)
        if job.method == LIST:
            self._list(job)
            return
        task_id = rpc.read_value(job.params.get("taskId"))
        task = self.store.get(task_id, self.owner)
        if task is not None:
            self._carry_out(job, task)
        else:
            job.run(partial(self._look_elsewhere, job, task_id))

    async def _look_elsewhere(self, job: Job, task_id: object) -> None:
        self._carry_out(job, await self.find(task_id))

    def _carry_out(self, job: Job, task: ClientTask) -> None:
        """Raises `RpcFault`."""
        if job.method == RESULT:
            job.run(partial(self._result, job, task))
        elif job.method == GET:
            self._get(job, task)
        elif task.is_elsewhere:
            raise RpcFault(rpc.INVALID_PARAMS, _ELSEWHERE)
        elif job.method == CANCEL:
            if not job.modern and task.status.is_final:
                raise RpcFault(
                    rpc.INVALID_PARAMS, f"Invalid params: the task has ended ({task.status.value})."
                )
            task.cancel()
            job.answer({} if job.modern else task.said(modern=False))
        else:
            given = rpc.read_value(job.params.get("inputResponses"))
            if not is_object(given):
                raise RpcFault(rpc.INVALID_PARAMS, "Invalid params: inputResponses must be an object.")
            task.give(given)
            job.answer({})

    def _get(self, job: Job, task: ClientTask) -> None:
        if not job.modern:
            job.answer(task.said(modern=False))
        elif task.size > LARGE_MESSAGE:
            job.run(partial(self.session.answer_long, job, task.in_full()))
        else:
            job.answer(task.in_full())

    async def _result(self, job: Job, task: ClientTask) -> None:
        """The result of a task of 2025-11-25, once it has ended."""
        answered = self._fetching[job] = anyio.Event()
        try:
            await self._answer_with_result(job, task)
        finally:
            del self._fetching[job]
            answered.set()

    async def _answer_with_result(self, job: Job, task: ClientTask) -> None:
        if task.is_elsewhere:
            task = await self.waited_for(task)
        await task.ended()
        if task.result is None:
            error = task.error or RpcFault(rpc.INVALID_PARAMS, "Invalid params: the task was cancelled.")
            job.fail(error.code, error.message, error.data)
            return
        job.wrapped_output = ANYTHING if task.wraps else None
        mark = partial(_marked, task.result, task.id)
        result = await aside(mark) if task.size > LARGE_MESSAGE else mark()
        await self.session.answer_kept(job, result, modern=False)

    def _list(self, job: Job) -> None:
        if not self.lists:
            raise no_method(job.method)
        cursor = rpc.read_value(job.params.get("cursor"))
        after = "" if cursor is None else cursor
        if not isinstance(after, str) or (after and _CURSOR.fullmatch(after) is None):
            raise no_cursor()
        if self.store.keeps:
            job.run(partial(self._list_all, job, after))
        else:
            job.answer(_page(self.store.of(self.owner), after))

    async def _list_all(self, job: Job, after: str) -> None:
        job.answer(_page(await self.store.all_of(self.owner), after))


_CURSOR: Final = lazy_pattern(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z [\w-]{32}", re.ASCII)


def _page(tasks: Iterable[ClientTask], after: str) -> dict[str, Any]:
    """One page of a list. The cursor is where its last task stands, so it stays valid when that is dropped."""
    rest = sorted((task for task in tasks if task.order > after), key=lambda task: task.order)
    page = rest[:_PAGE]
    said: dict[str, Any] = {"tasks": [task.said(modern=False) for task in page]}
    return {**said, "nextCursor": page[-1].order} if len(rest) > _PAGE else said


def _marked(result: bytes, task_id: str) -> bytes:
    """The result of a task as a client of 2025-11-25 fetches it: it names the task. Of one with millions of members the
    mark takes the place of its `_meta`."""
    mark = {RELATED: {"taskId": task_id}}
    result = rpc.for_handshake(result)
    parts = rpc.result_parts(result)
    if parts is None:
        return b'%b,"_meta":%b}' % (result.rstrip()[:-1], rpc.encode(mark))
    return rpc.encode({**parts, "_meta": {**rpc.parts_of_meta(parts.get("_meta", rpc.ABSENT)), **mark}})


def _declares(job: Job) -> bool:
    said: object = (job.meta or {}).get(rpc.CAPABILITIES_KEY)
    for name in ("extensions", EXTENSION):
        said = said.get(name) if is_object(said) else None
    return is_object(said)


def _need_extension(job: Job) -> None:
    """Raises `RpcFault` when the client did not declare that it knows tasks."""
    if not _declares(job):
        data: dict[str, Any] = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
        raise RpcFault(MISSING_CAPABILITY, f"Missing required client capability: {EXTENSION}", data)


def owner_of(subject: str | None, profile: str | None, *, is_known: bool = True) -> str:
    """To whom tasks belong: a digest of the principal, as its door names it, and the profile. `is_known`: there is a
    principal; without one they belong to whoever knows their ids."""
    return hashlib.sha256(rpc.encode([subject, profile, is_known])).hexdigest()


def _within_bounds(error: RpcFault) -> RpcFault:
    """The error as it is kept. What servers say in one is no result, and is not counted as one."""
    try:
        is_small = len(rpc.encode(_as_error(error))) <= _ERROR_BYTES
    except rpc.UNWRITABLE:
        is_small = False
    return error if is_small else RpcFault(error.code, shortened(error.message, _MESSAGE))


def _as_error(error: RpcFault) -> dict[str, Any]:
    body = {"code": error.code, "message": error.message}
    return body if error.data is None else {**body, "data": error.data}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
