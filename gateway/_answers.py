"""The requests of one client that have no answer yet, and the answers they get.

A request leaves the table of open ones in the step that sends its answer; only a cancellation removes it
elsewhere. The exposure makes the answer, and this module adds the fields that the version of the request asks
for. If an answer cannot be written, the client gets an error that says why. A bug of ours is answered with
-32603, and no traceback is ever sent.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from ..actors import IncomingTable, Refusals
from ..protocol import jsonrpc as rpc
from ..protocol.jsonrpc import RpcFault
from ._jobs import Job
from ._methods import LISTS
from ._signed import ESCAPE, NAMED, result_without_ours, without_ours

_UNCACHED: Final = {
    "ttlMs": 0,
    "cacheScope": "private",
}  # a server may let its results be cached; that does not hold for the gateway
_FRAMES_TOLD: Final = 4  # the innermost frames of a bug's traceback


OpenJobs = IncomingTable[bytes, Job]  # by the request ids, as the client wrote them
REFUSALS: Final = Refusals(
    full="Too many calls in flight ({open}); nothing was called. Retry when some have ended.",
    same_id="Invalid request: a call with this id is still in flight.",
    closing="The gateway is shutting down; nothing was called.",
)


def open_jobs(limit: int) -> OpenJobs:
    """The table of one client's open requests: at most `limit`."""
    return IncomingTable(limit, REFUSALS)


class Answers:
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

    def job_done(self, job: Job, result: Mapping[str, Any] | None, error: RpcFault | None) -> None:
        try:
            if error is not None:
                line = rpc.error_line(job.key, error)
            else:
                result = result or {}
                stamped = self.stamped(result, cacheable=job.method in LISTS) if job.modern else result
                line = rpc.result_line(job.key, stamped)
        except Exception as problem:
            line = self._unsayable(job, problem)
        self._answer(job, line)

    def job_raw(
        self, job: Job, result: bytes, *, modern: bool, filled: Callable[[bytes], bytes] | None = None
    ) -> None:
        try:
            if result.find(NAMED) >= 0 or result.find(ESCAPE) >= 0:
                result = result_without_ours(result)
            if job.modern:
                cached = _UNCACHED if job.method == "resources/read" else {}
                result = rpc.for_modern(result, {rpc.SERVER_INFO_KEY: self._server_info}, cached)
            elif modern:
                result = rpc.for_handshake(result)
            line = rpc.raw_line(job.key, result)
            if filled is not None:
                line = filled(line)
        except Exception as problem:
            line = self._unsayable(job, problem)
        self._answer(job, line)

    def job_progress(self, job: Job, params: Mapping[str, Any]) -> None:
        self._tell(rpc.PROGRESS, {**without_ours(params), "progressToken": job.token})

    def job_broke(self, job: Job, error: Exception) -> None:
        self._answer(job, self.bug_line(job.key, error))

    def _answer(self, job: Job, line: bytes) -> None:
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
            return self.bug_line(job.key, problem)
        why = "it is nested too deeply" if isinstance(problem, RecursionError) else str(problem)
        text = f"The answer to {job.method} cannot be passed on: {why}. Its server must send it otherwise."
        return rpc.error_line(job.key, RpcFault(rpc.INTERNAL_ERROR, text))

    def bug_line(self, key: bytes, error: Exception) -> bytes:
        """Report a bug of ours, and return the error that takes the answer's place."""
        # The type and the place of the error, but not its message, which may quote what was passed on.
        frames = traceback.extract_tb(error.__traceback__)[-_FRAMES_TOLD:]
        places = [f"{Path(frame.filename).name}, line {frame.lineno}" for frame in frames]
        where = f" at {', from '.join(reversed(places))}" if places else ""
        self._note(f"a bug in Greenroom, please report it: {type(error).__name__}{where}")
        fault = RpcFault(rpc.INTERNAL_ERROR, "Internal error in the gateway; its log has the details.")
        return rpc.error_line(key, fault)

    def stamped(self, result: Mapping[str, Any], *, cacheable: bool = False) -> dict[str, Any]:
        """The result with the fields that 2026-07-28 asks for: in every result, and in those a client may
        cache."""
        stamped: dict[str, Any] = {"resultType": "complete", **(_UNCACHED if cacheable else {}), **result}
        stamped["_meta"] = {**(result.get("_meta") or {}), rpc.SERVER_INFO_KEY: self._server_info}
        return stamped
