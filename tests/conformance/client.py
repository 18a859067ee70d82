"""The client under test of the official conformance suite: one scenario, driven through `Greenroom`.

    MCP_CONFORMANCE_SCENARIO=tools_call python client.py [--backend trio|asyncio] URL

The suite starts a server, tells its scenario in the environment (and what it hands out, as JSON, in
MCP_CONFORMANCE_CONTEXT), and judges what arrives on the wire. A scenario this file does not know fails, so that a new
one cannot pass by accident. Logging in is the SDK's (`OAuthClientProvider`), its tokens in memory, behind the `auth`
hook of the room.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx2

from greenroom import Greenroom
from greenroom.actors.host import ServerRequest
from greenroom.catalogue.skills import files_of
from greenroom.protocol.errors import GreenroomError

CALLBACK = "http://localhost:3000/callback"
METADATA_URL = "https://conformance-test.local/client-metadata.json"

Play = Callable[[Greenroom], Awaitable[None]]


def context() -> dict[str, Any]:
    return json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")


# ---- what each scenario wants done ----------------------------------------------------------------------------------


async def connect(room: Greenroom) -> None:
    """Meeting the server and listing what it has is all."""


async def add_numbers(room: Greenroom) -> None:
    await room.call("add_numbers", {"a": 5, "b": 3})


async def reconnect(room: Greenroom) -> None:
    await room.call("test_reconnection")


async def call_all(room: Greenroom) -> None:
    for target in room.tools():
        await room.call(target.name, example_of(target.record.get("inputSchema")))


async def elicit(room: Greenroom) -> None:
    await room.call("test_client_elicitation_defaults")


async def call_all_at_once(room: Greenroom) -> None:
    async with anyio.create_task_group() as tasks:
        for target in room.tools():
            tasks.start_soon(room.call, target.name, example_of(target.record.get("inputSchema")))


async def call_as_told(room: Greenroom) -> None:
    for call in context()["toolCalls"]:
        await room.call(call["name"], call["arguments"])


async def echo_schema(room: Greenroom) -> None:
    schema = room.describe("json_schema_2020_12_tool").record["inputSchema"]
    await room.call("json_schema_echo", {"schema": schema})


async def call_the_first(room: Greenroom) -> None:
    """A refusal is an outcome here: what counts is on the wire."""
    try:
        await room.call(room.tools()[0].name)
    except GreenroomError as error:
        print(f"refused: {error}", file=sys.stderr)


async def load_the_skill(room: Greenroom) -> None:
    """As a host does: its instructions, then its files, as long as nothing is refused. What counts is on the wire."""
    (skill,) = room.skills()
    try:
        await room.read_skill(skill.name)
        for file in files_of(skill.record) or ():
            await room.read_skill(skill.name, file.path)
    except GreenroomError as error:
        print(f"refused: {error}", file=sys.stderr)


PLAYS: dict[str, Play] = {
    "initialize": connect,
    "request-metadata": connect,
    "json-schema-ref-no-deref": connect,
    "tools_call": add_numbers,
    "sse-retry": reconnect,
    "elicitation-sep1034-client-defaults": elicit,
    "sep-2322-client-request-state": call_all_at_once,
    "http-standard-headers": call_all,
    "http-invalid-tool-headers": call_all,
    "http-custom-headers": call_as_told,
    "json-schema-2020-12-preservation": echo_schema,
    "sep-2640-client-no-prefetch": connect,
    "sep-2640-client-verify-digest": load_the_skill,
    "sep-2640-client-verify-size": load_the_skill,
    "sep-2640-client-verify-frontmatter": load_the_skill,
}


def play_of(scenario: str) -> Play:
    if scenario.startswith("auth/"):
        return call_the_first
    if scenario in PLAYS:
        return PLAYS[scenario]
    raise SystemExit(f"unknown scenario {scenario!r}: say in PLAYS what it wants done")


async def agree(request: ServerRequest) -> dict[str, Any]:
    """A user who is asked, and takes every default."""
    schema: dict[str, Any] = (request.params or {}).get("requestedSchema") or {}
    properties: dict[str, Any] = schema.get("properties", {})
    content = {name: each["default"] for name, each in properties.items() if "default" in each}
    return {"action": "accept", "content": content}


def example_of(schema: Any) -> dict[str, Any]:
    """Arguments of the right types for a tool."""
    examples = {"string": "x", "integer": 1, "boolean": True, "number": 1.5, "array": [], "object": {}}
    properties: dict[str, Any] = (schema or {}).get("properties", {})
    return {name: examples.get(each.get("type"), "x") for name, each in properties.items()}


# ---- logging in -----------------------------------------------------------------------------------------------------


class MemoryStorage:
    """The SDK's token storage, forgotten at the end."""

    def __init__(self, client: Any = None) -> None:
        self.tokens: Any = None
        self.client = client

    async def get_tokens(self) -> Any:
        return self.tokens

    async def set_tokens(self, tokens: Any) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> Any:
        return self.client

    async def set_client_info(self, client_info: Any) -> None:
        self.client = client_info


class Browser:
    """A user who agrees at once: follows the authorization URL and reads the code off the redirect."""

    def __init__(self) -> None:
        self.answer: dict[str, list[str]] = {}

    async def visit(self, url: str) -> None:
        async with httpx2.AsyncClient() as client:
            response = await client.get(url, follow_redirects=False)
        self.answer = parse_qs(urlsplit(response.headers["location"]).query)

    async def result(self) -> Any:
        from mcp.client.auth import AuthorizationCodeResult

        answer = {name: self.answer[name][0] for name in ("code", "state", "iss") if name in self.answer}
        return AuthorizationCodeResult(**answer)


def login(scenario: str, url: str) -> Any:
    """The way to log in that the scenario is about; None where there is nothing to log in to."""
    if not scenario.startswith("auth/"):
        return None
    if scenario == "auth/client-credentials-jwt":
        return _with_signed_jwt(url, context())
    if scenario == "auth/client-credentials-basic":
        return _with_secret(url, context())
    if scenario in ("auth/enterprise-managed-authorization", "auth/cross-app-access-complete-flow"):
        return _with_assertion(url, context())
    return _with_browser(url, context())


def _with_browser(url: str, told: dict[str, Any]) -> Any:
    from mcp.client.auth import OAuthClientProvider
    from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata

    client = None
    if "client_id" in told:
        method = "client_secret_basic" if told.get("client_secret") else "none"
        fields = {name: told[name] for name in ("client_id", "client_secret", "issuer") if name in told}
        client = OAuthClientInformationFull.model_validate(
            {**fields, "redirect_uris": [CALLBACK], "token_endpoint_auth_method": method}
        )
    browser = Browser()
    return OAuthClientProvider(
        server_url=url,
        client_metadata=OAuthClientMetadata.model_validate(
            {"client_name": "greenroom", "redirect_uris": [CALLBACK]}
        ),
        storage=MemoryStorage(client),
        redirect_handler=browser.visit,
        callback_handler=browser.result,
        client_metadata_url=METADATA_URL,
    )


def _with_secret(url: str, told: dict[str, Any]) -> Any:
    from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider

    return ClientCredentialsOAuthProvider(
        url, MemoryStorage(), told["client_id"], told["client_secret"], "client_secret_basic"
    )


def _with_signed_jwt(url: str, told: dict[str, Any]) -> Any:
    from mcp.client.auth.extensions.client_credentials import PrivateKeyJWTOAuthProvider, SignedJWTParameters

    signed = SignedJWTParameters(
        issuer=told["client_id"],
        subject=told["client_id"],
        signing_algorithm=told["signing_algorithm"],
        signing_key=told["private_key_pem"],
    )
    return PrivateKeyJWTOAuthProvider(
        url, MemoryStorage(), told["client_id"], signed.create_assertion_provider()
    )


def _with_assertion(url: str, told: dict[str, Any]) -> Any:
    """The company's identity provider vouches for us. Which server may take its word is configuration; the suite does
    not tell, so it is read from the resource's metadata before."""
    from mcp.client.auth.extensions.identity_assertion import IdentityAssertionOAuthProvider

    async def vouched(audience: str, resource: str) -> str:
        exchange = {
            "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
            "requested_token_type": "urn:ietf:params:oauth:token-type:id-jag",
            "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
            "subject_token": told["idp_id_token"],
            "client_id": told["idp_client_id"],
            "audience": audience,
            "resource": resource,
        }
        async with httpx2.AsyncClient() as client:
            return (await client.post(told["idp_token_endpoint"], data=exchange)).json()["access_token"]

    return IdentityAssertionOAuthProvider(
        url,
        MemoryStorage(),
        told["client_id"],
        told["client_secret"],
        _issuer_of(url),
        vouched,
        token_endpoint_auth_method="client_secret_basic",
    )


def _issuer_of(url: str) -> str:
    parts = urlsplit(url)
    metadata = f"{parts.scheme}://{parts.netloc}/.well-known/oauth-protected-resource{parts.path}"
    return httpx2.get(metadata).json()["authorization_servers"][0]


# ---- the run --------------------------------------------------------------------------------------------------------


# Whoever can be asked is initialized by handshake where a server speaks both eras; these look at what 2026-07-28 says.
ASKS_NOTHING = (
    "request-metadata",
    "http-standard-headers",
    "http-custom-headers",
    "http-invalid-tool-headers",
)


async def main(scenario: str, url: str) -> None:
    play, auth = play_of(scenario), login(scenario, url)
    config = {"mcpServers": {"server": {"url": url}}, "settings": {"toolPrefix": "none"}}
    room = Greenroom.open(
        config,
        cache_path=":memory:",
        bootstrap=False,
        auth=lambda _definition: auth,
        on_elicitation=None if scenario in ASKS_NOTHING else agree,
    )
    async with room:
        await room.connect("server")
        await play(room)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    chosen = sys.argv[2] if sys.argv[1] == "--backend" else "trio"
    try:
        anyio.run(main, os.environ["MCP_CONFORMANCE_SCENARIO"], sys.argv[-1], backend=chosen)
    except GreenroomError as error:
        sys.exit(f"{type(error).__name__}: {error}")
