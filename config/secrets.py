"""Removes secrets from texts: all known secrets, and the login in any URL.

A secret can leak in texts that are not ours: an HTTP library quotes a header that it cannot send, or a program prints
an address that it cannot reach. Nobody can foresee the form of such a text, but the secrets are known: the values that
the server's definition resolves to (`secrets_of` in `masking`), and the variables of our own environment whose
name is that of a secret. So every text of a server, a library or the system about a failure passes through here, once,
on its way into errors and events. What looks like a credential is removed there, too (`scrubbing`). Results are
scrubbed on their own way, where that is asked for. Which of these values are credentials is asked in one place
(`credentials`).

A secret is found unchanged and as programs quote it: escaped, percent-encoded, cut short. One that could be part of an
ordinary word is removed only where it stands alone. A secret of less than six characters cannot be told from ordinary
text, so it stays.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, cast
from urllib.parse import quote, unquote

import attrs

from ..protocol.address import Address
from ..protocol.safe_text import printable, unhidden
from .byte_words import Starts, Words
from .credentials import LEAST, SCHEME, credentials_in, is_common, names_credential
from .scrubbing import (
    SMALL,
    beginnings,
    is_one_in,
    is_suspect,
    scrubbed,
    scrubbed_text,
    stands_alone,
    without_known,
)

REDACTED: Final = "***"
_ANCHOR: Final = 12  # a longer secret is found by its first characters, even if it is cut off later
_STARTS: Final = 16  # so many different answers of a server's commands are known at once
_STUB: Final = 4  # this many characters of a secret are recognised at the end of a text that was cut
_BREAK: Final = re.compile(r"(\s*\n\s*|\s+—\s+)")  # between two lines, also of those that an error quotes
_CUT: Final = re.compile(r"\"?…|(?=\s*\n|\s+—\s)|\Z")
_REST: Final = 8  # characters of the end of a secret that are recognised at the beginning of a line
_LOGIN: Final = re.compile(r"(?<=://)[^\s/?#'\"<>]{1,256}@")


def without_logins(text: str) -> str:
    """`text` without the user and the password of any URL in it: `http://***@host`."""
    return _LOGIN.sub(f"{REDACTED}@", text) if "://" in text else text


def in_words(error: BaseException) -> str:
    """The kind and the text of somebody else's exception, for use in our texts. Never its `repr`, which may show data:
    that of a UnicodeEncodeError shows the whole text that could not be encoded."""
    said = str(error).strip()
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


@attrs.frozen
class Hidden:
    """A value that may be secret, and its name. `known`: its source holds only credentials."""

    name: str
    value: str = attrs.field(repr=False)
    known: bool = False


_changes = 0


def changes() -> int:
    """How often a secret has become known in this process. What was made without secrets before may have to lose
    more."""
    return _changes


def may_hold_one(text: str) -> bool:
    """Whether the text is long enough to hold a secret that is looked for."""
    return len(text) >= LEAST


class Secrets:
    """Known secrets, and texts without them. `others`: further secrets, which are removed everywhere."""

    __slots__ = ("_begin", "_common", "_in_json", "_longest", "_others", "_run_on", "_spellings", "_stubs")

    def __init__(self, found: Iterable[Hidden] = (), others: Secrets | None = None) -> None:
        self._others = others
        self._spellings: dict[str, str] = {}  # how it may be spelled -> by what it is found
        self._common: frozenset[str] = frozenset()  # those that are removed only where they stand alone
        self._stubs: frozenset[str] = frozenset()
        self._longest = 0  # characters of a spelling
        self._run_on: tuple[
            str, ...
        ] = ()  # those that are no common ones, as they are looked for over ends of lines
        self._in_json: tuple[bytes, ...] | None = None
        self._begin: tuple[bytes, ...] = ()  # how those begin
        self.learn(found)

    def __repr__(self) -> str:
        return f"<Secrets: {len(self._spellings)} spellings>"

    def learn(self, found: Iterable[Hidden]) -> None:
        """Add these secrets. The longest are searched first, because one may be part of another."""
        told = {
            spelling for each in found for value in credentials_of(each) for spelling in _spellings(value)
        }
        if not told <= self._spellings.keys():
            global _changes
            _changes += 1
            self._know(told)

    def _know(self, told: set[str]) -> None:
        longest_first = sorted(told | self._spellings.keys(), key=len, reverse=True)
        self._spellings = {spelling: spelling[:_ANCHOR] for spelling in longest_first}
        self._common = frozenset(filter(is_common, longest_first))
        self._stubs = frozenset(spelling[:_STUB] for spelling in longest_first)
        self._longest = max(map(len, longest_first), default=0)
        run_on = {_run_on(each) for each in longest_first if each not in self._common}
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
        text = self._without_broken(text)
        if "\\" in text:
            text = self._without_escaped(text)
        return scrubbed_text(without_logins(self._without_rests(self._without_known(text))))

    def _without_broken(self, text: str) -> str:
        """The text without secrets that go on in the next line."""
        run_on = _run_on(text) if "\n" in text or "—" in text else ""
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
        return text if self._others is None else self._others._without_broken(text)

    def _in_one(self, text: str, run_on: str) -> list[tuple[int, int]]:
        """Where secrets are in a text, whatever spaces and ends of lines are in them; the last ones first, and no two
        overlap."""
        places = [at for at, character in enumerate(text) if _run_on(character)]
        found = {(at, at + len(each)) for each in self._run_on for at in _places(run_on, each)}
        spans: list[tuple[int, int]] = []
        for begins, ends in sorted(found, reverse=True):
            while spans and spans[-1][0] < ends:
                ends = max(ends, spans.pop()[1])
            spans.append((begins, ends))
        return [(places[begins], places[ends - 1] + 1) for begins, ends in spans]

    def _without_rests(self, text: str) -> str:
        """The text without ends of secrets at the beginning of its lines; their beginnings may be in a line that is not
        quoted."""
        for spelling in self._spellings:
            half = len(spelling) // 2
            if spelling not in self._common and len(spelling) - half >= _REST and spelling[half:] in text:
                lines = (_without_rest(line, spelling[:half], spelling[half:]) for line in _BREAK.split(text))
                text = "".join(lines)
        return text if self._others is None else self._others._without_rests(text)

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
            found = {each for spelling in self._spellings for each in _in_json(spelling)}
            spelled = tuple(sorted(each.encode(errors="surrogatepass") for each in found))
            self._begin = beginnings(spelled)  # first: a thread may look at both
            self._in_json = spelled
        return self._in_json if self._others is None else self._in_json + self._others.in_json()

    def scrub(self, raw: bytes) -> bytes:
        """The JSON text of a result without these secrets, and without what looks like a credential."""
        if len(raw) <= SMALL and not self.may_be_in(raw):
            return raw  # as nearly every result of a call
        return scrubbed(raw, self.in_json())

    def may_be_in(self, raw: bytes) -> bool:
        """Whether a JSON text may have to lose something: a quick test for a small one."""
        if is_suspect(raw):
            return True
        secrets: Secrets | None = self
        while secrets is not None:
            if secrets._in_json is None:
                secrets.in_json()
            for begin in secrets._begin:
                if raw.find(begin) >= 0:  # `in` takes four times as long
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
        return "://" in text or self._may_stand_in(text) or scrubbed_text(text) is not text

    def _may_stand_in(self, text: str) -> bool:
        found = any(anchor in text for anchor in self._spellings.values())
        return found or (self._others is not None and self._others._may_stand_in(text))

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

    def _without_known(self, text: str) -> str:
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
        if any(stub in text for stub in self._stubs):
            text = self._without_stubs(text)
        return text if self._others is None else self._others._without_known(text)


class SecretIndex:
    """Secrets of many, without common words, to be looked for all at once: what that costs does not grow with their
    number. It is only added to, so another thread may look for those that are in it already."""

    __slots__ = ("_in_json", "_in_text", "_known")

    def __init__(self) -> None:
        self._known: dict[str, list[bytes]] = {}  # spelling -> how it is spelled in JSON
        self._in_json = Words()
        self._in_text = Starts()

    def __len__(self) -> int:
        return len(self._known)

    def add(self, secrets: Secrets, before: SecretIndex | None = None) -> None:
        """`before`: an index that may know how they are spelled in JSON, which takes most of the time."""
        for spelling in secrets.spellings:
            if spelling not in self._known and not is_common(spelling):
                written = None if before is None else before._known.get(spelling)
                self._add(spelling, written or [_raw(each) for each in _in_json(spelling)])

    def _add(self, spelling: str, written: list[bytes]) -> None:
        self._known[spelling] = written
        for each in written:
            self._in_json.add(each, spelling)
        rest, run_on = spelling[len(spelling) // 2 :], _run_on(spelling)
        self._in_text.add(_raw(spelling), spelling)
        if len(rest) >= _REST:
            self._in_text.add(_raw(rest), spelling)
        if may_hold_one(run_on):
            self._in_text.add(_raw(run_on), spelling)

    def in_json(self, raw: bytes) -> list[bytes]:
        """The spellings that are in a JSON text."""
        return [word for word, _ in self._in_json.found_in(raw)]

    def near(self, text: str) -> set[str]:
        """The spellings of which something may be in a text: all that `Secrets.without` looks for begins as a spelling
        does, or its second half."""
        found = self._in_text.found_in(_raw(f"{text}\n{_run_on(text)}"))
        if "\\" in text:
            found |= {
                spelling for _, spelling in self._in_json.found_in(_raw(json.dumps(text, ensure_ascii=False)))
            }
        return found


class SecretsOfAll:
    """The secrets of a server or session, and those of all others; of them no common word. They stay the same when
    a session ends."""

    __slots__ = ("_index", "_own")

    def __init__(self, own: Secrets, index: SecretIndex) -> None:
        self._own = own
        self._index = index

    def without(self, text: str) -> str:
        """As `Secrets.without`."""
        found = self._index.near(text)
        return (self._own.spelled(found) if found else self._own).without(text)

    def scrub(self, raw: bytes) -> bytes:
        """As `Secrets.scrub`."""
        if len(raw) <= SMALL and not self.may_be_in(raw):
            return raw
        return scrubbed(raw, (*self._own.in_json(), *self._index.in_json(raw)))

    def may_be_in(self, raw: bytes) -> bool:
        """As `Secrets.may_be_in`."""
        return self._own.may_be_in(raw) or bool(self._index.in_json(raw))


class KnownSecrets:
    """The secrets of a room by server, and those of sessions by session and server, which are forgotten with the
    session. `everywhere`: secrets that belong to no particular server."""

    def __init__(self, everywhere: Iterable[Hidden] = ()) -> None:
        self._everywhere = Secrets(everywhere)
        self._of: dict[tuple[str, str | None], Secrets] = {}
        self._seen: dict[tuple[str, str | None], object] = {}
        self._answers: dict[tuple[str, str | None], tuple[tuple[Hidden, ...], ...]] = {}
        self._with_answers: dict[tuple[str, str | None], Secrets] = {}
        self._index: SecretIndex | None = None  # of all, once somebody asks for it
        self._changed: set[Secrets] = set()  # what may have more than is in the index
        self._gone = 0  # spellings in the index that were forgotten

    def copy(self) -> KnownSecrets:
        """What is known now. Whatever is forgotten later is still in it."""
        known = KnownSecrets()
        known._everywhere = self._everywhere
        known._of, known._seen = {**self._of}, {**self._seen}
        known._answers, known._with_answers = {**self._answers}, {**self._with_answers}
        return known

    def remember(self, server: str, session: str, secrets: Secrets) -> None:
        """Know again what a session had, of which another one of the same name may be there."""
        key = server, session
        self._of[key] = self._of.get(key, self._everywhere).beside(secrets)
        self._changed.add(self._of[key])

    def learn(
        self,
        server: str,
        definition: object,
        find: Callable[[], Iterable[Hidden]],
        session: str | None = None,
    ) -> None:
        """A server is about to be started by this definition, for this session or for none. The secrets of an earlier
        definition stay known."""
        key = server, session
        if self._seen.get(key) is not definition:
            self._seen[key] = definition
            if key not in self._of:
                self._of[key] = Secrets(others=self._everywhere)
            self._of[key].learn(find())
            self._changed.add(self._of[key])

    def add(self, server: str, session: str | None, found: Iterable[Hidden]) -> None:
        """Add secrets that are sent to the server at this address, such as the tokens of a login."""
        known = self._of.setdefault((server, session), Secrets(others=self._everywhere))
        known.learn(found)
        self._changed.add(known)

    def answered(self, server: str, found: tuple[Hidden, ...], session: str | None = None) -> None:
        """Add the values that commands have just given for a start of this server. Those of its last starts stay known;
        older ones are forgotten."""
        key = server, session
        if found not in (known := self._answers.get(key, ())):
            self._answers[key] = known = (*known[-_STARTS + 1 :], found)
            old = self._with_answers.get(key)
            new = Secrets([each for one in known for each in one], self._of.get(key))
            self._with_answers[key] = new
            self._changed.add(new)
            if old is not None:
                self._changed.discard(old)
                self._gone += len({*old.spellings} - {*new.spellings})

    def forget(self, session: str) -> dict[str, Secrets]:
        """Forget the secrets of a session, because it and everything started for it have ended. Returns them, by
        server."""
        found: dict[str, Secrets] = {}
        for known in (self._of, self._with_answers):
            for (server, of_session), secrets in known.items():
                if of_session == session:
                    found[server] = secrets
                    self._changed.discard(secrets)
                    self._gone += len(secrets.spellings)
        for known in (self._of, self._seen, self._answers, self._with_answers):
            for key in [key for key in known if key[1] == session]:
                del known[key]
        return found

    def of(self, address: Address | None) -> Secrets:
        """The secrets that a text about the server at this address must not show."""
        return self._everywhere if address is None else self.of_server(address.server, address.session)

    def of_server(self, server: str, session: str | None) -> Secrets:
        """The secrets that a text about the server must not show to this session; None: to anybody."""
        for key in (server, session), (server, None):
            if found := self._with_answers.get(key) or self._of.get(key):
                return found
        return self._everywhere

    def of_all(self, server: str, session: str | None) -> SecretsOfAll:
        """The same, and those of all other servers and sessions: for what is kept, and may be shown to anybody. A
        common word is a secret of its own server alone."""
        return SecretsOfAll(self.of_server(server, session), self._of_everybody())

    def _of_everybody(self) -> SecretIndex:
        """The index, with what has become known since. It is made anew when half of it was forgotten: so a session that
        ends costs no search."""
        before = self._index
        if before is None or self._gone > len(before) // 2:
            self._index, self._gone = SecretIndex(), 0
            present = (self._everywhere, *self._of.values(), *self._with_answers.values())
            self._changed = {each for secrets in present for each in secrets.chain()}
        index = self._index
        assert index is not None
        while self._changed:
            index.add(self._changed.pop(), before)
        return index


def of_environment(environ: Mapping[str, str]) -> list[Hidden]:
    """The variables of our environment with the name of a secret, and the logins of URLs in other variables."""
    found = [Hidden(name, value) for name, value in environ.items() if names_credential(name)]
    logins = ((name, _LOGIN.search(value)) for name, value in environ.items() if "://" in value)
    return [*found, *(Hidden(f"the login in {name}", login[0][:-1]) for name, login in logins if login)]


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


def credentials_of(hidden: Hidden) -> set[str]:
    """The credentials in a value, and the password of each login in it."""
    text = hidden.value.strip()
    found = {*credentials_in(text, hidden.name, known=hidden.known)}
    bare = SCHEME.sub("", text, count=1)
    login = _decoded(bare) if text[:6].lower() == "basic " else bare
    is_login = hidden.name == "login" or login != bare or hidden.name.startswith("the login")
    for each in (*([login] if is_login else ()), *(found[0][:-1] for found in _LOGIN.finditer(text))):
        user, colon, password = unquote(each).partition(":")
        found |= {each, password if colon else user, base64.b64encode(each.encode()).decode()}
    return {value for value in found if len(value) >= LEAST}


def _raw(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _run_on(text: str) -> str:
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


def _decoded(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode()
    except (binascii.Error, ValueError):
        return text


def _as_dotnet(text: str) -> str:
    return _DOTNET.sub(_numbered, json.dumps(text)[1:-1])


def _numbered(found: re.Match[str]) -> str:
    said = found[0]
    return said if said == "\\\\" else f"\\u{said[2:].upper() or f'{ord(said[-1]):04X}'}"


# What .NET writes as `\uXXXX`; and an escaped backslash, which it does not.
_DOTNET: Final = re.compile(r"\\\\|\\u[0-9a-f]{4}|\\\"|[&'+<>`\x7f]")
_STYLES: Final[tuple[Callable[[str], str], ...]] = (
    lambda text: json.dumps(text)[1:-1],
    lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    lambda text: json.dumps(text)[1:-1].replace("/", "\\/"),
    lambda text: re.sub(
        "[<>&]", lambda each: f"\\u{ord(each[0]):04x}", json.dumps(text, ensure_ascii=False)[1:-1]
    ),
    _as_dotnet,
)


def _in_json(text: str) -> set[str]:
    """The text as JSON writers spell it: plain, all ASCII, with slashes escaped (PHP), fit for HTML (Go, .NET); and a
    text in such a text, up to three deep."""
    found: set[str] = set()
    last = {text}
    for _ in range(3):
        last = {style(each) for each in last for style in _STYLES}
        found |= last
    return found


def _spellings(value: str) -> set[str]:
    """The forms in which programs quote a value, and in which we show it."""
    found = {value, printable(value), unhidden(value), quote(value, safe=""), quote(value), unquote(value)}
    found |= {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    found |= {repr(value)[1:-1], ascii(value)[1:-1], repr(value.encode(errors="replace"))[2:-1]}
    return {spelling for spelling in found if len(spelling) >= LEAST}
