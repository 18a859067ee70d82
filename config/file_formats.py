"""YAML, in which mcp-gateway's adapter keeps its configuration (the extra `yaml`).

PyYAML reads it, but what a plain word means is YAML 1.2, as in the adapter: only `true` and `false` are booleans, and
`no`, `0777`, `12:30` and a date are texts. A tag such as `!vault` would stand for something that is not in the file, so
it is a mistake.

A short YAML text can say billions of values by aliases, or by merging one mapping into others. So it is read into nodes
first, where an alias costs nothing. Their number is counted as if all were written out, and too many are refused before
any value is made. The library's own C parser is not used, because it has no bound on nesting.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import cache, partial
from typing import Any, Final

# --------------------------------------------------------------------------------------------------------------
#
#
# JSON as people write it: with comments, trailing commas, a byte order mark. Mistakes have line and column.
#
# Most files are plain JSON, so the standard library is tried first: it costs no import and quickly reads megabytes of a
# client's state. Only text that it refuses goes to pyjson5, whose JSON5 includes all of JSONC. (Rejected: json5, which
# at 40 KB/s needs a second for a larger file; json-with-comments, which counts lines without the comments.)
#
# A key that an object has twice is no mistake in JSON, and the last one counts. The standard library tells us of it, so
# we can tell the owner; pyjson5 does not.
#
# A mistake is reported by the parser that got further, for the other one may have stopped at the first comment.

_EMPTY: Final = "is empty: write {} for no servers"
_NEAR: Final = re.compile(r"near (\d+)")
_BYTES: Final = re.compile(r"b'([^']+)'")
_CODE_POINT: Final = re.compile(r"U\+([0-9a-fA-F]{4,6})")


class NotJsonError(ValueError):
    """The text is no JSON, JSONC or JSON5. The message ends with line and column."""


def load_jsonc(text: str, repeated: dict[str, None] | None = None) -> Any:
    """The value of `text`. Keys that one object of a plain JSON text has more than once go to `repeated`. Raises
    `NotJsonError`, whose message quotes at most one character."""
    text = text.removeprefix("\ufeff")
    if not text.strip():
        raise NotJsonError(_EMPTY)
    try:
        return json.loads(text, object_pairs_hook=None if repeated is None else partial(_object, repeated))
    except RecursionError:
        raise NotJsonError("is nested too deeply") from None
    except json.JSONDecodeError as error:
        return _loads_relaxed(text, error)
    except ValueError:  # an integer longer than Python will read
        raise NotJsonError("holds a number that is too long") from None


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
    raise NotJsonError(f"is no valid JSON: {_lower(what).removesuffix(' at')} (line {line}, column {column})")


def _what_and_where(error: Exception, text: str) -> tuple[str, int]:
    """pyjson5 says `Expected b'colon' near 15`, counting characters from 1."""
    said = str(error.args[0]) if error.args else "cannot be read"
    found = _NEAR.search(said)
    offset = min(max(int(found[1]) - 1, 0), len(text)) if found else 0
    what = _BYTES.sub(r"\1", said.split(" near ")[0].split(" starting")[0])
    return _CODE_POINT.sub(lambda code: repr(chr(int(code[1], 16))), what), offset


def _lower(what: str) -> str:
    return what[:1].lower() + what[1:]


LARGEST: Final = 1 << 16  # characters; the worst of them take a second or two to read
MOST: Final = 100_000  # values, with each alias written out
_QUOTED: Final = re.compile(r"'([^']*)'")
_TAG: Final = re.compile(r"[\w!:.,/-]{1,60}", re.ASCII)
_PLAIN: Final = (  # YAML 1.2's words
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?",
        list("-+.0123456789"),
    ),
    ("merge", r"<<", ["<"]),
)


class NotYamlError(NotJsonError):
    """The text is no YAML that we read. The message ends with line and column, if they are known."""


def load_yaml(text: str, repeated: dict[str, None]) -> Any:
    """The value of `text`. Keys that one mapping has more than once go to `repeated`. Raises `NotYamlError`, whose
    message shows nothing of a value."""
    if len(text) > LARGEST:
        raise NotYamlError(f"has more than {LARGEST:,} characters, too many for YAML: write it as JSON")
    try:
        import yaml
    except ImportError:
        raise NotYamlError('is YAML: run pip install "greenroom[yaml]", or write it as JSON') from None
    loader: Any = None
    try:
        loader = _loader()(text)
        node = loader.get_single_node()
        if node is None:
            raise NotYamlError("is empty: write {} for no servers")
        _check(node, repeated)
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        raise NotYamlError(_in_words(error)) from None
    except RecursionError:
        raise NotYamlError("is nested too deeply") from None
    except ValueError as error:
        raise (
            error if isinstance(error, NotYamlError) else NotYamlError("holds a number that is too long")
        ) from None
    finally:
        if loader is not None:
            loader.dispose()


@cache
def _loader() -> Any:
    import yaml

    base: Any = yaml.SafeLoader
    loader: Any = type("Loader", (base,), {"yaml_implicit_resolvers": {}})

    for kind, words, first in _PLAIN:
        loader.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", re.compile(f"(?:{words})\\Z"), first)
    return loader


def _check(node: Any, repeated: dict[str, None]) -> None:
    """Refuse what is too much when it is written out, and tags that are not YAML's own."""
    sizes: dict[int, int] = {}
    open_: set[int] = set()

    def size(node: Any) -> int:
        key = id(node)
        if key in open_:
            raise NotYamlError(f"holds an alias of what it is in{_at(node.start_mark)}")
        if key not in sizes:
            open_.add(key)
            sizes[key] = 1 + sum(map(size, _parts(node, repeated)))
            open_.discard(key)
            if sizes[key] > MOST:
                raise NotYamlError(f"holds more than {MOST:,} values when its aliases are written out")
        return sizes[key]

    size(node)


def _parts(node: Any, repeated: dict[str, None]) -> list[Any]:
    if not node.tag.startswith("tag:yaml.org,2002:"):
        tag = node.tag if _TAG.fullmatch(node.tag) else "of its own"
        raise NotYamlError(
            f"has a tag {tag}, which is not read here: write the value itself{_at(node.start_mark)}"
        )
    if node.id == "scalar":
        return []
    if node.id == "sequence":
        return node.value
    counts = Counter(key.value for key, _ in node.value if key.id == "scalar")
    repeated |= dict.fromkeys(key for key, count in counts.items() if count > 1)
    return [each for pair in node.value for each in pair]


def _in_words(error: Any) -> str:
    """What the library says, without the parts of the text that it quotes: they may hold a secret."""
    said = _QUOTED.sub(_shown, getattr(error, "problem", None) or "cannot be read").removeprefix("but ")
    return f"is no valid YAML: {said}{_at(getattr(error, 'problem_mark', None))}"


def _shown(quoted: re.Match[str]) -> str:
    return quoted[0] if len(quoted[1].removeprefix("\\")) == 1 or quoted[1].startswith("<") else "…"


def _at(mark: Any) -> str:
    return "" if mark is None else f" (line {mark.line + 1}, column {mark.column + 1})"
