"""stdio: a server that is our child process, and the line protocol on its pipes."""

from ._connection import StdioConnection, StdioConnector
from ._environment import (
    INHERITED_POSIX,
    INHERITED_WINDOWS,
    child_environment,
    incarnation_tag,
    untagged_environment,
)
from ._line_peer import LinePeer
from ._lines import LINES_A_TURN, LinesLeft, LineSplitter

__all__ = [
    "INHERITED_POSIX",
    "INHERITED_WINDOWS",
    "LINES_A_TURN",
    "LinePeer",
    "LineSplitter",
    "LinesLeft",
    "StdioConnection",
    "StdioConnector",
    "child_environment",
    "incarnation_tag",
    "untagged_environment",
]
