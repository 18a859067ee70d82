"""Writes the reference of `docs/json.md` from the structs that commands print with `--json`.

    python -m tools.json_page        # a test says when it has to be run again

A struct that has all fields of a common one refers to that, so that nothing is told twice.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import attrs
import msgspec
from msgspec import UnsetType

from greenroom.cli import shapes
from greenroom.cli.shapes import Object, Shape

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "json.md"
MARK: Final = "<!-- made by tools/json_page.py -->"
# What each command prints: a struct of its module, `[…]` a list of them, or the name of what is somebody else's.
PRINTED: Final[Mapping[str, str]] = {
    "greenroom": "overview_command:OverviewJson",
    "greenroom --version": "runs_on:VersionJson",
    "demo": "demo_command:DemoJson",
    "init": "init_command:ClientsJson",
    "init CLIENT": "init_command:InitJson",
    "add": "add_command:AddedJson",
    "remove": "add_command:RemovedJson",
    "enable": "enable_command:SwitchedJson",
    "disable": "enable_command:SwitchedJson",
    "config": "query_commands:ConfigurationJson",
    "config --schema": "object",
    "trust": "trust_command:TrustJson",
    "trust --list": "trust_command:AgreementsJson",
    "trust --revoke": "trust_command:RevokedJson",
    "auth": "auth_command:LoginsJson",
    "auth S": "auth_command:LoginJson",
    "auth S --logout": "auth_command:LoggedOutJson",
    "doctor": "doctor_command:DoctorJson recent_tape:RecentTapeJson",
    "stop": "attach_command:StoppedJson",
    "page": "page_command:PageAddressJson",
    "status": "status_command:StatusJson",
    "tree": "tree_command:TreeJson",
    "tools": "query_commands:ToolsJson shapes:RefusedJson",
    "search": "query_commands:FoundJson shapes:RefusedJson",
    "describe": "query_commands:DescribedJson shapes:RefusedJson",
    "explain": "doctor_command:ExplainedJson",
    "logs": "logs_command:LogsJson",
    "logs --follow": "logs_command:LogLineJson",
    "cost": "cost_command:CostJson",
    "outputs": "query_commands:OutputsJson",
    "outputs --clear": "query_commands:ClearedJson",
    "call": "call_command:CalledJson shapes:RefusedJson",
    "refresh": "refresh_command:RefreshedJson",
    "reconnect": "call_command:ReconnectJson",
    "approve": "approve_command:ApprovalsJson",
    "approve N": "approve_command:ApprovedJson",
    "accept": "accept_command:AcceptJson",
    "tape": "tape_command:TapedJson tape_command:SpansSentJson tape_command:TapeUseJson",
    "diff": "diff_command:DifferenceJson",
    "explore": "explore_command:WhatIfsJson",
    "audit verify": "audit_command:VerifiedJson",
    "audit show": "objects",
    "bench churn": "bench_command:ChurnJson",
    "cluster start": "cluster_command:ClusterJson",
    "cluster status": "cluster_command:ClusterJson",
    "cluster drain": "cluster_drain:ClusterDrainedJson",
    "cluster drain --off": "cluster_command:ClusterJson",
    "cluster demo": "cluster_demo:ClusterDemoJson",
}
_FOREIGN: Final[Mapping[str, Any]] = {"object": Object, "objects": list[Object]}
_COMMON: Final[tuple[type[Shape], ...]] = (
    shapes.AnsweredJson,
    shapes.AddressJson,
    shapes.OriginJson,
    shapes.SourceJson,
)
_PLAIN: Final = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    NoneType: "null",
    Any: "any",
}


@attrs.frozen
class Field:
    """A field as JSON has it. `when`: of one that is not always there, when it is."""

    name: str
    type: Any
    what: str
    unit: str
    when: str


def shapes_of(command: str) -> tuple[Any, ...]:
    """What this command may print, as types."""
    return tuple(map(_type_of, PRINTED[command].split()))


def _type_of(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(f"greenroom.cli.{module}"), name) if name else _FOREIGN[place]


def fields_of(shape: type[Shape]) -> list[Field]:
    """The fields of a struct, those of its bases first."""
    found: list[Field] = []
    hints = get_type_hints(shape, include_extras=True)
    for field in msgspec.structs.fields(shape):
        hint = hints[field.name]
        assert get_origin(hint) is Annotated, f"{shape.__name__}.{field.name} does not say what it means"
        kind, said = get_args(hint)
        told: dict[str, str] = said.extra
        assert field.required == (not told["when"]), (
            f"{shape.__name__}.{field.name} must say when it is there, or always be"
        )
        found.append(Field(field.encode_name, kind, said.description, told["unit"], told["when"]))
    return found


def page(text: str) -> str:
    """`text` with the reference anew below its mark."""
    head, mark, _ = text.partition(MARK)
    assert mark, f"docs/json.md has no {MARK}"
    return "\n".join([head + mark, "", *_commands(), *_reference()])


def _commands() -> Iterator[str]:
    yield "| command | prints |"
    yield "|---|---|"
    for command in PRINTED:
        yield f"| `{command}` | {', or '.join(map(worded, shapes_of(command)))} |"
    yield ""


def _reference() -> Iterator[str]:
    for shape in all_shapes():
        yield from (f"## {name_of(shape)}", "", " ".join((shape.__doc__ or "").split()), "")
        own = fields_of(shape)
        base = next((each for each in _COMMON if each is not shape and issubclass(shape, each)), None)
        if base is not None:
            theirs = {field.name for field in fields_of(base)}
            own = [field for field in own if field.name not in theirs]
            yield from (f"The fields of {worded(base)}, and:", "")
        yield "| field | type | unit | |"
        yield "|---|---|---|---|"
        for field in own:
            when = f" (only {_when(field.when)})" if field.when else ""
            yield f"| `{field.name}` | {worded(field.type)} | {field.unit} | {field.what}{when} |"
        yield ""


def _when(when: str) -> str:
    return f"with {when}" if when.startswith("`") else f"if {when}"


def all_shapes() -> list[type[Shape]]:
    """Every struct that a command prints, or that is a part of one, in the order in which they are met."""
    found: list[type[Shape]] = []

    def meet(kind: Any) -> None:
        if isinstance(kind, type) and issubclass(kind, Shape):
            if kind in found:
                return
            found.append(kind)
            for base in _COMMON:
                if base is not kind and issubclass(kind, base):
                    meet(base)
            for field in fields_of(kind):
                meet(field.type)
        else:
            for inner in get_args(kind):
                meet(inner)

    for command in PRINTED:
        for shape in shapes_of(command):
            meet(shape)
    return found


def name_of(shape: type[Shape]) -> str:
    """What it is called on the page."""
    return shape.__name__.removesuffix("Json")


def worded(kind: Any) -> str:
    """A type in the words of JSON."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is list:
        return f"array of {worded(inner[0])}"
    if origin is dict:
        return "object" if inner[1] is Any else f"object of {worded(inner[1])}"
    if origin is Literal:
        return ", ".join(f"`{word}`" for word in inner)
    if origin in (Union, UnionType):
        return " or ".join(worded(each) for each in inner if each is not UnsetType)
    if isinstance(kind, type) and issubclass(kind, Shape):
        return f"[{name_of(kind)}](#{name_of(kind).lower()})"
    return _PLAIN[kind]


if __name__ == "__main__":
    old = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(page(old), encoding="utf-8")
    sys.exit(0)
