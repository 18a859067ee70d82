"""The options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from ..protocol.errors import UsageError
from .plain_command import Option

F = TypeVar("F", bound=Callable[..., Any])

CONFIG: Final = Option(
    name="--config",
    parameter="config_path",
    takes=Path,
    metavar="FILE",
    of_all=True,
    help="Read only this configuration file.",
)
_PID: Final = Option(
    name="--pid", takes=int, metavar="PID", of_all=True, help="Ask the gateway with this process number."
)
_JSON: Final = Option(name="--json", parameter="as_json", takes=bool, help="Print JSON.")
RECORD: Final = Option(
    name="--record",
    takes=Path,
    metavar="FOLDER",
    help="Record all calls and answers on a tape in this folder (or at FILE.tape), for greenroom replay.",
)
REDACT: Final = Option(
    name="--redact",
    metavar="NAMES",
    help="With --record: leave the values of these keys out, as in password,pin.",
)


def _with_options(command: F, *options: Option) -> F:
    import click

    for option in reversed(options):
        command = click.option(option.name, option.argument, **option.of_click())(command)
    return command


def config_option(command: F) -> F:
    """`--config FILE`."""
    return _with_options(command, CONFIG)


def json_option(command: F) -> F:
    """`--json`."""
    return _with_options(command, _JSON)


def common_options(command: F) -> F:
    """`--config`, `--pid` and `--json`."""
    return _with_options(command, CONFIG, _PID, _JSON)


def record_options(command: F) -> F:
    """`--record` and `--redact`, which `recording_in` reads."""
    return _with_options(command, RECORD, REDACT)


def recording_in(record: Path | None, redact: str | None) -> dict[str, Any]:
    """What `Greenroom.open` is given for these options. Raises `UsageError` for one without the other."""
    if record is not None:
        return {"record": record, "redact": names_in(redact)}
    if redact is not None:
        raise UsageError("--redact is for --record FOLDER. Add that, or leave it out.")
    return {}


def names_in(listed: str | None) -> list[str]:
    """The names in an option like `a,b`."""
    return [name.strip() for name in (listed or "").split(",") if name.strip()]
