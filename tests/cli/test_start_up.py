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
from greenroom.cli.common import run_to_end

# What a gateway of stdio servers never needs, or not before its first call.
LATER = (
    "mcp", "mcp_types", "pydantic", "httpx2", "rich", "jsonschema", "cattrs", "filelock", "difflib", "tomllib",
    "tomlkit", "uvicorn", "httptools", "starlette", "greenroom.gateway.doors.http_app",
    "greenroom.actors.transports.streamable_http", "greenroom.actors.transports.in_process",
    "greenroom.actors.transports.unix_socket", "greenroom.actors.transports.stdio",
    "greenroom.gateway.exposures.direct", "greenroom.observe.metrics", "greenroom.safety.audit_file",
    "greenroom.gateway.doors.attach_server", "greenroom.gateway.doors.attach_client",
    "greenroom.gateway.doors.background", "greenroom.gateway.doors.control_client",
)  # fmt: skip


@pytest.fixture
def turned_off() -> Iterator[None]:
    """The collector as the `greenroom` command leaves it while it starts."""
    gc.collect()  # what is garbage by now would be set aside, too
    gc.disable()
    yield
    gc.enable()


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
    path.write_text(json.dumps({"mcpServers": {"clock": {"command": "clock"}}}))
    return path


def test_a_gateway_starts_without_what_it_may_never_need(config: Path) -> None:
    assert start(config, f"print([name for name in {LATER!r} if name in sys.modules])") == "[]\n"


def test_a_gateway_collects_garbage_again_but_not_its_modules(config: Path) -> None:
    assert start(config, "print(gc.isenabled(), gc.get_freeze_count() > 10_000)") == "True True\n"


def test_every_command_with_a_loop_collects_garbage_again(turned_off: None) -> None:
    async def main() -> bool:
        return gc.isenabled()

    assert run_to_end(main)


def test_an_embedders_collector_is_left_as_it_is() -> None:
    before = gc.get_freeze_count()
    collect_again()
    assert gc.get_freeze_count() == before


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
