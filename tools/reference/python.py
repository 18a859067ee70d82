"""The pages of what a program can import, with their docstrings: a page for each class, from `Greenroom` on.

The names are those of `docs/public-surface.txt`, and the signatures those of `tools.public_surface`, so that both say
the same. Where a name is told:

* A class that does something has a page of its own.
* The functions of a module stand on one page, and what has only fields, or is a word, on another.
* Errors and events have pages in the reference already, by their codes and kinds (`ELSEWHERE`).
* A class that is another one again (`greenroom.sync.Room`) names the methods that it has in common with that one, and
  tells what is different.
* A page of many members begins with links to them, for the largest class by what one wants (`WANTED`), and ends with
  the names for types that its signatures use. How a class is made is told only where a program makes it (`MADE_BY`).
* The adapters are read from their source, because their frameworks need not be there.

Rejected: a page for each name. A record of three fields is read beside what returns it.
"""

from __future__ import annotations

import ast
import enum
import functools
import importlib
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from importlib.util import resolve_name
from pathlib import Path
from typing import Any, Final

import attrs
from tools.package_tree import folder_of
from tools.public_surface import MODULES, members, public_names, signed

from greenroom import GreenroomError
from greenroom.config.model import PROFILE_KEYS, SERVER_KEYS, SETTING_KEYS

from .events import comments_of
from .markdown import anchor, page, table

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = "python"
HEADS: Final = {
    "greenroom": "What a program opens, gets, and catches most. [In your own program](../programs.md) shows it in use.",
    "greenroom.sync": "The same room for programs without an event loop. "
    "[Without an event loop](../sync.md) shows how.",
    "greenroom.testing": "What tests use. [Testing](../testing.md) shows how. These modules are imported by "
    "themselves: `greenroom.testing.pytest_plugin` ([fixtures](../testing.md#fixtures-for-pytest)), "
    "`greenroom.testing.strategies` and `greenroom.testing.room_machine` ([property tests](../property-tests.md)), "
    "and `greenroom.protocol.lifecycle`, the states and effects that those strategies draw.",
    "greenroom.cluster.front": "A room whose servers run on many machines. [Many machines](../cluster.md) shows how.",
    "greenroom.config": "The model of a configuration. Each record names the keys that its fields are read from, and "
    "[keys of a server](servers.md) and [settings](settings.md) say what they mean.",
    "greenroom.errors": "[Errors](errors.md) has all of them, by their codes.",
    "greenroom.events": "[Events](events.md) has all of them, with their fields.",
}
ELSEWHERE: Final = {"greenroom.errors": "errors.md", "greenroom.events": "events.md"}
FIRST: Final = (
    "Greenroom",
    "open",
    "replay",
    "Room",
    "Session",
    "ToolResult",
    "CallError",
    "Reach",
    "Target",
)
# A class, and the one whose methods it has again.
LIKE: Final[Mapping[str, str]] = {
    "greenroom.Session": "greenroom.Greenroom",
    "greenroom.sync.Room": "greenroom.Greenroom",
    "greenroom.sync.Session": "greenroom.Greenroom",
    "greenroom.sync.CallTask": "greenroom.CallTask",
    "greenroom.sync.CallStream": "greenroom.CallStream",
    "greenroom.sync.ModelTools": "greenroom.ModelTools",
}
# What one wants of a class with many members, and those for it. Each member stands somewhere.
WANTED: Final[Mapping[str, Mapping[str, str]]] = {
    "greenroom.Greenroom": {
        "open and close": "open replay start ready session aclose",
        "call": "call call_many stream_call start_task needs_approval typed_arguments request",
        "call for a model": "tools_for call_for_model run_tool_calls",
        "list and search": (
            "tools search find describe resources templates prompts skills entry catalogued settled refresh"
        ),
        "read": "read_resource subscribe get_prompt complete read_skill",
        "manage servers": "connect drain restart reconnect reload accept config roots_changed set_log_level",
        "observe": "status tree events drain_report recent_tape tape run_id",
    },
}
# Classes that no program calls, and what gives it one.
MADE_BY: Final[Mapping[str, str]] = {
    "greenroom.Session": "`room.session(name)`",
    "greenroom.CallStream": "`room.stream_call`",
    "greenroom.CallTask": "`room.start_task`",
    "greenroom.CallView": "a room, for its [watchers](watcher.md)",
    "greenroom.ModelTools": "`room.tools_for`",
    "greenroom.Subscription": "`room.events`",
    "greenroom.Updates": "`room.subscribe`",
    "greenroom.testing.FakeCall": "a [fake server](testing-fake-server.md), for each call",
}
# The example of a class: the page that has it, and what it defines. Tests run these blocks.
EXAMPLES: Final[Mapping[str, tuple[str, str]]] = {
    "greenroom.Greenroom": ("README.md", "async def main"),
    "greenroom.Session": ("docs/programs.md", "async def note("),
    "greenroom.ToolResult": ("docs/programs.md", "async def weekday("),
    "greenroom.CallError": ("docs/programs.md", "async def call_again_once("),
    "greenroom.CallStream": ("docs/programs.md", "async def with_progress("),
    "greenroom.CallTask": ("docs/programs.md", "async def in_the_background("),
    "greenroom.Subscription": ("docs/programs.md", "async def watch("),
}
KEYS: Final = {
    "greenroom.config.ServerDefinition": (SERVER_KEYS, "servers.md"),
    "greenroom.config.Settings": (SETTING_KEYS, "settings.md"),
    "greenroom.config.Profile": (PROFILE_KEYS, "settings.md"),
}
_NAME: Final = re.compile(r"\b[A-Z]\w*[a-z]\w*")  # of a type
_LISTED: Final = 4  # members from which on a page begins with a list of them
ADAPTERS: Final = {
    "fastmcp": "FastMCP, and what takes a client of it",
    "mcp_sdk": "what takes a session of the MCP SDK (DSPy, LlamaIndex)",
    "openai_agents": "OpenAI Agents",
    "pydantic_ai": "Pydantic AI",
    "langchain": "LangChain and LangGraph",
    "claude_agent_sdk": "Claude Agent SDK",
    "google_adk": "Google ADK",
    "inspect_ai": "Inspect AI",
    "verifiers": "verifiers",
    "asgi": "Starlette and FastAPI",
}


@attrs.frozen
class Name:
    """A name that can be imported: where, what it is, and where it is told, from `docs/reference/`."""

    module: str
    name: str
    value: Any
    file: str
    heading: str

    @property
    def full(self) -> str:
        return f"{self.module}.{self.name}"

    @property
    def has_page(self) -> bool:
        return self.file.startswith(f"{FOLDER}/") and not self.heading

    @property
    def target(self) -> str:
        return f"{self.file}#{self.heading}" if self.heading else self.file


def python_pages(others: Mapping[str, str]) -> Mapping[str, str]:
    """All pages by their names, the one that leads to them first. `others`: those of errors and events."""
    assert HEADS.keys() == set(MODULES), "tools/reference/python.py has no head for a public module"
    names = list(_names(others))
    where = {each.full: each for each in names}
    pages: dict[str, str] = {}
    parts: list[str] = []
    for module in HEADS:
        own = [each for each in names if each.module == module]
        parts += [f"## {module}", HEADS[module]]
        if module in ELSEWHERE:
            continue
        parts.append(table(("name", ""), [(f"[`{each.name}`]({each.target})", _first(each)) for each in own]))
        for each in own:
            if each.has_page:
                pages[each.file] = page(f"# {_title(each)}", *_class(each, where, level="##"))
        for file, kind in ((_functions_of(module), "functions"), (_records_of(module), "records and words")):
            if rest := [each for each in names if each.file == file]:
                told = [
                    part for each in rest for part in (f"## {each.name}", *_class(each, where, level="###"))
                ]
                pages[file] = page(f"# {module}: {kind}", *told)
    parts += [
        "## greenroom.adapters",
        "A room in a framework, a module for each. [In an agent framework](../frameworks.md) shows each in use.",
        table(
            ("module", "for"),
            [(f"[`{name}`]({FOLDER}/adapters-{_file(name)}.md)", what) for name, what in ADAPTERS.items()],
        ),
    ]
    pages |= {f"{FOLDER}/adapters-{_file(name)}.md": _adapter(name) for name in ADAPTERS}
    head = page(
        "# Python",
        "Every module and name that a program can import. All others are internal. "
        "[public-surface.txt](../public-surface.txt) has the same names without "
        "explanations. `make check` fails when it no longer agrees with the code.",
        *parts,
    )
    return {"python.md": head, **pages}


def _names(others: Mapping[str, str]) -> Iterator[Name]:
    """Every name, once."""
    seen: set[int] = set()
    for module in HEADS:
        for name, value in _in_order(public_names(module)):
            if id(value) not in seen or isinstance(value, str | int | float):
                seen.add(id(value))
                yield Name(module, name, value, *_place(module, name, value, others))


def _in_order(names: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The alphabet, behind what most readers have come for."""
    return sorted(names.items(), key=lambda item: FIRST.index(item[0]) if item[0] in FIRST else len(FIRST))


def _place(module: str, name: str, value: Any, others: Mapping[str, str]) -> tuple[str, str]:
    """The page on which a name is told, and its heading there."""
    has_page = _does_something(value) or f"{module}.{name}" in EXAMPLES
    if module not in ("greenroom.config", *ELSEWHERE) and has_page:
        return f"{FOLDER}/{_before(module) if module != 'greenroom' else ''}{_file(name)}.md", ""
    if inspect.isclass(value) and issubclass(value, GreenroomError):
        return _told("errors.md", anchor(name), others)
    if module == "greenroom.events":
        return _told("events.md", anchor(name), others)
    if inspect.isfunction(value):
        return _functions_of(module), anchor(name)
    return _records_of("greenroom" if module in ELSEWHERE else module), anchor(name)


def _told(file: str, heading: str, others: Mapping[str, str]) -> tuple[str, str]:
    headings = {anchor(line.lstrip("# ")) for line in others[file].splitlines() if line.startswith("#")}
    assert heading in headings, f"{file} has no heading {heading}"
    return file, heading


def _does_something(value: Any) -> bool:
    """Whether it is a class with methods, and not with properties alone."""
    return inspect.isclass(value) and any(
        not isinstance(inspect.getattr_static(value, name), property | functools.cached_property)
        for name, _ in _methods(value)
    )


def _functions_of(module: str) -> str:
    return f"{FOLDER}/{_before(module)}functions.md"


def _records_of(module: str) -> str:
    return f"{FOLDER}/{_before(module)}records.md"


def _before(module: str) -> str:
    """How the names of the pages of a module begin."""
    return f"{module.removeprefix('greenroom.').replace('.', '-')}-"


def _file(name: str) -> str:
    """`CallStream` and `call_stream`: call-stream."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_", "-", name).lower()


def _title(name: Name) -> str:
    return (
        name.name if name.module == "greenroom" else f"{name.module.removeprefix('greenroom.')}.{name.name}"
    )


def _first(name: Name) -> str:
    """The first sentence of what a thing says of itself."""
    said = " ".join((_said(name.value) or _comment_of(name.module, name.name)).split())
    assert said, f"{name.full} says nothing"
    return re.split(r"(?<=[.…])\s(?=[A-Z`])|: `", said, maxsplit=1)[0].rstrip(":")


def _said(value: Any) -> str:
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        return ""
    said = value.__doc__ or ""
    return "" if inspect.isclass(value) and said.startswith(f"{value.__name__}(") else inspect.cleandoc(said)


# ---- a class or a function -------------------------------------------------------------------------------------------


def _class(name: Name, where: Mapping[str, Name], *, level: str) -> Iterator[str]:
    value = name.value
    yield f"```python\nfrom {name.module} import {name.name}\n```"
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        yield f"`{type(value).__name__}`: {_comment_of(name.module, name.name)}."
        return
    lines = list(signed(name.name, value))
    if inspect.isclass(value) and not issubclass(value, enum.Enum):
        made = [line.strip() for line in lines[1:2] if line.strip().startswith("__init__")]
        given = hasattr(value, "open") or name.full in MADE_BY
        calls = [] if given else [_made_by(name.name, line) for line in made]
        lines = [*(lines[:1] if "(" in lines[0] else []), *calls]  # its bases, and how it is made
    if lines:
        yield "\n".join(["```python", *map(_wrapped, lines), "```"])
    if said := _said(value):
        yield _text(said)
    if name.full in MADE_BY:
        yield f"Made by {MADE_BY[name.full]}."
    if name.full in EXAMPLES:
        file, defined = EXAMPLES[name.full]
        blocks = re.findall(r"```python\n.*?```", (ROOT / file).read_text(encoding="utf-8"), re.DOTALL)
        [block] = [each for each in blocks if f"\n{defined}" in each]
        yield block
    if name.full in KEYS:
        keys, file = KEYS[name.full]
        headed = keys is not PROFILE_KEYS
        rows = [
            (
                f"`{key.attribute}`",
                f"[`{key.name}`](../{file}#{anchor(key.name if headed else 'Keys of a profile')})",
            )
            for key in keys
        ]
        yield table(("field", "key"), rows)
    if inspect.isclass(value) and issubclass(value, enum.Enum):
        said_of = comments_of(value)
        assert not (bare := {each.name for each in value} - said_of.keys()), (
            f"{name.full} says nothing of {bare}"
        )
        rows = [(f"`{each.name}`", f"`{each.value!r}`", said_of[each.name]) for each in value]
        yield table(("member", "value", "meaning"), rows)
    if inspect.isclass(value) and name.full not in KEYS:  # those are lists of keys
        parts = [*_members(name, where, level)]
        yield from parts
        lines += [part for part in parts if part.startswith("```")]
    if name.has_page and inspect.isclass(value) and (types := _types(value, "\n".join(lines))):
        yield f"{level} Types"
        yield table(("name", "stands for"), [(f"`{each}`", f"`{meant}`") for each, meant in types.items()])


def _members(name: Name, where: Mapping[str, Name], level: str) -> Iterator[str]:
    again = where.get(LIKE.get(name.full, ""))
    before = dict(_methods(again.value)) if again else {}
    plain: list[tuple[str, str]] = []
    same: dict[str, str] = {}
    own: dict[str, str] = {}
    told: list[str] = []
    for member, line in sorted(members(name.value), key=_rank):
        function = _function(inspect.getattr_static(name.value, member, None))
        if not callable(function):
            plain.append((member, line))
        elif again and _plain(before.get(member, "")) == _plain(line):
            same[member] = _link(again, member)
        else:
            code = "\n".join(["```python", _wrapped(line.removesuffix("  # read only")), "```"])
            said = inspect.getdoc(function)
            assert said, f"{name.full}.{member} says nothing"
            heading = f"{name.value.__name__}.{member}"
            own[member] = f"[`{member}`](#{anchor(heading)})"
            told += [f"{level} {heading}", code, _parameters(said, function)]
    if plain:
        yield fields(name.value, dict(plain))
    if same and again:
        waits = ", without `await`" if name.module == "greenroom.sync" else ""
        yield f"As those of [`{again.name}`]({_beside(again)}){waits}:{_listed(same, again)}"
    if len(own) >= _LISTED:
        yield _listed(own, name).strip()
    for base in where.values():
        if base.has_page and base.value in name.value.__bases__:
            links = {member: _link(base, member) for member, _ in _methods(base.value) if member not in own}
            yield f"Besides, what every [`{base.name}`]({_beside(base)}) has:{_listed(links, base)}"
    yield from told


def _beside(name: Name) -> str:
    """The page of a name, from another page of the folder."""
    return name.file.removeprefix(f"{FOLDER}/")


def _link(name: Name, member: str) -> str:
    return f"[`{member}`]({_beside(name)}#{anchor(f'{name.name}.{member}')})"


def _listed(links: Mapping[str, str], of: Name) -> str:
    """Members of a class, behind a colon: by what one wants of them, or one after the other."""
    wanted = WANTED.get(of.full)
    if wanted is None:
        return f" {', '.join(links.values())}."
    lost = links.keys() - " ".join(wanted.values()).split()
    assert not lost, f"tools/reference/python.py says nowhere what one wants of {lost}"
    rows = [
        (what, ", ".join(links[each] for each in group.split() if each in links))
        for what, group in wanted.items()
    ]
    return "\n\n" + table(("to", ""), [row for row in rows if row[1]])


def _types(value: type[Any], shown: str) -> Mapping[str, str]:
    """The names for types in what is shown of a class that are no classes, and what each stands for."""
    modules = [base.__module__ for base in value.__mro__ if base.__module__.startswith("greenroom")]
    found: dict[str, str] = {}
    waiting = sorted(set(_NAME.findall(shown)))
    while waiting:
        name = waiting.pop(0)
        meant = next(filter(None, (_meant(module, name) for module in modules)), None)
        if meant and name not in found:
            found[name], module = meant
            modules.append(module)
            waiting += _NAME.findall(found[name])
    return found


@functools.cache
def _meant(module: str, name: str) -> tuple[str, str] | None:
    """What a name for a type stands for, and the module that says so; None: it is a class, or not ours."""
    imported = importlib.import_module(module)
    for node in ast.walk(ast.parse(inspect.getsource(imported))):
        match node:
            case ast.Assign(targets=[ast.Name(id=found)], value=meant) if found == name:
                return None if isinstance(meant, ast.Call) else (ast.unparse(meant), module)
            case ast.ImportFrom(module=source, names=names, level=up) if up:
                for each in names:
                    if (each.asname or each.name) == name:
                        told_by = resolve_name("." * up + (source or ""), imported.__package__)
                        return _meant(told_by, each.name)
            case _:
                pass
    return None


def _comment_of(module: str, name: str) -> str:
    """The comment behind the line that defines a constant, in `module` or in what it has imported that from."""
    line = re.compile(rf"^{name}\b[^#\n]*#\s+(.*)$", re.MULTILINE)
    for loaded in [each for path, each in sys.modules.items() if path.startswith(module)]:
        if name in vars(loaded) and (found := line.search(inspect.getsource(loaded))):
            return found[1]
    raise AssertionError(f"{module}.{name} says nothing")


def _rank(member: tuple[str, str]) -> int:
    """`open` and `call` come before the alphabet."""
    return {"open": 0, "call": 1}.get(member[0], 2)


def fields(value: type[Any], lines: Mapping[str, str]) -> str:
    """The fields of a class: a table where its source says what they mean, else their names and types."""
    ours = [base for base in reversed(value.__mro__) if base.__module__.startswith("greenroom")]
    said = {name: words for base in ours for name, words in comments_of(base).items() if name in lines}
    above = " ".join(inspect.getdoc(base) or "" for base in ours)
    told = {name for name in lines if re.search(rf"`{name}\b", above)}
    assert not (lost := lines.keys() - said - told), f"{value.__name__} says nothing of {lost}"
    if said:
        assert not (bare := lines.keys() - said), f"{value.__name__}: no comment says what {bare} is"
        types = {name: line.partition(": ")[2] for name, line in lines.items()}
        given = inspect.signature(value.__init__).parameters
        types |= {name: given[name].annotation for name in lines if not types[name] and name in given}
        rows = [(f"`{name}`", f"`{types[name]}`" if types[name] else "", said[name]) for name in lines]
        return table(("field", "type", "meaning"), rows)
    arguments = getattr(value, "__struct_fields__", None) or inspect.signature(value.__init__).parameters
    given = set(arguments) - {"self"}
    if given and given <= lines.keys():
        rest = [f"`{line}`" for name, line in lines.items() if name not in given]
        return f"Fields: its arguments{', and ' if rest else ''}{', '.join(rest)}."
    return "Fields: " + ", ".join(f"`{line}`" for line in lines.values()) + "."


def _methods(value: type[Any]) -> Iterator[tuple[str, str]]:
    """The members that have a heading, each with its line."""
    for name, line in members(value):
        if callable(_function(inspect.getattr_static(value, name, None))):
            yield name, line


def _plain(line: str) -> str:
    """A signature without what says how to wait for it."""
    waits = line.replace("AbstractContextManager", "AsyncGenerator").removesuffix("  # read only")
    return re.sub(r"^(async def|async with|with|def) ", "", waits)


def _function(member: object) -> object:
    """What is below a property (`fget`), a cached one (`func`), a class method or a static one."""
    for wrapped in ("fget", "func", "__func__"):
        if found := getattr(member, wrapped, None):
            return found
    return member


def _text(said: str) -> str:
    """A docstring as Markdown: its paragraphs joined, its lists and blocks as they are."""
    parts = re.split(r"\n\s*\n", said)
    joined = [
        part if re.match(r"\s*(?:[-*] |    |>>>|```)", part) else " ".join(part.split()) for part in parts
    ]
    return "\n\n".join(joined)


def _parameters(said: str, function: Any) -> str:
    """A docstring as Markdown, with its list of parameters (`* NAME: meaning`) as a table that has their defaults."""
    before, star, rest = said.partition("\n\n* `")
    if not star:
        return _text(said)
    listed, _, after = rest.partition("\n\n")
    given = inspect.signature(function).parameters
    rows: list[tuple[str, str, str]] = []
    for each in listed.split("\n* `"):
        name, _, meaning = " ".join(each.split()).partition("`: ")
        default = given[name].default
        shown = "–" if default is inspect.Parameter.empty else f"`{default!r}`"
        rows.append((f"`{name}`", shown, meaning))
    assert (lost := given.keys() - {name.strip("`") for name, _, _ in rows} - {"cls", "self"}) <= {
        "options"
    }, lost
    return "\n\n".join(
        [_text(before), table(("parameter", "default", "meaning"), rows), _text(after)]
    ).strip()


def _made_by(name: str, init: str) -> str:
    """How a class is called, from the signature of its `__init__`."""
    return init.replace("__init__", name, 1).removesuffix(" -> None")


def _wrapped(line: str) -> str:
    """A signature as it is called, without `self`; of a long one, a parameter on each line."""
    line = re.sub(r"\((?:self|cls)(?:, |(?=\)))", "(", line)
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


# ---- adapters --------------------------------------------------------------------------------------------------------


def _adapter(name: str) -> str:
    module = ast.parse((folder_of(ROOT, "adapters") / f"{name}.py").read_text(encoding="utf-8"))
    head, _, rest = (ast.get_docstring(module) or "").partition("\n\n")
    shown = next((part for part in rest.split("\n\n") if part.startswith("    ")), "")
    extra = "" if name in ("asgi", "mcp_sdk") else f"[Extra](../../installing.md#extras): `{_file(name)}`."
    parts = [" ".join(head.split()), shown, extra]
    for node in module.body:
        if isinstance(
            node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        ) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{name}.{node.name} says nothing"
            parts += _defined(node, name)
    return page(f"# adapters.{name}", *parts)


def _defined(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, module: str) -> Iterator[str]:
    code: list[str] = []
    made: list[ast.FunctionDef | ast.AsyncFunctionDef] = []
    if isinstance(node, ast.ClassDef):
        made = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
        code += [f"class {node.name}({', '.join(map(ast.unparse, node.bases))})"] if node.bases else []
        calls = [_signed(each).removeprefix("def ") for each in made if each.name == "__init__"]
        code += [_wrapped(_made_by(node.name, each)) for each in calls]
    else:
        code.append(_wrapped(_signed(node)))
    yield f"## {node.name}"
    yield f"```python\nfrom greenroom.adapters.{module} import {node.name}\n```"
    if code:
        yield "\n".join(["```python", *code, "```"])
    yield _text(ast.get_docstring(node) or "")
    for each in made:
        said = ast.get_docstring(each)
        if said and each.name == "__init__":
            yield _text(said)
        elif said and not each.name.startswith("_"):
            yield from (
                f"### {node.name}.{each.name}",
                f"```python\n{_wrapped(_signed(each))}\n```",
                _text(said),
            )


def _signed(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    kind = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    parameters = re.sub(r"(?<=[\w\]])=(?=[\w'({\[-])", " = ", ast.unparse(node.args))
    return f"{kind} {node.name}({parameters}){returns}"
