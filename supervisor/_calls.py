"""Calling tools by name: the half of `Greenroom` that a session has too, above `Requests`.

A name is resolved in the router's published index (a dict look-up in the caller's task), and the call goes to the actor
of its server in the same step. Which actor that is follows from the server's isolation: everybody's, this session's, or
one of the call's own. An unknown name whose prefix is a server's connects that server (its gate respected) and is
resolved again; the server stays leased until the call is made, so nothing evicts it in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import anyio
import anyio.lowlevel

from ..actors import Call, ServerActor, Sync, decode_result, in_turns
from ..protocol.errors import (
    AmbiguousTool,
    CallError,
    CallTimeout,
    ProtocolFault,
    Reach,
    RoomClosed,
    TaskNeeded,
    UnknownTool,
    UsageError,
    some_of,
)
from ..protocol.index import Ambiguous, Missing, Target
from ..protocol.result import ToolResult
from ._requests import Requests


class Calls(Requests):
    """What can be called, out of one session or out of none."""

    # ---- calls ------------------------------------------------------------------------------------------------------

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        server: str | None = None,
        timeout: float | None = None,
        on_progress: Callable[[Mapping[str, Any]], None] | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> ToolResult:
        """Call a tool (or read a resource) by its name; connects its server when needed.

        `timeout`: seconds from being sent, instead of the server's. `on_progress(params)` gets every progress
        notification as the server sent it; `meta` goes along as the request's `_meta`. Raises `CallError`s, each of
        which says how far the call got: among them `UnknownTool`, `AmbiguousTool`, `UnknownServer`. Cancelling it
        cancels the call.
        """
        target = self.index.get(tool) if server is None else None
        wait_by = math.inf
        with ExitStack() as leases:
            if target is None:
                wait_by = self._wait_by()
                with self._counting_refusals():
                    target = await self._find(tool, server, leases, wait_by)
            try:
                call = self.start_call(
                    target,
                    arguments,
                    None,
                    timeout=timeout,
                    on_progress=on_progress,
                    wait_by=wait_by,
                    meta=meta,
                )
            except CallError:
                # A refusal costs a turn, so a loop around it cannot starve the rest.
                await anyio.lowlevel.checkpoint()
                raise
        return ToolResult(_decoded(await call.wait(), target), target)

    def start_call(
        self,
        target: Target,
        arguments: Mapping[str, Any] | None,
        on_end: Callable[[Call], None] | None,
        *,
        timeout: float | None = None,
        on_progress: Callable[[Mapping[str, Any]], None] | None = None,
        wait_by: float = math.inf,
        meta: Mapping[str, Any] | None = None,
    ) -> Call:
        """Accept a call without waiting for it: it ends with `on_end(call)`, exactly once, possibly before this
        returns. `wait_by`: room time by which it is to be sent, if that is before its queue timeout. `meta`: the
        request's `_meta`. Raises `CallError` when it is refused. For doors that have no task per call."""
        if arguments is not None and not isinstance(arguments, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            got = type(arguments).__name__
            text = f"The arguments of {target.name} must be an object of named values, got {got}."
            raise self._refused(UsageError(text, code="invalid_args", server=target.server))
        live = self._live
        if not live.is_running:
            error = RoomClosed("The room is not open; the call was not sent.", server=target.server)
            raise self._refused(error)
        if target.needs_task:
            raise self._refused(TaskNeeded.of(target.name, target.server))
        if target.kind == "resource":
            call = Call("resources/read", {"uri": target.original}, replayable=True)
        else:
            params = {"name": target.original, "arguments": arguments or {}}
            call = Call("tools/call", params, replayable=target.is_harmless)
        if meta is not None:
            call.params = {**(call.params or {}), "_meta": dict(meta)}
        call.tool = target.name
        call.timeout = timeout
        call.on_end = on_end
        call.on_progress = on_progress
        call.wants_progress = on_progress is not None
        if wait_by < math.inf:
            call.wait_by = wait_by
        self._submit(live.root, target.server, call)
        return call

    async def find(self, name: str, server: str | None = None) -> Target:
        """Resolve a name; connect the server it may belong to when it is not known yet, and resolve again.

        Raises `UnknownTool`, `AmbiguousTool`, `UnknownServer`, and what kept the server from connecting.
        """
        with ExitStack() as leases:
            return await self._find(name, server, leases, self._wait_by())

    def _wait_by(self) -> float:
        """When somebody who begins to wait for a server now has waited long enough."""
        context = self._live.context
        return context.backend.now() + context.settings.queue_timeout

    async def _find(self, name: str, server: str | None, leases: ExitStack, wait_by: float) -> Target:
        """`find`; a server that was connected for it stays leased until the caller has made its call."""
        await in_turns(self.index.preparing_names())
        found = self._resolve(name, server)
        if not isinstance(found, Missing):
            return found
        refused: CallError | None = None
        # A server named outright is asked even when the index has nothing of it: it may be disabled, and says so.
        for candidate in found.servers or ((server,) if server is not None else ()):
            with (
                ExitStack() as lease
            ):  # one at a time: who waits for the next one's slot must not hold this one's
                lease.callback(self._lease(candidate))
                try:
                    await self._connect(candidate, by_name=False, wait_by=wait_by)
                except CallError as error:
                    refused = refused or error
                    continue
                await in_turns((await self._live.router.ref.ask(Sync)).preparing_names())
                again = self._resolve(name, server)
                if not isinstance(again, Missing):
                    leases.push(lease.pop_all())
                    return again
        if refused is not None:
            raise refused
        await in_turns(self.index.preparing())
        raise self._unknown(name, found.servers)

    def _resolve(self, name: str, server: str | None) -> Target | Missing:
        if server is not None:
            self._live.root.record(server)
        found = self.index.resolve(name, server)
        if isinstance(found, Ambiguous):
            raise AmbiguousTool(name, found.candidates)
        return found

    def _unknown(self, name: str, servers: Sequence[str] = ()) -> UnknownTool:
        index = self.index
        names = [target.name for server in servers[:1] for target in index.tools(server)]
        message = f'Tool "{name}" not found.'
        message += f' Server "{servers[0]}" has: {some_of(names)}.' if names else ""
        return UnknownTool(name, message=message, suggestions=index.suggest(name))

    async def _connect(self, server: str, *, by_name: bool, wait_by: float = math.inf) -> None:
        """Wait until it is connected. By name: around the gate; else as a call would, and for as long, or until
        `wait_by`. An attempt that is under way then goes on. A server that has no standing address here (a child per
        call; per session, and this is none) is visited instead: that tells the same."""
        root, settings, now = self._live.root, self._live.context.settings, self._live.context.backend.now()
        limit = min(settings.queue_timeout, wait_by - now)
        if by_name:
            definition = root.record(server).definition
            limit += definition.connect_timeout or settings.connect_timeout
        if not root.has_standing_address(server, self._session):
            if by_name:
                root.bring_back(server)
            await self._visit(server, limit)
            return
        actor = self._actor(server)
        if actor.is_connected:
            return
        waiter, box = self._live.context.backend.waiter(), list[CallError | None]()

        def connected(error: CallError | None) -> None:
            box.append(error)
            waiter.set()

        starter = root.supervision.starter
        forget = actor.on_connected(connected, by_name=by_name)
        try:
            starter.request_by_name(actor) if by_name else starter.request_as_called(actor)
            with anyio.fail_after(limit):
                await waiter.wait()
        except TimeoutError:
            raise _not_ready(actor, limit) from None
        finally:
            forget()
            starter.withdraw(actor)
        if box[0] is not None:
            raise box[0].copy()

    async def _visit(self, server: str, limit: float) -> None:
        """Start it once for what it has to say. Raises what kept it from starting."""
        over = anyio.Event()
        box: list[CallError | None] = []

        def visited(actor: ServerActor) -> None:
            box.append(actor.failure)
            over.set()

        actor = self._live.root.supervision.look_in(server, visited)
        try:
            with anyio.fail_after(limit):
                await over.wait()
        except TimeoutError:
            raise _not_ready(actor, limit) from None
        if box[0] is not None:
            raise box[0].copy()

    def _lease(self, server: str) -> Callable[[], None]:
        """Keep its connection from being evicted; returns how to let go."""
        if not self._live.root.has_standing_address(server, self._session):
            return _nothing
        return self._actor(server).lease()


def _not_ready(actor: ServerActor, waited: float) -> CallTimeout:
    server = actor.address.server
    text = f'Server "{server}" was not ready within {waited:.3g}s ({actor.doing()}); nothing was sent.'
    return CallTimeout(text, server=server, reach=Reach.NOT_SENT, timeout=waited)


def _nothing() -> None:
    pass


def _decoded(result: bytes, target: Target) -> dict[str, Any]:
    try:
        return decode_result(result)
    except ValueError as problem:
        text = f'Server "{target.server}" answered with something that is no result: {problem}.'
        raise ProtocolFault(text, server=target.server, reach=Reach.ANSWERED, tool=target.name) from None
