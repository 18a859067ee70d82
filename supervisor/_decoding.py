"""Decodes what servers answered. Large results are decoded in slices."""

from __future__ import annotations

from typing import Any

import anyio

from ..actors import in_turns
from ..protocol.errors import ProtocolFault, Reach
from ..protocol.index import Target
from ..protocol.jsonrpc import decode_result
from ..protocol.large_json import decoding_result
from ..protocol.slices import Slices


async def decoded_in_turns(answer: bytes) -> dict[str, Any]:
    """Decode a large result while others get their turns. The result has arrived already, so a cancellation
    during this does not lose it."""
    with anyio.CancelScope(shield=True):
        return await in_turns(decoding_result(answer))
    raise AssertionError("a shielded scope that nobody cancels")  # for the type checker only


async def scrubbed_in_turns(work: Slices[bytes]) -> bytes:
    """Scrub an answer, which has arrived already, like the above."""
    with anyio.CancelScope(shield=True):
        return await in_turns(work)
    raise AssertionError("a shielded scope that nobody cancels")  # for the type checker only


def tool_result(result: bytes, target: Target) -> dict[str, Any]:
    try:
        return decode_result(result)
    except ValueError as problem:
        raise _no_result(target, problem) from None


async def tool_result_in_turns(result: bytes, target: Target) -> dict[str, Any]:
    """The same for a large result: others get their turns."""
    try:
        return await decoded_in_turns(result)
    except ValueError as problem:
        raise _no_result(target, problem) from None


def _no_result(target: Target, problem: ValueError) -> ProtocolFault:
    text = f'Server "{target.server}" answered with something that is no result: {problem}.'
    return ProtocolFault(text, server=target.server, reach=Reach.ANSWERED, tool=target.name)
