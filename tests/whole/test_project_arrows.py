"""The import contracts and what stands beside them: they pass on this tree, and bite on every way of breaking it."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.arrows import CONTRACTS, ROOMS
from tools.package_tree import copy_package, folder_of

from greenroom.protocol.jsonrpc import terms as _terms

ROOT = Path(__file__).resolve().parents[2]
TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    "

# A new file of the package, what is in it, and what is said of it.
FAULTS = [
    (
        "actors/x1.py",
        "def f():\n    from ..supervisor import room",
        "greenroom.actors.x1 -> greenroom.supervisor.room (l.2)",
    ),
    (
        "config/x2.py",
        f"{TYPES}from ..gateway import serve",
        "greenroom.config.x2 -> greenroom.gateway.serve (l.3)",
    ),
    ("supervisor/x3.py", "from .. import Greenroom", "greenroom.supervisor.x3 -> greenroom (l.1)"),
    (
        "gateway/x4.py",
        "from ..testing import fake_servers",
        "greenroom.gateway.x4 -> greenroom.testing.fake_servers (l.1)",
    ),
    ("cli/x5.py", "from ..adapters import shared", "greenroom.cli.x5 -> greenroom.adapters.shared (l.1)"),
    (
        "adapters/x6.py",
        "from ..gateway.serve import x",
        "greenroom.adapters.x6 -> greenroom.gateway.serve (l.1)",
    ),
    ("supervisor/x7.py", "def f():\n    import mcp.client", "greenroom.supervisor.x7 -> mcp (l.2)"),
    (
        "openapi/x8.py",
        "from ..catalogue import names",
        "greenroom.openapi.x8 -> greenroom.catalogue.names (l.1)",
    ),
    ("tape/x9.py", "from . import x10", "No cycles are allowed in greenroom.tape."),
    ("tape/x10.py", "def f():\n    from .x9 import x", "No cycles are allowed in greenroom.tape."),
    (
        "gateway/y1.py",
        "import greenroom.protocol.errors",
        "greenroom.gateway.y1:1: imports of ourselves are relative",
    ),
    (
        "gateway/y2.py",
        "from importlib import import_module\nimport_module('..cli.main')",
        "y2:2: write the import",
    ),
    ("gateway/y3.py", "from ..supervisor import servers", "y3:1: the head of its room does not name"),
    (
        "gateway/y4.py",
        "from ..supervisor.port import RoomPort",
        "y4:1: `greenroom.supervisor.port` is imported for types",
    ),
    ("cli/y5.py", "port_of(room).live.root", "y5:1: `.root` is behind the port"),
    ("testing/y6.py", "room._runtime", "y6:1: `._runtime` is behind the port"),
    ("testing/y7.py", "from ..supervisor import servers", "y7:1: the head of its room does not name"),
    ("actors/y8.py", "def f():\n    raise NotImplementedError", "y8:2: hand in what differs"),
    (
        "gateway/y9.py",
        "import anyio\nanyio.CancelScope(shield=True, deadline=due)",
        "y9:2: a deadline of the loop",
    ),
    (
        "tests/gateway/x1.py",
        "from greenroom.actors.connection import x",
        "x1:1: `greenroom.actors.connection` is not for",
    ),
    (
        "tests/config/x2.py",
        "from greenroom.catalogue import ranking",
        "x2:1: `greenroom.catalogue.ranking` is not",
    ),
    ("protocol/z1.py", "import anyio", "z1:1: `anyio` is not pure"),
    ("protocol/z2.py", "import time", "z2:1: `time` is not pure"),
    ("protocol/z3.py", "from urllib import request", "z3:1: `urllib.request` is not pure"),
    ("protocol/z4.py", "async def f():\n    await g()", "z4:1: `async` is not pure"),
    ("protocol/z5.py", "def f(p):\n    return open(p)", "z5:2: `open` is not pure"),
    ("protocol/z6.py", "import sys\nsys.stdout.write('x')", "z6:2: `sys.stdout` is not pure"),
    ("supervisor/policy/z7.py", "from pathlib import Path", "z7:1: `pathlib.Path` is not pure"),
]
# Beside them, what is none.
GOOD = [
    ("tests/gateway/ok7.py", "from greenroom.actors.peer import x\nfrom greenroom.catalogue.index import x"),
    ("tests/cli/ok8.py", "from greenroom.cli.status_command import x"),
    (
        "protocol/ok1.py",
        "import attrs, cattrs, enum, urllib.parse\nfrom os import PathLike\nfrom .errors import Reach",
    ),
    ("actors/transports/ok2.py", "from ...protocol.errors import Reach\nfrom ..peer import Peer"),
    ("gateway/ok3.py", f"{TYPES}from ..supervisor.port import RoomPort"),
    ("testing/ok4.py", "from ..actors.connection import x\nimport anyio\nanyio.CancelScope(deadline=3)"),
    ("adapters/ok5.py", "from .. import Greenroom, InProcessDoor\nfrom ..errors import CallError"),
    ("actors/ok6.py", "import anyio\nanyio.CancelScope(shield=True)"),
]


def test_every_fault_is_found_with_its_line_and_nothing_else(tmp_path: Path) -> None:
    """Of a tree with all of them, and no other code: reading that takes five seconds, and `make check` does."""
    copy_package(ROOT, tmp_path / "greenroom", _emptied)
    for path, source, *_ in [*FAULTS, *GOOD]:
        place = tmp_path / path if path.startswith("tests/") else tmp_path / "greenroom" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"{source}\n")
    command = [sys.executable, "-m", "tools.arrows", str(tmp_path)]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert checked.returncode == 1
    assert [said for _, _, said in FAULTS if said not in checked.stdout] == []
    assert ".ok" not in checked.stdout


# Imports that a contract lets pass: it wants to find them.
EXCEPTED = {said.split(" -> ")[0] for contract in CONTRACTS for said in contract.get("ignore_imports", ())}


def _emptied(source: str, place: str) -> None:
    """Of a head, what it says of its room; the front door whole; of any other file, that it is there."""
    text = Path(source).read_text()
    name = ".".join(Path(place).with_suffix("").parts)
    is_whole = Path(place).parent.name == "greenroom" or any(name.endswith(f".{one}") for one in EXCEPTED)
    if not is_whole:
        head = re.match(r'""".*?"""', text, re.DOTALL) if place.endswith("__init__.py") else None
        text = head[0] if head else ""
    Path(place).write_text(text)


@pytest.mark.parametrize("room", ["", ".protocol.jsonrpc", ".testing"])
def test_a_room_gives_every_name_that_it_promises_and_none_is_a_modules(room: str) -> None:
    """A module of the same name would take the place of what is promised, when that is looked up late."""
    package = importlib.import_module(f"greenroom{room}")
    modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    for name in getattr(package, "__all__", ()):
        assert name not in modules
        assert hasattr(package, name), name


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
    may_say = re.compile("|".join(re.escape(str(term).removeprefix("-")) for term in terms))
    rooms = [path for room in ROOMS[:-1] for path in folder_of(root, room).rglob("*.py")]
    found = {
        f"{path.relative_to(root)}: {value}"
        for path in rooms
        if path.name != "terms.py" and may_say.search(text := path.read_text())
        for value in _constants(ast.parse(text))
        if value in terms
    }
    assert found == set()
