"""Takes credentials out of texts: known secrets, the login in any URL, and what looks like a credential.

What is a credential is asked in `credentials`, and which secrets are known in `known_secrets`. Where a configuration is
printed more is hidden, by `masking`. There are two ways through here.

**Results** are scrubbed where that is asked for (`Secrets.scrub`): the JSON text of a result, before anybody reads,
cuts or keeps it. So one pass covers its text, its structured content, its `_meta`, and JSON inside its texts, and no
way out is forgotten. What is left is JSON again: no escape is split, and a number with a secret in it becomes a string.
Three things are removed:

* Known secrets (`Secrets.in_json`), as JSON writers spell them, up to three texts inside one another.
  One that is common (`is_common`) goes only where it stands alone: not in a longer word, a path or the name of a host.
* Words in the form of a token: those of GitHub, Slack, AWS and the like, and JSON web tokens.
* The value of a member with the name of a credential (`"password": "…"`), in JSON at any depth, if it has the form of
  one (`is_shaped`); with `by_name` whatever it looks like.

The forms are those of MetaMCP (its table of patterns), and more of each kind. Unlike there, `sk-` must begin a word, so
that "risk-assessment-of-everything" stays, and what follows must not be words. What stands in base64 (an image, a file)
is not looked at: in a megabyte of it some form is found by chance every fortieth time, and the file would be damaged.

A result is untrusted and can be large. So each byte is looked at a bounded number of times, and no step keeps the
interpreter's lock for long: a thread looks through a long result, and the loop goes on meanwhile. Tokens are looked for
only in long words: passing over the short ones is one expression for all forms, and ten times as fast as a search for
each. Most results are small and hide nothing. One search tells of such a result that it has none of the marks with
which a token begins, and no member with the form of a credential's, in a small part of the time that the whole takes.

**Texts that are not ours** lose more (`Secrets.without`), once, on their way into errors and events: a secret can leak
there in a form that nobody can foresee. An HTTP library quotes a header that it cannot send, a program prints an
address that it cannot reach. There a secret is found unchanged and as programs quote it: escaped, percent-encoded, cut
short, over the end of a line. One of less than six characters cannot be told from ordinary text, so it stays.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from heapq import merge
from typing import Any, Final, cast
from urllib.parse import quote, unquote

import msgspec

from ..protocol.lazy_patterns import lazy_pattern
from ..protocol.safe_text import printable, unhidden
from .credentials import (
    LEAST,
    LOGIN,
    MEMBERS,
    TOKENS,
    SecretValue,
    is_common,
    is_shaped,
    is_token,
)

REDACTED: Final = "***"
_ANCHOR: Final = 12  # a longer secret is found by its first characters, even if it is cut off later
STUB: Final = 4  # this many characters of a secret are recognised at the end of a text that was cut
REST: Final = 8  # characters of the end of a secret that are recognised at the beginning of a line
_BREAK: Final = lazy_pattern(r"(\s*\n\s*|\s+—\s+)")  # between two lines, also of those that an error quotes
_CUT: Final = lazy_pattern(r"\"?…|(?=\s*\n|\s+—\s)|\Z")
STARS: Final = REDACTED.encode()
_KEY, _JWT, _VALUE = b"[REDACTED:KEY]", b"[REDACTED:JWT]", b"[REDACTED:VALUE]"
_STEP: Final = 1 << 15  # bytes passed over at once
_BEGINS: Final = 6  # bytes of a known secret by which it is looked for first
_NEVER: Final = b"\xff"  # in no text
SMALL: Final = 1 << 16  # bytes in which the marks are looked for first, in one go
_LEAST_WORD: Final = 12
_SHORT_WORDS: Final = lazy_pattern(rb"(?:[\w-]{0,%d}+[^\w-]++)*+" % (_LEAST_WORD - 1))
_WORD: Final = lazy_pattern(rb"[\w-]{%d,16384}+" % _LEAST_WORD)
_TOKEN: Final = lazy_pattern(TOKENS.encode())
_LONGEST_TOKEN: Final = 4096  # characters; a longer run of those of base64 is data
_BASE64: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=_-"
# One of these is in whatever the expression above and the one below match. Each begins with a character that is rare in
# texts, and to look for that first is ten times as fast as one expression for all. They are looked for in a text with a
# character for each byte (latin-1), because that takes a fourth of what it takes in the bytes.
_MARKS: Final = tuple(
    (begin, lazy_pattern(begin + rest))
    for begin, rest in (
        ("-", r"(?:(?<=sk-)|(?<=pat-))"),
        ("_", r"(?:(?<=h[pousr]_)|(?<=b_)pat_|(?<=m_)|(?<=f_)|(?<=k_)live_)"),
        ("xox", ""),  # whole, for an x is in every "text"
        ("A", r"(?:[KS]IA|Iza)"),
        ("J", r"(?<=eyJ)"),
    )
)
_WEB_TOKEN: Final = lazy_pattern(rb"eyJ[\w-]{10,}\Z")  # the first of its parts
_PART: Final = lazy_pattern(rb"\.[\w-]{10,16384}+")
# Escapes of JSON, of URLs, and of terminals (colours): no part of the word behind them.
_ESCAPE: Final = lazy_pattern(
    rb"(?<=\\)(?:[nrtbf]|u[0-9A-Fa-f]{4})|(?<=%)[0-9A-Fa-f]{2}|(?<=[\[;])[0-9]{0,3}[mK]", re.ASCII
)
# What stands before and behind something that is part of a longer word, and what before it only looks so.
_BEFORE: Final = lazy_pattern(rb"(?:[\w/]|\w[.-])\Z")
_BEHIND: Final = lazy_pattern(rb"[\w/]|[.-]\w")
_ESCAPED: Final = lazy_pattern(
    rb"(?:\\(?:[nrtbf]|[ux][0-9A-Fa-f]{2,4})|%[0-9A-Fa-f]{2}|[\[;][0-9]{0,3}[mK])\Z", re.ASCII
)
_NEAR: Final = 8  # characters before it that tell


def _spelled(names: Collection[bytes]) -> bytes:
    """An expression for these names, in any case and with any dashes. It tells at the first letter that most other
    names are none of them."""
    rests: dict[bytes, list[bytes]] = {}
    for name in names:
        if name:
            rests.setdefault(name[:1], []).append(name[1:])
    each = [b"[%b%b][-_]*+%b" % (first, first.upper(), _spelled(rest)) for first, rest in rests.items()]
    return b"(?:%b)" % b"|".join(each) + (b"?" if b"" in names else b"") if each else b""


_FIRST: Final = b"".join(sorted({name[:1] + name[:1].upper() for name in MEMBERS}))
_FIELD: Final = lazy_pattern(
    rb'"(?=[%b_-][A-Za-z_-]{4,23}[\\"])[-_]*+' % _FIRST
    + _spelled(MEMBERS)
    + rb'(\\{0,15})"[ \t]{0,8}:[ \t]{0,8}\1"'
)
_FIELD_BY_BYTE: Final = lazy_pattern(_FIELD.pattern.decode())
_LONGEST_FIELD: Final = 80  # bytes that these expressions match at most
# What JSON has outside of its strings. A known secret of only these may be there, too.
_BARE: Final = lazy_pattern(rb"[\s\d.,:eE+\-\[\]{}truefalsn]+")
# Names of members in results of the protocol, as long as a secret may be. A known secret that is one of these words
# stays where it is such a name: it tells nobody anything there, and without the name the result could not be read.
_SHAPES: Final = frozenset(
    b"annotations arguments audience completion content contents description inputRequests isError lastModified"
    b" message messages mimeType nextCursor priority requestState resource resultType structuredContent values".split()
)
_NAME_ENDS: Final = lazy_pattern(rb'"\s*:')
_IN_NUMBERS: Final = b"0123456789.eE+-"
_NUMBER: Final = lazy_pattern(rb"[\d.eE+-]+")
Span = tuple[int, int, bytes]  # from, to, what takes its place


class StringPosition(msgspec.Struct, frozen=True):
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


def scrubbed(raw: bytes, known: Iterable[bytes] = (), *, by_name: bool = False) -> bytes:
    """The text without credentials; the same object if there are none. `known`: further byte strings to remove.
    `by_name`: also each value of a member with the name of a credential."""
    if len(raw) <= SMALL and not is_suspect(raw.decode("latin-1")) and not (known and is_one_in(raw, known)):
        return raw  # as nearly every result of a call
    found = [_secrets(raw, secret) for secret in _standing_in(raw, known)]
    spans = [each for each in (*found, _tokens(raw), _values(raw, by_name=by_name)) if each]
    return _without(raw, spans) if spans else raw


def is_suspect(text: str) -> bool:
    """Whether a JSON text may have to lose something for its form: a quick test. `text`: a character for each byte."""
    for begin, mark in _MARKS:
        if begin in text and mark.search(text) is not None:
            return True
    return _FIELD_BY_BYTE.search(text) is not None


def without_known(raw: bytes, known: Iterable[bytes], *, also_common: bool) -> bytes:
    """The text without these known secrets; the same object if it has none. What only looks like a credential stays.
    `also_common`: those that are common words, too."""
    wanted = (each for each in _standing_in(raw, known) if also_common or not _is_common(each))
    spans = [found for each in wanted if (found := _secrets(raw, each))]
    return _without(raw, spans) if spans else raw


def beginnings(known: Iterable[bytes]) -> tuple[str, ...]:
    """By what these known secrets are looked for first, a character for each byte: few, for spellings of one secret
    mostly begin alike."""
    return tuple(sorted({secret[:_BEGINS].decode("latin-1") for secret in known}))


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


def scrubbed_text(text: str, *, by_name: bool = False) -> str:
    """A text that is not JSON without credentials, by their form; `by_name` as in `scrubbed`."""
    raw = text.encode(errors="surrogatepass")
    found = scrubbed(raw, by_name=by_name)
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
    passed = StringPosition(0, inside=False)
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


def _passing(raw: bytes, passed: StringPosition, to: int) -> StringPosition:
    """Pass over whole strings, from `passed` on, to the place `to`."""
    at = passed.at
    if to < at:
        return passed
    while (quote := raw.find(b'"', at, to)) >= 0:
        at = _value_end(raw, quote + 1, 0) + 1
        if at > to:
            return StringPosition(at, inside=True)
    return StringPosition(to, inside=False)


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
    return [
        (begins + token.start(), begins + token.end(), _KEY)
        for token in found
        if is_token(token[0].decode(errors="replace")) and not _is_in_base64(raw, begins, end)
    ]


def _is_in_base64(raw: bytes, begins: int, end: int) -> bool:
    """Whether this word stands in a run of the characters of base64 that is too long for a token. (PHP escapes the
    slashes of its JSON.)"""
    before = raw[max(0, begins - _LONGEST_TOKEN) : begins].replace(rb"\/", b"/")
    after = raw[end : end + _LONGEST_TOKEN].replace(rb"\/", b"/")
    around = len(before) - len(before.rstrip(_BASE64)) + len(after) - len(after.lstrip(_BASE64))
    return around + end - begins > _LONGEST_TOKEN


def _may_be_a_letter(raw: bytes, at: int) -> bool:
    """Whether this letter, which follows a backslash, may be a letter of the text, because another backslash stands
    before that one. In a text inside a text this cannot be told from an escape; then the token counts."""
    before = raw[max(0, at - 64) : at]
    backslashes = len(before) - len(before.rstrip(b"\\"))
    return backslashes > 0 and backslashes % 2 == 0


def _values(raw: bytes, *, by_name: bool) -> list[Span]:
    """Where JSON text has credentials as values whose key is the name of one, such as `password`."""
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
            if at > found.end() and (by_name or is_shaped(_written(raw[found.end() : at], own))):
                spans.append((found.end(), at, _VALUE))
    return spans


def _written(value: bytes, own: int) -> str:
    """The beginning of a value as it is meant, without the escapes of JSON; `own` as in `_value_end`."""
    text = value[:_STEP].decode(errors="replace")
    while "\\" in text and own >= 0:
        try:
            text = json.loads(f'"{text}"', strict=False)
        except ValueError:  # cut inside an escape, or none
            break
        own = (own - 1) // 2 if own else -1
    return text


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


def without_logins(text: str) -> str:
    """`text` without the user and the password of any URL in it: `http://***@host`."""
    return LOGIN.sub(f"{REDACTED}@", text) if "://" in text else text


_changes = 0


def changes() -> int:
    """How often a secret has become known in this process. What was made without secrets before may have to lose
    more."""
    return _changes


def may_hold_one(text: str) -> bool:
    """Whether the text is long enough to hold a secret that is looked for."""
    return len(text) >= LEAST


class Secrets:
    """Known secrets, and texts without them. `others`: further secrets, which are removed everywhere. `by_name`: a
    result loses each value of a member with the name of a credential, too."""

    __slots__ = (
        "_begin",
        "_by_name",
        "_common",
        "_in_json",
        "_longest",
        "_others",
        "_run_on",
        "_spellings",
        "_stubs",
    )

    def __init__(
        self, found: Iterable[SecretValue] = (), others: Secrets | None = None, *, by_name: bool = False
    ) -> None:
        self._others = others
        self._by_name = by_name
        self._spellings: dict[str, str] = {}  # how it may be spelled -> by what it is found
        self._common: frozenset[str] = frozenset()  # those that are removed only where they stand alone
        self._stubs: frozenset[str] = frozenset()
        self._longest = 0  # characters of a spelling
        self._run_on: tuple[str, ...] = ()  # those that are no common ones, as they are over ends of lines
        self._in_json: tuple[bytes, ...] | None = None
        self._begin: tuple[str, ...] = ()  # how those begin
        self.learn(found)

    def __repr__(self) -> str:
        return f"<Secrets: {len(self._spellings)} spellings>"

    def learn(self, found: Iterable[SecretValue]) -> bool:
        """Add these secrets. The longest are searched first, because one may be part of another. Returns whether any of
        them is new."""
        told = {spelling for each in found for value in each.credentials() for spelling in _spellings(value)}
        if told <= self._spellings.keys():
            return False
        global _changes
        _changes += 1
        self._know(told)
        return True

    def _know(self, told: set[str]) -> None:
        longest_first = sorted(told | self._spellings.keys(), key=len, reverse=True)
        self._spellings = {spelling: spelling[:_ANCHOR] for spelling in longest_first}
        self._common = frozenset(filter(is_common, longest_first))
        self._stubs = frozenset(spelling[:STUB] for spelling in longest_first)
        self._longest = max(map(len, longest_first), default=0)
        run_on = {joined_lines(each) for each in longest_first if each not in self._common}
        self._run_on = tuple(filter(may_hold_one, run_on))
        self._in_json = None

    def beside(self, those: Secrets) -> Secrets:
        """These, and those others."""
        here = [*self.chain()]
        both = Secrets(others=self)
        both._know({spelling for each in those.chain() if each not in here for spelling in each._spellings})
        return both

    def spelled(self, spellings: Collection[str]) -> Secrets:
        """These, and secrets that are spelled so."""
        both = Secrets(others=self)
        both._know({*spellings})
        return both

    @property
    def spellings(self) -> Collection[str]:
        """Those of its own."""
        return self._spellings.keys()

    def chain(self) -> Iterator[Secrets]:
        each: Secrets | None = self
        while each is not None:
            yield each
            each = each._others

    def without(self, text: str) -> str:
        """`text` with every secret in it replaced, every login, and what looks like a credential."""
        if not text:
            return text
        chain = [*self.chain()]
        for secrets in chain:
            text = secrets._without_broken(text)
        if "\\" in text:
            text = self._without_escaped(text)
        for secrets in chain:
            text = secrets._without_own(text)
        for secrets in chain:
            text = secrets._without_rests(text)
        return scrubbed_text(without_logins(text))

    def _without_broken(self, text: str) -> str:
        """The text without secrets that go on in the next line."""
        run_on = joined_lines(text) if "\n" in text or "—" in text else ""
        spans = self._in_one(text, run_on) if any(each in run_on for each in self._run_on) else []
        if spans:
            pieces, begins = _BREAK.split(text), 0
            for place, piece in enumerate(pieces):
                ends = begins + len(piece)
                for start, end in spans if place % 2 == 0 else ():
                    if start < ends and end > begins and (start < begins or end > ends):
                        pieces[place] = _covered(pieces[place], start - begins, end - begins)
                begins = ends
            text = "".join(pieces)
        return text

    def _in_one(self, text: str, run_on: str) -> list[tuple[int, int]]:
        """Where secrets are in a text, whatever spaces and ends of lines are in them; the last ones first, and no two
        overlap."""
        places = [at for at, character in enumerate(text) if joined_lines(character)]
        found = {(at, at + len(each)) for each in self._run_on for at in _places(run_on, each)}
        spans: list[tuple[int, int]] = []
        for begins, ends in sorted(found, reverse=True):
            while spans and spans[-1][0] < ends:
                ends = max(ends, spans.pop()[1])
            spans.append((begins, ends))
        return [(places[begins], places[ends - 1] + 1) for begins, ends in spans]

    def _without_rests(self, text: str) -> str:
        """The text, in which no line begins with the end of a secret: a text that is quoted from somewhere may lack the
        line before, which has the rest of it."""
        for spelling in self._spellings:
            half = len(spelling) // 2
            if spelling not in self._common and len(spelling) - half >= REST and spelling[half:] in text:
                lines = (_without_rest(line, spelling[:half], spelling[half:]) for line in _BREAK.split(text))
                text = "".join(lines)
        return text

    def _without_escaped(self, text: str) -> str:
        """The text without secrets in JSON that it contains, also in texts inside that. They are found as in
        results."""
        raw = json.dumps(text, ensure_ascii=False).encode(errors="surrogatepass")
        found = scrubbed(raw, self.in_json())
        if found is raw:
            return text
        try:
            return json.loads(found.decode(errors="surrogatepass"))
        except ValueError:  # what was removed was half of an escape
            return REDACTED

    def in_json(self) -> tuple[bytes, ...]:
        """The spellings of the secrets in a JSON text, and in texts inside its texts."""
        if self._in_json is None:
            found = {each for spelling in self._spellings for each in spelled_in_json(spelling)}
            spelled = tuple(sorted(each.encode(errors="surrogatepass") for each in found))
            self._begin = beginnings(spelled)  # first: a thread may look at both
            self._in_json = spelled
        return self._in_json if self._others is None else self._in_json + self._others.in_json()

    def scrub(self, raw: bytes) -> bytes:
        """The JSON text of a result without these secrets, and without what looks like a credential."""
        if len(raw) <= SMALL and not self.may_be_in(raw):
            return raw  # as nearly every result of a call
        return scrubbed(raw, self.in_json(), by_name=self._by_name)

    def may_be_in(self, raw: bytes) -> bool:
        """Whether a JSON text may have to lose something: a quick test for a small one."""
        text = raw.decode("latin-1")
        if is_suspect(text):
            return True
        secrets: Secrets | None = self
        while secrets is not None:  # as `chain`, in half the time: nearly every result passes here
            if secrets._in_json is None:
                secrets.in_json()
            for begin in secrets._begin:
                if begin in text:
                    return True
            secrets = secrets._others
        return False

    def known_in(self, raw: bytes) -> bool:
        """Whether one of these secrets is in a JSON text. What only looks like a credential does not count."""
        return is_one_in(raw, self.in_json())

    def without_known(self, text: str, *, also_common: bool = False) -> str:
        """`text` without these secrets, as results lose them. What only looks like a credential stays, and so does a
        common word, unless `also_common`."""
        raw = json.dumps(text, ensure_ascii=False).encode(errors="surrogatepass")
        found = without_known(raw, self.in_json(), also_common=also_common)
        return text if found is raw else json.loads(found.decode(errors="surrogatepass"))

    def stand_in(self, text: str) -> bool:
        """Whether `text` may have to be changed: a quick test, even for long texts."""
        anchors = (anchor for secrets in self.chain() for anchor in secrets._spellings.values())
        return "://" in text or any(anchor in text for anchor in anchors) or scrubbed_text(text) is not text

    def without_any(self, value: Any) -> Any:
        """A JSON value with the secrets removed from every text in it."""
        if isinstance(value, str):
            return self.without(value)
        if isinstance(value, Mapping):
            items = cast("Mapping[Any, Any]", value).items()
            return {self.without_any(key): self.without_any(each) for key, each in items}
        if isinstance(value, list | tuple):
            return [self.without_any(each) for each in cast("Iterable[Any]", value)]
        return value

    def _without_stubs(self, text: str) -> str:
        """The text without the first characters of a secret at places where it was cut."""
        parts: list[str] = []
        done = 0
        for cut in _CUT.finditer(text):
            begins = max(done, cut.start() - self._longest)
            at = self._begun(text[begins : cut.start()], is_end="…" not in cut[0])
            if at >= 0:
                parts += (text[done : begins + at], REDACTED)
                done = cut.start()
        return "".join(parts) + text[done:]

    def _begun(self, end: str, *, is_end: bool) -> int:
        """Where a secret begins that was cut off at `end`; -1 if none does. A common word at the end of a text or line
        does not count."""
        for at in sorted({at for stub in self._stubs for at in _places(end, stub)}):
            begun = end[at:]
            is_alone = not is_end and _stands_alone(end, at, len(end))
            if any(
                spelling.startswith(begun) and (is_alone or spelling not in self._common)
                for spelling in self._spellings
            ):
                return at
        return -1

    def _without_own(self, text: str) -> str:
        for spelling, anchor in self._spellings.items():
            if anchor in text:
                text = (
                    _without_alone(text, spelling)
                    if spelling in self._common
                    else text.replace(spelling, REDACTED)
                )
        for spelling, anchor in self._spellings.items():
            if anchor in text and spelling not in self._common:
                text = _without_most_of(text, spelling, anchor)
        return self._without_stubs(text) if any(stub in text for stub in self._stubs) else text


def _without_most_of(text: str, spelling: str, anchor: str) -> str:
    """`text` without a `spelling` of a secret that was cut off in its second half."""
    parts: list[str] = []
    least = max(len(anchor), len(spelling) // 2)
    done, at = 0, text.find(anchor)
    while at >= 0:
        length = _common(text, at, spelling)
        if length >= least:
            parts += (text[done:at], REDACTED)
            done = at + length
        at = text.find(anchor, max(done, at + 1))
    return "".join(parts) + text[done:]


def _common(text: str, at: int, spelling: str) -> int:
    if text.startswith(spelling, at):
        return len(spelling)
    pairs = zip(text[at : at + len(spelling)], spelling, strict=False)
    return next((length for length, (one, other) in enumerate(pairs) if one != other), len(text) - at)


def joined_lines(text: str) -> str:
    """The text without the characters that may stand between two lines of one secret."""
    return "".join(text.replace("—", " ").split())


def _places(text: str, part: str) -> Iterator[int]:
    at = text.find(part)
    while at >= 0:
        yield at
        at = text.find(part, at + 1)


def _without_rest(line: str, begun: str, rest: str) -> str:
    """The line without the end of a secret that it begins with. `begun` and `rest` are the two halves of the secret."""
    at = line.find(rest, 0, len(begun) + len(rest))
    return REDACTED + line[at + len(rest) :] if at >= 0 and begun.endswith(line[:at]) else line


def _covered(line: str, begins: int, end: int) -> str:
    return line[: max(0, begins)] + REDACTED + line[min(len(line), end) :]


def _stands_alone(text: str, begins: int, end: int) -> bool:
    before = text[max(0, begins - _ANCHOR) : begins].encode(errors="replace")
    return stands_alone(
        before + text[begins : end + 2].encode(errors="replace"), len(before), len(before) + end - begins
    )


def _without_alone(text: str, spelling: str) -> str:
    """`text` without this spelling of a secret, except where the spelling is part of a longer word."""
    parts: list[str] = []
    done, at = 0, text.find(spelling)
    while at >= 0:
        end = at + len(spelling)
        if _stands_alone(text, at, end):
            parts += (text[done:at], REDACTED)
            done = end
        at = text.find(spelling, end)
    return "".join(parts) + text[done:]


def _as_dotnet(text: str) -> str:
    return _DOTNET.sub(_numbered, json.dumps(text)[1:-1])


def _numbered(found: re.Match[str]) -> str:
    said = found[0]
    return said if said == "\\\\" else f"\\u{said[2:].upper() or f'{ord(said[-1]):04X}'}"


# What .NET writes as `\uXXXX`; and an escaped backslash, which it does not.
_DOTNET: Final = lazy_pattern(r"\\\\|\\u[0-9a-f]{4}|\\\"|[&'+<>`\x7f]")
_STYLES: Final[tuple[Callable[[str], str], ...]] = (
    lambda text: json.dumps(text)[1:-1],
    lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    lambda text: json.dumps(text)[1:-1].replace("/", "\\/"),
    lambda text: re.sub(
        "[<>&]", lambda each: f"\\u{ord(each[0]):04x}", json.dumps(text, ensure_ascii=False)[1:-1]
    ),
    _as_dotnet,
)


def spelled_in_json(text: str) -> set[str]:
    """The text as JSON writers spell it: plain, all ASCII, with slashes escaped (PHP), fit for HTML (Go, .NET); and a
    text in such a text, up to three deep."""
    found: set[str] = set()
    last = {text}
    for _ in range(3):
        last = {style(each) for each in last for style in _STYLES}
        found |= last
    return found


def _bytes_of(value: str) -> bytes:
    """As programs write it. A variable that is not UTF-8 has a half character for each odd byte."""
    try:
        return value.encode(errors="surrogateescape")
    except UnicodeEncodeError:  # a file of JSON may have any
        return value.encode(errors="surrogatepass")


def _spellings(value: str) -> set[str]:
    """The forms in which programs quote a value, and in which we show it."""
    raw = _bytes_of(value)
    found = {value, printable(value), unhidden(value), quote(raw, safe=""), quote(raw), unquote(value)}
    found |= {raw.decode(errors="replace")}  # as what is not UTF-8 is read
    found |= {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    found |= {repr(value)[1:-1], ascii(value)[1:-1], repr(raw)[2:-1]}
    return {spelling for spelling in found if len(spelling) >= LEAST}
