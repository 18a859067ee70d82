"""Items that clients would refuse in a list. They are mended if that changes nothing for a caller, else left out.

Clients check a list as a whole, so one item that breaks the protocol hides all others, of every server. The checks
here are those of the official SDKs (Python, TypeScript) and FastMCP. Unknown fields are not checked and stay. An item
without faults is passed on as the same object that the server sent.

Mending invents nothing. An optional field that no client could read is removed. A schema without a `type` gets the
type that arguments have anyway, and what else is wrong in it is mended by its meaning (`schema_keywords`). This is the
one place for all that leaves us: a list at the `direct` door, a tool of a framework, one of a model's API. An item is
left out only if nobody could call it by its description: a tool whose arguments would have to be something other than
an object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from ..protocol.json_values import is_array, is_object
from ..protocol.lazy_patterns import lazy_pattern
from .entries import Raw
from .schema_keywords import GONE, Place, mended_schema, said_of, type_meant

# ---- Check plain data against a shape --------------------------------------------------------------------------------
#
# The result is the value itself when it fits, a mended value, or `GONE`.
#
# A value that fits is returned as the same object, not as an equal one. So a check of thousands of good items makes no
# new objects, and the caller sees by identity that an item is good. Places are linked pairs; they are put into words
# only when something is wrong.


Check = Callable[[Any, Place, list[str]], Any]  # the value (the same, or mended), its place, what was wrong


def _is(*kinds: type, words: str) -> Check:
    def check(value: Any, place: Place, faults: list[str]) -> Any:
        if isinstance(value, kinds):
            return value
        faults.append(f"{said_of(place)} is not {words}")
        return GONE

    return check


def where(test: Callable[[Any], bool], words: str) -> Check:
    def check(value: Any, place: Place, faults: list[str]) -> Any:
        if test(value):
            return value
        faults.append(f"{said_of(place)} is not {words}")
        return GONE

    return check


TEXT: Final = _is(str, words="a string")
FLAG: Final = _is(bool, words="true or false")
OBJECT: Final = _is(dict, words="an object")


def one_of(*words: str) -> Check:
    return where(lambda value: isinstance(value, str) and value in words, f"one of {', '.join(words)}")


def list_of(each: Check) -> Check:
    """A list; items that cannot be kept are removed."""

    def check(value: Any, place: Place, faults: list[str]) -> Any:
        if not is_array(value):
            faults.append(f"{said_of(place)} is not an array")
            return GONE
        kept = [each(item, (place, number), faults) for number, item in enumerate(value)]
        if all(one is other for one, other in zip(kept, value, strict=True)):
            return value
        return [item for item in kept if item is not GONE]

    return check


def record_of(required: Mapping[str, Check], optional: Mapping[str, Check]) -> Check:
    """An object. Optional fields that cannot be kept are removed; if a required one cannot, the object is `GONE`."""

    def check(value: Any, place: Place, faults: list[str]) -> Any:
        if not is_object(value):
            faults.append(f"{said_of(place)} is not an object")
            return GONE
        changed: dict[str, Any] = {}
        for key, look in required.items():
            if key not in value:
                faults.append(f"{said_of((place, key))} is missing")
                return GONE
            found = look(value[key], (place, key), faults)
            if found is GONE:
                return GONE
            if found is not value[key]:
                changed[key] = found
        for key, look in optional.items():
            if key in value:
                found = look(value[key], (place, key), faults)
                if found is not value[key]:
                    changed[key] = found
        if not changed:
            return value
        return {key: each for key, each in {**value, **changed}.items() if each is not GONE}

    return check


_DATE: Final = lazy_pattern(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)")


class RepairedItem(msgspec.Struct, frozen=True):
    """An item in a form that clients can read (None: it is left out), and what was wrong with it, in words."""

    record: Raw | None
    faults: tuple[str, ...]


def fit(kind: str, record: Raw) -> RepairedItem | None:
    """The item mended or left out; None if it has no faults. `kind`: `tool`, `prompt`, `resource` or `template`."""
    faults: list[str] = []
    found = _CHECKS[kind](record, (), faults)
    if found is record:
        return None
    return RepairedItem(None if found is GONE else found, tuple(faults))


# ---- schemas -------------------------------------------------------------------------------------------------------
def _input_schema(value: Any, place: Place, faults: list[str]) -> Any:
    """Check the schema of a tool's arguments, which are always an object."""
    if value is None or value is True:
        faults.append(f"{said_of(place)} is {'missing' if value is None else 'not an object'}")
        return {"type": "object"}
    if not is_object(value):
        faults.append(f"{said_of(place)} is not an object")
        return GONE
    schema, wanted = value, value.get("type")
    if wanted != "object":
        names = wanted if is_array(wanted) else [wanted]
        meant = [type_meant(name) for name in names]
        if any(meant) and "object" not in meant:
            faults.append(f'{said_of(place)}.type is not "object"')
            return GONE
        wrong = 'not "object"' if "type" in schema else "missing"
        faults.append(f"{said_of(place)}.type is {wrong}")
        schema = {**schema, "type": "object"}
    return mended_schema(schema, place, faults)


def _output_schema(value: Any, place: Place, faults: list[str]) -> Any:
    """Check the schema that clients compile when they read the list, and hold results against. One that had to be
    mended might refuse a result that its server meant, so it is left out. (It may be of any type since 2026-07-28;
    `protocol.version_differences` says what older clients are shown.)"""
    if not is_object(value):
        faults.append(f"{said_of(place)} is not an object")
        return GONE
    wrong = list[str]()
    mended_schema(value, place, wrong, items_may_be_missing=True)
    faults += wrong
    return GONE if wrong else value


# ---- items ---------------------------------------------------------------------------------------------------------
_ANNOTATIONS: Final = record_of(
    {},
    {
        "audience": list_of(one_of("user", "assistant")),
        "priority": where(lambda value: type(value) in (int, float) and 0 <= value <= 1, "from 0 to 1"),
        "lastModified": where(
            lambda value: isinstance(value, str) and _DATE.fullmatch(value) is not None, "a time"
        ),
    },
)
_ICON: Final = record_of(
    {"src": TEXT}, {"mimeType": TEXT, "sizes": list_of(TEXT), "theme": one_of("light", "dark")}
)
_COMMON: Final[Mapping[str, Check]] = {
    "title": TEXT,
    "description": TEXT,
    "icons": list_of(_ICON),
    "_meta": OBJECT,
}
_READABLE: Final[Mapping[str, Check]] = {**_COMMON, "mimeType": TEXT, "annotations": _ANNOTATIONS}
_ARGUMENT: Final = record_of({"name": TEXT}, {"title": TEXT, "description": TEXT, "required": FLAG})
_HINTS: Final = record_of(
    {},
    {
        "title": TEXT,
        **dict.fromkeys(("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"), FLAG),
    },
)
_SUPPORT: Final = record_of({}, {"taskSupport": one_of("forbidden", "optional", "required")})
_TOOL: Final = record_of(
    {"name": TEXT, "inputSchema": _input_schema},
    {**_COMMON, "outputSchema": _output_schema, "annotations": _HINTS, "execution": _SUPPORT},
)
_PROMPT: Final = record_of({"name": TEXT}, {**_COMMON, "arguments": list_of(_ARGUMENT)})
_RESOURCE: Final = record_of(
    {"name": TEXT, "uri": TEXT},
    {
        **_READABLE,
        "size": where(
            lambda value: type(value) is int or (type(value) is float and value.is_integer()),
            "a whole number",
        ),
    },
)
_TEMPLATE: Final = record_of({"name": TEXT, "uriTemplate": TEXT}, _READABLE)


def _tool(record: Any, place: Place, faults: list[str]) -> Any:
    if "inputSchema" not in record:
        record = {**record, "inputSchema": None}
    return _TOOL(record, place, faults)


def _named_by(key: str, look: Check) -> Check:
    """A resource without a name is named by its URI."""

    def check(record: Any, place: Place, faults: list[str]) -> Any:
        if not isinstance(record.get("name"), str):
            faults.append("name is missing")
            record = {**record, "name": record.get(key)}
        return look(record, place, faults)

    return check


_CHECKS: Final[Mapping[str, Check]] = {
    "tool": _tool,
    "prompt": _PROMPT,
    "resource": _named_by("uri", _RESOURCE),
    "template": _named_by("uriTemplate", _TEMPLATE),
}
