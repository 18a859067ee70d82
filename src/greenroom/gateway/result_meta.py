"""Our keys in the `_meta` of a result, for programs.

Only Greenroom sets them (`message_origin`). They are not in `structuredContent`, because that is the server's answer
in another form, and many clients show it to their model in place of the text. No client shows `_meta` to
anybody.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..protocol import upstream_error

DETAILS: Final = "greenroom/details"  # in every answer of the `mcp` tool
NOTE: Final = "greenroom/note"  # of a call that a person typed: what is said of its arguments
# Of a call that a person typed: its server was started for that command alone.
ALONE: Final = "greenroom/alone"
ERROR: Final = upstream_error.ERROR  # at the direct door: why the server did not answer a call
SERVER: Final = upstream_error.SERVER  # in a server's requests and in the data of its errors: its name
OURS: Final = "greenroom/"


def details_of(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """The details of an answer of the `mcp` tool."""
    return result["_meta"][DETAILS]


def was_alone(result: Mapping[str, Any]) -> bool:
    """Whether the server was started for the command that called it alone, and has ended with it."""
    return result["_meta"].get(ALONE, False)


def note_of(result: Mapping[str, Any]) -> str | None:
    """What the answer to a typed call says of its arguments; None: nothing."""
    return result["_meta"].get(NOTE)
