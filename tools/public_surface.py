"""The public surface, written down: every name that a program can import, with signatures.

    python tools/public_surface.py           write docs/public-surface.txt
    python tools/public_surface.py --check   exit 1 if it is not what the code says

A change of it is a change for every program that embeds Greenroom, so it is made on purpose: write the file anew, and
say it in CHANGELOG.md.
"""

from __future__ import annotations

import ast
import difflib
import enum
import functools
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

import msgspec

_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")  # of a default that is a function
MODULES = (
    "greenroom",
    "greenroom.errors",
    "greenroom.events",
    "greenroom.config",
    "greenroom.sync",
    "greenroom.testing",
    "greenroom.cluster.front",
)
# Members of public classes that one room of ours calls of another. No program has a use for them, and they change
# without a word, so they are neither in the file nor in the reference.
FOR_ROOMS: Final[Mapping[str, frozenset[str]]] = {
    "CallError": frozenset({"after_sending", "copy"}),
    "CallStream": frozenset({"ended", "progressed"}),
    "GreenroomError": frozenset({"hide"}),
    "Replay": frozenset({"has_faults_of", "live_by", "refuse", "took", "watcher"}),
    "Subscription": frozenset({"callback", "push", "wake"}),
    "TapeRun": frozenset({"note"}),
    "Target": frozenset({
        "document", "in_caller_names", "is_read", "meaning", "meaning_key", "mirrored", "remember", "wrapped_output",
    }),
    "Updates": frozenset({"end", "put"}),
}  # fmt: skip
FILE = Path(__file__).resolve().parent.parent / "docs" / "public-surface.txt"


def main(arguments: list[str]) -> int:
    new = "\n".join(surface()) + "\n"
    if arguments != ["--check"]:
        FILE.write_text(new, encoding="utf-8")
        return 0
    old = FILE.read_text(encoding="utf-8") if FILE.exists() else ""
    changes = difflib.unified_diff(old.splitlines(), new.splitlines(), "recorded", "now", lineterm="", n=1)
    if old == new:
        return 0
    print("\n".join(changes))
    print("The public surface has changed. If that is meant, run `python tools/public_surface.py`,")
    print("and say it in CHANGELOG.md.")
    return 1


def surface() -> Iterator[str]:
    """The lines of the file. A name that stands in two modules is written out in the first."""
    _try_for_rooms()
    written: dict[int, str] = {}
    yield "# Made by tools/public_surface.py. What a program can import, and how it is called."
    for module_name in MODULES:
        yield f"\n## {module_name}\n"
        for name, value in public_names(module_name).items():
            if (first := written.get(id(value))) is not None:
                yield f"{name} = {first}.{name}"
                continue
            written[id(value)] = module_name
            yield from signed(name, value)


def _try_for_rooms() -> None:
    """Each member that is left out is there."""
    there: dict[str, set[str]] = {}
    for module in MODULES:
        for value in filter(inspect.isclass, public_names(module).values()):
            for base in value.__mro__:
                there.setdefault(base.__name__, set()).update(
                    vars(base), _fields(base) if _is_ours(base) else ()
                )
    for name, hidden in FOR_ROOMS.items():
        assert hidden <= there[name], f"{name} has no {hidden - there[name]}"


def public_names(module_name: str) -> dict[str, Any]:
    """The names of a public module, each with its value."""
    module = importlib.import_module(module_name)
    names = getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
    return {name: getattr(module, name) for name in sorted(names)}


def signed(name: str, value: Any) -> Iterator[str]:
    """A name as the file has it: its signature, and of a class its members."""
    if inspect.isclass(value):
        public_bases = [base.__name__ for base in value.__bases__ if _is_public(base)]
        yield f"class {name}({', '.join(public_bases)})" if public_bases else f"class {name}"
        yield from (f"    {line}" for line in _own_lines(value))
    elif inspect.isfunction(value):
        yield f"{_kind(value)} {name}{_signature(value)}"
    else:
        yield f"{name}: {type(value).__name__}"


@functools.cache
def _all_public() -> frozenset[int]:
    return frozenset(id(value) for module in MODULES for value in public_names(module).values())


def _is_public(cls: type) -> bool:
    """Whether a reader of the file knows this class: it is in the file, or it is not ours."""
    return id(cls) in _all_public() or (not _is_ours(cls) and cls not in (object, msgspec.Struct))


def _is_ours(cls: type) -> bool:
    return cls.__module__.startswith("greenroom")


def _own_lines(cls: Any) -> Iterator[str]:
    """What the file says of a class."""
    if issubclass(cls, enum.Enum):
        yield ", ".join(member.name for member in cls)
    elif "__init__" in vars(cls) and not getattr(cls, "_is_protocol", False):
        yield f"__init__{_signature(cls.__init__)}"
    elif issubclass(cls, msgspec.Struct):
        yield f"__init__(self, {', '.join(_parameters(cls))}) -> None"
    yield from (line for _, line in members(cls))


def field_types(cls: type[msgspec.Struct]) -> dict[str, str]:
    """The type of each field of a struct as it is written, in the order of the fields."""
    said = {
        name: kind for base in reversed(cls.__mro__) for name, kind in inspect.get_annotations(base).items()
    }
    return {name: said[name] for name in cls.__struct_fields__}


def _parameters(cls: type[msgspec.Struct]) -> Iterator[str]:
    """The parameters of a struct, which has no signature where a type is known to type checkers alone."""
    required = len(cls.__struct_fields__) - len(cls.__struct_defaults__)
    defaults: list[Any] = [msgspec.NODEFAULT] * required + list(cls.__struct_defaults__)
    for place, ((name, kind), default) in enumerate(zip(field_types(cls).items(), defaults, strict=True)):
        if place == len(cls.__match_args__):
            yield "*"
        if default is msgspec.NODEFAULT:
            yield f"{name}: {kind}"
        elif isinstance(default, enum.Enum):
            yield f"{name}: {kind} = {type(default).__name__}.{default.name}"
        else:
            yield f"{name}: {kind} = {_ADDRESS.sub('', repr(default))}"


def members(cls: Any) -> Iterator[tuple[str, str]]:
    """What a class has of its own, and of its bases that are not public themselves: each name, and its line."""
    above: list[type] = cls.__mro__[1:]
    told = {each for base in above if _is_ours(base) and _is_public(base) for each in base.__mro__}
    own: list[type] = [cls, *(base for base in above if _is_ours(base) and base not in told)]
    found: dict[str, str] = {}
    for base in reversed(own):
        for name, annotation in _fields(base).items():
            found[name] = f"{name}: {annotation}" if annotation else name
        for name, member in vars(base).items():
            if not name.startswith("_") and (line := _member(name, member)) is not None:
                found[name] = line
    if issubclass(cls, enum.Enum):
        found = {name: line for name, line in found.items() if name not in cls.__members__}
    for base in own:
        hidden = FOR_ROOMS.get(base.__name__, frozenset())
        found = {name: line for name, line in found.items() if name not in hidden}
    yield from sorted(found.items())


def _member(name: str, member: Any) -> str | None:
    function: Any = getattr(member, "__func__", None)
    match member:
        case property():
            return f"{name}: {_returned(member.fget)}  # read only"
        case functools.cached_property():
            return f"{name}: {_returned(member.func)}  # read only"
        case classmethod() | staticmethod():
            return f"@{type(cast('object', member)).__name__} {_kind(function)} {name}{_signature(function)}"
        case str():
            return f"{name} = {member!r}"
        case _ if inspect.isfunction(member):
            return f"{_kind(member)} {name}{_signature(member)}"
        case _:
            return None


def _fields(cls: type) -> dict[str, str]:
    """The public attributes of a class: what its body annotates, and what its `__init__` sets."""
    found = {
        name: str(annotation)
        for name, annotation in inspect.get_annotations(cls).items()
        if not name.startswith("_")
    }
    init = vars(cls).get("__init__")
    if not inspect.isfunction(init) or init.__code__.co_filename.startswith("<"):
        return found
    tree = ast.parse(textwrap.dedent(inspect.getsource(init)))
    for node in ast.walk(tree):
        match node:
            case ast.AnnAssign(target=ast.Attribute(value=ast.Name(id="self"), attr=name), annotation=said):
                found.setdefault(name, ast.unparse(said))
            case ast.Assign(targets=targets):
                for target in targets:
                    for part in ast.walk(target):
                        match part:
                            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                                found.setdefault(name, "")
                            case _:
                                pass
            case _:
                pass
    return {name: annotation for name, annotation in found.items() if not name.startswith("_")}


def _kind(function: Any) -> str:
    if str(inspect.signature(function).return_annotation).startswith("AbstractContextManager"):
        return "with"
    if inspect.isasyncgenfunction(inspect.unwrap(function)):
        return "async with" if hasattr(function, "__wrapped__") else "async for"
    return "async def" if inspect.iscoroutinefunction(function) else "def"


def _signature(function: Any) -> str:
    # Annotations are texts, which are shown in quotes.
    shown = _ADDRESS.sub("", str(inspect.signature(function)))
    return re.sub(r"""(: |-> )(['"])(.*?)\2""", r"\1\3", shown)


def _returned(function: Any) -> str:
    return str(inspect.signature(function).return_annotation)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
