"""The pages of events and metrics, from `protocol/events.py` and `observe/metrics.py`.

What a field means is its comment in the source, so a field without one is an assertion here.
"""

from __future__ import annotations

import ast
import enum
import inspect
import re
import textwrap
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final

from greenroom.observe.metrics import METRICS
from greenroom.protocol import address, errors, event_records, events, lifecycle

from ..public_surface import field_types
from .markdown import page, table

_COMMENT: Final = re.compile(r"#\s+(.*)$")
_LAST: Final = {"in_flight": "inFlight"}  # at the end of every line
_WORDS: Final = {
    "str": "string", "int": "integer", "float": "seconds", "bool": "boolean", "None": "null",
}  # fmt: skip


def event_page() -> str:
    kinds = [each for each in vars(events).values() if _is_event(each)]
    sections: list[str] = []
    for each in kinds:
        sections += [f"## {each.__name__}", f"*Kind:* `{each.kind.value}`", _said(each)]
        own = _rows(each)
        if own:
            sections.append(table(("field", "type", "meaning"), own))
    words: list[str] = []
    for each in _enums(kinds):
        words += [f"### {each.__name__}", _said(each)]
        comments = comments_of(each)
        rows = [(f"`{member.value}`", comments.get(member.name, "")) for member in each]
        assert all(said for _, said in rows), (
            f"{each.__name__}: each word needs a comment that says what it means"
        )
        words.append(table(("word", "meaning"), rows))
    return page(
        "# Events",
        "Everything that happens in a room is an event. The events form one ordered stream: `room.events()` in a "
        "program, "
        "and the JSON lines of `serve --events FILE`. The log and the metrics come from it, too. "
        "[How the stream works](../architecture.md#one-stream).",
        "In JSON, `event` is the name of the class, and `detail` says in words what happened. A field with its "
        "default value "
        "is left out, except for words. If a field has another name in JSON, that name is in brackets.",
        "## Event",
        "The fields of all events.",
        table(("field", "type", "meaning"), _rows(events.Event)),
        "## CallEvent",
        "The additional fields of events of calls.",
        table(("field", "type", "meaning"), _rows(events.CallEvent)),
        *sections,
        "## Lagged",
        f'{_said(events.Lagged)} In JSON: `{{"kind": "lagged", "missed": N}}`.',
        "## Words",
        *words,
    )


def metric_page() -> str:
    rows = [
        (f"`{each.exported}`", each.kind, ", ".join(f"`{label}`" for label in each.labels) or "–", each.text)
        for each in METRICS
    ]
    return page(
        "# Metrics",
        "`/metrics` of `serve --http`, for Prometheus and OpenMetrics, if the setting "
        "[`http.metrics`](settings.md#httpmetrics) is on (extra `metrics`). The only labels are servers, words of "
        "ours, and as many tools as [`http.metricsTools`](settings.md#httpmetricstools) allows. "
        "[Over HTTP](../http.md) says who may read it.",
        table(("metric", "kind", "labels", "meaning"), rows),
    )


def _is_event(value: Any) -> bool:
    return (
        inspect.isclass(value)
        and issubclass(value, events.Event)
        and value not in (events.Event, events.CallEvent)
    )


def _said(each: type[Any]) -> str:
    """The docstring; of a class without one, that of its base."""
    said = inspect.getdoc(each)
    assert said, f"{each.__name__} says nothing"
    return " ".join(said.split())


def _rows(each: type[Any]) -> list[tuple[str, str, str]]:
    """The fields of a class that are not those of its base."""
    base = each.__mro__[1] if issubclass(each.__mro__[1], events.Event) else None
    common = field_types(base) if base else {}
    comments = {
        name: said
        for base in reversed(each.__mro__)
        if issubclass(base, events.Event)
        for name, said in comments_of(base).items()
    }
    rows: list[tuple[str, str, str]] = []
    for field, kind in field_types(each).items():
        if field in common:
            continue
        assert comments.get(field), f"{each.__name__}.{field} has no comment that says what it is"
        rows.append((f"`{field}`" + _in_json(field), _type(kind), comments[field]))
    return rows


def _in_json(name: str) -> str:
    """How the field is called in JSON, if it is otherwise."""
    if name in event_records.SAID and name not in ("seq", "at", "in_flight", "queued"):
        return " (`server`, `scope`)" if name == "address" else " (in `detail`)"
    other = _LAST.get(name) or event_records.KEYS.get(name, name)
    return "" if other == name else f" (`{other}`)"


def _type(said: str) -> str:
    names = re.sub(r"[A-Za-z_]+\.", "", said).split(" | ")
    return " or ".join(_WORDS.get(name) or _linked(name) for name in names)


def _linked(name: str) -> str:
    kind = next((vars(module)[name] for module in _MODULES if name in vars(module)), None)
    is_enum = inspect.isclass(kind) and issubclass(kind, enum.Enum)
    return f"[{name}](#{name.lower()})" if is_enum else name


_MODULES: Final[tuple[ModuleType, ...]] = (events, lifecycle, errors, address)


def _enums(kinds: list[Any]) -> list[type[enum.Enum]]:
    """The enumerations that a reader meets: those that are types of fields, in the order in which they are met."""
    found: list[type[enum.Enum]] = [events.Kind]
    for each in kinds:
        for said in field_types(each).values():
            for name in re.findall(r"\w+", said):
                kind = next((vars(module)[name] for module in _MODULES if name in vars(module)), None)
                if inspect.isclass(kind) and issubclass(kind, enum.Enum) and kind not in found:
                    found.append(kind)
    return [*found, lifecycle.Means]


def comments_of(each: type[Any]) -> dict[str, str]:
    """Name -> the comment behind the line that defines it, in the body of this class itself or of its `__init__`."""
    source = textwrap.dedent(inspect.getsource(each))
    body = next(node.body for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    lines = source.splitlines()
    return dict(_found(body, lines))


def _found(body: list[ast.stmt], lines: list[str]) -> Iterator[tuple[str, str]]:
    for node in body:
        match node:
            case (
                ast.AnnAssign(target=ast.Name(id=name) | ast.Attribute(attr=name))
                | ast.Assign(targets=[ast.Name(id=name) | ast.Attribute(attr=name)])
            ):
                said = _COMMENT.search(lines[(node.end_lineno or node.lineno) - 1])
                if said:
                    yield name, said[1]
            case ast.FunctionDef(name="__init__", body=inner):
                yield from _found(inner, lines)
            case _:
                pass
