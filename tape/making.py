"""Makes the lines of a tape, without secrets.

Secrets are cut out as from results that a model is shown, from arguments as well; and members whose names `redact`
lists, wherever they are.
"""

from __future__ import annotations

import platform
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from ..config.masking import redacted
from ..protocol.address import Address
from ..protocol.errors import RpcRefusal
from ..protocol.event_records import record_of
from ..protocol.jsonrpc.encoding import encode_json
from ..protocol.jsonrpc.terms import HANDSHAKE_VERSIONS
from ..protocol.version import VERSION as GREENROOM
from .hearing import EndedCall, Question, Steps
from .lines import NOTHING, VERSION, Asked, CallLine, Failure, Happened, Head, Listed, Notice, encoded

if TYPE_CHECKING:
    from ..actors.peer import Handshake, Listing
    from ..catalogue.entries import ServerEntry
    from ..config.model import Config
    from ..config.secrets import KnownSecrets
    from ..protocol.events import Event

_HIDDEN: Final = "[REDACTED]"
_EMPTY: Final = b"{}"


class Lines:
    """Makes the lines of one tape. `began`: when it begins, by the room's clock. `redact`: names of members that are
    not on it."""

    def __init__(self, secrets: KnownSecrets, began: float, redact: Collection[str] = ()) -> None:
        self._secrets = secrets
        self._began = began
        self._redact = frozenset(redact)

    def head(self, config: Config, at: float) -> bytes:
        """`at`: when it begins, in seconds since 1970."""
        shown = redacted(config)
        kept = {key: shown[key] for key in ("mcpServers", "settings", "profiles") if key in shown}
        return encoded(Head(VERSION, at, GREENROOM, platform.python_version(), kept))

    def event(self, event: Event) -> bytes:
        return encoded(Happened(self._at(event.at), record_of(event)))

    def known(self, entry: ServerEntry, now: float) -> bytes:
        """What is known of a server before it runs: tools are shown from that, too."""
        version = entry.protocol_version or HANDSHAKE_VERSIONS[-1]
        said = version, entry.capabilities, entry.server_info, entry.instructions
        return self._list(now, Address(entry.server), 0, *said, entry, entry.prints or {})

    def listed(
        self, address: Address, incarnation: int, handshake: Handshake, listing: Listing, now: float
    ) -> bytes:
        said = (
            handshake.protocol_version,
            handshake.capabilities,
            handshake.server_info,
            handshake.instructions,
        )
        return self._list(now, address, incarnation, *said, listing, listing.prints)

    def _list(
        self,
        now: float,
        address: Address,
        incarnation: int,
        version: str,
        capabilities: Mapping[str, Any],
        info: Mapping[str, Any],
        instructions: str | None,
        lists: ServerEntry | Listing,
        prints: Mapping[str, str],
    ) -> bytes:
        def plain(items: Any) -> Any:
            return None if items is None else [dict(item) for item in items]

        line = Listed(
            self._at(now),
            address.server,
            address.scope,
            incarnation,
            version,
            dict(capabilities),
            dict(info),
            instructions,
            plain(lists.tools),
            plain(lists.resources),
            plain(lists.templates),
            plain(lists.prompts),
            plain(lists.skills),
            dict(prints),
        )
        return self._clean(address.server, None, encoded(line)[:-1]) + b"\n"

    def notice(self, address: Address, method: str, params: Mapping[str, Any] | None, now: float) -> bytes:
        said = None if params is None else dict(params)
        line = Notice(self._at(now), address.server, address.scope, method, said)
        return self._clean(address.server, None, encoded(line)[:-1]) + b"\n"

    def call(self, call: EndedCall) -> CallLine:
        """The line of a call with its whole result, however large."""
        server, session = call.address.server, call.session
        line = CallLine(
            call.n,
            call.order,
            self._at(call.accepted),
            self._at(call.ended),
            server,
            call.address.scope,
            call.incarnation,
            call.method,
            self._raw(server, session, _EMPTY if call.params is None else encode_json(call.params)),
            call.outcome,
            call.reach,
            None if call.sent is None else self._at(call.sent),
            session,
            call.tool,
            NOTHING if call.result is None else self._raw(server, session, call.result),
        )
        if call.failure is not None:
            line.error = self._failure(server, session, call.failure)
        if call.progress:
            line.progress = self._progress(server, session, call.progress)
        line.asked = [self._asked(server, session, each) for each in call.asked]
        return line

    # ---- how --------------------------------------------------------------------------------------------------------

    def _at(self, at: float) -> float:
        return at - self._began  # to round it takes longer than to write it

    def _failure(self, server: str, session: str | None, failure: Failure) -> Failure:
        raw = self._clean(server, session, encode_json(msgspec.to_builtins(failure)))
        return msgspec.json.decode(raw, type=Failure)

    def _progress(self, server: str, session: str | None, steps: Steps) -> list[tuple[float, dict[str, Any]]]:
        raw = self._clean(server, session, encode_json([params for _, params in steps]))
        clean = msgspec.json.decode(raw, type=list[dict[str, Any]])
        return [(self._at(at), params) for (at, _), params in zip(steps, clean, strict=True)]

    def _asked(self, server: str, session: str | None, question: Question) -> Asked:
        asked = Asked(self._at(question.at), question.method, dict(question.params))
        if isinstance(question.answer, RpcRefusal):
            asked.refusal = {"code": question.answer.rpc_code, "message": question.answer.message}
        elif question.answer is not None:
            asked.answer = dict(question.answer)
        raw = self._clean(server, session, msgspec.json.encode(asked))
        return msgspec.json.decode(raw, type=Asked)

    def _raw(self, server: str, session: str | None, raw: bytes) -> msgspec.Raw:
        return msgspec.Raw(self._clean(server, session, raw))

    def _clean(self, server: str, session: str | None, raw: bytes) -> bytes:
        """A JSON text without secrets, on one line."""
        raw = self._secrets.of_server(server, session).scrub(raw)
        if self._redact:
            raw = encode_json(_without(msgspec.json.decode(raw), self._redact))
        return raw.replace(b"\n", b" ") if b"\n" in raw else raw


def _without(value: Any, names: Collection[str]) -> Any:
    """The value without what stands under these names."""
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return {key: _HIDDEN if key in names else _without(each, names) for key, each in members.items()}
    if isinstance(value, list):
        return [_without(each, names) for each in cast("list[Any]", value)]
    return value
