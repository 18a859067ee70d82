"""Files of JSON as people write it, and of YAML."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from ..protocol.bounds import DEPTH, is_too_deep
from ..protocol.errors import ConfigError, Problem
from ..protocol.lazy_patterns import lazy_pattern
from ..protocol.value_count import has_more_values
from .private_files import read_regular, why_not_read

# ---- files -----------------------------------------------------------------------------------------------------------

LARGEST_FILE: Final = 64 * 1024 * 1024  # bytes; a larger file is not a configuration
_NAMED: Final = 5  # repeated keys that a message names
_Note = Callable[[Problem], object]


def read_file(path: Path, label: str, note: _Note) -> Any:
    """The value of one file: YAML if its name says so, and else JSON(C). Raises a `ConfigError` that names `label`, the
    line and the column. `note` is told of keys that an object has more than once."""
    load = load_yaml if path.suffix.lower() in (".yaml", ".yml") else load_jsonc
    return _parsed(load, read_text(path, label), label, note)


def parse_json(text: str, label: str) -> Any:
    """The value of a JSON(C) text. Raises as `read_file` does."""
    return _parsed(load_jsonc, text, label)


def _parsed(
    load: Callable[[str, dict[str, None] | None], Any], text: str, label: str, note: _Note | None = None
) -> Any:
    repeated: dict[str, None] | None = None if note is None else {}
    try:
        value = load(text, repeated)
    except NotJsonError as error:
        raise ConfigError([Problem(label, str(error))]) from None
    if note is not None and repeated:
        names = ", ".join(f'"{key}"' for key in [*repeated][:_NAMED]) + (
            ", …" if len(repeated) > _NAMED else ""
        )
        what = (
            f"has {names} more than once in one object, and the last one counts: remove or rename the others"
        )
        note(Problem(label, what, fatal=False))
    return value


def read_text(path: Path, label: str) -> str:
    """The text of one UTF-8 file, with or without a byte order mark. Raises a `ConfigError` that names `label` and the
    next step."""
    try:
        text = read_regular(path, LARGEST_FILE).decode("utf-8-sig")
        return text.replace("\r\n", "\n").replace("\r", "\n")
    except OverflowError:
        what = f"has more than {LARGEST_FILE:,} bytes, too many for a configuration: name another file"
    except (OSError, ValueError) as error:
        what = why_not_read(error)
    raise ConfigError([Problem(label, what)])


# ---- JSON as people write it -----------------------------------------------------------------------------------------
#
# With comments, trailing commas, a byte order mark. Mistakes have line and column.
#
# Most files are plain JSON, so the standard library is tried first: it costs no import and quickly reads megabytes of a
# client's state. Only text that it refuses goes to pyjson5, whose JSON5 includes all of JSONC. (Rejected: json5, which
# at 40 KB/s needs a second for a larger file; json-with-comments, which counts lines without the comments.)
#
# A key that an object has twice is no mistake in JSON, and the last one counts. The standard library tells us of it, so
# we can tell the owner; pyjson5 does not.
#
# A mistake is reported by the parser that got further, for the other one may have stopped at the first comment.

_VALUES: Final = 500_000  # and keys: reading them holds everybody up for a twentieth of a second
_EMPTY: Final = "is empty: write {} for no servers"
_TOO_DEEP: Final = "is nested too deeply"
_NEAR: Final = lazy_pattern(r"near (\d+)")
_BYTES: Final = lazy_pattern(r"b'([^']+)'")
_CODE_POINT: Final = lazy_pattern(r"U\+([0-9a-fA-F]{4,6})")


class NotJsonError(ValueError):
    """The text is no JSON, JSONC or JSON5. The message ends with line and column."""


def load_jsonc(text: str, repeated: dict[str, None] | None = None) -> Any:
    """The value of `text`. Keys that one object of a plain JSON text has more than once go to `repeated`. Raises
    `NotJsonError`, whose message quotes at most one character."""
    text = text.removeprefix("\ufeff")
    if not text.strip():
        raise NotJsonError(_EMPTY)
    if len(text) > _VALUES and has_more_values(text.encode(errors="replace"), _VALUES):
        raise NotJsonError(f"has more than {_VALUES:,} values and keys, too many for a configuration")
    try:
        found = json.loads(text, object_pairs_hook=None if repeated is None else partial(_object, repeated))
    except RecursionError:
        raise NotJsonError(_TOO_DEEP) from None
    except json.JSONDecodeError as error:
        found = _loads_relaxed(text, error)
    except ValueError:  # an integer longer than Python will read
        raise NotJsonError("holds a number that is too long") from None
    # How deep the parser goes depends on the version of Python: what it has read may be too deep for whoever walks it.
    if is_too_deep(text.encode(errors="replace"), found):
        raise NotJsonError(_TOO_DEEP)
    return found


def _object(repeated: dict[str, None], pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        repeated |= dict.fromkeys(key for key, count in counts.items() if count > 1)
    return found


def _loads_relaxed(text: str, strict: json.JSONDecodeError) -> Any:
    import pyjson5

    try:
        return pyjson5.decode(text)
    except pyjson5.Json5DecoderException as error:
        if str(error.args[:1]).startswith("('No JSON data"):
            raise NotJsonError(_EMPTY) from None
        what, offset = _what_and_where(error, text)
    if strict.pos >= offset:
        what, offset = strict.msg, strict.pos
    line = text.count("\n", 0, offset) + 1
    column = offset - (text.rfind("\n", 0, offset) + 1) + 1
    raise NotJsonError(
        f"is not valid JSON: {what[:1].lower()}{what[1:].removesuffix(' at')} (line {line}, column {column})"
    )


def _what_and_where(error: Exception, text: str) -> tuple[str, int]:
    """pyjson5 says `Expected b'colon' near 15`, counting characters from 1."""
    said = str(error.args[0]) if error.args else "cannot be read"
    found = _NEAR.search(said)
    offset = min(max(int(found[1]) - 1, 0), len(text)) if found else 0
    what = _BYTES.sub(r"\1", said.split(" near ")[0].split(" starting")[0]).replace("JSON5Value", "a value")
    return _CODE_POINT.sub(lambda code: repr(chr(int(code[1], 16))), what), offset


# ---- YAML ------------------------------------------------------------------------------------------------------------
#
# mcp-gateway's adapter keeps its configuration in it, skills begin with it, and many documents of APIs are written in
# it. PyYAML parses it, but what a plain word means is YAML 1.2, as in the adapter: only `true` and `false` are
# booleans, and `no`, `0777`, `12:30` and a date are texts. Every key is a text, as in JSON. A tag such as `!vault`
# would stand for something that is not in the file, so it is a mistake. Large texts are parsed by the C parser where
# there is one. Small ones are not, because it refuses the escapes that JSON writes for an emoji.
#
# A short text can say billions of values by aliases, or by merging one mapping into others, and both parsers take time
# that grows with the square of the nesting. So a text is read event by event, and the values are made here: their
# number, with each alias written out, and their nesting are bounded while they come, before the parser has looked
# further. An alias is the same object each time.

# Characters of a small text; the worst of them take a second to read.
LARGEST: Final = 1 << 16
MOST: Final = 100_000  # values of it, with each alias written out
MOST_LARGE: Final = 4_000_000  # values of a large text
_LONG: Final = 64  # characters of a text that count as one value more
_EVENTS: Final = 1_000  # of the parser, between two checkpoints
_QUOTED: Final = lazy_pattern(r"'([^']*)'")
_TAG: Final = lazy_pattern(r"[\w!:.,/-]{1,60}", re.ASCII)
_MEANINGS: Final = (  # YAML 1.2's words
    ("null", lazy_pattern(r"~|null|Null|NULL|")),
    ("bool", lazy_pattern(r"true|True|TRUE|false|False|FALSE")),
    ("int", lazy_pattern(r"[-+]?(?:0|[1-9][0-9]*)")),
    ("float", lazy_pattern(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")),
)
_OF_YAML: Final = lazy_pattern(r"!|tag:yaml\.org,2002:\w+")  # tags of the standard, which need not be obeyed
_OF_WORDS: Final = frozenset(f"tag:yaml.org,2002:{kind}" for kind, _ in _MEANINGS)  # as `!!int`
_MERGE: Final = "<<"
_NONE: Final = object()


class NotYamlError(NotJsonError):
    """The text is no YAML that we read. The message ends with line and column, if they are known."""


def load_yaml(text: str, repeated: dict[str, None] | None = None) -> Any:
    """The value of `text`. Keys that one mapping has more than once go to `repeated`; the last one counts. Raises
    `NotYamlError`, whose message shows nothing of a value."""
    if len(text) > LARGEST:
        raise NotYamlError(f"has more than {LARGEST:,} characters, too many for YAML: write it as JSON")
    found = _read_yaml(text, _ValueBuilder(MOST, {} if repeated is None else repeated), "SafeLoader")
    if found is _NONE:
        raise NotYamlError(_EMPTY)
    return found


def load_large_yaml(text: str, checkpoint: Callable[[], object] = lambda: None) -> Any:
    """The value of a text of megabytes. Of a key that a mapping has twice the last value counts. `checkpoint` is called
    every few milliseconds; what it raises ends the reading. Raises `NotYamlError`."""
    found = _read_yaml(text, _ValueBuilder(MOST_LARGE, {}), "CSafeLoader", checkpoint)
    if found is _NONE:
        raise NotYamlError("is empty")
    return found


def _read_yaml(
    text: str, values: _ValueBuilder, parser: str, checkpoint: Callable[[], object] = lambda: None
) -> Any:
    import yaml

    library: Any = yaml
    loader: Any = getattr(yaml, parser, yaml.SafeLoader)
    try:
        for number, event in enumerate(library.parse(text, Loader=loader)):
            if not number % _EVENTS:
                checkpoint()
            values.take(event)
    except yaml.YAMLError as error:
        raise NotYamlError(_in_words(error)) from None
    except NotYamlError:
        raise
    except ValueError:  # an integer longer than Python will read
        raise NotYamlError("holds a number that is too long") from None
    return values.root


class _OpenNode:
    """A sequence or a mapping of which the end has not come."""

    def __init__(self, value: list[Any] | dict[str, Any], event: Any, begin: int) -> None:
        self.value = value
        self.anchor: str | None = event.anchor
        self.mark = event.start_mark
        self.begin = begin  # values read before it
        self.key: Any = _NONE
        self.merged = list[dict[str, Any]]()


class _ValueBuilder:
    """Makes values of a parser's events: at most `most`, with each alias written out. Keys that one mapping has more
    than once go to `repeated`."""

    def __init__(self, most: int, repeated: dict[str, None]) -> None:
        self.root: Any = _NONE
        self._most = most
        self._repeated = repeated
        self._open = list[_OpenNode]()
        self._anchors = dict[str, tuple[Any, int]]()  # the value, and how many it is when it is written out
        self._count = 0

    def take(self, event: Any) -> None:
        """The next event of the parser. Raises `NotYamlError`."""
        match type(event).__name__:
            case "ScalarEvent":
                _check_tag(event)
                is_plain = event.implicit[0] and not event.style
                is_word = (is_plain or event.tag in _OF_WORDS) and not self._is_key_next()
                value = _plain(event.value) if is_word else event.value
                self._add(value, event.anchor, _size_of(event.value), event)
            case "SequenceStartEvent" | "MappingStartEvent":
                _check_tag(event)
                if len(self._open) >= DEPTH:
                    raise NotYamlError(f"is nested too deeply{_at(event.start_mark)}")
                made = list[Any]() if type(event).__name__ == "SequenceStartEvent" else dict[str, Any]()
                self._open.append(_OpenNode(made, event, self._count))
            case "SequenceEndEvent" | "MappingEndEvent":
                ended = self._open.pop()
                if isinstance(ended.value, dict):
                    for each in ended.merged:
                        for key, value in each.items():
                            ended.value.setdefault(key, value)
                size = 1 + self._count - ended.begin
                self._count = ended.begin
                self._add(ended.value, ended.anchor, size, event)
            case "AliasEvent":
                for around in self._open:
                    if around.anchor == event.anchor:
                        raise NotYamlError(f"holds an alias of what it is in{_at(around.mark)}")
                if event.anchor not in self._anchors:
                    raise NotYamlError(f"holds an alias of nothing that came before{_at(event.start_mark)}")
                value, size = self._anchors[event.anchor]
                self._add(value, None, size, event)
            case "DocumentStartEvent" if self.root is not _NONE:
                raise NotYamlError(f"holds more than one document{_at(event.start_mark)}")
            case _:
                pass

    def _is_key_next(self) -> bool:
        return bool(self._open) and isinstance(self._open[-1].value, dict) and self._open[-1].key is _NONE

    def _add(self, value: Any, anchor: str | None, size: int, event: Any) -> None:
        self._count += size
        if self._count > self._most:
            raise NotYamlError(f"holds more than {self._most:,} values when its aliases are written out")
        if anchor is not None:
            self._anchors[anchor] = (value, size)
        if not self._open:
            self.root = value
            return
        parent = self._open[-1]
        if isinstance(parent.value, list):
            parent.value.append(value)
        elif parent.key is _NONE:
            if not isinstance(value, str):
                raise NotYamlError(f"holds a key that is not text{_at(event.start_mark)}")
            parent.key = value
        elif parent.key == _MERGE and isinstance(value, dict | list):
            merged = cast("list[Any]", [value] if isinstance(value, dict) else value)
            parent.merged += [each for each in merged if isinstance(each, dict)]
            parent.key = _NONE
        else:
            if parent.key in parent.value:
                self._repeated[parent.key] = None
            parent.value[parent.key], parent.key = value, _NONE


def _size_of(text: str) -> int:
    """How many values a text counts as: an alias repeats all of it."""
    return 1 + len(text) // _LONG


def _plain(text: str) -> Any:
    """What a plain word means."""
    for kind, words in _MEANINGS:
        if words.fullmatch(text):
            match kind:
                case "null":
                    return None
                case "bool":
                    return text.lower() == "true"
                case "int":
                    return int(text)
                case _:
                    return float(text)
    return text


def _check_tag(event: Any) -> None:
    if event.tag and not _OF_YAML.fullmatch(event.tag):
        shown = event.tag if _TAG.fullmatch(event.tag) else "of its own"
        where = _at(event.start_mark)
        raise NotYamlError(f"has a tag {shown}, which is not read here: write the value itself{where}")


def _in_words(error: Any) -> str:
    """What the library says, without the parts of the text that it quotes: they may hold a secret."""
    said = _QUOTED.sub(_shown, getattr(error, "problem", None) or "cannot be read").removeprefix("but ")
    return f"is not valid YAML: {said}{_at(getattr(error, 'problem_mark', None))}"


def _shown(quoted: re.Match[str]) -> str:
    return quoted[0] if len(quoted[1].removeprefix("\\")) == 1 or quoted[1].startswith("<") else "…"


def _at(mark: Any) -> str:
    return "" if mark is None else f" (line {mark.line + 1}, column {mark.column + 1})"
