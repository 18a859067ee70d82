"""Calls that wait for a person's yes, as terminals see and decide them over the control socket.

Whoever may use the control socket is the owner. Clients have no such methods, at no door.

`approvals` takes `watching`: for how many seconds this look counts as watching the desk
(`supervisor._approval_desk`). `approve` takes the number of a call and one of the answers of the form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ..protocol.approval import Verdict
from ..protocol.errors import UsageError
from ._control_request import number_in, text_in, whole_in

if TYPE_CHECKING:
    from ..supervisor import Greenroom
    from ._control import Handler

_VERDICTS: Final[Mapping[Any, Verdict]] = {verdict.value: verdict for verdict in Verdict}


def approval_methods(room: Greenroom) -> Mapping[str, Handler]:
    """The methods of the control socket about calls that wait."""

    async def approvals(params: Mapping[str, Any]) -> Any:
        said = {"approvals": _view(room, params), "waitingForApproval": len(room.approvals)}
        if params.get("number") is not None:
            said["hasEnded"] = room.approvals.has_ended(whole_in(params, "number"))
        return said

    async def approve(params: Mapping[str, Any]) -> Any:
        verdict = _VERDICTS.get(text_in(params, "verdict"))
        if verdict is None:
            raise UsageError(f'"verdict" must be one of {", ".join(_VERDICTS)}.')
        request = room.approvals.answer(whole_in(params, "number"), verdict).request
        return {"server": request.server, "tool": request.tool, "session": request.session}

    return {"approvals": approvals, "approve": approve}


def _view(room: Greenroom, params: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The calls that wait, or the one that was asked for by its number, if it does. Seconds to one decimal."""
    desk = room.approvals
    if params.get("watching") is not None:
        desk.watch(number_in(params, "watching"))
    found = desk.waiting()
    if params.get("number") is not None:
        one = desk.get(whole_in(params, "number"))
        found = [] if one is None else [one]
    now = desk.now()
    return [
        {
            "number": each.number,
            "server": each.request.server,
            "tool": each.request.tool,
            "session": each.request.session,
            "question": each.request.text,
            "waiting": round(now - each.since, 1),
            "left": round(max(0.0, each.until - now), 1),
        }
        for each in found
    ]
