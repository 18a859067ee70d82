"""Getting a login through the SDK's OAuth provider. Nothing else about logins imports the SDK.

The provider finds the authorization server (RFC 9728, RFC 8414), registers us there (a client-id document, given ids,
or RFC 7591), and runs the flow with PKCE. It is driven by one request to the server, an `initialize` whose answer
nobody reads. An HTTP API knows no such request: it is sent a GET, and the flow begins whatever it answers. What we
add: the configured headers on its own requests, `authorizationParams`, time limits, and errors without secrets. The
provider may only be used on one loop, so a login without a person runs on a loop of its own, in a thread.
"""

from __future__ import annotations

import json
import logging
import time
import warnings
from collections.abc import AsyncGenerator, Mapping
from contextvars import ContextVar
from http import HTTPMethod, HTTPStatus
from typing import Any, Final, Protocol
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

import anyio
import attrs
import httpx2

from ...config.model import ServerDefinition
from ...protocol.jsonrpc.terms import HANDSHAKE_VERSIONS
from ...protocol.safe_text import shortened
from ...protocol.version import VERSION
from ..timers import at_most
from .login_record import AuthorizationServerDown, Login, LoginFailed, from_json, seconds
from .login_store import LoginStore
from .token_endpoint import (
    DEVICE_GRANT,
    device_login,
    is_safe,
    of_configuration,
    outage,
    refusal,
    without_credentials,
)

_VERSION: Final = HANDSHAKE_VERSIONS[-1]
_OF_RESOURCE: Final = "/.well-known/oauth-protected-resource"
_OBTAIN_WITHIN: Final = 30.0  # seconds, for a login without a person
_CONNECT_WITHIN: Final = 15.0
_quiet: ContextVar[bool] = ContextVar("greenroom_quiet_login", default=False)
# The provider logs its errors with their tracebacks, and these may quote what was sent.
logging.getLogger("mcp.client.auth.oauth2").addFilter(lambda record: not _quiet.get())


class LoginPerson(Protocol):
    """The person who logs in: at a terminal, which the command line knows and this room does not."""

    redirect_uri: str
    prefers_device: bool
    insists_on_device: bool

    async def send_to(self, url: str) -> None:
        """Show this page of the authorization server."""
        ...

    async def answer(self) -> Mapping[str, str]:
        """Wait for the parameters of the redirect that came back: `code`, `state`, perhaps `iss`."""
        ...

    def show_code(self, url: str, code: str, complete: str | None) -> None:
        """Show the code of the device flow, and the page on which it is to be entered."""
        ...


class _DeviceInstead(Exception):
    """Ends the provider's flow: everything that the device flow needs has been found and registered."""


async def log_in(
    definition: ServerDefinition, oauth: Mapping[str, Any], person: LoginPerson, scope: str | None = None
) -> Login:
    """A login that `person` makes. `definition` and `oauth` are expanded. Nothing is stored, and the caller limits the
    time. Raises `LoginFailed`.
    """
    from mcp.client.auth import OAuthClientProvider
    from mcp.shared.auth import OAuthClientMetadata

    asked = _LoginQuestions(person, oauth, scope or oauth.get("scope"))
    insists = person.insists_on_device or oauth.get("grantType") == "device_code"
    wants_device = person.prefers_device or insists

    class Provider(OAuthClientProvider):
        async def _perform_authorization(self) -> Any:
            if asked.scope is not None:
                self.context.client_metadata.scope = asked.scope
            if wants_device and flow.device_endpoint is not None:
                raise _DeviceInstead
            if insists:
                raise LoginFailed("the authorization server offers no device flow")
            return await super()._perform_authorization()

    grants = ["authorization_code", "refresh_token", *([DEVICE_GRANT] if wants_device else [])]
    metadata: dict[str, Any] = {
        "redirect_uris": [person.redirect_uri],
        "grant_types": grants,
        "client_name": oauth.get("clientName", "Greenroom"),
        "client_uri": oauth.get("clientUri"),
        "logo_uri": oauth.get("logoUri"),
        "scope": asked.scope,
        "software_id": "greenroom",
        "software_version": VERSION,
        "token_endpoint_auth_method": None if "clientSecret" in oauth else "none",
    }
    storage = _LoginStorage(_given_client(oauth, person.redirect_uri))
    try:
        provider = Provider(
            definition.url or "",
            OAuthClientMetadata(**metadata),
            storage,
            asked.redirect,
            asked.callback,
            client_metadata_url=oauth.get("clientMetadataUrl"),
        )
    except ValueError as error:
        raise LoginFailed(f'"oauth" cannot be used: {type(error).__name__}') from None
    flow = _Flow(provider, definition, oauth.get("issuer"))
    try:
        await _drive(definition, flow)
    except _DeviceInstead:
        login = _as_login(definition, provider, storage, "device_code", None)
        assert flow.device_endpoint is not None
        return await device_login(flow.device_endpoint, login, definition.headers, person.show_code)
    return _as_login(definition, provider, storage, "authorization_code", storage.tokens)


def obtained(
    store: LoginStore, definition: ServerDefinition, oauth: Mapping[str, Any], replaces: str | None
) -> Login:
    """A login by client credentials, stored in place of the one with this id, or what another process has stored
    meanwhile. Blocks. Raises `LoginFailed`."""
    assert definition.url is not None
    with store.locked(definition.name, definition.url):
        kept = store.load(definition.name, definition.url)
        if kept is not None and kept.id != replaces:
            return kept
        login = anyio.run(_by_credentials, definition, oauth)
        return store.save(login, None)


async def _by_credentials(definition: ServerDefinition, oauth: Mapping[str, Any]) -> Login:
    from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider

    storage = _LoginStorage(None)
    options: dict[str, Any] = {"issuer": oauth["issuer"]} if "issuer" in oauth else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without an issuer; docs/login.md says to give it
        provider = ClientCredentialsOAuthProvider(
            definition.url or "",
            storage,
            client_id=oauth["clientId"],
            client_secret=oauth["clientSecret"],
            scope=oauth.get("scope"),
            **options,
        )
    async with at_most(_OBTAIN_WITHIN) as limit:
        await _drive(definition, _Flow(provider, definition, oauth.get("issuer")))
    if limit.cancelled_caught:
        raise AuthorizationServerDown(f"no login was had within {_OBTAIN_WITHIN:g} s")
    login = _as_login(definition, provider, storage, "client_credentials", storage.tokens)
    return attrs.evolve(login, refresh_token=None, made=f"client {oauth['clientId']}")


class _LoginQuestions:
    """Passes the provider's questions on to the person."""

    def __init__(self, person: LoginPerson, oauth: Mapping[str, Any], scope: str | None) -> None:
        self._person = person
        self._further: Mapping[str, str] = oauth.get("authorizationParams", {})
        self.scope = scope

    async def redirect(self, url: str) -> None:
        parts = urlsplit(url)
        if not is_safe(url):
            raise LoginFailed("the authorization server's page for a login is not reached over https")
        # `endpoint?a=b` plus our parameters: the SDK puts a second "?" there.
        query = parse_qs(parts.query.replace("?", "&"), keep_blank_values=True)
        query |= {name: [value] for name, value in self._further.items()}
        await self._person.send_to(urlunsplit(parts._replace(query=urlencode(query, doseq=True))))

    async def callback(self) -> Any:
        said = await self._person.answer()
        if "code" not in said:
            code = said.get("error", "")
            plain = code.replace("_", "").isalnum() and len(code) <= 60
            raise LoginFailed(f"the authorization server refused{f': {code}' if plain else ''}")
        try:
            from mcp.shared.auth import AuthorizationCodeResult
        except ImportError:  # the SDK's 1.x
            return said["code"], said.get("state")
        return AuthorizationCodeResult(code=said["code"], state=said.get("state"), iss=said.get("iss"))


class _LoginStorage:
    """The provider's storage, for one login."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.tokens: Any = None

    async def get_tokens(self) -> Any:
        return None

    async def set_tokens(self, tokens: Any) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> Any:
        return self.client

    async def set_client_info(self, client_info: Any) -> None:
        self.client = client_info


def _given_client(oauth: Mapping[str, Any], redirect_uri: str) -> Any:
    from mcp.shared.auth import OAuthClientInformationFull

    if "clientId" not in oauth:
        return None
    secret = oauth.get("clientSecret")
    values: dict[str, Any] = {
        "client_id": oauth["clientId"],
        "client_secret": secret,
        "redirect_uris": [redirect_uri],
        "token_endpoint_auth_method": "none" if secret is None else "client_secret_basic",
    }
    client = OAuthClientInformationFull(**values)
    if "issuer" in oauth and "issuer" in type(client).model_fields:
        client.issuer = oauth["issuer"]
    return client


class _Flow(httpx2.Auth):
    """The provider's flow, with the configured headers on its own requests. It sees what the provider is told.

    Few HTTP APIs speak of their authorization server. So the flow of one begins whatever it answers, ends with the
    token, and goes to the configured issuer if the API names none."""

    def __init__(self, provider: Any, definition: ServerDefinition, issuer: str | None) -> None:
        self._provider = provider
        self._is_api = definition.is_api
        self._headers = of_configuration(definition.headers)
        self._issuer = issuer
        self.device_endpoint: str | None = None
        self._flaw = ""  # of the authorization server's metadata

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        flow = self._provider.async_auth_flow(request)
        try:
            outgoing, is_first = await anext(flow), True
            while is_first or outgoing is not request or not self._is_api:
                is_first = False
                if outgoing is not request:
                    outgoing = self._with_headers(outgoing)
                response = yield outgoing
                if self._is_api:
                    response = self._of_api(response, is_own=outgoing is request)
                if outgoing is not request and ".well-known/" in str(outgoing.url):
                    self._read(response, await response.aread())
                    if _OF_RESOURCE not in outgoing.url.path:
                        self._flaw = _flaw_of(response) or self._flaw
                elif outgoing is not request and outgoing.method == HTTPMethod.POST:
                    response = self._of_provider(response, await response.aread())
                outgoing = await flow.asend(response)
        except StopAsyncIteration:
            return
        finally:
            await flow.aclose()

    def _of_api(self, response: httpx2.Response, *, is_own: bool) -> httpx2.Response:
        """What the provider is told an HTTP API has answered. `is_own`: to its own request."""
        request = response.request
        if is_own and response.status_code != HTTPStatus.UNAUTHORIZED:
            return httpx2.Response(HTTPStatus.UNAUTHORIZED, request=request)
        if (
            _OF_RESOURCE in request.url.path
            and response.status_code != HTTPStatus.OK
            and self._issuer is not None
        ):
            said = {"resource": self._provider.context.server_url, "authorization_servers": [self._issuer]}
            return httpx2.Response(HTTPStatus.OK, json=said, request=request)
        return response

    def _of_provider(self, response: httpx2.Response, body: bytes) -> httpx2.Response:
        """What the authorization server has answered to a form or a registration, as the provider can read it. Raises
        `AuthorizationServerDown` and `LoginFailed` for what the provider would not tell."""
        try:
            found = from_json(body)
        except LoginFailed:
            found = {}
        host, status = response.request.url.host, response.status_code
        if (why := outage(status, found)) is not None:
            raise AuthorizationServerDown(f"the authorization server {host} is out of order ({why})")
        is_form = "form" in response.request.headers.get("content-type", "")
        if not is_form and status not in (HTTPStatus.OK, HTTPStatus.CREATED):
            has_none = self._provider.context.oauth_metadata is None
            flaw = self._flaw or ("it publishes no metadata" if has_none else "")
            flaw = f": {flaw}" if flaw else ""
            raise LoginFailed(
                f"the authorization server {host} registers no client at {response.request.url.path} "
                f"({refusal(found, status)}){flaw}. Register one there by hand, and give it as "
                '"oauth.clientId" (and "oauth.clientSecret")'
            )
        if "expires_in" not in found:
            return response
        lasts = seconds(found["expires_in"])  # the provider takes whole numbers alone
        said = {**found, "expires_in": None if lasts is None else max(1, int(lasts))}
        return httpx2.Response(status, json=said, request=response.request)

    def _with_headers(self, outgoing: Any) -> httpx2.Request:
        headers = httpx2.Headers(self._headers)
        headers.update({"User-Agent": f"greenroom/{VERSION}"})
        headers.update(dict(outgoing.headers.items()))
        is_secret = outgoing.method != "GET"
        if is_secret and not is_safe(str(outgoing.url)):
            raise LoginFailed("the authorization server is not reached over https")
        return httpx2.Request(outgoing.method, str(outgoing.url), headers=headers, content=outgoing.content)

    def _read(self, response: httpx2.Response, body: bytes) -> None:
        try:
            found = json.loads(body)
            endpoint, issuer = found.get("device_authorization_endpoint"), found.get("issuer")
        except (ValueError, RecursionError, AttributeError):
            return
        if response.status_code == 200 and isinstance(issuer, str):
            self.device_endpoint = endpoint if isinstance(endpoint, str) and is_safe(endpoint) else None
            if self._issuer is not None and self._issuer.rstrip("/") != issuer.rstrip("/"):
                raise LoginFailed('the server leads to another authorization server than "oauth.issuer"')


def _flaw_of(response: httpx2.Response) -> str:
    """What is wrong with a document of an authorization server's metadata; empty if nothing is, or there is none."""
    if response.status_code != HTTPStatus.OK:
        return ""
    try:
        has_issuer = isinstance(from_json(response.content).get("issuer"), str)
    except LoginFailed:
        return f"its metadata ({response.request.url.path}) is not a JSON object"
    return "" if has_issuer else f'its metadata ({response.request.url.path}) has no "issuer"'


async def _drive(definition: ServerDefinition, flow: _Flow) -> None:
    """Make the server ask for a login, and let `flow` get it. Raises `LoginFailed`."""
    from ..transports.http_client import make_client

    token = _quiet.set(True)
    try:
        async with make_client(without_credentials(definition), None, _CONNECT_WITHIN) as client:
            request = _asking(client, definition)
            response = await client.send(request, stream=True, auth=flow, follow_redirects=False)
            await response.aclose()
    except (LoginFailed, _DeviceInstead):
        raise
    except httpx2.HTTPError as error:
        raise AuthorizationServerDown(f"a request of the login failed ({type(error).__name__})") from None
    except Exception as error:
        raise LoginFailed(_in_words(error)) from None
    finally:
        _quiet.reset(token)
    if response.status_code == 401:
        raise LoginFailed("the server refuses the new token, too")


def _asking(client: httpx2.AsyncClient, definition: ServerDefinition) -> httpx2.Request:
    """The request that is answered with the wish for a login."""
    if definition.is_api:
        return client.build_request(HTTPMethod.GET, definition.url or "")
    initialize = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": _VERSION,
            "capabilities": {},
            "clientInfo": {"name": "greenroom", "version": VERSION},
        },
    }
    headers = {
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": _VERSION,
    }
    return client.build_request(HTTPMethod.POST, definition.url or "", json=initialize, headers=headers)


def _in_words(error: Exception) -> str:
    """The provider's error without anything in it that may be secret: answers, states and codes."""
    text = str(error).partition("{")[0].strip().rstrip(":")
    if "State parameter" in text:
        return "the answer belongs to another login: start again, and paste the newest one"
    return f"the login failed ({type(error).__name__}{f': {shortened(text, 200)}' if text else ''})"


def _as_login(
    definition: ServerDefinition, provider: Any, storage: _LoginStorage, grant: str, tokens: Any
) -> Login:
    """A login made of what the provider has found. Without `tokens`, its token is a stand-in that the device flow
    replaces."""
    context, client = provider.context, provider.context.client_info
    found = context.oauth_metadata
    if tokens is None and grant != "device_code":
        raise LoginFailed("the server asked for no login")
    login = Login(
        server=definition.name,
        url=definition.url or "",
        access_token="-",  # noqa: S106
        issuer=str(found.issuer) if found is not None else "",
        grant=grant,
        token_endpoint=provider._get_token_endpoint(),
        revocation_endpoint=_text(found and found.revocation_endpoint),
        client_id=client.client_id,
        client_secret=client.client_secret,
        auth_method=client.token_endpoint_auth_method
        or (None if client.client_secret is None else "client_secret_post"),
        resource=context.get_resource_url() if context.should_include_resource_param(_VERSION) else None,
        scope=context.client_metadata.scope,
    )
    return login if tokens is None else login.renewed(tokens.model_dump(exclude_none=True), time.time())


def _text(value: Any) -> str | None:
    return str(value) if value else None
