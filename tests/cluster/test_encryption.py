"""Links and commands of a cluster whose Ray encrypts: both ends show a certificate of the cluster's authority."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.cluster._host_process import TOKEN
from tests.cluster.test_hosts import cluster, server
from tests.gateway.test_http_tls import certificate
from tests.support import in_real_time
from tests.support.patience import PATIENCE

from greenroom.cluster.encryption import encryption
from greenroom.cluster.front import ClusterRoom
from greenroom.errors import CallError, UsageError
from greenroom.protocol.links import LinkHello


def use(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str = "cluster") -> None:
    """What Ray's variables say: the certificate of this name, which is its own authority."""
    cert, key = certificate(folder, name)
    monkeypatch.setenv("RAY_USE_TLS", "1")
    monkeypatch.setenv("RAY_TLS_SERVER_CERT", str(cert))
    monkeypatch.setenv("RAY_TLS_SERVER_KEY", str(key))
    monkeypatch.setenv("RAY_TLS_CA_CERT", str(cert))


@in_real_time
async def test_calls_go_over_encrypted_links_and_nobody_without_a_certificate_gets_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, tmp_path)
    large, heard = "x" * 3_000_000, list[Any]()
    async with cluster(tmp_path, {"one": server(tmp_path, "one")}, "a") as (_, room):
        assert '"it"' in (await room.call("one_echo", {"text": "it"})).text
        assert large in (await room.call("one_echo", {"text": large})).text
        await room.call("one_steps", {"count": 3}, on_progress=heard.append)
        assert [each["progress"] for each in heard] == [1, 2, 3]
        (host,) = room.hosts()
        assert host.url.startswith("https://")
        async with await anyio.connect_tcp("127.0.0.1", host.link_port) as plain:
            await plain.send(LinkHello(TOKEN, host.epoch, "one", {}).line())
            with anyio.fail_after(PATIENCE), suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                assert b"{" not in await plain.receive()


@in_real_time
async def test_a_front_of_another_authority_says_why_it_reaches_no_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, tmp_path)
    async with cluster(tmp_path, {"one": server(tmp_path, "one")}, "a") as (it, _):
        use(monkeypatch, tmp_path, "another")
        config = {"mcpServers": {"one": server(tmp_path, "one")}, "settings": {"queueTimeoutMs": 3_000}}
        stranger = ClusterRoom.open(
            config, directory=it.directory, token=TOKEN, cache_path=":memory:", bootstrap=False
        )
        async with stranger:
            with pytest.raises(CallError, match="CERTIFICATE_VERIFY_FAILED"):
                await stranger.call("echo", {}, server="one")


@in_real_time
async def test_a_host_that_refuses_an_encrypted_link_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, tmp_path)
    async with cluster(tmp_path, {"one": server(tmp_path, "one")}, "a") as (_, room):
        right, greeted = room.membership.hello, 0

        def hello(*about: Any) -> LinkHello:
            nonlocal greeted
            greeted += 1
            said = right(*about)
            return (
                said if greeted > 1 else LinkHello(said.token, "another epoch", said.server, said.variables)
            )

        monkeypatch.setattr(room.membership, "hello", hello)
        with anyio.fail_after(PATIENCE):
            assert not (await room.call("one_echo", {"text": "it"})).is_error
        assert greeted == 2


@pytest.mark.parametrize(
    ("missing", "says"),
    [
        ("RAY_TLS_CA_CERT", "RAY_USE_TLS is set, and RAY_TLS_CA_CERT is not"),
        ("", "cannot be used: .*No such file"),
    ],
)
def test_what_cannot_be_encrypted_with_is_said(missing: str, says: str, tmp_path: Path) -> None:
    names = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")
    variables = {name: str(tmp_path / name) for name in names if name != missing}
    with pytest.raises(UsageError, match=says):
        encryption({"RAY_USE_TLS": "1", **variables})
    assert encryption({"RAY_USE_TLS": "0", **variables}) is None
