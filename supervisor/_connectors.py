"""Makes the connector of a server: completes its definition (settings applied, variables filled in) and
chooses the transport. Values that stand in no file are asked for when the connector opens (`_asking`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from ..actors import Backend, Connector, Guard, LostReason, StderrLog, StdioConnector, connect_failed
from ..protocol.address import Address
from ..protocol.asked import asked_of
from ..protocol.config import ServerDefinition, Settings, with_settings
from ..protocol.config_parse import secrets_of
from ..protocol.errors import ConfigError, CredentialNeeded
from ..protocol.interpolate import expand_definition, session_variables, with_session
from ..protocol.secrets import KnownSecrets
from ._asking import AskingConnector
from ._login_watch import LoginWatch
from ._sessions import Sessions

if TYPE_CHECKING:
    from ..actors import AuthFor


@attrs.frozen
class Connectors:
    """A `ConnectorFactory`. It is called once for each incarnation."""

    backend: Backend
    settings: Callable[[], Settings]  # the present ones: a reload changes them
    guard: Guard
    secrets: KnownSecrets  # told the secrets of each definition
    run_id: str
    auth: AuthFor | None
    sessions: Sessions
    logins: Callable[[], LoginWatch]  # told of each attempt to connect
    folder: Path | None  # where the room may keep files
    log: Callable[[Address, int], StderrLog | None] = lambda _address, _incarnation: None
    silent: set[str] = attrs.field(factory=set[str])  # see `actors.npx`
    helpers: Iterator[int] = attrs.field(factory=lambda: count(1))

    def __call__(self, definition: ServerDefinition, address: Address, incarnation: int) -> Connector:
        given, settings = definition, self.settings()
        session = address.session if session_variables(given) else None
        environ = (
            os.environ if session is None else with_session(os.environ, self.sessions.variables(session))
        )
        self.secrets.learn(
            address.server, given, lambda: secrets_of(with_settings(given, settings), environ), session
        )
        try:
            self.sessions.check(given, address.session)
            definition = with_settings(definition, settings)
            definition = expand_definition(definition, environ).definition
        except (ConfigError, CredentialNeeded) as error:
            raise connect_failed(address.server, LostReason(str(error))) from None
        asked = tuple(asked_of(given))
        if asked or given.env_file is not None:
            reach = partial(
                self.reaching, address=address, incarnation=incarnation, environ=environ, session=session
            )
            limit = settings.secret_timeout
            return AskingConnector(reach, definition, asked, limit, self.secrets, session)
        return self.reaching(definition, address, incarnation, environ, session)

    def helper(self, name: str, command: Sequence[str], max_line: int) -> StdioConnector:
        """What starts a child of ours that is no server. It is guarded, tagged and ended like a server's.
        `max_line`: bytes of a line, either way."""
        definition = ServerDefinition(name, command=command[0], args=tuple(command[1:]), cwd=os.sep)
        settings = attrs.evolve(self.settings(), max_line=max_line)
        number = -next(self.helpers)  # a server has none below zero, so no tag of a server is this one's
        return self._stdio(definition, Address(name), number, settings)

    def _stdio(
        self,
        definition: ServerDefinition,
        address: Address,
        incarnation: int,
        settings: Settings,
        log: StderrLog | None = None,
    ) -> StdioConnector:
        return StdioConnector(
            definition,
            address,
            incarnation,
            backend=self.backend,
            guard=self.guard,
            settings=settings,
            run_id=self.run_id,
            log=log,
        )

    def reaching(
        self,
        definition: ServerDefinition,
        address: Address,
        incarnation: int,
        environ: Mapping[str, str],
        session: str | None,
    ) -> Connector:
        """The connector for a definition that is complete. `environ`: with the values of `session`, if it has any."""
        settings, backend = self.settings(), self.backend
        if definition.in_process is not None:
            from ..actors import InProcessConnector

            return InProcessConnector(definition, backend=backend)
        if definition.url is not None:
            from ..actors import HttpConnector
            from ..actors.login import auth_for

            self.logins().connecting(definition)
            learn = partial(self.secrets.add, address.server, session)
            login = self.auth or partial(auth_for, environ=environ, learn=learn)
            of_command = partial(self.secrets.answered, address.server, session=session)
            return HttpConnector(definition, backend=backend, settings=settings, auth=login, learn=of_command)
        if definition.socket is not None:
            from ..actors import UnixConnector

            return UnixConnector(definition, backend=backend, settings=settings)

        def started(definition: ServerDefinition) -> StdioConnector:
            return self._stdio(definition, address, incarnation, settings, self.log(address, incarnation))

        resolve = settings.resolve_npx if definition.resolve_npx is None else definition.resolve_npx
        if resolve and (definition.command or "").endswith(("npx", "npm")):
            return self._without_npm(definition, started)
        return started(definition)

    def _without_npm(
        self, definition: ServerDefinition, started: Callable[[ServerDefinition], StdioConnector]
    ) -> Connector:
        from ..actors.npx import NpxConnector
        from ..protocol.npx import wanted

        if (asked := wanted(definition.command, definition.args)) is None:
            return started(definition)
        notes = None if self.folder is None else self.folder / "npx"
        return NpxConnector(definition, asked, started, notes, self.silent)
