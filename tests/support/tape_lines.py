"""Lines of a tape, as plain data: the head, calls and events of one server."""

from __future__ import annotations

from typing import Any

HEAD = {
    "k": "tape",
    "v": 1,
    "at": 1_795_854_438.0,
    "greenroom": "1",
    "python": "3",
    "config": {"mcpServers": {}},
}


def call(number: int, begun: float, ended: float, text: str = "fine", **more: Any) -> dict[str, Any]:
    said: dict[str, Any] = {
        "k": "call",
        "n": number,
        "order": number,
        "accepted": begun,
        "sent": begun,
        "ended": ended,
        "server": "shop",
        "scope": "shared",
        "incarnation": 1,
        "method": "tools/call",
        "params": {"name": "buy", "arguments": {"what": "milk"}},
        "tool": "shop_buy",
        "outcome": "result",
        "reach": "answered",
    }
    if "error" not in more:
        said["result"] = {"content": [{"type": "text", "text": text}]}
    return said | more


def event(at: float, kind: str, **more: Any) -> dict[str, Any]:
    kinds = {"Transition": "transition", "StartMoved": "start"}
    said = {"seq": 1, "at": at, "kind": kinds.get(kind, "decision"), "event": kind}
    return {"k": "event", "t": at, "event": {**said, "server": "shop", "scope": "shared", **more}}


def moved(at: float, before: str, after: str, **more: Any) -> dict[str, Any]:
    return event(at, "Transition", **{"from": before, "to": after}, **more)
