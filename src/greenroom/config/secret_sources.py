"""Runs the commands that values of a configuration are taken from: `"!gh auth token"`, `requestHeadersCommand`.

A secret's command runs in a shell, in a process group of its own, with our environment and without input. It stays in
our session: in `greenroom serve`, a child in another session counts as an orphan (`actors.transports.orphans`). Its
standard output is the value. It is read when an incarnation starts, and is not kept here. Its standard error goes
nowhere, and no message shows the command or anything it wrote, because both may hold the secret. It ends within its
time: when that is over, when it wrote too much, and when nobody waits any more, the whole group is killed before
anything else happens.
"""

from __future__ import annotations

import io
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from functools import partial
from typing import Final

import anyio
import anyio.lowlevel
import anyio.to_thread
import attrs

from ..protocol.errors import ConnectFailed
from .credentials import may_rotate
from .loader_variables import loaders_among
from .private_files import read_regular, why_not_read

LARGEST_OUTPUT: Final = 1 << 20  # bytes
_A_LOOK: Final = 0.02  # seconds between two looks at a command that has closed its output and not ended


@attrs.frozen
class SecretCommand:
    """A command, and the place of its value in the definition, for messages: `env.TOKEN`."""

    command: str = attrs.field(repr=False)
    place: str


async def answers(server: str, asked: Iterable[SecretCommand], limit: float) -> dict[str, str]:
    """The output of each command, by command. Equal commands run once. They run one after the other, in `limit` seconds
    each. Raises `ConnectFailed` with the place, what went wrong, and the next step."""
    found: dict[str, str] = {}
    for one in asked:
        if one.command not in found:
            said = await CommandRun(
                ("/bin/sh", "-c", one.command), limit, 'the setting "secretTimeoutMs"'
            ).output()
            if isinstance(said, NoOutput):
                text = f'The command for {one.place} of server "{server}" {said.what}. '
                more = "Run it in a shell to see what it says, and correct it there or in the configuration."
                raise ConnectFailed(text + more, server=server)
            found[one.command] = said
    return found


@attrs.frozen
class NoOutput:
    """Why there is no output, in words that follow "the command"."""

    what: str


def failure_of(said: str | NoOutput) -> str | None:
    """What went wrong, or None."""
    return said.what if isinstance(said, NoOutput) else None


@attrs.frozen
class CommandRun:
    """One run of a program. `limit`: seconds, which `setting` says. `most`: bytes of its output. `given`: makes its
    input, in a thread; None: it has none. `environ`: its environment; None: ours."""

    argv: tuple[str, ...] = attrs.field(repr=False)
    limit: float
    setting: str
    most: int = LARGEST_OUTPUT
    given: Callable[[], bytes] | None = None
    environ: Mapping[str, str] | None = attrs.field(default=None, repr=False)

    async def output(self) -> str | NoOutput:
        """What it writes to its standard output, without blanks around it."""
        return await _unless_cancelled(self._run)

    def _run(self, stop: int) -> str | NoOutput:
        deadline = time.monotonic() + self.limit
        try:
            with self._input() as given:
                process = subprocess.Popen(
                    self.argv,
                    stdin=given,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    process_group=0,
                    env=self.environ,
                )
        except (OSError, ValueError) as error:  # no shell, no descriptors; a NUL in the command
            return NoOutput(
                f"could not be started ({error.strerror if isinstance(error, OSError) else 'a NUL in it'})"
            )
        assert process.stdout is not None
        try:
            said = _read(process.stdout.fileno(), self.most, deadline, stop)
            if isinstance(said, bytes) and not _has_ended(process.pid, deadline, stop):
                said = NoOutput(self._too_long())
        finally:
            with suppress(ProcessLookupError, PermissionError):  # nothing of it is left
                os.killpg(process.pid, signal.SIGKILL)  # not reaped yet, so the number is still its own
            process.stdout.close()
            code = process.wait()
        if said is None:
            return NoOutput(self._too_long())
        if isinstance(said, NoOutput):
            return said
        if code != 0:
            how = f"was killed by signal {-code}" if code < 0 else f"failed with exit code {code}"
            return NoOutput(how)
        try:
            text = said.decode().strip()
        except UnicodeDecodeError:
            return NoOutput("wrote something that is not UTF-8 text")
        return text or NoOutput("wrote nothing to its standard output")

    def _too_long(self) -> str:
        return f"has not ended in {self.limit:g} s ({self.setting})"

    @contextmanager
    def _input(self) -> Generator[int]:
        """A descriptor with the program's input. It is a file in memory, which no reader can keep us waiting at."""
        if self.given is None:
            yield subprocess.DEVNULL
            return
        with (
            tempfile.TemporaryFile()
            if not hasattr(os, "memfd_create")
            else open(os.memfd_create("input"), "w+b") as file
        ):
            file.write(self.given())
            file.seek(0)
            yield file.fileno()


async def _unless_cancelled(run: Callable[[int], str | NoOutput]) -> str | NoOutput:
    """`run(stop)` in a thread. `stop` becomes readable when this task is cancelled, and the thread is waited for."""
    stop, ours = os.pipe()
    result: str | NoOutput = ""

    async def tell() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            os.close(ours)

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tell)
            result = await anyio.to_thread.run_sync(partial(run, stop))
            await anyio.lowlevel.checkpoint_if_cancelled()
            tasks.cancel_scope.cancel()
        return result
    finally:
        os.close(stop)


def _read(output: int, most: int, deadline: float, stop: int) -> bytes | NoOutput | None:
    """Everything that is written; None when the time is over or nobody waits."""
    parts, size = list[bytes](), 0
    while size <= most:
        # Whoever stood still until the time was over (SIGSTOP) reads what is there all the same.
        ready = _readable((output, stop), max(deadline - time.monotonic(), 0.0))
        if stop in ready or not ready:
            return None
        chunk = os.read(output, 1 << 16)
        if not chunk:
            return b"".join(parts)
        parts.append(chunk)
        size += len(chunk)
    return NoOutput(f"wrote more than {most:,} bytes")


def _has_ended(pid: int, deadline: float, stop: int) -> bool:
    """Wait for the end of the process, without reaping it. Returns whether it has ended in time."""
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        if time.monotonic() > deadline or _readable((stop,), _A_LOOK):
            return False
    return True


def _readable(descriptors: Iterable[int], seconds: float) -> set[int]:
    """The descriptors that can be read or are at their end. (`select` is not used, because it refuses numbers above
    1,023.)"""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(seconds * 1000)}


# ---- Reads values from the system's keyring: `{"keyring": "service/name"}` (the extra `keyring`) --------------------
#
# An entry is read when an incarnation starts, in a thread, because a keyring may ask its owner first. The start waits
# for it within its time and then goes on without the thread: a keyring cannot be interrupted. No message shows what was
# read.


TimeLimit = Callable[[float], AbstractAsyncContextManager[object]]


@attrs.frozen
class KeyringEntry:
    """An entry of the keyring, and the place of its value in the definition, for messages: `env.TOKEN`."""

    service: str
    name: str
    place: str


async def kept(
    server: str, entries: Iterable[KeyringEntry], limit: float, at_most: TimeLimit
) -> dict[tuple[str, str], str]:
    """The value of each keyring entry, by service and name, in `limit` seconds each, which `at_most` counts. Raises
    `ConnectFailed` with the place, what went wrong, and the next step."""
    found: dict[tuple[str, str], str] = {}
    for one in entries:
        read = partial(_read_keyring, one.service, one.name)
        late = f'has not come in {limit:g} s (the setting "secretTimeoutMs"): unlock the keyring first'
        value, wrong = None, late
        async with at_most(limit):
            value, wrong = await anyio.to_thread.run_sync(read, abandon_on_cancel=True)
        if value is None:
            text = f'The value of {one.place} of server "{server}", which the keyring keeps, {wrong}.'
            raise ConnectFailed(text, server=server)
        found[one.service, one.name] = value
    return found


def _read_keyring(service: str, name: str) -> tuple[str | None, str]:
    """The value of the entry, or what is wrong with it."""
    try:
        import keyring
    except ImportError:
        return None, 'cannot be read: run pip install "greenroom[keyring]"'
    try:
        value = keyring.get_password(service, name)
    except Exception as error:  # each keyring has its own errors, and their texts may quote anything
        return (
            None,
            f"cannot be read ({type(error).__name__}): unlock the keyring, or write the value elsewhere",
        )
    if not value or "\0" in value:
        step = f"add it with `keyring set {service} {name}`"
        what = "is not there" if value is None else "holds a NUL" if value else "is empty"
        return None, f"{what}: {step}"
    return value, ""


# ---- Reads an environment file: `NAME=value` lines, as other tools have them in `.env` ------------------------------
#
# It is read when an incarnation starts, and its values are kept nowhere. Comments, `export`, quotes and values of
# several lines are understood as python-dotenv does. References in it stay as they are: a variable of ours that a value
# names by accident must not reach a server.

LARGEST_ENV_FILE: Final = 1 << 16  # bytes; python-dotenv takes a third of a second for the worst of them


def variables_in(file: str, server: str, agreed: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """The variables in `file`, for `server`. A name without `=` gives none, and any other line that cannot be read is
    an error, because half of a file is worse than none. `agreed`: a project's file names this file, and its owner has
    said yes to these variables (`agreed_part`). Then it may hold no others, and none of those that are known to decide
    what a server runs. Blocks; call it in a thread. Raises `ConnectFailed`, which names the file and shows nothing of
    it."""
    from dotenv.parser import parse_stream

    try:
        text = read_regular(file, LARGEST_ENV_FILE).decode("utf-8-sig")
    except (OSError, OverflowError, ValueError) as error:
        is_long = isinstance(error, OverflowError)
        why = (
            f"has more than {LARGEST_ENV_FILE:,} bytes: name another file" if is_long else why_not_read(error)
        )
        raise ConnectFailed(f'The envFile of server "{server}", {file}, {why}.', server=server) from None
    lines = [*parse_stream(io.StringIO(text))]
    if (bad := next((line.original for line in lines if line.error), None)) is not None:
        blank = len(bad.string) - len(bad.string.lstrip())  # the empty lines before it count as its own
        place = bad.line + bad.string[:blank].count("\n")
        what = f"cannot be read in line {place}: write NAME=value there, or make it a # comment"
        raise ConnectFailed(f'The envFile of server "{server}", {file}, {what}.', server=server)
    named = {line.key: line.value for line in lines if line.key is not None and line.value is not None}
    if any(
        "\0" in part or "=" in name or not name for name, value in named.items() for part in (name, value)
    ):
        raise ConnectFailed(
            f'The envFile of server "{server}", {file}, has a name or a value that no process can be given.',
            server=server,
        )
    if agreed is not None and (loaders := loaders_among(named)):
        raise ConnectFailed(
            f'The envFile of server "{server}", {file}, sets {", ".join(loaders)}, which decides what the server runs. '
            'A project\'s envFile may not: write it into "env" of the server, and run `greenroom trust`.',
            server=server,
        )
    if agreed is not None and (changed := _differing(agreed_part(named), agreed)):
        raise ConnectFailed(
            f'The envFile of server "{server}", {file}, is not as it was when it was trusted: {", ".join(changed)}. '
            "Run `greenroom trust` to see what it would set, and to allow it.",
            server=server,
        )
    return named


def agreed_part(named: Mapping[str, str]) -> dict[str, str | None]:
    """What the owner of a project's `envFile` says yes to: each name with its value, or with None where another value
    is only another key."""
    return {name: None if may_rotate(name, value) else value for name, value in named.items()}


def agreed_part_of(file: str) -> dict[str, str | None] | None:
    """What the owner of the `envFile` at this path says yes to, as `agreed_part` has it; None: it cannot be read."""
    try:
        return agreed_part(variables_in(file, ""))
    except ConnectFailed:
        return None


def _differing(there: Mapping[str, str | None], agreed: Mapping[str, str | None]) -> list[str]:
    """The names of the variables that are not as they were."""
    names = sorted({*there, *agreed})
    return [name for name in names if name not in there or name not in agreed or there[name] != agreed[name]]
