"""Who calls, as a door has found out, and what is visible in a token without checking its signature. Pure.

A token that somebody else issued is read here only to refuse it. Whoever accepts it has to check its signature. What
cannot be read as a JWT is opaque, and says nothing.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

LEEWAY: Final = 30  # seconds by which clocks may differ
_MOST: Final = 1 << 16  # characters of a token that is read


class CallerIdentity(msgspec.Struct, frozen=True):
    """The token by which a caller came. `issuer`: who made it, and `subject`, whom it names; empty where no door has
    checked that."""

    token: str
    issuer: str = ""
    subject: str = ""

    def __repr__(self) -> str:
        """Without the token."""
        return f"<CallerIdentity {self.subject} of {self.issuer}>"


class Claims(msgspec.Struct, frozen=True):
    """What a token says of itself."""

    header: Mapping[str, Any]
    body: Mapping[str, Any]

    def text(self, name: str) -> str | None:
        said = self.body.get(name)
        return said if isinstance(said, str) and said else None

    @property
    def kind(self) -> str:
        """Its `typ`, in small letters and without the prefix that may be left out."""
        said = self.header.get("typ")
        return said.lower().removeprefix("application/") if isinstance(said, str) else ""

    @property
    def audiences(self) -> tuple[str, ...]:
        said: Any = self.body.get("aud")
        listed: list[Any] = said if isinstance(said, list) else [said]  # pyright: ignore[reportUnknownVariableType]
        return tuple(each for each in listed if isinstance(each, str))

    def is_over(self, now: float) -> bool:
        ends = self.body.get("exp")
        return isinstance(ends, int | float) and not isinstance(ends, bool) and ends <= now - LEEWAY


def claims_of(token: str) -> Claims | None:
    """What a JWT says. None: it is none."""
    parts = token.split(".")
    if len(parts) != 3 or len(token) > _MOST:
        return None
    try:
        header, body = (_object(part) for part in parts[:2])
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return None
    return None if header is None or body is None or "alg" not in header else Claims(header, body)


def _object(part: str) -> Mapping[str, Any] | None:
    raw = base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)
    found: Any = msgspec.json.decode(raw)
    return cast("Mapping[str, Any]", found) if isinstance(found, dict) else None


def is_same_place(one: str, other: str) -> bool:
    """Whether two identifiers are the same. Providers differ in whether they write the last slash, and in nothing
    else."""
    return one.rstrip("/") == other.rstrip("/")
