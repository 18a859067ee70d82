"""The open sessions of a room, and the values that each gives to the children started for it.

A session may bring credentials of its caller: `${session.NAME}` in a server's entry stands for one. They are kept only
here, as long as the session is open. A child is not started before its session gives every value that the entry names.
So a credential is never empty, and never another caller's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from ..protocol.config import ServerDefinition
from ..protocol.errors import CredentialNeeded, UsageError
from ..protocol.interpolate import session_variables

_NAME: Final = re.compile(r"\w+")
_NOTHING: Final[Mapping[str, str]] = {}


class Sessions:
    def __init__(self) -> None:
        self._open: dict[str, Mapping[str, str]] = {}

    def open(self, session: str, variables: Mapping[str, str]) -> None:
        """Raises `UsageError` when a session of this name is open, or a variable has no usable name or value."""
        if session in self._open:
            raise UsageError(
                f"A session {session!r} is already open, and a session has one caller. Choose another name."
            )
        for name, value in variables.items():
            if not _NAME.fullmatch(name) or not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                text = "A session's variables must be strings, with names of letters, digits and underscores"
                raise UsageError(f"{text}: correct {name!r}.")
        self._open[session] = dict(variables)

    def is_open(self, session: str) -> bool:
        return session in self._open

    def close(self, session: str) -> None:
        self._open.pop(session, None)

    def variables(self, session: str | None) -> Mapping[str, str]:
        return _NOTHING if session is None else self._open.get(session, _NOTHING)

    def missing(self, definition: ServerDefinition, session: str | None) -> tuple[str, ...]:
        """The values that this session lacks, without which the server cannot be started for it."""
        needed = session_variables(definition)
        return tuple(sorted(needed - self.variables(session).keys())) if needed else ()

    def check(self, definition: ServerDefinition, session: str | None) -> None:
        """Raises `CredentialNeeded` when this session lacks a value."""
        if missing := self.missing(definition, session):
            raise CredentialNeeded(definition.name, missing, has_session=session is not None)
