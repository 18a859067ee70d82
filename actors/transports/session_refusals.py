"""Whether a server says that it does not know our session, and so did not run the request. Pure.

The specification wants a 404 for it. After a restart servers say it in many ways: 400, 403, 410, 422 or 500, as
JSON-RPC, as another JSON object or as text; some with 200; and each framework in its own words. What they share is a
sentence about *the session* (missing, unknown, expired, ended), or about a server that nobody has initialized. So the
sentence is read, not the status. It must be about the session of the transport: "browser session not found" and "your
login session has expired" are about others, and may have been said by a tool that ran. An answer of 200 can be a
tool's, too, so there the message must begin with such a sentence, and have a code that no tool should use.

A 404 means it without words, unless it is the JSON-RPC error of a request that was read: some servers say 404 with
"method not found".

Rejected: the texts of known servers as a list (each new framework would be useless after its first restart); any text
in which "session" occurs (it may have run, and must not be sent again).
"""

from __future__ import annotations

import re
from typing import Any, Final, cast

import msgspec

from ...protocol.jsonrpc.incoming import BYTE_ORDER_MARK, ServerMessage, decode_error, decode_line
from ...protocol.jsonrpc.terms import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    NO_RESOURCE,
    SERVER_ERROR,
    UNSUPPORTED_VERSION,
    WireFault,
)

_CHARACTERS: Final = 400  # of a refusal, in which its sentence is looked for
_NO_SESSION: Final = -32001  # with which SDKs say "Session not found"
_OF_SESSIONS: Final = frozenset({SERVER_ERROR, _NO_SESSION, INVALID_REQUEST})
_OF_REQUESTS: Final = frozenset({METHOD_NOT_FOUND, INVALID_PARAMS, NO_RESOURCE})
_UNMET: Final = (
    "session",
    "not initialized",
    "protocol version",
)  # what an older server says to a newer request

_NAME: Final = (
    r"(?:mcp[-_ ]?)?sessions?(?:[-_ ]?ids?)?(?:[-_ ]header)?\b(?!\s*(?:token|cookie|key|data|type|state))"
)
_LINK: Final = (
    r"(?:\s+(?:(?:or|and)\s+\w+|valid|active|such|existing|known|matching|for|with|the|your|this|that|an?|any|given"
    r"|provided|mcp|http|transport|client|server|open|of))*"
)
_BEFORE: Final = re.compile(
    r"\b(?:no|not a|invalid|unknown|missing|expired|unrecogni[sz]ed|stale|inactive|bad|wrong|closed|terminated|without"
    r"|not find|n't find|cannot find|not found|no transport(?: found)?|not know|n't know|requires?|provide|lost)"
    rf"{_LINK}\s+[\"'`]?{_NAME}"
)
_AFTER: Final = re.compile(
    rf"(?:\b(?P<of>[\w-]+)[ \t]+)?[\"'`]?(?<![\w-]){_NAME}[\"'`]?(?:\s+(?:with|for)(?:\s+the)?\s+ids?)?"
    r"(?:\s*[\"'`(\[:#=]*[\w.:/+=-]{1,128}[\"'`)\]]*)??[:,]?"
    r"(?:\s+(?:is|was|has|been|does|did|are|could|can|cannot|no|longer|already|be|or|not))*"
    r"\s+(?:found|known|valid|invalid|unknown|expired|terminated|missing|required|recogni[sz]ed|exists?|closed|deleted"
    r"|initiali[sz]ed|timed out|ended|over|gone|lost|inactive|stale|provided)\b"
)
_NOT_BEGUN: Final = re.compile(
    r"(?:\b(?P<of>[\w-]+)[ \t]+)?(?:(?:is|was|has|must)\s+)?"
    r"(?:not\s+(?:yet\s+)?(?:been\s+)?initiali[sz]ed|(?:be\s+)?initiali[sz]ed? first)\b"
)
# What may stand before "session" when the transport's is meant, or before "not initialized" when we are.
_OURS: Final = frozenset(
    {
        *("the", "your", "this", "that", "a", "an", "any", "current", "given", "provided", "it"),
        *("mcp", "http", "transport", "client", "server", "connection", "request", "session"),
        *("find", "for", "with", "is", "was", "has", "must", "please"),
    }
)
_POSITIVE: Final = re.compile(r"\b(?:is|was|are)\s+(?:valid|found|known|provided|initiali[sz]ed)\b")
_PREFIX: Final = re.compile(
    r"(?:(?:bad request|invalid request|not found|gone|forbidden|unauthorized|error|mcp error[^:]*)\s*:\s*)+"
)
_TAG: Final = re.compile(r"<[^>]*>")
_SPACES: Final = re.compile(r"\s+")


def is_of_session(status: int, body: bytes, *, modern: bool, has_session: bool, challenged: bool) -> bool:
    """Whether a refusal says that the request did not run for want of a session, or of the handshake. `modern`: the
    request is one of 2026-07-28, which has no session: an older server has come in its place. `challenged`: the
    refusal asks for a login."""
    error = error_in(body)
    code = decode_error(bytes(error.error)).code if error is not None else None
    if status == 400 and code == UNSUPPORTED_VERSION:
        return True
    words = words_in(body)
    if modern and status == 400 and code is not None and any(word in words for word in _UNMET):
        return True
    if not (modern or has_session) or challenged:
        return False
    if status == 404 and not modern and code not in _OF_REQUESTS:
        return True
    return speaks_of_session(words)


def says_without_status(data: bytes | bytearray) -> bool:
    """Whether an answer of 200 is an error about our session."""
    if len(data) > _CHARACTERS * 4 or b'"error"' not in data:
        return False
    error = error_in(data)
    if error is None:
        return False
    said = decode_error(bytes(error.error))
    words = _PREFIX.sub("", _plain(said.message), count=1)
    return said.code in _OF_SESSIONS and speaks_of_session(words, whole=True)


def speaks_of_session(words: str, *, whole: bool = False) -> bool:
    """Whether a server's message says that it does not know a session, or that it was not initialized. `words`: the
    message in small letters. `whole`: it must begin with that."""
    for pattern in (_BEFORE, _AFTER, _NOT_BEGUN):
        for found in pattern.finditer(words):
            of = found.groupdict().get("of")
            if whole and found.start() > 0:
                break
            if (of is None or of in _OURS) and _POSITIVE.search(found[0]) is None:
                return True
    return False


def error_in(body: bytes | bytearray) -> ServerMessage | None:
    """The JSON-RPC error in the body of a response. None: the body is something else."""
    try:
        (message,) = decode_line(body.removeprefix(BYTE_ORDER_MARK))
    except (WireFault, ValueError):
        return None
    return message if bytes(message.error).startswith(b"{") and message.method is None else None


def words_in(body: bytes | bytearray) -> str:
    """What a refusal says, in small letters: the message of JSON-RPC, of another JSON object, or the text."""
    try:
        found = msgspec.json.decode(body.removeprefix(BYTE_ORDER_MARK))
    except (msgspec.MsgspecError, RecursionError, ValueError):
        found = body.decode(errors="replace")
    return _plain(" . ".join(_texts(found)))


def _texts(found: Any, depth: int = 0) -> list[str]:
    if isinstance(found, str):
        return [found[: _CHARACTERS * 4]]
    if not isinstance(found, dict) or depth > 2:
        return []
    values = cast("dict[str, Any]", found)
    names = ("error", "message", "detail", "title", "error_description", "reason", "data")
    return [text for name in names if name in values for text in _texts(values[name], depth + 1)]


def _plain(text: str) -> str:
    return _SPACES.sub(" ", _TAG.sub(" ", text)).strip().lower()[:_CHARACTERS]
