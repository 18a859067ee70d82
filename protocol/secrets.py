"""What must not be shown, in text that is not ours: what servers print when they fail, for one.

A proxy's address holds the password for it as often as not, and programs print the address they cannot reach.
"""

from __future__ import annotations

import re
from typing import Final

REDACTED: Final = "***"
_LOGIN: Final = re.compile(r"(?<=://)[^\s/?#'\"<>]{1,256}@")


def without_logins(text: str) -> str:
    """`text` without the user and the password of any URL in it: `http://***@host`."""
    return _LOGIN.sub(f"{REDACTED}@", text) if "://" in text else text
