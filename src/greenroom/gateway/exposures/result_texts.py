"""Turns a server's answer into what the model reads.

The content is transformed (`protocol.content`), and text beyond the output guard is cut and kept in a file. The
server's `structuredContent` is added as a block, unless the text says the same. For programs,
`details.mcpResult` has `structuredContent` and the server's `_meta` unchanged. It does not have the content,
because then every answer would be sent twice. A `mcpResult` over 16 KiB is kept in a file too, and the details
say where.

Nearly every result is only text that fits. Its content passes as the JSON that came (`plain_text`).

Our own texts (a list, a description, a refusal) have the same bounds.

An `Outcome` is pure. Only an outcome of which something must be saved needs a thread. Every other is answered
in the step that read it.
"""

from __future__ import annotations

import base64
import importlib
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
from msgspec.structs import replace

from ...actors.workers import LONG_WORK, aside
from ...catalogue.namespace import Target
from ...config.model import Scrub
from ...protocol.bounds import DECODED_ESCAPES, DECODED_VALUES, LARGE_MESSAGE
from ...protocol.content import MAX_BYTES, MAX_LINES, Block, BoundedBlocks, Stats, guard, shown
from ...protocol.errors import ProtocolFault, Reach
from ...protocol.jsonrpc.encoding import UNWRITABLE, decode, decode_parts, encode
from ...protocol.jsonrpc.incoming import NO_MESSAGE, nbytes, read_parts, read_value
from ...protocol.jsonrpc.incoming import decode_result as decoded
from ...protocol.jsonrpc.outgoing import large_array
from ...protocol.jsonrpc.terms import RpcFault, WireFault
from ...protocol.long_text import unquoted
from ...protocol.value_count import takes_long_to_decode
from ..jobs import Job
from ..result_meta import DETAILS
from . import tool_texts as texts
from .output_files import Spill, decoded_base64, id_of
from .tool_definition import FOR_MODELS, Hints, McpToolAnswer, McpToolRequest, size_of
from .tool_texts import subject_of

if TYPE_CHECKING:
    from ...config.scrubbing import Secrets
    from ...supervisor.port import RoomPort

# ---- Ends jobs: turns results and answers of ours into what the model gets, within the bounds -----------------------
#
# A result is scrubbed first, as the configuration says, so what is cut, kept in a file or shown has no credentials in
# it. The output guard applies to every answer. Text that it cuts is kept in a file, and so are binary content and what
# does not fit the details; `output` gives the text page by page. Most answers need no file and are given in the step
# that made them. A long one is made in a thread, where files are written and read, too. One that takes too long to be
# decoded is not decoded at all: what it says is kept, and shown page by page, as the JSON that came.

_MCP: Final = Scrub.MCP  # naming an enum member costs ten times as much as a constant on 3.11
_FOR_A_NOTICE: Final = 300  # bytes that the notice below a page takes at most


class McpToolResponder:
    """Answers the jobs of one `mcp` tool."""

    def __init__(self, room: RoomPort, spill: Spill, hints: Hints) -> None:
        self._room = room
        self._spill = spill
        self._hints = hints

    # ---- results ---------------------------------------------------------------------------------------------------

    def conclude(self, target: Target, raw: bytes, job: Job) -> None:
        """End `job` with the bytes of a result."""
        if len(raw) >= LONG_WORK:
            self.conclude_long(target.server, target, raw, job)
            return
        scrubber = self._room.scrubber(target.server, _MCP)
        if scrubber is not None:
            raw = scrubber.scrub(raw)
        settings = self._room.catalogue.config.settings
        said = plain_text(target, raw, settings.output_max_bytes, settings.output_max_lines)
        if said is not None:
            if job.plain is None:
                job.answer(plain_answer(target, said))
            else:  # its client is given the same whatever it speaks: nothing is added
                job.is_for_all = True
                job.answer_raw(plain_result(target, said))
            return
        result = decode_result(raw)
        if result is None:
            self._no_result(target.server, target, job)
        elif may_have_binaries(raw) and has_binaries(result, settings.output_max_image):
            filing = partial(outcome_with_files, target.server, target, result, self._keeping)
            job.run(partial(self._answer_aside, filing, target.server, target, job))
        else:
            for_people = self._hints.for_people
            self._end(outcome_of(target.server, target, result, for_people=for_people, **self._bounds), job)

    def conclude_long(self, server: str, target: Target | None, raw: bytes, job: Job) -> None:
        """End `job` with the bytes of a result of any size, in a thread. `target`: the tool that was called, if
        known."""
        scrubber = self._room.scrubber(server, _MCP)
        reading = partial(outcome_of_bytes, server, target, raw, scrubber, self._keeping)
        job.run(partial(self._answer_aside, reading, server, target, job))

    async def _answer_aside(
        self, make: Callable[[], Outcome | None], server: str, target: Target | None, job: Job
    ) -> None:
        """End `job` with an outcome that takes long to make, or that needs files."""
        result = await aside(partial(_finished, make, self._keeping))
        if result is None:
            self._no_result(server, target, job)
        elif isinstance(content := result["content"], msgspec.Raw) and nbytes(content) >= LARGE_MESSAGE:
            await job.answer_large_own(result)
        else:
            job.answer(result)

    async def telling(self, result: Mapping[str, Any], details: Mapping[str, Any], job: Job) -> None:
        """End `job` with a result of our own that has these details."""
        make = partial(outcome_of, "", None, result, for_people=self._hints.for_people, **self._bounds)
        await self._answer_aside(lambda: replace(make(), details=details), "", None, job)

    @property
    def _bounds(self) -> Mapping[str, int]:
        settings = self._room.catalogue.config.settings
        return {"max_bytes": settings.output_max_bytes, "max_lines": settings.output_max_lines}

    def _no_result(self, server: str, target: Target | None, job: Job) -> None:
        error = ProtocolFault("the answer is not a result object", server=server, reach=Reach.ANSWERED)
        self.reply(texts.failed_call(error, target, self._hints), job)

    # ---- kept output -----------------------------------------------------------------------------------------------

    @property
    def _keeping(self) -> OutputRules:
        settings = self._room.catalogue.config.settings
        spill = replace(self._spill, max_age=settings.output_keep, max_total=settings.output_keep_bytes)
        return OutputRules(spill, self._hints, self._bounds, settings.output_max_image)

    def turn_page(self, request: McpToolRequest, job: Job) -> None:
        """Answer with a part of a text that was too long for an answer."""
        job.run(partial(self._turn_page, request, job))

    async def _turn_page(self, request: McpToolRequest, job: Job) -> None:
        settings = self._room.catalogue.config.settings
        most = max(settings.output_max_bytes or MAX_BYTES, 2 * _FOR_A_NOTICE) - _FOR_A_NOTICE
        lines = max(settings.output_max_lines or MAX_LINES, 4) - 2
        turn = partial(self._spill.page, request.subject, request.offset, most, lines)
        try:
            page = await aside(turn)
        except OSError as error:
            answer = texts.unreadable_output(request.subject, error.strerror or str(error))
        else:
            answer = (
                texts.unknown_output(request.subject)
                if page is None
                else texts.output_page(request.subject, page, self._hints)
            )
        job.answer(answer.as_result())

    # ---- answers -------------------------------------------------------------------------------------------------

    def reply(self, answer: McpToolAnswer | None, job: Job) -> None:
        """Answer with a text of our own, within the bounds. None: the job is answered elsewhere."""
        if answer is not None:
            self._end(Outcome.of(answer.filled(job.commands), **self._bounds), job)

    def _end(self, outcome: Outcome, job: Job) -> None:
        if outcome.is_whole:
            job.answer(outcome.answer().as_result())
        else:
            job.run(partial(self._answer_aside, lambda: outcome, "", None, job))


class OutputRules(msgspec.Struct, frozen=True, eq=False):
    """Where long answers are kept, and the bounds beyond which they are, as configured when one is made: a thread reads
    nothing else of the room."""

    spill: Spill
    hints: Hints
    bounds: Mapping[str, int]
    max_image: int


def outcome_of_bytes(
    server: str, target: Target | None, raw: bytes, scrubber: Secrets | None, keeping: OutputRules
) -> Outcome | None:
    """The outcome for a result of any size; None: it is no result object. Work for a thread."""
    if scrubber is not None:
        raw = scrubber.scrub(raw)
    if takes_long_to_decode(raw):
        return filed(server, target, raw, **keeping.bounds)
    result = decode_result(raw) if len(raw) < LARGE_MESSAGE else _decode_large(raw)
    return None if result is None else outcome_with_files(server, target, result, keeping)


def outcome_with_files(
    server: str, target: Target | None, result: Mapping[str, Any], keeping: OutputRules
) -> Outcome:
    """The outcome for a result whose binary content is put into files. Blocks; call it in a thread."""
    if has_binaries(result, keeping.max_image):
        result = without_binaries(result, keeping.spill, keeping.max_image)
    return outcome_of(server, target, result, **keeping.bounds, for_people=keeping.hints.for_people)


def _finished(make: Callable[[], Outcome | None], keeping: OutputRules) -> dict[str, Any] | None:
    """The result for a client, with what is long in files. Its content is JSON already, so the loop does not have to
    encode it. Blocks; call it in a thread."""
    outcome = make()
    if outcome is None:
        return None
    result = outcome.saved(keeping.spill, keeping.hints).as_result()
    with suppress(*UNWRITABLE):  # whoever answers says why
        result["content"] = large_array(result["content"])
    return result


REST_LIMIT: Final = 16_384
KEPT_LIMIT: Final = 8 * 1024 * 1024  # bytes of JSON; more takes too long to write in one piece
_ELSEWHERE: Final = frozenset({"content", "contents", "resultType", "ttlMs", "cacheScope"})


class Outcome(msgspec.Struct, frozen=True, eq=False):
    """The answer to a call, before something of it is saved in files. `rest`: the part that does not fit the
    details."""

    guarded: BoundedBlocks
    details: Mapping[str, Any]
    rest: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, answer: McpToolAnswer, *, max_bytes: int, max_lines: int) -> Outcome:
        """The outcome for an answer of our own."""
        slim = answer.slim()
        return cls(
            guard([dict(block) for block in slim.content], max_bytes=max_bytes, max_lines=max_lines),
            slim.details,
        )

    @property
    def is_whole(self) -> bool:
        """Whether nothing of it must be saved in a file."""
        return self.guarded.spill is None and self.rest is None

    def saved(self, spill: Spill, hints: Hints = FOR_MODELS) -> McpToolAnswer:
        """The finished answer. Saves its long text and its rest in files; `hints` say how to read on. Blocks."""
        details = self.details
        if self.rest is not None:
            data = msgspec.json.encode(self.rest).decode()
            path, error = _try_to_write(spill, data, ".json")
            where = {"writeError": error} if path is None else {"savedTo": str(path)}
            details = {**details, "mcpResult": {**details["mcpResult"], **where}}
        outcome = replace(self, details=details)
        if self.guarded.spill is None:
            return outcome.answer()
        return outcome.answer(*_try_to_write(spill, self.guarded.spill), hints)

    def answer(
        self, path: Path | None = None, error: str | None = None, hints: Hints = FOR_MODELS
    ) -> McpToolAnswer:
        """The finished answer. `path`: where the long text was saved, or `error`: why it was not."""
        if self.guarded.spill is None:
            return McpToolAnswer(self.guarded.blocks, self.details)
        if path is None:
            cut, where = self.guarded.cut(error=error or ""), {"writeError": error}
        else:
            cut = self.guarded.cut(path=str(path), more=partial(hints.next_page, id_of(path)))
            where = {"fullOutputPath": str(path), "output": id_of(path)}
        return McpToolAnswer(cut.blocks, {**self.details, "outputGuard": _report(cut.stats) | where})


def _try_to_write(spill: Spill, text: str, suffix: str = ".txt") -> tuple[Path | None, str | None]:
    try:
        return spill.write(text, suffix), None
    except OSError as error:
        return None, error.strerror or str(error)


def outcome_of(
    server: str,
    target: Target | None,
    result: Mapping[str, Any],
    *,
    max_bytes: int,
    max_lines: int,
    for_people: bool = False,
) -> Outcome:
    """The outcome for a result. `max_bytes`, `max_lines`: the bounds of the output guard; 0: no bound."""
    details, rest = _details_of(server, target, result)
    blocks = shown(result, target, max_bytes=max_bytes, max_lines=max_lines, for_people=for_people)
    return Outcome(blocks, details, rest)


class _TextBlock(msgspec.Struct, forbid_unknown_fields=True, gc=False, tag_field="type", tag="text"):
    text: str


class PlainText(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A result that is only text. Its content stays the JSON that came."""

    content: msgspec.Raw
    is_error: bool | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="isError")


_only_text = msgspec.json.Decoder(PlainText)
_text_blocks = msgspec.json.Decoder(list[_TextBlock])


def plain_text(target: Target, raw: bytes, max_bytes: int, max_lines: int) -> PlainText | None:
    """The result of a server, when it is only text within the bounds: then use `plain_result` or `plain_answer`. None
    for any other: then use `outcome_of`. The bounds are kept with some room: as JSON a text is never shorter than it
    is, and each of its newlines has a backslash."""
    if 0 < max_bytes < len(raw) or target.kind == "resource":
        return None
    try:
        result = _only_text.decode(raw)
        blocks = _text_blocks.decode(result.content)
    except NO_MESSAGE:
        return None
    if not blocks or result.is_error is True:
        return None
    # Counting lines takes long, and a text has at most as many lines as bytes.
    if 0 < max_lines < len(raw) and max_lines < len(blocks) + raw.count(b"\\"):
        return None
    if raw.find(b"\n") >= 0:  # laid out on several lines, and an answer of ours is one line
        return None
    return result


def plain_answer(target: Target, said: PlainText) -> dict[str, Any]:
    """The answer to a client whose server has given it only text."""
    return {
        "content": said.content,
        "_meta": _meta_of_text(target.server, target.name, said.is_error is False),
    }


def plain_result(target: Target, said: PlainText) -> bytes:
    """`plain_answer` as JSON."""
    meta = _json_of_meta(target.server, target.name, said.is_error is False)
    return b"".join((b'{"content":', said.content, b',"_meta":', meta, b"}"))


def _meta_of_text(server: str, tool: str, says_no_error: bool) -> dict[str, Any]:
    details: dict[str, Any] = {"mode": "call", "server": server, "tool": tool}
    if says_no_error:
        details["mcpResult"] = {"isError": False}
    return {DETAILS: details}


@lru_cache(1024)  # few tools are called over and over
def _json_of_meta(server: str, tool: str, says_no_error: bool) -> bytes:
    return encode(_meta_of_text(server, tool, says_no_error))


def filed(server: str, target: Target | None, raw: bytes, *, max_bytes: int, max_lines: int) -> Outcome:
    """The outcome for a result that takes too long to be decoded: it is shown as the JSON that it is."""
    details: dict[str, Any] = {"mode": "call", "server": server, **subject_of(target)}
    details["mcpResult"] = {
        "omitted": True,
        "reason": f"more than {DECODED_VALUES:,} values and keys, or {DECODED_ESCAPES:,} escaped characters",
        "rawResultBytes": len(raw),
    }
    block = {"type": "text", "text": raw.decode(errors="replace")}
    return Outcome(guard([block], max_bytes=max_bytes, max_lines=max_lines), details)


def _details_of(
    server: str, target: Target | None, result: Mapping[str, Any]
) -> tuple[dict[str, Any], Mapping[str, Any] | None]:
    """The details of a result, and the part of it that goes to a file because it does not fit there."""
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


def _decode_large(raw: bytes) -> Mapping[str, Any] | None:
    """The object of a large result, or None when it is none. A large `structuredContent` stays the JSON that it is
    shown as. Each block of a large content is decoded by itself, so that other threads can run in between."""
    try:
        return {name: _decode_part(name, part) for name, part in decode_parts(raw).items()}
    except (RpcFault, *NO_MESSAGE):
        return None


_blocks_of_json = msgspec.json.Decoder(list[msgspec.Raw])


def _decode_part(name: str, part: msgspec.Raw) -> Any:
    if nbytes(part) >= LARGE_MESSAGE:
        if name == "structuredContent":
            return part
        if name in _KEYS:
            with suppress(msgspec.ValidationError):  # it is no array
                return [_decode_block(block) for block in decode(_blocks_of_json, part)]
    return read_value(part)


def _decode_block(block: msgspec.Raw) -> Any:
    """A block of content. The text or data of a large one is read in pieces, for the same reason."""
    if nbytes(block) < LARGE_MESSAGE or bytes(memoryview(block)[:1]) != b"{":
        return read_value(block)
    return {
        name: unquoted(bytes(part)).decode()
        if nbytes(part) >= LARGE_MESSAGE and bytes(memoryview(part)[:1]) == b'"'
        else read_value(part)
        for name, part in read_parts(block).items()
    }


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
    """The parts of a result beside its content: those for the details, and, if they do not fit there, those for a
    file."""
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


# ---- Binary content of a result goes to files, and a line of text takes its place -----------------------------------
#
# No model can read audio or an embedded blob, and a client that gets them as base64 shows megabytes of letters. An
# image passes as it is up to a bound, which most clients have too. One over it is scaled down where Pillow is installed
# (the extra `images`), and is kept as a file where not, or where that is not enough.
#
# All of it is work for a thread. A result without such content is told apart first, by its types alone.

_KEYS: Final = "content", "contents"
_ESCAPE: Final = rb"\u"  # a name may be spelled with these
_SIDES: Final = (
    1568,
    1024,
    512,
)  # pixels of the longer side; more than the first is scaled by models themselves
_MOST_PIXELS: Final = 50_000_000  # a larger image is not decoded


def may_have_binaries(raw: bytes) -> bool:
    """Whether `has_binaries` may find something. Nearly always the bytes show that it cannot. (`find` costs less than
    `in`, which raises and catches an error first.)"""
    return raw.find(b'"data"') >= 0 or raw.find(b'"blob"') >= 0 or raw.find(_ESCAPE) >= 0


def has_binaries(result: Mapping[str, Any], max_image: int) -> bool:
    """Whether content of the result is to be kept in a file. `max_image`: characters of base64; 0 = no bound."""
    for key in _KEYS:
        for block in _blocks(result.get(key)):
            if _is_binary(block, max_image):
                return True
    return False


def without_binaries(result: Mapping[str, Any], spill: Spill, max_image: int) -> dict[str, Any]:
    """The result with its binary content moved into files. Blocks; call it in a thread."""
    changed = dict(result)
    for key in _KEYS:
        if isinstance(result.get(key), list):
            changed[key] = [
                _replaced(block, spill, max_image) if _is_binary(block, max_image) else block
                for block in cast("list[Any]", result[key])
            ]
    return changed


def _blocks(value: object) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _is_binary(block: Any, max_image: int) -> bool:
    match block:
        case {"type": "text"}:  # as nearly all are
            return False
        case {"type": "image", "data": str(data)}:
            return 0 < max_image < len(data)
        case {"type": "audio", "data": str()} | {"type": "resource", "resource": {"blob": str()}}:
            return True
        case {"blob": str(), "uri": _}:  # of a resource that was read
            return "type" not in block
        case _:
            return False


def _replaced(block: Block, spill: Spill, max_image: int) -> Block:
    match block:
        case {"type": "image", "data": str(data)}:
            mime = _mime(block, "image/png")
            scaled = _scaled(data, max_image)
            if scaled is not None:
                return {**block, "data": scaled[0], "mimeType": scaled[1]}
            text = f"[Image of {len(data):,} characters of base64, too large to show: {mime}]"
            return _text(f"{text}\n{_saved(spill, data, mime)}")
        case {"type": "audio", "data": str(data)}:
            mime = _mime(block, "audio/wav")
            return _text(f"[Audio content: {mime}]\n{_saved(spill, data, mime)}")
        case {"type": "resource", "resource": resource}:
            head = f"[Resource: {resource.get('uri', '')}]\n"
            return _text(head + _of_resource(resource, spill))
        case _:
            return {"uri": block["uri"], "text": _of_resource(block, spill)}


def _of_resource(resource: Mapping[str, Any], spill: Spill) -> str:
    mime = _mime(resource, "application/octet-stream")
    return f"{_saved(spill, resource['blob'], mime)}\nMIME type: {mime}"


def _saved(spill: Spill, data: str, mime: str) -> str:
    try:
        return f"Binary content saved to {spill.write_base64(data, mime)}"
    except OSError as error:
        return f"Binary content could not be saved: {error.strerror or error}"
    except ValueError:
        return "Binary content could not be saved: the server's data is not base64"


def _scaled(data: str, most: int) -> tuple[str, str] | None:
    """The image with at most `most` characters of base64, and its MIME type; None when that cannot be."""
    try:
        pillow: Any = importlib.import_module("PIL.Image")
    except ImportError:
        return None
    try:
        with pillow.open(BytesIO(b"".join(decoded_base64(data)))) as image:
            if image.width * image.height > _MOST_PIXELS:
                return None
            kind = "PNG" if image.mode in ("P", "RGBA", "LA", "1") else "JPEG"
            for side in _SIDES:
                image.thumbnail((side, side))
                into = BytesIO()
                (image if kind == "PNG" else image.convert("RGB")).save(into, kind, optimize=True)
                text = base64.b64encode(into.getvalue()).decode()
                if len(text) <= most:
                    return text, f"image/{kind.lower()}"
    except Exception:  # each decoder has its own errors for a broken image
        return None
    return None


def _mime(block: Mapping[str, Any], usual: str) -> str:
    mime = block.get("mimeType")
    return mime if isinstance(mime, str) and mime else usual


def _text(text: str) -> Block:
    return {"type": "text", "text": text}
