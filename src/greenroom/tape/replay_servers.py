"""Servers that answer from a tape: connectors for an ordinary room. They start nothing and open no file but the tape's.

A call is answered with what the recorded call that fits it was answered with (`call_matching`): its result byte for
byte, the server's error, or the same end without an answer, with the same code and reach. Progress comes before it,
and what the server asked its client is asked again. What is not on the tape is refused, with the nearest call that is.

`pace`: `at once`, or `recorded`, in which a call takes as long as it took; with virtual time that costs nothing.

A server may go wrong on its way, as `faults` say: that is played by `fault_player`, which asks here only for the
answers that it leaves alone.

What a server has changes as it did: each list that was recorded counts from the end of the last call that was accepted
before it, and its client is told.

With `per_session` each session has the tape to itself, from its beginning, for its servers are isolated: what one takes
another one can take, too. What is known of it goes with the session.

Servers that are `live` run, for what may change something and for what the tape lacks (`live_server`).
"""

from __future__ import annotations

import math
import os
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

import anyio
import anyio.abc
import anyio.lowlevel
import attrs
import msgspec

from ..actors.backend import Backend, current_backend
from ..actors.call import Call
from ..actors.open_requests import mark_sent
from ..actors.peer import (
    Connector,
    ConnectorFactory,
    Exchange,
    LostReason,
    NoProcess,
    PeerHooks,
)
from ..actors.timers import at_most
from ..config.argument_checks import flag, similarity, texts, time_limit
from ..config.model import Config, Isolation, ServerDefinition
from ..config.parse import parse_config
from ..protocol.address import SHARED, Address
from ..protocol.errors import Reach, UsageError
from ..protocol.events import NoteCode
from ..protocol.fault_plan import FaultEntry, FaultPlan
from ..protocol.jsonrpc.encoding import encode_json
from ..protocol.jsonrpc.terms import HANDSHAKE_VERSIONS, LISTEN, METHOD_NOT_FOUND, NOT_ON_TAPE, RpcError
from ..protocol.upstream_error import UpstreamError
from .call_matching import (
    CallIndex,
    Found,
    MatchRule,
    RecordedCalls,
    Steps,
    answered_otherwise,
    compared,
    kind_of,
)
from .fault_player import Answer, FaultPlayer, tools_named
from .live_server import LiveServer
from .story import call_as_json
from .tape_faults import FaultsByStart, TapeFault, faults_of, has_run, played_in_words
from .tape_lines import OPEN, CallLine, ClientQuestion, ListingLine
from .tape_reader import BadTape, Tape, config_of, read_tape, reading_tools
from .tape_run import SUBSCRIBES, TapeRun
from .tape_use import TapeUse, count_words

if TYPE_CHECKING:
    from ..supervisor.port import ServerFleet

MakeLive = Callable[[PeerHooks, Callable[[LostReason], None]], LiveServer]
PACES: Final = ("at once", "recorded")
_LISTS: Final = {
    "tools/list": "tools",
    "resources/list": "resources",
    "resources/templates/list": "templates",
    "prompts/list": "prompts",
}
_CHANGED: Final = {"tools": "tools", "resources": "resources", "templates": "resources", "prompts": "prompts"}
_SHOWN: Final = 500  # characters of arguments in a refusal


class Replay(TapeRun):
    """A tape that is being replayed: a `ConnectorFactory`. What was taken of it stays taken for all connections."""

    def __init__(
        self,
        tape: Tape,
        match: MatchRule | None = None,
        *,
        pace: str = "at once",
        faults: Collection[str] = (),
        per_session: bool = False,
        live: Collection[str] = (),
    ) -> None:
        super().__init__()
        self.tape: Tape = tape  # what is replayed
        self.pace: str = pace  # `at once` or `recorded`
        self.match: MatchRule = match or MatchRule()  # how a call finds its recorded one
        self.summary: TapeUse = TapeUse()  # what was taken of the tape, and how
        self._is_per_session = per_session
        self._live = frozenset(live)
        self._behind: LiveServers | None = None
        self._servers: dict[
            tuple[str, str], _TapeServer
        ] = {}  # by name and scope; "": of all, or of a new session
        self._made: set[int] = set()  # numbers of calls that somebody has made
        self._faults = faults_of(faults, tape)
        self._played: set[TapeFault] = set()  # in sessions that are over
        for name in tape.servers:
            self._server(name)  # now, while nobody waits for an answer: a long tape takes seconds

    def __call__(self, definition: Any, address: Address, incarnation: int) -> Connector:
        scope = address.scope if self._is_per_session and address.scope != SHARED else ""
        server = self._server(address.server, scope)
        if self._behind is None or address.server not in self._live:
            return _TapeConnector(self, server)
        return _TapeConnector(self, server, self._behind.reach(definition, address, incarnation))

    def live_by(self, behind: LiveServers) -> None:
        """Reach the servers that are live by this."""
        self._behind = behind

    @property
    def watcher(self) -> object:
        """What is to be told of calls that are sent, and of sessions that are over."""
        return _ReplayWatcher(self, self._forget)

    def _forget(self, session: str) -> None:
        scope = Address.of_session("", session).scope
        for name in self.tape.servers:
            if (server := self._servers.pop((name, scope), None)) is not None:
                self._played |= {*server.faults.all} - {*server.faults.unplayed}

    def has_faults_of(self, servers: Collection[str]) -> bool:
        """Whether a fault is to be played at one of these servers."""
        return any(fault.server in servers for fault in self._faults)

    @property
    def unplayed(self) -> list[str]:
        """The faults that have not happened so far."""
        return [str(fault) for fault in self._faults if self._is_unplayed(fault)]

    def _is_unplayed(self, fault: TapeFault) -> bool:
        servers = [server for (name, _), server in self._servers.items() if name == fault.server]
        return fault not in self._played and all(fault in server.faults.unplayed for server in servers)

    def _server(self, name: str, scope: str = "") -> _TapeServer:
        found = self._servers.get((name, scope))
        if found is None:
            listed = self.tape.listed_of(name)
            if scope:
                recorded = self._server(name).recorded.anew()
            else:
                calls = CallIndex(self.tape.calls_of(name), self.match, reading_tools(listed))
                recorded = RecordedCalls(calls)
            faults = FaultsByStart([fault for fault in self._faults if fault.server == name])
            found = self._servers[name, scope] = _TapeServer(name, recorded, listed, faults)
        return found

    def took(self, call: CallLine) -> None:
        """Somebody has made this recorded call."""
        self._made.add(call.n)

    def refuse(self, server: str, method: str, params: Mapping[str, Any], text: str, words: str) -> None:
        """This call has no answer. `text`: what is said of it; `words`: the call itself."""
        self.refused.append((server, method, params))
        self.refusals.append(text)
        count_words(self.summary.refused, words)

    @property
    def untaken(self) -> list[dict[str, Any]]:
        """Recorded calls that nobody has made so far, as in `greenroom tape --json`."""
        return [call_as_json(call) for call in self._left()]

    @property
    def left(self) -> int:
        """How many recorded calls nobody has made so far. Quick, also for a large tape of servers that nobody used."""
        return sum(1 for _ in self._left())

    def _left(self) -> Iterator[CallLine]:
        for name in self.tape.servers:
            for call in self.tape.calls_of(name):
                if call.n not in self._made and call.method not in SUBSCRIBES:
                    yield call


@attrs.frozen
class _ReplayWatcher:
    replay: Replay
    forget: Callable[[str], None]

    def sent(self, call: Call) -> None:
        self.replay.note(call)

    def forgot(self, session: str, _secrets: object) -> None:
        self.forget(session)


@attrs.frozen
class LiveServers:
    """How servers that are live are reached: as the room does, or by `connectors`."""

    fleet: ServerFleet
    permits: anyio.CapacityLimiter  # a start takes one: those of the room are for connections to the tape
    connectors: ConnectorFactory | None = None

    def reach(self, definition: ServerDefinition, address: Address, incarnation: int) -> MakeLive:
        """What makes the running server behind one connection."""
        make = self.connectors or self.fleet.connector
        return partial(
            LiveServer,
            lambda: make(definition, address, incarnation),
            lambda peer: self.fleet.shake_hands(peer, definition, address),
            self.fleet.seconds_to_connect(definition),
            self.permits,
        )


def opened(
    place: str | os.PathLike[str],
    *,
    strict: bool,
    ignore: Collection[str],
    by_order: bool,
    nearest: float | None,
    pace: str,
    faults: Collection[str] = (),
    call_timeout: float | None = None,
    per_session: bool = False,
    live: Collection[str] = (),
    servers: Config | None = None,
) -> tuple[Config, Replay]:
    """The configuration of a room over a tape, and its connectors. `servers`: the configuration that has those which
    are `live`. Raises `BadTape`, `ConfigError`, `UsageError`."""
    if pace not in PACES:
        raise UsageError(f'pace must be one of {", ".join(PACES)}, got "{pace}".')
    match = MatchRule(
        flag(strict, "strict"),
        frozenset(texts(ignore, "ignore")),
        flag(by_order, "by_order"),
        similarity(nearest, "nearest"),
    )
    timeout = time_limit(call_timeout, "call_timeout")
    if timeout == math.inf:
        raise UsageError("call_timeout must be finite: it is written into a configuration.")
    tape, lines = read_tape(place), texts(faults, "faults")
    config = parse_config(
        config_of(tape, timeout, per_session=flag(per_session, "per_session")),
        source=f"the configuration on {tape.path}",
        environ=os.environ,
    )
    running = texts(live, "live")
    replay = Replay(tape, match, pace=pace, faults=lines, per_session=per_session, live=running)
    return (_with_live(config, replay, running, servers, per_session) if running else config), replay


def _with_live(
    config: Config, replay: Replay, names: Collection[str], servers: Config | None, per_session: bool
) -> Config:
    """The configuration of the tape, with these servers as the user has configured them. How many may run, and start at
    a time, is the user's to say, too."""
    if servers is None:
        raise UsageError(
            "Which configuration has the servers that are live? Say it: config=, or --config FILE."
        )
    taken: dict[str, ServerDefinition] = {}
    for name in names:
        definition = servers.servers.get(name)
        if definition is None:
            known = ", ".join(servers.servers) or "none"
            why = f" It cannot be used: {servers.broken[name]}" if name in servers.broken else ""
            raise UsageError(
                f'There is no server "{name}" in the configuration that live servers are of. There are: {known}.{why}'
            )
        taken[name] = (
            msgspec.structs.replace(definition, isolation=Isolation.PER_SESSION)
            if per_session
            else definition
        )
    if replay.has_faults_of(names):
        raise UsageError(
            "A server that is live does not go wrong as it is told to: leave out its faults, or live."
        )
    settings = msgspec.structs.replace(
        config.settings,
        max_connections=servers.settings.max_connections,
        max_session_connections=servers.settings.max_session_connections,
        start_permits=servers.settings.start_permits,
    )
    return msgspec.structs.replace(config, servers={**config.servers, **taken}, settings=settings)


@attrs.define(eq=False)
class _TapeServer:
    name: str
    recorded: RecordedCalls
    listed: Sequence[ListingLine]
    faults: FaultsByStart
    starts: int = 0
    was_written: bool = False  # by a call that a running server was sent, and that the tape has not seen
    writes_waiting: set[Exchange] = attrs.field(factory=set[Exchange])  # such calls, until it can be asked
    has_run: WeakSet[Call] = attrs.field(factory=WeakSet[Call])  # calls that a running server was sent

    def now_listed(self) -> ListingLine | None:
        """What it has now: the last list that was recorded before the next call that nobody has made yet."""
        if not self.listed:
            return None
        at = self.recorded.next_at
        return next((line for line in reversed(self.listed) if line.t <= at), self.listed[0])


@attrs.define(eq=False)
class _TapeQuestion:
    """What a server asks its client. `answer`: None if it refuses."""

    is_answered: anyio.Event = attrs.field(factory=anyio.Event)
    answer: Mapping[str, Any] | None = None


@attrs.frozen
class _TapeConnector:
    replay: Replay
    server: _TapeServer
    live: MakeLive | None = None

    @asynccontextmanager
    async def open(self, hooks: PeerHooks) -> AsyncGenerator[TapeConnection]:
        self.server.starts += 1
        async with anyio.create_task_group() as tasks:
            connection = TapeConnection(self.replay, self.server, hooks, tasks, self.live)
            try:
                connection.begin()
                yield connection
            finally:
                connection.kill_now()
                tasks.cancel_scope.cancel()


class TapeConnection(NoProcess):
    """A `Connection` and its `Peer`; and the `Wire` and `Responder` of its far end, which answers from the tape."""

    may_speak_both = False
    said_instead = ""

    def __init__(
        self,
        replay: Replay,
        server: _TapeServer,
        hooks: PeerHooks,
        tasks: anyio.abc.TaskGroup,
        live: MakeLive | None = None,
    ) -> None:
        self._heard = 0.0
        self.protocol_version: str | None = None
        self.client_info: Mapping[str, Any] = {}
        self.client_capabilities: Mapping[str, Any] = {}
        self.beside: str | None = None
        self._replay = replay
        self._server = server
        self._hooks = hooks
        self._tasks = tasks
        self._backend: Backend = current_backend()
        self._open: set[Exchange] = set()
        self._asked: dict[str, _TapeQuestion] = {}
        self._is_over = False
        self._live = live and live(hooks, self.lose)
        self._tools: Sequence[Mapping[str, Any]] | None = None  # by a fault
        self._late: set[Exchange] = set()  # whose answers nobody waits for
        self.plan: FaultPlan = server.faults.begin(server.starts)
        self._far = FaultPlayer(self, self, tasks)

    @property
    def peer(self) -> TapeConnection:
        return self

    # ---- Peer -------------------------------------------------------------------------------------------------------

    @property
    def last_heard(self) -> float:
        """What a running server says goes by this connection, straight to who waits for it. While that one starts,
        which has a limit of its own, nobody is silent."""
        if self._live is None:
            return self._heard
        return self._backend.now() if self._live.is_starting else max(self._heard, self._live.last_heard)

    def request(self, exchange: Exchange) -> None:
        encode_json(exchange.params)  # as any peer, it refuses what is no JSON
        self._open.add(exchange)
        if (
            self._live is None
        ):  # else it may be for a server that has to start, and was not sent to anybody so far
            mark_sent(exchange)
        self._tasks.start_soon(self._far.answer, exchange)

    def abandon(self, exchange: Exchange, reason: str) -> None:
        if exchange in self._open:
            self._open.discard(exchange)
            self._server.writes_waiting.discard(exchange)
            self._far.abandoned(exchange)
        elif self._live is not None:
            self._live.abandon(exchange, reason)

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        if self._live is not None:
            self._live.notify(method, params)

    def reply(self, rpc_id: Any, result: Mapping[str, Any] | None, error: RpcError | None = None) -> None:
        question = self._asked.pop(rpc_id, None)
        if question is not None:
            question.answer = None if error is not None else result or {}
            question.is_answered.set()
        elif self._live is not None:
            self._live.reply(rpc_id, result, error)

    # ---- Connection -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self._far.begin()

    def signs(self) -> object:
        return None if self._live is None else self._live.signs()

    def stderr_tail(self) -> tuple[str, ...]:
        return self._far.stderr_tail() or (() if self._live is None else self._live.stderr_tail())

    async def stop(self, grace: float) -> None:
        if self._live is not None:
            await self._live.stop(grace)
        if not self._is_over:
            async with at_most(grace):
                await self._far.close()
        self.kill_now()

    def kill_now(self) -> None:
        self._is_over = True
        self._open.clear()
        if self._live is not None:
            self._live.kill_now()

    # ---- what its far end does --------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        return self._is_over

    def is_waiting(self, exchange: Exchange) -> bool:
        return exchange in self._open

    def end(self, exchange: Exchange, answer: Answer) -> None:
        if self._is_over or self._far.is_hung:
            return
        self._heard = self._backend.now()
        error = answer if isinstance(answer, RpcError) else None
        result = None if isinstance(answer, RpcError) else answer
        if exchange not in self._open:
            self._hooks.on_late_answer(result or b"")
            return
        self._open.discard(exchange)
        exchange.reach = Reach.ANSWERED if error is None or error.upstream is None else error.upstream.reach
        exchange.owner.exchange_ended(exchange, result, error)

    def note(self, code: NoteCode, text: str) -> None:
        self._heard = self._backend.now()
        self._hooks.on_note(code, text)

    def tell(self, method: str, params: Mapping[str, Any] | None) -> None:
        self._heard = self._backend.now()
        self._hooks.on_notification(method, params)

    def lose(self, reason: LostReason) -> None:
        if not self._is_over:
            self.kill_now()
            self._hooks.on_lost(reason)

    # ---- what stands behind its far end: the tape, and the faults of this start -------------------------------------

    async def due_for(self, step: str, exchange: Exchange) -> Sequence[FaultEntry]:
        if step != "call":
            return self.plan.due(step)
        if not self._server.faults.all:
            return ()
        method, params, recorded = exchange.method, exchange.params, self._server.recorded
        at = await _in_turns(recorded.find(method, params))
        due = [
            *self.plan.due(step, (params or {}).get("name")),
            *self._server.faults.due_at(None if at is None else recorded.calls[at].n),
        ]
        ran = has_run(due)
        if any(fault.do == "answer_late" for fault in due):
            self._late.add(exchange)
        if at is not None and ran is not None:
            recorded.miss(at, method, params, has_run=ran)
            self._replay.took(recorded.calls[at])
        return due

    def note_fault(self, fault: FaultEntry) -> None:
        self.note(NoteCode.ODD, played_in_words(self._server.faults.played(fault)))

    def change_tools(self, names: Sequence[str]) -> None:
        listed = self._server.now_listed()
        self._tools = tools_named(names, (listed and listed.tools) or ())

    async def answer_to(self, exchange: Exchange) -> Answer | None:
        if self._live is not None and self._is_for_live(self._live, exchange):
            return await self._ask_live(self._live, exchange)
        said = self._about_itself(exchange)
        if said is None:
            return await self._play(exchange)
        mark_sent(exchange)
        return said if isinstance(said, RpcError) else encode_json(said)

    def _is_for_live(self, live: LiveServer, exchange: Exchange) -> bool:
        """Whether the running server is asked, whatever is on the tape."""
        method, server = exchange.method, self._server
        if method in SUBSCRIBES or (method == "server/discover" and not live.is_ready):
            return False
        if isinstance(exchange, Call):
            is_written = server.was_written or bool(server.writes_waiting)
            return is_written or server.recorded.may_change(method, exchange.params)
        if method in _LISTS:
            return not server.listed or live.has_other_lists
        return live.is_ready or (method == "initialize" and not server.listed)

    async def _ask_live(self, live: LiveServer, exchange: Exchange) -> Answer | None:
        """Hand the request to the running server, which answers its owner itself."""
        server, method = self._server, exchange.method
        writes = isinstance(exchange, Call) and server.recorded.may_change(method, exchange.params)
        if writes:
            server.writes_waiting.add(exchange)
        try:
            await live.ready(self._tasks.start_soon)
            self.pid: int | None = live.pid
            at = await _in_turns(server.recorded.find(method, exchange.params))
            if self._is_over or exchange not in self._open:
                return None  # nobody waits any more, so it is not sent
            if method == "initialize":
                mark_sent(exchange)
                return encode_json(_introduction(live))
            if isinstance(exchange, Call):
                self._count_run(exchange, at)
            server.was_written |= writes
            self._open.discard(exchange)
            live.request(exchange)
            return None
        finally:
            server.writes_waiting.discard(exchange)

    def _count_run(self, call: Call, at: int | None) -> None:
        """The running server is asked this now: once, however often it is sent. `at`: the place of what is on the tape
        of it."""
        server, method, params = self._server, call.method, call.params
        if call in server.has_run:
            return
        server.has_run.add(call)
        if at is None:
            count_words(self._replay.summary.lacked, _in_words(call.tool, method, params or {}))
        else:
            line = server.recorded.take(at, method, params)
            self._replay.took(line)
            _count(self._replay.summary.ran, line)

    def _about_itself(self, exchange: Exchange) -> Mapping[str, Any] | RpcError | None:
        """The answer to what is no call; None: it is one."""
        method, listed = exchange.method, self._server.now_listed()
        if method == "ping":
            return {}
        if method in ("server/discover", LISTEN):
            return RpcError(METHOD_NOT_FOUND, f"Method not found: {method}")
        if method == "initialize":
            if listed is None:
                return RpcError(NOT_ON_TAPE, f'"{self._server.name}" was never connected on this tape.')
            return {
                "protocolVersion": min(listed.version, HANDSHAKE_VERSIONS[-1]),
                "capabilities": listed.capabilities,
                "serverInfo": listed.info or {"name": self._server.name, "version": "0"},
                **({} if listed.instructions is None else {"instructions": listed.instructions}),
            }
        kind = _LISTS.get(method)
        if kind is None:  # what a room itself asks, such as a log level, is not recorded
            return None if isinstance(exchange, Call) else {}
        found: Sequence[Any] | None = None if listed is None else getattr(listed, kind)
        if kind == "tools" and self._tools is not None:
            found = self._tools
        return {"resourceTemplates" if kind == "templates" else kind: found or []}

    async def _play(self, exchange: Exchange) -> Answer | None:
        server, before = self._server, self._server.now_listed()
        if exchange not in self._open:
            return None  # nobody waits any more, so it is not taken
        recorded, live, method, params = server.recorded, self._live, exchange.method, exchange.params
        at = await _in_turns(recorded.find(method, params))
        is_lacking = at is None or not _has_answer(recorded.calls[at])
        if live is not None and is_lacking and method not in SUBSCRIBES:
            return await self._ask_live(live, exchange)
        if exchange not in self._open:
            return None
        mark_sent(exchange)
        if at is None:
            return encode_json({}) if method in SUBSCRIBES else await self._refusal(exchange)
        call = recorded.calls[at] if exchange in self._late else recorded.take(at, method, params)
        self._replay.took(call)
        if call.outcome == OPEN:
            return self._without_answer(exchange, call, "It had not ended when the tape was made.")
        if "result" in call.left_out:
            return self._without_answer(
                exchange, call, f"Its {call.left_out['result']:,} bytes were left out."
            )
        _count(self._replay.summary.met, call)
        self._tell_early(call)
        begun = self._backend.now() - (call.sent if call.sent is not None else call.accepted)
        for at, progress in call.progress:
            await self._until(begun + at)
            if exchange in self._open and exchange.on_progress is not None:
                exchange.owner.exchange_progressed(exchange, progress)
        for asked in call.asked:
            await self._until(begun + asked.t)
            await self._ask(exchange, call, asked)
        await self._until(begun + call.ended)
        if server.now_listed() is not before:
            self._tasks.start_soon(self._tell_lists)
        return await self._end_of(exchange, call)

    async def _until(self, at: float) -> None:
        wait = at - self._backend.now()
        if self._replay.pace == "recorded" and wait > 0:
            await anyio.sleep(wait)

    async def _ask(self, exchange: Exchange, call: CallLine, asked: ClientQuestion) -> None:
        key = f"tape-{id(exchange)}-{len(self._asked)}"
        self._asked[key] = question = _TapeQuestion()
        self._hooks.on_request(key, asked.method, asked.params, exchange)
        await question.is_answered.wait()
        if how := answered_otherwise(asked, question.answer, self._replay.match.ignore):
            self._replay.differences.append(
                f"Answered otherwise than on the tape: {asked.method} of call #{call.n}, {_line_in_words(call)}: {how}."
            )

    def _tell_early(self, call: CallLine) -> None:
        write = self._server.recorded.early(call)
        if write is not None:
            self._replay.differences.append(
                f"Answered too early: {_line_in_words(call)}, with call #{call.n}. That was read after call "
                f"#{write.n}, {_line_in_words(write)}, which has not been made."
            )

    async def _end_of(self, exchange: Exchange, call: CallLine) -> Answer | None:
        if call.outcome == "result":
            return await self._result_of(exchange, call)
        if call.error is None:
            return None  # its caller cancelled it: it never gets an answer
        if call.error.rpc is not None:
            said = call.error.rpc
            code, data = said.get("code"), said.get("data")
            number = code if isinstance(code, int) else NOT_ON_TAPE
            return RpcError(number, str(said.get("message", "")), data)
        upstream = UpstreamError(call.error.code, call.reach)
        return RpcError(NOT_ON_TAPE, call.error.message, upstream=upstream)

    async def _result_of(self, exchange: Exchange, call: CallLine) -> Answer:
        """Others have their turn between the pieces of a large one."""
        out = bytearray()
        try:
            for piece in self._replay.tape.pieces_of(call):
                out += piece
                if call.large is not None:
                    await anyio.lowlevel.checkpoint()
        except BadTape as problem:
            return self._without_answer(exchange, call, str(problem))
        return bytes(out) or b"{}"

    async def _refusal(self, exchange: Exchange) -> RpcError:
        """This call is not on the tape, or not once more; which one comes nearest."""
        method, params = exchange.method, exchange.params or {}
        recorded = self._server.recorded
        asked = _in_words(exchange.tool if isinstance(exchange, Call) else None, method, params)
        text, near = f"Not on the tape: {asked}.", await _in_turns(recorded.last_same(method, params))
        if near is not None:
            text = (
                f"No answer is left on the tape: {asked}. Call #{near.n} has been answered already; a lenient replay "
                "(`--lenient`, `strict=False`) answers it again."
            )
        elif (near := await _in_turns(recorded.nearest_to(method, params))) is not None:
            text += f" The nearest recorded call is #{near.n}: {_line_in_words(near)}"
        data: dict[str, Any] = {"error": "not_on_tape"}
        if near is not None:
            data["nearest"] = near.n
        self._replay.refuse(self._server.name, method, params, text, asked)
        return RpcError(NOT_ON_TAPE, text, data)

    def _without_answer(self, exchange: Exchange, call: CallLine, why: str) -> RpcError:
        """Say that this call is on the tape, and its answer is not."""
        text = f"Not on the tape: the answer to call #{call.n}. {why}"
        params, words = exchange.params or {}, _line_in_words(call)
        self._replay.refuse(self._server.name, exchange.method, params, text, words)
        return RpcError(NOT_ON_TAPE, text, {"error": "not_on_tape", "nearest": call.n})

    async def _tell_lists(self) -> None:
        for kind in dict.fromkeys(_CHANGED.values()):
            if not self._is_over:
                self.tell(f"notifications/{kind}/list_changed", None)


def _introduction(live: LiveServer) -> Mapping[str, Any]:
    """What a server that was never connected on the tape says of itself."""
    said = live.said
    assert said is not None
    return {
        "protocolVersion": min(said.protocol_version, HANDSHAKE_VERSIONS[-1]),
        "capabilities": said.capabilities,
        "serverInfo": said.server_info,
        **({} if said.instructions is None else {"instructions": said.instructions}),
    }


def _has_answer(call: CallLine) -> bool:
    return call.outcome != OPEN and "result" not in call.left_out


def _count(counts: dict[int, int], call: CallLine) -> None:
    counts[call.n] = counts.get(call.n, 0) + 1


def _in_words(tool: str | None, method: str, params: Mapping[str, Any]) -> str:
    """A call as an agent makes it."""
    arguments = params.get("arguments", {}) if "name" in params else params
    return f"{tool or kind_of(method, params)} with {compared(arguments)[:_SHOWN]}"


def _line_in_words(call: CallLine) -> str:
    return _in_words(call.tool, call.method, call.said)


async def _in_turns(steps: Steps[Found]) -> Found:
    """Do this work, and let others have their turn after each step."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
        await anyio.lowlevel.checkpoint()
