"""Where logins are kept: a file for each server in a folder of ours, its secrets in the keyring where there is one.

The folder is 0700 and a file 0600. A file is only ever replaced whole, so reading takes no lock. A writer holds the
file's lock, from before it reads what is there to after it has written. A renewal holds it for its request too, so
of many processes one asks, and the others find what it has got. A write names the login that it replaces, and does
nothing when another one is there by then: an older token never replaces a newer one.

Where there is none of ours, one that pi's adapter has made is read: from its files (`~/.pi/agent/mcp-oauth`), or else
from the keyring, if pi is there. It is never changed or removed. It is used only at the URL that it was made for, so
one that names no URL is not used. Only its access token is used. To renew it would take away pi's own, because many
authorization servers accept a refresh token once. So at its end a person has to log in, here or with pi. What is not of
pi's form counts as absent.

The keyring (`pip install "greenroom[keyring]"`) then holds the secrets, and the file the rest; the file still tells
other processes that something has changed. Everything here blocks; call it in a thread.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import attrs

from ...config.private_files import make_own_folder, read_own, replacing
from ...protocol.json_values import is_object
from .login_record import SECRETS, Login, LoginFailed, from_json, login_of, to_json

_SERVICE: Final = "greenroom"
LOCK_WITHIN: Final = 60.0  # seconds; longer than a renewal may take
GRANT: Final = "pi"  # of a login that pi has made
SERVICE: Final = "pi-mcp-adapter.oauth"  # in the keyring
# Some keyrings hold only short entries. There pi splits a long entry, and the entry itself lists its pieces.
_IN_PIECES: Final = "__piMcpAdapterOAuthChunked"
_MOST_PIECES: Final = 100
_DIGEST: Final = re.compile("[0-9a-f]{16}")


class LoginStore:
    """The logins in `folder`. `keyring`: whether to use a keyring if there is one. `pi`: where pi keeps its logins.
    `agent`: pi's own folder; if it exists, pi may have logins in the keyring."""

    def __init__(
        self, folder: Path, *, keyring: bool = True, pi: Path | None = None, agent: Path | None = None
    ) -> None:
        self.folder = folder
        self._pi = pi
        self._agent = agent
        self._keyring = keyring

    def path(self, server: str, url: str) -> Path:
        return self.folder / f"{_key(server, url)}.json"

    def stamp(self, server: str, url: str) -> object:
        """A value that is another one after each change of the login; None when there is no login."""
        for file in (self.path(server, url), self._file_of_pi(server)):
            if file is not None:
                with suppress(OSError):
                    found = os.stat(file)
                    return found.st_ino, found.st_mtime_ns, found.st_size
        return None

    def may_have(self, server: str, url: str) -> bool:
        """Whether there may be a login. Asks no keyring."""
        return self.stamp(server, url) is not None or self._pi_is_here()

    def made(self, server: str, url: str) -> str | None:
        """The mark of the person's login; None when there is no login. Asks no keyring."""
        try:
            found = from_json(read_own(self.path(server, url))).get("made")
        except FileNotFoundError:
            login = self._of_pis_file(server, url)
            return None if login is None else login.made
        except (OSError, LoginFailed):
            return None
        return found if isinstance(found, str) else None

    def load(self, server: str, url: str) -> Login | None:
        """The login for this server at this URL, or None. Raises `LoginFailed` when it cannot be read."""
        try:
            values = from_json(read_own(self.path(server, url)))
        except FileNotFoundError:
            return self._of_pi(server, url)
        except OSError as error:
            raise LoginFailed(f"the stored login cannot be read: {error.strerror or error}") from None
        if values.pop("in_keyring", False):
            kept = self._of_keyring(_key(server, url))
            if kept is None:
                return None  # somebody removed it there
            values |= kept
        login = login_of(values)
        return login if (login.server, login.url) == (server, url) else None

    def save(self, login: Login, replaces: str | None) -> Login:
        """Store `login`, if the stored one still has the id `replaces` (None: whatever is stored). Returns the login
        that is stored now. The caller holds the lock."""
        kept = self.load(login.server, login.url) if replaces is not None else None
        if replaces is not None and (kept is None or kept.id != replaces):
            return kept if kept is not None else login
        values = {name: value for name, value in attrs.asdict(login).items() if value is not None}
        if self._to_keyring(_key(login.server, login.url), values):
            values = {name: value for name, value in values.items() if name not in SECRETS}
            values["in_keyring"] = True
        self._write(self.path(login.server, login.url), to_json(values))
        return login

    def forget(self, server: str, url: str) -> bool:
        """Remove the login. Returns whether there was one."""
        with self.locked(server, url):
            path = self.path(server, url)
            there = path.exists()
            path.unlink(missing_ok=True)
            if (ring := self._ring()) is not None:
                with suppress(Exception):  # each keyring has its own error for what is not there
                    ring.delete_password(_SERVICE, _key(server, url))
            return there

    @contextmanager
    def locked(self, server: str, url: str) -> Generator[None]:
        """Be the only writer of this login. Raises `LoginFailed` when another one takes too long."""
        import filelock

        try:
            make_own_folder(self.folder)
            lock = filelock.FileLock(
                self.path(server, url).with_suffix(".lock"), timeout=LOCK_WITHIN, mode=0o600
            )
            with lock:
                yield
        except filelock.Timeout:
            raise LoginFailed("another process has been changing the login for a minute") from None
        except OSError as error:
            raise LoginFailed(f"logins cannot be kept in {self.folder}: {error.strerror or error}") from None

    def _write(self, path: Path, data: bytes) -> None:
        with replacing(path) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # the authorization server may not accept the older one any more

    # -- pi's --

    def _file_of_pi(self, server: str) -> Path | None:
        return None if self._pi is None else pi_file(self._pi, server)

    def _of_pi(self, server: str, url: str) -> Login | None:
        """The login from pi's file, or from the keyring, where newer versions of pi keep it."""
        login = self._of_pis_file(server, url)
        if login is not None and not login.is_over(time.time()):
            return login
        return self._of_pis_keyring(server, url) or login

    def _of_pis_file(self, server: str, url: str) -> Login | None:
        file = self._file_of_pi(server)
        return None if file is None else pi_login_in(file, server, url)

    def _pi_is_here(self) -> bool:
        return self._keyring and self._agent is not None and self._agent.is_dir()

    def _of_pis_keyring(self, server: str, url: str) -> Login | None:
        ring = self._ring() if self._pi_is_here() else None
        if ring is None:
            return None
        with suppress(Exception):  # locked, or its owner says no: it has none for us
            said = pi_entry(lambda account: ring.get_password(SERVICE, account), server)
            return None if said is None else pi_login(said, server, url)
        return None

    # -- the keyring --

    def _ring(self) -> Any:
        """The keyring; None when none is installed, or none that is safe and can be used."""
        if not self._keyring:
            return None
        try:
            import keyring  # pyright: ignore

            ring: Any = keyring.get_keyring()
            return ring if ring.priority >= 1 else None
        except Exception:  # a keyring that does not load is none
            return None

    def _of_keyring(self, key: str) -> dict[str, Any] | None:
        ring = self._ring()
        try:
            kept = ring.get_password(_SERVICE, key) if ring is not None else None
        except Exception as error:
            raise LoginFailed(f"the keyring cannot be read ({type(error).__name__})") from None
        return from_json(kept) if kept is not None else None

    def _to_keyring(self, key: str, values: dict[str, Any]) -> bool:
        ring = self._ring()
        if ring is None:
            return False
        secret = {name: values[name] for name in SECRETS if name in values}
        try:
            ring.set_password(_SERVICE, key, to_json(secret).decode())
        except Exception:  # it is locked, or refuses: the file is as good as without a keyring
            return False
        return True


def _key(server: str, url: str) -> str:
    return hashlib.sha256(f"{server}\n{url}".encode(errors="surrogatepass")).hexdigest()[:40]


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
    """The file of this server's login, if it exists. Older versions of pi name the folder after the server."""
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
    """The login that an entry or a file holds; None when it is not for this URL."""
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
