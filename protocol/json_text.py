"""A large value as JSON text, in slices: the library's encoder does not pause, and takes half a second for a million.

The text is what `json.dumps(value, ensure_ascii=False, default=str)` makes of what was decoded from JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final, cast

import attrs

from .cooperative import Pace, Slices

_VALUES: Final = 500  # values that are written at once: a millisecond
_PIECE: Final = 1 << 16  # characters of a long string that are written at once
_encode: Final = json.JSONEncoder(ensure_ascii=False, default=str).encode


@attrs.frozen(eq=False)
class SaidLater:
    """A placeholder for the text of `value` until it is written."""

    value: object


def writing(value: object) -> Slices[str]:
    """`value` as JSON text."""
    texts: list[str] = []
    parts: list[str] = []  # not in `texts` yet: joining half a million at once takes long
    pace = Pace(_VALUES)
    rest: list[tuple[Iterator[Any], str]] = [
        (iter([value]), "")
    ]  # for each array or object that is entered: its remaining members, and its closing bracket
    between = ""
    while rest:
        left, end = rest[-1]
        for each in left:
            parts.append(between)
            if end == "}":
                key, each = each
                parts.append(f"{_encode(key)}: ")
            between = ", "
            if isinstance(each, dict) and each:
                rest.append((iter(cast("dict[str, Any]", each).items()), "}"))
                parts.append("{")
            elif isinstance(each, list) and each:
                rest.append((iter(cast("list[Any]", each)), "]"))
                parts.append("[")
            elif isinstance(each, str) and len(each) > _PIECE:
                parts.append('"')
                for start in range(0, len(each), _PIECE):
                    parts.append(_encode(each[start : start + _PIECE])[1:-1])
                    yield
                parts.append('"')
                continue
            else:
                parts.append(_encode(each))
                if pace.due():
                    texts.append("".join(parts))
                    parts.clear()
                    yield
                continue
            between = ""
            break
        else:
            rest.pop()
            parts.append(end)
            between = ", "
    yield
    return "".join((*texts, *parts))
