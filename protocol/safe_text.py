"""Text from outside, as a person may be shown it.

Text of servers, clients and files is shown on terminals: in tables, log lines, errors. There some characters are
commands. They colour, delete, move the cursor, set the clipboard, or reverse the order of the text, so that a line
reads as another one. Others are not shown at all, and a model reads them all the same. All text that is shown to a
person, and what a model is shown of definitions, passes through here and loses these characters. Text for programs
keeps them; in JSON, invisible ones are written as escapes.
"""

from __future__ import annotations

import codecs
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from .lazy_patterns import lazy_pattern

_WORDS: Final = 200  # characters
_GAP: Final = lazy_pattern(r"\s+")
_LAST_WORD: Final = lazy_pattern(r"\S*\Z")
LONGEST: Final = 2_000  # characters of what belongs on one line
# Sequences that begin with ESC, or with the single character that means ESC [: colours, cursor, titles, clipboard.
_SEQUENCE: Final = lazy_pattern(
    r"(?:\x1b\[|\x9b)[0-?]{0,64}[ -/]{0,16}[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]{0,4096}(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]{0,4}[0-~]?"
)
_BREAK: Final = lazy_pattern(r"\r\n?|[\x0b\x0c\x85\u2028\u2029]")
# Control characters other than tab and newline; characters that reverse the order of the text; tag characters.
_UNSEEN: Final = lazy_pattern(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\U000e0000-\U000e007f]"
)
# Characters without width: joiners, the soft hyphen, fillers, invisible operators, variation selectors.
_NO_WIDTH: Final = lazy_pattern(
    r"[\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200d\u2060-\u206f\u3164\uffa0\ufff9-\ufffb"
    r"\U0001d173-\U0001d17a\ufe00-\ufe0e\U000e0080-\U000e0fff]"
)
_HIDDEN: Final = lazy_pattern(f"{_UNSEEN.pattern}|{_NO_WIDTH.pattern}")
# A joiner between two characters that may need one.
_JOINED: Final = lazy_pattern(
    r"(?<=[^\x00-\xff\u034f\u180b-\u180f\u200b-\u200f\u2028-\u206f\ufe00-\ufe0e\U000e0000-\U000e0fff])[\u200c\u200d]"
    r"(?=[^\x00-\xff\u034f\u180b-\u180f\u200b-\u200f\u2028-\u206f\ufe00-\ufe0e\U000e0000-\U000e0fff])"
)


def in_words(error: BaseException) -> str:
    """The kind and the text of somebody else's exception, for use in our texts. Never its `repr`, which may show data:
    that of a UnicodeEncodeError shows the whole text that could not be encoded."""
    said = str(error).strip()
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def counted(count: int, what: str) -> str:
    """`1 tool`, `2 tools`."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def tools_in_words(tools: int, resources: int = 0) -> str:
    """`2 tools, 1 resource`: what is offered to be called. No resources are not told."""
    return counted(tools, "tool") + (f", {counted(resources, 'resource')}" if resources else "")


def printable(text: str) -> str:
    """`text` without characters that a terminal obeys or hides; line breaks stay."""
    if text.isascii() and text.isprintable():
        return text
    return _UNSEEN.sub("", _BREAK.sub("\n", _SEQUENCE.sub("", text)))


def unhidden(text: str) -> str:
    """`text` as a model may be shown it: `printable`, and without characters that have no width. In a description
    these can carry an instruction that no person sees."""
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    return _NO_WIDTH.sub("", printable(text))


def one_line(text: str, most: int = LONGEST) -> str:
    """`printable` text on one line, at most `most` characters long. A name that is longer keeps its beginning;
    words (from 200 characters on) keep their end as well."""
    if most < _WORDS:
        head = text if len(text) <= 8 * most else text[: 8 * most]
        line = " ".join(unhidden(head).split())
        return line if len(line) <= most and head is text else f"{line[: most - 1]}…"
    if len(text) > 17 * most:
        text = f"{text[: 8 * most]} … {text[-8 * most :]}"
    return shortened(" ".join(unhidden(text).split()), most)


def shortened(text: str, most: int) -> str:
    """Words about a failure, at most `most` characters of them. What is cut out is in the middle, nearer to the
    beginning: that says who speaks, and of a long exception the last line says what it was. The cuts are between words,
    because for half a secret nobody would know that it is one; of what is one word the beginning stays."""
    if len(text) <= most:
        return text
    tail = text[-(most * 3 // 4) :]
    gap = _GAP.search(tail)
    if gap is None:
        return f"{text[: most - 1]}…"
    end = tail[gap.end() :]
    return f"{_LAST_WORD.sub('', text[: most - len(end) - 3])}… {end}".lstrip()


def hidden_characters(text: str) -> list[str]:
    """The characters of `text` that `unhidden` removes and that a person cannot see. Line breaks do not count, nor do
    characters that join two others of an emoji or of a script that needs it."""
    if text.isascii() and text.replace("\n", "").isprintable():
        return []
    seen = _JOINED.sub("", _BREAK.sub("\n", text))
    return _HIDDEN.findall(seen)


def seen_in_json(text: str) -> str:
    """JSON in which invisible characters are written as escapes. Its value is the same."""
    return _NO_WIDTH.sub(_escape, _UNSEEN.sub(_escape, text))


def _escape(unseen: re.Match[str]) -> str:
    return json.dumps(unseen[0])[1:-1]


def typed(*names: str) -> str:
    """Names as they are typed behind a command: quoted for a shell, and never taken for options."""
    apart = ("--",) if any(name.startswith("-") for name in names) else ()
    return " ".join([*apart, *map(_quoted, names)])


def _quoted(name: str) -> str:
    """One word for a shell, on one line: characters that do not show are escaped, as bash and zsh read them."""
    if name.isprintable():
        return shlex.quote(name)
    return f"$'{''.join(map(_escaped, name))}'"


def _escaped(one: str) -> str:
    if one.isprintable():
        return f"\\{one}" if one in "\\'" else one
    return f"\\u{ord(one):04x}" if ord(one) < 0x10000 else f"\\U{ord(one):08x}"


# ---- Half characters: text that JSON and Python can hold, but UTF-8 cannot encode -----------------------------------
#
# JavaScript cuts strings between the two halves of an emoji, and its JSON then holds half of a surrogate pair as an
# escape (`\ud83d`). RFC 8259 allows that, our decoder refuses it, and so do many others. A program's arguments and file
# names bring halves of their own (PEP 383). The rule everywhere: data of a server that we only pass on stays unchanged.
# In data that we read or write ourselves, and in data for a server, U+FFFD replaces each half. (Servers and clients of
# the Python SDK do not answer a message with a half in it.) An id is echoed unchanged. Bytes that are not UTF-8 are not
# JSON either, so they are replaced as they come in, even in data that is only passed on.
#
# These functions are called only after a decoder or an encoder has refused a text, so plain text costs nothing.

# Every half that is not beside its other half. Replace escaped backslashes first.
# (Both alternatives stand behind their common beginning: `re` looks for such a beginning ten times as fast.)
_HALF: Final = lazy_pattern(
    rb"\\u(?:[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u)[dD][c-fC-F][0-9a-fA-F]{2})"
)
_ONE_BACKSLASH: Final = b"\\"
_BACKSLASH, _OUT_OF_THE_WAY = rb"\\", b"\xff\xfe"  # the second never occurs in UTF-8


def repair_utf8(data: bytes | bytearray) -> bytes | bytearray:
    """The data with every byte that is not UTF-8 replaced; the same object when there is none."""
    if data.isascii():
        return data
    try:
        data.decode()
    except UnicodeDecodeError:
        return data.decode(errors="replace").encode()
    return data


def mend_escapes(data: bytes | bytearray) -> bytes | None:
    """JSON (in UTF-8) with every escaped half replaced by `\\ufffd`, as long as before; None when there is none."""
    if _ONE_BACKSLASH not in data or (rb"\ud" not in data and rb"\uD" not in data):
        return None  # to look for one character takes a hundredth of the time
    plain, count = _HALF.subn(rb"\\ufffd", bytes(data).replace(_BACKSLASH, _OUT_OF_THE_WAY))
    return plain.replace(_OUT_OF_THE_WAY, _BACKSLASH) if count else None


class JsonRepair:
    """Repairs JSON that comes in pieces: bytes that are not UTF-8, and escaped halves. Unlike in a short message, both
    are replaced even where data is only passed on: to look at all of a long one again would take too long.

    `has_replaced`: some bytes were not UTF-8.
    """

    def __init__(self) -> None:
        self.has_replaced: bool = False
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun = b""  # a character that has begun
        self._left = b""  # an escape that has begun, or the first half of a pair

    def take(self, piece: bytes | bytearray, *, is_last: bool = False) -> bytes:
        """The next piece, repaired. A character or escape that only begins in it is returned with the next piece."""
        text = self._left + (piece if not self._begun and piece.isascii() else self._decoded(piece, is_last))
        end = len(text) if is_last else _end_of_escapes(text)
        text, self._left = text[:end], text[end:]
        mended = mend_escapes(text)
        return text if mended is None else mended

    def _decoded(self, piece: bytes | bytearray, is_last: bool) -> bytes:
        came = self._begun + piece
        text = self._decoder.decode(piece, is_last).encode()
        self._begun = self._decoder.getstate()[0]
        self.has_replaced = self.has_replaced or text != came[: len(came) - len(self._begun)]
        return text


_ESCAPE: Final = 6  # bytes of an escaped half
_ESCAPES: Final = lazy_pattern(rb"[^\\]*+(?:\\(?:[^u]|u.{4})[^\\]*+)*+", re.DOTALL)  # only complete ones
_FIRST_HALF: Final = lazy_pattern(rb"\\u[dD][89abAB][0-9a-fA-F]{2}")


def _end_of_escapes(text: bytes) -> int:
    """A place at or just before the end that splits neither an escape nor a pair of them. `text` begins at such a
    place."""
    if text.find(b"\\", max(0, len(text) - 2 * _ESCAPE)) < 0:
        return len(text)
    end = _complete(text, len(text))
    half = end - _ESCAPE
    is_half = half >= 0 and _FIRST_HALF.match(text, half) is not None and _complete(text, half) == half
    return half if is_half else end


def end_of_characters(text: bytes) -> int:
    """As `end_of_escapes`, and the place splits no character of UTF-8 either."""
    end = _end_of_escapes(text)
    for back in range(1, min(4, end) + 1):
        first = text[end - back]
        if first & 0xC0 != 0x80:
            takes = 4 if first >= 0xF0 else 3 if first >= 0xE0 else 2 if first >= 0xC0 else 1
            return end if takes <= back else end - back
    return end


def _complete(text: bytes, end: int) -> int:
    """The end of the last complete escape or plain character before `end`."""
    found = _ESCAPES.match(text, 0, end)
    assert found is not None
    return found.end()


def whole(text: str) -> str:
    """The text with every half replaced."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def whole_value(value: Any) -> Any:
    """A JSON value with every half in its texts and keys replaced; other values than texts, lists and mappings stay."""
    if isinstance(value, str):
        return whole(value)
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {whole_value(key): whole_value(each) for key, each in items}
    if isinstance(value, list | tuple):
        return [whole_value(each) for each in cast("list[Any]", value)]
    return value


# ---- What a server wrote to its stderr ------------------------------------------------------------------------------
#
# It stands in what is told of a failure, where an agent or the owner finds what to do. It may hold what is another
# client's, so whoever may only look at a gateway is not shown it.

_STDERR: Final = lazy_pattern(r" \((?:last on )?stderr: (?:.*\)|.*)", re.DOTALL)
_REASON: Final = lazy_pattern(
    r"\w(?:Error|Exception)\b|"
    r"\b(?:error|err!|fatal|panic|panicked|exception|failed|failure|cannot|can't|could not|couldn't|unable|unhandled|"
    r"uncaught|denied|refused|not found|no such|does not exist|missing|invalid|unknown|unrecogni[sz]ed|caused by|"
    r"already in use|out of memory|killed|crash|crashed|aborted|required|must be|not set|expired|timed out)\b|"
    r"^\s*[×╰]",
    re.IGNORECASE,
)
# The level of a line. Behind `Error:` or the like, and before `=`, it is part of a sentence: "set DEBUG=1 to see more".
_NEWS: Final = lazy_pattern(
    r"(?:(?!ERROR|FATAL|CRITICAL|WARN|(?i:error|exception|fatal|failure):\s|ERR!).){0,60}?"
    r"\b(?:INFO|DEBUG|TRACE)\b(?!=)"
)


def looks_like_an_error(line: str) -> bool:
    """Whether a line of a program's stderr may tell why it failed: by its words, and not by the level INFO or lower."""
    return _REASON.search(line) is not None and _NEWS.match(line) is None


def with_stderr(text: str, lines: Sequence[str], *, are_old: bool = False) -> str:
    """What is told of a failure, with the last lines that the server wrote to its stderr. They count as its reason if
    one looks like an error, and they are not `are_old`: the server has gone on since."""
    what = "stderr" if not are_old and any(map(looks_like_an_error, lines)) else "last on stderr"
    return f"{text} ({what}: {' — '.join(lines)})" if lines else text


def without_stderr(value: Any) -> Any:
    """A JSON value without what servers wrote to their stderr. What they wrote may hold a bracket: so of a text what is
    behind them goes, too, up to the last bracket."""
    if isinstance(value, str):
        return _STDERR.sub("", value) if "stderr: " in value else value
    if isinstance(value, Mapping):
        said = cast("Mapping[str, Any]", value)
        return {key: None if key == "lastLine" else without_stderr(each) for key, each in said.items()}
    if isinstance(value, list | tuple):
        return [without_stderr(each) for each in cast("Sequence[Any]", value)]
    return value
