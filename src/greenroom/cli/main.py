"""The command line from outside. What is plain of `serve` and `attach` is read without click (`plain_command`), all
else by it (`command_group`).

Every error of ours ends as one message on stderr and an exit code. So does an error of the system, such as a
full disk. Any other exception is a bug and is reported as one; `GREENROOM_DEBUG=1` shows its traceback. A
command ends in silence when its reader has seen enough (`greenroom tools | head`). A character that the
terminal cannot show is written as an escape.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NoReturn

from ..protocol.errors import ConfigError, GreenroomError, UnknownServer, UsageError
from ..supervisor.program_log import unlogged
from .exit_codes import FAILED, INTERRUPTED, OK, USAGE
from .standard_streams import fill_the_gaps, forget_stdout, never_fail_on_a_letter, print_line
from .text_wrapping import fitted
from .typed_options import commands_typed, newly_typed

_POSIX: Final = ("fcntl", "termios", "resource")  # what Python has on Linux and macOS alone, and we import


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    fill_the_gaps()
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]  (Python has found it closed)
        print_line(
            "greenroom: standard output is closed, so nobody can read the answer. Leave it open.", sys.stderr
        )
        sys.exit(USAGE)
    never_fail_on_a_letter()
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """Run the command line. Returns the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    with newly_typed(), unlogged():
        try:
            if (plain := _plain(words)) is not None:
                plain()
                return OK
            from .command_group import run_command

            return run_command(words)
        except SystemExit:
            raise
        except BaseException as error:  # a task group wraps a Ctrl-C too
            return _report(error)


def _plain(words: Sequence[str]) -> Callable[[], object] | None:
    """What runs `serve` or `attach`, if their words are plain. With click, a gateway's start takes 765 million
    instructions instead of 737, and the gateway a megabyte more."""
    match words:
        case ["serve", *options]:
            from .serve_command import serve_command

            return serve_command.plainly(options)
        case ["attach", *options]:
            from .attach_command import attach_command

            return attach_command.plainly(options)
        case _:
            return None


def _single(error: BaseException) -> BaseException:
    """The exception that is inside the exception groups of task groups. `error` itself if it holds exceptions of
    several types."""
    first, *others = _leaves(error)
    return error if any(type(other) is not type(first) for other in others) else first


def _leaves(error: BaseException) -> Iterator[BaseException]:
    inner: tuple[BaseException, ...] = getattr(error, "exceptions", ())
    for one in inner:
        yield from _leaves(one)
    if not inner:
        yield error


def _report(error: BaseException) -> int:
    if any(isinstance(leaf, KeyboardInterrupt) for leaf in _leaves(error)):
        return INTERRUPTED
    error = _single(error)
    if isinstance(error, BrokenPipeError):
        forget_stdout()
        return OK
    if isinstance(error, GreenroomError):
        _say(f"greenroom: {commands_typed().filled(error.message)}")
        is_usage = (
            isinstance(error, ConfigError | UsageError) or error.code == UnknownServer.code
        )  # of a gateway
        return USAGE if is_usage else FAILED
    if isinstance(error, ModuleNotFoundError) and error.name in _POSIX and sys.platform == "win32":
        text = "greenroom: this needs Linux or macOS, and is not for Windows. Run it in WSL, or reach servers by URL."
        _say(text)
        return USAGE
    if os.environ.get("GREENROOM_DEBUG"):
        raise error
    if isinstance(error, OSError):
        from ..config.private_files import refused

        forget_stdout()  # most often the reason is that stdout cannot be written
        _say(f"greenroom: {refused(error)}")
        return FAILED
    print_line(
        f"greenroom: a bug in Greenroom, please report it: {type(error).__name__}: {error}\n"
        "Set GREENROOM_DEBUG=1 to see where.",
        sys.stderr,
    )
    return FAILED


def _say(text: str) -> None:
    print_line(fitted(text, sys.stderr), sys.stderr)
