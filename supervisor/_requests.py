"""Everything of the protocol that is not a tool, for whoever holds a room or a session.

`Requests` is the half of `Greenroom` that a session has too: what it needs is the machinery and the scope its requests
are made in. It decides nothing. A prompt's name and a resource's URI are resolved in the published index, like a tool's
name; the request is an ordinary call of the server's actor (so it connects, waits, times out, is counted and is told of
like one); and what comes back is the server's own object.

Where the index knows no better, a URI goes to the one server that may have it, and is refused with the candidates when
there are several: nothing is asked of a server that was not meant.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import anyio
import anyio.lowlevel

from ..actors import MODERN_VERSIONS, Call, ServerActor, Sync, WireFault, decode_result
from ..protocol.config import Isolation
from ..protocol.errors import (
    AmbiguousTool,
    CallError,
    ProtocolFault,
    Reach,
    RoomClosed,
    UnknownPrompt,
    UnknownResource,
    UsageError,
)
from ..protocol.index import Ambiguous, Index, Missing, Place, Target
from ..protocol.result import Completion, PromptMessages, ResourceContents
from ._root import Root
from ._runtime import Runtime

LOG_LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
_MOST_UPDATES: Final = 1024  # kept for a watcher that does not read; an update only says "look again"

Progress = Callable[[Mapping[str, Any]], None]


class Updates:
    """The updates of one resource, as an async iterator: each is the `params` of one notification, in order.

    A watcher that does not keep up loses the oldest: one update says as much as many.
    """

    def __init__(self) -> None:
        self._found: deque[Mapping[str, Any]] = deque(maxlen=_MOST_UPDATES)
        self._messages = anyio.Event()

    def put(self, params: Mapping[str, Any]) -> None:
        self._found.append(params)
        self._messages.set()

    def __aiter__(self) -> AsyncIterator[Mapping[str, Any]]:
        return self

    async def __anext__(self) -> Mapping[str, Any]:
        while not self._found:
            self._messages = anyio.Event()
            await self._messages.wait()
        return self._found.popleft()


class Requests:
    """What can be asked of servers besides calling tools, in one scope."""

    _session: str | None = None

    @property
    def _live(self) -> Runtime:
        raise NotImplementedError

    @property
    def index(self) -> Index:
        raise NotImplementedError

    async def _connect(self, server: str, *, by_name: bool, wait_by: float = math.inf) -> None:
        raise NotImplementedError

    def _actor(self, server: str) -> ServerActor:
        """The actor that a request from here goes to. Raises `UnknownServer`, `SessionNeeded`."""
        return self._live.root.actor_for(server, self._session)

    # ---- what is known ----------------------------------------------------------------------------------------------

    def resources(self, server: str | None = None) -> tuple[Place, ...]:
        """Every resource (of one server), sorted by URI; `record` is the server's own object. Starts nothing."""
        self._check_server(server)
        return self.index.resources(server)

    def templates(self, server: str | None = None) -> tuple[Place, ...]:
        """Every resource template (of one server), sorted. Starts nothing."""
        self._check_server(server)
        return self.index.templates(server)

    def prompts(self, server: str | None = None) -> tuple[Target, ...]:
        """Every prompt (of one server), sorted by name. Starts nothing."""
        self._check_server(server)
        return self.index.prompts(server)

    # ---- asking -----------------------------------------------------------------------------------------------------

    async def read_resource(
        self,
        uri: str,
        server: str | None = None,
        *,
        timeout: float | None = None,
        on_progress: Progress | None = None,
    ) -> ResourceContents:
        """Read a resource; also one that no list names, if one server's template makes it or `server` is given.

        `timeout`: seconds from being sent. Raises `CallError`s, `UnknownResource`, `AmbiguousTool`, `UnknownServer`.
        """
        with self._counting_refusals():
            place = self.locate(uri, server)
        raw = await self.request(
            place.server, "resources/read", {"uri": place.original}, timeout=timeout, on_progress=on_progress
        )
        return ResourceContents(raw)

    async def get_prompt(
        self,
        name: str,
        arguments: Mapping[str, str] | None = None,
        server: str | None = None,
        *,
        timeout: float | None = None,
        on_progress: Progress | None = None,
    ) -> PromptMessages:
        """Get a prompt by its name; connects its server when needed, also to find out whether it has it.

        `timeout`: seconds from being sent. Raises `CallError`s, `UnknownPrompt`, `AmbiguousTool`, `UnknownServer`.
        """
        with self._counting_refusals():
            target = await self.find_prompt(name, server)
        params: dict[str, Any] = {"name": target.original}
        if arguments is not None:
            params["arguments"] = arguments
        raw = await self.request(
            target.server, "prompts/get", params, timeout=timeout, on_progress=on_progress
        )
        return PromptMessages(raw)

    async def complete(
        self,
        ref: Mapping[str, Any],
        argument: Mapping[str, str],
        *,
        context: Mapping[str, Any] | None = None,
        server: str | None = None,
        timeout: float | None = None,
    ) -> Completion:
        """Complete an argument of a prompt (`{"type": "ref/prompt", "name": …}`, a name of ours) or of a template
        (`{"type": "ref/resource", "uri": …}`). `argument`: `{"name": …, "value": …}`.

        Raises as `get_prompt` and `read_resource` do, and `UsageError` for another kind of ref.
        """
        with self._counting_refusals():
            owner, own = await self.find_reference(ref, server)
        params: dict[str, Any] = {"ref": own, "argument": argument}
        if context is not None:
            params["context"] = context
        return Completion(await self.request(owner, "completion/complete", params, timeout=timeout))

    async def request(
        self,
        server: str,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        on_progress: Progress | None = None,
    ) -> dict[str, Any]:
        """Any request to `server`, connecting it when needed; the result as it said it. It is sent again after a lost
        connection only if it never left, except for methods that only look. Raises `CallError`s, `UnknownServer`."""
        try:
            call = self.start_request(server, method, params, None, timeout=timeout, on_progress=on_progress)
        except CallError:
            await anyio.lowlevel.checkpoint()
            raise
        answer = await call.wait()
        try:
            return decode_result(answer)
        except WireFault as error:
            text = f'Server "{server}" answered {method} with what cannot be read: {error}.'
            raise ProtocolFault(text, server=server, reach=Reach.ANSWERED) from None

    def start_request(
        self,
        server: str,
        method: str,
        params: Mapping[str, Any] | None,
        on_end: Callable[[Call], None] | None,
        *,
        tool: str | None = None,
        timeout: float | None = None,
        on_progress: Progress | None = None,
        replayable: bool = False,
        takes_inputs: bool = False,
    ) -> Call:
        """Accept a request without waiting for it: it ends with `on_end(call)`, exactly once, possibly before this
        returns. `takes_inputs`: a result that asks for more input is `on_end`'s to deal with. Raises `CallError` when
        it is refused, `UnknownServer`. For doors that have no task per request."""
        live = self._live
        if not live.is_running:
            raise self._refused(RoomClosed("The room is not open; the call was not sent.", server=server))
        call = Call(
            method,
            params,
            tool=tool,
            timeout=timeout,
            replayable=replayable or method in _ONLY_LOOK,
            on_end=on_end,
            on_progress=on_progress,
        )
        if takes_inputs:
            call.takes_inputs = True
        self._submit(live.root, server, call)
        return call

    def _submit(self, root: Root, server: str, call: Call) -> None:
        """To whoever it goes to from here. Raises its refusal."""
        call.client = self._session
        try:
            actor = root.actor_for(server, self._session)
        except CallError as error:
            raise self._refused(error) from None
        try:
            actor.submit(call)
        except CallError:
            root.forget_unused(actor)
            raise

    def _refused(self, error: CallError) -> CallError:
        """It ends a request that never came to be accepted: for the drain report."""
        self._live.context.tally.refuse(error)
        return error

    @contextmanager
    def _counting_refusals(self) -> Generator[None]:
        """Around looking for whom a request goes to."""
        try:
            yield
        except CallError as error:
            self._refused(error)
            raise

    # ---- being told -------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def subscribe(self, uri: str, server: str | None = None) -> AsyncGenerator[Updates]:
        """`async with room.subscribe(uri) as updates: async for update in updates: …`

        While it is open its server is kept connected (and brought back when it is lost); after a new connection the
        resource is reported as changed. Raises on entering, as `read_resource` does; `RemoteError` when the server
        will not be watched.
        """
        place = self.locate(uri, server)
        updates = Updates()
        actor = self._actor(place.server)

        def heard(params: Mapping[str, Any]) -> None:
            if _is_about(params.get("uri"), place.original):
                updates.put(params)

        forget = self._live.room_host.watch(actor.address, heard)
        try:
            await self.watch_resource(place)
            try:
                yield updates
            finally:
                self.unwatch_resource(place)
        finally:
            forget()

    async def watch_resource(self, place: Place) -> None:
        """Ask a server to tell when a resource changes. Counted: as many `unwatch_resource`s end it. For doors, which
        hear of updates through their host."""
        actor = self._actor(place.server)
        await self._connect(place.server, by_name=False)
        if place.original not in actor.subscriptions.uris and not _is_modern(actor):
            await self.request(place.server, "resources/subscribe", {"uri": place.original})
        if actor.subscriptions.add(place.original):
            actor.wishes_changed()

    def unwatch_resource(self, place: Place) -> None:
        """The opposite; says so to the server when nobody watches any more, and does not wait."""
        actor = self._actor(place.server)
        if not actor.subscriptions.drop(place.original) or not self._live.is_running:
            return
        if actor.is_connected and not _is_modern(actor):
            try:
                self.start_request(
                    place.server, "resources/unsubscribe", {"uri": place.original}, lambda _call: None
                )
            except CallError:
                return  # it cannot be told now: its next incarnation is not asked to begin with
        actor.wishes_changed()

    def is_stateless(self, server: str) -> bool:
        """Whether it speaks 2026-07-28, as far as is known. Raises `UnknownServer`, `SessionNeeded`."""
        actor = self._actor(server)
        return _is_modern(actor) if actor.peer is not None else actor.record.era_hint in MODERN_VERSIONS

    def set_log_level(self, level: str, server: str | None = None) -> None:
        """From which level on servers (or one) log: to `on_log`. Live servers are told, others when they are met. Of a
        session: its own children only. The room's goes for sessions' children too, unless their session set one.

        Raises `UsageError` for a level that the protocol does not have, and in a session for a server that is not its
        own; `UnknownServer`.
        """
        if level not in LOG_LEVELS:
            raise UsageError(f'"{level}" is no log level. Use one of: {", ".join(LOG_LEVELS)}.')
        root, session = self._live.root, self._session
        if session is not None and server is not None and root.isolation(server) is not Isolation.PER_SESSION:
            text = f'Server "{server}" is shared with others: set its level with `room.set_log_level(...)`.'
            raise UsageError(text)
        self._check_server(server)
        root.log_levels.set(level, server, session)

    def roots_changed(self) -> None:
        """Tell every connected server that was told of roots that they are other ones now. Of a session: its own
        children only."""
        for actor in self._live.root.in_reach(self._session):
            if "roots" in (actor.declared or {}):
                actor.notify_server("notifications/roots/list_changed")

    # ---- names ------------------------------------------------------------------------------------------------------

    def locate(self, uri: str, server: str | None = None) -> Place:
        """Where `uri` is read. Raises `UnknownResource`, `AmbiguousTool`, `UnknownServer`."""
        self._check_server(server)
        found = self.index.resolve_uri(uri)
        return self._placed(uri, server, found)

    async def find_prompt(self, name: str, server: str | None = None) -> Target:
        """Resolve a prompt's name; connect the server it may belong to when it is not known yet, and resolve again.

        Raises `UnknownPrompt`, `AmbiguousTool`, `UnknownServer`, and what kept the server from connecting.
        """
        self._check_server(server)
        found = self._resolve_prompt(name, server)
        wait_by = self._live.context.backend.now() + self._live.context.settings.queue_timeout
        for candidate in found.servers if isinstance(found, Missing) else ():
            await self._connect(candidate, by_name=False, wait_by=wait_by)
            await self._live.router.ref.ask(Sync)
            again = self._resolve_prompt(name, server)
            if isinstance(again, Target):
                return again
        if isinstance(found, Missing):
            raise UnknownPrompt(name, [target.name for target in self.index.prompts(server)])
        return found

    async def find_reference(
        self, ref: Mapping[str, Any], server: str | None = None
    ) -> tuple[str, Mapping[str, Any]]:
        """(server, the ref as it says it) for a completion. Raises as `complete` does."""
        match ref:
            case {"type": "ref/prompt", "name": str(name)}:
                target = await self.find_prompt(name, server)
                return target.server, {**ref, "name": target.original}
            case {"type": "ref/resource", "uri": str(uri)}:
                self._check_server(server)
                found = self.index.resolve_template(uri)
                place = self._placed(uri, server, found)
                return place.server, {**ref, "uri": place.original}
            case _:
                raise UsageError(
                    'A completion is for {"type": "ref/prompt", "name": …} or {"type": "ref/resource", "uri": …}.'
                )

    def _placed(self, uri: str, server: str | None, found: Place | Ambiguous | Missing) -> Place:
        if server is not None:
            own = isinstance(found, Place) and found.server == server
            return found if own and isinstance(found, Place) else Place(uri, server, uri, record={})
        if isinstance(found, Place):
            return found
        if isinstance(found, Ambiguous):
            raise AmbiguousTool(uri, found.candidates, what="Resource")
        if len(found.servers) == 1:
            return Place(uri, found.servers[0], uri, record={})
        raise UnknownResource(uri, found.servers)

    def _resolve_prompt(self, name: str, server: str | None) -> Target | Missing:
        found = self.index.resolve_prompt(name, server)
        if isinstance(found, Ambiguous):
            raise AmbiguousTool(name, found.candidates, what="Prompt")
        return found

    def _check_server(self, server: str | None) -> None:
        if server is not None:
            self._live.root.record(server)


_ONLY_LOOK: Final = frozenset(
    {"resources/read", "prompts/get", "completion/complete", "resources/subscribe", "resources/unsubscribe"}
)


def _is_modern(actor: ServerActor) -> bool:
    return actor.peer is not None and actor.peer.protocol_version in MODERN_VERSIONS


def _is_about(told: object, uri: str) -> bool:
    """Whether an update is about what is watched, or about a part of it (the protocol allows both)."""
    return isinstance(told, str) and (told == uri or told.startswith(uri.rstrip("/") + "/"))
