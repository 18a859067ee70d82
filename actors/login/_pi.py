"""Logins that pi's adapter has made, in its folder (`~/.pi/agent/mcp-oauth`) or in the keyring: read, never written.

One is used only at the URL that it was made for, so one that names no URL is not used. Only its access token is
used. To renew it would take away pi's own, because many authorization servers accept a refresh token once. So at its
end a person has to log in, here or with pi. What is not of pi's form counts as absent.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from ..._own_files import read_own
from ...protocol.config_readers import is_object
from ._record import Login, LoginFailed, from_json, login_of

GRANT: Final = "pi"  # of a login that pi has made
SERVICE: Final = "pi-mcp-adapter.oauth"  # in the keyring
# A long entry of the keyring is in pieces, because some keyrings hold little, and the entry itself says which.
_IN_PIECES: Final = "__piMcpAdapterOAuthChunked"
_MOST_PIECES: Final = 100
_DIGEST: Final = re.compile("[0-9a-f]{16}")


def pi_agent(environ: Mapping[str, str]) -> Path:
    """pi's own folder."""
    return Path(environ.get("PI_CODING_AGENT_DIR") or "~/.pi/agent").expanduser()


def pi_folder(environ: Mapping[str, str], named: str | None = None) -> Path:
    """Where pi's adapter keeps logins in files. `named`: what its setting `oauthDir` says."""
    said = environ.get("MCP_OAUTH_DIR", "").strip() or (named or "").strip()
    return Path(said).expanduser() if said else pi_agent(environ) / "mcp-oauth"


def pi_entry(read: Callable[[str], str | None], server: str) -> str | None:
    """The entry of this server's login in a keyring; `read` gives what the keyring has for an account."""
    account = _account(server)
    entry = read(account)
    if entry is None or _IN_PIECES not in entry:
        return entry
    try:
        said = from_json(entry)
    except LoginFailed:
        return None
    count, digest = said.get("chunkCount"), said.get("chunkDigest")
    if not isinstance(count, int) or not 0 < count <= _MOST_PIECES:
        return None
    if said.get(_IN_PIECES) != 1 or not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        return None
    pieces = [read(f"{account}.chunk.{digest}.{number}") for number in range(count)]
    return "".join(piece or "" for piece in pieces) if all(pieces) else None


def _account(server: str) -> str:
    return f"sha256-{hashlib.sha256(server.encode(errors='surrogatepass')).hexdigest()}"


def pi_file(folder: Path, server: str) -> Path | None:
    """The file of this server's login that is there; its older versions name the folder as the server is named."""
    names = [_account(server), *([server] if Path(server).parts == (server,) and server != ".." else [])]
    for file in (folder / name / "tokens.json" for name in names):
        with suppress(OSError, ValueError):  # ValueError: the name cannot be that of a file
            os.stat(file)
            return file
    return None


def pi_login_in(file: Path, server: str, url: str) -> Login | None:
    """The login in this file; None when it is not for this URL."""
    try:
        return pi_login(read_own(file), server, url)
    except OSError:
        return None


def pi_login(said: bytes | str, server: str, url: str) -> Login | None:
    """The login that an entry or a file says; None when it is not for this URL."""
    try:
        found = from_json(said)
        tokens: Any = found.get("tokens")
        if found.get("serverUrl") != url or not is_object(tokens):
            return None
        token = tokens.get("accessToken")
        of_token = hashlib.sha256(str(token).encode(errors="surrogatepass")).hexdigest()[:16]
        return login_of(
            {
                "server": server,
                "url": url,
                "access_token": token,
                "issuer": tokens.get("issuer") or "",
                "grant": GRANT,
                "scope": tokens.get("scope"),
                "expires_at": tokens.get("expiresAt"),
                "made": of_token,
                "id": of_token,
            }
        )
    except LoginFailed:
        return None
