"""What we use of the SDK's provisional API, all of it, in one place.

`Server.run` over streams of `SessionMessage`s, and the low-level server inside an `MCPServer`. A contract test
(`tests/test_in_process.py`) fails when either changes; the version is pinned in `pyproject.toml`. Importing the SDK
takes two thirds of a second, so nothing here does before a function is called: whoever has a server object has paid
for it already.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ..protocol.halves import mend_escapes

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.shared.message import SessionMessage


def as_server(value: Any) -> Any | None:
    """The low-level server that `value` is or holds; None when it is no server of the SDK's."""
    from mcp.server import MCPServer, Server

    if isinstance(value, MCPServer):
        return value._lowlevel_server  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType, reportUnknownVariableType]  # no public way
    return value if isinstance(value, Server) else None  # pyright: ignore[reportUnknownVariableType]


async def serve(
    server: Any,
    incoming: MemoryObjectReceiveStream[SessionMessage | Exception],
    outgoing: MemoryObjectSendStream[SessionMessage],
) -> None:
    """Run the server until `incoming` is closed. Raises what its own code raises outside of a request."""
    await server.run(incoming, outgoing, server.create_initialization_options())


def to_message(line: bytes) -> SessionMessage:
    """One JSON-RPC message, as the server takes it; half characters (`protocol/halves`) it does not."""
    from mcp.shared.message import SessionMessage
    from mcp_types.jsonrpc import jsonrpc_message_adapter
    from pydantic import ValidationError

    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line))
    except ValidationError:
        mended = mend_escapes(line)
        if mended is None:
            raise
    return SessionMessage(jsonrpc_message_adapter.validate_json(mended))


def from_message(message: SessionMessage) -> bytes:
    """One JSON-RPC message of the server's, as bytes: exactly the fields it set."""
    from pydantic_core import PydanticSerializationError

    try:
        return message.message.model_dump_json(by_alias=True, exclude_unset=True).encode()
    except PydanticSerializationError:  # half a character
        return json.dumps(message.message.model_dump(by_alias=True, exclude_unset=True)).encode()
