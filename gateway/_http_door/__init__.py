"""The HTTP door: Streamable HTTP for many clients, with both eras of the protocol on one path.

A request passes through these modules, in this order: `_server` (uvicorn carries the bytes, and cuts peers that are
too slow), `_app` (which path, which method), `_access` (host, origin, token; `_cors` for web pages, `_oauth` and
`_issuer_keys` for tokens of an authorization server), `_request` (headers and body, bounded), `_routing` (which
JSON-RPC message it is, and of which era), then `_session` (a client of the handshake era) or `_stateless`
(2026-07-28). Each of these two is the outlet of a conversation of the room, and gives each outgoing line to the
`_reply` or `_stream` it belongs to. `_sessions` has all of them, with their limits; `_giving_way` ends those whose
client has gone, when their slots are wanted. `_refusals` has the status codes. `_operations`, `_feed` and `_metrics`
are the pages beside `/mcp`.
"""

from ._access import Access, Token, tokens_in
from ._app import HttpDoor
from ._caller import Caller
from ._feed import Feed
from ._giving_way import WANTED, GivingWay
from ._metrics import HEARD, Metrics
from ._oauth import OAuth, Terms, terms_in
from ._operations import Operations
from ._rules import Rules, rules_of
from ._server import HttpServer, bound, check_tls

__all__ = [
    "HEARD",
    "WANTED",
    "Access",
    "Caller",
    "Feed",
    "GivingWay",
    "HttpDoor",
    "HttpServer",
    "Metrics",
    "OAuth",
    "Operations",
    "Rules",
    "Terms",
    "Token",
    "bound",
    "check_tls",
    "rules_of",
    "terms_in",
    "tokens_in",
]
