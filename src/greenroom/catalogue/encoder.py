"""The encoder: what a text says, as a vector; texts that say alike have vectors that point alike.

It is a transformer of the kind of BERT, such as all-MiniLM-L6-v2, from a folder as models are published:
`model.safetensors`, `tokenizer.json`, `config.json`. Only the forward pass is here, in numpy, for one text at a time;
the mean of the last layer is the vector. The weights are read through a mapping of the file, so that processes share
them. Nothing is downloaded, and nothing in the folder is run: all three files are data.

It imports numpy and tokenizers, so a room does not import it: its child does (`meaning_program`), and a command that
searches.

Rejected: sentence-transformers, which needs torch, some gigabytes; onnxruntime, 28 MB and a model in another form, for
half the time; `safetensors`, which copies the weights, 90 MB for each process in the place of none. The package's own
code is not imported: it would load torch.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any, Final, cast

import attrs
import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from .meaning_model import FILES, PUBLISHED, Unusable

Floats = npt.NDArray[np.float32]
TOKENS: Final = 128  # of a text that are read
_READ: Final = 4_000  # characters of a text
_LONGEST_WORD: Final = 100  # characters
_HEADER: Final = 1 << 20  # bytes that the header of a file of weights may have
_STRUCTURAL: Final = ("[CLS]", "[SEP]", "[UNK]")


class Encoder:
    """The model in `folder`. `is_published`: its files must be the published ones. Raises `Unusable`."""

    def __init__(self, folder: Path, *, is_published: bool = False) -> None:
        weights, tokenizer, config = (folder / name for name in FILES)
        mend = f"put a model of the kind of all-MiniLM-L6-v2 into {folder}"
        try:
            digests = [_digest(path) for path in (weights, tokenizer)]
            if is_published and tuple(digests) != PUBLISHED:
                raise Unusable(f"the model in {folder} is not the published one", mend)
            self.model: str = " ".join(digests)
            said = json.loads(config.read_bytes())
            if (said["model_type"], said.get("hidden_act", "gelu")) != ("bert", "gelu"):
                raise ValueError("it is not BERT with gelu, which alone is read")
            self._heads = int(said["num_attention_heads"])
            self._epsilon = np.float32(said.get("layer_norm_eps", 1e-12))
            self._tokenizer = Tokenizer(json.loads(tokenizer.read_bytes()))
            arrays = _read(weights)
            self._words = arrays["embeddings.word_embeddings.weight"]
            self._places = (
                arrays["embeddings.position_embeddings.weight"][:TOKENS]
                + arrays["embeddings.token_type_embeddings.weight"][0]
            )
            self._norm = _Pair.of(arrays, "embeddings.LayerNorm")
            layers = range(int(said["num_hidden_layers"]))
            self._layers = [_EncoderLayer.of(arrays, f"encoder.layer.{number}.") for number in layers]
            if max(self._tokenizer.vocabulary.values()) >= len(self._words):
                raise ValueError("its tokenizer has more pieces than it has")
            with np.errstate(all="ignore"):
                some = self.encode("any text")
            if not np.isfinite(some).all():
                raise ValueError("it makes no numbers")
            self.width: int = len(some)
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            IndexError,
            AttributeError,
            OverflowError,
            RecursionError,
        ) as error:
            what = f"the model in {folder} cannot be read ({type(error).__name__}: {error})"
            raise Unusable(what, mend) from None

    def encode(self, text: str) -> Floats:
        """The vector of a text, of length 1."""
        tokens = self._tokenizer.tokens(text, len(self._places))
        state = self._normal(self._words[tokens] + self._places[: len(tokens)], self._norm)
        for layer in self._layers:
            state = self._normal(state + layer.out(self._attention(layer, state)), layer.attention_norm)
            state = self._normal(state + layer.down(_gelu(layer.up(state))), layer.norm)
        mean = state.mean(0)
        return mean / np.linalg.norm(mean)

    def _attention(self, layer: _EncoderLayer, state: Floats) -> Floats:
        count, width = state.shape
        query, key, value = (
            part(state).reshape(count, self._heads, -1).transpose(1, 0, 2)
            for part in (layer.query, layer.key, layer.value)
        )
        scores = query @ key.transpose(0, 2, 1) / np.float32(math.sqrt(width / self._heads))
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        return (scores @ value).transpose(1, 0, 2).reshape(count, width)

    def _normal(self, state: Floats, norm: _Pair) -> Floats:
        state = state - state.mean(-1, keepdims=True)
        return (
            state / np.sqrt((state * state).mean(-1, keepdims=True) + self._epsilon) * norm.weight + norm.bias
        )


@attrs.frozen(eq=False)
class _Pair:
    """The two arrays of a linear step, or of a normalisation."""

    weight: Floats
    bias: Floats

    @classmethod
    def of(cls, weights: dict[str, Floats], name: str) -> _Pair:
        return cls(weights[f"{name}.weight"], weights[f"{name}.bias"])

    def __call__(self, state: Floats) -> Floats:
        return state @ self.weight.T + self.bias


@attrs.frozen(eq=False)
class _EncoderLayer:
    query: _Pair
    key: _Pair
    value: _Pair
    out: _Pair
    attention_norm: _Pair
    up: _Pair
    down: _Pair
    norm: _Pair

    @classmethod
    def of(cls, weights: dict[str, Floats], name: str) -> _EncoderLayer:
        parts = (
            "attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense",
            "attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm",
        )  # fmt: skip
        return cls(*(_Pair.of(weights, name + part) for part in parts))


def _gelu(state: Floats) -> Floats:
    """x times the share of a normal distribution below x, by formula 7.1.26 of Abramowitz and Stegun: numpy has no
    error function. It is off by 2e-7 at most."""
    size = np.abs(state) * np.float32(math.sqrt(0.5))
    t = 1 / (1 + np.float32(0.3275911) * size)
    tail = np.float32(1.061405429)
    for factor in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        tail = tail * t + np.float32(factor)
    return state * np.float32(0.5) * (1 + np.copysign(1 - tail * t * np.exp(-size * size), state))


class Tokenizer:
    """The numbers of a text's word pieces. `said`: a `tokenizer.json`, of which the vocabulary counts, and that its
    rules are those of BERT for lower case. The library does not read the file itself: it panics at some that are
    damaged, and a rule there may be an expression that takes for ever."""

    def __init__(self, said: dict[str, Any]) -> None:
        model, normalizer = said["model"], cast("dict[str, Any]", said.get("normalizer") or {})
        if model.get("type", "WordPiece") != "WordPiece" or normalizer.get("lowercase") is not True:
            raise ValueError("its tokenizer is not a WordPiece for lower case")
        self.vocabulary: dict[str, int] = model["vocab"]
        begin, end, unknown = _STRUCTURAL
        self._begin, self._end = self.vocabulary[begin], self.vocabulary[end]
        pieces = WordPiece(self.vocabulary, unk_token=unknown, max_input_chars_per_word=_LONGEST_WORD)
        self._pieces = tokenizers.Tokenizer(pieces)
        self._pieces.normalizer = BertNormalizer(lowercase=True)
        self._pieces.pre_tokenizer = BertPreTokenizer()
        if unknown not in self.vocabulary:
            raise ValueError(f"its tokenizer has no {unknown}")

    def tokens(self, text: str, most: int = TOKENS) -> list[int]:
        """The numbers of at most so many pieces, with those of begin and end."""
        readable = text[:_READ].encode(errors="ignore").decode()
        found = self._pieces.encode(readable, add_special_tokens=False).ids
        return [self._begin, *found[: most - 2], self._end]


# ---- The files ------------------------------------------------------------------------------------------------------


def _read(path: Path) -> dict[str, Floats]:
    """The arrays of a safetensors file: eight bytes with the size of a header, the header (JSON: name → type, shape,
    from where to where), and the bytes."""
    everything = np.memmap(path, np.uint8, "r")
    size = int.from_bytes(everything[:8].tobytes(), "little")
    if size > _HEADER:
        raise ValueError("its header is too large")
    header, start, found = json.loads(everything[8 : 8 + size].tobytes()), 8 + size, dict[str, Floats]()
    for name, said in header.items():
        if name != "__metadata__" and said["dtype"] == "F32":
            begin, end = (start + int(at) for at in said["data_offsets"])
            if not start <= begin <= end <= len(everything):
                raise ValueError(f"{name} is not in it")
            found[name] = everything[begin:end].view("<f4").reshape(said["shape"])
    return found


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
