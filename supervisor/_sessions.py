"""The open sessions of a room, and what each gives to the children that are started for it.

A session may bring credentials of its caller: `${session.NAME}` in a server's entry stands for one. They are kept here
and nowhere else, for as long as the session is open. A child is not started before its session gives everything that
its entry names; so a credential is never empty, and never somebody else's.
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
        """Raises `UsageError` when there is a session of that name, or a variable has no usable name or value."""
        if session in self._open:
            raise UsageError(
                f"A session {session!r} is already open, and a session has one caller. Choose another name."
            )
        for name, value in variables.items():
            if not _NAME.fullmatch(name) or not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                text = "A session's variables are texts, and have names of letters, digits and underscores"
                raise UsageError(f"{text}; {name!r} is none.")
        self._open[session] = dict(variables)

    def close(self, session: str) -> None:
        self._open.pop(session, None)

    def variables(self, session: str | None) -> Mapping[str, str]:
        return _NOTHING if session is None else self._open.get(session, _NOTHING)

    def missing(self, definition: ServerDefinition, session: str | None) -> tuple[str, ...]:
        """What this session must give, and does not, before the server can be started for it."""
        needed = session_variables(definition)
        return tuple(sorted(needed - self.variables(session).keys())) if needed else ()

    def check(self, definition: ServerDefinition, session: str | None) -> None:
        """Raises `CredentialNeeded`."""
        if missing := self.missing(definition, session):
            raise CredentialNeeded(definition.name, missing, has_session=session is not None)
