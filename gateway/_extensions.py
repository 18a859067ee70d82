"""Extensions of the protocol, such as MCP Apps: what each side declares of them passes through the direct door.

The gateway has no part in an extension. What belongs to one travels in capabilities, in `_meta` and in resources, and
passes as it is. So servers are told what their client declares (a shared one: what any of its clients declares), and a
client is told what the servers that it sees have declared, joined.

Two things do not pass. Tasks need requests that we do not carry, so nobody is told of them. And a declaration above
the bound does not, because in 2026-07-28 it goes out again with every request.

Beside the `mcp` tool nothing is declared: a client has neither the tools' definitions nor the pages there, so a server
does well to answer in text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from ..actors import Greeting, joined
from ..protocol import jsonrpc as rpc
from ..protocol.bounds import EXTENSIONS_BYTES

_KINDS: Final = ("extensions", "experimental")
_NOT_CARRIED: Final = frozenset({"io.modelcontextprotocol/tasks"})


def extensions_of(capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """What the capabilities of one side say of extensions that pass."""
    found: dict[str, Any] = {}
    for kind in _KINDS:
        said: object = capabilities.get(kind)
        if isinstance(said, Mapping):
            passed = {
                name: value
                for name, value in cast("Mapping[str, Any]", said).items()
                if name not in _NOT_CARRIED
            }
            if passed:
                found[kind] = passed
    return found if not found or len(rpc.encode(found)) <= EXTENSIONS_BYTES else {}


def extensions_of_all(capabilities: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The same of several servers, joined."""
    return dict(joined(Greeting(extensions_of(each)) for each in capabilities).capabilities)
