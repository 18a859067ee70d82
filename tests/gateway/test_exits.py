"""How `serve` ends when nothing holds it up, and what it does while nothing happens: as a process, from outside."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.support.descriptors import hears_of_files
from tests.support.forked import GREENROOM, run_forked
from tests.support.gateway import alive, faulty, logged_pids, serve, started
from tests.support.patience import PATIENCE, until, until_still

# Longer than anybody waits here, so whoever is waited for in vain fails the test.
PATIENT: dict[str, Any] = {"drainTimeoutMs": 1_000_000, "stopTimeoutMs": 2_000_000}
DEMO = {"command": sys.executable, "args": ["-m", "greenroom.testing.servers.demo_clock"]}


def threads_of(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/task").iterdir())


def environment(folder: Path) -> dict[str, str]:
    """That of a gateway in `folder`."""
    places = {"HOME": folder, "XDG_CACHE_HOME": folder / "cache", "XDG_RUNTIME_DIR": folder}
    return {"PATH": os.environ["PATH"], **{name: os.fspath(place) for name, place in places.items()}}


def greenroom(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command that asks the gateway in `folder`."""
    command = [*GREENROOM, *arguments, "--config", os.fspath(folder / "mcp.json")]
    return run_forked(command, env=environment(folder), cwd=folder, text=True)


def switches(pid: int) -> int:
    """How often a process has woken: the voluntary context switches of all its threads."""
    count = 0
    for thread in threads_of(pid):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended since
            for line in (thread / "status").read_text().splitlines():
                if line.startswith("voluntary_ctxt_switches"):
                    count += int(line.split()[1])
    return count


@pytest.mark.parametrize(  # watches: its configuration, a moment after it has begun to serve
    ("end", "watches"), [(None, False), (None, True), (signal.SIGTERM, True), (signal.SIGINT, True)]
)
def test_t51_with_nothing_running_it_is_gone_in_a_moment(
    tmp_path: Path, end: int | None, watches: bool
) -> None:
    with serve(tmp_path, {"clock": DEMO}, **PATIENT) as gateway:
        gateway.initialize()
        until(lambda: hears_of_files(gateway.process.pid) or not watches)
        assert gateway.end(end) == 0


def test_t51_the_drain_begins_at_once(tmp_path: Path) -> None:
    with serve(tmp_path, {"a": faulty(tmp_path, "a")}, **PATIENT) as gateway:
        gateway.initialize()
        assert not gateway.mcp(tool="a_echo", args={"text": "hello"}).get("isError")
        assert gateway.end(signal.SIGTERM) == 0


def test_stop_says_why_the_gateway_of_a_client_goes_on(tmp_path: Path) -> None:
    with serve(tmp_path, {"clock": DEMO}) as gateway:
        gateway.initialize()
        said = greenroom(tmp_path, "stop").stderr
        assert f"the gateway that runs as process {gateway.process.pid} is not a background gateway" in said
        assert gateway.mcp(tool="clock_now")["content"]
        assert gateway.end() == 0


def test_t51_a_stop_that_is_under_way_is_hurried(tmp_path: Path) -> None:
    """It has half an hour, of which it would use most; then the client goes, and nothing may take that long."""
    stubborn = faulty(tmp_path, "a", "--ignore-eof", "--ignore-term", "--close-stdout-at", "call:echo")
    with serve(tmp_path, {"a": stubborn}, **PATIENT) as gateway:
        gateway.initialize()
        assert gateway.mcp(tool="a_echo", args={})["isError"]
        assert gateway.end() == 0
    assert alive(logged_pids(tmp_path)) == set()


def test_t51_nothing_wakes_a_gateway_at_rest(tmp_path: Path) -> None:
    """With a server connected, its client silent, its configuration watched."""
    with serve(tmp_path, {"a": faulty(tmp_path, "a")}) as gateway:
        gateway.initialize()
        gateway.mcp(tool="a_echo", args={"text": "hello"})
        until_still(lambda: switches(gateway.process.pid), 2.0, "how often it was woken")
        assert gateway.end() == 0


def test_t51_a_gateway_that_is_stopped_is_given_up_and_said(tmp_path: Path) -> None:
    """Whatever command asks, for however long it would wait for a gateway that lives."""
    with serve(tmp_path, {"a": faulty(tmp_path, "a", "--hang-at", "call:echo")}) as gateway:
        gateway.initialize()
        gateway.process.send_signal(signal.SIGSTOP)
        commands = (["status"], ["tools"], ["call", "a_echo"], ["reconnect"])
        try:
            with ThreadPoolExecutor(len(commands)) as at_once:  # each waits for seconds
                said = list(at_once.map(lambda words: greenroom(tmp_path, *words), commands))
            for done in said:
                assert (done.returncode, done.stdout) == (1, "")
                assert f"The gateway (pid {gateway.process.pid}) does not answer" in done.stderr
        finally:
            gateway.process.send_signal(signal.SIGCONT)
        assert gateway.end() == 0


def test_a_call_that_takes_longer_than_a_gateway_may_be_silent_is_waited_for(tmp_path: Path) -> None:
    with serve(tmp_path, {"a": faulty(tmp_path, "a")}) as gateway:
        gateway.initialize()
        done = greenroom(tmp_path, "call", "a_sleep", "seconds=3")
        assert done.returncode == 0, done.stderr
        assert gateway.end() == 0


SHELL = "exec {python} -m greenroom serve --config {config} {redirected}"


@pytest.mark.parametrize(
    ("redirected", "code", "said"),
    [
        ("<&-", 2, "Standard input is closed"),
        (">&-", 2, "tandard output is closed"),
        ("</dev/null >/dev/null", 0, ""),
        (">/dev/full", 1, "Standard output cannot be written (No space left on device)"),
        (">&- </dev/null 2>&-", 2, ""),
        ("0>/dev/null", 1, "Standard input cannot be read (Bad file descriptor)"),
        ("1</dev/null", 1, "Standard output cannot be written (Bad file descriptor)"),
    ],
)
def test_streams_that_cannot_be_used_are_named(tmp_path: Path, redirected: str, code: int, said: str) -> None:
    config = tmp_path / "mcp.json"
    config.write_text("{}")
    ping = b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n'
    done = subprocess.run(
        ["/bin/sh", "-c", SHELL.format(python=sys.executable, config=config, redirected=redirected)],
        env=environment(tmp_path),
        input=ping,
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == code
    assert said in done.stderr.decode()
    assert "bug" not in done.stderr.decode()


def test_a_command_without_an_output_says_so(tmp_path: Path) -> None:
    command = f"exec {sys.executable} -m greenroom status >&-"
    done = subprocess.run(
        ["/bin/sh", "-c", command], env=environment(tmp_path), cwd=tmp_path, capture_output=True, check=False
    )
    assert (done.returncode, b"standard output is closed" in done.stderr) == (2, True)


def test_a_mark_at_the_start_of_what_a_client_says_is_ignored(tmp_path: Path) -> None:
    with serve(tmp_path, {}) as gateway:
        assert gateway.process.stdin is not None
        gateway.process.stdin.write(b"\xef\xbb\xbf")
        assert gateway.initialize()["serverInfo"]
        assert gateway.end() == 0


def test_a_deleted_working_directory_does_not_matter_to_a_whole_path(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"a": faulty(tmp_path, "a")}, "imports": ["cursor"]}))

    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        gone = f'rmdir "$PWD"; {sys.executable} -m greenroom "$@"; code=$?; mkdir {work}; exit $code'
        return subprocess.run(
            ["/bin/sh", "-c", gone, "sh", *arguments],
            env=environment(tmp_path), cwd=work, text=True, capture_output=True, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip

    done = command("call", "a_echo", "text=hello", "--config", str(config))
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
    assert command("serve", "--config", str(config)).returncode == 0
    for arguments in (["status"], ["status", "--config", "mcp.json"]):
        done = command(*arguments)
        assert done.returncode == 2
        assert "The working directory is gone" in done.stderr


def test_each_failed_attempt_is_one_line_in_the_log(tmp_path: Path) -> None:
    dies = {"command": sys.executable, "args": ["-c", "import sys; sys.exit(3)"]}
    servers = {"dies": dies, "absent": {"command": "greenroom-no-such-program"}}
    with serve(tmp_path, servers, failureThreshold=1) as gateway:
        gateway.initialize()
        for name in servers:
            assert gateway.mcp(connect=name)["isError"]
        assert gateway.end() == 0
    lines = (tmp_path / "stderr.txt").read_text().splitlines()
    for name in servers:
        said = [line for line in lines if line.startswith(f"greenroom: {name}") and "shutdown" not in line]
        why = [line for line in said if "exited with code 3" in line or "was not found" in line]
        breaker = [line for line in said if "circuit breaker:" in line]
        assert (len(why), len(breaker), len(said)) == (1, 1, 2), "the attempt, and what follows from it"


SLOW_RESOLVER = """
import socket, sys, time
from greenroom.gateway import serve as _serve
from greenroom.cli.main import main
_serve._LAST_RESORT = 50.0  # a slow machine is not what is tried
resolve = socket.getaddrinfo
def hang(host, *rest, **more):
    if host in ("slow.invalid", b"slow.invalid"):
        print("resolving", file=sys.stderr, flush=True)
        time.sleep(1_000)
    return resolve(host, *rest, **more)
socket.getaddrinfo = hang
main(["serve", "--config", sys.argv[1]])
"""


@pytest.mark.parametrize("end", [None, signal.SIGTERM])
def test_t51_a_name_that_is_being_resolved_holds_nobody_up(tmp_path: Path, end: int | None) -> None:
    config = tmp_path / "mcp.json"
    entry = {"url": "http://slow.invalid/mcp", "bootstrap": False, "drainTimeoutMs": 100}
    config.write_text(json.dumps({"mcpServers": {"slow": entry}}))
    with started(
        *(sys.executable, "-c", SLOW_RESOLVER, os.fspath(config)), env=environment(tmp_path), cwd=tmp_path
    ) as gateway:
        gateway.initialize()
        gateway.start_mcp(connect="slow")
        assert gateway.process.stderr is not None
        while b"resolving" not in (line := gateway.process.stderr.readline()):
            assert line, "it has ended"
        assert gateway.end(end) == 0


def test_t51_a_writer_that_hangs_on_the_catalogue_holds_nobody_up(tmp_path: Path) -> None:
    cache = tmp_path / "cache" / "greenroom"
    cache.mkdir(parents=True)
    lock = next(iter(cache.glob("*.lock")), cache / "catalogue.json.lock")
    with serve(tmp_path, {"a": faulty(tmp_path, "a")}) as gateway, lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        gateway.initialize()
        assert not gateway.mcp(tool="a_echo", args={"text": "hello"}).get("isError")
        assert gateway.end() == 0
