"""Runs the code of `mcp_execute`: one child for each run, and its calls through the client's session.

`pydantic-monty` interprets the code, in a process of its own below our child (`_sandbox_program`). The child is guarded
like a server's, and ends with the run: when the code has ended, when its time is over, when its client no longer wants
the answer or has gone, and when the room closes. Nothing that the code does can hold up anybody else, because nothing
of it runs here but its calls.

A call of the code is a call of that client. It has its server's limits and circuit breaker, waits for the same
permits, is asked about, and is refused with the same texts, which the code gets as an exception. A few of one run are
in flight, and the others wait. Their results reach the code scrubbed, and otherwise as the server sent them. Of the
whole run the model is told what the code printed and returned, within the bounds of every answer.

A run is a call to the client: it can be cancelled, and a request that a server makes meanwhile suspends it
(`input_required`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.abc
import msgspec

from ...actors.call import Call
from ...actors.peer import AskOnlyHooks, Exchange
from ...actors.timers import at_most
from ...actors.workers import aside
from ...config.model import Scrub
from ...protocol.bounds import (
    DECODED_VALUES,
    DEPTH,
    EXECUTE_IN_FLIGHT,
    EXECUTE_MEMORY,
    EXECUTE_NAP,
    EXECUTE_PRINTED,
    EXECUTE_RESULT_BYTES,
    EXECUTE_RETURNED,
    EXECUTE_RUNS,
    EXECUTE_SECONDS,
    EXECUTE_WAITING,
)
from ...protocol.errors import ConnectFailed, GreenroomError
from ...protocol.jsonrpc.incoming import decode_result
from ...protocol.jsonrpc.terms import INTERNAL_ERROR, RpcError, WireFault
from ...protocol.value_count import has_more_values
from ..input_required import SuspendableCall, SuspendedCalls
from ..next_steps import Commands
from .mcp_tool import McpTool
from .tool_definition import McpToolRequest, Mode

if TYPE_CHECKING:
    from ...actors.peer import Connection, LostReason
    from ...supervisor.port import RoomPort
    from ..jobs import Job


_LINE: Final = 128 << 20  # bytes; all results in flight fit, and all that is printed and returned
COMPUTING: Final = 0.95  # share of a run's time that the code may compute
_GRACE: Final = 0.5  # seconds in which the child ends
_MAIN: Final = Path(__file__).with_name("_sandbox_program.py")


class Execution:
    """One run of some code. It is a call to its client, and ends exactly once."""

    def __init__(self, room: RoomPort, tool: McpTool, runs: Runs, code: str) -> None:
        self._room = room
        self._tool = tool
        self._runs = runs
        self._code = code
        self._seconds = min(EXECUTE_SECONDS, room.catalogue.config.settings.call_total_timeout)
        self._scope = anyio.CancelScope()
        self.patience: anyio.CancelScope = anyio.CancelScope()  # from when it begins
        self._turns = anyio.Semaphore(EXECUTE_IN_FLIGHT)
        self.calls: set[object] = set()  # in flight
        self.text = ""  # why there is no result, if there is none
        self.result: Mapping[str, Any] | None = None
        self.failure: Exception | None = None  # a bug
        # As of any call that a job follows; its own calls tell theirs.
        self.news: Mapping[str, Any] | None = None
        self._commands = Commands()

    def begin(self, suspended: SuspendedCalls, job: Job) -> None:
        self._commands = job.commands
        suspendable = _SuspendableRun(suspended, job, self)
        suspendable.follow(self)
        job.run(partial(self._run, suspendable))

    def cancel(self) -> None:
        self._scope.cancel()

    async def _run(self, suspendable: _SuspendableRun) -> None:
        try:
            with self._scope:
                await self._run_in_turn()
                suspendable.ended(self)
        except Exception as error:
            self.failure = error
            suspendable.ended(self)
        finally:
            suspendable.refused()

    def conclude(self, job: Job, _call: object) -> None:
        """End `job` with what came of it."""
        if self.failure is not None:
            job.broke(self.failure)
            return
        result = self.result
        if result is None:
            text = f"mcp_execute error: Sandbox error: {self.text}"
            result = {"content": [{"type": "text", "text": text}], "isError": True}
        failed = {"error": "execute_failed"} if result.get("isError") else {}
        self._tool.tell(result, job, mode="execute", **failed)

    # ---- the child ------------------------------------------------------------------------------------------------

    async def _run_in_turn(self) -> None:
        if not await self._runs.take():
            self.text = "other code runs, and this was not begun. Run it again later."
            return
        try:
            async with at_most(self._seconds) as self.patience:
                await self._run_in_child()
            if self.patience.cancelled_caught:
                self.text = f"it was ended after {self._seconds:g} s. Calls that it had made may have run."
        finally:
            self._runs.give_back()

    async def _run_in_child(self) -> None:
        raw: bytes | None = None
        command = (sys.executable, "-P", "-B", str(_MAIN))
        try:
            async with (
                self._room.services.helper("mcp_execute", command, max_line=_LINE).open(
                    child := _SandboxProcess(self)
                ) as connection,
                anyio.create_task_group() as calls,
            ):
                try:
                    raw = await child.run(connection, calls, self._told())
                finally:
                    calls.cancel_scope.cancel()
                    with anyio.CancelScope(shield=True):
                        await connection.stop(_GRACE)
        except ConnectFailed as error:
            self.text = error.message
            return
        if raw is None:
            self.text = child.why
            return
        if await aside(partial(has_more_values, raw, DECODED_VALUES)):
            self.text = f"its answer has more than {DECODED_VALUES:,} values and keys."
            return
        try:
            self.result = await aside(partial(decode_result, raw))
        except WireFault as fault:
            self.text: str = f"its answer cannot be read ({fault})."

    def _told(self) -> Mapping[str, Any]:
        return {
            "code": self._code,
            "seconds": self._seconds * COMPUTING,  # of computing: then it can still say where it was
            "nap": EXECUTE_NAP,
            "memory": EXECUTE_MEMORY,
            "printed": EXECUTE_PRINTED,
            "returned": EXECUTE_RETURNED,
            "depth": DEPTH,
        }

    # ---- its calls ------------------------------------------------------------------------------------------------

    async def call(self, asked: Mapping[str, Any], answer: Callable[..., None]) -> None:
        """Carry out a call of the code, and give `answer` the result or why there is none."""
        tool, server, args = asked["tool"], asked["server"] or None, asked["args"]
        async with self._turns:
            try:
                raw = await self._called(tool, server, args)
            except GreenroomError as error:
                request = McpToolRequest(Mode.CALL, tool, server, args)
                refused = await self._tool.why_refused(error, request)
                answer(None, refused.filled(self._commands).text)
                return
        if len(raw) > EXECUTE_RESULT_BYTES:
            answer(
                None,
                f"The result of {tool} has {len(raw):,} bytes, at most {EXECUTE_RESULT_BYTES:,} fit. Ask it for less.",
            )
        else:
            answer(raw, None)

    async def _called(self, tool: str, server: str | None, args: Mapping[str, Any]) -> bytes:
        call = Call("tools/call", {"name": tool, "arguments": args}, tool=tool)
        async with self._room.found(call, args, server) as target:
            self._room.start_call(target, args, None, begun=call)
        self.calls.add(call)
        try:
            raw = await call.wait()
        finally:
            self.calls.discard(call)
        return await self._room.scrubbed(target.server, Scrub.MCP, raw)


class _SandboxProcess(AskOnlyHooks):
    """The child of one run, as its peer tells of it. It is the owner of the one exchange, and takes its requests."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._over = anyio.Event()
        self._raw: bytes | None = None
        self.why = ""

    async def run(
        self, connection: Connection, calls: anyio.abc.TaskGroup, told: Mapping[str, Any]
    ) -> bytes | None:
        """The result, as the child sent it. None: there is none; `why` says why."""
        self._connection, self._calls = connection, calls
        connection.peer.request(Exchange(self, "execute", told))
        await self._over.wait()
        return self._raw

    def _answer(self, rpc_id: Any, raw: bytes | None, error: str | None) -> None:
        peer = self._connection.peer
        if raw is None:
            peer.reply(rpc_id, None, RpcError(INTERNAL_ERROR, error or ""))
        else:
            peer.reply(rpc_id, {"value": msgspec.Raw(raw)})

    # ---- what its peer tells --------------------------------------------------------------------------------------

    def exchange_sent(self, exchange: Exchange, /) -> None:
        pass

    def exchange_progressed(self, exchange: Exchange, params: Mapping[str, Any], /) -> None:
        pass

    def exchange_ended(self, exchange: Exchange, result: bytes | None, error: RpcError | None, /) -> None:
        self._raw, self.why = result, "" if error is None else error.message
        self._over.set()

    def on_request(
        self, rpc_id: Any, method: str, params: Mapping[str, Any] | None, during: Exchange | None = None
    ) -> None:
        self._calls.start_soon(self._execution.call, params or {}, partial(self._answer, rpc_id))

    def on_lost(self, reason: LostReason) -> None:
        last = f": {reason.stderr_tail[-1]}" if reason.stderr_tail else ""
        self.why = f"its process {reason.text}{last}. Calls that it had made may have run."
        self._over.set()


class _SuspendableRun(SuspendableCall):
    """A run, as the request of a newer client. Its calls may be of any server, and several of these may have
    requests: they are made one after the other."""

    def __init__(self, suspended: SuspendedCalls, job: Job, execution: Execution) -> None:
        super().__init__(suspended, job, None, execution.conclude)
        self._execution = execution
        self._back = anyio.Event()

    async def carried(self) -> bool:
        await self._back.wait()
        return True

    def carry(self, job: Job) -> None:
        super().carry(job)
        self._back.set()
        self._back = anyio.Event()

    def is_of(self, call: object) -> bool:
        return call in self._execution.calls


# ---- How many runs of `mcp_execute` may go on at once in one room ----------------------------------------------------
#
# Few, because each is two processes.

_WAIT: Final = 30.0  # seconds for another run to end


class Runs:
    """The runs of one room, of all its clients: how many there may be at once."""

    def __init__(self) -> None:
        self._slots = anyio.Semaphore(EXECUTE_RUNS)

    async def take(self) -> bool:
        """Wait for a slot. False: there is none for too long, or too many wait already."""
        if self._slots.statistics().tasks_waiting >= EXECUTE_WAITING:
            return False
        async with at_most(_WAIT):
            await self._slots.acquire()
            return True
        return False

    def give_back(self) -> None:
        self._slots.release()
