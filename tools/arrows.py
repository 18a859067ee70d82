"""What the rooms of the package may import, and what a pure module may do. `[tool.importlinter]` has the contracts:
which room imports which, no circles, adapters. Here is what a contract cannot say:

* The head of a room (its `__init__.py`) names the modules that other rooms may import, one a line: "* `name`: what it
  is". All others are its own affair. `testing` may look inside any room but the supervisor (`ROOM_INSIDE` may). A
  module that is named and that no other room imports is a finding too.
* A door reaches a room through its port: other rooms import the port's types alone (`TYPES_ALONE`), and what is behind
  a port (`BEHIND_THE_PORT`) is nobody's to look at. Without that, whoever has a port could go through it to everything.
* `protocol` and the policies are pure: the standard library without clocks and I/O, attrs, cattrs and msgspec; no
  `async`, no `open`, no `print`.
* A wait ends by a timer of the room (`actors.timers`), so no `CancelScope` has a deadline; ruff refuses all others.
* Imports are relative and can be read: none by a text that begins with a dot, but for what is loaded beforehand.
* Nothing raises `NotImplementedError`: what differs is handed in, and an interface is a `Protocol`.
* Tests come into another room by what its head names, by the command line's door, or by pure modules of the rooms
  below, so a wall inside a room can move. `TESTS_INSIDE` has those that look further; one that need not is a finding.

Rejected: all of it by a script, which had to read imports, layers and circles itself.
"""

from __future__ import annotations

import ast
import os
import re
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tools.package_tree import copy_package

ROOT: Final = Path(__file__).resolve().parent.parent
CONTRACTS: Final = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"][
    "contracts"
]
_LAYERS: Final = [name for layer in CONTRACTS[0]["layers"] for name in layer.split(" | ")]
_NO_ROOMS: Final = {"__main__", "_names", "_lazy", "errors", "events", "sync"}
ROOMS: Final = tuple(name for name in reversed(_LAYERS) if name not in _NO_ROOMS)
"""Lowest first."""

ROOM_INSIDE: Final = "greenroom.testing.room_inside"
TYPES_ALONE: Final = ("greenroom.supervisor.port", "greenroom.supervisor.profiles")
BEHIND_THE_PORT: Final = {"runtime", "_runtime", "in_loop"}  # and what is at its `live`
LOADED_BEFOREHAND: Final = {"greenroom.supervisor.connectors", "greenroom._lazy"}
PURE: Final = re.compile(r"greenroom\.(protocol|supervisor\.policy)(\.|$)")
IMPURE: Final = (
    "asyncio concurrent ctypes datetime fcntl glob http importlib io logging mmap multiprocessing os pathlib queue "
    "random sched secrets select selectors shutil signal socket socketserver sqlite3 ssl subprocess tempfile threading "
    "time"
)
PURE_IMPORTS: Final = {"attr", "attrs", "cattrs", "msgspec", *sys.stdlib_module_names}.difference(
    IMPURE.split()
)
PURE_NAMES: Final = set(
    "io.BytesIO os.PathLike sys.byteorder sys.intern sys.maxsize sys.version_info "
    "pathlib.PurePath pathlib.PurePosixPath pathlib.PureWindowsPath".split()
)
TO_MCP: Final = {
    ("greenroom.protocol.result", "mcp"),
    ("greenroom.protocol.result", "mcp_types"),
}  # for who asks for it
TESTS_INSIDE: Final = {
    "models.circuit_breaker": "a model decides with the values of the policy that it is the model of",
    "models.pool": "a model decides with the values of the policy that it is the model of",
    "soak.fuzz._targets": "each reader of foreign bytes is fed alone",
    "protocol.test_fuzz_wire": "each reader of foreign bytes is fed alone",
    "torture.test_torture_floods": "each reader of foreign bytes is fed alone",
    "support.http_door": "it opens one door for the tests of its room",
    "support.memory_client": "it opens one endpoint for the tests of its room",
    "actors.test_login": "a login is given by a command, whose parts are tested with it",
    "config.test_trust": "a trust is given by a command, whose parts are tested with it",
    "safety.test_pinning": "a pin is given by a command, whose parts are tested with it",
    "gateway.test_attach_joining": "what attaches is a command, and its door is the gateway",
    "gateway.test_changed_tapes": "one tape is shown to all that read tapes",
    "gateway.test_secrets_of_tapes": "one tape is shown to all that read tapes",
    "catalogue.test_unhiding": "what an upper room makes of the same bytes is compared",
    "safety.test_approval_desk": "a moment is planted where no user can bring it about",
    "torture.test_torture_forged": "a fault is planted where no user can bring it about",
    "actors.test_core_actor": "who keeps core actors running is behind the port",
    "support.books": "where a room ends is behind the port",
    "supervisor.test_reload": "it counts what one change costs inside",
    "whole.test_company_machine": "it counts what one call costs inside",
    "whole.test_call_cost": "it counts what one call costs inside",
    "actors.test_installs": "one bound that two rooms share is named",
    "config.test_secret_commands": "one bound that two rooms share is named",
    "whole.test_other_users": "one place that two rooms share is named",
}


class Source(NamedTuple):
    """One file of the package, by its dotted name."""

    name: str
    tree: ast.Module

    def said(self, line: int, text: str) -> str:
        return f"{self.name}:{line}: {text}"


class Arrow(NamedTuple):
    """One import: who, where, what, and how it is written."""

    importer: str
    line: int
    target: str
    text: str

    @property
    def room(self) -> str:
        return _room_of(self.importer)

    @property
    def other(self) -> str:
        """The room of a module inside one; empty for a head and for the front door."""
        return _room_of(self.target) if self.target.count(".") > 1 else ""

    def said(self, text: str) -> str:
        return f"{self.importer}:{self.line}: {text}"


def _room_of(name: str) -> str:
    return name.split(".")[1] if "." in name else ""


def main(tree: Path | None = None) -> int:
    """Check the package in `tree`, a folder with `greenroom`, as a type checker reads it, or that of this repository,
    and the tests of both. Prints each finding. Returns 1 when there is one."""
    with tempfile.TemporaryDirectory() as folder:
        if tree is None:
            tree = Path(folder)
            copy_package(ROOT, tree / "greenroom", os.symlink)
        sys.path.insert(0, str(tree))
        from importlinter.cli import lint_imports

        broken = lint_imports(str(ROOT / "pyproject.toml"), no_cache=True, no_logo=True)
        findings = sorted(check(tree))
    print(*findings, sep="\n", end="\n" if findings else "")
    return 1 if broken or findings else 0


def check(tree: Path) -> Iterator[str]:
    """What is wrong in the package at `tree` and in its tests."""
    from grimp import build_graph

    graph = build_graph("greenroom", "tests", cache_dir=None)
    running = build_graph("greenroom", exclude_type_checking_imports=True, cache_dir=None)
    files = {name: _source(tree, name) for name in running.modules}
    heads = {room: files[f"greenroom.{room}"] for room in ROOMS[:-1]}
    named = {f"greenroom.{room}.{module}" for room, head in heads.items() for module in _named(head)}
    used, looking_inside = set[str](), set[str]()
    for name in graph.modules:
        for target in graph.find_modules_directly_imported_by(name) & files.keys():
            at = graph.get_import_details(importer=name, imported=target)[0]
            arrow = Arrow(name, at["line_number"], target, at["line_contents"].lstrip())
            if name in files:
                yield from check_arrow(arrow, named)
                at_work = running.direct_import_exists(importer=name, imported=target)
                if at_work and target in TYPES_ALONE and arrow.room in ROOMS and arrow.room != arrow.other:
                    yield arrow.said(f"`{target}` is imported for types alone: get a port from `room`")
                used |= {target} if arrow.room != arrow.other else set()
            elif arrow.room != arrow.other and target not in named and _is_inside(arrow, files[target]):
                looking_inside.add(name)
                if name.removeprefix("tests.") not in TESTS_INSIDE:
                    yield arrow.said(f"`{target}` is not for tests of `{arrow.room}`: come in by a door")
    for file in files.values():
        yield from check_code(file)
    yield from (f"{target}: no other room imports it, so a head need not name it" for target in named - used)
    listed = {f"tests.{name}" for name in TESTS_INSIDE}
    yield from (f"{name}: it need not be in `TESTS_INSIDE`" for name in listed - looking_inside)
    for said in next(contract for contract in CONTRACTS if contract.get("id") == "circles")["ignore_imports"]:
        importer, target = said.split(" -> ")
        if target in running.find_modules_directly_imported_by(importer):
            yield f"{importer}: it imports `{target}` in a circle, and not for types alone"


def check_arrow(arrow: Arrow, named: set[str]) -> Iterator[str]:
    """What is wrong with an import of one file of the package by another, besides its direction."""
    if not arrow.text.startswith("from ."):
        yield arrow.said("imports of ourselves are relative")
    inside = arrow.room == "testing" and (arrow.other != "supervisor" or arrow.importer == ROOM_INSIDE)
    of_another = arrow.room in ROOMS and arrow.other not in (arrow.room, "")
    if of_another and arrow.target not in named and not inside:
        yield arrow.said(f"the head of its room does not name `{arrow.target}`: do without")


def _is_inside(arrow: Arrow, target: Source) -> bool:
    """Whether a test looks at what is another room's own affair: no module that is tested as a function of its
    arguments, in a room below."""
    if arrow.other in ("", "testing") or arrow.target in (
        "greenroom.cli.main",
        "greenroom.cli.command_group",
    ):
        return False
    below = ROOMS[: ROOMS.index(arrow.room)] if arrow.room in ROOMS else ()
    return arrow.other not in below or any(impure(target))


def check_code(file: Source) -> Iterator[str]:
    """What one file must not do."""
    room = _room_of(file.name)
    above = room in ROOMS[ROOMS.index("supervisor") + 1 :] and file.name != ROOM_INSIDE
    for node in ast.walk(file.tree):
        match node:
            case ast.Name(id="NotImplementedError"):
                yield file.said(node.lineno, "hand in what differs; an interface is a `Protocol` with `...`")
            case ast.Call(func=ast.Attribute(attr="CancelScope"), keywords=given) if room != "testing":
                if file.name != "greenroom.actors.timers" and any(one.arg == "deadline" for one in given):
                    yield file.said(
                        node.lineno, "a deadline of the loop reads nothing first: take `actors.timers`"
                    )
            case ast.Call(
                func=ast.Name(id="import_module") | ast.Attribute(attr="import_module"), args=[what, *_]
            ):
                dotted = isinstance(what, ast.Constant) and str(what.value).startswith(".")
                if dotted and file.name not in LOADED_BEFOREHAND:
                    yield file.said(node.lineno, "write the import, so that it can be read")
            case ast.Attribute(attr=name, value=of) if above and (
                name in BEHIND_THE_PORT or (isinstance(of, ast.Attribute) and of.attr == "live")
            ):
                yield file.said(
                    node.lineno, f"`.{name}` is behind the port: give `supervisor.port` a look with a name"
                )
            case _:
                pass
    if PURE.match(file.name):
        yield from (file.said(line, f"`{what}` is not pure") for line, what in impure(file))


def impure(file: Source) -> Iterator[tuple[int, str]]:
    """What waits, has a clock or chance, or reads and writes: the line and the thing."""
    for node in ast.walk(file.tree):
        match node:
            case ast.AsyncFunctionDef() | ast.AsyncFor() | ast.AsyncWith() | ast.Await():
                yield node.lineno, "async"
            case ast.Call(func=ast.Name(id=("open" | "print" | "input" | "__import__") as name)):
                yield node.lineno, name
            case ast.Attribute(value=ast.Name(id="sys"), attr=name) if f"sys.{name}" not in PURE_NAMES:
                yield node.lineno, f"sys.{name}"
            case ast.Import(names=names):
                yield from ((node.lineno, one.name) for one in names if not _is_pure(file.name, one.name))
            case ast.ImportFrom(module=str(module), names=names, level=0):
                whole = (f"{module}.{one.name}" for one in names)
                yield from ((node.lineno, one) for one in whole if not _is_pure(file.name, one))
            case _:
                pass


def _is_pure(importer: str, name: str) -> bool:
    top = name.partition(".")[0]
    if name in PURE_NAMES or (importer, top) in TO_MCP:
        return True
    return top in PURE_IMPORTS and not name.startswith(("urllib.request", "sys."))


def _source(tree: Path, name: str) -> Source:
    path = tree.joinpath(*name.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return Source(name, ast.parse(path.read_bytes()))


def _named(head: Source) -> list[str]:
    return re.findall(r"^\* `([\w.]+)`", ast.get_docstring(head.tree) or "", re.MULTILINE)


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
