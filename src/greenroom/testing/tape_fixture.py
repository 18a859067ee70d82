"""A test that is marked with `tape`: which tape is its own, whether it is recorded or replayed, and what comes of it.

A tape is recorded into pytest's own folder for temporary files and takes its place only when the test has passed and
its room has closed: what fails never replaces a good tape. It is put in place whole, by renaming it; large results
beside it have their hashes as names, so those of the old and of the new tape can be there at once.

A run records each tape at most once: where two tests have the same tape, or one test runs on two loops, the second
replays what the first has recorded. With pytest-xdist they may be in two processes at once. Then one waits for the
other, with a lock in the run's temporary folder, where it is also noted what was recorded. Rejected: to refuse it. The
plugin of AnyIO runs a test on two loops, and nobody chooses the worker of each. A test has one room, because a tape is
of one.

What is left out by `redact` is not compared either, as nobody could give it again. With `faults` a test only replays:
real servers do not go wrong as they are told to, so another test has to record its tape.
"""

# It puts a recorder of its own into a room.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import attrs
import pytest

from ..config.argument_checks import path_of, texts
from ..config.model import Config
from ..protocol.errors import UsageError
from ..protocol.safe_text import counted, printable
from ..supervisor.attachments import TAPE
from ..supervisor.room import Greenroom, port_of
from ..tape.recorder import Recorder
from ..tape.replay_servers import Replay, opened
from ..tape.tape_lines import SUFFIX
from ..tape.tape_reader import read_tape
from ..tape.tape_run import TapeRun

if TYPE_CHECKING:
    from ..actors.call import Call

_MOST: Final = 20  # refused calls, and differences, in a message
_NOT_OF_A_REPLAY: Final = ("connectors", "in_process", "auth")  # how servers are reached


@attrs.frozen
class TapeMark:
    """What `@pytest.mark.tape(…)` takes. `file` and `config`, if it is a path, are relative to the test's file. A mark
    of the class or the module says what its tests have in common."""

    file: str
    config: Any = None
    redact: Collection[str] = ()
    strict: bool = True
    ignore: Collection[str] = ()
    by_order: bool = False
    nearest: float | None = None
    pace: str = "at once"
    faults: Collection[str] = ()


@attrs.frozen
class RecordedTapes:
    """The tapes that this run of pytest has recorded, in all of its processes. `folder`: theirs in common."""

    folder: Path

    @contextmanager
    def turn(self, tape: Path) -> Generator[None]:
        """Have this tape alone. Waits as long as another process has it, which is for one test."""
        from filelock import FileLock

        self.folder.mkdir(mode=0o700, exist_ok=True)
        with FileLock(self._of(tape).with_suffix(".lock"), mode=0o600, thread_local=False):
            yield

    def add(self, tape: Path) -> None:
        self._of(tape).touch()

    def __contains__(self, tape: Path) -> bool:
        return self._of(tape).exists()

    def _of(self, tape: Path) -> Path:
        return self.folder / hashlib.sha256(os.fsencode(os.path.realpath(tape))).hexdigest()


class TapedTest:
    """One such test while it runs. `recorded`: the tapes that this run of pytest has recorded; this one is added. If
    tapes are recorded, this one is its own until the `stack` is closed."""

    def __init__(
        self,
        item: pytest.Item,
        mode: str,
        recorded: RecordedTapes,
        make_folder: Callable[[], Path],
        stack: ExitStack,
    ) -> None:
        self._mark = _read(item)
        self._item = item
        self._recorded = recorded
        self._config = self._beside(self._mark.config)
        self._unseen = {*texts(self._mark.ignore, "ignore"), *texts(self._mark.redact, "redact")}
        self.path: Path = item.path.parent / path_of(self._mark.file, "The tape of a test")
        if self.path.suffix != SUFFIX:
            raise UsageError(f'The name of a tape ends with "{SUFFIX}", and this does not: {self._mark.file}')
        self._has_passed = False
        self._told = self._told_other = 0
        self._room: Greenroom | None = None
        if mode != "none":
            stack.enter_context(recorded.turn(self.path))
        is_wanted = mode == "all" or (mode == "new" and not self.path.exists())
        self._is_recorded = is_wanted and self.path not in recorded and not self._mark.faults
        self._scratch = make_folder() / self.path.name if self._is_recorded else self.path
        self._replayed = Config()
        self.run: TapeRun = TapeRun() if self._is_recorded else self._replay()

    # ---- its room ---------------------------------------------------------------------------------------------------

    def room(
        self, config: Any, make: Callable[[Any], Greenroom | None], options: Mapping[str, Any]
    ) -> Greenroom:
        """The room of the test. `make` opens one with real servers, and returns None if it is not said which."""
        if self._room is not None:
            raise UsageError("A tape is of one room, and this test has opened one already.")
        if isinstance(self.run, Replay):
            given: dict[str, Any] = {"cache_path": ":memory:"}
            given |= {name: value for name, value in options.items() if name not in _NOT_OF_A_REPLAY}
            room = Greenroom.open(self._replayed, connectors=self.run, **given)
            port = port_of(room)
            port.services.replays(self.run, self.run.watcher)
        else:
            made = make(self._config if config is None else config)
            if made is None:
                raise UsageError(
                    'Which servers is this tape recorded with? Say it: @pytest.mark.tape("…", config="mcp.json")'
                )
            room = made
            port = port_of(room)
            port.services.attach(TAPE, _RunRecorder(self._scratch, self._mark.redact, self.run))
        self.run.names = port.catalogue.tool_names
        self._room = room
        return room

    def _replay(self) -> Replay:
        mark = self._mark
        if not self.path.exists():
            _fail(f"There is no tape {self._shown}. To record it: {self._how('new')}")
        self._replayed, replay = opened(
            self.path,
            strict=mark.strict,
            ignore=self._unseen,
            by_order=mark.by_order,
            nearest=mark.nearest,
            pace=mark.pace,
            faults=mark.faults,
        )
        return replay

    # ---- what comes of it -------------------------------------------------------------------------------------------

    def check(self) -> str:
        """What was not as on the tape, since this was last asked; "": nothing."""
        refused, other = self.run.refusals[self._told :], self.run.differences[self._told_other :]
        self._told += len(refused)
        self._told_other += len(other)
        lines: list[str] = []
        if refused:
            are = "is" if len(refused) == 1 else "are"
            lines += [f"{counted(len(refused), 'call')} of this test {are} not on its tape, {self._shown}:"]
            lines += _listed(refused)
        if other and self._mark.strict:
            lines += [f"This test does not do what is on its tape, {self._shown}:", *_listed(other)]
        if lines:
            lines += [f"If this is what it should do, record the tape anew: {self._how('all')}"]
        return "\n".join(lines)

    def passed(self) -> None:
        """The test itself has passed."""
        self._has_passed = True

    def failed(self) -> str:
        """What to know when the test has failed; "": nothing."""
        if not self._is_recorded:
            return self.check()
        if not self._scratch.exists():
            return ""
        return (
            f"The tape {self._shown} was not written, because the test failed. What was recorded: greenroom tape "
            f"{shlex.quote(str(self._scratch))}"
        )

    def end(self) -> None:
        """The test is over, and so are the fixtures that used its tape."""
        if told := self.check():
            _fail(told)
        if not self._has_passed:
            return
        if self._room is None or self._room.drain_report is None:
            _fail("This test has a tape, and has entered no room of the fixture `room`.")
        if isinstance(self.run, Replay):
            if self.run.unplayed:
                _fail(f"Faults of this test that did not happen: {', '.join(self.run.unplayed)}")
            return
        if not self._room.drain_report.is_final or read_tape(self._scratch).is_cut:
            _fail(
                f"The tape {self._shown} was not written: what was recorded is not whole. Its room has to close."
            )
        _put(self._scratch, self.path)
        self._recorded.add(self.path)

    # ---- how --------------------------------------------------------------------------------------------------------

    def _beside(self, config: Any) -> Any:
        return self._item.path.parent / config if isinstance(config, str | os.PathLike) else config

    @property
    def _shown(self) -> str:
        return self._from_here(self.path)

    def _from_here(self, path: Path) -> str:
        return os.path.relpath(path, self._item.config.invocation_params.dir)

    def _how(self, mode: str) -> str:
        """What records this tape: a command, from where pytest was started."""
        if self._mark.faults:
            return "a test with this tape and without faults"
        name = "::".join([self._from_here(self._item.path), *self._item.nodeid.split("::")[1:]])
        return f"python -m pytest {shlex.quote(name)} --record-tapes={mode}"


class _RunRecorder(Recorder):
    """A recorder that also tells its run which calls were made."""

    def __init__(self, place: Path, redact: Collection[str], run: TapeRun) -> None:
        super().__init__(place, redact)
        self._run = run

    def ended(self, call: Call) -> None:
        super().ended(call)
        if call.number:
            self._run.note(call)


def _listed(told: Sequence[str]) -> list[str]:
    more = [f"  and {len(told) - _MOST:,} more"] if len(told) > _MOST else []
    return [*(f"  {printable(each)}" for each in told[:_MOST]), *more]


def _fail(text: str) -> NoReturn:
    pytest.fail(text, pytrace=False)


def _read(item: pytest.Item) -> TapeMark:
    file: tuple[Any, ...] = ()
    options: dict[str, Any] = {}
    for mark in reversed([*item.iter_markers("tape")]):  # the closest one last
        file, options = mark.args or file, {**options, **mark.kwargs}
    try:
        return TapeMark(*file, **options)
    except TypeError as error:
        raise UsageError(f"@pytest.mark.tape(…): {str(error).removeprefix('TapeMark.__init__() ')}") from None


def _put(new: Path, place: Path) -> None:
    """Have this tape at this place: at each moment the old one or the new one, whole."""
    beside, to = (path.with_name(f"{path.name}.d") for path in (new, place))
    place.parent.mkdir(parents=True, exist_ok=True)
    large = {file.name for file in _files(beside)}
    if large:
        to.mkdir(mode=0o700, exist_ok=True)
    for name in large:
        _move(beside / name, to / name)
    _move(new, place)
    for file in _files(to):
        if file.name not in large:
            file.unlink()
    if not large and to.is_dir():
        to.rmdir()


def _move(file: Path, place: Path) -> None:
    """The temporary folder may be on another disk."""
    near = place.with_name(f".{place.name}.{os.getpid()}")
    shutil.move(file, near)
    near.replace(place)


def _files(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []
