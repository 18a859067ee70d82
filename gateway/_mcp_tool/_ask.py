"""The `mcp` tool for our own programs: sends it a request and returns the result, without a client in
between."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import anyio
import msgspec

from ...protocol.errors import Bug, CallError, Reach
from ...protocol.jsonrpc import RpcFault, decode_result, read_value
from ...protocol.secrets import in_words
from .._jobs import Job
from ._tool import McpTool


class _Once:
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

    def job_raw(
        self, job: Job, result: bytes, *, modern: bool, filled: Callable[[bytes], bytes] | None = None
    ) -> None:
        self.job_done(job, decode_result(result if filled is None else filled(result)), None)

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
    sink = _Once()
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
