"""`python -m greenroom.testing.servers.demo_flaky`: divides numbers, and crashes on command.

The crash is a real one: the process ends in the middle of a call, with a last word on stderr and no answer.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from .minimal import Json, MinimalTool, ToolError, serve

CRASH_CODE = 70


def divide(arguments: Json) -> str:
    """A quotient, or an error of the tool's own."""
    try:
        return f"{arguments['dividend'] / arguments['divisor']:g}"
    except ZeroDivisionError:
        raise ToolError("cannot divide by zero") from None
    except TypeError:
        raise ToolError("dividend and divisor must be numbers") from None


def crash(_arguments: Json) -> NoReturn:
    """End the process at once."""
    print("demo_flaky: the set has collapsed", file=sys.stderr, flush=True)
    os._exit(CRASH_CODE)


TOOLS = {
    "divide": MinimalTool(
        "Divide one number by another.",
        {"dividend": {"type": "number"}, "divisor": {"type": "number"}},
        divide,
        required=("dividend", "divisor"),
        read_only=True,
    ),
    "crash": MinimalTool("Crash the server process, to see what happens then.", {}, crash),
}


if __name__ == "__main__":
    serve("demo-flaky", TOOLS)
