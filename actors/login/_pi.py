"""Logins that pi's adapter has left in its folder (`~/.pi/agent/mcp-oauth`): read, never written.

One is used only at the URL that it was made for, so a file that names no URL is not used. Only its access token is
used. To renew it would take away pi's own, because many authorization servers accept a refresh token once. So at its
end a person has to log in, here or with pi. What is not of pi's form counts as absent.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from ..._own_files import read_own
from ...protocol.config_readers import is_object
from ._record import Login, LoginFailed, from_json, login_of

GRANT: Final = "pi"  # of a login that pi has made


def pi_folder(environ: Mapping[str, str]) -> Path:
    """Where pi's adapter keeps logins."""
    named = environ.get("MCP_OAUTH_DIR", "").strip()
    agent = environ.get("PI_CODING_AGENT_DIR") or "~/.pi/agent"
    return Path(named or os.path.join(agent, "mcp-oauth")).expanduser()


def pi_file(folder: Path, server: str) -> Path | None:
    """The file of this server's login that is there; its older versions name the folder as the server is named."""
    key = hashlib.sha256(server.encode(errors="surrogatepass")).hexdigest()
    names = [f"sha256-{key}", *([server] if Path(server).parts == (server,) and server != ".." else [])]
    for file in (folder / name / "tokens.json" for name in names):
        with suppress(OSError, ValueError):  # ValueError: the name cannot be that of a file
            os.stat(file)
            return file
    return None


def pi_login(file: Path, server: str, url: str) -> Login | None:
    """The login in this file; None when it is not for this URL."""
    try:
        found = from_json(read_own(file))
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
    except (OSError, LoginFailed):
        return None
