"""One request at the direct door, once its server is known: it is sent, and ends by callback.

The parameters stay the bytes the client wrote, except for the name. A request of 2026-07-28 may end by asking
for input. The state that its client brings back is the server's own, signed, so that it reaches that server
and no other.

A result passes as it is, unless the configuration lets it be scrubbed at every door.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from ...actors.call import Call
from ...actors.workers import LONG_WORK, aside
from ...catalogue.namespace import AmbiguousName, MissingName, ResourceEntry, Target, unqualified
from ...catalogue.skills import has_skills
from ...config.model import Scrub
from ...protocol import jsonrpc as rpc
from ...protocol.bounds import LARGE_MESSAGE
from ...protocol.errors import (
    AmbiguousTool,
    CallError,
    GreenroomError,
    InputRefused,
    ProtocolFault,
    Reach,
    RpcRefusal,
    UnknownResource,
    UnknownTool,
)
from ...protocol.jsonrpc.terms import TRACE_KEYS, RpcFault
from ...protocol.long_text import holds
from ...protocol.result import check_input_size
from ...protocol.safe_text import unhidden
from ...protocol.value_count import takes_long_to_decode
from ...safety.audit import AUDITED
from ...safety.scrubber import scrubbed_progress, scrubbed_server_request
from ...safety.server_questions import shown_request
from ..client_host import ClientHost, extensions_of_all
from ..input_required import StateSigner, SuspendableCall, SuspendedCalls, undeclared
from ..jobs import Job
from ..message_origin import attributed_request, without_ours
from ..next_steps import PLAIN, Commands
from . import direct_results as answers
from .direct_client import LINK, DirectClient, DirectClients, uris_in
from .direct_lists import ShownLists, directory_entries, skill_entry
from .direct_results import readable, readable_tool
from .exposure import left_out

if TYPE_CHECKING:
    from ...config.scrubbing import Secrets
    from ...supervisor.port import RoomCatalogue, RoomPort
    from ...supervisor.profiles import ProfileView
    from ..endpoint import ClientSession

# ---- The direct door's exposure --------------------------------------------------------------------------------------
#
# It sends each request to its server, under the server's own name for the item.
#
# The short way is for a listed name. Finding it is a dict look-up, and the parameters stay bytes except for
# that name. The call starts in the step that read the request and ends by callback (`_calls`), and its result
# is spliced into the answer: no task, no decoding. The long way, in a task, is for requests that must wait for
# more than a call: a name that the catalogue does not have yet but whose prefix names a server; watching a
# resource; completion.


class DirectState:
    """What all clients of the direct door share: the lists, the clients to tell of changes, and the key that signs
    states."""

    def __init__(self, catalogue: RoomCatalogue | ProfileView, commands: Commands = PLAIN) -> None:
        self.catalogue = catalogue
        self.commands = commands
        self.shown: ShownLists = ShownLists(catalogue, commands)
        self.clients: DirectClients = DirectClients()
        self.signer: StateSigner = StateSigner()

    async def announce(self) -> None:
        """Tell all clients which lists have changed since the last time."""
        for change in await self.shown.look():
            self.clients.tell_change(change)


class Direct:
    """Shows everything that the servers have to one client. `room` is open. Clients of one gateway share `common`."""

    def __init__(self, room: RoomPort, common: DirectState | None = None) -> None:
        common = common or DirectState(room.catalogue)
        self._room = room
        self._common = common
        self._own: ShownLists | None = None  # what this client alone is shown, once that is something else
        self._direct_clients = common.clients
        self._client_host = ClientHost(room, self._tell_update, door=Scrub.ALL, passes_extensions=True)
        self.suspended: SuspendedCalls = self._client_host.suspended
        self._calls = DirectCalls(room, self._direct_clients, self._client_host.suspended, common.signer)
        self._begin: Final[Mapping[str, Callable[[Job], None]]] = {
            "tools/call": self._call,
            "resources/read": self._read,
            "prompts/get": self._get_prompt,
            "completion/complete": self._complete,
            "skills/get": self._get_skill,
            "resources/directory/read": self._read_directory,
            "resources/subscribe": self._subscribe,
            "resources/unsubscribe": self._unsubscribe,
            rpc.LISTEN: self._listen,
            "logging/setLevel": self._set_level,
        }

    # ---- what it shows ---------------------------------------------------------------------------------------

    @property
    def _shown(self) -> ShownLists:
        """The lists for this client. They are its own once its own servers have listed something else than the room
        knows."""
        if self._own is None and self._room.catalogue.index is not self._common.catalogue.index:
            self._own = ShownLists(self._room.catalogue, self._common.commands, listed=self._common.shown)
        return self._own or self._common.shown

    async def announce(self, client: ClientSession) -> None:
        """Tell the client which of its own lists have changed. Changes of the shared lists are told by
        `DirectState`."""
        shown = self._shown
        if shown is self._own:
            for change in await shown.look():
                self._direct_client_of(client).tell_change(change)

    def capabilities(self) -> Mapping[str, Any]:
        entries = (self._room.catalogue.entry(name) for name in self._room.catalogue.index.servers)
        return {
            **extensions_of_all(entry and entry.capabilities for entry in entries),
            "tools": {"listChanged": True},
            "resources": {"listChanged": True, "subscribe": True},
            "prompts": {"listChanged": True},
            "completions": {},
            "logging": {},
        }

    def instructions(self) -> str | None:
        """Which files are left out, and the instructions of every server, each under the server's name."""
        known = {name: self._room.catalogue.entry(name) for name in self._room.catalogue.index.servers}
        said = {
            name: unhidden(entry.instructions)
            for name, entry in known.items()
            if entry is not None and entry.instructions
        }
        parts = [
            left_out(self._room.catalogue.config, self._common.commands),
            *(f"# {name}\n\n{text}" for name, text in said.items()),
        ]
        return "\n\n".join(part for part in parts if part) or None

    def listing(self, method: str, *, modern: bool = False) -> Mapping[str, Any] | None:
        result = self._shown.listing(method, modern=modern)
        if method != "skills/list" or result is None:
            return result
        listed: list[Mapping[str, Any]] = result["skills"]
        shown = [self._without_credentials(skill) for skill in listed]
        is_same = all(one is other for one, other in zip(listed, shown, strict=True))
        return result if is_same else {**result, "skills": shown}

    def _without_credentials(self, skill: Mapping[str, Any]) -> Mapping[str, Any]:
        """The entry of a skill as this door may show it: what a model reads of it is no more than the file is."""
        named = unqualified(skill["uri"])
        scrubber = None if named is None else self._room.scrubber(named[0], _ALL)
        if scrubber is None:
            return skill
        raw = rpc.encode(skill)
        found = scrubber.scrub(raw)
        return skill if found is raw else rpc.decode_result(found)

    @property
    def settling_time(self) -> float:
        return (
            self._room.catalogue.config.settings.first_list_timeout
            if self._room.catalogue.is_learning
            else 0.0
        )

    async def settle(self) -> None:
        """Wait until the lists are complete. Many clients list only once, and ignore a later `list_changed`."""
        await self._room.catalogued()

    # ---- clients ---------------------------------------------------------------------------------------------

    def came(self, client: ClientSession) -> None:
        self._direct_clients.of(client, self._room)
        self._client_host.came(client)

    def heard(self, client: ClientSession, method: str) -> None:
        self._client_host.said(method)

    def left(self, client: ClientSession) -> None:
        self._client_host.left(client)
        direct_client = self._direct_clients.pop(client, None)
        if direct_client is not None:
            direct_client.leave()

    def _tell_update(self, client: ClientSession, server: str, params: Mapping[str, Any]) -> None:
        direct_client = self._direct_clients.get(client)
        if direct_client is not None:
            direct_client.tell_update(server, params)

    def _direct_client(self, job: Job) -> DirectClient:
        return self._direct_client_of(job.client)

    def _direct_client_of(self, client: ClientSession) -> DirectClient:
        return self._direct_clients.of(client, self._room)

    # ---- requests --------------------------------------------------------------------------------------------

    def begin(self, job: Job) -> bool:
        begin = self._begin.get(job.method)
        if begin is None:
            return False
        try:
            begin(job)
        except GreenroomError as error:
            _refuse(self._room, job, error)
        return True

    def _call(self, job: Job) -> None:
        plain = job.plain
        name = answers.text_of(job, "name") if plain is None else plain.name
        # What a call may name is a matter of the index alone, whoever else is shown the same.
        target = (self._own or self._common.shown).tool_in(self._room.catalogue.index_now(), name)
        if target is None:
            self._call_unlisted(name, job)
        else:
            self._calls.start_tool(job, target)

    def _call_unlisted(self, name: str, job: Job) -> None:
        """Call a tool whose name is not listed: the name has another spelling, is not known yet, or does not exist."""
        found = self._room.catalogue.index.resolve(name)
        if isinstance(found, AmbiguousName):
            raise AmbiguousTool(name, found.candidates)
        if isinstance(found, MissingName) and found.servers:
            job.run(partial(self._find_and_call, name, job))
        else:
            self._start_found(name, found, job)

    def _start_found(
        self, name: str, found: Target | MissingName, job: Job, begun: Call | None = None
    ) -> None:
        if isinstance(found, MissingName):
            raise self._room.catalogue.refusal_by_prefix(name, None) or UnknownTool(name)
        if not self._room.catalogue.index.is_direct(found):
            raise UnknownTool(name)
        self._calls.start_tool(job, found, begun)

    async def _find_and_call(self, name: str, job: Job) -> None:
        call, job.has_call = job.to_call(), True
        try:
            async with self._room.found(call, (call.params or {}).get("arguments")) as found:
                self._start_found(name, found, job, call)
        except GreenroomError as error:
            _refuse(self._room, job, error)

    def _read(self, job: Job) -> None:
        place = self._direct_client(job).locate(answers.text_of(job, "uri"))
        self._calls.start(job, place.server, "uri", place.original)

    def _get_prompt(self, job: Job) -> None:
        name = answers.text_of(job, "name")
        found = self._room.catalogue.index.resolve_prompt(name)
        if isinstance(found, Target):
            self._calls.start_prompt(job, found)
        else:
            job.run(partial(self._find_prompt, name, job))

    async def _find_prompt(self, name: str, job: Job) -> None:
        call, job.has_call = job.to_call(), True
        try:
            self._room.begin(call, None)
            with self._room.until_accepted(call):
                found = await self._room.find_prompt(name)
                self._calls.start_prompt(job, found, call)
        except GreenroomError as error:
            _refuse(self._room, job, error)

    def _get_skill(self, job: Job) -> None:
        uri = answers.text_of(job, "uri")
        found = self._room.catalogue.index.skill_at(uri)
        if isinstance(found, AmbiguousName):
            raise AmbiguousTool(uri, found.candidates, what="Skill")
        place = self._direct_client(job).locate(uri) if found is None else found
        entry = self._room.catalogue.entry(place.server)
        if entry is None or not has_skills(entry.capabilities):
            raise UnknownResource(uri)
        job.run(partial(self._look_at_skill, place.server, place.original, job))

    async def _look_at_skill(self, server: str, original: str, job: Job) -> None:
        try:
            skill = await self._room.skills.current(server, original)
            if skill.changed is not None:
                raise skill.refusal()
        except GreenroomError as error:
            answers.refuse(job, error)
        else:
            job.answer({"skill": self._without_credentials(skill_entry(skill))})

    def _read_directory(self, job: Job) -> None:
        place = self._direct_client(job).locate(answers.text_of(job, "uri"))
        cursor = rpc.read_value(job.params.get("cursor"))
        if cursor is not None and not isinstance(cursor, str):
            raise RpcFault(rpc.INVALID_PARAMS, "Invalid params: cursor must be a string.")
        job.run(partial(self._look_into, place, cursor, job))

    async def _look_into(self, place: ResourceEntry, cursor: str | None, job: Job) -> None:
        try:
            found, after = await self._room.skills.directory(place.server, place.original, cursor)
        except GreenroomError as error:
            answers.refuse(job, error)
        else:
            shown = directory_entries(self._room.catalogue.index, place.server, found, self._common.commands)
            job.answer({"resources": shown, **({} if after is None else {"nextCursor": after})})

    def _complete(self, job: Job) -> None:
        ref = rpc.read_value(job.params.get("ref"))
        if not isinstance(ref, dict):
            raise RpcFault(rpc.INVALID_PARAMS, "Invalid params: ref must be an object.")
        job.run(partial(self._find_and_complete, ref, job))

    async def _find_and_complete(self, ref: Mapping[str, Any], job: Job) -> None:
        try:
            server, own = await self._room.find_reference(ref)
            self._calls.start(job, server, "ref", own)
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


def _refuse(room: RoomPort, job: Job, error: GreenroomError) -> None:
    if not job.has_call and job.method in AUDITED and isinstance(error, CallError):
        room.turn_away(job.to_call(), error)
    answers.refuse(job, error)


_ALL: Final = Scrub.ALL  # naming an enum member costs ten times as much as a constant on 3.11
_STATE: Final = "requestState"
_REQUESTS: Final = "inputRequests"
_NOT_PASSED: Final = frozenset({"progressToken", *TRACE_KEYS})  # the call itself brings its own
_POINTING: Final = ("resources/read", "prompts/get")


class DirectCalls:
    """Sends the requests of one client."""

    def __init__(
        self, room: RoomPort, clients: DirectClients, suspended: SuspendedCalls, signer: StateSigner
    ) -> None:
        self._room = room
        self._clients = clients
        self._suspended = suspended
        self._signer = signer
        self._progress = partial(scrubbed_progress, room.scrubber, Scrub.ALL)
        self._levels: dict[str, str] = {}  # the log levels that older servers were told for a newer client

    def start_tool(self, job: Job, target: Target, begun: Call | None = None) -> None:
        """Call a tool in the short way, for params with only a name and arguments. `begun`: the call, if it began when
        its name was looked up. Raises the error that refuses the call."""
        if target.changed is not None:
            raise target.refusal()
        job.wrapped_output = target.wrapped_output
        plain = job.plain
        if target.override is not None:
            own = _own_arguments(target, job)
            self.start(job, target.server, "name", target.original, target, own, begun)
            return
        if plain is None:
            self.start(job, target.server, "name", target.original, target, begun=begun)
            return
        job.has_call = True
        call = begun or Call("tools/call", None)
        call.params, call.tool = plain.renamed(target.original), target.name
        call.replayable = target.is_harmless
        call.on_end, call.asked_by = self._tool_ended, job
        self._room.submit(target.server, call)
        job.follow(call)

    def start_prompt(self, job: Job, target: Target, begun: Call | None = None) -> None:
        """Get a prompt. Raises the error that refuses it."""
        arguments = _own_arguments(target, job)
        self.start(job, target.server, "name", target.original, arguments=arguments, begun=begun)

    def start(
        self,
        job: Job,
        server: str,
        key: str,
        own: Any,
        target: Target | None = None,
        arguments: Mapping[str, Any] | None = None,
        begun: Call | None = None,
    ) -> None:
        """Send the client's parameters with the server's `own` name under `key`, and with other `arguments` if
        there are any. Raises the error that refuses it."""
        params: dict[str, Any] = {**job.params, key: own}
        if arguments is not None:
            params["arguments"] = arguments
        params.pop("task", None)  # tasks are not declared here, so it means nothing (2025-11-25, tasks)
        if job.meta is not None:
            params["_meta"] = without_ours({"_meta": self._own_meta(job, server)})["_meta"]
        if job.modern:
            self._start_modern(job, server, params, target, begun)
            return
        job.has_call = True
        call = self._room.start_request(
            server,
            job.method,
            params,
            job.concluded_by(self._ended, job, server, target),
            tool=target.name if target is not None else None,
            on_progress=self._progress(server, job.progress) if job.token is not None else None,
            replayable=target is not None and target.is_harmless,
            begun=begun,
        )
        job.follow(call)

    def _tool_ended(self, call: Call) -> None:
        """The end of a plain call. Nearly every result is passed on after one look at it."""
        job: Job = call.asked_by
        server = call.server or ""
        try:
            result = call.result
            if (
                result is not None
                and job.wrapped_output is None
                and len(result) < LARGE_MESSAGE
                and self._room.scrubber(server, _ALL) is None
                and answers.is_for_all(result)
            ):
                job.is_for_all = True
                job.answer_raw(result)
            else:
                self._ended(job, server, None, call)
        except Exception as error:
            job.broke(error)

    def _ended(self, job: Job, server: str, target: Target | None, call: Call | answers.ScrubbedEnd) -> None:
        """The end of any other call. A prompt's messages and the contents of a resource point to resources,
        too."""
        result = call.result
        if result is not None:
            scrubber = self._room.scrubber(server, _ALL)
            if len(result) >= (LARGE_MESSAGE if scrubber is None else LONG_WORK):
                # The version is read now: meanwhile the server may go, or come back with another.
                modern = call.protocol_version in rpc.MODERN_VERSIONS
                job.run(partial(self._end_aside, job, server, target, scrubber, result, modern))
                return
            if scrubber is not None:
                result = scrubber.scrub(result)
                call = answers.ScrubbedEnd(result, call.protocol_version)
            if job.method in _POINTING or result.find(LINK) >= 0:
                self._clients.learn_links(job.client, server, uris_in(result))
        answers.end(job, call, target)

    async def _end_aside(
        self,
        job: Job,
        server: str,
        target: Target | None,
        scrubber: Secrets | None,
        result: bytes,
        modern: bool,
    ) -> None:
        """The end of any call with a large result, which is made in a thread."""
        uris, result = await aside(partial(_passed_on, job.method, job.params, target, scrubber, result))
        self._clients.learn_links(job.client, server, uris)
        await job.answer_large(result, modern=modern)

    def _own_meta(self, job: Job, server: str) -> Mapping[str, Any]:
        """The client's `_meta` without what the client says about itself. An older server is sent the log level in a
        request of its own."""
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
            if key == rpc.LOG_LEVEL_KEY or not (key.startswith(rpc.META) or key in _NOT_PASSED)
        }

    def _start_modern(
        self, job: Job, server: str, params: dict[str, Any], target: Target | None, begun: Call | None
    ) -> None:
        state = rpc.read_value(job.params.get(_STATE))
        what = (server, job.method, str(params.get("name", params.get("uri", ""))))
        if isinstance(state, str):
            if self._suspended.resume(job, state) is not None:
                return
            params[_STATE] = self._signer.verify(state, *what)
        elif self._suspended.asks_again(job):
            return
        suspendable = SuspendableCall(self._suspended, job, server, partial(self._modern_ended, what, target))
        job.has_call = True
        try:
            call = self._room.start_request(
                server,
                job.method,
                params,
                suspendable.ended,
                tool=target.name if target is not None else None,
                on_progress=self._progress(server, suspendable.progress) if job.token is not None else None,
                replayable=target is not None and target.is_harmless,
                takes_inputs=True,
                begun=begun,
            )
        except GreenroomError:
            suspendable.refused()
            raise
        suspendable.follow(call)

    def _modern_ended(
        self, what: tuple[str, ...], target: Target | None, job: Job, call: Call | answers.ScrubbedEnd
    ) -> None:
        result = call.result
        if result is not None and rpc.wants_input(result):
            try:
                check_input_size(what[0], result)
            except ProtocolFault as problem:
                answers.fail(job, problem)
            else:
                self._ask(what, job, rpc.read_parts(msgspec.Raw(result)))
            return
        self._ended(job, what[0], target, call)

    def _ask(self, what: tuple[str, ...], job: Job, parts: Mapping[str, msgspec.Raw]) -> None:
        """Pass a server's requests on. The server has to recognise its state, so only sentences are scrubbed. A client
        is asked only what it declared, whatever the server makes of what it was told."""
        requests = rpc.read_value(parts.get(_REQUESTS))
        asked = cast("dict[str, Any]", requests) if isinstance(requests, dict) else {}
        missing = [name for each in asked.values() if (name := undeclared(each, job.client.capabilities))]
        if missing:
            text = f'Server "{what[0]}" asks for {missing[0]}, which this client did not declare; it was not asked.'
            answers.fail(job, InputRefused(text, server=what[0], reach=Reach.ANSWERED))
            return
        state = rpc.read_value(parts.get(_STATE))
        signed_state = {_STATE: self._signer.sign(state, *what)} if isinstance(state, str) else {}
        try:
            named = {_REQUESTS: _asked_by(self._room, what[0], asked)} if isinstance(requests, dict) else {}
        except RpcRefusal as refusal:
            text = f'Server "{what[0]}" asks what cannot be shown: {refusal.message}'
            answers.fail(job, InputRefused(text, server=what[0], reach=Reach.ANSWERED))
            return
        job.answer_raw(rpc.encode({**parts, **signed_state, **named}), modern=True)


def _own_arguments(target: Target, job: Job) -> Mapping[str, Any] | None:
    """The arguments of a request as the target's server expects them; None: as they are. Raises `UsageError`."""
    override = target.override
    if override is None:
        return None
    given = job.params.get("arguments") if job.plain is None else job.plain.arguments
    if override.spelled is not None:  # it looks into the values
        said = {name: rpc.read_value(value) for name, value in answers.arguments_of(given).items()}
        return override.own(said, target.server)
    return override.own(answers.arguments_of(given), target.server)


def _asked_by(room: RoomPort, server: str, requests: Mapping[str, Any]) -> dict[str, Any]:
    """The requests in a result of a server of 2026-07-28, as a person may be shown them. Each gets the server's name.
    Raises `RpcRefusal`."""
    named: dict[str, Any] = {}
    for key, request in requests.items():
        asked = cast("dict[str, Any]", request) if isinstance(request, dict) else {}
        params = asked.get("params")
        if isinstance(params, dict):
            method = str(asked.get("method"))
            plain = shown_request(method, cast("dict[str, Any]", params))
            plain = scrubbed_server_request(room.scrubber, Scrub.ALL, server, method, plain)
            named[key] = {**asked, "params": attributed_request(server, method, plain)}
        else:
            named[key] = request
    return named


def _passed_on(
    method: str,
    params: Mapping[str, msgspec.Raw],
    target: Target | None,
    scrubber: Secrets | None,
    result: bytes,
) -> tuple[list[Any], bytes]:
    """The resources that a large result points to, and the result as it is passed on. A result of very many values is
    not looked into."""
    if scrubber is not None:
        result = scrubber.scrub(result)
    points = method in _POINTING or holds(result, LINK)
    is_shown_otherwise = target is not None and target.override is not None
    if method == "tools/call" and not points and not is_shown_otherwise:
        return [], readable_tool(result)
    if takes_long_to_decode(result):
        return [], readable_tool(result) if method == "tools/call" else result
    return uris_in(result) if points else [], answers.told(target, readable(method, params, result))
