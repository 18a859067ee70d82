"""Which values are known to be credentials, and so are cut out of everything that a server says.

This is another question than what is hidden where a configuration is printed (`masking`): there, whatever may be
secret is hidden, and nobody misses it. Here a value that is taken for a credential disappears from every answer, so a
region, the name of a model or the working directory must not be taken for one. A value is known to be a credential

* by its source: it is asked for when the server starts (a command, the keyring), it is the token of a login, a caller
  brings it, or it stands behind `Bearer`;
* by its name: `DB_PASSWORD`, `--token`, `X-Api-Key`. A name that only tells something about a credential is none of
  these: `SSH_AUTH_SOCK`, `PASSWORD_STORE_DIR`, `MAX_TOKENS`;
* by its form: characters in an order that no word, version, date or host has.

A path and an address are no credentials as a whole, whatever they are called. Only their form is asked: whether a path
exists says nothing, for the server may run on another machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

LEAST: Final = 6  # characters that a credential must have to be looked for
# A name that may be that of a secret: enough to hide a value where a configuration is printed.
SECRET_WORD: Final = re.compile(
    r"(?i)(pass(word|wd|phrase|code)?(?![a-z])|secret|token|api[-_]?key|(access|private|signing|encryption)[-_]?key|auth(?!or(?!iz))"
    r"|bearer|credential|cookie|signature|jwt|(?<![a-z])(key|pat|pwd|pw|dsn)(?![a-z]))|(?-i:(?<=[a-z])Key\b)"
)
SCHEME: Final = re.compile(r"(?i)(bearer|basic|token|apikey)\s+(?=\S)")
_BEARER: Final = re.compile(r"(?i)bearer\s+\S+")
# Variables that programs quote in ordinary texts. The first ones only sound like a password.
_FOLDERS: Final = re.compile(r"(?:OLD|INIT_)?(?:PWD|CWD)")
_EVERYDAY: Final = re.compile(r"USER|LOGNAME|LANG|LC_\w+|LANGUAGE|TERM\w*|HOST\w*|SHELL|TZ|_|XDG_\w+|EDITOR")
# The last word of a name that is about something: its place, its name, its number. And the first one.
_ABOUT: Final = frozenset(
    (
        *(
            "dir",
            "dirs",
            "directory",
            "folder",
            "path",
            "paths",
            "file",
            "filename",
            "sock",
            "socket",
            "home",
            "root",
        ),
        *(
            "url",
            "uri",
            "endpoint",
            "host",
            "hostname",
            "domain",
            "port",
            "provider",
            "region",
            "zone",
            "version",
        ),
        *(
            "name",
            "names",
            "username",
            "user",
            "email",
            "type",
            "kind",
            "mode",
            "method",
            "scheme",
            "scope",
            "scopes",
        ),
        *(
            "id",
            "ids",
            "uuid",
            "guid",
            "commit",
            "sha",
            "hash",
            "digest",
            "algorithm",
            "alg",
            "issuer",
            "audience",
        ),
        *(
            "limit",
            "count",
            "size",
            "length",
            "ttl",
            "timeout",
            "expiry",
            "expires",
            "ms",
            "seconds",
            "minutes",
        ),
        *("hours", "days", "enabled", "disabled", "required"),
    )
)
_MEASURES: Final = frozenset(
    ("max", "min", "num", "use", "enable", "disable", "allow", "require", "tokenizer", "tokenizers")
)
_SECRET_IDS: Final = frozenset({"secret", "session"})  # `SECRET_ID`: whoever knows it may come in
_WORDS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_URL: Final = re.compile(r"[a-z][a-z0-9+.-]*://\S*", re.IGNORECASE)
_HOST: Final = re.compile(r"(?:[\w.+-]+@)?(?:[a-z0-9_-]+\.)+[a-z]{2,}(?::\d+)?(?:/[a-z0-9_./-]*)?")
_LEADS: Final = re.compile(r"/|~(?:[/\\]|\Z)|\.{1,2}[/\\]|[A-Za-z]:[/\\]|\\\\")
_PARTS: Final = re.compile(r"[/\\]+")
_FILE: Final = re.compile(r"[\w@-][^/\\]*\.[A-Za-z]\w{0,7}\Z")
_BETWEEN: Final = re.compile(r"[\s\"'`=,;&?#{}()<>|\[\]]+")
_CHUNK: Final = re.compile(r"[A-Za-z0-9]+")
_PIECE: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_LEAST_RANDOM: Final = 12  # letters and digits of something that may look random
_LONG: Final = 16
_COMMON: Final = re.compile(r"[A-Za-z0-9_.-]{1,15}")


def names_credential(name: str) -> bool | None:
    """Whether a value of this name is a credential. None: the name does not tell."""
    words = [word.lower() for word in _WORDS.findall(name)] or [""]
    if words[-1] == "id" and words[-2:-1] and words[-2] in _SECRET_IDS:
        return True
    if words[-1] in _ABOUT or words[0] in _MEASURES or _FOLDERS.fullmatch(name):
        return False
    if SECRET_WORD.search(name):
        return True
    return False if _EVERYDAY.fullmatch(name) else None


def credentials_in(text: str, name: str, *, known: bool = False) -> Iterator[str]:
    """The parts of a value with this name that are credentials, each as it would be quoted. `known`: by its source."""
    named = names_credential(name)
    if named is False and (not known or _LEADS.match(text)):
        return
    is_one = known or named or _BEARER.fullmatch(text) is not None
    for word in _BETWEEN.split(text):
        if looks_random(word) and not (_URL.match(word) or _LEADS.match(word) or _HOST.fullmatch(word)):
            yield word
    if is_one:
        bare = SCHEME.sub("", text, count=1)
        lines = () if bare[:1] in ("{", "[") else bare.splitlines()  # of JSON, nobody quotes a line
        yield from (line for each in (bare, *lines) if _can_be_one(line := each.strip()))


def looks_random(text: str) -> bool:
    """Whether letters and digits follow each other as in no word, name, number, version or date.

    That shows in how often the kind of character changes between two separators.
    """
    length = all_changes = most = 0
    for chunk in _CHUNK.findall(text):
        changes = _changes(chunk)
        if len(chunk) >= _LONG and changes >= 4:
            return True
        length += len(chunk)
        all_changes += changes
        most = max(most, changes)
    if length < _LEAST_RANDOM or all_changes < 4 or most < 2:
        return False
    return all_changes * (5 if length >= _LONG else 3) >= length


def is_common(text: str) -> bool:
    """Whether the secret is a common word such as `postgres`, which may be part of other words and must not be cut out
    of them."""
    return _COMMON.fullmatch(text) is not None and not looks_random(text)


def _changes(chunk: str) -> int:
    pieces = _PIECE.findall(chunk)
    return sum(not (_is_word(one) and _is_word(other)) for one, other in pairwise(pieces))


def _is_word(piece: str) -> bool:
    return len(piece) > 2 and piece.isalpha()


def _can_be_one(text: str) -> bool:
    """Whether this may be a credential, when its name says that it is one."""
    if len(text) < LEAST or _URL.fullmatch(text) or text.startswith("-----"):
        return False
    return not _is_path(text)


def _is_path(text: str) -> bool:
    """Whether it is a path, and not a key that happens to begin like one."""
    if not _LEADS.match(text):
        return False
    parts = [part for part in _PARTS.split(text) if part not in ("", "~", ".", "..")]
    if not parts or _FILE.fullmatch(parts[-1]):
        return True
    return (len(parts) > 1 or not text.startswith("/")) and not any(map(looks_random, parts))
