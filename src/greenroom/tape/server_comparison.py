"""Makes the calls on a tape that only read again, and says what is other now.

It opens a room over the configuration and records it, so what is compared was recorded in the same way: without
secrets, with times from being sent, with the lists of servers. Of each server one call is made after another, in the
order of the tape, and each recorded session is a session here; servers go on beside each other. What a server then asks
its client is answered as on the tape, but for the roots: they are folders that a server may then open, and whoever made
the tape would choose them. So there are none, unless whoever compares names some.

Nothing that may write is sent. A tool only reads if it says so on the tape and now: what it says now is looked at right
before each call. Whoever lists a tool answers for it himself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import anyio
import attrs

from ..actors.call import Call
from ..actors.host import ServerRequest
from ..actors.workers import apart
from ..catalogue.namespace import Target
from ..config.argument_checks import file_of, time_limit
from ..config.model import Config
from ..protocol.errors import CallError, RpcRefusal, UnknownTool, UsageError
from ..protocol.jsonrpc.terms import INTERNAL_ERROR
from ..supervisor.attachments import TAPE
from ..supervisor.room import ConfigSource, Greenroom, Session, port_of
from .recorder import Recorder
from .tape_comparison import (
    READ,
    Comparison,
    ComparisonPlan,
    RepeatableCall,
    RepeatOutcome,
    call_name,
    compare_asked,
    plan_of,
    refusal,
)
from .tape_reader import Tape, only_reads, read_tape

# What is sent of recorded params. Nothing else: a tape could make a call a task, or say what only some server knows.
_MEMBERS: Final[Mapping[str, Collection[str]]] = {
    "tools/call": ("name", "arguments"),
    "prompts/get": ("name", "arguments"),
    "resources/read": ("uri",),
    "completion/complete": ("ref", "argument", "context"),
}
_ELICITATION: Final = "elicitation/create"
_WRITES_NOW: Final = "does not say any more that it only reads"


async def compare_servers(
    tape: str | os.PathLike[str] | Tape,
    config: ConfigSource,
    *,
    servers: Collection[str] = (),
    only: Collection[str] | None = None,
    reads: Collection[str] = (),
    ignore: Collection[str] = (),
    slower: float | None = None,
    timeout: float | None = None,
    record: str | os.PathLike[str] | None = None,
    on_plan: Callable[[ComparisonPlan], object] | None = None,
    **options: Any,
) -> Comparison:
    """Repeat the calls on a tape that only read, with the current servers of `config`, and compare the lists, the
    answers and the times.

    A call only reads if its tool declares it (`readOnlyHint`), both on the tape and now. `servers`: compare only
    these. `reads`: names of more tools that only read, as they were called. `only`: repeat only the calls of these
    tools, even if they change something. `ignore`: names of members that may differ in answers. `slower`: report a
    tool if its median time has grown by at least this factor. `timeout`: seconds for each call after it is sent.
    `record`: the path of a tape for the new answers. `on_plan` is called with the plan before anything is sent.
    `options`: the arguments of `Greenroom.open`, such as `on_approval` and `roots` (the recorded roots are not used).

    Raises `BadTape`, `ConfigError`; `UsageError` for a name that is not on the tape, and for a configuration that has
    none of the servers on it.
    """
    limit = time_limit(timeout, "timeout")
    read = tape if isinstance(tape, Tape) else await apart(partial(read_tape, tape))
    plan = await apart(partial(plan_of, read, servers, only, reads))
    with TemporaryDirectory(prefix="greenroom-") as folder:
        place = Path(folder) / "now.tape" if record is None else file_of(record, "record")
        client = _RecordedClient()
        offers = {each for line in read.listed for each in line.offers}
        given: dict[str, Any] = {"bootstrap": False, **client.callbacks(plan, offers), **options}
        room = Greenroom.open(config, record=place, **given)
        _check_servers(plan, room.config)
        if on_plan is not None:
            on_plan(plan)
        async with room:
            asking = _TapeCalls(room, client, frozenset((*reads, *(only or ()))), limit)
            async with anyio.create_task_group() as tasks:
                for server, calls in plan.calls.items():
                    tasks.start_soon(asking.ask, server, calls)
        recorder: Recorder = port_of(room).services.attachment(TAPE)
        assert recorder.path is not None
        now = await apart(partial(read_tape, recorder.path))
        found = await apart(
            partial(
                compare_asked,
                read,
                now,
                asking.asked,
                not_sent=[*plan.not_sent, *((again.call, why) for again, why in asking.not_sent)],
                unreachable=asking.unreachable,
                servers=plan.calls,
                ignore=ignore,
                slower=slower,
            )
        )
    return found if record is None else attrs.evolve(found, kept=recorder.path)


def _check_servers(plan: ComparisonPlan, config: Config) -> None:
    """Raises `UsageError` when none of the servers that are to be asked is configured: it is another configuration. Of
    one that is not trusted, or that cannot be read, each server tells more."""
    is_whole = not config.untrusted and not config.unread
    if is_whole and plan.calls and not plan.calls.keys() & config.servers.keys():
        asked, has = ", ".join(plan.calls), ", ".join(config.servers) or "no servers"
        raise UsageError(f"The configuration has none of the servers on the tape ({asked}). It has: {has}.")


class _RecordedClient:
    """Answers what servers ask during a call as it was answered on the tape during the same call."""

    def __init__(self) -> None:
        self.making: dict[Call, RepeatableCall] = {}

    def callbacks(self, plan: ComparisonPlan, offers: Collection[str]) -> dict[str, Any]:
        """Those of `Greenroom.open` for what was answered on the tape, and for what its servers were told that it would
        be: some have other tools for other clients."""
        asked = [each for calls in plan.calls.values() for again in calls for each in again.call.asked]
        answered = {each.method: each.answer for each in asked if each.answer is not None}
        found: dict[str, Any] = {}
        if "sampling/createMessage" in answered or "sampling" in offers:
            found["on_sampling"] = self.answer
        if _ELICITATION in answered or "elicitation" in offers:
            found["on_elicitation"] = self.answer
        if "roots/list" in answered or "roots" in offers:
            found["roots"] = []
        return found

    async def answer(self, request: ServerRequest) -> Mapping[str, Any]:
        again = None if request.call is None else self.making.get(request.call)
        asked = () if again is None else again.call.asked
        same = [each for each in asked if each.method == request.method]
        known = next((each for each in same if each.params == request.params), None)
        if known is None and same and request.method != _ELICITATION:  # no consent to another question
            known = same[0]
        if known is None or known.answer is None:
            said = {} if known is None or known.refusal is None else known.refusal
            raise RpcRefusal(
                said.get("code", INTERNAL_ERROR), said.get("message", "Not answered on the tape.")
            )
        return known.answer


class _TapeCalls:
    """Asks the servers of a room. `listed`: names of tools that may be called whatever they say of themselves."""

    def __init__(
        self, room: Greenroom, client: _RecordedClient, listed: frozenset[str], timeout: float | None
    ) -> None:
        self.asked: list[RepeatOutcome] = []
        self.not_sent: list[tuple[RepeatableCall, str]] = []
        self.unreachable: dict[str, str] = {}
        self._room = room
        self._client = client
        self._listed = listed
        self._timeout = timeout

    async def ask(self, server: str, calls: Sequence[RepeatableCall]) -> None:
        """All calls of one server. One that cannot be connected is not asked: each call would wait for it anew."""
        try:
            await self._room.connect(server)
        except CallError as error:
            self.unreachable[server] = error.message
            self.not_sent += ((again, "server cannot be asked") for again in calls)
            return
        lasts = {again.call.session: number for number, again in enumerate(calls)}
        sessions: dict[str, Session] = {}
        try:
            for number, again in enumerate(calls):
                name = again.call.session
                if name is None:
                    await self._make(self._room, again)
                    continue
                if name not in sessions:
                    sessions[name] = await self._room.session(f"{server} {name}").__aenter__()
                await self._make(sessions[name], again)
                if lasts[name] == number:
                    await sessions.pop(name).aclose()
        finally:
            for session in sessions.values():
                await session.aclose()

    async def _make(self, scope: Greenroom | Session, again: RepeatableCall) -> None:
        port, line = port_of(scope), again.call
        members = _MEMBERS[line.method]
        params = {key: value for key, value in again.params.items() if key in members}
        call = Call(line.method, params, timeout=self._timeout, replayable=True)
        try:
            if line.method not in READ:
                target = _tool(port.catalogue.index.tools(line.server), again)
                if (why := self._why_not(again, target)) is not None:
                    self.not_sent.append((again, why))
                    return
                call.tool, call.replayable = target.name, target.is_harmless
            self._client.making[call] = again
            await port.ask_raw(line.server, call)
        except CallError as error:
            self.asked.append(RepeatOutcome(again, call.number, refusal(error)))
        else:
            self.asked.append(RepeatOutcome(again, call.number))
        finally:
            self._client.making.pop(call, None)

    def _why_not(self, again: RepeatableCall, target: Target) -> str | None:
        """Why this tool is not called; None: it is. The name that it had is only the tape's word."""
        if again.is_listed:
            is_named = not self._listed.isdisjoint((target.name, target.original))
            return None if is_named else "has another name now than the listed one"
        return None if only_reads(target.record) else _WRITES_NOW


def _tool(tools: Sequence[Target], again: RepeatableCall) -> Target:
    """The tool that is to be called. Raises `UnknownTool`, and what keeps it from being called."""
    name = again.params.get("name")
    target = next((target for target in tools if target.kind == "tool" and target.original == name), None)
    if target is None:
        raise UnknownTool(call_name(again.call))
    if not target.may_be_called:
        raise target.refusal()
    return target
