"""Tasks: work that goes on after a server has answered a call. Pure: reads what is said of them, in both forms.

In 2025-11-25 they belong to the core. The client asks for a task with its call (`task` in the params), the server
answers `{"task": …}`, and the result is fetched by `tasks/result`. A tool may say that it runs only so (`taskSupport`).
A client may list its tasks (`tasks/list`), which the extension has not.
For 2026-07-28 they are an extension: the server decides, answers `resultType: "task"`, and the result stands in the
answer to `tasks/get`. From both comes the same `Task`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from .bounds import ERROR_BYTES
from .jsonrpc import encoding
from .jsonrpc.incoming import decode_error, excerpt, read_value
from .jsonrpc.terms import META, MODERN_VERSIONS, RpcError, RpcFault, WireFault, fault

EXTENSION: Final = f"{META}tasks"
GET: Final = "tasks/get"
RESULT: Final = "tasks/result"
UPDATE: Final = "tasks/update"
CANCEL: Final = "tasks/cancel"
LIST: Final = "tasks/list"
ABOUT_TASKS: Final = frozenset({GET, RESULT, UPDATE, CANCEL, LIST})
TOLD: Final = frozenset({"notifications/tasks", "notifications/tasks/status"})  # the newer, the older
RELATED: Final = f"{META}related-task"  # in the `_meta` of what belongs to a task of 2025-11-25
INTERVAL: Final = (
    0.1,
    1.0,
    60.0,
)  # seconds between two looks at a task: at least, if nothing is said, at most
_SEEN: Final = 1 << 16  # bytes of the longest answer that may be a new task
_ID_CHARACTERS: Final = 1_024
_BEGINNING: Final = 1_000  # bytes of an error that is too long


class Status(enum.StrEnum):
    WORKING = "working"
    INPUT_REQUIRED = "input_required"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self not in (Status.WORKING, Status.INPUT_REQUIRED)


class Task(msgspec.Struct, frozen=True, eq=False):
    """A task as its server told it last. `interval`: seconds until it should be looked at again, within bounds. The
    last three are only in the extension: the result as it came, the error, what is asked of the client."""

    id: str
    status: Status
    message: str = ""
    interval: float = INTERVAL[1]
    result: bytes | None = None
    error: RpcError | None = None
    requests: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])


# ---- what the two sides declare --------------------------------------------------------------------------------------
def has_tasks(version: str | None, capabilities: Mapping[str, Any]) -> bool:
    """Whether a server that said this makes tasks of calls of its tools."""
    path = ("extensions", EXTENSION) if version in MODERN_VERSIONS else ("tasks", "requests", "tools", "call")
    said: Any = capabilities
    for name in path:
        said = cast("Mapping[str, Any]", said).get(name) if isinstance(said, Mapping) else None
    return isinstance(said, Mapping)


def with_extension(capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """Client capabilities, and the extension with them."""
    said: object = capabilities.get("extensions")
    known: Mapping[str, Any] = cast("Mapping[str, Any]", said) if isinstance(said, Mapping) else {}
    return {**capabilities, "extensions": {**known, EXTENSION: {}}}


def runs_only_so(tool: Mapping[str, Any]) -> bool:
    """Whether a tool says of itself that it runs only as a task (2025-11-25)."""
    execution: object = tool.get("execution")
    return isinstance(execution, Mapping) and cast("Any", execution).get("taskSupport") == "required"


# ---- what a server says of a task ------------------------------------------------------------------------------------
def made_in(answer: bytes, *, modern: bool) -> Task | None:
    """The new task that this answer to a call is; None: it is a result. Raises `WireFault` for a task without an id."""
    if len(answer) > _SEEN or b'"task"' not in answer:
        return None
    parts = _parts(answer)
    if modern:
        return _read(parts) if _value(parts, "resultType") == "task" else None
    said = parts.get("task")
    return None if said is None or "content" in parts else _read(_parts(bytes(said)))


def told_in(answer: bytes) -> Task:
    """The task in an answer to `tasks/get`. Raises `WireFault`."""
    return _read(_parts(answer))


def related_to(params: Mapping[str, Any] | None) -> str | None:
    """The id of the task to which a message of 2025-11-25 belongs."""
    meta: object = (params or {}).get("_meta")
    related: object = cast("Any", meta).get(RELATED) if isinstance(meta, Mapping) else None
    found: object = cast("Any", related).get("taskId") if isinstance(related, Mapping) else None
    return found if isinstance(found, str) else None


def unrelated(result: bytes) -> bytes:
    """A result without the id of the task that it came from: whoever called knows of no task."""
    if RELATED.encode() not in result:
        return result
    parts: dict[str, Any] = dict(_parts(result))
    meta: object = _value(parts, "_meta")
    if not isinstance(meta, dict) or RELATED not in meta:
        return result
    kept = {key: value for key, value in cast("dict[str, Any]", meta).items() if key != RELATED}
    rest = {key: value for key, value in parts.items() if key != "_meta"}
    return encoding.encode({**rest, "_meta": kept} if kept else rest)


def _read(parts: Mapping[str, msgspec.Raw]) -> Task:
    task_id, status = _value(parts, "taskId"), _value(parts, "status")
    if not isinstance(task_id, str) or not 0 < len(task_id) <= _ID_CHARACTERS:
        raise WireFault("a task without an id")
    try:
        known = Status(status)
    except ValueError:
        raise WireFault(f"a task in no known status ({str(status)[:40]})") from None
    message, requests = _value(parts, "statusMessage"), _value(parts, "inputRequests")
    result, error = bytes(parts.get("result", b"")), bytes(parts.get("error", b""))
    return Task(
        task_id,
        known,
        message if isinstance(message, str) else "",
        _interval(_value(parts, "pollIntervalMs", "pollInterval")),
        result if result.startswith(b"{") else None,
        _error(error) if error else None,
        cast("dict[str, Any]", requests) if isinstance(requests, dict) else {},
    )


def _error(error: bytes) -> RpcError:
    if len(error) > ERROR_BYTES:
        return fault(f"its error is too long, and begins with {excerpt(error, _BEGINNING)}")
    return decode_error(error)


def _interval(said: object) -> float:
    least, usual, most = INTERVAL
    if isinstance(said, bool) or not isinstance(said, int | float):
        return usual
    return max(least, min(most, said / 1000))


def _parts(answer: bytes) -> Mapping[str, msgspec.Raw]:
    try:
        return encoding.decode_parts(answer)
    except encoding.UNREADABLE as problem:
        raise WireFault(f"what cannot be read: {problem}") from None


def _value(parts: Mapping[str, msgspec.Raw], *names: str) -> Any:
    """The value of the first of these members that is there. Raises `WireFault`."""
    raw = next((parts[name] for name in names if name in parts), None)
    try:
        return read_value(raw)
    except RpcFault as problem:
        raise WireFault(problem.message) from None
