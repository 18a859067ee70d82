"""The door: from a request's path and method to what carries it out.

A POST to `/mcp` that has come whole goes straight to its session, in the step in which it came, and its answer is
written in the step in which the server's came: no task, no timer of its own, one write. Only what has to wait for
something else has a task: a body that still comes, a session that is opened, an event stream, a page.

The pages are starlette's, which answers what operators ask, and the preflights of browsers (CORS). What every request
passes first is in `http_paths`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.abc
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request as PageRequest
from starlette.responses import Response

from ...actors.workers import aside, aside_if_many
from ...catalogue.hidden_characters import unhidden_value
from ...observe.metrics import HEALTHY, Metrics, word_of
from ...protocol import jsonrpc as rpc
from ...protocol.jsonrpc.terms import RpcFault
from ...protocol.safe_text import without_stderr
from ...protocol.tasks import ABOUT_TASKS
from ...supervisor.room import port_of
from ..exposures.query_modes import CatalogueReader, CatalogueSnapshot
from ..exposures.tool_texts import tool_details
from ..json_views import room_status_view
from ..next_steps import PLAIN, Commands
from ..state_handles import GONE, NEW_STATE, no_such_state
from .caller_shares import Shares
from .http_auth import WELL_KNOWN, Access
from .http_messages import (
    PostedMessage,
    StatelessRequest,
    check_older,
    read_message,
    read_short,
    read_stateless,
    unsupported_version,
)
from .http_paths import Page, Paths, as_asgi
from .http_request import (
    Caller,
    DoorRequest,
    HttpRefusal,
    Rules,
    body_time,
    busy,
    ending,
    no_such_path,
    not_allowed,
    takes,
)
from .http_sessions import HttpSession, HttpSessions, StatelessClient, untold
from .http_streams import Feed, PostReply

if TYPE_CHECKING:
    from ...catalogue.index import Index
    from ...catalogue.namespace import ResourceEntry, Target
    from ...supervisor.room import Greenroom
    from ..conversations import Conversations


# ---- What operators ask the door -------------------------------------------------------------------------------------
#
# `/health`, `/health/any`, `/health/all`, `/ready`, `/status`, `/map`, `/metrics`, `/events`.
#
# | path | answer |
# |---|---|
# | `/health` | 200 while the process lives |
# | `/ready` | 200, and 503 from the moment it is asked to end |
# | `/health/any` | 200 when a server can be used, or none is configured; else 503 |
# | `/health/all` | 200 when all can be used; else 503 |
# | `/status` | what `greenroom status --json` prints, with version, seconds since the start, and sessions |
# | `/map` | every tool, resource, prompt and skill with its server, its own name and its schema |
# | `/metrics` | numbers for Prometheus, if the settings turn them on |
# | `/events` | the room's events as server-sent events; `Last-Event-ID` is a sequence number |
#
# A lazy server that has not been started can be used: its first call starts it. One whose last start failed cannot,
# though its next call tries again. The first two need no token. A caller that is bound to a profile gets none of the
# others, because they show what is outside it.


class Operations:
    """The pages for operators of `room`. `door` shows them. `commands`: the commands that the pages name."""

    def __init__(
        self,
        room: Greenroom,
        version: str,
        feed: Feed,
        door: HttpDoor,
        metrics: Metrics | None = None,
        commands: Commands = PLAIN,
    ) -> None:
        self._door = door
        self._room = port_of(room)
        self._version = version
        self._feed = feed
        self._metrics = metrics
        self._commands = commands
        self._started = anyio.current_time()

    def open_pages(self) -> Mapping[str, Page]:
        """The pages that need no token."""
        return {"/health": self._health, "/ready": self._ready}

    def pages(self) -> Mapping[str, Page]:
        return {
            "/health/any": self._any,
            "/health/all": self._all,
            "/status": self._status,
            "/map": self._map,
            "/metrics": self._numbers,
            "/events": self._feed.show,
        }

    async def _health(self, _request: PageRequest) -> Response:
        return _answer(True, {"status": "healthy"})

    async def _ready(self, _request: PageRequest) -> Response:
        is_ready = not self._door.is_ending
        return _answer(is_ready, {"status": "ready" if is_ready else "not_ready"})

    async def _any(self, _request: PageRequest) -> Response:
        words = await self._words()
        alive = [name for name, word in words.items() if word in HEALTHY]
        dead = [name for name in words if name not in alive]
        is_well = bool(alive) or not words
        said = {"status": _health_word(is_well), "alive_servers": alive, "dead_servers": dead}
        return _answer(is_well, said)

    async def _all(self, _request: PageRequest) -> Response:
        words = await self._words()
        is_well = all(word in HEALTHY for word in words.values())
        return _answer(is_well, {"status": _health_word(is_well), "servers": words})

    async def _words(self) -> dict[str, str]:
        """The state of each server that is not disabled."""
        rows = CatalogueReader(await CatalogueSnapshot.of(self._room)).rows()
        return {row.server: word_of(row) for row in rows if not row.disabled}

    async def _status(self, request: PageRequest) -> Response:
        said = await room_status_view(self._room)
        about = {
            "version": self._version,
            "uptimeSeconds": round(anyio.current_time() - self._started, 1),
            "sessions": len(self._door.sessions),
            "clients": self._door.sessions.view(),
            "waitingForApproval": len(self._room.services.approvals),
        }
        shown = {**about, **self._commands.filled_in(said)}
        return _answer(True, shown if request.state.caller.is_owner else without_stderr(shown))

    async def _numbers(self, request: PageRequest) -> Response:
        if self._metrics is None:
            raise HttpRefusal(
                404, 'Metrics are off. Turn them on in the settings: "http": {"metrics": true}.'
            )
        accept = request.headers.get("accept", "")
        sessions, refusals = len(self._door.sessions), self._door.refusals
        text, media_type = await self._metrics.text(self._room, sessions, refusals, accept)
        return Response(text, headers={"content-type": media_type})

    async def _map(self, _request: PageRequest) -> Response:
        index = self._room.catalogue.index
        return _answer(True, await aside_if_many(index.size, partial(self._map_of, index)))

    def _map_of(self, index: Index) -> dict[str, Any]:
        filled = self._commands.filled_in
        return {
            "tools": [filled(tool_details(target)) for target in index.tools()],
            "prompts": [
                {**tool_details(target), "arguments": target.record.get("arguments", [])}
                for target in index.prompts()
            ],
            "skills": [filled(tool_details(target)) for target in index.skills()],
            "resources": [_place_details(place) for place in index.resources()],
            "templates": [_place_details(place) for place in index.templates()],
            "counts": {
                name: {
                    "tools": count.tools,
                    "resources": count.resources,
                    "prompts": count.prompts,
                    "skills": count.skills,
                }
                for name in index.servers
                if (count := index.counts(name)) is not None
            },
            "unknownServers": list(index.unknown_servers),
        }


def _place_details(place: ResourceEntry) -> dict[str, Any]:
    said = {key: place.record[key] for key in ("name", "description", "mimeType") if key in place.record}
    return {"uri": place.uri, "server": place.server, "original": place.original, **said}


def _health_word(is_well: bool) -> str:
    return "healthy" if is_well else "unhealthy"


def _answer(is_well: bool, said: Mapping[str, Any]) -> Response:
    text = rpc.encode(unhidden_value(said)) + b"\n"
    return Response(text, 200 if is_well else 503, media_type="application/json")


_PATHS: Final = ("/mcp", "/mcp/", "/mcp/{profile}", "/mcp/{profile}/")
_MCP: Final = re.compile(rb"/mcp(?:/([^/]+))?/?")  # these paths
_HANDSHAKE_VERSIONS: Final = frozenset(version.encode() for version in rpc.HANDSHAKE_VERSIONS)
_SHORT: Final = 256  # bytes of headers that are judged once
_INITIALIZE: Final = "initialize"
_CALL: Final = "tools/call"
# What a page may send, and what it may read beside the body, if the configuration names it.
_METHODS: Final = ("GET", "POST", "DELETE")
_READABLE: Final = b"Mcp-Session-Id, Mcp-Protocol-Version, WWW-Authenticate, Retry-After"
_PREFLIGHT: Final = b"access-control-request-method"


class HttpDoor(Paths):
    """The door to `conversations`. `profile` is what clients see whose token has none; an owner sees everything.
    `session_headers` name the headers whose values a session is given. `on_end` is told of each session that has ended,
    and why."""

    def __init__(
        self,
        conversations: Conversations,
        access: Access,
        rules: Rules,
        *,
        note: Callable[[str], None],
        on_end: Callable[[str], None] = untold,
        profile: str | None = None,
        session_headers: Mapping[str, str] = {},
    ) -> None:
        self.sessions: HttpSessions
        self.is_ending = False
        super().__init__(access, note, rules)
        self._on_end = on_end
        self._conversations = conversations
        self._rules = rules
        self._body_time = body_time(rules)
        self._profile = profile
        self._session_headers = {name.lower().encode(): key for name, key in session_headers.items()}
        if access.oauth is not None:
            self.show({WELL_KNOWN + path: self._metadata for path in ("", *_PATHS)})
        # Before a request a browser sends a preflight, for any path and without the token. The answer says what a page
        # may send. It says nothing about the path, and the request itself is checked like any other.
        self._preflights = CORSMiddleware(
            self._router,
            allow_origin_regex=".*",  # of those for which it is asked
            allow_methods=_METHODS,
            allow_headers=("*",),
        )

    def admit(self, access: Access) -> None:
        """Go by `access` from now on. Sessions end whose callers it does not let stay."""
        if changes := access.changes_since(self._access):
            self._note(f"who may use the HTTP door has changed: {changes}")
        old, self._access = self._access, access
        self.in_work.divide(access.callers, has_owners=access.has_owners)
        self.sessions.admit(access, old)

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Keep the sessions. Runs until cancelled; must outlive the server of this application."""
        async with anyio.create_task_group() as group:
            self.sessions = HttpSessions(
                self._conversations,
                group,
                self._rules,
                shares=Shares(
                    self._rules.max_sessions, self._access.callers, has_owners=self._access.has_owners
                ),
                on_end=self._on_end,
            )
            task_status.started()
            try:
                await self.sessions.expire()
            finally:
                self.sessions.end_all()

    def refuse_new(self) -> None:
        """Refuse new sessions and requests from now on, except those about tasks. Those in flight are still
        answered."""
        self.is_ending: bool = True
        self._conversations.refuse_new()

    # ---- requests ------------------------------------------------------------------------------------------------

    def __call__(self, request: DoorRequest) -> None:
        if self._access.may_read(request):
            if request.method == "OPTIONS" and _PREFLIGHT in request.headers:
                self.later(request, self._preflights(*as_asgi(request)))
                return
            request.on_answer = (
                (b"access-control-allow-origin", request.headers[b"origin"]),
                (b"access-control-expose-headers", _READABLE),
                (b"vary", b"Origin"),
            )
        super().__call__(request)

    async def _metadata(self, _request: PageRequest) -> Response:
        assert self._access.oauth is not None
        return Response(self._access.oauth.metadata, media_type="application/json")

    def _find(self, request: DoorRequest) -> None:
        named = None
        if request.path != b"/mcp":
            path = _MCP.fullmatch(request.path)
            if path is None:
                super()._find(request)
                return
            named = path[1]
        caller = self._access.caller_known(request)
        if isinstance(caller, Caller):
            self._mcp(request, caller, named)
        else:
            self.later(request, self._mcp_by_issuer(request, named))

    async def _mcp_by_issuer(self, request: DoorRequest, named: bytes | None) -> None:
        self._mcp(request, await self._access.caller(request), named)

    def _mcp(self, request: DoorRequest, caller: Caller, named: bytes | None) -> None:
        self.hold_place(request, caller)
        request.caller = caller
        request.profile = self._profile_of(caller, None if named is None else named.decode("latin-1"))
        match request.method:
            case "POST":
                self._post(request)
            case "GET" if not _is_stateless(request):
                self.later(request, self._get(request))
            case "DELETE" if not _is_stateless(request):
                self._delete(request)
            case _:
                raise not_allowed(*(("POST",) if _is_stateless(request) else ("GET", "POST", "DELETE")))

    def _bound(self, caller: Caller) -> str | None:
        """The profile that this caller is bound to; None: it sees everything."""
        return caller.profile if caller.profile is not None or caller.is_owner else self._profile

    def _profile_of(self, caller: Caller, named: str | None) -> str | None:
        """What this caller sees. A caller that is bound to a profile can name no other one."""
        bound = self._bound(caller)
        if named is None:
            return bound
        if bound is not None and named != bound:
            raise no_such_path()
        return named

    # ---- /mcp ----------------------------------------------------------------------------------------------------

    def _post(self, request: DoorRequest) -> None:
        accept, kind = request.headers.get(b"accept", b""), request.headers.get(b"content-type", b"")
        is_short = len(accept) + len(kind) < _SHORT
        if unfit := (_unfit_remembered if is_short else _unfit)(accept, kind):
            raise HttpRefusal(*unfit)
        if request.is_short:
            message = read_short(request.short_body(self._rules.max_body), request.trace)
            self._take(message, request)
        else:
            self.later(request, self._post_later(request, self._access))

    async def _post_later(self, request: DoorRequest, access: Access) -> None:
        """Take a message that has not come whole yet, or takes long to read."""
        try:
            with self._conversations.inbound_budget.arriving() as arriving:
                body = await request.body(self._rules.max_body, self._body_time, arriving)
                message = await read_message(body, request.trace)
        except RpcFault as fault:
            raise busy(fault) from None
        # Access may have changed while the body came.
        if self._access is not access and await self._access.caller(request) != request.caller:
            raise HttpRefusal(
                401, "Unauthorized: what this token may do has changed. Send the request again."
            )
        self._take(message, request)

    def _take(self, message: PostedMessage, request: DoorRequest) -> None:
        if _is_stateless(request):
            self._take_stateless(message, request)
        else:
            self._take_in_session(message, request)

    # ---- a message of 2026-07-28 ---------------------------------------------------------------------------------

    def _take_stateless(self, message: PostedMessage, request: DoorRequest) -> None:
        if message.envelope.method is None:
            raise HttpRefusal(400, "Invalid request: a client of this version has no requests to answer.")
        # A notification: this version has none to act on, and the SDK's server drops them, too.
        if not message.key:
            version = request.text(b"mcp-protocol-version") or ""
            if version not in rpc.MODERN_VERSIONS:
                raise unsupported_version(version)
            request.answer(202, headers=())
            return
        said = read_stateless(message, request)
        if self.is_ending and said.method not in ABOUT_TASKS:
            raise ending()
        known = None
        if not (self._rules.state_handles or message.is_large):
            variables = self._variables(request)
            known = self.sessions.known_client(request.caller, request.profile, variables, said.who)
        if known is None:
            self.later(request, self._serve_later(said, request))
            return
        if (target := self._target_of(said, request.profile)) is not None:
            said.check_mirrored(target, request)
        self._serve(known, said, request)

    async def _serve_later(self, said: StatelessRequest, request: DoorRequest) -> None:
        """Serve a client that has not come before, may be known by a handle, or sends megabytes."""
        said, stateless = await self._client_of(said, request)
        if stateless is None:
            request.answer(200, rpc.result_line(said.key, no_such_state()))
            return
        if (target := self._target_of(said, request.profile)) is not None:
            check = partial(said.check_mirrored, target, request)
            await aside(check) if said.message.is_large else check()
        self._serve(stateless, said, request)

    def _target_of(self, said: StatelessRequest, profile: str | None) -> Target | None:
        """The tool that a call names, if arguments of its calls are repeated in headers."""
        if said.method != _CALL or "name" not in said.params:
            return None
        target = self._conversations.listed(said.name, profile)
        return target if target is not None and target.mirrored else None

    def _serve(self, stateless: StatelessClient, said: StatelessRequest, request: DoorRequest) -> None:
        self.sessions.touch(stateless)
        self._identify(stateless, request)
        stateless.serve(said, request)

    async def _client_of(
        self, said: StatelessRequest, request: DoorRequest
    ) -> tuple[StatelessRequest, StatelessClient | None]:
        """The request without its handle, and the client that it comes from. None: the handle of a call is worth
        nothing. Raises `HttpRefusal` for such a handle of another request."""
        handle, calls, variables = None, said.method == _CALL, self._variables(request)
        if self._rules.state_handles:
            said, handle = await said.without_handle()
            if calls and said.name == NEW_STATE:
                return said, await self.sessions.new_state(request.caller, request.profile, variables)
        if handle is not None:
            found = self.sessions.with_state(handle, request.caller, request.profile)
            if found is None and not calls:
                raise HttpRefusal(400, GONE, code=rpc.INVALID_PARAMS, key=said.key)
            return said, found
        return said, await self.sessions.stateless_client(
            request.caller, request.profile, variables, said.who
        )

    # ---- a message in a session ----------------------------------------------------------------------------------

    def _take_in_session(self, message: PostedMessage, request: DoorRequest) -> None:
        check_older(message, request)
        is_request, method = message.is_request, message.envelope.method
        session_id = request.text(b"mcp-session-id")
        if session_id is not None:
            session = self.sessions.find(session_id, request.caller, request.profile)
        elif is_request and method == _INITIALIZE:
            session = None
        else:
            raise HttpRefusal(400, "Bad Request: Missing session ID. Open a session with initialize.")
        if is_request and self.is_ending and method not in ABOUT_TASKS:
            raise ending()
        if session is None:
            self.later(request, self._open(message, request))
            return
        self._identify(session, request)
        reply = self._given(session, message)
        if reply is None:
            request.answer(202, headers=session.headers)
        else:
            session.answer(reply, request)

    async def _open(self, message: PostedMessage, request: DoorRequest) -> None:
        variables = self._variables(request)
        session = await self.sessions.open_session(request.caller, request.profile, variables)
        self._identify(session, request)
        reply = self._given(session, message)
        if reply is None:
            request.answer(202, headers=session.headers)
        elif reply.answer is not None and b'"error":' in reply.answer[:200]:
            self.sessions.end(session, "it could not be opened")
            request.answer(200, reply.answer)
        else:
            session.answer(reply, request)

    def _given(self, session: HttpSession, message: PostedMessage) -> PostReply | None:
        self.sessions.touch(session)
        if message.envelope.method == _INITIALIZE and not message.is_large:
            session.version = _asked_version(message.envelope)
        return session.take(message)

    async def _get(self, request: DoorRequest) -> None:
        if not request.accepts(b"text/event-stream"):
            raise HttpRefusal(406, "Not Acceptable: the client must accept text/event-stream.")
        session = self._session(request)
        await session.listen(request, request.text(b"last-event-id"))

    def _delete(self, request: DoorRequest) -> None:
        self.sessions.end(self._session(request), "its client has ended it")
        request.answer(200, headers=())

    def _session(self, request: DoorRequest) -> HttpSession:
        session_id = request.text(b"mcp-session-id")
        if session_id is None:
            raise HttpRefusal(400, "Bad Request: Session ID is required.")
        return self.sessions.find(session_id, request.caller, request.profile)

    def _identify(self, member: HttpSession | StatelessClient, request: DoorRequest) -> None:
        """Tell the room who sends this request, if a server is called as its caller. A token that is renewed counts
        from the request on that brings it."""
        oauth = self._access.oauth
        if oauth is None or not self._conversations.wants_callers:
            return
        shown = request.headers.get(b"authorization", b"")
        if shown != member.shown and (identity := oauth.identity(shown, member.caller)) is not None:
            member.shown = shown
            member.client.identify(identity)

    def _variables(self, request: DoorRequest) -> dict[str, str]:
        """The values that this request brings for its session."""
        given = request.headers
        return {
            key: given[name].decode("latin-1") for name, key in self._session_headers.items() if name in given
        }


def _unfit(accept: bytes, kind: bytes) -> tuple[int, str] | None:
    """Why what a client of a POST sends or accepts does not do, with the status."""
    if not (takes(accept, b"application/json") and takes(accept, b"text/event-stream")):
        return 406, "Not Acceptable: the client must accept application/json and text/event-stream."
    if kind.partition(b";")[0].strip().lower() != b"application/json":
        return 415, "Unsupported Media Type: Content-Type must be application/json."
    return None


_unfit_remembered: Final = lru_cache(256)(_unfit)  # nearly all say the same


def _is_stateless(request: DoorRequest) -> bool:
    """Whether a request is of 2026-07-28, or of a version that we do not know. The answer to the latter names the
    versions that we know."""
    version = request.headers.get(b"mcp-protocol-version")
    return version is not None and version not in _HANDSHAKE_VERSIONS


def _asked_version(message: rpc.ClientMessage) -> str:
    try:
        version = rpc.read_object(message.params).get("protocolVersion")
    except rpc.RpcFault:
        return ""
    return version if isinstance(version, str) else ""
