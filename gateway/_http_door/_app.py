"""The ASGI application: from a request's path and method to what carries it out.

It is a plain callable. What it refuses is a `Refusal`; any other exception is a bug of ours, which is noted, and
which its request alone notices.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import anyio.abc

from ...protocol import jsonrpc as rpc
from ...protocol.jsonrpc import RpcFault
from .._arrivals import Arriving
from ._access import Access
from ._caller import Caller
from ._oauth import WELL_KNOWN
from ._refusals import Refusal, busy, ending, no_such_path, not_allowed
from ._request import Gone, Receive, Request, Scope, Send
from ._routing import Read, UnsupportedVersion, check_mirrored, read_message, read_stateless
from ._rules import Rules
from ._session import HttpSession
from ._sessions import Sessions

if TYPE_CHECKING:
    from .._conversations import Conversations

_PATH: Final = re.compile(rb"/mcp(?:/([A-Za-z0-9_-]{1,64}))?/?")
_INITIALIZE: Final = "initialize"
_CALL: Final = "tools/call"

Page = Callable[[Request, Caller], Awaitable[None]]
_NO_PAGES: Final[Mapping[bytes, Page]] = {}


class HttpDoor:
    """The door to `conversations`. `pages` are further paths, for GET; those in `open_pages` need no token. `profile`
    is what clients without one of their own see. `session_headers` name the headers whose values a session is given."""

    def __init__(
        self,
        conversations: Conversations,
        access: Access,
        rules: Rules,
        *,
        note: Callable[[str], None],
        profile: str | None = None,
        session_headers: Mapping[str, str] = {},
        pages: Mapping[bytes, Page] = _NO_PAGES,
        open_pages: Mapping[bytes, Page] = _NO_PAGES,
    ) -> None:
        self.sessions: Sessions
        self.is_ending = False
        self._conversations = conversations
        self._access = access
        self._rules = rules
        self._note = note
        self._profile = profile
        self._session_headers = {name.lower().encode(): key for name, key in session_headers.items()}
        self._pages = pages
        self._open_pages = open_pages

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Keep the sessions. Runs until cancelled; must outlive the server of this application."""
        async with anyio.create_task_group() as group:
            self.sessions = Sessions(self._conversations, group, self._rules, shares=self._access.shares)
            task_status.started()
            try:
                await self.sessions.expire()
            finally:
                self.sessions.end_all()

    def refuse_new(self) -> None:
        """Refuse new sessions and requests from now on. Those in flight are still answered."""
        self.is_ending = True
        self._conversations.refuse_new()

    def may_begin(self, scope: Scope) -> bool:
        """Whether this request, whose body has come, can be carried out without a task up to its reply: it is a message
        in a session that exists, and no issuer has to be asked about its token."""
        if scope["method"] != "POST" or self._access.oauth is not None:
            return False
        return any(name == b"mcp-session-id" for name, _ in scope["headers"])

    # ---- ASGI ----------------------------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request: Request | None = None
        try:
            request = Request(scope, receive, send)
            await self._route(request)
        except Refusal as refusal:
            await self._refuse(request or _bare(scope, receive, send), refusal)
        except Gone:
            return
        except Exception as error:
            self._report(error)
            if request is not None and not request.is_answered:
                await request.refuse(Refusal(500, "Internal error in the gateway.", code=rpc.INTERNAL_ERROR))
            elif request is not None:
                request.abort()

    @staticmethod
    async def _refuse(request: Request, refusal: Refusal) -> None:
        if not request.is_answered:
            await request.refuse(refusal)

    def _report(self, error: Exception) -> None:
        frames = traceback.extract_tb(error.__traceback__)[-4:]
        places = ", from ".join(
            f"{Path(frame.filename).name}, line {frame.lineno}" for frame in reversed(frames)
        )
        self._note(f"a bug in Greenroom, please report it: {type(error).__name__} at {places}")

    async def _route(self, request: Request) -> None:
        self._access.check_place(request)
        self._access.cors.allow(request)
        if self._access.cors.is_preflight(request):
            await self._access.cors.answer_preflight(request)
            return
        page = self._open_pages.get(request.path)
        if page is not None:
            await self._show(page, request, Caller())
            return
        oauth = self._access.oauth
        if oauth is not None and _is_well_known(request.path):
            if request.method not in ("GET", "HEAD"):
                raise not_allowed("GET")
            await request.answer(200, oauth.metadata)
            return
        caller = await self._access.caller(request)
        page = self._pages.get(request.path)
        if page is not None:
            await self._show(page, request, Caller(caller.name, self._bound(caller)))
            return
        found = _PATH.fullmatch(request.path)
        if found is None:
            raise no_such_path()
        profile = self._profile_of(caller, found[1])
        match request.method:
            case "POST":
                await self._post(request, caller, profile)
            case "GET" if not _is_stateless(request):
                await self._get(request, caller, profile)
            case "DELETE" if not _is_stateless(request):
                await self._delete(request, caller, profile)
            case _:
                raise not_allowed(*(("POST",) if _is_stateless(request) else ("GET", "POST", "DELETE")))

    @staticmethod
    async def _show(page: Page, request: Request, caller: Caller) -> None:
        if request.method not in ("GET", "HEAD"):
            raise not_allowed("GET")
        await page(request, caller)

    def _bound(self, caller: Caller) -> str | None:
        """The profile that this caller is bound to; None: it sees everything."""
        return caller.profile if caller.profile is not None else self._profile

    def _profile_of(self, caller: Caller, named: bytes | None) -> str | None:
        """What this caller sees. A caller that is bound to a profile can name no other one."""
        bound = self._bound(caller)
        if named is None:
            return bound
        if bound is not None and named.decode() != bound:
            raise no_such_path()
        return named.decode()

    # ---- /mcp ----------------------------------------------------------------------------------------------------

    async def _post(self, request: Request, caller: Caller, profile: str | None) -> None:
        if not (request.accepts(b"application/json") and request.accepts(b"text/event-stream")):
            text = "Not Acceptable: the client must accept application/json and text/event-stream."
            raise Refusal(406, text)
        kind = request.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if kind != b"application/json":
            raise Refusal(415, "Unsupported Media Type: Content-Type must be application/json.")
        try:
            with Arriving(self._conversations.arrivals) as arriving:
                body = await request.body(self._rules.max_body, self._rules.body_time, arriving)
                message = await read_message(body)
        except RpcFault as fault:
            raise busy(fault) from None
        if _is_stateless(request):
            await self._post_stateless(message, request, caller, profile)
        else:
            await self._post_in_session(message, request, caller, profile)

    async def _post_stateless(
        self, message: Read, request: Request, caller: Caller, profile: str | None
    ) -> None:
        if message.envelope.method is None:
            raise Refusal(400, "Invalid request: a client of this version has no questions to answer.")
        if not message.key:  # nothing in this version needs it; the SDK's server drops it as well
            version = request.text(b"mcp-protocol-version") or ""
            if version not in rpc.MODERN_VERSIONS:
                raise UnsupportedVersion(version)
            await request.answer(202, headers=())
            return
        said = read_stateless(message, request)
        if self.is_ending:
            raise ending()
        visitor = await self.sessions.visitor(caller, profile, self._variables(request), said.who)
        self.sessions.touch(visitor)
        if said.method == _CALL and "name" in said.params:
            name = said.params["name"]
            await check_mirrored(said, self._conversations.listed(rpc.read_value(name), profile), request)
        await visitor.serve(said, request)

    async def _post_in_session(
        self, message: Read, request: Request, caller: Caller, profile: str | None
    ) -> None:
        is_request, method = message.is_request, message.envelope.method
        session_id = request.text(b"mcp-session-id")
        if session_id is not None:
            session = self.sessions.find(session_id, caller, profile)
        elif is_request and method == _INITIALIZE:
            session = None
        else:
            raise Refusal(400, "Bad Request: Missing session ID. Open a session with initialize.")
        if is_request and self.is_ending:
            raise ending()
        opened = session is None
        if session is None:
            session = await self.sessions.open_session(caller, profile, self._variables(request))
        self.sessions.touch(session)
        if method == _INITIALIZE and not message.is_large:
            session.version = _asked_version(message.envelope)
        reply = session.take(message)
        if reply is None:
            await request.answer(202, headers=session.headers())
        elif opened and reply.answer is not None and b'"error":' in reply.answer[:200]:
            self.sessions.end(session)
            await request.answer(200, reply.answer)
        else:
            await session.answer(reply, request)

    async def _get(self, request: Request, caller: Caller, profile: str | None) -> None:
        if not request.accepts(b"text/event-stream"):
            raise Refusal(406, "Not Acceptable: the client must accept text/event-stream.")
        session = self._session(request, caller, profile)
        await session.listen(request, request.text(b"last-event-id"))

    async def _delete(self, request: Request, caller: Caller, profile: str | None) -> None:
        self.sessions.end(self._session(request, caller, profile))
        await request.answer(200, headers=())

    def _session(self, request: Request, caller: Caller, profile: str | None) -> HttpSession:
        session_id = request.text(b"mcp-session-id")
        if session_id is None:
            raise Refusal(400, "Bad Request: Session ID is required.")
        return self.sessions.find(session_id, caller, profile)

    def _variables(self, request: Request) -> dict[str, str]:
        """The values that this request brings for its session."""
        given = request.headers
        return {
            key: given[name].decode("latin-1") for name, key in self._session_headers.items() if name in given
        }


def _is_well_known(path: bytes) -> bool:
    """Whether this is where our metadata is: of the gateway, or of one of its paths. All have the same."""
    return path.startswith(WELL_KNOWN) and (
        path == WELL_KNOWN or _PATH.fullmatch(path, len(WELL_KNOWN)) is not None
    )


def _is_stateless(request: Request) -> bool:
    """Whether a request is of 2026-07-28, or of a version that we do not know: that one is told which we know."""
    version = request.text(b"mcp-protocol-version")
    return version is not None and version not in rpc.HANDSHAKE_VERSIONS


def _asked_version(message: rpc.ClientMessage) -> str:
    try:
        version = rpc.read_object(message.params).get("protocolVersion")
    except rpc.RpcFault:
        return ""
    return version if isinstance(version, str) else ""


def _bare(scope: Scope, receive: Receive, send: Send) -> Request:
    """A request whose headers were refused."""
    return Request({**scope, "headers": []}, receive, send)
