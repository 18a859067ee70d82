"""The secrets that are known: of each server and session of a room, and of all of them together.

A secret is known from its source: the values that a server's definition resolves to (`secrets_of` in `masking`), what
its commands and its login have given, and the variables of our own environment whose name is that of a secret. Those of
a session are forgotten with it. How they are taken out of a text says `scrubbing`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Final

from ..protocol.address import Address
from .credentials import SecretValue, is_common
from .scrubbing import (
    REST,
    SMALL,
    STUB,
    Secrets,
    joined_lines,
    may_hold_one,
    scrubbed,
    scrubbed_text,
    spelled_in_json,
)

if TYPE_CHECKING:
    from ahocorasick_rs import BytesAhoCorasick

# So many different answers of a server's commands are known at once, and so many tokens of a caller.
_LAST: Final = 16
_AUTOMATON: Final = 1 << 14  # words of one: some twenty milliseconds to make it
_LOOK: Final = 1 << 16  # bytes that are looked at while no other thread can run


class WordIndex:
    """Looks for thousands of byte strings in a text at once, by automata (Aho-Corasick). They are made anew for what is
    added, the small ones with it and the large ones never, so one more word does not cost what all of them did.

    It is only added to, so another thread may look meanwhile. A text is looked at in steps, because nothing else runs
    during one.

    Rejected: `re2.Set`, which cannot be made for 30,000 words, and takes five times as long to make for 3,000; one
    expression for all words, which `re` tries one after another at each place; `Implementation.DFA`, which the library
    takes for few words: for two secrets of 6 kB that repeat themselves it was made for four seconds, in which nothing
    else ran.
    """

    __slots__ = ("_automata", "_longest", "_new", "_of")

    def __init__(self) -> None:
        self._of: dict[bytes, list[str]] = {}
        self._longest = 0
        self._new: list[bytes] = []
        self._automata: tuple[tuple[BytesAhoCorasick, list[bytes]], ...] = ()

    def add(self, word: bytes, of: str) -> None:
        """It is found from the next `build` on. `of`: what it tells of."""
        known = self._of.setdefault(word, [])
        if not known:
            self._new.append(word)
            self._longest = max(self._longest, len(word))
        known.append(of)

    def build(self) -> None:
        from ahocorasick_rs import BytesAhoCorasick, Implementation

        kind = Implementation.ContiguousNFA
        new, self._new, automata = self._new, [], [*self._automata]
        while new and automata and len(automata[-1][1]) <= len(new) <= _AUTOMATON // 2:
            new += automata.pop()[1]
        pieces = (new[at : at + _AUTOMATON] for at in range(0, len(new), _AUTOMATON))
        self._automata = (
            *automata,
            *((BytesAhoCorasick(words, implementation=kind), words) for words in pieces),
        )

    def words_in(self, raw: bytes) -> set[bytes]:
        found: set[bytes] = set()
        for automaton, words in self._automata:
            for begins in range(0, len(raw), _LOOK):
                piece = raw[begins : begins + _LOOK + self._longest]
                found |= {
                    words[at] for at, _, _ in automaton.find_matches_as_indexes(piece, overlapping=True)
                }
        return found

    def told_by(self, raw: bytes) -> set[str]:
        """What the words in the text tell of."""
        return {of for word in self.words_in(raw) for of in self._of[word]}


class SecretIndex:
    """Secrets of many, without common words, to be looked for all at once: what that costs does not grow with their
    number. It is only added to, so another thread may look for those that are in it already."""

    __slots__ = ("_in_json", "_in_text", "_known")

    def __init__(self) -> None:
        self._known: dict[str, list[bytes]] = {}  # spelling -> how it is spelled in JSON
        self._in_json = WordIndex()
        self._in_text = WordIndex()

    def __len__(self) -> int:
        return len(self._known)

    def add(self, those: Iterable[Secrets], before: SecretIndex | None = None) -> None:
        """`before`: an index that may know how they are spelled in JSON, which takes most of the time."""
        for spelling in {spelling for secrets in those for spelling in secrets.spellings}:
            if spelling not in self._known and not is_common(spelling):
                written = None if before is None else before._known.get(spelling)
                self._add(spelling, written or [_raw(each) for each in spelled_in_json(spelling)])
        self._in_json.build()
        self._in_text.build()

    def _add(self, spelling: str, written: list[bytes]) -> None:
        self._known[spelling] = written
        for each in written:
            self._in_json.add(each, spelling)
        rest, joined = spelling[len(spelling) // 2 :], joined_lines(spelling)
        starts = [
            spelling,
            *([rest] if len(rest) >= REST else ()),
            *([joined] if may_hold_one(joined) else ()),
        ]
        for start in starts:
            self._in_text.add(_raw(start)[:STUB], spelling)

    def in_json(self, raw: bytes) -> set[bytes]:
        """The spellings that are in a JSON text."""
        return self._in_json.words_in(raw)

    def near(self, text: str) -> set[str]:
        """The spellings of which something may be in a text: all that `Secrets.without` looks for begins as a spelling
        does, or its second half."""
        found = self._in_text.told_by(_raw(f"{text}\n{joined_lines(text)}"))
        if "\\" in text:
            found |= self._in_json.told_by(_raw(json.dumps(text, ensure_ascii=False)))
        return found


class SecretsOfAll:
    """The secrets of a server or session, and those of all others; of them no common word. They stay the same when
    a session ends. What is kept for others is no file that somebody edits: it also loses each value of a member with
    the name of a credential."""

    __slots__ = ("_index", "_own")

    def __init__(self, own: Secrets, index: SecretIndex) -> None:
        self._own = own
        self._index = index

    def without(self, text: str) -> str:
        """As `Secrets.without`."""
        found = self._index.near(text)
        text = (self._own.spelled(found) if found else self._own).without(text)
        return scrubbed_text(text, by_name=True)

    def scrub(self, raw: bytes) -> bytes:
        """As `Secrets.scrub`."""
        if len(raw) <= SMALL and not self.may_be_in(raw):
            return raw
        return scrubbed(raw, (*self._own.in_json(), *self._index.in_json(raw)), by_name=True)

    def may_be_in(self, raw: bytes) -> bool:
        """As `Secrets.may_be_in`."""
        return self._own.may_be_in(raw) or bool(self._index.in_json(raw))


_LastGiven = dict[tuple[SecretValue, ...], None]  # the last is the latest


class KnownSecrets:
    """The secrets of a room by server, and those of sessions by session and server, which are forgotten with the
    session. `everywhere`: secrets that belong to no particular server."""

    def __init__(self, everywhere: Iterable[SecretValue] = ()) -> None:
        self._everywhere = Secrets(everywhere)
        self._of: dict[tuple[str, str | None], Secrets] = {}
        self._seen: dict[tuple[str, str | None], object] = {}
        self._answers: dict[tuple[str, str | None], _LastGiven] = {}
        self._tokens: dict[tuple[str, str | None], _LastGiven] = {}
        self._with_answers: dict[tuple[str, str | None], Secrets] = {}
        self._index: SecretIndex | None = None  # of all, once somebody asks for it
        self._changed: set[Secrets] = set()  # what may have more than is in the index
        self._before: SecretIndex | None = None  # the index before this one, until this one has all
        self._gone = 0  # spellings in the index that were forgotten

    def copy(self) -> KnownSecrets:
        """What is known now. Whatever is forgotten later is still in it."""
        known = KnownSecrets()
        known._everywhere = self._everywhere
        known._of, known._seen = {**self._of}, {**self._seen}
        known._answers = {key: {**those} for key, those in self._answers.items()}
        known._tokens = {key: {**those} for key, those in self._tokens.items()}
        known._with_answers = {**self._with_answers}
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
        find: Callable[[], Iterable[SecretValue]],
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

    def add(self, server: str, session: str | None, found: Iterable[SecretValue]) -> None:
        """Add secrets that are sent to the server at this address, such as the tokens of a login."""
        known = self._of.setdefault((server, session), Secrets(others=self._everywhere))
        if known.learn(found):
            self._changed.add(known)

    def answered(self, server: str, found: tuple[SecretValue, ...], session: str | None = None) -> None:
        """Add the values that commands have just given for this server. The last of them stay known; older ones are
        forgotten."""
        self._given(self._answers, (server, session), found)

    def carried(self, server: str, found: tuple[SecretValue, ...], session: str | None = None) -> None:
        """Add a token by which requests to this server are about to be made for a caller. The last of them stay known,
        whatever commands have given meanwhile."""
        self._given(self._tokens, (server, session), found)

    def _given(
        self,
        those: dict[tuple[str, str | None], _LastGiven],
        key: tuple[str, str | None],
        found: tuple[SecretValue, ...],
    ) -> None:
        known = those.setdefault(key, {})
        is_new = found not in known
        known.pop(found, None)
        known[found] = None
        if not is_new:
            return
        if len(known) > _LAST:
            del known[next(iter(known))]
        old = self._with_answers.get(key)
        given = (*self._answers.get(key, ()), *self._tokens.get(key, ()))
        new = Secrets([each for one in given for each in one], self._of.get(key))
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
        for known in (self._of, self._seen, self._answers, self._tokens, self._with_answers):
            for key in [key for key in known if key[1] == session]:
                del known[key]
        return found

    def of(self, address: Address | None) -> Secrets:
        """The secrets that a text about the server at this address must not show."""
        return self._everywhere if address is None else self.of_server(address.server, address.session)

    def of_server(self, server: str, session: str | None) -> Secrets:
        """The secrets that a text about the server must not show to this session; None: to anybody."""
        own, for_all = (server, session), (server, None)
        return (
            self._with_answers.get(own)
            or self._of.get(own)
            or self._with_answers.get(for_all)
            or self._of.get(for_all)
            or self._everywhere
        )

    def of_all(self, server: str, session: str | None) -> SecretsOfAll:
        """The secrets of this server, and those of all other servers and sessions: for what is kept, and may be shown
        to anybody. A common word is a secret of its own server alone."""
        return SecretsOfAll(self.of_server(server, session), self._of_everybody())

    def index_some(self, most: int) -> bool:
        """Put what at most this many servers and sessions have into the index that `of_all` looks at, which would put
        all of them there at once: thousands take a tenth of a second. Returns whether there may be more."""
        index = self._begun_index()
        part = set(islice(self._changed, most))
        self._changed -= part
        if part:
            index.add(part, self._before)
        if not self._changed:
            self._before = None
        return bool(self._changed)

    def _of_everybody(self) -> SecretIndex:
        """The index, with what has become known since."""
        index = self._begun_index()
        self.index_some(len(self._changed))
        return index

    def _begun_index(self) -> SecretIndex:
        """The index. It is made anew when half of it was forgotten: so a session that ends costs no search."""
        index = self._index
        if index is None or self._gone > len(index) // 2:
            self._before, self._gone = index, 0
            index = self._index = SecretIndex()
            present = (self._everywhere, *self._of.values(), *self._with_answers.values())
            self._changed = {each for secrets in present for each in secrets.chain()}
        return index


def _raw(text: str) -> bytes:
    return text.encode(errors="surrogatepass")
