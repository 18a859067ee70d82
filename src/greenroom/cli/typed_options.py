"""The options that the next command has to be given again: until an error is reported, every next step that is printed
names them.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import msgspec

from ..gateway.next_steps import Commands


class TypedOptions(msgspec.Struct):
    config: str | None = None
    pid: int | None = None


_TYPED: Final[ContextVar[TypedOptions | None]] = ContextVar("the options of this command line", default=None)


@contextmanager
def newly_typed() -> Generator[None]:
    """A command line, of which nothing has been read."""
    token = _TYPED.set(TypedOptions())
    try:
        yield
    finally:
        _TYPED.reset(token)


def remember(name: str, value: Any) -> None:
    """An option of this command line has been read: `config` or `pid`."""
    typed = _TYPED.get()
    if typed is None or value is None:
        return
    if name == "pid":
        typed.pid = value
    else:
        typed.config = os.fspath(value)


def commands_typed() -> Commands:
    """The names of our commands, with the options of this one."""
    typed = _TYPED.get()
    return Commands() if typed is None else Commands(typed.config, typed.pid)
