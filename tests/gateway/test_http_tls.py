"""`greenroom serve --http` with a certificate: TLS by flag."""

from __future__ import annotations

import ipaddress
import socket
import ssl
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests.gateway.test_http_serve import call, served
from tests.support.gateway import PATIENCE, faulty, gone_within, logged_pids

from greenroom.gateway.doors.http_server import check_tls
from greenroom.protocol.errors import UsageError


def certificate(folder: Path, name: str = "own") -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that is signed by itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(address, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = folder / f"{name}.crt", folder / f"{name}.key"
    cert_file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    )
    return cert_file, key_file


def test_a_client_that_trusts_the_certificate_is_served_and_nobody_without_tls(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    flags = ("--tls-cert", str(cert), "--tls-key", str(key))
    with served(tmp_path, {"one": faulty(tmp_path, "one")}, *flags) as one:
        assert one.url.startswith("https://127.0.0.1:")
        plain_headers = one.http.headers
        trusting = ssl.create_default_context(cafile=str(cert))
        one.http.close()
        one.http = httpx2.Client(trust_env=False, timeout=PATIENCE, headers=plain_headers, verify=trusting)
        with one.http:
            answer = one.post(call("one_echo", text="hi"), **one.session())
            assert answer.json()["result"]["content"][0]["text"] == "hi"
            with pytest.raises(httpx2.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                httpx2.get(one.url, trust_env=False, timeout=PATIENCE)
            port = httpx2.URL(one.url).port
            assert port is not None
            with socket.create_connection(("127.0.0.1", port), PATIENCE) as bare:
                bare.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                with suppress(ConnectionResetError):
                    assert not bare.recv(1000).startswith(b"HTTP/")
            health = one.http.get(one.url.replace("/mcp", "/health"))
            assert health.status_code == 200  # the broken handshake cost nobody else
    assert not gone_within(logged_pids(tmp_path))


def test_a_key_of_another_certificate_is_refused_before_anything_starts(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    _, other = certificate(tmp_path, "other")
    check_tls(cert, key)
    with pytest.raises(UsageError, match="cannot be used"):
        check_tls(cert, other)


def test_a_certificate_and_its_key_need_each_other(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    with pytest.raises(UsageError, match="Give --tls-key as well"):
        check_tls(cert, None)
    with pytest.raises(UsageError, match="Give --tls-cert as well"):
        check_tls(None, key)
    both = tmp_path / "both.pem"
    both.write_bytes(cert.read_bytes() + key.read_bytes())
    check_tls(both, None)
    with pytest.raises(UsageError, match="No such file"):
        check_tls(tmp_path / "none.pem", None)
