"""What an embedder can name: all that the public methods take, give and raise comes from `greenroom` and the public
modules beside it."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import subprocess
import sys
import types
import typing
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pytest
from tests.support import in_virtual_time
from tests.support.rooms import open_room, teach
from tests.support.rows import for_each
from tools.public_surface import FILE, MODULES, public_names, surface

import greenroom
from greenroom import CallError, ConfigError, Reach, Target, ToolResult, UsageError
from greenroom.catalogue.index import Index
from greenroom.protocol import errors
from greenroom.testing.fake_servers import FakeServer, tool

PUBLIC = {id(value): value for module in MODULES for value in public_names(module).values()}
IN_TESTS = public_names("greenroom.testing").values()
# Inside of what is public: no caller is given one to keep, or only a door of ours is.
INNER = {
    "Call",
    "CallLine",
    "Connector",
    "Desk",
    "Directory",
    "ToolDocument",
    "Host",
    "Index",
    "LiveServers",
    "Membership",
    "PinKey",
    "ProfileView",
    "Ranking",
    "SearchCache",
}
CLASSES = [value for value in PUBLIC.values() if isinstance(value, type) and value not in IN_TESTS]
ODD = [None, [], "nonsense", {}, {"type": "string"}, {"properties": []}, {"type": ["object", "null"]}]


@cache
def _names_of(module: types.ModuleType) -> dict[str, Any]:
    """A module's names, with those that it imports for type checkers only."""
    names = dict(vars(module))
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for line in node.body:
                if isinstance(line, ast.ImportFrom):
                    home = importlib.import_module("." * line.level + (line.module or ""), module.__package__)
                    names |= {one.asname or one.name: getattr(home, one.name) for one in line.names}
                elif isinstance(line, ast.Import):
                    names |= {one.name: importlib.import_module(one.name) for one in line.names}
    return names


def _functions(cls: type) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """The public methods and properties of a class, each with the names of its module."""
    for base in cls.__mro__:
        if not base.__module__.startswith("greenroom"):
            continue
        names = _names_of(sys.modules[base.__module__])
        for name, member in vars(base).items():
            if name.startswith("_"):
                continue
            match member:
                case property():
                    found = member.fget
                case cached_property():
                    found = member.func
                case classmethod() | staticmethod():
                    found = member.__func__
                case _:
                    found = member
            found = inspect.unwrap(found) if callable(found) else None
            if inspect.isfunction(found):
                # A method of `greenroom.sync` may be written beside its class, another below it.
                theirs = sys.modules.get(found.__module__)
                own = _names_of(theirs) if theirs and found.__module__.startswith("greenroom") else {}
                yield f"{cls.__name__}.{name}", found, own | names


def _ours(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and hint.__module__.startswith("greenroom"):
        yield hint
    for part in typing.get_args(hint):
        for one in part if isinstance(part, list) else [part]:
            yield from _ours(one)


@for_each("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_whatever_a_public_method_takes_and_gives_can_be_imported(cls: type) -> None:
    for where, function, names in _functions(cls):
        written = {key: str(value) for key, value in function.__annotations__.items()}
        for key, text in written.items():
            # Before 3.13 a generator must say what it is sent.
            text = re.sub(r"^((?:Async)?Generator)\[(.*)\]$", r"\1[\2, None]", text)
            text = re.sub(r"^Generator\[(.*), None\]$", r"Generator[\1, None, None]", text)
            hint = eval(text, names)
            for found in _ours(hint):
                assert id(found) in PUBLIC or found.__name__ in INNER, f"{where} ({key}) has {found.__name__}"


def test_whatever_is_raised_can_be_imported_and_a_call_raises_one_kind() -> None:
    named = {
        name
        for cls in CLASSES
        for _, function, _ in _functions(cls)
        for name in re.findall(
            r"`([A-Z][A-Za-z]+)s?`", " ".join((function.__doc__ or "").partition("Raises")[1:])
        )
        if hasattr(errors, name)
    }
    assert named >= {"UnknownTool", "AmbiguousTool", "UnknownServer", "CallError", "ConfigError"}
    all_errors = {
        name for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, Exception)
    }
    assert named <= all_errors <= {*public_names("greenroom.errors")}
    for name in all_errors - {"GreenroomError", "ConfigError", "RpcRefusal"}:
        assert issubclass(getattr(errors, name), CallError), name


@in_virtual_time
async def test_all_that_a_call_raises_is_a_call_error() -> None:
    twins = {name: FakeServer(tools=[tool("do_it")], strict_json=True) for name in "ab"}
    servers = {**twins, "apart": FakeServer(), "sick": FakeServer(refuse_start="no")}
    entries = {
        "apart": {"isolation": "per_session"},
        "a": {"toolPrefix": "none"},
        "b": {"toolPrefix": "none"},
    }
    async with open_room(servers, entries=entries) as room:
        for name, server in servers.items():
            await teach(room, name, [] if name == "sick" else server.tools)
        calls: list[tuple[str, dict[str, Any]]] = [
            ("nobody_has_this", {}),
            ("do_it", {}),
            ("x", {"server": "nowhere"}),
            ("a_do_it", {"arguments": ["no object"]}),
            ("apart_echo", {}),
            ("sick_tool", {}),
            ("a_do_it", {"arguments": {"x": object()}}),
        ]
        for name, options in calls:
            with pytest.raises(CallError) as caught:
                await room.call(name, **options)
            error = caught.value
            assert error.reach is Reach.NOT_SENT
            assert json.loads(json.dumps(error.as_dict()))["reach"] == "not_sent"
            assert error.as_dict()["code"] == error.code
    report = room.drain_report
    assert report is not None
    assert report.adds_up
    assert report.refusals == {
        "ambiguous_tool": 1,
        "connect_failed": 1,
        "invalid_args": 1,
        "server_not_found": 1,
        "session_needed": 1,
        "tool_not_found": 1,
    }
    assert report.refused == sum(report.refusals.values())
    assert "1 ambiguous_tool" in str(report)


def test_what_is_hidden_from_an_error_is_hidden_from_all_its_texts_and_nothing_else_is_changed() -> None:
    def without(text: str) -> str:
        return text.replace("hunter2", "•••")

    error = errors.Unavailable("a", failed_ago=1.5, retry_in=3, reason="exited: hunter2")
    error.hide(without)
    assert "hunter2" not in str(error.as_dict())
    assert (error.failed_ago, error.retry_in, error.reach) == (1.5, 3, Reach.NOT_SENT)
    names = errors.AmbiguousTool("hunter2_x", ("a_hunter2", "b"))
    names.hide(without)
    assert "hunter2" not in str(names.as_dict())
    assert names.candidates == ("a_•••", "b")


def test_an_error_says_all_it_knows_as_an_object() -> None:
    lost = errors.ServerLost("gone", server="a", reach=Reach.SENT, exit_code=3, stderr_tail=("one", "two"))
    assert lost.as_dict() == {
        "code": "call_failed",
        "message": "gone",
        "server": "a",
        "reach": "sent",
        "tool": None,
        "exit_code": 3,
        "stderr_tail": ["one", "two"],
        "kind": "other",
    }
    broken = ConfigError([errors.Problem("mcp.json", "is empty")])
    assert broken.as_dict()["problems"] == [
        {"where": "mcp.json", "what": "is empty", "fatal": True, "code": "config_error", "step": ""}
    ]
    assert UsageError("no", code="x").as_dict()["code"] == "x"
    assert json.dumps(list(Reach)) == '["not_sent", "sent", "answered"]'


# ---- tools, for other people's models ----------------------------------------------------------------------------

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def _target(record: dict[str, Any]) -> Target:
    from greenroom.catalogue.entries import ServerEntry
    from greenroom.config.model import ServerDefinition, Settings

    entry = ServerEntry("a", "", tools=(record,))
    [found] = Index.build({"a": ServerDefinition("a", command="x")}, {"a": entry}, Settings()).tools()
    return found


def test_a_target_speaks_three_dialects() -> None:
    target = _target({"name": "count", "description": "Counts", "inputSchema": SCHEMA, "title": "Count!"})
    assert target.to_openai() == {
        "type": "function",
        "function": {"name": "a_count", "description": "Counts", "parameters": SCHEMA},
    }
    assert target.to_anthropic() == {"name": "a_count", "description": "Counts", "input_schema": SCHEMA}
    assert (target.to_mcp().name, target.to_mcp().title) == ("a_count", "Count!")
    target.schema()["properties"]["n"]["type"] = "text"
    assert target.schema() == SCHEMA


@for_each(
    "said", [None, [], "nonsense", {}, {"type": "string"}, {"properties": []}, {"type": ["object", "null"]}]
)
def test_a_targets_schema_is_always_one_of_an_object(said: Any) -> None:
    schema = _target({"name": "odd", "inputSchema": said}).schema()
    assert (schema["type"], schema["properties"]) == ("object", {})
    assert _target({"name": "odd", "inputSchema": said}).to_mcp().name == "a_odd"
    assert _target({"name": "none"}).schema() == {"type": "object", "properties": {}}


def test_what_a_model_is_shown_is_what_the_door_shows(tmp_path: Path) -> None:
    image = {"type": "image", "data": "QUJD", "mimeType": "image/png"}
    link = {"type": "resource_link", "uri": "file:///a", "name": "a"}
    result = ToolResult({"content": [{"type": "text", "text": "x" * 100}, image, link]})
    assert result.for_model() == [
        result.content[0],
        image,
        {"type": "text", "text": "[Resource Link: a]\nURI: file:///a"},
    ]

    assert [block["type"] for block in result.for_model(max_bytes=90)] == ["text", "image"]
    kept: list[str] = []

    def save(text: str) -> Path:
        kept.append(text)
        return tmp_path / "whole.txt"

    [cut, same] = result.for_model(max_bytes=90, save=save)
    assert (str(tmp_path / "whole.txt") in cut["text"], same) == (True, image)
    assert kept[0].startswith("x" * 100)
    assert "not be saved" not in result.for_model(max_lines=1)[0]["text"]

    target = _target({"name": "count", "inputSchema": SCHEMA})
    failed = ToolResult({"content": [{"type": "text", "text": "too many"}], "isError": True}, target)
    assert failed.for_model()[0]["text"] == "Error: too many\n\nExpected parameters:\nn (integer) *required*"


@in_virtual_time
async def test_meta_goes_along_with_a_call() -> None:
    """With the progress token that is ours."""
    server = FakeServer()
    async with open_room({"a": server}) as room:
        result = await room.call("a_echo", {"x": 1}, meta={"team": "blue"}, on_progress=print)
        assert result.target is not None
        assert result.target.name == "a_echo"
        assert server.calls[0]["_meta"] == {"team": "blue"}


def test_the_front_door_has_few_names_and_the_surface_is_what_is_recorded() -> None:
    names = public_names("greenroom")
    assert len(names) <= 43
    assert dir(greenroom) == [*names]
    assert FILE.read_text(encoding="utf-8").splitlines() == "\n".join(surface()).splitlines(), (
        "run tools/public_surface.py"
    )


@for_each("module", MODULES)
def test_a_star_imports_all_public_names_and_nothing_else(module: str) -> None:
    found: dict[str, Any] = {}
    exec(f"from {module} import *", found)
    assert {name for name in found if not name.startswith("__")} == set(public_names(module))


def test_what_is_no_name_is_refused_and_loads_nothing() -> None:
    """Of each module in a process of its own, in which nothing else is imported."""
    code = f"""
import importlib, os, sys

def look(module):
    here = importlib.import_module(module)
    loaded = len([name for name in sys.modules if name.startswith("greenroom")])
    from greenroom import _lazy
    for name in ("__wrapped__", "_private"):
        assert not hasattr(here, name)
    assert len([name for name in sys.modules if name.startswith("greenroom")]) <= loaded + 1
    try:
        here.Nothing
    except AttributeError as error:
        print(error, flush=True)

for module in {MODULES!r}:
    if not os.fork():
        look(module)
        os._exit(0)
    os.wait()
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == [f"module '{module}' has no attribute 'Nothing'" for module in MODULES]


def test_a_name_is_looked_up_once_and_one_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(vars(greenroom), "Verdict", raising=False)
    found = greenroom.Verdict
    assert vars(greenroom)["Verdict"] is found
    with pytest.raises(AttributeError, match="module 'greenroom' has no attribute 'Nothing'"):
        greenroom.Nothing  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


def test_what_opens_a_room_loads_the_heart_and_the_core_alone() -> None:
    code = """
import sys
from greenroom import Greenroom
Greenroom
print(*sorted({name.split(".")[1] for name in sys.modules if name.startswith("greenroom.")}))
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert set(said.split()) - {"_lazy"} == {
        *("protocol", "actors", "supervisor"),
        *("config", "catalogue", "safety"),
    }


def test_the_reference_says_what_the_docstring_of_a_class_method_says() -> None:
    folder = Path("docs/reference")
    pages = " ".join(" ".join(each.read_text().split()) for each in folder.rglob("*.md"))

    said = {
        (value.__name__, name): " ".join(inspect.cleandoc(member.__func__.__doc__).split("\n\n")[0].split())
        for value in PUBLIC.values()
        if isinstance(value, type)
        for name, member in vars(value).items()
        if isinstance(member, classmethod) and not name.startswith("_") and member.__func__.__doc__
    }

    assert ("Greenroom", "open") in said
    assert [each for each, words in said.items() if words not in pages] == []
