"""The direct door's exposure: each request, under its server's own name for the thing, on its way to that server.

The short way: a name that is listed is a dict look-up; the parameters stay bytes but for that name; the call is
started in the step that read the request and ends by callback; its result is spliced into the answer. No task, no
decoding. The long way, in a task, is for what has to wait for more than a call: a name the catalogue does not have yet,
whose prefix says which server may; watching a resource; completion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
import msgspec

from ...actors import in_turns
from ...protocol import jsonrpc as rpc
from ...protocol.errors import AmbiguousTool, GreenroomError, TaskNeeded, UnknownTool
from ...protocol.events import Kind
from ...protocol.index import Ambiguous, Missing, Target
from ...protocol.jsonrpc import RpcFault
from .._client_host import ClientHost
from .._exposure import Client
from .._jobs import Job
from .._room import DirectRoom, WholeCall
from .._signed import question_of, without_ours
from .._suspended import StateSigner, SuspendableCall
from . import _answers as answers
from ._direct_client import DirectClient
from ._links import LINK
from ._readable import CONTENT, LIST, readable_tool
from ._shown import Shown

if TYPE_CHECKING:
    import anyio.abc

_STATE: Final = "requestState"
_REQUESTS: Final = "inputRequests"
_POINTING: Final = ("resources/read", "prompts/get")


class Direct:
    """Everything the servers have. `room` is open."""

    def __init__(self, room: DirectRoom) -> None:
        self._room = room
        self._start_request = room.start_request
        self._shown = Shown(room)
        self._direct_clients: dict[Client, DirectClient] = {}
        self._signer = StateSigner()
        self._levels: dict[str, str] = {}  # what older servers were told for a newer client
        self._begin: Final[Mapping[str, Callable[[Job], None]]] = {
            "tools/call": self._call,
            "resources/read": self._read,
            "prompts/get": self._get_prompt,
            "completion/complete": self._complete,
            "resources/subscribe": self._subscribe,
            "resources/unsubscribe": self._unsubscribe,
            "subscriptions/listen": self._listen,
            "logging/setLevel": self._set_level,
        }
        self._client_host = ClientHost(room, self._tell_update)

    # ---- what it shows ---------------------------------------------------------------------------------------

    def capabilities(self) -> Mapping[str, Any]:
        return {
            "tools": {"listChanged": True},
            "resources": {"listChanged": True, "subscribe": True},
            "prompts": {"listChanged": True},
            "completions": {},
            "logging": {},
        }

    def instructions(self) -> str | None:
        """Every server's own, under its name."""
        known = {name: self._room.entry(name) for name in self._room.index.servers}
        said = {
            name: entry.instructions
            for name, entry in known.items()
            if entry is not None and entry.instructions
        }
        return "\n\n".join(f"# {name}\n\n{text}" for name, text in said.items()) or None

    def listing(self, method: str, *, modern: bool = False) -> Mapping[str, Any] | None:
        return self._shown.listing(method, modern=modern)

    @property
    def settling_time(self) -> float:
        return self._room.config.settings.first_list_timeout if self._room.is_learning else 0.0

    async def settle(self) -> None:
        """Many clients list only once, and never see what a later `list_changed` announces."""
        await self._room.catalogued()

    async def watch(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Announce what has really changed, once, when it is in the index."""
        async with self._room.events([Kind.CATALOGUE]) as events:
            task_status.started()
            async for _ in events:
                await self._room.settled()
                for change in await in_turns(self._shown.changing()):
                    for direct_client in tuple(self._direct_clients.values()):
                        direct_client.tell_change(change)

    # ---- clients ---------------------------------------------------------------------------------------------

    def came(self, client: Client) -> None:
        if client not in self._direct_clients:
            self._direct_clients[client] = DirectClient(self._room, client)
        self._client_host.came(client)

    def heard(self, client: Client, method: str) -> None:
        self._client_host.said(method)

    def left(self, client: Client) -> None:
        self._client_host.left(client)
        direct_client = self._direct_clients.pop(client, None)
        if direct_client is not None:
            direct_client.leave()

    def _tell_update(self, server: str, params: Mapping[str, Any]) -> None:
        for direct_client in tuple(self._direct_clients.values()):
            direct_client.tell_update(server, params)

    # ---- requests --------------------------------------------------------------------------------------------

    def begin(self, job: Job) -> bool:
        begin = self._begin.get(job.method)
        if begin is None:
            return False
        try:
            begin(job)
        except GreenroomError as error:
            answers.refuse(job, error)
        return True

    def _call(self, job: Job) -> None:
        plain = job.plain
        name = answers.text_of(job, "name") if plain is None else plain.name
        target = self._shown.tool(name)
        if target is None:
            self._call_unlisted(name, job)
        else:
            self._start_tool(job, target)

    def _call_unlisted(self, name: str, job: Job) -> None:
        """Spelled otherwise, not known yet, or not there."""
        found = self._room.index.resolve(name)
        if isinstance(found, Ambiguous):
            raise AmbiguousTool(name, found.candidates)
        if isinstance(found, Missing) and found.servers:
            job.run(partial(self._find_and_call, name, job))
        else:
            self._start_found(name, found, job)

    def _start_found(self, name: str, found: Target | Missing, job: Job) -> None:
        if isinstance(found, Missing) or not self._room.index.is_direct(found):
            raise UnknownTool(name)
        self._start_tool(job, found)

    async def _find_and_call(self, name: str, job: Job) -> None:
        try:
            self._start_found(name, await self._room.find(name), job)
        except GreenroomError as error:
            answers.refuse(job, error)

    def _read(self, job: Job) -> None:
        place = self._direct_client(job).locate(answers.text_of(job, "uri"))
        self._start(job, place.server, "uri", place.original)

    def _get_prompt(self, job: Job) -> None:
        name = answers.text_of(job, "name")
        found = self._room.index.resolve_prompt(name)
        if isinstance(found, Target):
            self._start(job, found.server, "name", found.original)
        else:
            job.run(partial(self._find_prompt, name, job))

    async def _find_prompt(self, name: str, job: Job) -> None:
        try:
            found = await self._room.find_prompt(name)
            self._start(job, found.server, "name", found.original)
        except GreenroomError as error:
            answers.refuse(job, error)

    def _complete(self, job: Job) -> None:
        ref = rpc.read_value(job.params.get("ref"))
        if not isinstance(ref, dict):
            raise RpcFault(rpc.INVALID_PARAMS, "Invalid params: ref must be an object.")
        job.run(partial(self._find_and_complete, ref, job))

    async def _find_and_complete(self, ref: Mapping[str, Any], job: Job) -> None:
        try:
            server, own = await self._room.find_reference(ref)
            self._start(job, server, "ref", own)
        except GreenroomError as error:
            answers.refuse(job, error)

    def _subscribe(self, job: Job) -> None:
        job.run(partial(self._direct_client(job).subscribe, job, answers.text_of(job, "uri")))

    def _unsubscribe(self, job: Job) -> None:
        self._direct_client(job).unsubscribe(job, answers.text_of(job, "uri"))

    def _listen(self, job: Job) -> None:
        wanted = rpc.read_value(job.params.get("notifications"))
        if not isinstance(wanted, dict):
            raise RpcFault(rpc.INVALID_PARAMS, "Invalid params: notifications must be an object.")
        job.run(partial(self._direct_client(job).listen, job, wanted))

    def _set_level(self, job: Job) -> None:
        self._room.set_log_level(answers.text_of(job, "level"))
        job.answer({})

    def _direct_client(self, job: Job) -> DirectClient:
        client: Client = job.client
        if client not in self._direct_clients:  # it never introduced itself
            self._direct_clients[client] = DirectClient(self._room, client)
        return self._direct_clients[client]

    # ---- one call --------------------------------------------------------------------------------------------

    def _start_tool(self, job: Job, target: Target) -> None:
        """The short way, for a call that says nothing but the name and the arguments. Raises what refuses it."""
        if target.needs_task:
            raise TaskNeeded.of(target.name, target.server)
        plain = job.plain
        if plain is None:
            self._start(job, target.server, "name", target.original, target)
            return
        call = self._start_request(
            target.server,
            "tools/call",
            plain.renamed(target.original),
            partial(self._tool_ended, job, target.server),
            tool=target.name,
            replayable=target.is_harmless,
        )
        job.follow(call)

    def _start(self, job: Job, server: str, key: str, own: Any, target: Target | None = None) -> None:
        """Send the client's parameters with the server's `own` spelling under `key`. Raises what refuses it."""
        params: dict[str, Any] = {**job.params, key: own}
        params.pop("task", None)  # tasks are not declared here, so it means nothing (2025-11-25, tasks)
        if job.meta is not None:
            params["_meta"] = without_ours({"_meta": self._own_meta(job, server)})["_meta"]
        if job.modern:
            self._start_modern(job, server, params, target)
            return
        call = self._start_request(
            server,
            job.method,
            params,
            job.concluded_by(self._ended, job, server),
            tool=target.name if target is not None else None,
            on_progress=job.progress if job.token is not None else None,
            replayable=target is not None and target.is_harmless,
        )
        job.follow(call)

    def _tool_ended(self, job: Job, server: str, call: WholeCall) -> None:
        """The end of a plain call, in as few steps as can be: what a result may need besides is seen in its bytes.
        (`find`, because `in` raises and catches an error first, which costs ten times as much as the look.)"""
        try:
            result = call.result
            if result is None:
                answers.end(job, call)
                return
            if result.find(LINK) >= 0:
                self._learn_links(job, server, result)
            at = result.find(CONTENT)
            if at < 0 or result[at + 10 : at + 12] not in LIST:
                result = readable_tool(result)
            job.answer_raw(result, modern=call.protocol_version in rpc.MODERN_VERSIONS)
        except Exception as error:
            job.broke(error)

    def _ended(self, job: Job, server: str, call: WholeCall) -> None:
        """Of a tool or of anything else: a prompt's messages and what was read point to resources, too."""
        result = call.result
        if result is not None and (job.method in _POINTING or result.find(LINK) >= 0):
            self._learn_links(job, server, result)
        answers.end(job, call)

    def _learn_links(self, job: Job, server: str, result: bytes) -> None:
        direct_client = self._direct_clients.get(job.client)
        if direct_client is not None:  # else it has left
            direct_client.links.learn(server, result)

    def _own_meta(self, job: Job, server: str) -> Mapping[str, Any]:
        """What the client says beyond who it is. An older server is told the level the older way."""
        assert job.meta is not None
        level = job.meta.get(rpc.LOG_LEVEL_KEY)
        if (
            isinstance(level, str)
            and self._levels.get(server) != level
            and not self._room.is_stateless(server)
        ):
            self._room.set_log_level(level, server)
            self._levels[server] = level
        return {
            key: value
            for key, value in job.meta.items()
            if key == rpc.LOG_LEVEL_KEY or not (key.startswith(rpc.META) or key == "progressToken")
        }

    def _start_modern(self, job: Job, server: str, params: dict[str, Any], target: Target | None) -> None:
        state = rpc.read_value(job.params.get(_STATE))
        what = (server, job.method, str(params.get("name", params.get("uri", ""))))
        if isinstance(state, str):
            if self._client_host.suspended.resume(job, state) is not None:
                return
            params[_STATE] = self._signer.verify(state, *what)
        suspendable = SuspendableCall(
            self._client_host.suspended, job, server, partial(self._modern_ended, what)
        )
        try:
            call = self._start_request(
                server,
                job.method,
                params,
                suspendable.ended,
                tool=target.name if target is not None else None,
                on_progress=suspendable.progress if job.token is not None else None,
                replayable=target is not None and target.is_harmless,
                takes_inputs=True,
            )
        except GreenroomError:
            suspendable.refused()
            raise
        suspendable.follow(call)

    def _modern_ended(self, what: tuple[str, ...], job: Job, call: WholeCall) -> None:
        if call.result is not None and b"input_required" in call.result:
            job.answer_raw(self._with_signed_state(call.result, what), modern=True)
        else:
            self._ended(job, what[0], call)

    def _with_signed_state(self, result: bytes, what: tuple[str, ...]) -> bytes:
        parts = rpc.read_parts(msgspec.Raw(result))
        if rpc.read_value(parts.get("resultType")) != "input_required":
            return result
        state = rpc.read_value(parts.get(_STATE))
        signed_state = {_STATE: self._signer.sign(state, *what)} if isinstance(state, str) else {}
        return rpc.encode({**parts, **signed_state, **_asked_by(what[0], parts)})


def _asked_by(server: str, parts: Mapping[str, Any]) -> dict[str, Any]:
    """The questions that a server of 2026-07-28 asks with its result, each with the server's name."""
    requests = rpc.read_value(parts.get(_REQUESTS))
    if not isinstance(requests, dict):
        return {}
    named: dict[str, Any] = {}
    for key, request in cast("dict[str, Any]", requests).items():
        asked = cast("dict[str, Any]", request) if isinstance(request, dict) else {}
        params = asked.get("params")
        if isinstance(params, dict):
            signed = question_of(server, str(asked.get("method")), cast("dict[str, Any]", params))
            named[key] = {**asked, "params": signed}
        else:
            named[key] = request
    return {_REQUESTS: named}
