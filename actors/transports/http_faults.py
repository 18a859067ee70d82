"""The ways one HTTP exchange can end without an answer, and what each of them proves.

`BadAnswer`: the server answered, but its answer breaks the protocol. `ExchangeBroken`: no answer can come any more;
if the request was sent, it may have run. `IdentityNeeded`: the request is made for a caller, and there is no token of
his; it did not run. `SessionExpired` and `LoginNeeded`: the server says that it does not know the session, or us; they
end the connection, not only the exchange. `WrongTransport`: the server is an older one; the same request is then tried
over the older transport.

`faults_told` turns whatever our HTTP library raises into one of these. A fault that escaped it would cancel every
other exchange of the connection (a known bug of the SDK's own client, python-sdk #3522). `all_faults_told` is for a
body in which only the library runs. There an exception of any kind is caused by what the server sent or by its URL,
and is no bug of ours.
"""

from __future__ import annotations

import http
import os
import re
import socket
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from typing import cast

import httpx2

from ...protocol.jsonrpc.incoming import excerpt
from .proxies import way_in_words

_INSUFFICIENT = re.compile(r"""\berror\s*=\s*"?insufficient_scope\b""", re.IGNORECASE)
_TITLE = re.compile(rb"<title[^>]*>([^<]{0,400})", re.IGNORECASE)
_NO_WORD_OF_MCP = (401, 403, 407, 408, 421, 423, 425, 429)
_SCOPE = re.compile(r"""\bscope\s*=\s*(?:"([^"]*)"|([^\s,"]+))""", re.IGNORECASE)


class ExchangeFault(Exception):
    """The root of all. The text is for people."""


class BadAnswer(ExchangeFault):
    """The server's answer breaks the protocol."""


class ExchangeBroken(ExchangeFault):
    """The exchange broke: refused, cut off, timed out."""


class Unreachable(ExchangeBroken):
    """No connection could be made: nothing was sent."""


class NoLoginNow(ExchangeBroken):
    """The request wants another login, and none can be had at the moment. It did not run."""


class IdentityNeeded(ExchangeBroken):
    """The server is called as its caller, and no token can be had for this one. The request did not run."""


class NoIdentity(httpx2.TransportError):
    """Raised by what logs requests in: no token can be had for this caller. The text is for people."""


class LoginOutage(httpx2.TransportError):
    """Raised by what logs requests in: no login can be had at the moment. The text is for people."""


class SessionExpired(ExchangeFault):
    """The server no longer knows the session."""


class LoginNeeded(ExchangeFault):
    """HTTP 401, or logging in failed. (A 403 is about the request, not about the caller: it ends only its exchange.)"""


class WrongTransport(ExchangeFault):
    """The server refused `initialize` over Streamable HTTP, in the way older servers do."""


@contextmanager
def faults_told() -> Generator[None]:
    """Turns whatever the HTTP library raises into an `ExchangeBroken` that says what happened."""
    import httpx2

    try:
        yield
    except LoginOutage as error:
        raise NoLoginNow(str(error)) from None
    except NoIdentity as error:
        raise IdentityNeeded(str(error)) from None
    except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError) as error:
        raise Unreachable(in_words(error)) from None
    except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, httpx2.CookieConflict) as error:
        raise ExchangeBroken(in_words(error)) from None


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
            raise ExchangeBroken(
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
            return _unreachable(error, detail)
        case httpx2.ProxyError():
            return detail or "the proxy failed"
        case httpx2.ReadTimeout() | httpx2.WriteTimeout():
            return "the server fell silent"
        case httpx2.RemoteProtocolError() | httpx2.ReadError() | httpx2.WriteError():
            return f"the connection broke ({detail or type(error).__name__})"
        case httpx2.InvalidURL() | httpx2.UnsupportedProtocol():
            return f'its "url" cannot be connected to ({detail or type(error).__name__}). Correct it.'
        case _:
            return f"the exchange failed ({detail or type(error).__name__})"


def _unreachable(error: httpx2.ConnectError, detail: str) -> str:
    """That a connection cannot be made, and to which host: the system's own words do not name it."""
    url = None if error._request is None else error._request.url  # pyright: ignore[reportPrivateUsage]  # else raises
    of_system = [cause for cause in _causes(error) if isinstance(cause, OSError) and cause.errno is not None]
    if url is not None and any(isinstance(cause, socket.gaierror) for cause in of_system):
        unknown = f"no connection can be made: no address is known of the host {url.host}"
        return f'{unknown}. Correct its "url", or see to the network.'
    if url is not None and of_system:
        detail = f"{url.netloc.decode('ascii', 'replace')}: {os.strerror(of_system[0].errno or 0)}"
    return f'no connection can be made ({detail or "refused"}). Start the server, or correct its "url".'


def _causes(error: BaseException) -> Iterator[BaseException]:
    """It, and what led to it, with the members of groups."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        if (one := waiting.pop()) is not None and id(one) not in seen:
            seen.add(id(one))
            yield one
            waiting += [one.__cause__, one.__context__]
            if isinstance(one, BaseExceptionGroup):
                waiting += cast("BaseExceptionGroup[BaseException]", one).exceptions


def status_in_words(status: int) -> str:
    """`HTTP 503 Service Unavailable`."""
    try:
        return f"HTTP {status} {http.HTTPStatus(status).phrase}"
    except ValueError:
        return f"HTTP {status}"


def refusal_in_words(response: httpx2.Response, body: bytes, *, has_worked: bool = False) -> str:
    """A refusal: its status, and what its body says. `has_worked`: MCP was spoken at this URL before."""
    text = f"{status_in_words(response.status_code)}{way_in_words(response)}"
    location = response.headers.get("location")
    if response.is_redirect and location:
        return f'{text}: redirected to {location}, which is not followed. If that is the server, put it in "url".'
    if body.strip():
        text += f": {said(response, body, has_worked=has_worked)}"
    if (pause := again_after(response)) is not None:
        text += f". It wants to be asked again after {pause:,.0f} s"
    return f"{text} ({scope_in_words(response)})" if lacks_scope(response) else text


def scope_in_words(response: httpx2.Response) -> str:
    """What to do about a refusal for which `lacks_scope` is true."""
    named = named_scopes(response)[:200]
    scope = f'the scope "{named}"' if named else "a scope for this"
    return f"the login lacks {scope}: log in again with it, as greenroom auth --scope does"


def named_scopes(response: httpx2.Response) -> str:
    """The scopes that a challenge names, with spaces between them."""
    found = _SCOPE.search(response.headers.get("www-authenticate", ""))
    return (found[1] or found[2] or "") if found else ""


def lacks_scope(response: httpx2.Response) -> bool:
    """Whether a 403 says that our login does not allow this request (RFC 6750)."""
    challenge = response.headers.get("www-authenticate", "")
    return response.status_code == 403 and _INSUFFICIENT.search(challenge) is not None


def login_in_words(response: httpx2.Response) -> str:
    """A 401: the status, and what the server says about logging in."""
    challenge = response.headers.get("www-authenticate")
    text = f"{status_in_words(response.status_code)}{way_in_words(response)}"
    return f"{text} ({challenge[:200]})" if challenge else text


def said(response: httpx2.Response, body: bytes, *, has_worked: bool = False) -> str:
    """What a body that is not JSON-RPC says. `has_worked`: MCP was spoken at this URL before."""
    if media_type(response) not in ("text/html", "application/xhtml+xml"):
        return excerpt(body, 200)
    found = _TITLE.search(body)
    page = f"an HTML page, {excerpt(found[1].strip(), 100)}" if found and found[1].strip() else "an HTML page"
    status = response.status_code
    is_trouble = status >= 500 or status in _NO_WORD_OF_MCP  # whatever stands in front of a server says these
    return page if has_worked or is_trouble else f"{page}; this URL does not appear to speak MCP"


def again_after(response: httpx2.Response) -> float | None:
    """The seconds after which a request that was refused for now (429, 503) may be sent again, where the server says
    so."""
    if response.status_code not in (429, 503):
        return None
    said = response.headers.get("retry-after", "").strip()
    if said.isdecimal() and len(said) < 9:
        return float(said)
    try:
        return max(0.0, parsedate_to_datetime(said).timestamp() - time.time())
    except (TypeError, ValueError, OverflowError):
        return None


def media_type(response: httpx2.Response) -> str:
    """The type of a body, without its parameters; the first, if a server names several."""
    return re.split("[;,]", response.headers.get("content-type", ""), maxsplit=1)[0].strip().lower()
