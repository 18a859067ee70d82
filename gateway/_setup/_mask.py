"""The difference of two texts of a file, in which only our own entry can be read.

A client's file holds other people's keys to other people's servers. Keys, marks and the form stay; every value and
every comment is shown as `…`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from . import _json_edit
from ._json_edit import Token

_HIDDEN = "…"


def diff(before: str, after: str, name: str, *, is_toml: bool, ours: str = "") -> str:
    """A unified diff of the masked texts. `ours`: the name of the entry whose values are shown in `after`."""
    old = _masked(before, is_toml, "").splitlines()
    new = _masked(after, is_toml, ours).splitlines()
    return "\n".join(difflib.unified_diff(old, new, name, name, lineterm="", n=2))


def _masked(text: str, is_toml: bool, ours: str) -> str:
    text = text.removeprefix("\ufeff")
    if is_toml:
        from . import _toml_edit

        return _toml_edit.masked(text, ours, _like)
    return "".join(_json(text, ours))


def _json(text: str, ours: str) -> Iterator[str]:
    tokens = _json_edit.tokens_of(text)
    depth, shown = 0, 0  # `shown`: the depth outside of which our entry ends; 0 when we are not in it
    last_key = ""
    for place, token in enumerate(tokens):
        raw = text[token.start : token.end]
        if token.kind == "mark":
            if raw in "{[":
                depth += 1
                if not shown and ours and raw == "{" and last_key == ours:
                    shown = depth
            elif raw in "]}":
                shown = 0 if shown == depth else shown
                depth -= 1
            yield raw
        elif token.kind in ("string", "word"):
            is_key = _next_mark(text, tokens, place) == ":"
            last_key = raw.strip("\"'") if is_key else last_key
            yield raw if is_key or shown or raw in ("true", "false", "null") else _like(raw)
        else:
            yield _comment(raw) if token.kind == "comment" else raw


def _next_mark(text: str, tokens: list[Token], place: int) -> str:
    following = (each for each in tokens[place + 1 :] if each.kind not in ("space", "comment"))
    token = next(following, None)
    return text[token.start : token.end] if token is not None else ""


def _like(raw: str) -> str:
    quote = raw[0] if raw[:1] in "\"'" else ""
    return quote + _HIDDEN + "\n" * raw.count("\n") + quote


def _comment(raw: str) -> str:
    return f"{raw[:2]} {_HIDDEN}" + "\n" * raw.count("\n")
