"""Two other ways to rank tools, beside which B19 is measured: the formula of points that gateways use, and BM25 as its
library gives it, over the same texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, cast

from greenroom.catalogue.namespace import Target

Rank = Callable[[str], list[str]]  # a query → names, best first

_WEIGHTS = (12, 10, 8, 5)
_CAMEL = re.compile(r"([a-z0-9])([A-Z])")
_PUNCTUATION = re.compile(r"[_./:\-]+")


def _normalised(text: str) -> str:
    return _PUNCTUATION.sub(" ", _CAMEL.sub(r"\1 \2", text)).lower()


def _tokens(text: str) -> list[str]:
    return list(dict.fromkeys(re.findall(r"[a-z0-9]+", text)))


def by_points(targets: Sequence[Target]) -> Rank:
    """Fixed points for a whole query, a word, its beginning and its part, in four fields: 14, 9 and 6
    times a field's weight for the query, 4, 2 and 1 times for a word, and something for the share of words found."""
    documents: list[tuple[str, list[_Field]]] = []
    for target in targets:
        texts = map(_normalised, (target.name, target.original, target.server, target.description))
        documents.append((target.name, [(text, frozenset(_tokens(text))) for text in texts]))

    def rank(query: str) -> list[str]:
        phrase = _normalised(query).strip()
        words = _tokens(phrase)
        scored = [(-_points(phrase, words, fields), name) for name, fields in documents]
        return [name for score, name in sorted(scored) if score < 0]

    return rank


_Field = tuple[str, frozenset[str]]  # a normalised text, and its tokens


def _points(phrase: str, words: Sequence[str], fields: Sequence[_Field]) -> int:
    score, whole, matched = 0, False, set[str]()
    for weight, (text, tokens) in zip(_WEIGHTS, fields, strict=True):
        if text == phrase:
            score, whole = score + 14 * weight, True
        elif phrase in text:
            score += (9 if text.startswith(phrase) else 6) * weight
        for word in words:
            factor = _factor(word, text, tokens)
            score += factor * weight
            if factor:
                matched.add(word)
    if not score:
        return 0
    share = len(matched) / max(1, len(words))
    named = bool(words) and words[0] in fields[0][1]
    return score + (25 if share == 1 else round(10 * share)) + 8 * named + 20 * whole


def _factor(word: str, text: str, tokens: frozenset[str]) -> int:
    if word in tokens:
        return 4
    if any(token.startswith(word) or (len(token) >= 4 and word.startswith(token)) for token in tokens):
        return 2
    return int(word in text)


def by_bm25(targets: Sequence[Target], *, with_parameters: bool) -> Rank:
    """BM25 of `bm25s`, with its stop words, over name, server and description, and the parameters if asked for."""
    import bm25s  # pyright: ignore[reportMissingTypeStubs]

    library: Any = bm25s
    texts = [_text_of(target, with_parameters=with_parameters) for target in targets]
    retriever = library.BM25()
    retriever.index(library.tokenize(texts, stopwords="en", show_progress=False), show_progress=False)
    names = [target.name for target in targets]

    def rank(query: str) -> list[str]:
        words = library.tokenize([_normalised(query)], stopwords="en", show_progress=False)
        numbers, scores = retriever.retrieve(words, k=min(20, len(names)), show_progress=False)
        return [names[number] for number, score in zip(numbers[0], scores[0], strict=True) if score > 0]

    return rank


def _text_of(target: Target, *, with_parameters: bool) -> str:
    parts = [target.original, target.server, target.description]
    properties = (target.input_schema or {}).get("properties")
    if with_parameters and isinstance(properties, dict):
        for name, said in cast("dict[str, Any]", properties).items():
            parts.append(name)
            if isinstance(said, dict):
                parts.append(str(cast("dict[str, Any]", said).get("description", "")))
    return _normalised(" ".join(parts))
