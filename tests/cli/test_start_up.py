"""What starting costs: what is not imported before it is needed, and no garbage looked for meanwhile."""

from __future__ import annotations

import gc
import json
import signal
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import greenroom.actors
from greenroom import __main__
from greenroom.actors.process_tuning import collect_again
from greenroom.cli.interruption import run_to_end

SEARCHING = ("greenroom.catalogue.ranking", "greenroom.catalogue.search", "greenroom.protocol.content")
# What a gateway of stdio servers never needs, or not before its first call.
LATER = (
    "attr", "click", "pkgutil", "mcp", "mcp_types", "pydantic", "httpx2", "rich", "jsonschema", "cattrs", "filelock",
    "difflib", "tomllib", "tomlkit", "uvicorn", "httptools", "starlette", "shutil", "tempfile", "bz2", "lzma", "zlib",
    "unicodedata", *SEARCHING,
    "greenroom.gateway.doors.http_app", "greenroom.gateway.control_methods",
    "greenroom.observe.events_file", "greenroom.supervisor.warm_pool", "greenroom.cli.json_shapes",
    "greenroom.actors.transports.streamable_http", "greenroom.actors.transports.in_process",
    "greenroom.actors.transports.unix_socket", "greenroom.actors.transports.stdio",
    "greenroom.gateway.exposures.direct", "greenroom.observe.metrics", "greenroom.safety.audit_file",
    "greenroom.gateway.doors.attach_server", "greenroom.gateway.doors.attach_client",
    "greenroom.gateway.doors.background_gateway", "greenroom.gateway.doors.control_client",
)  # fmt: skip


@pytest.fixture
def turned_off() -> Iterator[None]:
    """The collector as the `greenroom` command leaves it while it starts."""
    gc.collect()  # what is garbage by now would be set aside, too
    gc.disable()
    yield
    gc.enable()


def loaded(config: Path, *options: str) -> set[str]:
    """What `greenroom serve` has imported by the answer of `tools/list`, as its interpreter tells."""
    serve = ["greenroom", "serve", "--config", str(config), *options]
    command = [sys.executable, "-X", "importtime", "-m", *serve]
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    asked = [
        {"id": 0, "method": "initialize", "params": hello},
        {"id": 1, "method": "tools/list", "params": {}},
    ]
    lines = "".join(json.dumps({"jsonrpc": "2.0", **each}) + "\n" for each in asked)
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
    assert '"tools"' in done.stdout
    told = (line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "import time:" in line)
    return {*told}


def start(config: Path, when_loop_runs: str) -> str:
    """Run `greenroom serve` up to its first look at stdin, and this statement there; what it printed."""
    script = (
        "import contextlib, gc, sys\n"
        "import greenroom.gateway.serve as serve\n"
        "@contextlib.contextmanager\n"
        "def here():\n"
        f"    {when_loop_runs}\n"
        "    raise SystemExit\n"
        "    yield\n"
        "serve.taken_over_stdio = here\n"
        f"sys.argv = ['greenroom', 'serve', '--config', {str(config)!r}]\n"
        "from greenroom.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "mcp.json"
    servers = {"clock": {"command": "clock"}}
    path.write_text(json.dumps({"mcpServers": servers, "settings": {"bootstrap": False}}))
    return path


@pytest.mark.parametrize(
    ("exposure", "too", "needed"),
    [
        ("proxy", ("greenroom.catalogue.schema_repair",), ()),
        ("direct", ("greenroom.gateway.exposures.mcp_tool",), ("greenroom.gateway.exposures.direct",)),
        ("meta", (), ("attr", "unicodedata", *SEARCHING)),
    ],
)
def test_a_gateway_lists_its_tools_without_what_it_may_never_need(
    exposure: str, too: tuple[str, ...], needed: tuple[str, ...], config: Path
) -> None:
    found = loaded(config, "--expose", exposure)
    assert "greenroom.gateway.serve" in found
    assert sorted(found & {*LATER, *too} - {*needed}) == []


def test_a_gateway_collects_garbage_again_but_not_its_modules(config: Path) -> None:
    assert start(config, "print(gc.isenabled(), gc.get_freeze_count() > 10_000)") == "True True\n"


def test_every_command_with_a_loop_collects_garbage_again(turned_off: None) -> None:
    async def main() -> bool:
        return gc.isenabled()

    assert run_to_end(main)


def test_an_embedders_collector_is_left_as_it_is() -> None:
    mine: list[object] = []
    collect_again()
    assert gc.isenabled()
    assert any(each is mine for each in gc.get_objects()), "what is set aside is not among these"


def test_a_command_without_a_loop_ends_without_a_last_collection(config: Path) -> None:
    script = (
        "import atexit, gc, sys\n"
        "atexit.register(lambda: print(gc.isenabled(), gc.get_freeze_count() > 10_000))\n"
        f"sys.argv = ['greenroom', 'tools', '--config', {str(config)!r}]\n"
        "from greenroom.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False True"


@pytest.mark.parametrize("ends", [SystemExit, KeyboardInterrupt])
def test_ctrl_c_ends_the_process_at_once_while_it_is_imported_and_is_python_s_again_when_it_runs(
    ends: type[BaseException], turned_off: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    usual = signal.getsignal(signal.SIGINT)

    def seen(name: str) -> None:
        told.append((name, gc.isenabled(), signal.getsignal(signal.SIGINT)))

    class Part(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            seen(self.__name__)
            return run if name == "main" else lambda: told.append("ended")

    def run() -> None:
        told.append(("runs", signal.getsignal(signal.SIGINT)))
        raise ends

    for part in ("greenroom.cli.main", "greenroom.actors.process_tuning"):
        monkeypatch.setitem(sys.modules, part, Part(part))
    monkeypatch.setattr(
        greenroom.actors, "process_tuning", sys.modules["greenroom.actors.process_tuning"], raising=False
    )
    gc.enable()
    try:
        with pytest.raises(ends):
            __main__.main()
        assert told == [
            ("greenroom.cli.main", False, signal.SIG_DFL),
            ("runs", usual),
            ("greenroom.actors.process_tuning", False, usual),
            "ended",
        ]
        assert signal.getsignal(signal.SIGINT) is usual
    finally:
        signal.signal(signal.SIGINT, usual)
