"""What we say to programs beside a result: our keys in its `_meta`.

Only we set them (`_signed`). They are not in `structuredContent`, because that is the server's answer in another form,
and many clients show it to their model in place of the text. Clients show `_meta` to nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

DETAILS: Final = "greenroom/details"  # of every answer of the `mcp` tool
ERROR: Final = "greenroom/error"  # at the direct door: what kept a call from its server's answer
SERVER: Final = (
    "greenroom/server"  # of what a server asks a client, and in the data of its errors: whose it is
)
OURS: Final = "greenroom/"


def details_of(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """The details of an answer of the `mcp` tool."""
    return result["_meta"][DETAILS]
