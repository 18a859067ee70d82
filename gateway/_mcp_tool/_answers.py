"""Ends jobs: turns results and answers of ours into what the model gets, within the bounds.

A result is scrubbed first, as the configuration says, so what is cut, kept in a file or shown has no credentials in it.
The output guard applies to every answer. Text that it cuts is kept in a file, and so are binary content and what does
not fit the details; `output` gives the text page by page. Most answers need no file and are given in the step that
made them. What takes long to decode is decoded in slices, and files are written and read in a thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import anyio.lowlevel
import anyio.to_thread
import attrs

from ...actors import in_turns
from ...protocol.config import Scrub
from ...protocol.content import MAX_BYTES, MAX_LINES
from ...protocol.errors import ProtocolFault, Reach
from ...protocol.index import Target
from ...protocol.jsonrpc import encode_json
from ...protocol.large_json import LARGE, decoding_result
from ...protocol.slices import Slices
from .._jobs import Job
from .._room import Room, Scrubber
from . import _refusals as refusals
from . import _texts as texts
from ._answer import Answer
from ._binaries import has_binaries, looking_for_binaries, may_have_binaries, without_binaries
from ._definition import Request
from ._hints import Hints
from ._outcome import (
    Outcome,
    decode_result,
    decoding_large,
    making_outcome,
    outcome_of,
    outcome_of_large,
    plain_answer,
)
from ._spill import Spill

_MCP: Final = Scrub.MCP  # naming an enum member costs ten times as much as a constant on 3.11
_FOR_A_NOTICE: Final = 300  # bytes that the notice below a page takes at most


class Answers:
    """Answers the jobs of one `mcp` tool."""

    def __init__(self, room: Room, spill: Spill, hints: Hints) -> None:
        self._room = room
        self._spill = spill
        self._hints = hints

    # ---- results ---------------------------------------------------------------------------------------------------

    def conclude(self, target: Target, raw: bytes, job: Job) -> None:
        """End `job` with the bytes of a result."""
        scrubber = self._room.scrubber(target.server, _MCP)
        if len(raw) >= LARGE:
            job.run(partial(self._conclude_large, target, raw, scrubber, job))
            return
        if scrubber is not None:
            raw = scrubber.scrub(raw)
        settings = self._room.config.settings
        answer = plain_answer(target, raw, settings.output_max_bytes, settings.output_max_lines)
        if answer is not None:
            job.answer(answer)
            return
        result = decode_result(raw)
        if result is None:
            self._no_result(target, job)
        elif may_have_binaries(raw) and has_binaries(result, settings.output_max_image):
            job.run(partial(self._concluding, target.server, target, result, job))
        else:
            self._end(outcome_of(target.server, target, result, **self._bounds), job)

    async def _conclude_large(self, target: Target, raw: bytes, scrubber: Scrubber | None, job: Job) -> None:
        """End `job` with a result that takes long to decode."""
        if scrubber is not None:
            raw = await in_turns(scrubber.scrubbing(raw))
        result = await in_turns(decoding_large(raw))
        if result is None:
            self._no_result(target, job)
            return
        if await in_turns(self._looking_for_binaries(result)):
            result = await self._without_binaries(result)
        self._end(await in_turns(outcome_of_large(target.server, target, result, **self._bounds)), job)

    async def concluding(
        self, server: str, target: Target | None, result: Mapping[str, Any], job: Job
    ) -> None:
        """End `job` with a result of any size. `target`: the tool that was called, if known."""
        scrubber = self._room.scrubber(server, _MCP)
        if scrubber is not None:
            raw = encode_json(result)
            scrubbed = await in_turns(scrubber.scrubbing(raw))
            if scrubbed is not raw:
                result = await in_turns(decoding_result(scrubbed))
        await self._concluding(server, target, result, job)

    async def _concluding(
        self, server: str, target: Target | None, result: Mapping[str, Any], job: Job
    ) -> None:
        if await in_turns(self._looking_for_binaries(result)):
            result = await self._without_binaries(result)
        self._end(await in_turns(making_outcome(server, target, result, **self._bounds)), job)

    async def telling(self, result: Mapping[str, Any], details: Mapping[str, Any], job: Job) -> None:
        """End `job` with a result of any size that is none of a server: it has these details."""
        outcome = await in_turns(making_outcome("", None, result, **self._bounds))
        self._end(attrs.evolve(outcome, details=details), job)

    def _looking_for_binaries(self, result: Mapping[str, Any]) -> Slices[bool]:
        return looking_for_binaries(result, self._room.config.settings.output_max_image)

    async def _without_binaries(self, result: Mapping[str, Any]) -> dict[str, Any]:
        most = self._room.config.settings.output_max_image
        return await anyio.to_thread.run_sync(without_binaries, result, self._kept, most)

    @property
    def _bounds(self) -> dict[str, int]:
        settings = self._room.config.settings
        return {"max_bytes": settings.output_max_bytes, "max_lines": settings.output_max_lines}

    def _no_result(self, target: Target, job: Job) -> None:
        error = ProtocolFault("the answer is not a result object", server=target.server, reach=Reach.ANSWERED)
        self.reply(refusals.failed_call(error, target), job)

    # ---- kept output -----------------------------------------------------------------------------------------------

    @property
    def _kept(self) -> Spill:
        settings = self._room.config.settings
        return attrs.evolve(self._spill, max_age=settings.output_keep, max_total=settings.output_keep_bytes)

    def turn_page(self, request: Request, job: Job) -> None:
        """Answer with a part of a text that was too long for an answer."""
        job.run(partial(self._turn_page, request, job))

    async def _turn_page(self, request: Request, job: Job) -> None:
        settings = self._room.config.settings
        most = max(settings.output_max_bytes or MAX_BYTES, 2 * _FOR_A_NOTICE) - _FOR_A_NOTICE
        lines = max(settings.output_max_lines or MAX_LINES, 4) - 2
        turn = partial(self._spill.page, request.subject, request.offset, most, lines)
        try:
            page = await anyio.to_thread.run_sync(turn)
        except OSError as error:
            answer = refusals.unreadable_output(request.subject, error.strerror or str(error))
        else:
            answer = (
                refusals.unknown_output(request.subject)
                if page is None
                else texts.output_page(request.subject, page, self._hints)
            )
        job.answer(answer.as_result())

    # ---- answers -------------------------------------------------------------------------------------------------

    def reply_in_turns(self, work: Slices[Answer | None], job: Job) -> None:
        """Answer with the result of `work`: now, if it takes one slice, else in a task."""
        try:
            next(work)
        except StopIteration as end:
            self.reply(end.value, job)
        else:
            job.run(partial(self._work_on, work, job))

    async def _work_on(self, work: Slices[Answer | None], job: Job) -> None:
        await anyio.lowlevel.checkpoint()
        self.reply(await in_turns(work), job)

    def reply(self, answer: Answer | None, job: Job) -> None:
        """Answer with a text of ours, within the bounds. None: the job is answered elsewhere."""
        if answer is not None:
            self._end(Outcome.of(answer.filled(job.commands), **self._bounds), job)

    def _end(self, outcome: Outcome, job: Job) -> None:
        if outcome.is_whole:
            job.answer(outcome.answer().as_result())
        else:
            job.run(partial(self._save_and_answer, outcome, job))

    async def _save_and_answer(self, outcome: Outcome, job: Job) -> None:
        answer = await anyio.to_thread.run_sync(outcome.saved, self._kept, self._hints)
        job.answer(answer.as_result())
