"""Who sends a request, and which addresses are of this machine."""

from __future__ import annotations

import ipaddress
from typing import Final
from urllib.parse import urlsplit

import attrs

OAUTH: Final = "oauth:"  # with this the names of callers begin that an authorization server vouches for


@attrs.frozen
class Caller:
    """Who sends a request: the name of its token, None where none is needed; and the profile it is bound to. `client`:
    the program for which an authorization server made the token."""

    name: str | None = None
    profile: str | None = None
    client: str | None = None


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine can reach what listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def is_safe(url: str) -> bool:
    """Whether what is read there can be trusted: over TLS, or from this machine."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    host = parts.hostname
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host)))
