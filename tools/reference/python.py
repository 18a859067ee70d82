"""The pages of what a program can import: the names of `docs/public-surface.txt`, with their docstrings.

The signatures are those of `tools.public_surface`, so that both say the same.
"""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tools.public_surface import MODULES, members, public_names, signed

from .markdown import anchor, page, table

HEADS: Final = {
    "greenroom": "What a program opens, gets, and catches most.",
    "greenroom.errors": "Every error. [Errors](errors.md) has their codes, and what to do about each.",
    "greenroom.events": "Every event. [Events](events.md) has their fields one by one.",
    "greenroom.config": "The model of a configuration. [Keys of a server](servers.md) and [settings](settings.md) "
    "have what its fields mean.",
    "greenroom.testing": "What tests use. [Testing](../testing.md) shows how.",
    "greenroom.sync": "The same room for programs without an event loop. "
    "[Without an event loop](../programs.md#without-an-event-loop) shows how.",
    "greenroom.cluster.front": "A room whose servers run on many machines. [Many machines](../cluster.md) shows how.",
}
FIRST: Final = (
    "Greenroom",
    "Room",
    "Session",
    "ToolResult",
    "CallError",
    "Reach",
    "Target",
)  # what a reader looks for
TOLD_ELSEWHERE: Final = frozenset({"greenroom.config"})  # their classes are lists of keys


def python_pages() -> Mapping[str, str]:
    """A page for each public module, and one that leads to them; by their names."""
    assert HEADS.keys() == set(MODULES), "tools/reference/python.py has no head for a public module"
    seen: dict[int, tuple[str, str]] = {}
    pages: dict[str, str] = {}
    rows: list[list[str]] = []
    for module in MODULES:
        parts: list[str] = []
        again: list[str] = []
        own: list[str] = []
        for name, value in _in_order(public_names(module)):
            if id(value) in seen and not isinstance(value, str | int | float):
                again.append(_link(*seen[id(value)]))
                continue
            seen[id(value)] = (name, module)
            own.append(_link(name, module))
            parts += _described(name, value, module)
        if again:
            parts.append(f"Also here: {', '.join(again)}.")
        pages[_page_of(module)] = page(f"# {module}", HEADS[module], *parts)
        rows.append([f"[`{module}`]({_page_of(module)})", ", ".join(own)])
    head = page(
        "# Python",
        "Every name that a program can import, with what it takes and what it says of itself. All other modules are "
        "internal. [In your own program](../programs.md) shows them in use; "
        "[public-surface.txt](../public-surface.txt) is the same without words, and changes of it are on purpose.",
        table(["module", "has"], rows),
    )
    return {"python.md": head, **pages}


def _in_order(names: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The alphabet, behind what most readers have come for."""
    return sorted(names.items(), key=lambda item: FIRST.index(item[0]) if item[0] in FIRST else len(FIRST))


def _page_of(module: str) -> str:
    return f"python-{module.removeprefix('greenroom.').replace('.', '-')}.md"


def _link(name: str, module: str) -> str:
    return f"[`{name}`]({_page_of(module)}#{anchor(name)})"


def _described(name: str, value: Any, module: str) -> Iterator[str]:
    yield f"## {name}"
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        yield f"    {name}: {type(value).__name__}"
        return
    lines = list(signed(name, value))
    if inspect.isclass(value) and not issubclass(value, enum.Enum):
        lines = lines[:1] + [line.strip() for line in lines[1:2] if line.strip().startswith("__init__")]
    yield "\n".join(["```python", *(_wrapped(line) for line in lines), "```"])
    yield from _docstring(value)
    if inspect.isclass(value) and module not in TOLD_ELSEWHERE:
        yield from _members(value)


def _members(value: type[Any]) -> Iterator[str]:
    rows: list[str] = []
    fields: list[str] = []
    for name, line in members(value):
        member = inspect.getattr_static(value, name, None)
        function = _function(member)
        said = inspect.getdoc(function) if callable(function) else None
        if not callable(function):
            fields.append(f"`{line}`")
            continue
        plain = line.removesuffix("  # read only")
        code = "\n".join(["```python", _wrapped(plain), "```"])
        rows += [f"### {value.__name__}.{name}", code, _text(said or _inherited(value, name))]
    if fields:
        yield "Fields: " + ", ".join(fields) + "."
    yield from rows


def _function(member: object) -> object:
    """What is below a property (`fget`), a cached one (`func`), a class method or a static one."""
    for wrapped in ("fget", "func", "__func__"):
        if found := getattr(member, wrapped, None):
            return found
    return member


def _inherited(value: type[Any], name: str) -> str:
    """What a base class says of a member that its class overrides without a word."""
    for base in value.__mro__[1:]:
        said = inspect.getdoc(vars(base).get(name))
        if said:
            return said
    return ""


def _docstring(value: Any) -> Iterator[str]:
    said = value.__doc__
    if said and not (inspect.isclass(value) and said.startswith(f"{value.__name__}(")):
        yield _text(inspect.cleandoc(said))


def _text(said: str) -> str:
    """A docstring as Markdown: its paragraphs joined, its lists and blocks as they are."""
    parts = re.split(r"\n\s*\n", said)
    joined = [
        part if re.match(r"\s*(?:[-*] |    |>>>|```)", part) else " ".join(part.split()) for part in parts
    ]
    return "\n\n".join(joined)


def _wrapped(line: str) -> str:
    """A long signature, a parameter on each line."""
    if len(line) <= 100 or "(" not in line:
        return line
    head, _, rest = line.partition("(")
    inside, _, tail = rest.rpartition(")")
    depth, parts, begin = 0, list[str](), 0
    for at, letter in enumerate(inside):
        depth += letter in "([{"
        depth -= letter in ")]}"
        if letter == "," and not depth:
            parts.append(inside[begin:at].strip())
            begin = at + 1
    parts.append(inside[begin:].strip())
    return "\n".join([f"{head}(", *(f"    {part}," for part in parts if part), f"){tail}"])
