"""Definitions without hidden characters, and the way back to what the server calls things.

What a person cannot see, a model reads all the same: characters without width, tags, commands for terminals, characters
that turn the text round. So a definition loses them before anything of it is shown, at every door. The names of
parameters lose them too, and the values that a schema allows. A caller uses what it was shown, so `OriginalSpelling`
turns arguments back into what the server expects. The name of a tool needs no such thing: the index knows whose it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Final

import msgspec

from ..protocol.json_values import array_or_empty, is_array, is_object
from ..protocol.jsonrpc.encoding import UNWRITABLE, encode
from ..protocol.lazy_patterns import lazy_pattern
from ..protocol.safe_text import hidden_characters, unhidden
from .entries import Raw

# In JSON in ASCII, how a character begins that is not plain text. A backslash in the text may look so, too.
_SUSPECT: Final = lazy_pattern(rb"\\[ubfr]|\x7f")
_TOLD: Final = 4  # different characters that are named
_FIXED: Final = frozenset({"enum", "const", "default", "examples"})  # of a schema: values, not words


class OriginalSpelling(msgspec.Struct, frozen=True, eq=False):
    """The server's own spelling of names and values that are shown without hidden characters."""

    names: Mapping[str, str]
    values: Mapping[str, str]

    def own(self, said: Any) -> Any:
        """What a caller gave, in the server's own spelling."""
        if isinstance(said, str):
            return self.values.get(said, said)
        if is_object(said):
            return {self.names.get(name, name): self.own(value) for name, value in said.items()}
        if is_array(said):
            return [self.own(each) for each in said]
        return said


def is_suspect(value: Any) -> bool:
    """Whether the value may have hidden characters. False is certain, and is found quickly."""
    try:
        said = encode(value)
    except (*UNWRITABLE, TypeError):
        return True
    return not said.isascii() or _SUSPECT.search(said) is not None


def unhidden_value(value: Any) -> Any:
    """The value with all its texts and names `unhidden`; the same object if that changes nothing."""
    shown = _shown(value, {}) if is_suspect(value) else value
    return value if shown == value else shown


def unhidden_record(record: Raw) -> tuple[Raw, OriginalSpelling | None]:
    """The record as it is shown, and the `OriginalSpelling` that a caller needs, if any."""
    if not is_suspect(record):
        return record, None
    names, values = set(_names(record)), set(_values(record.get("inputSchema"), fixed=False))
    known = _unique(chain(_names(record), _values(record.get("inputSchema"), fixed=False)))
    shown = _shown(record, known)
    if shown == record:
        return record, None
    back = OriginalSpelling(
        {one: own for own, one in known.items() if own in names},
        {one: own for own, one in known.items() if own in values},
    )
    return shown, back if known else None


def hidden_in(record: Raw) -> str:
    """The hidden characters of a record in words, by the member that has them; empty if it has none."""
    found = {name: Counter(_hidden(value)) for name, value in record.items()} if is_suspect(record) else {}
    words = (f"{_many(count)} in its {unhidden(name)}" for name, count in found.items() if count)
    return ", ".join(words)


def hidden_instructions(said: str | None) -> str:
    """The hidden characters, in words, in what a server says about itself."""
    return hidden_in({"text": said}) if said else ""


def _many(count: Counter[str]) -> str:
    said = [
        f"U+{ord(each):04X}{f' ({number} times)' if number > 1 else ''}"
        for each, number in count.most_common(_TOLD)
    ]
    more = len(count) - len(said)
    return ", ".join(said) + (f" and {more} more" if more else "")


def _hidden(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from hidden_characters(value)
    elif is_object(value):
        for name, each in value.items():
            yield from hidden_characters(name)
            yield from _hidden(each)
    elif is_array(value):
        for each in value:
            yield from _hidden(each)


def _shown(value: Any, known: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return known.get(value) or unhidden(value)
    if is_object(value):
        return {_shown(name, known): _shown(each, known) for name, each in value.items()}
    if is_array(value):
        return [_shown(each, known) for each in value]
    return value


def _unique(texts: Iterable[str]) -> dict[str, str]:
    """How these texts are shown that have hidden characters. No two are shown alike."""
    all_texts = dict.fromkeys(texts)
    shown: dict[str, str] = {}
    taken = {text for text in all_texts if unhidden(text) == text}
    for text in all_texts:
        if text not in taken:
            plain = one = unhidden(text) or "_"
            number = 2
            while one in taken:
                one, number = f"{plain}_{number}", number + 1
            shown[text] = one
            taken.add(one)
    return shown


def _names(value: Any) -> Iterator[str]:
    """Every name in a record: the members of its objects, and the arguments of a prompt."""
    if is_object(value):
        for name, each in value.items():
            yield name
            yield from _names(each)
        for each in array_or_empty(value.get("arguments")):
            name = each.get("name") if is_object(each) else None
            if isinstance(name, str):
                yield name
    elif is_array(value):
        for each in value:
            yield from _names(each)


def _values(schema: Any, *, fixed: bool) -> Iterator[str]:
    """The texts in a schema that a caller repeats exactly."""
    if is_object(schema):
        for name, each in schema.items():
            yield from _values(each, fixed=fixed or name in _FIXED)
    elif is_array(schema):
        for each in schema:
            yield from _values(each, fixed=fixed)
    elif isinstance(schema, str) and fixed:
        yield schema
