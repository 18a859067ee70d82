"""Values that are asked for when a server starts: the output of a command, or an entry of the keyring.

A value of `env`, `headers` or `args` that begins with `!` is a shell command whose output is the value. Nothing is
expanded in it, because the shell does that. `!!` begins a text with one `!`. `{"keyring": "service/name"}` is what
the system's keyring keeps under that name; a definition holds it as the text `${keyring:service/name}`, which may
also be written. In a header both may follow `Bearer `.

Whoever starts the server asks; nothing here does. So what is printed, cached and hashed never holds the value.
"""

from __future__ import annotations

from typing import Final

from ..protocol.lazy_patterns import lazy_pattern

BEARER: Final = "Bearer "
_KEYRING: Final = "${keyring:"
KEYRING_ENTRY: Final = "([^/{}]+)/([^{}]+)"  # its service and its name
_ENTRY: Final = lazy_pattern(rf"\$\{{keyring:{KEYRING_ENTRY}\}}")


def command_in(text: str) -> str | None:
    """The command whose output is this value of `env`, `headers` or `args`; None if it is none."""
    bare = text.removeprefix(BEARER)
    return bare[1:] if bare.startswith("!") and not bare.startswith("!!") and bare[1:].strip() else None


def keyring_in(text: str) -> tuple[str, str] | None:
    """The service and the name of the keyring's entry that is this value; None if it is none."""
    if _KEYRING not in text:
        return None
    found = _ENTRY.fullmatch(text.removeprefix(BEARER))
    return None if found is None else (found[1], found[2])


def of_keyring(entry: str) -> str:
    """The text of a definition for `{"keyring": entry}`; `entry` matches `KEYRING_ENTRY`."""
    return f"{_KEYRING}{entry}}}"


def is_asked(text: str) -> bool:
    """Whether the value has to be asked for, because it is not in the text itself."""
    return ("!" in text[: len(BEARER) + 1] and command_in(text) is not None) or keyring_in(text) is not None


def with_answer(text: str, answer: str) -> str:
    """The value that `text` stands for, when its command or the keyring has given `answer`."""
    return BEARER + answer if text.startswith(BEARER) else answer
