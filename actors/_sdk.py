"""All that we use of the SDK's provisional API, in one place.

This is `Server.run` over streams of `SessionMessage`s, and the low-level server inside an `MCPServer` or
`FastMCP`. They are the same in both majors of the SDK, 1.x and 2.x. A contract test (`tests/test_sdk_contract.py`)
fails when either changes; `make older-sdk` runs it with 1.x. Importing the SDK takes two thirds of a second, so
nothing here imports it before a function is called. A program with a server object has imported it already.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, cast

from ..protocol.halves import mend_escapes

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.shared.message import SessionMessage


def as_server(value: Any) -> Any | None:
    """`value`, if it is a server of the SDK (either major version) or of FastMCP; otherwise None."""
    return value if _low_level(value) is not None else None


def _low_level(value: Any) -> Any | None:
    """The low-level server that `value` is or holds. Its holders offer no public way to it: `MCPServer` of the
    SDK's 2.x, `FastMCP` of its 1.x, and FastMCP's own."""
    from mcp.server import Server

    found = getattr(value, "_lowlevel_server", None) or getattr(value, "_mcp_server", None) or value
    return found if isinstance(found, Server) else None  # pyright: ignore[reportUnknownVariableType]


async def serve(
    server: Any,
    incoming: MemoryObjectReceiveStream[SessionMessage | Exception],
    outgoing: MemoryObjectSendStream[SessionMessage],
) -> None:
    """Run the server until `incoming` is closed. Raises what its own code raises outside of a request."""
    low_level = _low_level(server)
    assert low_level is not None
    lifespan = getattr(
        server, "_lifespan_manager", nullcontext
    )  # FastMCP's own, which it puts around every way to run the server
    async with lifespan():
        await low_level.run(incoming, outgoing, low_level.create_initialization_options())


def to_message(line: bytes) -> SessionMessage:
    """One JSON-RPC message, in the form the server takes; it takes no half characters (`protocol/halves`)."""
    from mcp.shared.message import SessionMessage
    from pydantic import ValidationError

    try:
        return SessionMessage(_read(line))
    except ValidationError:
        mended = mend_escapes(line)
        if mended is None:
            raise
    return SessionMessage(_read(mended))


def _read(line: bytes) -> Any:
    """One JSON-RPC message. Raises `pydantic.ValidationError`."""
    try:
        from mcp_types.jsonrpc import jsonrpc_message_adapter
    except ModuleNotFoundError:  # the SDK's 1.x
        from mcp.types import JSONRPCMessage as Older

        return cast("Any", Older).model_validate_json(line)
    return jsonrpc_message_adapter.validate_json(line)


def from_message(message: SessionMessage) -> bytes:
    """One JSON-RPC message of the server, as bytes: exactly the fields it set."""
    from pydantic_core import PydanticSerializationError

    try:
        return message.message.model_dump_json(by_alias=True, exclude_unset=True).encode()
    except PydanticSerializationError:  # half a character
        return json.dumps(message.message.model_dump(by_alias=True, exclude_unset=True)).encode()
