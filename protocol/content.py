"""Content: a server's result as blocks that a model can take, and no more of it than fits.

These are two pure steps for the `mcp` tool; the other doors pass results on unchanged. `to_blocks` turns every kind of
block into text or an image. Images and text stay the same objects that the server sent. Other known kinds are described
in words, and unknown ones are shown as JSON, not dropped. `structuredContent` is shown as JSON too, unless the text
already has the same content. The protocol asks servers to send both, but some leave one of the two half empty, and a
client shows only one.

`guard` then plans what to keep of a text that is too long. Neither step writes a file. The caller gets the full text
(`Guarded.spill`), writes it, and reports the outcome, because the shown text must name the file and still fit.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, cast

import attrs

from .json_text import SaidLater, writing
from .plain_text import counted
from .slices import Pace, Slices

Block = dict[str, Any]

MAX_BYTES: Final = 51_200
MAX_LINES: Final = 2_000
_NO_BOUND: Final = sys.maxsize
_COMPARED: Final = (
    1 << 19
)  # characters of text that are compared with `structuredContent`: a few milliseconds
_DECODER: Final = json.JSONDecoder()
_TOO_DEEP: Final = "(content nested too deeply to show)"
_BLOCKS: Final = 500  # blocks that are made at once: a millisecond
_PIECE: Final = 1 << 18  # characters that are measured at once


# ---- the content of a result -----------------------------------------------------------------------------


def to_blocks(result: Mapping[str, Any]) -> list[Block]:
    """The blocks of a tools/call result, and its `structuredContent` unless their text has the same content. A line
    names the type of binary data."""
    content = _list(result.get("content"))
    structured = result.get("structuredContent")
    blocks = [_block(block) for block in content]
    if structured is None or (blocks and structured in ({}, [])):
        return blocks or [_text("(empty result)")]
    texts = [block["text"] for block in blocks if _is_text(block)]
    return blocks if _is_said(structured, texts) else [*blocks, _text(_laid_out(structured))]


def making_blocks(result: Mapping[str, Any], *, is_read: bool = False) -> Slices[list[Block]]:
    """`to_blocks`, or `to_resource_blocks`, of a large result, in slices."""
    pace, blocks = Pace(_BLOCKS), list[Block]()
    for each in _list(result.get("contents" if is_read else "content")):
        block = _text(_contents(each, SaidLater)) if is_read else _block(each, SaidLater)
        said = block.get("text")
        if isinstance(said, SaidLater):
            block = _text((yield from _writing(said.value)))
        blocks.append(block)
        if pace.due():
            yield
    structured = None if is_read else result.get("structuredContent")
    if structured is None or (blocks and structured in ({}, [])):
        return blocks or [_text("(empty resource)" if is_read else "(empty result)")]
    yield
    texts = yield from _texts(blocks)
    if not _is_said(structured, texts):
        text = yield from _writing(structured)
        blocks.append(_text(text if len(text) > MAX_BYTES else _laid_out(structured)))
    return blocks


def _writing(value: object) -> Slices[str]:
    try:
        return (yield from writing(value))
    except RecursionError:
        return _TOO_DEEP


def to_resource_blocks(result: Mapping[str, Any]) -> list[Block]:
    """The blocks of a resources/read result: text unchanged, binary data as a line about it."""
    contents = _list(result.get("contents"))
    return [_text(_contents(one)) for one in contents] or [_text("(empty resource)")]


def text_of(blocks: Iterable[Mapping[str, Any]]) -> str:
    """All the text of `blocks`, joined by newlines."""
    return "\n".join(block["text"] for block in blocks if _is_text(block))


def _block(block: object, say: Callable[[object], Any] | None = None) -> Block:
    say = say or _json
    if not isinstance(block, dict):
        return _text(say(block))
    said = cast("Block", block)
    match said:
        case {"type": "text", "text": str()}:
            return said
        case {"type": "image", "data": str()}:
            return said if isinstance(said.get("mimeType"), str) else {**said, "mimeType": "image/png"}
        case {"type": "audio"}:
            return _text(f"[Audio content: {_string(said, 'mimeType') or 'audio/*'}]")
        case {"type": "resource", "resource": dict()}:
            return _text(_resource(said["resource"], say))
        case {"type": "resource_link"}:
            uri = _string(said, "uri")
            return _text(f"[Resource Link: {_string(said, 'name') or uri}]\nURI: {uri}")
        case _:
            return _text(say(said))


def _resource(resource: Block, say: Callable[[object], Any]) -> str:
    uri = _string(resource, "uri")
    match resource:
        case {"text": str(text)}:
            return f"[Resource: {uri}]\n{text}"
        case {"blob": str()}:
            return f"[Resource: {uri}]\n{_binary(resource)}"
        case _:
            return say(resource)


def _contents(contents: object, say: Callable[[object], Any] | None = None) -> str:
    """One of a read resource's contents. The caller knows its URI."""
    match contents:
        case {"text": str(text)}:
            return text
        case {"blob": str()}:
            return _binary(cast("Block", contents))
        case _:
            return (say or _json)(contents)


def _binary(resource: Block) -> str:
    return f"[Binary data: {_string(resource, 'mimeType') or 'application/octet-stream'}]"


def _text(text: str) -> Block:
    return {"type": "text", "text": text}


def _is_text(block: Mapping[str, Any]) -> bool:
    return block.get("type") == "text" and isinstance(block.get("text"), str)


def _string(block: Mapping[str, Any], key: str) -> str:
    value = block.get(key)
    return value if isinstance(value, str) else ""


def _list(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def _is_said(value: object, texts: Sequence[str]) -> bool:
    """Whether `texts` have the content of `value` in one of these forms: as JSON, with other text around it or not; as
    the plain value, if an object with one key wraps it; or as a list with one text for each item."""
    if not texts or sum(map(len, texts)) > _COMPARED:
        return False
    values = [value]
    if isinstance(value, dict) and len(cast("Block", value)) == 1:
        values += cast("Block", value).values()
    try:
        read = [_read(text) for text in texts]
        return any(one in (read, list(texts)) or one in read or one in texts for one in values)
    except RecursionError:
        return False


def _read(text: str) -> object:
    """The JSON that `text` is, or the first object in it, or the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    at = text.find("{")
    try:
        return _DECODER.raw_decode(text, at)[0] if at >= 0 else text
    except ValueError:
        return text


def _laid_out(value: object) -> str:
    """`value` as indented JSON; on one line when it is long, because indenting a megabyte takes a fifth of a second."""
    text = _json(value)
    return text if len(text) > MAX_BYTES else _json(value, indent=2)


def _json(value: object, indent: int | None = None) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, indent=indent, default=str)
    except RecursionError:
        return _TOO_DEEP


# ---- how much of it fits ---------------------------------------------------------------------------------


@attrs.frozen
class Stats:
    """What the guard did, in bytes of UTF-8 and lines."""

    truncated: bool
    original_bytes: int
    original_lines: int
    returned_bytes: int
    returned_lines: int
    images: int  # passed through untouched


@attrs.frozen(eq=False)
class Guarded:
    """Blocks within bounds, or the plan for those that are not.

    When `spill` is None, `blocks` are the answer. Otherwise write `spill` to a file and take `cut` instead.
    """

    blocks: list[Block]
    stats: Stats
    spill: str | None = None
    _max_bytes: int = 0
    _max_lines: int = 0

    def cut(
        self, *, path: str | None = None, error: str = "", more: Callable[[int], str] | None = None
    ) -> Guarded:
        """The answer. `path`: where the full text was saved, and `more`: what to call for the part that begins at a
        byte. `error`: why it could not be saved. None of them: it should not be saved.

        It is one text block, with the head that fits and the notice, and then the images. UTF-8 is never split. The
        notice is always complete, even if it alone is over the bounds.
        """
        assert self.spill is not None, "nothing was cut"
        most = self.stats.original_bytes  # has as many digits as the place where the rest begins, or more
        tail = _notice(self.stats, path, error, _next_page(more, most))
        head = _head(self.spill, self._max_bytes, self._max_lines, f"\n\n{tail}")
        notice = _notice(self.stats, path, error, _next_page(more, len(_encode(head))))
        text = f"{head}\n\n{notice}" if head else notice
        images = [block for block in self.blocks if not _is_text(block)]
        size, lines = _measure(text)
        stats = attrs.evolve(self.stats, returned_bytes=size, returned_lines=lines)
        return Guarded([_text(text), *images], stats)


def guard(blocks: Sequence[Block], *, max_bytes: int = MAX_BYTES, max_lines: int = MAX_LINES) -> Guarded:
    """Keep all text of `blocks` together within `max_bytes` of UTF-8 and `max_lines`; 0 turns a bound off."""
    joined = text_of(blocks)
    size, lines = _measure(joined)
    images = sum(not _is_text(block) for block in blocks)
    over = (0 < max_bytes < size) or (0 < max_lines < lines)
    stats = Stats(over, size, lines, size, lines, images)
    if not over:
        return Guarded(list(blocks), stats)
    return Guarded(
        list(blocks), stats, _encode(joined).decode(), max_bytes or _NO_BOUND, max_lines or _NO_BOUND
    )


def guarding(
    blocks: Sequence[Block], *, max_bytes: int = MAX_BYTES, max_lines: int = MAX_LINES
) -> Slices[Guarded]:
    """`guard` of much text, in slices."""
    texts = yield from _texts(blocks)
    images: list[Block] = []
    for start in range(0, len(blocks) if len(blocks) > len(texts) else 0, 4 * _BLOCKS):
        images += [block for block in blocks[start : start + 4 * _BLOCKS] if not _is_text(block)]
        yield
    joined = "\n".join(texts)
    yield
    size, pieces, is_mended = 0, list[str](), False
    for start in range(0, len(joined), _PIECE):
        piece = joined[start : start + _PIECE]
        data = _encode(piece)
        if not (piece.isascii() or _is_whole(piece)):
            piece, is_mended = data.decode(), True
        size += len(data)
        pieces.append(piece)
        yield
    lines = joined.count("\n") + 1 if joined else 0
    over = (0 < max_bytes < size) or (0 < max_lines < lines)
    stats = Stats(over, size, lines, size, lines, len(images))
    yield
    if not over:
        return Guarded(list(blocks), stats)
    spill = "".join(pieces) if is_mended else joined
    return Guarded(images, stats, spill, max_bytes or _NO_BOUND, max_lines or _NO_BOUND)


def _texts(blocks: Sequence[Block]) -> Slices[list[str]]:
    texts: list[str] = []
    for start in range(0, len(blocks), 4 * _BLOCKS):
        texts += [block["text"] for block in blocks[start : start + 4 * _BLOCKS] if _is_text(block)]
        yield
    return texts


def _is_whole(text: str) -> bool:
    """Whether the text contains no half character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _next_page(more: Callable[[int], str] | None, offset: int) -> str:
    return f" Next part: {more(offset)}." if more else ""


def _notice(stats: Stats, path: str | None, error: str, more: str) -> str:
    what = f"original {counted(stats.original_lines, 'line')} / {stats.original_bytes / 1024:.1f} KiB"
    if path is None and not error:
        return f"[MCP text output truncated: {what}.]"
    if path is None:
        return f"[MCP text output truncated: {what}. Full output could not be saved: {error}]"
    hint = "use read with offset/limit or grep to inspect."
    return f"[MCP text output truncated: {what}. Full text saved to: {path} — {hint}{more}]"


def _head(text: str, max_bytes: int, max_lines: int, tail: str) -> str:
    """As much of `text` as leaves room for `tail`."""
    size, breaks = len(_encode(tail)), tail.count("\n")
    room = max(0, max_bytes - size)
    text = text[:room]  # each character has a byte at least
    lines = text.split("\n", max(0, max_lines - breaks))[: max(0, max_lines - breaks)]
    return _encode("\n".join(lines))[:room].decode(errors="ignore")


def _measure(text: str) -> tuple[int, int]:
    return len(_encode(text)), text.count("\n") + 1 if text else 0


def _encode(text: str) -> bytes:
    """The text as UTF-8; half a surrogate pair, which no encoder accepts, becomes `?`."""
    return text.encode(errors="replace")
