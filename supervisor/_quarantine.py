"""The tools of a server that have changed: no call to them is sent, whoever knows them and by whatever way."""

from __future__ import annotations

from collections.abc import Mapping

from ..actors import Call, ServerActor
from ..protocol.errors import ToolChanged
from ..protocol.pinning import tool_changed
from ._records import ServerRecord


def quarantine(record: ServerRecord, tools: Mapping[str, tuple[str, ...]]) -> None:
    """Let no call to these tools pass from now on: the server's own names, with what has changed."""
    record.quarantined = tools
    record.guarded = record.gatekeeper.gate.is_troubled or bool(tools)


def in_quarantine(actor: ServerActor, call: Call) -> ToolChanged | None:
    """The refusal of a call to a tool in quarantine."""
    tools, params = actor.record.quarantined, call.params
    if not tools or call.method != "tools/call" or params is None:
        return None
    name = params.get("name")
    if not isinstance(name, str) or name not in tools:
        return None
    return tool_changed(call.tool or name, actor.address.server, name, tools[name])
