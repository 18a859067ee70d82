"""The import-arrow check: it passes on this tree, and it bites on every way of breaking it."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.arrows import ROOMS, check_source, check_tests, check_tree

from greenroom.protocol.jsonrpc import terms as _terms

ROOT = Path(__file__).resolve().parents[2]


def complaints(path: str, source: str) -> list[str]:
    return [finding.text for finding, _ in check_source(path, source)]


def test_this_tree_has_no_finding() -> None:
    assert check_tree(ROOT) == []


@pytest.mark.parametrize("room", ["", ".protocol.jsonrpc", ".testing"])
def test_a_room_gives_every_name_that_it_promises_and_none_is_a_modules(room: str) -> None:
    """A module of the same name would take the place of what is promised, when that is looked up late."""
    package = importlib.import_module(f"greenroom{room}")
    modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    for name in getattr(package, "__all__", ()):
        assert name not in modules
        assert hasattr(package, name), name


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("protocol/x.py", "from .errors import Reach"),
        ("protocol/x.py", "import attrs, cattrs, enum, urllib.parse"),
        ("protocol/x.py", "from os import PathLike"),
        ("protocol/x.py", "import sys\nsys.intern('x')"),
        ("actors/x.py", "from ..protocol import errors"),
        ("actors/transports/x.py", "from ...protocol.errors import Reach"),
        ("actors/transports/x.py", "from ..peer import Peer"),
        ("actors/x.py", "from .. import __version__"),
        ("testing/x.py", "from ..actors.peer import Peer"),
        ("gateway/exposures/x.py", "from ..requests import Job"),
        ("cli/x.py", "from ..supervisor.room import Greenroom"),
        ("gateway/x.py", "from .. import Greenroom"),
        ("gateway/x.py", "import importlib\nimportlib.import_module(name)"),
        ("testing/servers/x.py", "from ...gateway import serve"),
        ("adapters/x.py", "from .. import Greenroom, InProcessDoor"),
        ("adapters/x.py", "from ..errors import CallError\nfrom ..config import Config\nfrom .y import z"),
    ],
)
def test_arrows_downwards_pass(path: str, source: str) -> None:
    assert complaints(path, source) == []


@pytest.mark.parametrize(
    ("path", "source", "said"),
    [
        ("protocol/x.py", "from ..actors import Ref", "protocol may not import actors"),
        ("actors/x.py", "from ..supervisor import Greenroom", "actors may not import supervisor"),
        ("actors/transports/x.py", "from ...gateway import x", "actors may not import gateway"),
        ("actors/x.py", "def f():\n    from ..supervisor import x", "actors may not import supervisor"),
        ("actors/x.py", "if TYPE_CHECKING:\n    from ..gateway import x", "actors may not import gateway"),
        ("actors/x.py", "import_module('..gateway')", "actors may not import gateway"),
        ("actors/x.py", "importlib.import_module(name)", "the front door stands above actors"),
        ("actors/x.py", "names_of(__name__, '..gateway')", "actors may not import gateway"),
        ("actors/x.py", "names_of(__name__, NAMES)", "the front door stands above actors"),
        ("supervisor/x.py", "from .. import gateway", "supervisor may not import gateway"),
        ("supervisor/x.py", "from .. import Greenroom", "the front door stands above supervisor"),
        ("supervisor/x.py", "def f():\n    import mcp.client", "does not speak MCP"),
        ("gateway/x.py", "from ..testing import servers", "testing is never imported"),
        ("cli/x.py", "from ..adapters import fastmcp", "adapters are imported by programs alone"),
        ("testing/x.py", "from ..adapters import fastmcp", "adapters are imported by programs alone"),
        ("adapters/x.py", "from ..gateway.endpoint import Outlet", "adapters use the public door alone"),
        ("adapters/x.py", "from ..config.model import Config", "adapters use the public door alone"),
        ("adapters/x.py", "from greenroom import Greenroom", "imports of ourselves are relative"),
        ("gateway/x.py", "import greenroom.protocol", "imports of ourselves are relative"),
        ("gateway/x.py", "from greenroom.catalogue import names", "imports of ourselves are relative"),
        ("protocol/x.py", "import anyio", "only the standard library"),
        ("protocol/x.py", "def f():\n    import httpx2", "only the standard library"),
        ("protocol/x.py", "import time", "protocol is pure"),
        ("protocol/x.py", "from pathlib import Path", "protocol is pure"),
        ("protocol/x.py", "import urllib.request", "protocol is pure"),
        ("protocol/x.py", "from urllib import request", "protocol is pure"),
        ("protocol/x.py", "async def f(): ...", "no `async`"),
        ("protocol/x.py", "async def f():\n    await g()", "no `await`"),
        ("protocol/x.py", "def f(p):\n    return open(p)", "no `open()`"),
        ("protocol/x.py", "import sys\nsys.stdout.write('x')", "no `sys.stdout`"),
        ("protocol/x.py", "from sys import stdin", "protocol is pure"),
    ],
)
def test_everything_else_is_a_finding(path: str, source: str, said: str) -> None:
    assert any(said in text for text in complaints(path, source))


def test_an_exception_nothing_needs_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "protocol").mkdir()
    (tmp_path / "protocol" / "x.py").write_text("import enum\n")

    (finding,) = check_tree(tmp_path, {("protocol/x.py", "anyio"): "no longer true"})

    assert "exception for anyio is not needed" in finding.text


def _tree(folder: Path, **files: str) -> Path:
    (folder / "actors").mkdir()
    for name, source in files.items():
        (folder / "actors" / f"{name}.py").write_text(source)
    return folder


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ('"""Heads.\n\n* `peer`: what is open\n"""', []),
        ('"""Heads."""', ["`actors.peer` is not for other rooms"]),
        ('"""Heads.\n\n* `peer`: what is open\n* `more`: nobody asks\n"""', ["no other room imports `more`"]),
    ],
)
def test_a_room_is_entered_by_what_its_head_names(tmp_path: Path, head: str, said: list[str]) -> None:
    for room, name, source in [
        ("actors", "__init__", head),
        ("actors", "peer", "x = 1"),
        ("actors", "more", ""),
        ("supervisor", "y", "from ..actors.peer import x"),
    ]:
        (tmp_path / room).mkdir(exist_ok=True)
        (tmp_path / room / f"{name}.py").write_text(source)
    findings = [finding.text for finding in check_tree(tmp_path, {}, {})]
    assert len(findings) == len(said)
    assert all(text in finding for text, finding in zip(said, findings, strict=True))


TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    "


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (
            {"_a": "from ._b import x", "_b": "from . import _a"},
            ["these import each other: actors._a, actors._b"],
        ),
        (
            {"_a": "from ._b import x", "_b": "def f():\n    from ._c import x", "_c": "from ._a import x"},
            ["these import each other: actors._a, actors._b, actors._c"],
        ),
        (
            {"_a": "from ._b import x", "_b": f"{TYPES}from ._a import x"},
            ["these name each other's types: actors._a, actors._b"],
        ),
        ({"_a": "from ._b import x", "_b": "import enum", "_c": "from ._a import x"}, []),
    ],
)
def test_files_that_import_each_other_are_a_finding(
    tmp_path: Path, files: dict[str, str], said: list[str]
) -> None:
    assert [finding.text for finding in check_tree(_tree(tmp_path, **files), {}, {})] == said


def test_a_cycle_in_types_may_be_listed_and_has_to_be_there(tmp_path: Path) -> None:
    tree = _tree(tmp_path, _a="from ._b import x", _b=f"{TYPES}from ._a import x")
    listed = {frozenset({"actors._a", "actors._b"}): "they are two halves"}
    assert check_tree(tree, {}, listed) == []

    (tree / "actors" / "_b.py").write_text("import enum")
    (finding,) = check_tree(tree, {}, listed)
    assert "are no such cycle any more" in finding.text


def test_what_waits_to_be_overridden_is_a_finding() -> None:
    (said,) = complaints("gateway/x.py", "def f():\n    raise NotImplementedError\n")
    assert "hand in what differs" in said


def _constants(tree: ast.AST) -> Iterator[object]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            yield node.value
        elif isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant):
            yield -node.operand.value if isinstance(node.operand.value, int) else None


def test_what_json_rpc_calls_things_is_written_in_one_place() -> None:
    terms: set[object] = set()
    for value in vars(_terms).values():
        if type(value) is int or (isinstance(value, str) and "/" in value and "\n" not in value):
            terms.add(value)
    terms |= {*_terms.HANDSHAKE_VERSIONS, *_terms.MODERN_VERSIONS}
    assert {-32601, "notifications/cancelled", "2025-11-25", "io.modelcontextprotocol/"} <= terms
    root = Path(__file__).resolve().parents[2]
    rooms = [path for room in ROOMS[:-1] for path in (root / room).rglob("*.py")]
    found = {
        f"{path.relative_to(root)}: {value}"
        for path in rooms
        if path.name != "terms.py"
        for value in _constants(ast.parse(path.read_text()))
        if value in terms
    }
    assert found == set()


def test_tests_come_into_another_room_by_a_door(tmp_path: Path) -> None:
    sources = {
        "actors/__init__.py": '"""Who acts.\n\n* `peer`: a peer\n"""',
        "actors/peer.py": "import anyio",
        "actors/inner.py": "import anyio",
        "actors/sums.py": "def total(a: int, b: int) -> int:\n    return a + b",
        "tests/actors/test_own.py": "from greenroom.actors.inner import x",
        "tests/gateway/test_good.py": "from greenroom.actors.peer import Peer\nfrom greenroom.actors.sums import total",
        "tests/gateway/test_bad.py": "from greenroom.actors import inner",
        "tests/config/test_lower.py": "from greenroom.actors.sums import total",
        "tests/whole/test_excused.py": "from greenroom.actors.inner import x",
        "tests/whole/test_needless.py": "from greenroom.actors.peer import Peer",
    }
    for path, source in sources.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(source)
    excused = dict.fromkeys(["tests/whole/test_excused.py", "tests/whole/test_needless.py"], "a reason")
    found = [finding.path for finding in check_tests(tmp_path, excused)]
    assert found == [
        "tests/config/test_lower.py",
        "tests/gateway/test_bad.py",
        "tests/whole/test_needless.py",
    ]
