"""What each command prints with `--json`, as Markdown, from the structs that it prints.

A struct that one command prints is told on the page of that command; one that several print, or that is a part of what
several print, on a page that they share. A struct that has all fields of a common one refers to that. So nothing is
told twice.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import attrs
import msgspec
from msgspec import UnsetType

from greenroom.cli import json_shapes
from greenroom.cli.json_shapes import Object, Shape

from .markdown import from_docs

SHARED: Final = "json"  # the page of what several commands print
# What each command prints: a struct of its module, `[…]` a list of them, or the name of what is somebody else's.
PRINTED: Final[Mapping[str, str]] = {
    "greenroom": "overview_command:OverviewJson",
    "greenroom --version": "version_report:VersionJson",
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
    "doctor": "doctor_command:DoctorJson doctor_tape:RecentTapeJson",
    "stop": "stop_command:StoppedJson",
    "page": "page_command:PageAddressJson",
    "status": "status_command:StatusJson",
    "tree": "tree_command:TreeJson",
    "tools": "query_commands:ToolsJson json_shapes:RefusedJson",
    "search": "query_commands:FoundJson json_shapes:RefusedJson",
    "describe": "query_commands:DescribedJson json_shapes:RefusedJson",
    "explain": "doctor_command:ExplainedJson",
    "logs": "logs_command:LogsJson",
    "logs --follow": "logs_command:LogLineJson",
    "cost": "cost_command:CostJson",
    "outputs": "query_commands:OutputsJson",
    "outputs --clear": "query_commands:ClearedJson",
    "call": "call_command:CalledJson json_shapes:RefusedJson",
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
    json_shapes.AnsweredJson,
    json_shapes.AddressJson,
    json_shapes.OriginJson,
    json_shapes.SourceJson,
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


@functools.cache
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


def page_of(form: str) -> str:
    """The command on whose page a form stands: `trust` for `trust --list`."""
    return form.split()[0]


@functools.cache
def homes() -> Mapping[type[Shape], str]:
    """Each struct, and the command on whose page it is told; "json" for what several print."""
    found: dict[type[Shape], set[str]] = {}
    for form in PRINTED:
        for shape in _shapes_in(shapes_of(form)):
            found.setdefault(shape, set()).add(page_of(form))
    return {shape: next(iter(pages)) if len(pages) == 1 else SHARED for shape, pages in found.items()}


def told(command: str) -> Iterator[str]:
    """What a command prints, in the parts of its page; nothing for one that has no `--json`."""
    forms = [form for form in PRINTED if page_of(form) == command]
    if not forms:
        return
    link = _links(command)
    yield "## JSON"
    yield "\n".join(
        ["| with `--json` | prints |", "|---|---|"]
        + [f"| `{form}` | {', or '.join(worded(each, link) for each in shapes_of(form))} |" for form in forms]
    )
    yield from shapes_told(command)


def shapes_told(home: str) -> Iterator[str]:
    """The structs that stand on this page."""
    link = _links(home)
    for shape, where in homes().items():
        if where == home:
            yield from _shape(shape, link)


Link = Callable[[type[Shape]], str]


def _links(home: str) -> Link:
    where = homes()

    def link(shape: type[Shape]) -> str:
        file = "" if where[shape] == home else f"{where[shape]}.md"
        return f"[{name_of(shape)}]({file}#{name_of(shape).lower()})"

    return link


def _shape(shape: type[Shape], link: Link) -> Iterator[str]:
    yield from (
        f"### {name_of(shape)}",
        from_docs(" ".join((shape.__doc__ or "").split()), "reference/commands"),
    )
    own = fields_of(shape)
    base = next((each for each in _COMMON if each is not shape and issubclass(shape, each)), None)
    if base is not None:
        theirs = {field.name for field in fields_of(base)}
        own = [field for field in own if field.name not in theirs]
        yield f"The fields of {link(base)}, and:"
    rows = ["| field | type | |", "|---|---|---|"]
    for field in own:
        unit = f" ({field.unit})" if field.unit else ""
        when = f" (only {_when(field.when)})" if field.when else ""
        what = from_docs(field.what, "reference/commands")
        rows.append(f"| `{field.name}` | {worded(field.type, link)}{unit} | {what}{when} |")
    yield "\n".join(rows)


def _when(when: str) -> str:
    return f"with {when}" if when.startswith("`") else f"if {when}"


def _shapes_in(kinds: Iterable[Any]) -> list[type[Shape]]:
    """The structs that are one of these types or a part of it, in the order in which they are met."""
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

    for kind in kinds:
        meet(kind)
    return found


def name_of(shape: type[Shape]) -> str:
    """What it is called on the page."""
    return shape.__name__.removesuffix("Json")


def worded(kind: Any, link: Link) -> str:
    """A type in the words of JSON."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is list:
        return f"array of {worded(inner[0], link)}"
    if origin is dict:
        return "object" if inner[1] is Any else f"object of {worded(inner[1], link)}"
    if origin is Literal:
        return ", ".join(f"`{word}`" for word in inner)
    if origin in (Union, UnionType):
        return " or ".join(worded(each, link) for each in inner if each is not UnsetType)
    if isinstance(kind, type) and issubclass(kind, Shape):
        return link(kind)
    return _PLAIN[kind]
