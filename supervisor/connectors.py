"""Makes the connector of a server: completes its definition (settings applied, variables filled in) and
chooses the transport. Values that stand in no file are asked for when the connector opens (`AskingConnector`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cached_property, partial
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread
import msgspec

from ..actors.backend import Backend
from ..actors.login.caller_identity import CallerIdentity
from ..actors.peer import Connector, LostReason, connect_failed
from ..actors.timers import at_most
from ..actors.transports.guard import Guard
from ..actors.transports.stderr_log import StderrLog
from ..actors.workers import apart
from ..config.asked_values import command_in, keyring_in, with_answer
from ..config.credentials import SecretValue
from ..config.known_secrets import KnownSecrets
from ..config.masking import secrets_of
from ..config.model import ServerDefinition, Settings, with_settings
from ..config.references import asked_of, expand_definition, header_problem, session_variables, with_session
from ..protocol.address import Address
from ..protocol.errors import ConfigError, ConnectFailed, CredentialNeeded
from .sessions import Sessions
from .starts import LoginWatch

if TYPE_CHECKING:
    import httpx2

    from ..actors.peer import Connection, PeerHooks
    from ..actors.transports.api_document import ApiDocuments
    from ..actors.transports.http_connection import AuthFor, OpensApi
    from ..actors.transports.http_peer import Carrier, HttpPeer
    from ..actors.transports.stdio import StdioConnector

_NOT_ON_WINDOWS: Final = (
    "Greenroom starts no programs on Windows, and has no unix sockets there. "
    'Reach the server by a "url", or run Greenroom in WSL.'
)


class _PlainDefinition(msgspec.Struct, frozen=True):
    """A definition that refers to nothing, as most do: it is complete for every start."""

    given: ServerDefinition
    settings: Settings  # that it was completed with
    complete: ServerDefinition


class Connectors(msgspec.Struct, frozen=True, eq=False, dict=True):
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
    silent: set[str] = msgspec.field(default_factory=set[str])  # see `actors.transports.npx`
    helpers: Iterator[int] = msgspec.field(default_factory=lambda: count(1))
    literals: dict[str, _PlainDefinition] = msgspec.field(
        default_factory=dict[str, _PlainDefinition]
    )  # by server

    def __call__(self, definition: ServerDefinition, address: Address, incarnation: int) -> Connector:
        given, settings = definition, self.settings()
        literal = self.literals.get(address.server)
        if literal is not None and literal.given is given and literal.settings is settings:
            return self.reaching(literal.complete, address, incarnation, os.environ, None)
        session = address.session if session_variables(given) else None
        try:
            environ = self.heed(given, address)
            definition = with_settings(definition, settings)
            expanded = expand_definition(definition, environ)
        except (ConfigError, CredentialNeeded) as error:
            raise connect_failed(address.server, LostReason(str(error))) from None
        is_literal = expanded.definition is definition and not expanded.problems
        definition = expanded.definition
        asked = tuple(asked_of(given))
        if asked or given.env_file is not None:
            reach = partial(
                self.reaching, address=address, incarnation=incarnation, environ=environ, session=session
            )
            limit = settings.secret_timeout
            return AskingConnector(reach, definition, asked, limit, self.secrets, session)
        if is_literal and session is None:
            self.literals[address.server] = _PlainDefinition(given, settings, definition)
        return self.reaching(definition, address, incarnation, environ, session)

    def heed(self, definition: ServerDefinition, address: Address) -> Mapping[str, str]:
        """Learn what is a secret of this server before anything is started, wherever that is. Returns the environment
        that its values come from. Raises `CredentialNeeded` when its session does not give all of them."""
        session = address.session if session_variables(definition) else None
        environ = (
            os.environ if session is None else with_session(os.environ, self.sessions.variables(session))
        )
        self.secrets.learn(
            address.server,
            definition,
            lambda: secrets_of(with_settings(definition, self.settings()), environ),
            session,
        )
        self.sessions.check(definition, address.session)
        return environ

    @cached_property
    def _documents(self) -> ApiDocuments:
        from ..actors.transports.api_document import ApiDocuments

        return ApiDocuments(self.folder)

    def helper(self, name: str, command: Sequence[str], max_line: int) -> StdioConnector:
        """A connector that starts a child of ours which is no server. It is guarded, tagged and ended like a server's.
        `max_line`: bytes of a line in either direction."""
        definition = ServerDefinition(name, command=command[0], args=tuple(command[1:]), cwd=os.sep)
        settings = msgspec.structs.replace(self.settings(), max_line=max_line)
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
        from ..actors.transports.stdio import StdioConnector

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
            from ..actors.transports.in_process import InProcessConnector

            return InProcessConnector(definition, backend=backend)
        if definition.url is not None:
            return LoadingConnector(
                partial(_load_http, is_api=definition.is_api, is_as_caller=definition.is_as_caller),
                partial(self._http, definition, address, environ, session),
            )
        if sys.platform == "win32":
            raise ConnectFailed(_NOT_ON_WINDOWS, server=address.server)
        if definition.socket is not None:
            from ..actors.transports.unix_socket import UnixConnector

            return UnixConnector(definition, backend=backend, settings=settings)

        def started(definition: ServerDefinition) -> StdioConnector:
            return self._stdio(definition, address, incarnation, settings, self.log(address, incarnation))

        resolve = settings.resolve_npx if definition.resolve_npx is None else definition.resolve_npx
        if resolve and (definition.command or "").endswith(("npx", "npm")):
            return self._without_npm(definition, started)
        return started(definition)

    def _http(
        self, definition: ServerDefinition, address: Address, environ: Mapping[str, str], session: str | None
    ) -> Connector:
        from ..actors.login.login_auth import auth_for
        from ..actors.transports.http_connection import HttpConnector

        self.logins().connecting(definition)
        settings = self.settings()
        learn = partial(self.secrets.add, address.server, session)
        auth = self.auth or partial(auth_for, environ=environ, learn=learn)
        if definition.is_as_caller:
            auth = self._as_caller(definition, environ, address)
        return HttpConnector(
            definition,
            backend=self.backend,
            settings=settings,
            auth=auth,
            learn=partial(self.secrets.answered, address.server, session=session),
            api=self._api(definition, settings) if definition.is_api else None,
        )

    def _as_caller(
        self,
        definition: ServerDefinition,
        environ: Mapping[str, str],
        address: Address,
    ) -> AuthFor:
        """What gives the requests of one session the token of its caller. The last of the tokens that it has
        had stay known as secrets."""
        from ..actors.login.caller_auth import CallerLogin
        from ..actors.login.login_auth import oauth_of
        from ..actors.login.login_record import LoginFailed
        from ..actors.login.token_exchange import terms_of

        caller = partial(self.sessions.caller, address.session)
        learn = partial(self.secrets.carried, address.server, session=address.session)
        try:
            oauth = oauth_of(definition, environ)
            terms = terms_of(definition, oauth)
        except LoginFailed as error:
            raise connect_failed(address.server, LostReason(str(error))) from None
        given = CallerIdentity(oauth["subjectToken"]) if "subjectToken" in oauth else None
        identity = caller if given is None else lambda: given
        return lambda _: CallerLogin(terms, identity, caller, learn)

    def _api(self, definition: ServerDefinition, settings: Settings) -> OpensApi:
        """What reads the document of an HTTP API, and carries its calls."""
        from ..actors.transports.api_carrier import ApiCarrier

        async def opened(client: httpx2.AsyncClient, *, has_login: bool) -> Callable[[HttpPeer], Carrier]:
            api = await self._documents.api_of(definition, client)
            return partial(ApiCarrier, api, definition, client, settings, has_login=has_login)

        return opened

    def _without_npm(
        self, definition: ServerDefinition, started: Callable[[ServerDefinition], StdioConnector]
    ) -> Connector:
        from ..actors.transports.npx import NpxConnector
        from ..actors.transports.npx_request import wanted

        if (asked := wanted(definition.command, definition.args)) is None:
            return started(definition)
        notes = None if self.folder is None else self.folder / "npx"
        return NpxConnector(definition, asked, started, notes, self.silent)


# ---- The connector of a server whose transport has to be imported first ---------------------------------------------
#
# The HTTP library and what is written over it are some 200 modules. They are imported in a thread, so that the first
# HTTP server of a process does not make the whole program wait (an embedder's, too).


class LoadingConnector(msgspec.Struct, frozen=True):
    """`load` imports what `make` needs. It runs in a thread, `make` on the loop."""

    load: Callable[[], object]
    make: Callable[[], Connector]

    @asynccontextmanager
    async def open(self, hooks: PeerHooks) -> AsyncGenerator[Connection]:
        await apart(self.load)
        async with self.make().open(hooks) as connection:
            yield connection


def _load_http(*, is_api: bool, is_as_caller: bool) -> None:
    import_module("..actors.login.login_auth", __package__)
    if is_as_caller:
        import_module("..actors.login.caller_auth", __package__)
    import_module("..actors.transports.http_connection", __package__)
    if is_api:
        import_module("..actors.transports.api_document", __package__)
        import_module("..actors.transports.api_carrier", __package__)
    import_module("..catalogue.schema_repair", __package__)  # its first list is looked through with this


# ---- The connector of a server some of whose values stand in no file of ours -----------------------------------------
#
# It asks for them before each start.
#
# They are the variables of an `envFile`, the output of commands, and entries of the keyring. Each is asked for when an
# incarnation opens, is told to the known secrets, so that no text shows it, and is kept nowhere else. A variable of the
# file gives way to one of the same name in `env`.


class AskingConnector(msgspec.Struct, frozen=True):
    """`asked`: for each value its attribute, its place in there and its text. `limit`: seconds for one command or
    keyring entry."""

    reach: Callable[[ServerDefinition], Connector]  # for the complete definition
    definition: ServerDefinition  # complete but for these values
    asked: tuple[tuple[str, str | int, str], ...]
    limit: float
    secrets: KnownSecrets
    session: str | None

    @asynccontextmanager
    async def open(self, hooks: PeerHooks) -> AsyncGenerator[Connection]:
        """Ask, then start the other side. Raises `ConnectFailed` also when a value cannot be had."""
        definition = await self._complete()
        async with self.reach(definition).open(hooks) as connection:
            yield connection

    async def _complete(self) -> ServerDefinition:
        variables = await self._variables()
        answers = await self._answers()
        name = self.definition.name
        hidden = (
            *(SecretValue(variable, value) for variable, value in variables.items()),
            *(
                SecretValue(str(place), said, known=True)
                for (_, place, _), said in zip(self.asked, answers, strict=True)
            ),
        )
        self.secrets.answered(name, hidden, self.session)
        changed: dict[str, Any] = {
            "args": [*self.definition.args],
            "env": {**variables, **self.definition.env},
            "headers": {**self.definition.headers},
        }
        for (attribute, place, text), said in zip(self.asked, answers, strict=True):
            value = with_answer(text, said)
            if attribute == "headers" and (wrong := header_problem(str(place), value)) is not None:
                source = "a command gives" if command_in(text) is not None else "the keyring keeps"
                raise connect_failed(name, LostReason(f"headers.{place}, which {source}: {wrong}"))
            changed[attribute][place] = value
        return msgspec.structs.replace(self.definition, **{**changed, "args": tuple(changed["args"])})

    async def _variables(self) -> Mapping[str, str]:
        """The variables of the `envFile`."""
        file = self.definition.env_file
        if file is None:
            return {}
        from ..config.secret_sources import variables_in

        definition = self.definition
        return await anyio.to_thread.run_sync(variables_in, file, definition.name, definition.env_file_agreed)

    async def _answers(self) -> list[str]:
        """The outputs of the commands and the entries of the keyring, in the order of `asked`."""
        name = self.definition.name
        places = {text: f"{attribute}.{place}" for attribute, place, text in reversed(self.asked)}
        commands = {text: said for text in places if (said := command_in(text)) is not None}
        entries = {text: said for text in places if (said := keyring_in(text)) is not None}
        said, kept = dict[str, str](), dict[tuple[str, str], str]()
        if commands:
            from ..config.secret_sources import SecretCommand, answers

            asked = [SecretCommand(command, places[text]) for text, command in commands.items()]
            said = await answers(name, asked, self.limit)
        if entries:
            from ..config.secret_sources import KeyringEntry
            from ..config.secret_sources import kept as kept_in_keyring

            wanted = [KeyringEntry(*entry, places[text]) for text, entry in entries.items()]
            kept = await kept_in_keyring(name, wanted, self.limit, at_most)
        return [
            said[commands[text]] if text in commands else kept[entries[text]] for _, _, text in self.asked
        ]
