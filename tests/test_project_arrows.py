"""The import-arrow check: it passes on this tree, and it bites on every way of breaking it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.arrows import check_source, check_tree

ROOT = Path(__file__).resolve().parent.parent


def complaints(path: str, source: str) -> list[str]:
    return [finding.text for finding, _ in check_source(path, source)]


def test_this_tree_has_no_finding() -> None:
    assert check_tree(ROOT) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("protocol/x.py", "from .errors import Reach"),
        ("protocol/x.py", "import attrs, cattrs, enum, urllib.parse"),
        ("protocol/x.py", "from os import PathLike"),
        ("protocol/x.py", "import sys\nsys.intern('x')"),
        ("actors/x.py", "from ..protocol import errors"),
        ("actors/_stdio/x.py", "from ...protocol.errors import Reach"),
        ("actors/_stdio/x.py", "from .._peer import Peer"),
        ("actors/x.py", "from .. import __version__"),
        ("actors/x.py", "from .._own_files import read_own"),
        ("supervisor/x.py", "from ..actors._peer import Peer"),
        ("gateway/_cli/x.py", "from ...supervisor import Greenroom"),
        ("gateway/x.py", "from .. import Greenroom"),
        ("gateway/x.py", "import importlib\nimportlib.import_module(name)"),
        ("testing/servers/x.py", "from ...gateway import serve"),
    ],
)
def test_arrows_downwards_pass(path: str, source: str) -> None:
    assert complaints(path, source) == []


@pytest.mark.parametrize(
    ("path", "source", "said"),
    [
        ("protocol/x.py", "from ..actors import Ref", "protocol may not import actors"),
        ("actors/x.py", "from ..supervisor import Greenroom", "actors may not import supervisor"),
        ("actors/_stdio/x.py", "from ...gateway import x", "actors may not import gateway"),
        ("actors/x.py", "def f():\n    from ..supervisor import x", "actors may not import supervisor"),
        ("actors/x.py", "if TYPE_CHECKING:\n    from ..gateway import x", "actors may not import gateway"),
        ("actors/x.py", "import_module('..gateway')", "actors may not import gateway"),
        ("actors/x.py", "importlib.import_module(name)", "the front door stands above actors"),
        ("supervisor/x.py", "from .. import gateway", "supervisor may not import gateway"),
        ("supervisor/x.py", "from .. import Greenroom", "the front door stands above supervisor"),
        ("supervisor/x.py", "def f():\n    import mcp.client", "does not speak MCP"),
        ("gateway/x.py", "from ..testing import servers", "testing is never imported"),
        ("gateway/x.py", "import greenroom.protocol", "imports of ourselves are relative"),
        ("gateway/x.py", "from greenroom.protocol import names", "imports of ourselves are relative"),
        ("protocol/x.py", "from .._own_files import read_own", "the front door stands above protocol"),
        ("protocol/x.py", "import anyio", "only the standard library"),
        ("protocol/x.py", "def f():\n    import msgspec", "only the standard library"),
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
