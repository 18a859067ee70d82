"""Which values are known to be credentials, and so are cut out of everything that a server says.

This is another question than what is hidden where a configuration is printed (`masking`): there, whatever may be
secret is hidden, and nobody misses it. Here a value that is taken for a credential disappears from every answer, so a
region, the name of a model or the working directory must not be taken for one. A value is known to be a credential

* by its source: it is asked for when the server starts (a command, the keyring), it is the token of a login, a caller
  brings it, or it stands behind `Bearer`;
* by its name: `DB_PASSWORD`, `--token`, `X-Api-Key`. A name that only tells something about a credential is none of
  these: `SSH_AUTH_SOCK`, `PASSWORD_STORE_DIR`, `MAX_TOKENS`;
* by its form: characters in an order that no word, version, date or host has.

A member's name says nothing in what a server answers (`"token": "identifier"` is of a lexer, `"password":
"see-vault"` of a file that somebody edits): there, a value that nobody knows must have the form, too (`is_shaped`,
`is_token`).
Rejected: cutting the value of each member with such a name, as MetaMCP does. A model that reads a file, edits it and
writes it back damages it. Whoever wants it sets `scrub`.

A path and an address are no credentials as a whole, whatever they are called. Only their form is asked: whether a path
exists says nothing, for the server may run on another machine.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final
from urllib.parse import unquote

import msgspec

from ..protocol.lazy_patterns import lazy_pattern

LEAST: Final = 6  # characters that a credential must have to be looked for
# A name that may be that of a secret: enough to hide a value where a configuration is printed.
SECRET_WORD: Final = lazy_pattern(
    r"(?i)(pass(word|wd|phrase|code)?(?![a-z])|secret|token|api[-_]?key|(access|private|signing|encryption)[-_]?key|auth(?!or(?!iz))"
    r"|bearer|credential|cookie|signature|jwt|(?<![a-z])(key|pat|pwd|pw|dsn)(?![a-z]))|(?-i:(?<=[a-z])Key\b)"
)
SCHEMES: Final = ("bearer", "basic", "token", "apikey")  # what stands before a credential in a header
SCHEME: Final = lazy_pattern(rf"(?i)({'|'.join(SCHEMES)})\s+(?=\S)")
LOGIN: Final = lazy_pattern(r"(?<=://)[^\s/?#'\"<>]{1,256}@")  # the user and the password of a URL
# Tokens of services, as they begin and as they go on. Elsewhere than at the beginning of a word, `sk-` is part of one.
TOKENS: Final = (
    r"(?<![A-Za-z0-9])sk-[\w-]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|xox[abeoprs]-[A-Za-z0-9-]+"
    r"|A[KS]IA[0-9A-Z]{16}|AIza[\w-]{35}|glpat-[\w-]{20,}|npm_[A-Za-z0-9]{36}|hf_[A-Za-z0-9]{30,}|[sr]k_live_\w{16,}"
)
# What begins like one, and hardly like a word: enough to hide it where a configuration is printed.
BEGINNINGS: Final = r"sk-|pk-|gh[pousr]_|github_pat_|xox[abeoprs]-|A[KS]IA|AIza|glpat-|[sr]k_live_|eyJ"
# Names of members whose values are credentials, in any case, with any dashes between the letters.
MEMBERS: Final = (
    b"password passwd passphrase secret token authorization credential credentials apikey privatekey secretkey"
    b" accesskey accesstoken refreshtoken idtoken sessiontoken authtoken clientsecret secretaccesskey xapikey"
    b" xauthtoken awssecretaccesskey awssessiontoken githubtoken".split()
)
_BEARER: Final = lazy_pattern(r"(?i)bearer\s+\S+")
# Variables that programs quote in ordinary texts. The first ones only sound like a password.
_FOLDERS: Final = lazy_pattern(r"(?:OLD|INIT_)?(?:PWD|CWD)")
_EVERYDAY: Final = lazy_pattern(
    r"USER|LOGNAME|LANG|LC_\w+|LANGUAGE|TERM\w*|HOST\w*|SHELL|TZ|_|XDG_\w+|EDITOR"
)
# The last word of a name that is about something: its place, its name, its number. And the first one.
_ABOUT: Final = frozenset(
    "dir dirs directory folder path paths file filename sock socket home root"
    " command cmd program executable helper hook script askpass"
    " url uri endpoint host hostname domain port provider region zone version"
    " name names username user email type kind mode method scheme scope scopes"
    " id ids uuid guid commit sha hash digest algorithm alg issuer audience"
    " limit count size length ttl timeout expiry expires ms seconds minutes hours days"
    " enabled disabled required".split()
)
_MEASURES: Final = frozenset("max min num use enable disable allow require tokenizer tokenizers".split())
_SECRET_IDS: Final = frozenset({"secret", "session"})  # `SECRET_ID`: whoever knows it may come in
_WORDS: Final = lazy_pattern(r"[A-Z]?[a-z]+|[A-Z]+")
_URL: Final = lazy_pattern(r"[a-z][a-z0-9+.-]*://\S*", re.IGNORECASE)
_HOST: Final = lazy_pattern(r"(?:[\w.+-]+@)?(?:[a-z0-9_-]+\.)+[a-z]{2,}(?::\d+)?(?:/[a-z0-9_./-]*)?")
_LEADS: Final = lazy_pattern(r"/|~(?:[/\\]|\Z)|\.{1,2}[/\\]|[A-Za-z]:[/\\]|\\\\")
_PARTS: Final = lazy_pattern(r"[/\\]+")
_FILE: Final = lazy_pattern(r"[\w@-][^/\\]*\.[A-Za-z]\w{0,7}\Z")
_BETWEEN: Final = lazy_pattern(r"[\s\"'`=,;&?#{}()<>|\[\]]+")
_CHUNK: Final = lazy_pattern(r"[A-Za-z0-9]+")
_PIECE: Final = lazy_pattern(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_LEAST_RANDOM: Final = 12  # letters and digits of something that may look random
_LONG: Final = 16
_LONGEST_SHAPED: Final = 16384  # characters of a value in which a form is looked for
_PRIVATE_KEY: Final = lazy_pattern(r"\s*-----BEGIN [A-Z ]{0,32}PRIVATE KEY-----\s*(?:[\w+/=:,-]+\s+){2}")
_RUN: Final = lazy_pattern(r"[A-Za-z0-9]{16}")
_SLACK: Final = lazy_pattern(r"xox[a-z]-[A-Za-z-]*\d")
_EXAMPLE: Final = lazy_pattern(r"[A-Za-z_-]{1,12}[_-][xX_-]+")
_COMMON: Final = lazy_pattern(r"[A-Za-z0-9_.-]{1,15}")


class SecretValue(msgspec.Struct, frozen=True):
    """A value that may be secret, and its name. `known`: its source holds only credentials."""

    name: str
    value: str
    known: bool = False
    is_login: bool = False  # `user:password`

    def __repr__(self) -> str:
        """Without the value."""
        return f"<SecretValue {self.name}>"

    def credentials(self) -> set[str]:
        """The credentials in the value, and the password of each login in it."""
        text = self.value.strip()
        found = {*credentials_in(text, self.name, known=self.known)}
        bare = SCHEME.sub("", text, count=1)
        login = _decoded(bare) if text[:6].lower() == "basic " else bare
        is_login = self.is_login or self.name == "login" or login != bare
        for each in (*([login] if is_login else ()), *(found[0][:-1] for found in LOGIN.finditer(text))):
            user, colon, password = unquote(each).partition(":")
            found |= {each, password if colon else user, base64.b64encode(each.encode()).decode()}
        return {value for value in found if len(value) >= LEAST}


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
        if _has_form(word):
            yield word
    if is_one:
        bare = SCHEME.sub("", text, count=1)
        lines = () if bare[:1] in ("{", "[") else bare.splitlines()  # of JSON, nobody quotes a line
        yield from (line for each in (bare, *lines) if _can_be_one(line := each.strip()))


def of_environment(environ: Mapping[str, str]) -> list[SecretValue]:
    """The variables of our environment with the name of a secret, and the logins of URLs in other variables."""
    found = [SecretValue(name, value) for name, value in environ.items() if names_credential(name)]
    logins = ((name, LOGIN.search(value)) for name, value in environ.items() if "://" in value)
    return [
        *found,
        *(
            SecretValue(f"the login in {name}", login[0][:-1], is_login=True)
            for name, login in logins
            if login
        ),
    ]


def is_shaped(value: str) -> bool:
    """Whether a value that nobody knows, of a member with the name of a credential, is one by its form: it is a private
    key, or one word that looks random, perhaps behind `Bearer` and the like. A name with a short hash behind it, as
    Kubernetes makes them (`db-secret-7g2m9k4t5h`), is none."""
    if _PRIVATE_KEY.match(value):
        return True
    if len(value) > _LONGEST_SHAPED:
        return False
    texts = [text for text in _BETWEEN.split(SCHEME.sub("", value.strip(), count=1)) if text]
    if len(texts) != 1 or not _has_form(texts[0]):
        return False
    chunks = _CHUNK.findall(texts[0])
    words = [
        each for each in chunks if len(each) > 2 and each.isalpha() and (each.islower() or each.isupper())
    ]
    is_name = sum(map(len, words)) * 4 >= sum(map(len, chunks))  # a random text has a short word at times
    return not is_name or any(len(each) >= _LONG and looks_random(each) for each in chunks)


def is_token(text: str) -> bool:
    """Whether a text that begins as tokens of some service do goes on like one: not like the words of a name
    (`sk-toggleable__label-arrow`) or of an example (`xoxb-your-token`, `sk-xxxxxxxx…`)."""
    if _EXAMPLE.fullmatch(text):
        return False
    return _RUN.search(text) is not None or looks_random(text) or _SLACK.match(text) is not None


def _has_form(word: str) -> bool:
    return looks_random(word) and not (_URL.match(word) or _LEADS.match(word) or _HOST.fullmatch(word))


def may_rotate(name: str, value: str) -> bool:
    """Whether another value of this variable is another key, and nothing else: its name is that of a credential, and it
    is neither a path, an address nor a command with arguments."""
    if names_credential(name) is not True or _LEADS.match(value) or _URL.match(value):
        return False
    return not any(map(str.isspace, value.strip()))


def is_place(value: str) -> bool:
    """Whether the value begins as a path does."""
    return _LEADS.match(value) is not None


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


def _decoded(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode()
    except (binascii.Error, ValueError):
        return text
