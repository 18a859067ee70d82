"""How a request is refused: the status codes of the door.

| request | answer |
|---|---|
| `Host` that is not ours | 421 |
| `Origin` that is not allowed | 403 |
| preflight (CORS) of a page that the configuration names | 204 |
| unknown path, unknown profile, unknown session, another caller's session | 404 |
| another method | 405, with `Allow` |
| no token, or a wrong one | 401, with `WWW-Authenticate` |
| POST whose `Accept` lacks `application/json` or `text/event-stream`; GET without the latter | 406 |
| POST whose `Content-Type` is not `application/json` | 415 |
| body too large, or with too many values / too slow | 413 / 408 |
| head too large | 431; 400 if it has not even ended |
| no session id, where one is needed; a header given twice; two lengths of one body | 400 |
| not JSON, not one JSON-RPC message | 400 with -32700, -32600 |
| 2026-07-28: a header that contradicts the body | 400 with -32020 |
| an unknown version / a method that 2026-07-28 does not have | 400 with -32022 / 404 with -32601 |
| too many sessions, too many requests or bytes of them at once, the gateway is ending | 503, with `Retry-After` |
| `initialize` and other requests that are answered | 200 |
| a notification, or an answer to our question | 202 |
| DELETE | 200 |

What is no HTTP is refused by the HTTP server with 400. The body of a refusal is a JSON-RPC
error with the id null, because that is what clients show. It names nothing of another caller.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ...protocol import jsonrpc as rpc
from ...protocol.jsonrpc import RpcFault

Headers = Iterable[tuple[bytes, bytes]]

HEADER_MISMATCH: Final = -32020
REQUEST_CANCELLED: Final = -32800
CLOSE: Final = (b"connection", b"close")
JSON: Final = (b"content-type", b"application/json")
_RETRY: Final = (b"retry-after", b"5")
_NO_SESSION: Final = "Not Found: Session not found. Open another one with initialize."

# The HTTP status of an error that answers a request of 2026-07-28; of any other error it is 200.
STATUS_OF_ERROR: Final = {
    rpc.PARSE_ERROR: 400,
    rpc.INVALID_REQUEST: 400,
    rpc.INVALID_PARAMS: 400,
    HEADER_MISMATCH: 400,
    -32021: 400,
    rpc.UNSUPPORTED_VERSION: 400,
    rpc.METHOD_NOT_FOUND: 404,
}


class Refusal(Exception):
    """A request that is answered with an HTTP error. `key` is the id of its JSON-RPC message, if that is known."""

    def __init__(
        self,
        status: int,
        message: str,
        *headers: tuple[bytes, bytes],
        code: int = rpc.INVALID_REQUEST,
        key: bytes = b"",
        data: object = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers
        self.code = code
        self.message = message
        self.key = key
        self.data = data

    @property
    def body(self) -> bytes:
        return rpc.error_line(self.key, RpcFault(self.code, self.message, self.data))


def no_session() -> Refusal:
    return Refusal(404, _NO_SESSION)


def no_such_path() -> Refusal:
    return Refusal(404, "Not Found")


def not_allowed(*methods: str) -> Refusal:
    allowed = ", ".join(methods)
    return Refusal(405, f"Method Not Allowed: use {allowed}.", (b"allow", allowed.encode()))


def ending() -> Refusal:
    return Refusal(503, "The gateway is shutting down; nothing was done.", _RETRY, code=rpc.SERVER_ERROR)


def busy(fault: RpcFault) -> Refusal:
    return Refusal(503, fault.message, _RETRY, CLOSE, code=fault.code, data=fault.data)


def too_many(what: str) -> Refusal:
    return Refusal(503, f"Too many {what} are open. Try again later.", _RETRY, code=rpc.OVERLOADED)
