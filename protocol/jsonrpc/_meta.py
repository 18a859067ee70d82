"""What each era carries in `_meta`, and in other fields beside the content.

Each request of the 2026-07-28 era says in `_meta` who we are. That part is encoded once per connection and spliced
into the encoded params, so `Stamp` holds bytes. A result that passes from a server of one era to a client of the
other is translated only at its top level: the parts stay the bytes the server sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import attrs
import msgspec

from .. import lenient
from ._json import UNREADABLE, encode, encode_json
from ._terms import CAPABILITIES_KEY, CLIENT_INFO_KEY, LOG_LEVEL_KEY, META, MODERN_VERSIONS, VERSION_KEY

_NEWER: Final = frozenset({"resultType", "ttlMs", "cacheScope", "_meta"})
_LONG: Final = 1 << 16  # bytes
_object = msgspec.json.Decoder(dict[str, Any])

# ---- requests to servers -------------------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class Stamp:
    """What each request of the 2026-07-28 era says about us, encoded once: the inside of `_meta`, without braces."""

    meta: bytes = b""

    @classmethod
    def of(
        cls, version: str | None, client_info: Mapping[str, Any], capabilities: Mapping[str, Any]
    ) -> Stamp:
        """The stamp for `version`. It is empty in the handshake era, where the handshake says it once."""
        if version not in MODERN_VERSIONS:
            return cls()
        said = {VERSION_KEY: version, CLIENT_INFO_KEY: client_info, CAPABILITIES_KEY: capabilities}
        return cls(_inside(encode_json(said)))


NO_STAMP = Stamp()


def with_meta(params: Mapping[str, Any], meta: bytes) -> tuple[bytes | memoryview, ...]:
    """The params with our part of `_meta` added, in pieces: they may be megabytes, and a join copies them only once.
    The caller's own keys stay, except those that only we may set. A `_meta` that is no object is left out: of two
    keys of one name, most servers take the last, and would lose ours."""
    if "_meta" in params:
        own = params["_meta"]
        params = {key: value for key, value in params.items() if key != "_meta"}
        if isinstance(own, Mapping):
            theirs = {
                key: value for key, value in cast("Mapping[str, Any]", own).items() if not _is_ours(key)
            }
            meta = joined(_inside(encode_json(theirs)), meta)
    encoded = encode_json(params)
    rest = encoded[1:] if len(encoded) < _LONG else memoryview(encoded)[1:]  # a view takes longer to make
    return b'{"_meta":{', meta, b"}," if params else b"}", rest


def joined(first: bytes, second: bytes) -> bytes:
    """Two lists of members, each without braces, joined to one."""
    return b"%b,%b" % (first, second) if first and second else first or second


def _is_ours(key: str) -> bool:
    """Whether only we may set the key: who we are, and the progress token. A caller may set the log level."""
    return (key.startswith(META) and key != LOG_LEVEL_KEY) or key == "progressToken"


def _inside(encoded: bytes) -> bytes:
    return encoded[1:-1]


# ---- results to clients --------------------------------------------------------------------------------------------


def for_modern(result: bytes, stamp: Mapping[str, Any], cached: Mapping[str, Any]) -> bytes:
    """A server's result in the form for a client of 2026-07-28: with a type, and signed by us. `cached`: the caching
    fields for a result without any."""
    parts = lenient.decode_parts(result)
    meta = {**_meta(parts), **stamp}
    parts.pop("_meta", None)
    return encode({"resultType": "complete", **cached, **parts, "_meta": meta})


def for_handshake(result: bytes) -> bytes:
    """The result of a server of 2026-07-28 in the form that an older client knows."""
    parts = lenient.decode_parts(result)
    meta = {key: value for key, value in _meta(parts).items() if not key.startswith(META)}
    parts = {key: value for key, value in parts.items() if key not in _NEWER}
    return encode({**parts, "_meta": meta} if meta else parts)


def _meta(parts: Mapping[str, msgspec.Raw]) -> dict[str, Any]:
    try:
        return lenient.decode(_object, parts["_meta"]) if "_meta" in parts else {}
    except UNREADABLE:  # not an object: there is nothing to keep
        return {}
