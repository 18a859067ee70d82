"""A server that is called as its caller, where the SDK made both the MCP server and its authorization server."""

from __future__ import annotations

import json
from typing import Any, cast

import anyio
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken, IdentityAssertionParams
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import MCPServer
from mcp.shared.auth import JWT_BEARER_GRANT_TYPE, OAuthClientInformationFull, OAuthToken
from tests.gateway.test_http_callers import gateway, person
from tests.support import run
from tests.support.gateway import PATIENCE
from tests.support.identity_stage import AT_SERVER, GuardedServer, identity_stage, on_loopback, served


class Provider:
    """The SDK's `OAuthAuthorizationServerProvider`, as far as it is asked here. Its tokens are those that a server
    of the stage gives for an ID-JAG, which checks it."""

    def __init__(self, checks: GuardedServer) -> None:
        self.checks = checks
        self.asked: list[IdentityAssertionParams] = []

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        assert client_id == AT_SERVER[0]
        return OAuthClientInformationFull(
            client_id=client_id,
            client_secret=AT_SERVER[1],
            redirect_uris=None,
            grant_types=[JWT_BEARER_GRANT_TYPE],
            token_endpoint_auth_method="client_secret_basic",
        )

    async def exchange_identity_assertion(
        self, client: OAuthClientInformationFull, params: IdentityAssertionParams
    ) -> OAuthToken:
        self.asked.append(params)
        form = {"grant_type": JWT_BEARER_GRANT_TYPE, "assertion": params.assertion}
        answer = self.checks.granted({**form, "scope": " ".join(params.scopes or ())})
        return OAuthToken(**answer)

    async def load_access_token(self, token: str) -> AccessToken | None:
        known = self.checks.tokens.get(token)
        if known is None:
            return None
        subject, scopes, ends = known
        return AccessToken(
            token=token,
            client_id=AT_SERVER[0],
            scopes=sorted(scopes),
            expires_at=int(ends),
            resource=self.checks.url,
            subject=subject,
        )


def test_a_server_of_the_sdk_with_its_own_authorization_server_is_called_as_its_caller() -> None:
    async def main() -> None:
        with anyio.fail_after(PATIENCE), identity_stage() as stage, on_loopback() as listener:
            checks = GuardedServer(provider=stage.provider, port=listener.getsockname()[1])
            provider = Provider(checks)
            auth: dict[str, Any] = {"issuer_url": checks.issuer, "resource_server_url": checks.url}
            auth |= {"identity_assertion_enabled": True, "validate_token_resource": True}
            settings = AuthSettings(**auth, required_scopes=["notes:read"])
            server = MCPServer("notes", auth_server_provider=cast("Any", provider), auth=settings)

            @server.tool()
            def whoami() -> str:
                token = get_access_token()
                assert token is not None
                return json.dumps([token.subject, token.scopes])

            with served(server.streamable_http_app(), listener, "on"):
                async with gateway(stage, {"one": stage.entry(checks)}) as (opened, _room):
                    for name in ("ann", "bob"):
                        someone = await person(opened, stage, name)
                        answer = await someone.call("one_whoami")
                        said = answer["result"]["content"][0]["text"]
                        assert json.loads(said) == [name, ["notes:read"]]
            assert [params.resource for params in provider.asked] == [checks.url] * 2

    run("asyncio", main)
