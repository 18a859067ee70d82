"""Turns a server's answer into what the model reads.

The content is transformed (`protocol/shown`), and text beyond the output guard is cut and kept in a file. The
server's `structuredContent` is added as a block, unless the text says the same. For programs,
`details.mcpResult` has `structuredContent` and the server's `_meta` unchanged. It does not have the content,
because then every answer would be sent twice. A `mcpResult` over 16 KiB is kept in a file too, and the details
say where.

Nearly every result is only text that fits. Its content passes as the JSON that came (`plain_answer`).

Our own texts (a list, a description, a refusal) have the same bounds.

An `Outcome` is pure. Only an outcome of which something must be saved needs a thread. Every other is answered
in the step that read it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import msgspec

from ...protocol.content import Guarded, Stats, guard
from ...protocol.jsonrpc import NO_MESSAGE, WireFault
from ...protocol.jsonrpc import decode_result as decoded
from ...protocol.large_json import decoding_result
from ...protocol.shown import showing, shown
from ...protocol.slices import Slices, letting_go
from .._marks import DETAILS
from ._answer import Answer, size_of
from ._hints import FOR_MODELS, Hints
from ._refusals import subject_of
from ._spill import Spill, id_of

if TYPE_CHECKING:
    from ...protocol.index import Target

REST_LIMIT: Final = 16_384
KEPT_LIMIT: Final = 8 * 1024 * 1024  # bytes of JSON; more takes too long to write in one piece
_ELSEWHERE: Final = frozenset({"content", "contents", "resultType", "ttlMs", "cacheScope"})


@attrs.frozen(eq=False)
class Outcome:
    """The answer to a call, without the paths of its files. `rest`: what does not fit the details."""

    guarded: Guarded
    details: Mapping[str, Any]
    rest: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, answer: Answer, *, max_bytes: int, max_lines: int) -> Outcome:
        """The outcome for an answer of our own."""
        slim = answer.slim()
        return cls(
            guard([dict(block) for block in slim.content], max_bytes=max_bytes, max_lines=max_lines),
            slim.details,
        )

    @property
    def spill_text(self) -> str | None:
        return self.guarded.spill

    @property
    def is_whole(self) -> bool:
        """Nothing must be saved."""
        return self.guarded.spill is None and self.rest is None

    def saved(self, spill: Spill, hints: Hints = FOR_MODELS) -> Answer:
        """The finished answer, with its long text and its rest in files. `hints` say how to read on. Blocks."""
        details = self.details
        if self.rest is not None:
            data = msgspec.json.encode(self.rest).decode()
            path, error = _try_to_write(spill, data, ".json")
            where = {"writeError": error} if path is None else {"savedTo": str(path)}
            details = {**details, "mcpResult": {**details["mcpResult"], **where}}
        outcome = attrs.evolve(self, details=details)
        if self.guarded.spill is None:
            return outcome.answer()
        return outcome.answer(*_try_to_write(spill, self.guarded.spill), hints)

    def answer(self, path: Path | None = None, error: str | None = None, hints: Hints = FOR_MODELS) -> Answer:
        """The finished answer. `path`: where the long text was saved, or `error`: why it was not."""
        if self.guarded.spill is None:
            return Answer(self.guarded.blocks, self.details)
        if path is None:
            cut, where = self.guarded.cut(error=error or ""), {"writeError": error}
        else:
            cut = self.guarded.cut(path=str(path), more=partial(hints.next_page, id_of(path)))
            where = {"fullOutputPath": str(path), "output": id_of(path)}
        return Answer(cut.blocks, {**self.details, "outputGuard": _report(cut.stats) | where})


def _try_to_write(spill: Spill, text: str, suffix: str = ".txt") -> tuple[Path | None, str | None]:
    try:
        return spill.write(text, suffix), None
    except OSError as error:
        return None, error.strerror or str(error)


def outcome_of(
    server: str, target: Target | None, result: Mapping[str, Any], *, max_bytes: int, max_lines: int
) -> Outcome:
    """The outcome for a result. `max_bytes`, `max_lines`: the bounds of the output guard; 0: no bound."""
    details, rest = _details_of(server, target, result)
    return Outcome(shown(result, target, max_bytes=max_bytes, max_lines=max_lines), details, rest)


class _OnlyText(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    content: msgspec.Raw
    is_error: bool | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="isError")


class _TextBlock(msgspec.Struct, forbid_unknown_fields=True, gc=False, tag_field="type", tag="text"):
    text: str


_only_text = msgspec.json.Decoder(_OnlyText)
_text_blocks = msgspec.json.Decoder(list[_TextBlock])


def plain_answer(target: Target, raw: bytes, max_bytes: int, max_lines: int) -> dict[str, Any] | None:
    """The result for a client, when that of the server is only text within the bounds: the content stays the JSON that
    came. None for any other: then use `outcome_of`. The bounds are kept with some room: as JSON a text is never shorter
    than it is, and each of its newlines has a backslash."""
    if 0 < max_bytes < len(raw) or target.kind == "resource":
        return None
    try:
        result = _only_text.decode(raw)
        blocks = _text_blocks.decode(result.content)
    except NO_MESSAGE:
        return None
    if not blocks or result.is_error is True or 0 < max_lines < len(blocks) + raw.count(b"\\"):
        return None
    if raw.find(b"\n") >= 0:  # laid out on several lines, and an answer of ours is one line
        return None
    details: dict[str, Any] = {"mode": "call", "server": target.server, "tool": target.name}
    if result.is_error is False:
        details["mcpResult"] = {"isError": False}
    return {"content": result.content, "_meta": {DETAILS: details}}


def decoding_large(raw: bytes) -> Slices[dict[str, Any] | None]:
    """The result in the bytes of a large one, in slices. None: the server's answer is no result object."""
    try:
        return (yield from decoding_result(raw))
    except WireFault:
        return None


def outcome_of_large(
    server: str, target: Target | None, result: dict[str, Any], *, max_bytes: int, max_lines: int
) -> Slices[Outcome]:
    """The outcome for a large result, in slices. `result` is used up."""
    yield
    outcome = yield from making_outcome(server, target, result, max_bytes=max_bytes, max_lines=max_lines)
    if outcome.spill_text is not None:
        for key in ("content", "contents"):  # freed in slices: the outcome has its own text and images
            blocks = result.pop(key, None)
            while isinstance(blocks, list) and blocks:
                del blocks[-1_000:]
                yield
        if outcome.rest is None and "omitted" in outcome.details.get("mcpResult", ()):
            yield from letting_go(result)
    return outcome


def making_outcome(
    server: str, target: Target | None, result: Mapping[str, Any], *, max_bytes: int, max_lines: int
) -> Slices[Outcome]:
    """`outcome_of` in slices."""
    details, rest = _details_of(server, target, result)
    yield
    guarded = yield from showing(result, target, max_bytes=max_bytes, max_lines=max_lines)
    return Outcome(guarded, details, rest)


def _details_of(
    server: str, target: Target | None, result: Mapping[str, Any]
) -> tuple[dict[str, Any], Mapping[str, Any] | None]:
    """The details, and what of the result goes to a file in place of them."""
    details: dict[str, Any] = {"mode": "call", "server": server, **subject_of(target)}
    rest, kept = _rest_of(result)
    if rest:
        details["mcpResult"] = rest
    if result.get("isError") is True:
        details["error"] = "tool_error"
    return details, kept


def decode_result(raw: bytes) -> Mapping[str, Any] | None:
    """The result object, or None when the server's answer is not one."""
    try:
        return decoded(raw)
    except WireFault:
        return None


def _report(stats: Stats) -> dict[str, Any]:
    report: dict[str, Any] = {
        "truncated": stats.truncated,
        "originalBytes": stats.original_bytes,
        "originalLines": stats.original_lines,
        "returnedBytes": stats.returned_bytes,
        "returnedLines": stats.returned_lines,
    }
    return report | ({"imageBlocksPassedThrough": stats.images} if stats.images else {})


def _rest_of(result: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    """What a result says beside its content, for the details; and the same for a file when it does not fit them."""
    if result.keys() <= _ELSEWHERE:
        return {}, None
    rest = {key: value for key, value in result.items() if key not in _ELSEWHERE}
    size = size_of(rest)
    if size <= REST_LIMIT:
        return rest, None
    about = {
        "omitted": True,
        "reason": f"larger than {REST_LIMIT} bytes",
        "rawResultBytes": size if size < sys.maxsize else None,
    }
    return about, rest if size <= KEPT_LIMIT else None
