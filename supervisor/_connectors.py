"""Makes the connector of a server: completes its definition (settings applied, variables filled in) and
chooses the transport."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import attrs

from ..actors import Backend, Connector, Guard, LostReason, StdioConnector, connect_failed
from ..protocol.address import Address
from ..protocol.config import ServerDefinition, Settings, with_settings
from ..protocol.config_parse import secrets_of
from ..protocol.errors import ConfigError, CredentialNeeded
from ..protocol.interpolate import expand_definition, session_variables, with_session
from ..protocol.secrets import KnownSecrets
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

    def __call__(self, definition: ServerDefinition, address: Address, incarnation: int) -> Connector:
        given, settings, backend = definition, self.settings(), self.backend
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
        return StdioConnector(
            definition,
            address,
            incarnation,
            backend=backend,
            guard=self.guard,
            settings=settings,
            run_id=self.run_id,
        )
