"""The requests of clients as spans of kind SERVER, from when they were read to when the door was given the answer.

The conversation of a client is a `TracedSession` if somebody takes part in what the room tells to OpenTelemetry
(`observe.tracing`), and its requests are `TracedJob`s. If nobody does, nothing of this module is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec
from opentelemetry.trace import SpanKind

from ..config.scrubbing import may_hold_one
from ..observe.tracing import NAMED, TOOL_ERROR, context_of, trace_of
from ..protocol import jsonrpc as rpc
from ..protocol.address import Address
from ..protocol.errors import UsageError
from ..protocol.jsonrpc.incoming import PlainCall
from ..protocol.jsonrpc.terms import RpcFault
from ..protocol.result import says_error
from ..protocol.trace_context import TraceContext, trace_in
from .endpoint import ClientSession
from .jobs import LISTS, Job

if TYPE_CHECKING:
    from ..observe.tracing import Tracing
    from ..supervisor.port import RoomPort
    from .endpoint import Endpoint, Outlet
    from .exposures.exposure import Exposure
    from .jobs import Spawn


_PIPES: Final = frozenset({"stdio", "attach"})  # doors that clients come to by a pipe


class RequestSpan:
    """The span of one request, from its arrival on. `name`: of the tool or prompt that it is about; `trace`: what it
    says of its trace."""

    def __init__(
        self,
        session: TracedSession,
        method: str,
        key: bytes,
        trace: TraceContext | None,
        version: str | None,
        more: Mapping[str, str],
    ) -> None:
        tracing, port = session.tracing, session.port
        self._tracing = tracing
        self._since = tracing.now
        self._said: dict[str, str] = {
            "mcp.method.name": method,
            "network.transport": "pipe" if port.origin.door in _PIPES else "tcp",
            **more,
        }
        if version is not None:
            self._said["mcp.protocol.version"] = version
        if method == "tools/call":
            self._said["gen_ai.operation.name"] = "execute_tool"
        target = more.get("gen_ai.tool.name") or more.get("gen_ai.prompt.name")
        here = {"jsonrpc.request.id": session.id_of(key)}
        if port.session is not None:
            here["mcp.session.id"] = port.session
        self._span = tracing.span(
            f"{method} {target}" if target else method,
            SpanKind.SERVER,
            context_of(trace),
            self._since,
            {**self._said, **here},
        )
        self.trace: TraceContext | None = trace_of(self._span, trace)

    def about(self, uri: str) -> None:
        """The resource that it is about."""
        self._span.set_attribute("mcp.resource.uri", uri)

    def end(self, outcome: str, error: str | None = None, *, is_code: bool = False) -> None:
        """`error`: the kind of error it ended with, or its JSON-RPC code."""
        said, tracing = self._said, self._tracing
        ends = {"greenroom.outcome": outcome}
        if error is not None:
            said["error.type"] = error
        if is_code and error is not None:
            said["rpc.response.status_code"] = ends["rpc.response.status_code"] = error
        self._span.set_attributes(ends)
        tracing.end(self._span, error)
        if "gen_ai.tool.name" in said:
            said["gen_ai.tool.name"] = tracing.counted(said["gen_ai.tool.name"])
        tracing.took("mcp.server.operation.duration", tracing.now - self._since, said)


class TracedJob(Job):
    """A request that takes time. Its span ends with it."""

    client: TracedSession
    trace: TraceContext | None
    span: RequestSpan | None = None

    def begin_span(self) -> None:
        session = self.client
        more, uri = session.target_of(self)
        version = session.modern_version if self.modern else session.agreed
        self.span = span = RequestSpan(session, self.method, self.key, self.trace, version, more)
        if uri is not None:
            span.about(uri)
        self.trace = span.trace

    def _over(self, outcome: str, error: str | None = None, *, is_code: bool = False) -> None:
        span, self.span = self.span, None  # it ends once, with what came first
        if span is not None:
            span.end(outcome, error, is_code=is_code)

    def _answered(self, is_error: bool) -> None:
        self._over(TOOL_ERROR, TOOL_ERROR) if is_error else self._over("result")

    def answer(self, result: Mapping[str, Any]) -> None:
        self._answered(result.get("isError") is True)
        super().answer(result)

    def answer_line(self, line: bytes) -> None:
        self._over("result")
        super().answer_line(line)

    def answer_raw(self, result: bytes, modern: bool = False) -> None:
        self._answered(says_error(result))
        super().answer_raw(result, modern=modern)

    async def answer_large(self, result: bytes, *, modern: bool = False) -> None:
        await super().answer_large(result, modern=modern)
        self._over("result")  # unless it was cancelled meanwhile

    async def answer_large_own(self, result: Mapping[str, Any]) -> None:
        await super().answer_large_own(result)
        self._answered(result.get("isError") is True)

    def fail(self, code: int, message: str, data: Any = None) -> None:
        self._over("error", str(code), is_code=True)
        super().fail(code, message, data)

    def broke(self, error: Exception) -> None:
        code = rpc.INVALID_PARAMS if isinstance(error, UsageError) else rpc.INTERNAL_ERROR
        self._over("error", str(error.code if isinstance(error, RpcFault) else code), is_code=True)
        super().broke(error)

    def cancel(self) -> None:
        self._over("cancelled")
        super().cancel()


class TracedSession(ClientSession):
    """The conversation of one client of a traced room."""

    def __init__(
        self,
        endpoint: Endpoint,
        exposure: Exposure,
        outlet: Outlet,
        spawn: Spawn,
        port: RoomPort,
        tracing: Tracing,
    ) -> None:
        super().__init__(endpoint, exposure, outlet, spawn)
        self.kind_of_job: type[Job] = TracedJob
        self.port = port
        self.tracing = tracing
        self.agreed: str | None = None  # the version that the client and we agreed on
        self.modern_version: str = rpc.MODERN_VERSIONS[-1]
        self._since = tracing.now
        self._is_closed = False

    def close(self) -> None:
        super().close()
        if self.agreed is not None and not self._is_closed:  # from 2026-07-28 on there are no sessions
            self._is_closed = True
            said = {
                "mcp.protocol.version": self.agreed,
                "network.transport": "pipe" if self.port.origin.door in _PIPES else "tcp",
            }
            self.tracing.took("mcp.server.session.duration", self.tracing.now - self._since, said)

    def hide(self, text: str, server: str | None = None) -> str:
        """The text without secrets, of this server if it is known."""
        return self.tracing.shown(text, None if server is None else Address(server)) if text else text

    def id_of(self, key: bytes) -> str:
        """A request's id, as a string."""
        said = key.decode(errors="replace").strip('"')
        return self.hide(said) if may_hold_one(said) else said

    def target_of(self, job: Job) -> tuple[dict[str, str], str | None]:
        """What a request is about: the tool or prompt, as an attribute, and the URI."""
        plain: PlainCall | None = job.plain
        named = NAMED.get(job.method)
        if named is not None:
            name = _text(job.params.get("name")) if plain is None else plain.name
            found = self.port.catalogue.index.get(name) if name is not None else None
            shown = None if name is None else self.hide(name, None if found is None else found.server)
            return ({} if shown is None else {named: shown}), None
        uri = _text(job.params.get("uri"))
        return {}, None if uri is None else self.hide(uri)

    # ---- as in `ClientSession` --------------------------------------------------------------------------------------

    def _initialize(self, envelope: rpc.ClientMessage) -> Mapping[str, Any]:
        result = super()._initialize(envelope)
        self.agreed = result["protocolVersion"]
        return result

    def _take(self, envelope: rpc.ClientMessage, key: bytes, size: int) -> None:
        method = envelope.method
        if not key or method is None or (method in LISTS and self._exposure.settling_time):
            super()._take(envelope, key, size)
            return
        meta: dict[str, Any] | None = None
        with suppress(RpcFault):
            meta = rpc.read_meta(rpc.read_parts(envelope.params))
        is_modern = meta is not None and rpc.VERSION_KEY in meta
        version = self.modern_version if is_modern else self.agreed
        span = RequestSpan(self, self.hide(method), key, trace_in(meta or {}), version, {})
        try:
            super()._take(envelope, key, size)
        except RpcFault as fault:
            span.end("error", str(fault.code), is_code=True)
            raise
        except Exception:
            span.end("error", str(rpc.INTERNAL_ERROR), is_code=True)
            raise
        span.end("result")


def _text(value: msgspec.Raw | None) -> str | None:
    try:
        said = rpc.read_value(value)
    except RpcFault:
        return None
    return said if isinstance(said, str) else None
