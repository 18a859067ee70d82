"""The caller of requests: the room's machinery, and the scope that requests are made in.

A room and each of its sessions hold one `Caller`. It finds the actor of a request, hands calls to that actor,
counts calls that are refused before they reach an actor, and waits for a server to be connected. It decides
nothing. It knows neither the names of tools (`_names`) nor what a request is about (`_calls`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import anyio
import anyio.lowlevel

from ..actors import Call, ServerActor, Sync
from ..protocol.audit import Asked
from ..protocol.config import Scrub
from ..protocol.errors import (
    Busy,
    CallError,
    CallTimeout,
    ConnectFailed,
    GreenroomError,
    ProtocolFault,
    Reach,
    RoomClosed,
    UsageError,
)
from ..protocol.index import Index
from ..protocol.jsonrpc import WireFault, decode_result, weigh
from ..protocol.large_json import LARGE
from ..protocol.lifecycle import Cause, Ending
from ..protocol.secrets import Secrets
from ._decoding import decoded_in_turns, scrubbed_in_turns
from ._profile_view import ProfileView
from ._runtime import Runtime

_OFF, _MCP, _ALL = Scrub.OFF, Scrub.MCP, Scrub.ALL  # as in `actors._peer`: each call names these


class Caller:
    """`session` is None for the room itself. `view`: what it sees of the room; None: everything.

    For an audit (`_audited`), a door says how requests come here (`door`), for whom (`subject`), and what the client
    says about itself."""

    door = "embedded"
    subject: str | None = None
    client_said: object = None

    def __init__(self, runtime: Runtime, session: str | None = None, view: ProfileView | None = None) -> None:
        self.runtime = runtime
        self.session = session
        self.view = view
        self.is_over = False  # a session's end

    def scrubber(self, server: str, door: Scrub) -> Secrets | None:
        """What scrubs the results of a server at this door; None: nothing does. `door`: `MCP`, where a tool of ours
        gives them to a model, or `ALL` for any other. The configuration says it, for all servers and for each. It is
        asked at each result, so a reload counts at once."""
        config = self.runtime.config
        definition = config.servers.get(server)
        rule = (definition.scrub if definition is not None else None) or config.settings.scrub
        if rule is _OFF or (rule is _MCP and door is not _MCP):
            return None
        return self.runtime.root.context.secrets.of_server(server, self.session)

    @property
    def live(self) -> Runtime:
        """The machinery. Raises `UsageError` before the room is opened, and after the end of the session."""
        if self.is_over:
            raise UsageError(f"The session {self.session!r} is over; open another with `room.session(...)`.")
        if not self.runtime.is_built:
            raise UsageError(
                "The room is not open yet: use `async with Greenroom.open(...) as room`, or `await room.start()`."
            )
        return self.runtime

    @property
    def index(self) -> Index:
        """The published index of all names. It can still be read when a session is over."""
        runtime = self.runtime
        if not runtime.is_built:
            return self.live.router.index
        shown = runtime.router.index if self.view is None else self.view.index
        return shown if self.session is None else runtime.own_lists.index(self.session, shown)

    def actor(self, server: str) -> ServerActor:
        """The actor that a request from here goes to. Raises `UnknownServer`, `SessionNeeded`."""
        self.check_server(server)
        return self.live.root.actor_for(server, self.session)

    def check_server(self, server: str | None) -> None:
        """Raises `UnknownServer`. None stands for any server."""
        if server is not None:
            if self.view is not None:
                self.view.check(server)
            self.live.root.record(server)

    # ---- handing over a call ----------------------------------------------------------------------------------------

    def submit(self, server: str, call: Call, *, allowed: bool = False) -> None:
        """Hand the call to its actor in this scope. Raises the `CallError` with which it is refused.

        A call that somebody has to allow is held first, unless it is `allowed` (`_approvals`)."""
        live = self.runtime
        if self.is_over or not live.is_running:  # only then can `self.live` raise; this saves looking
            live = self.live
            text = "The room is not open; the call was not sent. Call inside `async with Greenroom.open(…)`."
            raise self.refused(RoomClosed(text, server=server))
        root = live.root
        call.client = self.session
        try:
            if self.view is not None:
                self.view.check(server)
            if root.approvals.asks and not allowed and root.approvals.holds(self, server, call):
                return
            actor = root.actor_for(server, self.session)
        except CallError as error:
            raise self.refused(error) from None
        try:
            actor.calls.submit(call)
        except CallError:
            root.forget_unused(actor)
            raise

    async def ask(self, server: str, call: Call) -> dict[str, Any]:
        """Hand the call over and wait for its result, decoded. Raises the call's `CallError`."""
        try:
            self.submit(server, call)
        except CallError:
            await anyio.lowlevel.checkpoint()  # a loop around a refusal must not starve the rest
            raise
        answer = await call.wait()
        try:
            scrubber = self.scrubber(server, _ALL)
            if scrubber is not None:
                answer = await scrubbed_in_turns(scrubber.scrubbing(answer))
            return decode_result(answer) if len(answer) < LARGE else await decoded_in_turns(answer)
        except WireFault as error:
            text = f'Server "{server}" answered {call.method} with what cannot be read: {error}.'
            raise ProtocolFault(text, server=server, reach=Reach.ANSWERED) from None

    def refused(self, error: CallError, asked: Asked | None = None) -> CallError:
        """Count a request that ends before an actor has accepted or refused it, for the drain report. `asked`: what
        it was, if it is no call yet."""
        self.live.context.tally.refuse(error)
        return error

    @contextmanager
    def counting_refusals(self, asked: Asked | None = None) -> Generator[None]:
        """Put this around the search for the server of a request. `asked`: what it is, for an audit."""
        try:
            yield
        except CallError as error:
            self.refused(error)
            raise

    @contextmanager
    def holding(self, arguments: object, server: str | None) -> Generator[None]:
        """Put this around the search for the server of a call: its arguments count among those that wait. Raises
        `Busy`."""
        context = self.live.context
        size, most = weigh(arguments), context.settings.max_queued_bytes
        if context.queued_bytes + size > most:
            why = f"the parameters of waiting calls would be over {most:,} bytes"
            raise Busy(server or "", in_flight=0, queued=0, oldest_age=0.0, retry_after=1.0, why=why)
        context.queued_bytes += size
        try:
            yield
        finally:
            context.queued_bytes -= size

    # ---- for an audit -----------------------------------------------------------------------------------------------

    def noting(self, asked: Asked) -> AbstractContextManager[None]:
        """What a door puts around its own search for the server of a request. It tells an audit how that failed."""
        return nullcontext()

    def turned_away(self, asked: Asked, why: GreenroomError | str) -> None:
        """A door answers a request by itself, with this error or code, because no server can be asked. Tells an
        audit, unless it was told of this very error before."""

    # ---- waiting for a connection -----------------------------------------------------------------------------------

    def wait_by(self) -> float:
        """The time until which somebody waits who begins to wait for a server now."""
        context = self.live.context
        return context.backend.now() + context.settings.queue_timeout

    async def connect_by_name(self, server: str) -> None:
        """Connect the server now, whatever its gate says, and wait until its lists are in the index."""
        await self.connect(server, by_name=True)
        await self.live.router.ref.ask(Sync)

    async def connect(self, server: str, *, by_name: bool = False, wait_by: float = math.inf) -> bool:
        """Wait until the server is connected. Returns whether it was not.

        `by_name`: bypass the gate, and have a connected server list what it has again. Otherwise wait as a
        call would wait, and no longer than a call or than until `wait_by`. When the wait ends, a running attempt
        goes on. A server may have no standing address here: it has a child per call, or a child per session and
        this is no session. Then it is visited instead, with the same result.
        """
        self.check_server(server)
        live = self.live
        root, settings, backend = live.root, live.context.settings, live.context.backend
        limit = min(settings.queue_timeout, wait_by - backend.now())
        if by_name:
            definition = root.record(server).definition
            limit += definition.connect_timeout or settings.connect_timeout
        if not root.has_standing_address(server, self.session):
            if by_name:
                root.bring_back(server)
            await self._visit(server, limit)
            return True
        actor = self.actor(server)
        if actor.is_connected and (not by_name or await self._list_again(actor)):
            return False
        waiter, box = backend.waiter(), list[CallError | None]()

        def connected(error: CallError | None) -> None:
            box.append(error)
            waiter.set()

        starter = root.supervision.starter
        stop_waiting = actor.on_connected(connected, by_name=by_name)
        try:
            starter.request_by_name(actor) if by_name else starter.request_as_called(actor)
            with anyio.fail_after(limit):
                await waiter.wait()
        except TimeoutError:
            raise _not_ready(actor, limit) from None
        finally:
            stop_waiting()
            starter.withdraw(actor)
        if box[0] is not None:
            raise box[0].copy()
        return True

    async def _list_again(self, actor: ServerActor) -> bool:
        """Have a connected server list what it has again. False: its connection is over. A server that does not list
        is stopped if it has nothing else to do; else raises `ConnectFailed`."""
        incarnation, waiter = actor.life.incarnation, self.live.context.backend.waiter()
        box = list[CallError | None]()

        def listed(error: CallError | None) -> None:
            box.append(error)
            waiter.set()

        release = actor.idling.lease()
        try:
            actor.list_again(listed)
            await waiter.wait()
        finally:
            release()
        error = box[0]
        if error is None:
            return True
        if actor.is_connected and actor.life.incarnation == incarnation:
            if open_calls := actor.in_flight + actor.queued:
                calls = "1 call is" if open_calls == 1 else f"{open_calls} calls are"
                reason = error.reason if isinstance(error, ConnectFailed) else error.message
                text = f"{reason} ({calls} in flight there, so it was not started anew)"
                raise ConnectFailed(text, server=actor.address.server)
            actor.stop(Ending(Cause.RESTART))
        return False

    async def _visit(self, server: str, limit: float) -> None:
        """Start the server once to learn what it has. Raises the error that kept it from starting."""
        over = anyio.Event()
        box: list[CallError | None] = []

        def visited(actor: ServerActor) -> None:
            box.append(actor.failure)
            over.set()

        actor = self.live.root.supervision.look_in(server, self.session, visited)
        try:
            with anyio.fail_after(limit):
                await over.wait()
        except TimeoutError:
            raise _not_ready(actor, limit) from None
        if box[0] is not None:
            raise box[0].copy()

    def lease(self, server: str) -> Callable[[], None]:
        """Keep the server's connection from being evicted. Returns the function that ends this."""
        if not self.live.root.has_standing_address(server, self.session):
            return _nothing
        return self.actor(server).idling.lease()


def _not_ready(actor: ServerActor, waited: float) -> CallTimeout:
    server = actor.address.server
    text = f'Server "{server}" was not ready within {waited:.3g}s ({actor.doing}); nothing was sent.'
    return CallTimeout(text, server=server, reach=Reach.NOT_SENT, timeout=waited)


def _nothing() -> None:
    pass
