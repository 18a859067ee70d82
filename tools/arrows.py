"""Import arrows: cli → cluster → gateway → supervisor → tape → safety → actors → catalogue → openapi → config →
protocol, in no other direction.

Every import statement counts, wherever it is: inside a function, under `TYPE_CHECKING`, or as the literal argument of
`importlib.import_module`. So this is our own script over the syntax trees: the usual tools only look at what runs at
import time, and a lazy import of a layer is an import all the same.

The rules:

* A room imports itself and the rooms below it. `testing` is above all of them, so no room imports it; its programs are
  only run as processes.
* `adapters` are above the command line, so no room imports them, and they import what any program may: the front door,
  `greenroom.errors`, `greenroom.events` and the head of `greenroom.config`.
* Inside the rooms, imports of Greenroom are relative. The gateway, the command line and `testing` may import the front
  door (`greenroom` itself). Every room may import its version.
* The head of a room (its `__init__.py`) names the modules that other rooms may import, one a line: "* `name`: what it
  is". All others are its own affair. Only `testing` may look inside, because that is its purpose. A module that is
  named there, and that no other room imports, is a finding too.
* No two files import each other at run time, directly or through others, wherever the import is. Groups of files that
  import each other only for types are listed in `TYPE_CYCLES`.
* The supervisor does not speak MCP, so it does not import the SDK.
* `protocol` is pure: it uses the standard library without clocks and I/O, attrs, cattrs and msgspec, and no `async`,
  `await`, `open` or `print`.

* Tests in `tests/<room>/` import that room, what the heads of the others name, pure modules of the rooms below, the
  command line's own door and `testing`; tests elsewhere what the heads name. So a wall inside a room can move, and only
  the tests of that room notice. `TESTS_INSIDE` lists the files that look into another room, and why.

And nothing raises `NotImplementedError`: what differs is handed in, and an interface is a `Protocol`. Lines and methods
are not counted: a file ends where its subject ends.

An exception must be listed in `EXCEPTIONS` or `TYPE_CYCLES`, with its reason. An exception that nothing needs any more
is itself a finding.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

# Lowest first.
ROOMS = (
    "protocol",
    "config",
    "openapi",
    "catalogue",
    "actors",
    "safety",
    "tape",
    "supervisor",
    "gateway",
    "cluster",
    "cli",
    "adapters",
    "testing",
)
RANK = {room: rank for rank, room in enumerate(ROOMS)}
UNKNOWN = "greenroom.?"  # what an import names that cannot be read
GROUND = frozenset({"_lazy"})  # beside the front door; imports the standard library alone

PURE_LIBRARIES = frozenset({"attr", "attrs", "cattrs", "msgspec"})
# fmt: off
NOT_PURE = frozenset({
    "asyncio", "concurrent", "ctypes", "datetime", "fcntl", "glob", "http", "importlib", "io",
    "logging", "mmap", "multiprocessing", "os", "pathlib", "queue", "random", "sched", "secrets",
    "select", "selectors", "shutil", "signal", "socket", "socketserver", "sqlite3", "ssl", "subprocess",
    "tempfile", "threading", "time", "urllib.request",
})
# fmt: on
PURE_ALL_THE_SAME = frozenset(
    {"os.PathLike", "pathlib.PurePath", "pathlib.PurePosixPath", "pathlib.PureWindowsPath"}
)
NOT_PURE_CALLS = frozenset({"open", "print", "input", "__import__"})
PURE_OF_SYS = frozenset({"byteorder", "intern", "maxsize", "version_info"})
SPEAKS_MCP = frozenset({"mcp", "mcp_types"})

EXCEPTIONS: Mapping[tuple[str, str], str] = {
    ("protocol/jsonrpc/outgoing.py", "io"): "BytesIO is memory",
    **dict.fromkeys(
        [("protocol/result.py", "mcp"), ("protocol/result.py", "mcp_types")],
        "to_mcp() builds the SDK's own type for an embedder who asks for it",
    ),
}
TYPE_CYCLES: Mapping[frozenset[str], str] = {
    frozenset({"actors.server", "actors.calls", "actors.incarnation", "actors.server_tasks"}): (
        "an actor, its calls, its incarnation and the tasks of that name each other's types; at run time the actor "
        "imports the others"
    ),
    frozenset({"gateway.endpoint", "gateway.tasks"}): (
        "a client's session makes the jobs of its tasks, which it is given; neither imports the other at run time"
    ),
}
_COMMAND = ("cli", "main")  # the door of the command line
TESTS_INSIDE: Mapping[str, str] = {
    **dict.fromkeys(
        ["tests/models/circuit_breaker.py", "tests/models/pool.py"],
        "a model decides with the values of the policy that it is the model of",
    ),
    **dict.fromkeys(
        [
            "tests/soak/fuzz/_targets.py",
            "tests/protocol/test_fuzz_wire.py",
            "tests/torture/test_torture_floods.py",
        ],
        "each reader of foreign bytes is fed alone, or its answers could not be told from those around it",
    ),
    **dict.fromkeys(
        ["tests/support/http_door.py", "tests/support/stdio.py", "tests/support/shapes.py"],
        "it opens one door, one connection or one table for the tests of their room",
    ),
    **dict.fromkeys(
        ["tests/actors/test_login.py", "tests/config/test_trust.py", "tests/safety/test_pinning.py"],
        "a login, a trust or a pin is given by a command, and the command's own parts are tested with it",
    ),
    **dict.fromkeys(
        ["tests/gateway/test_attach_joining.py"],
        "what attaches is a command, and its door is the gateway",
    ),
    **dict.fromkeys(
        [
            "tests/catalogue/test_unhiding.py",
        ],
        "what an upper room makes of the same bytes is compared with what is made of them here",
    ),
    **dict.fromkeys(
        [
            "tests/safety/test_approval_desk.py",
            "tests/supervisor/test_bugs_of_ours.py",
            "tests/torture/test_torture_forged.py",
        ],
        "a fault, or a moment, is planted where no user can bring it about",
    ),
    **dict.fromkeys(
        [
            "tests/supervisor/test_reload.py",
            "tests/whole/test_company_machine.py",
            "tests/whole/test_call_cost.py",
        ],
        "it counts what one change or one call costs inside",
    ),
    **dict.fromkeys(
        [
            "tests/actors/test_installs.py",
            "tests/config/test_secret_commands.py",
            "tests/supervisor/test_optional_parts.py",
            "tests/whole/test_other_users.py",
        ],
        "one bound or one place that two rooms share is named, and read from the room that has it",
    ),
}


class Finding(NamedTuple):
    """One arrow that points the wrong way: where, and what to do about it."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


class Import(NamedTuple):
    """One imported thing: `target` is absolute and dotted; `relative` says how it was written."""

    target: str
    line: int
    relative: bool


@cache
def parsed(source: str) -> ast.Module:
    return ast.parse(source)


@cache
def walked(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Every node. Several checks look at the same file."""
    return tuple(ast.walk(tree))


def main(root: Path) -> int:
    """Check the tree at `root` and print each finding. Returns 1 when there is one."""
    findings = check_tree(root)
    for finding in findings:
        print(finding)
    return 1 if findings else 0


def check_tree(
    root: Path,
    exceptions: Mapping[tuple[str, str], str] = EXCEPTIONS,
    type_cycles: Mapping[frozenset[str], str] = TYPE_CYCLES,
    tests_inside: Mapping[str, str] | None = None,
) -> list[Finding]:
    """All findings of the rooms below `root` and of their tests, unused exceptions included."""
    used: set[tuple[str, str]] = set()
    findings: list[Finding] = []
    for room in ROOMS:
        for file in sorted((root / room).rglob("*.py")):
            path = file.relative_to(root).as_posix()
            allowed = {target for where, target in exceptions if where == path}
            for finding, target in check_source(path, file.read_text(encoding="utf-8")):
                if target in allowed:
                    used.add((path, target))
                else:
                    findings.append(finding)
    findings += check_cycles(root, type_cycles)
    findings += check_heads(root)
    findings += check_tests(root, tests_inside)
    for name in sorted(GROUND):
        findings += check_ground(f"src/greenroom/{name}.py", root)
    findings += [
        Finding(path, 0, f"the exception for {target} is not needed")
        for path, target in exceptions
        if (path, target) not in used
    ]
    return findings


def check_ground(path: str, root: Path) -> Iterator[Finding]:
    """Check the modules below all rooms, if the tree has them."""
    file = root / path
    if not file.exists():
        return
    for item in imports(path, parsed(file.read_text(encoding="utf-8"))):
        if item.target == UNKNOWN and path.endswith("/_lazy.py"):
            continue  # what it is called with is judged where that stands
        if item.target.split(".", 1)[0] not in sys.stdlib_module_names:
            yield Finding(
                path, item.line, f"the ground imports the standard library alone, not `{item.target}`"
            )


def check_source(path: str, source: str) -> Iterator[tuple[Finding, str]]:
    """Each finding of one file, with what it is about (the imported top-level name, or the construct)."""
    room = path.split("/", 1)[0]
    tree = parsed(source)
    for item in imports(path, tree):
        complaint = judge(room, item)
        if complaint:
            yield Finding(path, item.line, complaint), item.target.split(".", 1)[0]
    for line, what, complaint in unfinished(tree):
        yield Finding(path, line, complaint), what
    if room == "protocol":
        for line, construct in impure(tree):
            yield Finding(path, line, f"protocol is pure: no `{construct}` here"), construct


def unfinished(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """What waits to be overridden: the line, what it is about, and what to do."""
    for node in walked(tree):
        if isinstance(node, ast.Name) and node.id == "NotImplementedError":
            text = "no `NotImplementedError`: hand in what differs; an interface is a `Protocol` with `...`"
            yield node.lineno, node.id, text


def judge(room: str, item: Import) -> str | None:
    """What is wrong with `room` importing this, in words; None when nothing is."""
    head, _, rest = item.target.partition(".")
    if head == "greenroom" and room == "adapters":
        return _judge_public(rest, item.relative)
    if head == "greenroom":
        return _judge_own(room, rest.split(".", 1)[0], item.relative)
    if room == "protocol":
        return _judge_pure(item.target)
    if room == "supervisor" and head in SPEAKS_MCP:
        return f"the supervisor does not speak MCP: move what needs `{head}` into actors"
    return None


_NAMED = re.compile(r"^\* `([\w.]+)`", re.MULTILINE)


def opened(root: Path) -> dict[str, frozenset[str]]:
    """The modules of each room that others may import, as its head names them."""
    heads = {room: root / room / "__init__.py" for room in ROOMS[:-1]}
    return {
        room: frozenset(_NAMED.findall(ast.get_docstring(parsed(head.read_text(encoding="utf-8"))) or ""))
        for room, head in heads.items()
        if head.exists()
    }


def check_heads(root: Path) -> Iterator[Finding]:
    """What is imported of another room's own affairs, and what a head offers in vain."""
    named, used = opened(root), set[tuple[str, str]]()
    files = _files(root)
    paths = {name: file.relative_to(root).as_posix() for name, file in files.items()}
    for name, file in files.items():
        room = name.split(".", 1)[0]
        for item in imports(paths[name], parsed(file.read_text(encoding="utf-8"))):
            other, _, module = _file_of(item.target, files).partition(".")
            if other in (room, "") or other not in named or not module:
                continue
            if module in named[other]:
                used.add((other, module))
            elif room != "testing":
                text = f"`{other}.{module}` is not for other rooms: name it in the head of `{other}`, or do without"
                yield Finding(paths[name], item.line, text)
    for room in named:
        for module in sorted(named[room]):
            if (room, module) not in used:
                yield Finding(f"{room}/__init__.py", 0, f"no other room imports `{module}`")


def check_tests(root: Path, inside: Mapping[str, str] | None = None) -> Iterator[Finding]:
    """What tests import of another room's own affairs. `inside`: the files that may, each with its reason."""
    inside, named, files = TESTS_INSIDE if inside is None else inside, opened(root), _files(root)
    for file in sorted((root / "tests").rglob("*.py")):
        path = file.relative_to(root).as_posix()
        room, looks_inside = path.split("/")[1], False
        for item in imports(path, parsed(file.read_text(encoding="utf-8"))):
            other, _, module = _file_of(item.target, files).partition(".")
            if (
                not module
                or other in (room, "testing")
                or module in named[other]
                or (other, module) == _COMMAND
            ):
                continue
            source = files[f"{other}.{module}"].read_text(encoding="utf-8")
            if RANK[other] < RANK.get(room, 0) and _is_pure(source, f"{other}/x.py"):
                continue
            looks_inside = True
            if path not in inside:
                yield Finding(
                    path, item.line, f"`{other}.{module}` is not for tests of `{room}`: come in by a door"
                )
        if path in inside and not looks_inside:
            yield Finding(path, 0, "it need not be in `TESTS_INSIDE`")
    for path in inside:
        if (root / "tests").exists() and not (root / path).exists():
            yield Finding(path, 0, "it is in `TESTS_INSIDE` and not there")


@cache
def _is_pure(source: str, path: str) -> bool:
    """Whether it may be tested as a function of its arguments: no clock, no I/O, nothing that waits."""
    tree = parsed(source)
    others = (item.target for item in imports(path, tree) if not item.relative)
    return not any(impure(tree)) and not any(map(_judge_pure, others))


def check_cycles(root: Path, type_cycles: Mapping[frozenset[str], str]) -> Iterator[Finding]:
    """Files that import each other. Those of `type_cycles` may do so in types."""
    files = _files(root)
    paths = {name: file.relative_to(root).as_posix() for name, file in files.items()}
    everything: dict[str, set[str]] = {}
    at_work: dict[str, set[str]] = {}
    for name, file in files.items():
        tree = parsed(file.read_text(encoding="utf-8"))
        in_types = {line for block in _type_blocks(tree) for line in range(block.lineno, _end(block) + 1)}
        found = [(_file_of(item.target, files), item.line) for item in imports(paths[name], tree)]
        everything[name] = {target for target, _ in found} - {name, ""}
        at_work[name] = {target for target, line in found if line not in in_types} - {name, ""}
    running, in_types = cycles(at_work), cycles(everything)
    for cycle in running:
        yield Finding(paths[min(cycle)], 0, f"these import each other: {', '.join(sorted(cycle))}")
    for cycle in in_types:
        if cycle not in type_cycles and cycle not in running:
            yield Finding(paths[min(cycle)], 0, f"these name each other's types: {', '.join(sorted(cycle))}")
    for cycle in type_cycles:
        if cycle <= files.keys() and cycle not in in_types:
            yield Finding(paths[min(cycle)], 0, f"{', '.join(sorted(cycle))} are no such cycle any more")


def _files(root: Path) -> dict[str, Path]:
    """The files of all rooms, by their dotted names below `greenroom`."""
    return {
        file.relative_to(root)
        .as_posix()
        .removesuffix(".py")
        .removesuffix("/__init__")
        .replace("/", "."): file
        for room in ROOMS
        for file in (root / room).rglob("*.py")
    }


def _type_blocks(tree: ast.AST) -> list[ast.stmt]:
    """The statements that only type checkers run."""
    blocks = (
        node for node in walked(tree) if isinstance(node, ast.If) and _named(node.test) == "TYPE_CHECKING"
    )
    return [statement for block in blocks for statement in block.body]


def _end(statement: ast.stmt) -> int:
    return statement.end_lineno or statement.lineno


def _file_of(target: str, files: Collection[str]) -> str:
    """The imported file: the longest part of the target that is one of our files; empty when there is none."""
    name = target.removeprefix("greenroom.") if target.startswith("greenroom.") else ""
    while name and name not in files:
        name = name.rpartition(".")[0]
    return name


def cycles(graph: Mapping[str, Collection[str]]) -> list[frozenset[str]]:
    """The groups of nodes that all reach each other."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        seen, ahead = set[str](), [start]
        while ahead:
            for other in graph[ahead.pop()]:
                if other not in seen:
                    seen.add(other)
                    ahead.append(other)
        reached[start] = seen
    groups = {
        frozenset(other for other in seen if start in reached[other])
        for start, seen in reached.items()
        if start in seen
    }
    return sorted(groups, key=min)


def _judge_own(room: str, name: str, relative: bool) -> str | None:
    if not relative:
        return (
            "inside the packages imports of ourselves are relative: write `from ..<room>.<module> import …`"
        )
    if name == "adapters" != room:
        return "adapters are imported by programs alone"
    if name == "__version__" or (name in GROUND and room != "protocol"):
        return None
    if name not in RANK:
        return (
            None
            if RANK[room] >= RANK["gateway"]
            else f"the front door stands above {room}: import the room you mean"
        )
    if RANK[name] <= RANK[room]:
        return None
    if name == "testing":
        return "testing is never imported by the others, only run as a process"
    return f"{room} may not import {name}: arrows go {' → '.join(reversed(ROOMS[:-2]))}"


def _judge_public(name: str, relative: bool) -> str | None:
    """An adapter uses its own room and the public door alone."""
    if not relative:
        return _judge_own("adapters", name, relative)
    first, _, rest = name.partition(".")
    if first not in RANK or first == "adapters" or (first == "config" and "." not in rest):
        return None
    return f"adapters use the public door alone, not `{first}`: import it from `..`, or do without"


def _judge_pure(target: str) -> str | None:
    head = target.split(".", 1)[0]
    prefixes = {target[:end] for end, letter in enumerate(target) if letter == "."} | {target}
    if prefixes & PURE_ALL_THE_SAME:
        return None
    if prefixes & NOT_PURE or (head == "sys" and target.removeprefix("sys.") not in {"sys", *PURE_OF_SYS}):
        return f"protocol is pure: `{head}` has a clock, a source of chance or I/O; pass its value in"
    if head in sys.stdlib_module_names or head in PURE_LIBRARIES:
        return None
    return f"protocol may import only the standard library, attrs, cattrs and msgspec, not `{head}`"


def imports(path: str, tree: ast.AST) -> Iterator[Import]:
    """Every imported name, at whatever depth, made absolute. `path` is relative to the folder of the rooms."""
    package = ["greenroom", *path.removesuffix(".py").split("/")][:-1]
    for node in walked(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, False) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(package, node.module or "", node.level)
            yield from (Import(f"{base}.{alias.name}", node.lineno, node.level > 0) for alias in node.names)
        elif isinstance(node, ast.Call) and _named(node.func) in {"import_module", "names_of"}:
            yield from _dynamic(package, node)


def _absolute(package: list[str], module: str, level: int) -> str:
    parents = package[: len(package) - level + 1] if level else []
    return ".".join([*parents, *([module] if module else [])])


def _dynamic(package: list[str], call: ast.Call) -> Iterator[Import]:
    """`import_module("..x")` and `names_of(__name__, "._x")` are judged as imports. What cannot be read is judged as
    the front door."""
    match call.args[-1:] if _named(call.func) == "names_of" else call.args[:1]:
        case [ast.Constant(value=str(said))]:
            level = len(said) - len(said.lstrip("."))
            yield Import(_absolute(package, said[level:], level), call.lineno, level > 0)
        case _:
            yield Import(UNKNOWN, call.lineno, True)


def impure(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """What a pure module may not contain besides imports."""
    for node in walked(tree):
        match node:
            case ast.AsyncFunctionDef() | ast.AsyncFor() | ast.AsyncWith():
                yield node.lineno, "async"
            case ast.Await():
                yield node.lineno, "await"
            case ast.comprehension(is_async=1):
                yield node.iter.lineno, "async for"
            case ast.Call(func=ast.Name(id=name)) if name in NOT_PURE_CALLS:
                yield node.lineno, f"{name}()"
            case ast.Attribute(value=ast.Name(id="sys"), attr=name) if name not in PURE_OF_SYS:
                yield node.lineno, f"sys.{name}"
            case _:
                pass


def _named(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parent.parent))
