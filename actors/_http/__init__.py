"""HTTP: a server that is reached by a URL, over Streamable HTTP of either era or over the older HTTP+SSE
transport."""

from ._connection import AuthFor, HttpConnection, HttpConnector
from ._events import EventParser, ServerEvent
from ._faults import ExchangeFault
from ._routing import ToolHeaders

__all__ = [
    "AuthFor",
    "EventParser",
    "ExchangeFault",
    "HttpConnection",
    "HttpConnector",
    "ServerEvent",
    "ToolHeaders",
]
