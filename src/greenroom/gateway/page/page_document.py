"""The document that a browser is given: one file, whose script and style are known to the browser by their hashes.

It loads nothing, from here or elsewhere, and holds no data, so everybody may have it. What it shows it asks for, with
a token in a header. There are no cookies: a browser would send them for any page that names this address.

Rejected: files of their own for script and style. Each would need its path, its type and its caching, and one that is
older than the others breaks the page.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

import attrs

_HERE: Final = Path(__file__).parent
_STYLE: Final = "<!-- style -->"
_SCRIPT: Final = "<!-- script -->"
_MAY: Final = (
    "default-src 'none'; script-src '{script}'; style-src '{style}'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)


@attrs.frozen
class Document:
    body: bytes
    headers: Mapping[str, str]


@cache
def document() -> Document:
    """The document, made of the files beside this one. Scripts follow one another by their names, `page.js` last."""
    style = _read("page.css")
    scripts = sorted(_HERE.glob("*.js"), key=lambda file: (file.name == "page.js", file.name))
    script = "\n".join(file.read_text("utf-8") for file in scripts)
    frame = _read("page.html")
    for place in (_STYLE, _SCRIPT):
        assert frame.count(place) == 1, place
    body = frame.replace(_STYLE, f"<style>{style}</style>")
    body = body.replace(_SCRIPT, f'<script type="module">{script}</script>')
    headers = {
        "content-type": "text/html; charset=utf-8",
        "content-security-policy": _MAY.format(script=_hash(script), style=_hash(style)),
        "x-content-type-options": "nosniff",
        "x-frame-options": "DENY",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "cache-control": "no-store",
    }
    return Document(body.encode(), headers)


def _read(name: str) -> str:
    return (_HERE / name).read_text("utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
