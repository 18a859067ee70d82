"""Servers made with the SDK over HTTP, each in its own process, for as long as a test needs it."""

from __future__ import annotations

import subprocess
from collections.abc import Generator
from contextlib import contextmanager

from .forked import forked


@contextmanager
def sdk_server(host: str, kind: str) -> Generator[str]:
    """The URL of an SDK server under `host` ("uvicorn", "hypercorn"); the kinds are those of `sdk_app`."""
    with _process(forked("tests.support.sdk_app", host, kind)) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline() or 0)
        assert port, f"{host} {kind} did not start"
        yield f"http://127.0.0.1:{port}/{'sse' if kind == 'sse' else 'mcp'}"


@contextmanager
def asker_entry(transport: str) -> Generator[dict[str, str | list[str]]]:
    """The entry of `sdk_asker`, on "stdio", or on "http", where it already runs."""
    if transport == "stdio":
        command, *args = forked("tests.support.sdk_asker")
        yield {"command": command, "args": args}
        return
    with _process(forked("tests.support.sdk_asker", "http")) as process:
        assert process.stdout is not None
        yield {"url": f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"}


@contextmanager
def _process(command: list[str]) -> Generator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
