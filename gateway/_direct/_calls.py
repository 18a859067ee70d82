"""One request at the direct door, once its server is known: it is sent, and ends by callback.

The parameters stay the bytes the client wrote, except for the name. A request of 2026-07-28 may end by asking
for input. The state that its client brings back is the server's own, signed, so that it reaches that server
and no other.

A result passes as it is, unless the configuration lets it be scrubbed at every door.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final, cast

import msgspec

from ...actors import in_turns, lacking
from ...protocol import jsonrpc as rpc
from ...protocol.config import Scrub
from ...protocol.errors import GreenroomError, InputRefused, Reach
from ...protocol.index import Target
from ...protocol.large_message import LARGE_MESSAGE
from .._jobs import Job
from .._room import DirectRoom, WholeCall
from .._said import scrubbed_progress, scrubbed_question
from .._signed import question_of, without_ours
from .._suspended import StateSigner, SuspendableCall, SuspendedCalls
from . import _answers as answers
from ._direct_client import DirectClients
from ._links import LINK
from ._outline import outline_of
from ._readable import CONTENT, LIST, readable, readable_tool
from ._scrubbed import Scrubbed, scrubbing

_ALL: Final = Scrub.ALL  # naming an enum member costs ten times as much as a constant on 3.11
_NEWER: Final = b'"resultType"'
_STATE: Final = "requestState"
_REQUESTS: Final = "inputRequests"
_POINTING: Final = ("resources/read", "prompts/get")
_PASSED: Final = ("tools/call", "prompts/get")  # of which nobody looks into a long member


class DirectCalls:
    """Sends the requests of one client."""

    def __init__(
        self, room: DirectRoom, clients: DirectClients, suspended: SuspendedCalls, signer: StateSigner
    ) -> None:
        self._room = room
        self._start_request = room.start_request
        self._scrubber = room.scrubber
        self._clients = clients
        self._suspended = suspended
        self._signer = signer
        self._progress = partial(scrubbed_progress, room, Scrub.ALL)
        self._levels: dict[str, str] = {}  # the log levels that older servers were told for a newer client

    def start_tool(self, job: Job, target: Target) -> None:
        """The short way, for a call with only a name and arguments. Raises the error that refuses it."""
        if not target.may_be_called:
            raise target.refusal()
        plain = job.plain
        if target.override is not None:
            self.start(job, target.server, "name", target.original, target, _own_arguments(target, job))
            return
        if plain is None:
            self.start(job, target.server, "name", target.original, target)
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

    def start_prompt(self, job: Job, target: Target) -> None:
        """Get a prompt. Raises the error that refuses it."""
        arguments = _own_arguments(target, job)
        self.start(job, target.server, "name", target.original, arguments=arguments)

    def start(
        self,
        job: Job,
        server: str,
        key: str,
        own: Any,
        target: Target | None = None,
        arguments: Mapping[str, Any] | None = None,
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
            self._start_modern(job, server, params, target)
            return
        call = self._start_request(
            server,
            job.method,
            params,
            job.concluded_by(self._ended, job, server, target),
            tool=target.name if target is not None else None,
            on_progress=self._progress(server, job.progress) if job.token is not None else None,
            replayable=target is not None and target.is_harmless,
        )
        job.follow(call)

    def _tool_ended(self, job: Job, server: str, call: WholeCall) -> None:
        """The end of a plain call, in as few steps as possible: the bytes of a result show whether it needs
        more. (`find` and not `in`, which raises and catches an error first: that costs ten times as much as
        the search.)"""
        try:
            result = call.result
            if result is None:
                answers.end(job, call)
                return
            scrubber = self._scrubber(server, _ALL)
            if scrubber is not None and type(call) is not Scrubbed:
                job.run(scrubbing(scrubber, call, self._tool_ended, job, server))
                return
            if len(result) >= LARGE_MESSAGE:
                self._begin_large_end(job, server, call, result)
                return
            if result.find(LINK) >= 0:
                self._clients.learn_links(job.client, server, result)
            at = result.find(CONTENT)
            if at < 0 or result[at + 10 : at + 12] not in LIST:
                result = readable_tool(result)
            # A result that has none is in no newer form, whatever its server speaks.
            modern = result.find(_NEWER) >= 0 and call.protocol_version in rpc.MODERN_VERSIONS
            job.answer_raw(result, modern=modern)
        except Exception as error:
            job.broke(error)

    def _ended(self, job: Job, server: str, target: Target | None, call: WholeCall) -> None:
        """The end of any other call. A prompt's messages and the contents of a resource point to resources,
        too."""
        result = call.result
        scrubber = None if type(call) is Scrubbed else self._scrubber(server, _ALL)
        if result is not None and scrubber is not None:
            job.run(scrubbing(scrubber, call, self._ended, job, server, target))
            return
        if result is not None and len(result) >= LARGE_MESSAGE and job.method in _PASSED:
            self._begin_large_end(job, server, call, result)
            return
        if result is not None and (job.method in _POINTING or result.find(LINK) >= 0):
            self._clients.learn_links(job.client, server, result)
        answers.end(job, call, target)

    def _begin_large_end(self, job: Job, server: str, call: WholeCall, result: bytes) -> None:
        """The end of either with a large result, in slices. The version is read now: during the slices the server
        may go, or come back with another."""
        modern = call.protocol_version in rpc.MODERN_VERSIONS
        job.run(partial(self._end_large, job, server, result, modern))

    async def _end_large(self, job: Job, server: str, result: bytes, modern: bool) -> None:
        await in_turns(self._clients.learning_links(job.client, server, result))
        outline = await in_turns(outline_of(result))
        if outline is None:
            job.answer_raw(readable(job.method, job.params, result), modern=modern)
            return
        small = readable_tool(outline.small) if job.method == "tools/call" else outline.small
        job.answer_raw(small, modern=modern, filled=outline.filled)

    def _own_meta(self, job: Job, server: str) -> Mapping[str, Any]:
        """The client's `_meta` without what it says about itself. An older server is told the log level by a
        request."""
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
            if self._suspended.resume(job, state) is not None:
                return
            params[_STATE] = self._signer.verify(state, *what)
        suspendable = SuspendableCall(self._suspended, job, server, partial(self._modern_ended, what, target))
        try:
            call = self._start_request(
                server,
                job.method,
                params,
                suspendable.ended,
                tool=target.name if target is not None else None,
                on_progress=self._progress(server, suspendable.progress) if job.token is not None else None,
                replayable=target is not None and target.is_harmless,
                takes_inputs=True,
            )
        except GreenroomError:
            suspendable.refused()
            raise
        suspendable.follow(call)

    def _modern_ended(self, what: tuple[str, ...], target: Target | None, job: Job, call: WholeCall) -> None:
        result = call.result
        if result is not None and b"input_required" in result:
            parts = rpc.read_parts(msgspec.Raw(result))
            if rpc.read_value(parts.get("resultType")) == "input_required":
                self._ask(what, job, parts)
                return
        self._ended(job, what[0], target, call)

    def _ask(self, what: tuple[str, ...], job: Job, parts: Mapping[str, msgspec.Raw]) -> None:
        """Pass a server's questions on. The server has to recognise its state, so only sentences are scrubbed. A client
        is asked only what it declared, whatever the server makes of what it was told."""
        requests = rpc.read_value(parts.get(_REQUESTS))
        asked = cast("dict[str, Any]", requests) if isinstance(requests, dict) else {}
        missing = [name for each in asked.values() if (name := _undeclared(each, job.client.capabilities))]
        if missing:
            text = f'Server "{what[0]}" asks for {missing[0]}, which this client did not declare; it was not asked.'
            answers.fail(job, InputRefused(text, server=what[0], reach=Reach.ANSWERED))
            return
        state = rpc.read_value(parts.get(_STATE))
        signed_state = {_STATE: self._signer.sign(state, *what)} if isinstance(state, str) else {}
        named = {_REQUESTS: _asked_by(self._room, what[0], asked)} if isinstance(requests, dict) else {}
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


def _undeclared(request: object, capabilities: Mapping[str, Any]) -> str | None:
    """The capability that a client lacks to be asked this; None: it can be asked."""
    asked = cast("dict[str, Any]", request) if isinstance(request, dict) else {}
    params = asked.get("params")
    said = cast("dict[str, Any]", params) if isinstance(params, dict) else {}
    return lacking(capabilities, str(asked.get("method")), said)


def _asked_by(room: DirectRoom, server: str, requests: Mapping[str, Any]) -> dict[str, Any]:
    """The questions in a result of a server of 2026-07-28. Each gets the server's name."""
    named: dict[str, Any] = {}
    for key, request in requests.items():
        asked = cast("dict[str, Any]", request) if isinstance(request, dict) else {}
        params = asked.get("params")
        if isinstance(params, dict):
            method = str(asked.get("method"))
            plain = scrubbed_question(room, Scrub.ALL, server, method, cast("dict[str, Any]", params))
            named[key] = {**asked, "params": question_of(server, method, plain)}
        else:
            named[key] = request
    return named
