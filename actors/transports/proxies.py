"""Which proxy a request goes through, and what is said of one that fails.

The environment of this process names proxies, as for other programs (`http_proxy`, `https_proxy`, `all_proxy`,
`NO_PROXY`; on macOS and Windows also the system's settings). It is asked for each URL: only the proxy of that URL
matters, so one that we cannot use harms nobody else. What is on this machine is never asked for through a proxy: it
would look for the server on its own machine.

Where a proxy fails, or answers in the place of a server, it is named, by its host: its URL may hold a password.

Rejected: the HTTP library's own reading of the environment. It makes all proxies that are named for each client, and
fails when one of them cannot be made.
"""

from __future__ import annotations

import ipaddress
import os
import urllib.request
from collections.abc import Callable, Mapping
from typing import Final

import attrs
import httpx2

_BY_PROXY: Final = "greenroom.proxy"  # the extension of a response that a proxy may have given itself
_SOCKS: Final = ("socks", "socks4", "socks4a", "socks5", "socks5h")


@attrs.frozen
class HttpProxy:
    """`source`: what names it. `url` may hold a password."""

    url: str = attrs.field(repr=False)
    source: str

    @property
    def words(self) -> str:
        place = self.url.partition("://")[2].rpartition("@")[2].partition("/")[0]
        return f"the proxy {place[:200]} ({self.source})"

    def problem(self, error: Exception) -> str:
        """Why a proxy cannot be used, and what to do."""
        is_socks = self.url.partition("://")[0].lower() in _SOCKS
        if isinstance(error, ImportError) and is_socks:
            why, step = "it is a SOCKS proxy", 'Install greenroom[socks] (pip install "greenroom[socks]")'
        else:
            why, step = "it is neither an HTTP nor a SOCKS 5 proxy", "Correct it"
        return f"{self.words} cannot be used: {why}. {step}, or add the server's host to NO_PROXY."

    def failure(self, error: Exception) -> str:
        """How a proxy has failed before it reached the server."""
        detail = str(error).strip().rstrip(".") or type(error).__name__
        if isinstance(error, httpx2.ProxyError):
            return f"{self.words} does not let us through to the server ({detail[:200]})"
        step = "Start it, correct it, or add the server's host to NO_PROXY."
        return f"{self.words} cannot be reached ({detail[:200]}). {step}"


class ProxyTable:
    """The proxies that are named when this is made. `named`: by scheme, as `urllib.request.getproxies` returns them."""

    def __init__(self, named: Mapping[str, str] | None = None) -> None:
        self._named = urllib.request.getproxies() if named is None else named

    def of(self, url: httpx2.URL) -> HttpProxy | None:
        """The proxy for this URL; None where there is none, or where it must not be used."""
        for scheme in (url.scheme, "all"):
            if said := self._named.get(scheme):
                if is_here(url.host) or _is_excepted(url):
                    return None
                address = said if "://" in said else f"http://{said}"
                return HttpProxy(address.replace("socks://", "socks5://", 1), _source(scheme))
        return None


def is_here(host: str) -> bool:
    """Whether a host is this machine: `localhost`, or a loopback address."""
    name = host.lower().strip("[]").rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None) or address
    return mapped.is_loopback or mapped.is_unspecified


def _is_excepted(url: httpx2.URL) -> bool:
    host = f"[{url.host}]" if ":" in url.host else url.host
    port = url.port or {"http": 80, "https": 443}.get(url.scheme, 0)
    return any(urllib.request.proxy_bypass(place) for place in (url.host, host, f"{host}:{port}"))


def _source(scheme: str) -> str:
    """The variable that names the proxy. One in small letters counts, if there are both."""
    names = sorted((name for name in os.environ if name.lower() == f"{scheme}_proxy"), reverse=True)
    return names[0] if names else "of the system's settings"


class ProxiedTransport(httpx2.AsyncBaseTransport):
    """Sends each request through the proxy of its URL, or directly. `make` makes what sends through a proxy (its URL)
    or without one (None)."""

    def __init__(self, make: Callable[[str | None], httpx2.AsyncBaseTransport], table: ProxyTable) -> None:
        self._make = make
        self._table = table
        self._ways: dict[str | None, httpx2.AsyncBaseTransport] = {}

    def prepare(self, url: httpx2.URL) -> None:
        """Make what is needed for this URL. Raises `httpx2.ProxyError`, in words, when its proxy cannot be used."""
        self._way(self._table.of(url))

    def _way(self, proxy: HttpProxy | None) -> httpx2.AsyncBaseTransport:
        key = None if proxy is None else proxy.url
        if (way := self._ways.get(key)) is None:
            try:
                way = self._ways[key] = self._make(key)
            except (ImportError, ValueError, httpx2.InvalidURL) as error:
                if proxy is None:
                    raise
                raise httpx2.ProxyError(proxy.problem(error)) from None
        return way

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        proxy = self._table.of(request.url)
        way = self._way(proxy)
        if proxy is None:
            return await way.handle_async_request(request)
        try:
            response = await way.handle_async_request(request)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError) as error:
            raise httpx2.ProxyError(proxy.failure(error), request=request) from None
        if request.url.scheme == "http" or response.status_code == 407:
            response.extensions[_BY_PROXY] = proxy
        return response

    async def aclose(self) -> None:
        for way in self._ways.values():
            await way.aclose()


def way_in_words(response: httpx2.Response) -> str:
    """By way of which proxy an answer came that the proxy may have given itself; empty for any other."""
    proxy = response.extensions.get(_BY_PROXY)
    return f", by way of {proxy.words}" if isinstance(proxy, HttpProxy) else ""
