"""What can be wrong with a message, and the error that answers it."""

from __future__ import annotations

from typing import Any

import attrs

from ._terms import PARSE_ERROR


class WireFault(ValueError):
    """Bytes that are not what the protocol says they must be. The text is for people."""


class RpcFault(Exception):
    """A JSON-RPC error to answer with."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


@attrs.frozen(eq=False)
class RpcError:
    """A JSON-RPC error as the other side sent it. `fault=True`: the answer was not JSON-RPC at all. `broken=True`: no
    answer can come any more, although the connection lives on (an HTTP exchange failed by itself). Only then may the
    exchange's `reach` be less than ANSWERED."""

    code: int
    message: str
    data: Any = None
    fault: bool = False
    broken: bool = False


def fault(text: str) -> RpcError:
    """The error for an answer that is not JSON-RPC; `text` says what is wrong with it."""
    return RpcError(PARSE_ERROR, text, fault=True)
