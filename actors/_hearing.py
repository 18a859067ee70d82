"""What one incarnation hears from its peer: the `PeerHooks` of its connection.

The hooks are called from a pump (on asyncio: from a loop callback, where there is no current task), so they only
send messages or set a flag. The reason of a lost connection passes here on its way to errors, so the server's
secrets are removed from it here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from ..protocol.errors import hidden_lines
from ..protocol.events import NoteCode
from ._call import Call
from ._messages import Lost
from ._peer import Exchange, LostReason

if TYPE_CHECKING:
    from ._incarnation import Incarnation

LISTS: Final = frozenset(
    {
        "notifications/tools/list_changed",
        "notifications/resources/list_changed",
        "notifications/prompts/list_changed",
    }
)


class Hearing:
    def __init__(self, incarnation: Incarnation) -> None:
        self.incarnation = incarnation

    def on_lost(self, reason: LostReason) -> None:
        incarnation = self.incarnation
        if incarnation.lost is None:
            incarnation.lost = reason = _without_secrets(reason, incarnation.actor.hidden)
            incarnation.actor.tell(Lost(incarnation.number, reason))

    def on_notification(self, method: str, params: Mapping[str, Any] | None) -> None:
        incarnation = self.incarnation
        if method in LISTS:
            incarnation.look_again()
        if not incarnation.questions.heed(method, params):
            incarnation.actor.context.host.heard(incarnation.actor.address, method, params)

    def on_request(
        self,
        rpc_id: Any,
        method: str,
        params: Mapping[str, Any] | None,
        during: Exchange | None = None,
    ) -> None:
        self.incarnation.questions.take(rpc_id, method, params, during if isinstance(during, Call) else None)

    def on_gap(self) -> None:
        incarnation = self.incarnation
        incarnation.look_again()
        if incarnation.listening is not None:
            incarnation.listening.presume_changed()

    def on_note(self, text: str) -> None:
        self.incarnation.note(NoteCode.ODD, text)
        record, actor = self.incarnation.actor.record, self.incarnation.actor
        if record.odd is None:
            record.remark(actor.hidden(text))


def _without_secrets(reason: LostReason, hidden: Callable[[str], str]) -> LostReason:
    text, tail = hidden(reason.text), hidden_lines(reason.stderr_tail, hidden)
    same = text == reason.text and tail == reason.stderr_tail
    return reason if same else attrs.evolve(reason, text=text, stderr_tail=tail)
