"""Makes the lines of a tape, without secrets.

Secrets are cut out as from results that a model is shown, from arguments as well; and members whose names `redact`
lists, wherever they are. What one server says may have a secret of another (the agent has read a file with it), so a
line loses those of all servers.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
from anyio.lowlevel import checkpoint

from ..actors.workers import in_turns
from ..config.masking import redacted, redacted_server, secrets_of
from ..config.model import PROFILE_KEYS
from ..config.scrubbing import SMALL
from ..protocol.address import Address
from ..protocol.event_records import record_of
from ..protocol.events import Kind
from ..protocol.jsonrpc.encoding import encode
from ..protocol.jsonrpc.terms import HANDSHAKE_VERSIONS
from ..protocol.version import VERSION as GREENROOM
from .member_redaction import MemberRedaction
from .tape_lines import (
    NOTHING,
    VERSION,
    CallFailure,
    CallLine,
    ConfigLine,
    EventLine,
    EventRecord,
    HeadLine,
    ListingLine,
    NoticeLine,
    Schedule,
    encoded,
)

if TYPE_CHECKING:
    from ..actors.peer import Handshake, Listing
    from ..catalogue.entries import ServerEntry
    from ..config.known_secrets import KnownSecrets, SecretsOfAll
    from ..config.model import Config, Profile, ServerDefinition
    from ..protocol.events import Event

EVENT_KINDS: Final = frozenset({Kind.TRANSITION, Kind.START, Kind.DECISION, Kind.NOTE})  # that are on a tape
_SERVERS: Final = 10  # of a configuration to come, that are looked at in one go


class TapeLineMaker:
    """Makes the lines of one tape. `began`: when it begins, by the room's clock. `redact`: names of members that are
    not on it."""

    def __init__(self, secrets: KnownSecrets, began: float, redact: Collection[str] = ()) -> None:
        self._secrets = secrets
        self._began = began
        self._ahead: tuple[Config, dict[str, Any]] | None = (
            None  # servers of the next configuration, as they are shown
        )
        self._members = MemberRedaction(redact) if redact else None

    def head(
        self, config: Config, at: float, schedule: Schedule | None = None, *, is_part: bool = False
    ) -> bytes:
        """`at`: when it begins, in seconds since 1970. `is_part`: it begins after its room did."""
        python = platform.python_version()
        return encoded(HeadLine(VERSION, at, GREENROOM, python, self._shown(config), is_part, schedule))

    async def foresee(self, config: Config) -> None:
        """This configuration will come. What its servers cost, half a millisecond each, is done now, in parts; and what
        those cost that the room knows already, the first time."""
        while self._secrets.index_some(_SERVERS):
            await checkpoint()
        shown = await in_turns(config.servers.items(), lambda each: self._foreseen(*each), _SERVERS)
        self._ahead = config, dict(shown)

    def _foreseen(self, name: str, definition: ServerDefinition) -> tuple[str, dict[str, Any]]:
        self._meet(name, definition)
        self._of(
            name, None
        )  # what it brings is in the index of all, or the next line would wait for all of them
        return name, redacted_server(definition)

    def config(self, config: Config, now: float) -> bytes:
        """Another configuration took its place."""
        return encoded(ConfigLine(self._at(now), self._shown(config)))

    def event(self, event: Event) -> bytes:
        record, address = record_of(event), event.address
        secrets = self._of(address.server, address.session) if address is not None else self._of("", None)
        if "detail" in record:
            record["detail"] = secrets.without(record["detail"])
        return self._happened(event.at, record)

    def refused(
        self, at: float, server: str, session: str | None, tool: str | None, code: str, words: str
    ) -> bytes:
        """A call was refused before it was one: as an event, because it cannot be replayed."""
        whose = {"server": server} if server else {}
        detail = f"{tool or 'a call'} → {code}: {words}"
        said = self._said(self._of(server, session), {**whose, "tool": tool, "detail": detail})
        about = {"kind": "refusal", "event": "Refusal", "at": at, "session": session, "code": code}
        return self._happened(at, {**about, **said})

    def _happened(self, at: float, record: dict[str, Any]) -> bytes:
        return encoded(EventLine(self._at(at), cast("EventRecord", record)))

    def known(self, entry: ServerEntry, now: float) -> bytes:
        """What is known of a server before it runs: tools are shown from that, too."""
        version = entry.protocol_version or HANDSHAKE_VERSIONS[-1]
        said = version, entry.capabilities, entry.server_info, entry.instructions
        return self._list(now, Address(entry.server), 0, *said, entry, entry.prints or {})

    def listed(
        self,
        address: Address,
        incarnation: int,
        handshake: Handshake,
        listing: Listing,
        offers: Mapping[str, Any],
        now: float,
    ) -> bytes:
        said = (
            handshake.protocol_version,
            handshake.capabilities,
            handshake.server_info,
            handshake.instructions,
        )
        return self._list(now, address, incarnation, *said, listing, listing.prints, sorted(offers))

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
        offers: list[str] | None = None,
    ) -> bytes:
        of_kinds = lists.tools, lists.resources, lists.templates, lists.prompts, lists.skills
        said = self._said(
            self._of(address.server, address.session),
            [
                version,
                dict(capabilities),
                dict(info),
                instructions,
                *(None if items is None else [dict(item) for item in items] for items in of_kinds),
                dict(prints),
            ],
        )
        at = self._at(now)
        return encoded(
            ListingLine(at, address.server, address.scope, incarnation, *said, offers=offers or [])
        )

    def notice(
        self,
        address: Address,
        method: str,
        params: Mapping[str, Any] | None,
        now: float,
        left_out: int = 0,
    ) -> bytes:
        """`left_out`: bytes of params that are too large."""
        secrets = self._of(address.server, address.session)
        said = self._said(secrets, [method, None if params is None else dict(params)])
        return encoded(NoticeLine(self._at(now), address.server, address.scope, *said, left_out=left_out))

    def meet(self, config: Config) -> None:
        """Learn the secrets of all servers. Some may never be started, or not by what learns them then."""
        for name, definition in config.servers.items():
            self._meet(name, definition)

    def _meet(self, name: str, definition: ServerDefinition) -> None:
        self._secrets.add(name, None, secrets_of(definition, os.environ))

    def secrets_of(self, line: CallLine) -> SecretsOfAll:
        """What is to be cut out of a call, for whoever does that later: its session's are forgotten when it ends."""
        return self._of(line.server, line.session)

    def clean(self, line: CallLine, secrets: SecretsOfAll | None = None) -> None:
        """Cut the secrets out of a call: these, or those that are known now."""
        secrets = self.secrets_of(line) if secrets is None else secrets
        if len(line.params) + len(line.result) > SMALL or self._may_change(secrets, line):
            raw = bytes(line.params)
            params = self._cut(secrets, raw)
            line.hidden = line.hidden or params != raw
            line.params = msgspec.Raw(_on_one_line(params))
            line.tool = self._said(secrets, line.tool)
            if line.result is not NOTHING:
                line.result = msgspec.Raw(self._clean(secrets, bytes(line.result)))
        if line.error is not None:
            line.error = msgspec.convert(self._said(secrets, msgspec.to_builtins(line.error)), CallFailure)
        if line.progress:
            steps = self._said(secrets, [params for _, params in line.progress])
            line.progress = [(at, params) for (at, _), params in zip(line.progress, steps, strict=True)]
        if line.asked:
            for each in line.asked:
                each.params, each.answer, each.refusal = self._said(
                    secrets, [each.params, each.answer, each.refusal]
                )

    # ---- how --------------------------------------------------------------------------------------------------------

    def _shown(self, config: Config) -> dict[str, Any]:
        (foreseen, servers), self._ahead = self._ahead or (None, {}), None
        if foreseen is not config:
            self.meet(config)
            servers = {name: redacted_server(each) for name, each in config.servers.items()}
        return _with_servers(config, servers)

    def _at(self, at: float) -> float:
        return at - self._began

    def _of(self, server: str, session: str | None) -> SecretsOfAll:
        return self._secrets.of_all(server, session)

    def _may_change(self, secrets: SecretsOfAll, line: CallLine) -> bool:
        """Whether something may be cut out of a small call: one look at parameters and result together."""
        content = b" ".join((line.params, line.result))
        return (
            secrets.may_be_in(content)
            or content.find(b"\n") >= 0
            or (self._members is not None and self._members.without(content) is not content)
        )

    def _said(self, secrets: SecretsOfAll, value: Any) -> Any:
        """What a server said, or was told, without secrets. Only that is changed, and not the whole line: a secret that
        is like a number of ours would make it unreadable."""
        raw = encode(value)
        clean = self._clean(secrets, raw)
        return value if clean is raw else msgspec.json.decode(clean)

    def _clean(self, secrets: SecretsOfAll, raw: bytes) -> bytes:
        """A JSON text without secrets, on one line."""
        return _on_one_line(self._cut(secrets, raw))

    def _cut(self, secrets: SecretsOfAll, raw: bytes) -> bytes:
        raw = secrets.scrub(raw)
        return raw if self._members is None else self._members.without(raw)


def _on_one_line(raw: bytes) -> bytes:
    return raw.replace(b"\n", b" ") if b"\n" in raw else raw


def _with_servers(config: Config, servers: dict[str, Any]) -> dict[str, Any]:
    """`servers`: as they are shown."""
    settings = redacted(msgspec.structs.replace(config, servers={}))["settings"]
    profiles = {name: _profile(profile) for name, profile in config.profiles.items()}
    return {"mcpServers": servers, "settings": settings, "profiles": profiles}


def _profile(profile: Profile) -> dict[str, Any]:
    said = {key.name: key.in_file_units(getattr(profile, key.attribute)) for key in PROFILE_KEYS}
    return {name: value for name, value in said.items() if value is not None}
