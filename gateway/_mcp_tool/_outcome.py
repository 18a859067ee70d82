"""Turns a server's answer into what the model reads.

The content is transformed (`protocol/shown`), images pass unchanged, and text beyond the output guard is cut
and kept in a file. The server's `structuredContent` is added as a block, unless the text says the same. For
programs, `details.mcpResult` has `structuredContent` and the server's `_meta` unchanged. It does not have the
content, because then every answer would be sent twice. A `mcpResult` over 16 KiB is left out, and the details
say so.

Our own texts (a list, a description, a refusal) have the same bounds.

An `Outcome` is pure. Only an outcome whose text must be saved needs a thread. Every other is answered in the
step that read it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from ...protocol.content import Guarded, Stats, guard
from ...protocol.jsonrpc import WireFault
from ...protocol.jsonrpc import decode_result as decoded
from ...protocol.large_json import decoding_result
from ...protocol.shown import showing, shown
from ...protocol.slices import Slices, letting_go
from ._answer import Answer, size_of
from ._refusals import subject_of

if TYPE_CHECKING:
    from ...protocol.index import Target

REST_LIMIT: Final = 16_384
_ELSEWHERE: Final = frozenset({"content", "contents", "resultType", "ttlMs", "cacheScope"})


@attrs.frozen(eq=False)
class Outcome:
    """The answer to a call, without the path of the file with its long text."""

    guarded: Guarded
    details: Mapping[str, Any]

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

    def answer(self, path: Path | None = None, error: str | None = None) -> Answer:
        """The finished answer. `path`: where the long text was saved, or `error`: why it was not."""
        if self.guarded.spill is None:
            return Answer(self.guarded.blocks, self.details)
        cut = self.guarded.cut(path=None if path is None else str(path), error=error or "")
        where = {"writeError": error} if path is None else {"fullOutputPath": str(path)}
        return Answer(cut.blocks, {**self.details, "outputGuard": _report(cut.stats) | where})


def outcome_of(
    server: str, target: Target | None, result: Mapping[str, Any], *, max_bytes: int, max_lines: int
) -> Outcome:
    """The outcome for a result. `max_bytes`, `max_lines`: the bounds of the output guard; 0: no bound."""
    details = _details_of(server, target, result)
    return Outcome(shown(result, target, max_bytes=max_bytes, max_lines=max_lines), details)


def outcome_of_large(
    server: str, target: Target | None, raw: bytes, *, max_bytes: int, max_lines: int
) -> Slices[Outcome | None]:
    """The same for the bytes of a large result, in slices. None: the server's answer is no result object."""
    try:
        result = yield from decoding_result(raw)
    except WireFault:
        return None
    yield
    outcome = yield from making_outcome(server, target, result, max_bytes=max_bytes, max_lines=max_lines)
    if outcome.spill_text is not None:
        for key in ("content", "contents"):  # freed in slices: the outcome has its own text and images
            blocks = result.pop(key, None)
            while isinstance(blocks, list) and blocks:
                del blocks[-1_000:]
                yield
        if "omitted" in outcome.details.get("mcpResult", ()):
            yield from letting_go(result)
    return outcome


def making_outcome(
    server: str, target: Target | None, result: Mapping[str, Any], *, max_bytes: int, max_lines: int
) -> Slices[Outcome]:
    """`outcome_of` in slices."""
    details = _details_of(server, target, result)
    yield
    guarded = yield from showing(result, target, max_bytes=max_bytes, max_lines=max_lines)
    return Outcome(guarded, details)


def _details_of(server: str, target: Target | None, result: Mapping[str, Any]) -> dict[str, Any]:
    details: dict[str, Any] = {"mode": "call", "server": server, **subject_of(target)}
    rest = _rest_of(result)
    if rest:
        details["mcpResult"] = rest
    if result.get("isError") is True:
        details["error"] = "tool_error"
    return details


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


def _rest_of(result: Mapping[str, Any]) -> Mapping[str, Any]:
    if result.keys() <= _ELSEWHERE:
        return {}
    rest = {key: value for key, value in result.items() if key not in _ELSEWHERE}
    size = size_of(rest)
    if size <= REST_LIMIT:
        return rest
    return {
        "omitted": True,
        "reason": f"larger than {REST_LIMIT} bytes",
        "rawResultBytes": size if size < sys.maxsize else None,
    }
