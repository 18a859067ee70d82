"""The error for a server that does not exist."""

from __future__ import annotations

from collections.abc import Collection

from ..protocol.errors import UsageError
from ..protocol.near_names import meant
from ..protocol.safe_text import one_line

_NONE = "There are none. To add one: greenroom add NAME -- COMMAND"
_LONGEST = 100  # characters of a name: one that a file has made up may have line breaks, too


def no_such_server(server: str, known: Collection[str]) -> UsageError:
    """The error for the name of a server that the configuration does not have. `known`: the names that it has."""
    names = [one_line(name, _LONGEST) for name in known]
    there = f"There are: {', '.join(names)}.{meant(server, names)}" if known else _NONE
    return UsageError(
        f'There is no server "{one_line(server, _LONGEST)}" in this configuration. {there}', server=server
    )
