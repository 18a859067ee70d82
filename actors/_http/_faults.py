"""The ways one HTTP exchange can end without an answer, and what each of them proves.

`BadAnswer`: the server answered, but its answer breaks the protocol. `Broken`: no answer can come any more; if the
request was sent, it may have run. `SessionExpired` and `LoginNeeded`: the server says that it does not know the
session, or us; they end the connection, not only the exchange. `WrongTransport`: the server is an older one; the same
request is then tried over the older transport.

`faults_told` turns whatever our HTTP library raises into one of these. A fault that escaped it would cancel every other
exchange of the connection (a known bug of the SDK's own client, python-sdk #3522). `all_faults_told` is for a body in
which only the library runs. There an exception of any kind is caused by what the server sent or by its URL, and is no
bug of ours.
"""

from __future__ import annotations

import http
import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ...protocol.jsonrpc import excerpt

if TYPE_CHECKING:
    import httpx2


_INSUFFICIENT = re.compile(r"""\berror\s*=\s*"?insufficient_scope\b""", re.IGNORECASE)
_SCOPE = re.compile(r"""\bscope\s*=\s*(?:"([^"]*)"|([^\s,"]+))""", re.IGNORECASE)


class ExchangeFault(Exception):
    """Root of the five. The text is for people."""


class BadAnswer(ExchangeFault):
    """The server's answer breaks the protocol."""


class Broken(ExchangeFault):
    """The exchange broke: refused, cut off, timed out."""


class SessionExpired(ExchangeFault):
    """The server no longer knows the session."""


class LoginNeeded(ExchangeFault):
    """HTTP 401, or logging in failed. (A 403 is about the request, not about who asks: it ends only its exchange.)"""


class WrongTransport(ExchangeFault):
    """The server refused `initialize` over Streamable HTTP, in the way older servers do."""


@contextmanager
def faults_told() -> Generator[None]:
    """Turns whatever the HTTP library raises into a `Broken` that says what happened."""
    import httpx2

    try:
        yield
    except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, httpx2.CookieConflict) as error:
        raise Broken(in_words(error)) from None


@contextmanager
def all_faults_told() -> Generator[None]:
    """Like `faults_told`, for a body in which only the HTTP library runs."""
    with faults_told():
        try:
            yield
        except ExchangeFault:
            raise
        except Exception as error:
            if _is_known(error):
                raise
            raise Broken(
                f"the exchange failed: the answer cannot be read ({type(error).__name__})"
            ) from error


def _is_known(error: Exception) -> bool:
    import httpx2

    return isinstance(
        error, httpx2.HTTPError | httpx2.StreamError | httpx2.InvalidURL | httpx2.CookieConflict
    )


def in_words(error: Exception) -> str:
    """What happened to the connection, for a person."""
    import httpx2

    detail = str(error).strip().rstrip(".")
    match error:
        case httpx2.ConnectTimeout():
            return "the connection was not accepted in time"
        case httpx2.ConnectError():
            return (
                f'no connection can be made ({detail or "refused"}). Start the server, or correct its "url".'
            )
        case httpx2.ReadTimeout() | httpx2.WriteTimeout():
            return "the server fell silent"
        case httpx2.RemoteProtocolError() | httpx2.ReadError() | httpx2.WriteError():
            return f"the connection broke ({detail or type(error).__name__})"
        case httpx2.InvalidURL() | httpx2.UnsupportedProtocol():
            return f'its "url" cannot be connected to ({detail or type(error).__name__}). Correct it.'
        case _:
            return f"the exchange failed ({detail or type(error).__name__})"


def status_in_words(status: int) -> str:
    """`HTTP 503 Service Unavailable`."""
    try:
        return f"HTTP {status} {http.HTTPStatus(status).phrase}"
    except ValueError:
        return f"HTTP {status}"


def refusal_in_words(response: httpx2.Response, body: bytes) -> str:
    """A refusal: its status, and what its body says."""
    text = status_in_words(response.status_code)
    location = response.headers.get("location")
    if response.is_redirect and location:
        return f'{text}: redirected to {location}, which is not followed. If that is the server, put it in "url".'
    if body.strip():
        text += f": {said(response, body)}"
    if lacks_scope(response):
        found = _SCOPE.search(response.headers["www-authenticate"])
        scope = f'the scope "{(found[1] or found[2] or "")[:200]}"' if found else "a scope for this"
        text += f" (the login lacks {scope}: log in again with it, as greenroom auth --scope does)"
    return text


def lacks_scope(response: httpx2.Response) -> bool:
    """Whether a 403 says that our login does not allow this request (RFC 6750)."""
    challenge = response.headers.get("www-authenticate", "")
    return response.status_code == 403 and _INSUFFICIENT.search(challenge) is not None


def login_in_words(response: httpx2.Response) -> str:
    """A 401: the status, and what the server says about logging in."""
    challenge = response.headers.get("www-authenticate")
    text = status_in_words(response.status_code)
    return f"{text} ({challenge[:200]})" if challenge else text


def said(response: httpx2.Response, body: bytes) -> str:
    """What a body that is not JSON-RPC says."""
    if media_type(response) in ("text/html", "application/xhtml+xml"):
        return "an HTML page; this URL does not appear to speak MCP"
    return excerpt(body, 200)


def media_type(response: httpx2.Response) -> str:
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()
