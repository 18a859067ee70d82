"""TLS between fronts and hosts, with the certificates that Ray has for its own traffic.

Where `RAY_USE_TLS` is set, each process of a Ray cluster has a certificate, its key, and the authority of the cluster.
Links and commands then use the same. Both ends of a link show a certificate of that authority. Names in it are not
looked at: whoever belongs to the cluster may do there what any other may.

A link is read and written by its descriptor. So it gets one end of a pair of sockets, and what comes out at the other
end is encrypted beside it. The handshake is part of that: who makes the link waits for its first line, and no longer
than it may take.

Rejected: certificates of our own, which somebody would have to make, hand out and renew once more.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.abc
import attrs
from anyio.streams.tls import TLSStream

from ..actors.backend import pump_group
from ..actors.timers import at_most
from ..protocol.errors import UsageError

_FILES: Final = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")
_LAST: Final = 1.0  # seconds for what was written before the link was closed
_ENDS: Final = (OSError, anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)


@attrs.frozen
class Encryption:
    """What this process of the cluster encrypts with. `cert` and `key` are files."""

    cert: Path
    key: Path
    _accepting: ssl.SSLContext
    connecting: ssl.SSLContext  # trusts the cluster's authority, and nobody else

    @asynccontextmanager
    async def over(
        self, line: socket.socket, *, is_server: bool, note: Callable[[str], object] = bool
    ) -> AsyncGenerator[socket.socket]:
        """A socket whose other end is that of `line`, encrypted. It does not block. `note` is told, in words, why it
        has ended if nobody could be trusted there."""
        near, far = socket.socketpair()
        near.setblocking(False)
        context = self._accepting if is_server else self.connecting
        over = anyio.Event()

        async def carry() -> None:
            try:
                await _carry(
                    line, far, partial(TLSStream.wrap, ssl_context=context, server_side=is_server), note
                )
            finally:
                over.set()

        async with pump_group() as tasks:
            tasks.start_soon(carry)
            try:
                yield near
            finally:
                near.close()
                with anyio.CancelScope(shield=True):
                    async with at_most(_LAST):
                        await over.wait()


async def _carry(
    line: socket.socket, inner: socket.socket, wrap: Callable[..., Any], note: Callable[[str], object]
) -> None:
    """Carry bytes between the encrypted `line` and `inner` until either ends, and close both."""
    async with await anyio.abc.SocketStream.from_socket(inner) as plain:
        raw = await anyio.abc.SocketStream.from_socket(line)
        try:
            covered = await wrap(raw, standard_compatible=False)
        except ssl.SSLError as error:
            note(
                f"TLS failed: {error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else error}"
            )
            await anyio.aclose_forcefully(raw)
            return
        except _ENDS:
            await anyio.aclose_forcefully(raw)
            return
        async with covered, anyio.create_task_group() as both:
            both.start_soon(_copy, plain, covered, both.cancel_scope)
            both.start_soon(_copy, covered, plain, both.cancel_scope)


async def _copy(source: Any, to: Any, ends: anyio.CancelScope) -> None:
    with suppress(*_ENDS):
        while True:
            await to.send(await source.receive())
    ends.cancel()


def encryption(variables: Mapping[str, str] = os.environ) -> Encryption | None:
    """What Ray's variables say; None where it is not to encrypt. Reads the files. Raises `UsageError`."""
    if variables.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
        return None
    if missing := [name for name in _FILES if not variables.get(name)]:
        raise UsageError(f"RAY_USE_TLS is set, and {' and '.join(missing)} is not. Name the file.")
    cert, key, authority = (Path(variables[name]) for name in _FILES)
    try:
        made = [_context(protocol, cert, key, authority) for protocol in _PROTOCOLS]
    except OSError as error:  # an `ssl.SSLError` is one
        raise UsageError(f"The files that {', '.join(_FILES)} name cannot be used: {error}.") from None
    return Encryption(cert, key, *made)


_PROTOCOLS: Final = (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT)


def _context(protocol: int, cert: Path, key: Path, authority: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(cert, key, password="")
    context.load_verify_locations(authority)
    return context
