"""One form for all the spellings of a URI that some server might read as the same.

What is quarantined must not be read under another spelling of its URI: escaped, in other case, by a way round through
`..`. What a server takes for the same is not known: one compares texts, another decodes twice, a third opens a file
where case does not count. So this form is as coarse as the most lenient of them, and it is used to refuse only. That it
takes two resources for one costs little: a URI that its server lists, in just that spelling, is judged by itself.

By RFC 3986, section 6.2, go the case of scheme and host, escaped characters and dot segments. Coarser than that: case,
and the forms of a letter (NFKC), count nowhere; a backslash is a slash; several slashes are one; blanks and control
characters, the fragment and whoever stands before `@` in the authority are nothing.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote

from ..protocol.lazy_patterns import lazy_pattern

_ROUNDS: Final = 8  # so often escaped at most; each round decodes what the one before has left
_PERCENT: Final = lazy_pattern(r"%(?:25)+")  # however often it is escaped: one round
_NOTHING: Final = lazy_pattern(r"[\x00-\x20\x7f-\xa0\u2028\u2029]+")
_SCHEME: Final = lazy_pattern(r"([a-z][a-z0-9+.-]*):(/*)")
_NO_PORT: Final = lazy_pattern(r":0*\Z")


def normal_uri(uri: str) -> str:
    """The form that all spellings of a URI have in common."""
    import unicodedata

    said = _decoded(uri)
    said = _NOTHING.sub("", unicodedata.normalize("NFKC", said).casefold())
    said = said.replace("\\", "/").partition("#")[0]
    found = _SCHEME.match(said)
    scheme, rest = (found[1], said[found.end() :]) if found is not None else ("", said)
    path, mark, query = rest.partition("?")
    if found is not None and len(found[2]) == 2:
        host, slash, path = path.partition("/")
        path = _NO_PORT.sub("", host.rpartition("@")[2]) + slash + path
    return f"{scheme}:{_without_dots(path)}{mark}{query}"


def without_query(normal: str) -> str:
    """A normal form without what stands behind `?`, which a server may pass over."""
    return normal.partition("?")[0]


def _decoded(uri: str) -> str:
    for _ in range(_ROUNDS):
        decoded = unquote(_PERCENT.sub("%", uri))
        if decoded == uri:
            break
        uri = decoded
    return uri


def _without_dots(path: str) -> str:
    kept: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del kept[-1:]
        elif part not in ("", "."):
            kept.append(part)
    return "/".join(kept)
