"""Secrets planted in JSON values, and how to see that none has come out.

Each secret has `MARK` in it, at its beginning and its end, so that a part of one is found as well; but not what is left
when a text is cut within the first few characters.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from hypothesis import strategies as st

MARK = "Qz7wK"
KNOWN = f'{MARK}k<n>öw"n\\ se/cret\n{MARK}'
TOKENS = [
    KNOWN, f"sk-{MARK}defghijklmnopqrstuvwx", f"ghp_{MARK}defghijklmnopqrst0123", f"xoxb-123456789012-{MARK}abc",
    f"glpat-{MARK}defghij0123456789", f"npm_{MARK}defghijklmnopqrstuvwxyz0123456789",
    f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.{MARK}zjgNryP4J3jVmNHl0w5N",
]  # fmt: skip
AROUND = st.sampled_from(["", " ", "x ", "\n", "=", "'", ": ", "…", '"', "\\", "Bearer ", "\t", "\x1b[1;32m"])
FIELDS = ["password", "token", "api_key", "refreshToken", "Authorization"]
SHAPED = f"{MARK}9dLm2XpV4tRb8Nc{MARK}"
NAMED = f"{MARK} a secret of no known kind"


@st.composite
def planted(draw: Any, tokens: list[str] = TOKENS, member: str = SHAPED) -> Any:
    """A JSON value with a credential somewhere in it: one of these, or `member` in a member with the name of one. Texts
    with JSON in it are up to two deep."""
    how, secret = (
        draw(st.sampled_from(["member", "text", "text", "name", "url"])),
        draw(st.sampled_from(tokens)),
    )
    if how == "member":
        value: Any = {draw(st.sampled_from(FIELDS)): member}
    elif how == "text":
        value = draw(AROUND) + secret + draw(AROUND)
    elif how == "name":
        value = {draw(AROUND) + secret: 1}
    else:
        value = f"https://shop.test/?q={quote(secret, safe=draw(st.sampled_from(['', '/'])))}&n=1"
    written = 0
    for how in draw(st.lists(st.sampled_from(["list", "object", "text"]), max_size=4)):
        if how == "list":
            value = ["x", value]
        elif how == "object":
            value = {"y": value, "n": 1}
        elif written < 2:
            value, written = json.dumps(value, ensure_ascii=draw(st.booleans())), written + 1
    return value


def assert_clean(where: str, text: str) -> None:
    at = text.find(MARK)
    assert at < 0, f"{where}: …{text[max(0, at - 300) : at + 60]}…"
