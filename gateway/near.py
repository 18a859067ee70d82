"""The error for a server that does not exist."""

from __future__ import annotations

from collections.abc import Collection

from ..protocol.errors import UsageError
from ..protocol.near_names import meant


def no_such_server(server: str, known: Collection[str]) -> UsageError:
    """The error for the name of a server that the configuration does not have. `known`: the names that it has."""
    there = f"There are: {', '.join(known)}.{meant(server, known)}" if known else "There are none."
    return UsageError(f'There is no server "{server}" in this configuration. {there}', server=server)
