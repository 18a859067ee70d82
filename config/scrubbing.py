"""Removes credentials from what servers answer: known secrets, and what looks like a credential.

It works on the JSON text of a result, before anybody reads, cuts or keeps it. So one pass covers its text, its
structured content, its `_meta`, and JSON inside its texts, and no way out is forgotten. What is left is JSON again: no
escape is split, and a number with a secret in it becomes a string. Three things are removed:

* Known secrets (`Secrets.in_json`), as JSON writers spell them, up to three texts inside one another.
  One that is common (`is_common`) goes only where it stands alone: not in a longer word, a path or the name of a host.
* Words in the form of a token: those of GitHub, Slack, AWS and the like, and JSON web tokens.
* The value of a member with the name of a credential (`"password": "…"`), whatever it looks like, in JSON at any depth.

The forms are those of MetaMCP (its table of patterns), and more of each kind. Unlike there, `sk-` must begin a word, so
that "risk-assessment-of-everything" stays. What stands in base64 (an image, a file) is not looked at.

A result is untrusted and can be large. So each byte is looked at a bounded number of times, and no step keeps the
interpreter's lock for long: a thread looks through a long result, and the loop goes on meanwhile. Tokens are looked for
only in long words: passing over the short ones is one expression for all forms, and ten times as fast as a search for
each. Most results are small and hide nothing. Of such a result, one search tells that it has none of the marks with
which a token begins, and no member with the form of a credential's, in a small part of the time that the whole takes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from functools import lru_cache
from heapq import merge
from typing import Final, NamedTuple

from .credentials import is_common

STARS: Final = b"***"
_KEY, _JWT, _VALUE = b"[REDACTED:KEY]", b"[REDACTED:JWT]", b"[REDACTED:VALUE]"
_STEP: Final = 1 << 15  # bytes passed over at once
_BEGINS: Final = 6  # bytes of a known secret by which it is looked for first
_NEVER: Final = b"\xff"  # in no text
SMALL: Final = 1 << 16  # bytes in which the marks are looked for first, in one go
_LEAST_WORD: Final = 12
_SHORT_WORDS: Final = re.compile(rb"(?:[\w-]{0,%d}+[^\w-]++)*+" % (_LEAST_WORD - 1))
_WORD: Final = re.compile(rb"[\w-]{%d,16384}+" % _LEAST_WORD)
_TOKEN: Final = re.compile(
    rb"(?:(?:\A|(?<![A-Za-z0-9]))sk-[\w-]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|xox[abeoprs]-[A-Za-z0-9-]+"
    rb"|A[KS]IA[0-9A-Z]{16}|AIza[\w-]{35}|glpat-[\w-]{20,}|npm_[A-Za-z0-9]{36}|hf_[A-Za-z0-9]{30,}|[sr]k_live_\w{16,})"
)
# One of these is in whatever the expression above and the one below match. Each begins with a character that is rare in
# texts, and to look for that first is ten times as fast as one expression for all.
_MARKS: Final = tuple(
    (mark[:1], re.compile(mark).search)
    for mark in (
        rb"-(?:(?<=sk-)|(?<=pat-))",
        rb"_(?:(?<=h[pousr]_)|(?<=b_)pat_|(?<=m_)|(?<=f_)|(?<=k_)live_)",
        rb"xox",
        rb"A(?:[KS]IA|Iza)",
        rb"J(?<=eyJ)",
    )
)
_WEB_TOKEN: Final = re.compile(rb"eyJ[\w-]{10,}\Z")  # the first of its parts
_PART: Final = re.compile(rb"\.[\w-]{10,16384}+")
# Escapes of JSON, of URLs, and of terminals (colours): no part of the word behind them.
_ESCAPE: Final = re.compile(
    rb"(?<=\\)(?:[nrtbf]|u[0-9A-Fa-f]{4})|(?<=%)[0-9A-Fa-f]{2}|(?<=[\[;])[0-9]{0,3}[mK]", re.ASCII
)
# What stands before and behind something that is part of a longer word, and what before it only looks so.
_BEFORE: Final = re.compile(rb"(?:[\w/]|\w[.-])\Z")
_BEHIND: Final = re.compile(rb"[\w/]|[.-]\w")
_ESCAPED: Final = re.compile(
    rb"(?:\\(?:[nrtbf]|[ux][0-9A-Fa-f]{2,4})|%[0-9A-Fa-f]{2}|[\[;][0-9]{0,3}[mK])\Z", re.ASCII
)
_NEAR: Final = 8  # characters before it that tell
# Names of members whose values are credentials, in any case, with any dashes between the letters.
_NAMES: Final = (
    b"password passwd passphrase secret token authorization credential credentials apikey privatekey secretkey"
    b" accesskey accesstoken refreshtoken idtoken sessiontoken authtoken clientsecret secretaccesskey xapikey"
    b" xauthtoken awssecretaccesskey awssessiontoken githubtoken".split()
)


def _spelled(names: Collection[bytes]) -> bytes:
    """An expression for these names, in any case and with any dashes. It tells at the first letter that most other
    names are none of them."""
    rests: dict[bytes, list[bytes]] = {}
    for name in names:
        if name:
            rests.setdefault(name[:1], []).append(name[1:])
    each = [b"[%b%b][-_]*+%b" % (first, first.upper(), _spelled(rest)) for first, rest in rests.items()]
    return b"(?:%b)" % b"|".join(each) + (b"?" if b"" in names else b"") if each else b""


_FIRST: Final = b"".join(sorted({name[:1] + name[:1].upper() for name in _NAMES}))
_FIELD: Final = re.compile(
    rb'"(?=[%b_-][A-Za-z_-]{4,23}[\\"])[-_]*+' % _FIRST
    + _spelled(_NAMES)
    + rb'(\\{0,15})"[ \t]{0,8}:[ \t]{0,8}\1"'
)
_LONGEST_FIELD: Final = 80  # bytes that the expression above matches at most
# What JSON has outside of its strings. A known secret of only these may be there, too.
_BARE: Final = re.compile(rb"[\s\d.,:eE+\-\[\]{}truefalsn]+")
# Names of members in results of the protocol, as long as a secret may be. A known secret that is one of these words
# stays where it is such a name: it tells nobody anything there, and without the name the result could not be read.
_SHAPES: Final = frozenset(
    b"annotations arguments audience completion content contents description inputRequests isError lastModified"
    b" message messages mimeType nextCursor priority requestState resource resultType structuredContent values".split()
)
_NAME_ENDS: Final = re.compile(rb'"\s*:')
_IN_NUMBERS: Final = b"0123456789.eE+-"
_NUMBER: Final = re.compile(rb"[\d.eE+-]+")
Span = tuple[int, int, bytes]  # from, to, what takes its place


class Passed(NamedTuple):
    """How far strings have been passed over. `inside`: whether the place in question is inside the last of them."""

    at: int
    inside: bool


def stands_alone(raw: bytes, begins: int, end: int) -> bool:
    """Whether the text from `begins` to `end` is a whole word, and not part of a path, an address or a longer word."""
    if _BEHIND.match(raw, end):
        return False
    near = raw[max(0, begins - _NEAR) : begins]
    return _BEFORE.search(near) is None or _ESCAPED.search(near) is not None


@lru_cache(4096)
def _is_common(secret: bytes) -> bool:
    return secret.isascii() and is_common(secret.decode())


def scrubbed(raw: bytes, known: Iterable[bytes] = ()) -> bytes:
    """The text without credentials; the same object if there are none. `known`: further byte strings to remove."""
    if len(raw) <= SMALL and not is_suspect(raw) and not (known and is_one_in(raw, known)):
        return raw  # as nearly every result of a call
    found = [_secrets(raw, secret) for secret in _standing_in(raw, known)]
    spans = [each for each in (*found, _tokens(raw), _values(raw)) if each]
    return _without(raw, spans) if spans else raw


def is_suspect(raw: bytes) -> bool:
    """Whether a JSON text may have to lose something for its form: a quick test."""
    for begin, mark in _MARKS:
        if raw.find(begin) >= 0 and mark(raw) is not None:
            return True
    return _FIELD.search(raw) is not None


def without_known(raw: bytes, known: Iterable[bytes], *, also_common: bool) -> bytes:
    """The text without these known secrets; the same object if it has none. What only looks like a credential stays.
    `also_common`: those that are common words, too."""
    wanted = (each for each in _standing_in(raw, known) if also_common or not _is_common(each))
    spans = [found for each in wanted if (found := _secrets(raw, each))]
    return _without(raw, spans) if spans else raw


def beginnings(known: Iterable[bytes]) -> tuple[bytes, ...]:
    """By what these known secrets are looked for first: few, for spellings of one secret mostly begin alike."""
    return tuple(sorted({secret[:_BEGINS] for secret in known}))


def is_one_in(raw: bytes, known: Iterable[bytes]) -> bool:
    """Whether one of the known secrets is in the text: `_standing_in`, without the cost of a list."""
    begins, is_there = _NEVER, False
    for secret in known:
        if not secret.startswith(begins):
            begins = secret[:_BEGINS]
            is_there = raw.find(begins) >= 0  # `in` takes four times as long
        if is_there and secret in raw:
            return True
    return False


def scrubbed_text(text: str) -> str:
    """A text that is not JSON without credentials, by their form."""
    raw = text.encode(errors="surrogatepass")
    found = scrubbed(raw)
    return text if found is raw else found.decode(errors="surrogatepass")


def _standing_in(raw: bytes, known: Iterable[bytes]) -> list[bytes]:
    """The known secrets that may be in the text. A secret can have hundreds of spellings. Most begin with the same few
    bytes, which are searched once if the spellings are sorted."""
    found: list[bytes] = []
    begins, is_there = _NEVER, False
    for secret in known:
        if not secret.startswith(begins):
            begins = secret[:_BEGINS]
            is_there = begins in raw
        if is_there:
            found.append(secret)
    return found


def _secrets(raw: bytes, secret: bytes) -> list[Span]:
    """Where `secret` is, and where a number contains it. What is left of a result must be JSON again."""
    spans: list[Span] = []
    at = done = 0
    bare = _BARE.fullmatch(secret) is not None
    common, is_shape = _is_common(secret), secret in _SHAPES
    passed = Passed(0, inside=False)
    while (found := raw.find(secret, at)) >= 0:
        if _splits_an_escape(raw, done, found):
            at = done = found + 1
        elif (common and not stands_alone(raw, found, found + len(secret))) or (
            is_shape and _is_name(raw, found, found + len(secret))
        ):
            at = found + len(secret)
        elif bare and not (passed := _passing(raw, passed, found)).inside:
            begins, at = _number_around(raw, done, found, found + len(secret))
            if begins < at:
                spans.append((begins, at, b'"%b"' % STARS))
            at = done = max(at, found + 1)
        else:
            at = done = found + len(secret)
            spans.append((found, at, STARS))
    return spans


def _is_name(raw: bytes, begins: int, end: int) -> bool:
    """Whether the text from `begins` to `end` is the whole name of a member."""
    return raw[begins - 1 : begins] == b'"' and _NAME_ENDS.match(raw, end) is not None


def _splits_an_escape(raw: bytes, begins: int, at: int) -> bool:
    """Whether the character at `at` is escaped by the backslash before it. `begins`: a place where no escape is
    open."""
    if raw[at - 1 : at] != b"\\":
        return False
    before = raw[begins:at]
    return (len(before) - len(before.rstrip(b"\\"))) % 2 == 1


def _passing(raw: bytes, passed: Passed, to: int) -> Passed:
    """Pass over whole strings, from `passed` on, to the place `to`."""
    at = passed.at
    if to < at:
        return passed
    while (quote := raw.find(b'"', at, to)) >= 0:
        at = _value_end(raw, quote + 1, 0) + 1
        if at > to:
            return Passed(at, inside=True)
    return Passed(to, inside=False)


def _number_around(raw: bytes, least: int, begins: int, end: int) -> tuple[int, int]:
    """From where to where the number goes that contains all of this; from its end if there is none. A number of more
    than 30 kB stays."""
    if _NUMBER.fullmatch(raw, begins, end) is None:
        return begins, begins
    last = _NUMBER.match(raw, end, end + _STEP)
    end = end if last is None else last.end()
    before = raw[max(least, begins - _STEP) : begins]
    begins -= len(before) - len(before.rstrip(_IN_NUMBERS))
    cut = any(each in _IN_NUMBERS for each in raw[begins - 1 : begins] + raw[end : end + 1])
    return (end, end) if cut else (begins, end)


def _tokens(raw: bytes) -> list[Span]:
    spans: list[Span] = []
    at = 0
    while at < len(raw):
        end = at + _STEP
        passed = _SHORT_WORDS.match(raw, at, end)
        at = passed.end() if passed is not None else at
        word = _WORD.match(raw, at)
        if word is None:  # a short word at the end of this step, or at the end of all
            at = max(at, end) if at + _LEAST_WORD >= len(raw) else at
            continue
        at = word.end()
        spans += _in_word(raw, *word.span())
    return spans


def _in_word(raw: bytes, begins: int, end: int) -> list[Span]:
    """The tokens in a long word."""
    spans: list[Span] = []
    if (escape := _ESCAPE.match(raw, begins)) is not None:
        if _may_be_a_letter(raw, begins):
            spans += _tokens_in(raw, begins, end)
        begins = escape.end()
    spans = sorted({*spans, *_tokens_in(raw, begins, end)})
    word = raw[begins:end]
    if raw[end : end + 1] == b"." and (first := _WEB_TOKEN.search(word)) is not None:
        second = _PART.match(raw, end)
        third = _PART.match(raw, second.end()) if second is not None else None
        if third is not None:
            spans.append((begins + first.start(), third.end(), _JWT))
    return spans


def _tokens_in(raw: bytes, begins: int, end: int) -> list[Span]:
    found = _TOKEN.finditer(raw[begins:end])
    return [(begins + token.start(), begins + token.end(), _KEY) for token in found]


def _may_be_a_letter(raw: bytes, at: int) -> bool:
    """Whether this letter, which follows a backslash, may be a letter of the text, because another backslash stands
    before that one. In a text inside a text this cannot be told from an escape; then the token counts."""
    before = raw[max(0, at - 64) : at]
    backslashes = len(before) - len(before.rstrip(b"\\"))
    return backslashes > 0 and backslashes % 2 == 0


def _values(raw: bytes) -> list[Span]:
    """Where JSON text has values whose key is the name of a credential, such as `password`."""
    spans: list[Span] = []
    at = 0
    while at < len(raw):
        found = _FIELD.search(raw, at, at + _STEP + _LONGEST_FIELD)
        if found is None:
            at += _STEP
            continue
        own = len(found[1])  # backslashes of the quotes around both: 0, and 1, 3, 7 in texts of texts
        at = found.end()
        if own & (own + 1) == 0:
            at = _value_end(raw, at, own)
            if at > found.end():
                spans.append((found.end(), at, _VALUE))
    return spans


def _value_end(raw: bytes, begins: int, own: int) -> int:
    """Where the string ends that begins here and whose quotes have `own` backslashes; `begins` if it has no end. In
    its own text a quote ends a string if an even number of backslashes is before it. Each of these, and the quote, got
    its backslashes with every text around."""
    at = begins
    while (quote := raw.find(b'"', at)) >= 0:
        piece = raw[at:quote]
        backslashes = len(piece) - len(piece.rstrip(b"\\"))
        if backslashes < own or (backslashes - own) // (own + 1) % 2 == 0:
            return quote - min(backslashes, own)
        at = quote + 1
    return begins


def _without(raw: bytes, found: list[list[Span]]) -> bytes:
    """The text with the spans replaced; those that overlap become one. Each list is in order."""
    out = bytearray()
    done = 0
    for begin, end, instead in merge(*found):
        if begin >= done:
            out += raw[done:begin]
            out += instead
        done = max(done, end)
    out += raw[done:]
    return bytes(out)
