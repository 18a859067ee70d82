"""A room as the clients of one profile see it: what is outside the profile does not exist.

One view is shared by all sessions of a profile. It has an index of its own, made of the parts of the room's index that
the profile shows, with its own search and suggestions. Whatever looks a name up (`Caller`, and through it every method
of a session and every door) looks it up here. So nothing else has to know of profiles.

A profile that a reload has removed shows nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec
from msgspec.structs import replace

from ..actors.workers import aside_if_many
from ..catalogue.entries import ServerEntry
from ..catalogue.index import Index
from ..config.model import Config, Profile, selector
from ..protocol.errors import UNKNOWN_PROFILE, UnknownServer, UsageError
from ..protocol.status import ServerStatus

_NOTHING: Final = Profile(servers=())


class ProfileView:
    """The part of a room that one profile shows. `config` and `index` return those of the room."""

    def __init__(self, name: str, config: Callable[[], Config], index: Callable[[], Index]) -> None:
        self.name = name
        self._room_config = config
        self._room_index = index
        self._config: Config | None = None  # the room's, of which the next two were made
        self._shown_config: Config | None = None
        self._shown: dict[str, bool] = {}
        self._whole: Index | None = None  # the room's, of which the next was made
        self._index: Index | None = None

    @property
    def profile(self) -> Profile:
        return self._room_config().profiles.get(self.name, _NOTHING)

    def shows(self, server: str) -> bool:
        self._follow()
        found = self._shown.get(server)
        if found is None:
            patterns = self.profile.servers
            found = self._shown[server] = patterns is None or selector(patterns)(server)
        return found

    def check(self, server: str) -> None:
        """Raises `UnknownServer`, as for a server that is not configured."""
        if not self.shows(server):
            raise UnknownServer(server, tuple(filter(self.shows, self._room_config().servers)))

    @property
    def config(self) -> Config:
        """The room's configuration with only the servers of the profile, and the problems of those."""
        self._follow()
        if self._shown_config is None:
            whole = self._room_config()
            self._shown_config = msgspec.structs.replace(
                whole,
                servers={name: one for name, one in whole.servers.items() if self.shows(name)},
                broken={name: one for name, one in whole.broken.items() if self.shows(name)},
                untrusted=(),
                problems=(),
                profiles={},
            )
        return self._shown_config

    # ---- the catalogue ----------------------------------------------------------------------------------------------

    @property
    def index(self) -> Index:
        whole = self._room_index()
        self._follow()
        if self._index is None or self._whole is not whole:
            self._index, self._whole = _narrowed(whole, self.profile, self._index), whole
        return self._index

    async def prepare(self) -> None:
        """Make the index, if the room's has changed."""
        self._follow()
        whole = self._room_index()
        if self._index is None or self._whole is not whole:
            config = self._config
            index = await aside_if_many(whole.size, partial(_narrowed, whole, self.profile, self._index))
            if self._config is config is self._room_config():  # else it is made anew when it is asked for
                self._index, self._whole = index, whole

    def entry(self, entry: ServerEntry | None) -> ServerEntry | None:
        """What is known of a server of the profile, with only the tools that the profile shows."""
        if entry is None or entry.tools is None or not self._narrows:
            return entry
        shown = {target.original for target in self.index.tools(entry.server) if target.kind == "tool"}
        tools = tuple(tool for tool in entry.tools if tool.get("name") in shown)
        readable = {skill.original for skill in self.index.skills(entry.server)}
        skills = tuple(skill for skill in entry.skills or () if skill["uri"] in readable)
        return replace(entry, tools=tools, skills=skills, problems=())

    def row(self, row: ServerStatus) -> ServerStatus:
        """The row of a server of the profile, with only the tools that the profile shows."""
        if not self._narrows:
            return row
        counts = self.index.counts(row.server)
        faults = self.index.faults(row.server)
        return msgspec.structs.replace(
            row,
            tool_count=None if counts is None else counts.tools,
            resource_count=0 if counts is None else counts.resources,
            changed=() if counts is None else counts.changed,
            flapping=() if counts is None else counts.flapping,
            hidden=() if counts is None else counts.hidden,
            faults=faults,
            problems=(),
        )

    @property
    def _narrows(self) -> bool:
        return self.profile.tools is not None or bool(self.profile.overrides)

    def _follow(self) -> None:
        """Forget what was made of an earlier configuration."""
        if self._config is not self._room_config():
            self._config, self._shown_config = self._room_config(), None
            self._shown, self._index = {}, None


def _narrowed(whole: Index, profile: Profile, previous: Index | None) -> Index:
    """The part of the room's index that a profile shows. It may be made in a thread, so it changes nothing."""
    shown = whole.servers if profile.servers is None else filter(selector(profile.servers), whole.servers)
    return whole.narrowed(list(shown), profile.tools, profile.overrides, previous=previous)


class Profiles:
    """The views of a room, each made when a session first wants it."""

    def __init__(self, config: Callable[[], Config], index: Callable[[], Index]) -> None:
        self._config = config
        self._index = index
        self._views: dict[str, ProfileView] = {}

    def view(self, profile: str) -> ProfileView:
        """What a profile shows; one view for all its sessions. Raises `UsageError` for an unknown profile."""
        profiles = self._config().profiles
        if profile not in profiles:
            known = ", ".join(profiles) or "none"
            text = f'There is no profile "{profile}" in this configuration. There are: {known}.'
            raise UsageError(text, code=UNKNOWN_PROFILE)
        return self._views.setdefault(profile, ProfileView(profile, self._config, self._index))
