"""Binary content of a result goes to files, and a line of text takes its place.

No model can read audio or an embedded blob, and a client that gets them as base64 shows megabytes of letters. An image
passes as it is up to a bound, which most clients have too. One over it is scaled down where Pillow is installed (the
extra `images`), and is kept as a file where not, or where that is not enough.

All of it is work for a thread. A result without such content is told apart first, by its types alone.
"""

from __future__ import annotations

import base64
import importlib
from collections.abc import Mapping
from io import BytesIO
from typing import Any, Final, cast

from ...protocol.content import Block
from ...protocol.slices import Slices
from ._spill import Spill

_KEYS: Final = "content", "contents"
_ESCAPE: Final = rb"\u"  # a name may be spelled with these
_SIDES: Final = (
    1568,
    1024,
    512,
)  # pixels of the longer side; more than the first is scaled by models themselves
_LOOKED_AT: Final = 1_000  # blocks at once
_MOST_PIXELS: Final = 50_000_000  # a larger image is not decoded


def may_have_binaries(raw: bytes) -> bool:
    """Whether `has_binaries` may find something: nearly always the bytes tell that it cannot. (`find` and not `in`,
    which raises and catches an error first.)"""
    return raw.find(b'"data"') >= 0 or raw.find(b'"blob"') >= 0 or raw.find(_ESCAPE) >= 0


def has_binaries(result: Mapping[str, Any], max_image: int) -> bool:
    """Whether something in the result goes to a file. `max_image`: characters of base64; 0 = no bound."""
    for key in _KEYS:
        for block in _blocks(result.get(key)):
            if _is_binary(block, max_image):
                return True
    return False


def looking_for_binaries(result: Mapping[str, Any], max_image: int) -> Slices[bool]:
    """The same of a large result, in slices."""
    for key in _KEYS:
        blocks = _blocks(result.get(key))
        for start in range(0, len(blocks), _LOOKED_AT):
            if any(_is_binary(block, max_image) for block in blocks[start : start + _LOOKED_AT]):
                return True
            if start:
                yield
    return False


def without_binaries(result: Mapping[str, Any], spill: Spill, max_image: int) -> dict[str, Any]:
    """The result with this content in files. Blocks; call it in a thread."""
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
        with pillow.open(BytesIO(base64.b64decode(data, validate=True))) as image:
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
