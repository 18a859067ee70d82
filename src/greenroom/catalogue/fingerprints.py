"""Pinned definitions: a tool is what it was when it was first shown, until its owner says otherwise. So are prompts,
resources, resource templates and skills.

A model does what a tool's definition tells it. A server that has been approved can change that text later, and nobody
would see it. So the first definition of each tool is remembered as a hash. A tool whose definition has changed is
quarantined: it is shown under its name with `notice` in place of what the server says, and it cannot be called, until
its owner accepts the new definition. A definition that comes back is the old tool again. What a server no longer lists
is not forgotten, so a tool that goes and comes back changed is found as well.

The hash covers the title, the description, both schemas and the annotations, by what they mean: an order that means
nothing does not count (`meant`). Some servers make such a list from a set, so it is in another order at each start. A
tool that changes again and again for another reason is said to flap; its owner may let it.

The hash of a prompt covers its texts and its arguments, in any order; that of a resource or template what is said of
it. What a prompt or a resource then holds may be another thing each time, and so may the size of a resource and when it
was last modified: no owner could say anything about that.

Pins are kept for a `PinKey`: the key of the server's entry in the catalogue, so what has changed can be shown. A key
that is new, such as that of another token, inherits the pins of the same server under another key (`found_in`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar, cast

import msgspec

from ..protocol.errors import ToolChanged
from ..protocol.json_values import is_array, is_object
from ..protocol.lazy_patterns import lazy_pattern
from ..protocol.safe_text import typed, unhidden
from .entries import Raw, ServerEntry
from .skills import root_of

# The kinds of items that are remembered: the list of an entry that has them, and the field by which each is known.
PINNED: Final[Mapping[str, tuple[str, str]]] = {
    "tool": ("tools", "name"),
    "skill": ("skills", "uri"),
    "prompt": ("prompts", "name"),
    "resource": ("resources", "uri"),
    "template": ("templates", "uriTemplate"),
}
PARTS: Final = ("description", "input schema", "output schema", "annotations")  # of a tool
_OF_RESOURCES: Final = ("name", "description", "media type", "annotations")
_PARTS_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "tool": PARTS,
    "skill": ("front matter", "list of files", "", ""),
    "prompt": ("description", "arguments", "", ""),
    "resource": _OF_RESOURCES,
    "template": _OF_RESOURCES,
}
# How a kind is called, what is not done with a quarantined one, and what it is not.
_IN_WORDS: Final[Mapping[str, tuple[str, str, str]]] = {
    "tool": ("Tool", "called", "callable"),
    "skill": ("Skill", "read", "readable"),
    "prompt": ("Prompt", "used", "usable"),
    "resource": ("Resource", "read", "readable"),
    "template": ("Resource template", "used", "usable"),
}
# What a person is shown of each kind before it is accepted.
SHOWN: Final[Mapping[str, tuple[str, ...]]] = {
    "tool": ("title", "description", "inputSchema", "outputSchema", "annotations"),
    "skill": ("frontmatter", "resources"),
    "prompt": ("title", "description", "arguments"),
    "resource": ("name", "title", "description", "mimeType", "annotations"),
    "template": ("name", "title", "description", "mimeType", "annotations"),
}
_PREFIXES: Final = {f"{kind} ": kind for kind in PINNED}
_PASSING: Final = frozenset({"lastModified"})  # of the annotations of a resource
_LONGEST_NAMED: Final = 200  # characters of a name in a text
_JSON: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=str)
_HASHED: Final = 2_047  # bytes in one go
_MANY: Final = 2_000  # values that are written in one go: two milliseconds, in which no other thread runs
_NAMED: Final = 3  # changed tools of one server that are named in a line
_SHORT: Final = (
    4  # hex digits that tell which part has changed; the hash before them tells that something has
)
_WHOLE: Final = hashlib.sha256().digest_size * 2
_BY_MEANING: Final = "m"  # how a fingerprint begins that is of a definition's meaning
MEANING_LENGTH: Final = len(_BY_MEANING) + _WHOLE + len(PARTS) * _SHORT
_KEYS: Final = 50  # of one server that are remembered


def print_of(kind: str, record: Raw) -> str:
    """The fingerprint of an item of this kind."""
    return _PRINTS[kind](record)


def fingerprint(record: Raw) -> str:
    """The hash of a tool's definition by its meaning, with a few digits for each of its `PARTS`. After it comes the
    hash of the definition as it is written, which is the one that older versions remembered."""
    said = [record.get("title"), record.get("description")]
    written = [said if any(said) else None]
    written += [record.get(name) or None for name in ("inputSchema", "outputSchema", "annotations")]
    hashes = [_hash(part) for part in written]
    by_meaning = [hashes[0], *(_hash(meant(part)) for part in written[1:3]), hashes[3]]
    return _BY_MEANING + _print(by_meaning) + _print(hashes)


def skill_print(record: Raw) -> str:
    """The hash of a skill's entry by its meaning: of its front matter, and of its files with their digests in any
    order."""
    files: Any = record["resources"]
    if is_array(files):
        files = sorted([file["uri"], file["size"], file["digest"]] for file in files)
    return _BY_MEANING + _print([_hash(part) for part in (record["frontmatter"], files, None, None)])


def prompt_print(record: Raw) -> str:
    """The hash of a prompt by its meaning. The order of its arguments means nothing: they are given by name."""
    arguments: Any = record.get("arguments")
    if is_array(arguments):
        arguments = sorted(arguments, key=_encode)
    return _BY_MEANING + _print([_hash(_texts(record)), _hash(arguments or None), _hash(None), _hash(None)])


def resource_print(record: Raw) -> str:
    """The hash of a resource, or of a resource template, by its meaning."""
    annotations: Any = record.get("annotations")
    if is_object(annotations):
        annotations = {key: value for key, value in annotations.items() if key not in _PASSING}
    said = (record.get("name"), _texts(record), record.get("mimeType"), annotations or None)
    return _BY_MEANING + _print([_hash(part) for part in said])


def _texts(record: Raw) -> list[Any] | None:
    said = [record.get("title"), record.get("description")]
    return said if any(said) else None


_PRINTS: Final[Mapping[str, Callable[[Raw], str]]] = {
    "tool": fingerprint,
    "skill": skill_print,
    "prompt": prompt_print,
    "resource": resource_print,
    "template": resource_print,
}


def pin_name(kind: str, original: str) -> str:
    """Under which name an item is remembered: a tool under its own, unless that looks like the name of another kind."""
    is_plain = kind == "tool" and not original.startswith(tuple(_PREFIXES))
    return original if is_plain else f"{kind} {original}"


def kind_of(pin: str) -> str:
    """The kind of the item that is remembered under this name."""
    return _split(pin)[0]


def original_of(pin: str) -> str:
    """What the server calls it: its name, its URI, or its URI template."""
    return _split(pin)[1]


def _split(pin: str) -> tuple[str, str]:
    word, space, rest = pin.partition(" ")
    kind = _PREFIXES.get(word + space)
    return (kind, rest) if kind is not None else ("tool", pin)


def pinned_records(entry: ServerEntry | None) -> dict[str, Raw]:
    """What an entry has of the items that are remembered, by the names under which they are. If an item is listed
    twice, the first counts."""
    found = dict[str, Raw]()
    if entry is not None:
        for kind, (field, key) in PINNED.items():
            records: tuple[Raw, ...] | None = getattr(entry, field)
            for record in records or ():
                if isinstance(record.get(key), str):
                    found.setdefault(pin_name(kind, record[key]), record)
    return found


def shown_of(pin: str, record: Raw) -> dict[str, Any]:
    """What a person is shown of this item."""
    return {key: record[key] for key in SHOWN[kind_of(pin)] if record.get(key)}


def accepted_with(chosen: str, changed: Collection[str]) -> list[str]:
    """Which of the changed items are accepted together with one: with a skill its files, where its server lists these
    as resources, too."""
    if kind_of(chosen) != "skill":
        return [chosen]
    folder = root_of(original_of(chosen)) + "/"
    return [chosen, *(pin for pin in changed if pin.startswith(f"resource {folder}"))]


def prints_of(entry: ServerEntry | None, pins: Collection[str]) -> dict[str, str]:
    """The fingerprints of those of these items that the entry has."""
    listed = pinned_records(entry)
    return {pin: print_of(kind_of(pin), listed[pin]) for pin in pins if pin in listed}


def _encode(value: Any) -> str:
    """The JSON of a value. One of many values is written piece by piece, so that it holds up no other thread."""
    return "".join(_JSON.iterencode(value)) if _is_large(value) else _JSON.encode(value)


def _is_large(value: Any) -> bool:
    seen, waiting = 0, [value]
    while waiting:
        each = waiting.pop()
        if type(each) is dict:
            waiting.extend(cast("Raw", each).values())
        elif type(each) is list:
            waiting.extend(cast("list[Any]", each))
        seen += 1
        if seen + len(waiting) > _MANY:
            return True
    return False


def _hash(part: Any) -> bytes:
    """`hashlib` gives the interpreter away while it hashes 2 KiB or more, and has it back before another thread has
    woken up. As that thread asks for the interpreter only after a wait that nothing interrupts, a loop would wait for
    all tools of a long list. So it is hashed in smaller pieces."""
    data, whole = _encode(part).encode(), hashlib.sha256()
    for at in range(0, len(data), _HASHED):
        whole.update(data[at : at + _HASHED])
    return whole.digest()


def _print(hashes: Sequence[bytes]) -> str:
    return hashlib.sha256(b"".join(hashes)).hexdigest() + "".join(each.hex()[:_SHORT] for each in hashes)


def agree(known: str, seen: str) -> bool:
    """Whether a remembered definition and a seen one are the same."""
    if known.startswith(_BY_MEANING) and seen.startswith(_BY_MEANING):
        return known[:MEANING_LENGTH] == seen[:MEANING_LENGTH]
    return known == seen or (seen.startswith(_BY_MEANING) and known == seen[MEANING_LENGTH:])


def changes(old: str, new: str, pin: str = "") -> tuple[str, ...]:
    """Which parts differ between two fingerprints. `pin`: the name under which they are remembered."""
    if new.startswith(_BY_MEANING) and not old.startswith(_BY_MEANING):
        new = new[MEANING_LENGTH:]
    begin = _WHOLE + new.startswith(_BY_MEANING)
    spans = [slice(begin + n * _SHORT, begin + (n + 1) * _SHORT) for n in range(len(PARTS))]
    parts = _PARTS_OF[kind_of(pin)]
    return tuple(part for part, span in zip(parts, spans, strict=True) if old[span] != new[span])


# ---- what a definition means ---------------------------------------------------------------------------------------
_SCHEMAS: Final = frozenset(
    """additionalItems additionalProperties contains contentSchema else if items not prefixItems propertyNames then
    unevaluatedItems unevaluatedProperties""".split()
)
_NAMED_SCHEMAS: Final = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
)
_CHOICES: Final = frozenset({"anyOf", "oneOf", "allOf"})
_NAMES: Final = frozenset({"required", "type"})
_LISTS: Final = _CHOICES | _NAMES | {"default", "enum", "examples", "items", "prefixItems"}
_NARROWED: Final = frozenset(
    {"enum", "const", "pattern", "format"}
)  # to some texts, of which each has its meaning
_WORD: Final = lazy_pattern(r"[A-Za-z_][A-Za-z0-9_.-]*")


def meant(schema: Any) -> Any:
    """A schema in one form for all schemas with the same meaning. Texts and names count exactly, and so does every
    order that can mean something. These orders mean nothing: of `required`, `type`, `anyOf`, `oneOf` and `allOf`; of an
    `enum` to which no further list can belong place by place; of a `default` that is a set by its schema; and of a
    `default` text of different plain words with commas between them."""
    if not is_object(schema):
        return schema
    return {
        key: value if type(value) is str and key != "default" else _member_meant(schema, key, value)
        for key, value in schema.items()
    }


def _member_meant(schema: Mapping[str, Any], key: str, value: Any) -> Any:
    if key in _SCHEMAS:
        return [meant(each) for each in value] if is_array(value) else meant(value)
    if key in _NAMED_SCHEMAS and is_object(value):
        return {name: meant(each) for name, each in value.items()}
    if key in _CHOICES and is_array(value):
        return sorted(map(meant, value), key=_encode)
    if key in _NAMES or (key == "enum" and not _has_further_lists(schema)):
        return sorted(value, key=_encode) if is_array(value) else value
    return _default_meant(schema, value) if key == "default" else value


def _has_further_lists(schema: Mapping[str, Any]) -> bool:
    """Whether the schema has lists such as `enumNames`, whose names belong to the values at the same places."""
    return any(is_array(value) and key not in _LISTS for key, value in schema.items())


def _default_meant(schema: Mapping[str, Any], value: Any) -> Any:
    if is_array(value):
        return sorted(value, key=_encode) if schema.get("uniqueItems") is True else value
    if not isinstance(value, str) or "," not in value or not _NARROWED.isdisjoint(schema):
        return value
    comma = ", " if ", " in value else ","
    words = value.split(comma)
    is_set = len(set(words)) == len(words) and all(map(_WORD.fullmatch, words))
    return comma.join(sorted(words)) if is_set else value


# ---- what is remembered --------------------------------------------------------------------------------------------
class PinKey(msgspec.Struct, frozen=True):
    """The key of a server's pins. `key`: that of the server's entry in the catalogue. `origin`: whose tools they are
    (`config.definition_identity.pin_key`)."""

    key: str
    origin: str


def is_by_meaning(print_: str) -> bool:
    return print_.startswith(_BY_MEANING)


def remembered_print(print_: str) -> str:
    return print_[:MEANING_LENGTH] if is_by_meaning(print_) else print_


class PinnedRecord(Protocol):
    @property
    def seen(self) -> float: ...
    @property
    def origin(self) -> str: ...


_Kept = TypeVar("_Kept", bound=PinnedRecord)


def kept_as(server: str, key: str) -> str:
    """The name under which the pins of a server are kept."""
    return f"{key} {server}"


def found_in(kept: Mapping[str, _Kept], wanted: Mapping[str, PinKey]) -> dict[str, _Kept]:
    """The pins of these servers. A new key inherits the pins of the same server that were written last, or those that
    were kept for its origin alone, as older versions did."""
    found = {name: kept.get(kept_as(name, key.key)) for name, key in wanted.items()}
    if None in found.values():
        heirs = {kept_as(name, wanted[name].origin): name for name, one in found.items() if one is None}
        for name, one in kept.items():
            server = heirs.get(kept_as(name.partition(" ")[2], one.origin or name.partition(" ")[0]))
            if server is not None:
                rival = found[server]
                if rival is None or (bool(one.origin), one.seen) > (bool(rival.origin), rival.seen):
                    found[server] = one
    return {name: one for name, one in found.items() if one is not None}


def too_many(kept: Mapping[str, PinnedRecord], keys: Collection[PinKey]) -> list[str]:
    """The pins to forget. Of one server with many keys, such as those of tokens that were used once, these are the ones
    that were not seen for longest. `keys`: of the servers that have just been written."""
    origins = {key.origin for key in keys}
    alike: dict[tuple[str, str], list[str]] = {}
    for name, one in kept.items():
        if one.origin in origins:
            alike.setdefault((one.origin, name.partition(" ")[2]), []).append(name)
    return [
        name
        for names in alike.values()
        if len(names) > _KEYS
        for name in sorted(names, key=lambda name: kept[name].seen)[:-_KEYS]
    ]


# ---- in words ------------------------------------------------------------------------------------------------------
def notice(server: str, pin: str, parts: Sequence[str]) -> str:
    """The text that replaces the description of a quarantined item."""
    _, _, use = _IN_WORDS[kind_of(pin)]
    return f"Not {use}: {changed_parts(parts)} changed since its owner last saw it. {next_step(server, pin)}"


def changed_parts(parts: Sequence[str]) -> str:
    """The parts that have changed, before the word `changed`."""
    *others, last = parts or ("definition",)
    return f"its {', '.join(others)} and {last} have" if others else f"its {last} has"


def next_step(server: str, tool: str = "") -> str:
    """How the owner of a changed tool can look at it and accept it."""
    return f"To see and allow it, the owner runs: {command(server, tool)}"


def tool_changed(tool: str, server: str, pin: str, parts: Sequence[str]) -> ToolChanged:
    """The refusal of a call to a tool of which these parts have changed, or of using another such item. `pin`: the name
    under which it is remembered."""
    what, done, _ = _IN_WORDS[kind_of(pin)]
    text = f'{what} "{tool}" was not {done}: {changed_parts(parts)} changed since its owner last saw it.'
    return ToolChanged(f"{text} {next_step(server, pin)}", server=server, tool=tool)


def command(server: str, tool: str = "") -> str:
    """The command that accepts a tool, or all tools of a server, as a shell takes it. A tool's name that nobody would
    type is left out."""
    can_be_typed = 0 < len(tool) <= _LONGEST_NAMED and tool.isprintable()
    names = [server, tool] if can_be_typed else [server]
    return f"greenroom accept {typed(*names)}"


def changed_in_words(server: str, changed: Sequence[str], flapping: Collection[str] = ()) -> str:
    """The changed tools of a server, in a few words, and the command that accepts them."""
    told = f"{len(changed)} changed: {first_of(changed)} (`{command(server)}`)"
    flaps = [tool for tool in changed if tool in flapping]
    return f"{told}. {flapping_in_words(server, flaps)}" if flaps else told


def flapping_in_words(server: str, tools: Sequence[str]) -> str:
    """The text that these tools change again and again, with the setting that allows it."""
    verb = "changes" if len(tools) == 1 else "change"
    return (
        f'{first_of(tools)} {verb} again and again: if you trust {server}, set "pinning": "warn" in its entry '
        '(told of, but callable), or "off"'
    )


def first_of(tools: Sequence[str]) -> str:
    more = f" and {len(tools) - _NAMED} more" if len(tools) > _NAMED else ""
    named = (tool if len(tool) <= _LONGEST_NAMED else f"{tool[:_LONGEST_NAMED]}…" for tool in tools[:_NAMED])
    return f"{unhidden(', '.join(named))}{more}"
