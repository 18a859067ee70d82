"""Makes the connector of a server: completes its definition (settings applied, variables filled in) and
chooses the transport. Values that commands give are asked for when the connector opens, once for each incarnation."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from ..actors import Backend, Connector, Guard, LostReason, StdioConnector, connect_failed
from ..protocol.address import Address
from ..protocol.config import ServerDefinition, Settings, with_settings
from ..protocol.config_parse import secrets_of
from ..protocol.errors import ConfigError, CredentialNeeded
from ..protocol.interpolate import (
    command_in,
    commands_of,
    expand_definition,
    header_problem,
    session_variables,
    with_answer,
    with_session,
)
from ..protocol.secrets import Hidden, KnownSecrets
from ._login_watch import LoginWatch
from ._sessions import Sessions

if TYPE_CHECKING:
    from ..actors import AuthFor, Connection, PeerHooks


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
    silent: set[str] = attrs.field(factory=set[str])  # see `actors.npx`

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
        if asked := tuple(commands_of(given)):
            reach = partial(
                self.reaching, address=address, incarnation=incarnation, environ=environ, session=session
            )
            return _Asking(self, reach, definition, asked, session)
        return self.reaching(definition, address, incarnation, environ, session)

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
            return HttpConnector(definition, backend=backend, settings=settings, auth=login)
        if definition.socket is not None:
            from ..actors import UnixConnector

            return UnixConnector(definition, backend=backend, settings=settings)

        def started(definition: ServerDefinition) -> StdioConnector:
            return StdioConnector(
                definition,
                address,
                incarnation,
                backend=backend,
                guard=self.guard,
                settings=settings,
                run_id=self.run_id,
            )

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


@attrs.frozen
class _Asking:
    """The connector of a server some of whose values are the output of commands. `asked`: attribute, place in it, and
    text of each."""

    connectors: Connectors
    reach: Callable[[ServerDefinition], Connector]  # for the complete definition
    definition: ServerDefinition  # complete but for these values
    asked: tuple[tuple[str, str | int, str], ...]
    session: str | None

    @asynccontextmanager
    async def open(self, hooks: PeerHooks) -> AsyncGenerator[Connection]:
        """Run the commands, then start the other side. Raises `ConnectFailed` also when a command fails."""
        definition = await self._answered()
        async with self.reach(definition).open(hooks) as connection:
            yield connection

    async def _answered(self) -> ServerDefinition:
        from ..actors.secret_commands import Asked, answers

        name = self.definition.name
        commands = [
            Asked(command_in(text) or "", f"{attribute}.{place}") for attribute, place, text in self.asked
        ]
        said = await answers(name, commands, self.connectors.settings().secret_timeout)
        values = [
            with_answer(each[2], said[one.command]) for each, one in zip(self.asked, commands, strict=True)
        ]
        hidden = tuple(Hidden(f"the secret of {one.place}", said[one.command]) for one in commands)
        self.connectors.secrets.answered(name, hidden, self.session)
        changed: dict[str, Any] = {
            "args": [*self.definition.args],
            "env": {**self.definition.env},
            "headers": {**self.definition.headers},
        }
        for (attribute, place, _), value in zip(self.asked, values, strict=True):
            if attribute == "headers" and (wrong := header_problem(str(place), value)) is not None:
                raise connect_failed(name, LostReason(f"headers.{place}, which a command gives: {wrong}"))
            changed[attribute][place] = value
        return attrs.evolve(self.definition, **{**changed, "args": tuple(changed["args"])})
