"""Handles by which a client without a session keeps state of its own (2026-07-28 over HTTP, `http.stateHandles`).

Over HTTP, requests that look alike come from one client and find the same processes (`doors/http_sessions.py`). Many
agents with one token and one program would share a browser in this way. So a model, or its program, calls the tool
`greenroom_new_state`. It answers with a handle, and each call that is given this handle finds the processes that
belong to it: in the argument `greenroom_state` beside the tool's own, or in `_meta` (`greenroom/state`). A handle is
an argument like any other (SEP-2567), so a model that calls a tool through the `mcp` tool may write it among that
tool's arguments. It means the same there. No server is told it.

A handle is a random name in the door's table of sessions. It is worth something to the caller that asked for it alone
(the same token and profile), and as long as its session lives (`http.sessionIdle`, `http.sessionLife`). A handle that
is not in the table is refused. It never begins a new state: whoever has it must learn that what it stood for is gone.
It is not signed, because the table itself is the proof.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Sized
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..protocol import jsonrpc as rpc
from ..protocol.bounds import DECODED_VALUES
from ..protocol.jsonrpc.terms import RpcFault
from ..protocol.status import about
from ..protocol.value_count import has_more_values
from .result_meta import DETAILS

if TYPE_CHECKING:
    from ..supervisor.port import RoomPort
    from .endpoint import ClientSession
    from .exposures.exposure import Exposure
    from .jobs import Job

NEW_STATE: Final = "greenroom_new_state"
STATE: Final = "greenroom_state"
META_KEY: Final = "greenroom/state"
GONE: Final = (
    f"There is no such state. It has ended, or it is not yours: what it stood for is gone. Call {NEW_STATE} to begin "
    "with a new one."
)
_MARK: Final = STATE.encode()
# The same where JSON escapes some of its letters, in a text inside a text too.
_ESCAPED_MARK: Final = re.compile(
    b"".join(b"(?:%c|\\\\+u00(?i:%02x))" % (letter, letter) for letter in STATE.encode())
)
_ARGS: Final = "args"
_NAMED: Final = 10  # servers in the description
_ARGUMENT: Final[Mapping[str, Any]] = {
    "type": "string",
    "nullable": True,  # see `exposures/tool_definition.py`: some agents require what is not declared so
    "description": f"the handle from {NEW_STATE}; without it, state that other agents of this program may share",
}


def state_in(
    arguments: msgspec.Raw | None, meta: Mapping[str, Any], *, nests: bool = False
) -> tuple[object, msgspec.Raw | None]:
    """The handle that a call is given, and the arguments without it. None: it is given none, or its arguments stay as
    they are. `nests`: the call is of a tool that is given another tool's arguments, in `args`. A handle in there is
    found and taken out as well, because a model that means the other tool writes it there; one beside it comes first.
    Of large arguments, ask in a thread. Raises `RpcFault` for more than can be looked into."""
    if arguments is not None and _may_name_state(bytes(arguments)):
        given = _members(bytes(arguments))
        handle, inner = given.pop(STATE, None), None
        if nests and _ARGS in given:
            inner, args = _taken_out(given[_ARGS])
            given[_ARGS] = args
        if handle is not None or inner is not None:
            said = (_value(each) for each in (handle, inner) if each is not None)
            found = next((each for each in said if each is not None), meta.get(META_KEY))
            return found, msgspec.Raw(msgspec.json.encode(given))
    return meta.get(META_KEY), None


def _may_name_state(arguments: bytes) -> bool:
    """Whether the argument's name stands in there, however JSON spells it."""
    return _MARK in arguments or (b"\\u00" in arguments and _ESCAPED_MARK.search(arguments) is not None)


def _taken_out(args: msgspec.Raw) -> tuple[msgspec.Raw | None, msgspec.Raw]:
    """The handle in the arguments of another tool, which may be written as a text, and these without it."""
    try:
        text = msgspec.json.decode(args, type=str)
    except msgspec.MsgspecError:
        text = None
    members = _members(bytes(args) if text is None else text.encode("utf-8", "replace"))
    handle = members.pop(STATE, None)
    if handle is None:
        return None, args
    left = msgspec.json.encode(members)
    return handle, msgspec.Raw(left if text is None else msgspec.json.encode(left.decode()))


def _members(arguments: bytes) -> dict[str, msgspec.Raw]:
    """The arguments one by one; none if they are no object, for whoever carries out the call refuses them. Raises
    `RpcFault`."""
    if has_more_values(arguments, DECODED_VALUES):
        text = f"Invalid params: a handle for this many values can only be given in _meta, as {META_KEY}."
        raise RpcFault(rpc.INVALID_PARAMS, text)
    try:
        return msgspec.json.decode(arguments, type=dict[str, msgspec.Raw])
    except msgspec.MsgspecError:
        return {}


def _value(handle: msgspec.Raw) -> object:
    """What the argument says. Null alone counts as absent, as models fill in what they are offered. Whatever else is no
    handle is refused, or a call that was meant for one state would reach the one that others share."""
    try:
        return rpc.read_value(handle)
    except RpcFault:
        return False


def no_such_state() -> dict[str, Any]:
    """The result of a call whose handle is worth nothing."""
    return {
        "resultType": "complete",
        "content": [{"type": "text", "text": GONE}],
        "isError": True,
        "_meta": {DETAILS: {"error": "no_such_state"}},
    }


class StateHandleExposure:
    """An `Exposure` whose tools take handles. `handle`: that of this client; None: it was known without one. `lasts`:
    the seconds that a state which nobody uses is kept."""

    def __init__(self, exposure: Exposure, room: RoomPort, handle: str | None, lasts: float) -> None:
        self._exposure = exposure
        self._room = room
        self._handle = handle
        self._lasts = lasts
        self._listed: tuple[object, Mapping[str, Any]] = (None, {})  # what was shown, and how

    def listing(self, method: str, *, modern: bool = False) -> Mapping[str, Any] | None:
        result = self._exposure.listing(method, modern=modern)
        if method != "tools/list" or result is None:
            return result
        if self._listed[0] is not result:
            self._listed = result, self._with_handles(result)
        return self._listed[1]

    def begin(self, job: Job) -> bool:
        if job.method == "tools/call" and self._handle is not None and _name_of(job) == NEW_STATE:
            text = (
                f"{self._handle}\n\nPass this as `{STATE}` in each call that should find the same state. It is kept "
                f"until {about(self._lasts)} after its last use."
            )
            said = {STATE: self._handle, "endsUnusedAfterSeconds": round(self._lasts)}
            job.answer({"content": [{"type": "text", "text": text}], "structuredContent": said})
            return True
        return self._exposure.begin(job)

    def _with_handles(self, result: Mapping[str, Any]) -> Mapping[str, Any]:
        """The list of tools as it is listed here. It stays as it is where no server has state to keep apart. No server
        can pass off a tool of its own as ours."""
        names = [
            name for name in self._room.catalogue.index.servers if self._room.catalogue.is_per_session(name)
        ]
        if not names:
            return result
        tools = [self._with_argument(tool) for tool in result["tools"] if tool["name"] != NEW_STATE]
        return {**result, "tools": [*tools, _tool(names)]}

    def _with_argument(self, tool: Mapping[str, Any]) -> Mapping[str, Any]:
        """The tool as it is listed here. One of a server whose processes all clients share stays as it is."""
        target = self._room.catalogue.index.get(tool["name"])
        if target is not None and not self._room.catalogue.is_per_session(target.server):
            return tool
        schema: Mapping[str, Any] = tool.get("inputSchema") or {"type": "object"}
        properties: dict[str, Any] = {**(schema.get("properties") or {}), STATE: _ARGUMENT}
        return {**tool, "inputSchema": {**schema, "properties": properties}}

    # ---- as the exposure does ------------------------------------------------------------------------------------

    def capabilities(self) -> Mapping[str, Any]:
        return self._exposure.capabilities()

    def instructions(self) -> str | None:
        return self._exposure.instructions()

    @property
    def settling_time(self) -> float:
        return self._exposure.settling_time

    async def settle(self) -> None:
        await self._exposure.settle()

    async def announce(self, client: ClientSession) -> None:
        await self._exposure.announce(client)

    @property
    def suspended(self) -> Sized:
        return self._exposure.suspended

    def came(self, client: ClientSession) -> None:
        self._exposure.came(client)

    def heard(self, client: ClientSession, method: str) -> None:
        self._exposure.heard(client, method)

    def left(self, client: ClientSession) -> None:
        self._exposure.left(client)


def _tool(servers: Sequence[str]) -> dict[str, Any]:
    """The tool that begins a new state with these servers."""
    more = f" and {len(servers) - _NAMED} more" if len(servers) > _NAMED else ""
    return {
        "name": NEW_STATE,
        "title": "New state",
        "description": (
            "Begin state of your own (a browser, a shell, a database session) with the servers "
            f"{', '.join(servers[:_NAMED])}{more}. Returns a handle. Pass it as `{STATE}` in each call that should "
            "find this state."
        ),
        "inputSchema": {"type": "object", "properties": {}, "additionalProperties": False},
        "annotations": {"readOnlyHint": False, "destructiveHint": False, "openWorldHint": False},
    }


def _name_of(job: Job) -> object:
    if job.plain is not None:
        return job.plain.name
    try:
        return rpc.read_value(job.params.get("name"))
    except RpcFault:
        return None
