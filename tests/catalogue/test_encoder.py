"""The encoder: the numbers that the reference makes of the same model, and what is refused."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.support.tiny_model import PIECES, PLACES, write_model

from greenroom.catalogue.encoder import Encoder, Tokenizer
from greenroom.catalogue.meaning_model import Unusable, model_folder

# What torch and transformers' BertModel make of the same weights: the mean of the last layer, with length 1.
REFERENCE = {
    "Search files in the workspace": (
        0.094111, -0.284722, -0.035709, 0.39163, 0.794047, -0.139179, 0.241413, -0.217409,
    ),
    "DELETE a file, create issues.": (0.075161, -0.304709, -0.06453, 0.33598, 0.823308, -0.08443, 0.252505, -0.189033),
    "搜索☃": (0.088488, -0.286801, -0.042826, 0.37038, 0.810931, -0.114935, 0.243705, -0.201716),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(tmp_path)


@pytest.fixture
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer(json.loads((folder / "tokenizer.json").read_text(encoding="utf-8")))


@pytest.mark.parametrize("text", REFERENCE)
def test_it_computes_what_the_reference_does(folder: Path, text: str) -> None:
    assert np.allclose(Encoder(folder).encode(text), REFERENCE[text], atol=2e-6)


def test_the_shortest_and_the_longest_text_have_a_vector_of_length_1(folder: Path) -> None:
    encoder = Encoder(folder)
    for text in ("", " ", "work " * 1_000, "\ud83d"):
        assert np.linalg.norm(encoder.encode(text)) == pytest.approx(1, abs=1e-5)


def test_a_word_is_its_longest_known_pieces_or_unknown(tokenizer: Tokenizer) -> None:
    def pieces(text: str) -> list[str]:
        return [PIECES[number] for number in tokenizer.tokens(text)]

    assert pieces("Workspace files") == ["[CLS]", "work", "##space", "files", "[SEP]"]
    assert pieces("workshop") == ["[CLS]", "[UNK]", "[SEP]"]
    assert pieces("s" * 101) == ["[CLS]", "[UNK]", "[SEP]"]
    assert pieces("") == ["[CLS]", "[SEP]"]
    assert len(tokenizer.tokens("work " * 100, PLACES)) == PLACES


def test_only_the_beginning_of_a_long_text_is_read(folder: Path) -> None:
    encoder = Encoder(folder)
    begun = time.process_time()
    long = encoder.encode("work files " * 1_000_000)
    assert time.process_time() - begun < 1
    assert np.array_equal(long, encoder.encode("work files " * 100))


def cut(name: str, size: int) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


def replaced(name: str, old: bytes, new: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes().replace(old, new))


@pytest.mark.parametrize(
    "damage",
    [
        cut("model.safetensors", 0),
        cut("model.safetensors", 5),
        cut("model.safetensors", 100),
        cut("model.safetensors", 5_000),
        lambda folder: (folder / "model.safetensors").write_bytes(b"\xff" * 100),
        replaced("model.safetensors", b"LayerNorm", b"LayerName"),
        replaced("model.safetensors", b'[0, ', b'[-9,'),
        replaced("model.safetensors", b'"data_offsets": [', b'"data_offsets": 9['),
        cut("tokenizer.json", 50),
        replaced("tokenizer.json", b"[UNK]", b"[ANY]"),
        replaced("tokenizer.json", b"WordPiece", b"Unigram"),
        replaced("config.json", b"bert", b"gpt2"),
        lambda folder: (folder / "config.json").write_text("[" * 100_000),
        lambda folder: (folder / "config.json").unlink(),
        replaced("config.json", b'"num_hidden_layers": 2', b'"num_hidden_layers": 3'),
        replaced("config.json", b'"num_attention_heads": 2', b'"num_attention_heads": 3'),
    ],
)  # fmt: skip
def test_a_damaged_model_is_refused_with_what_to_do(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    damage(write_model(tmp_path))
    with pytest.raises(Unusable, match="cannot be read") as refused:
        Encoder(tmp_path)
    assert str(tmp_path) in refused.value.mend


def test_of_the_package_only_the_published_model_is_used(folder: Path) -> None:
    with pytest.raises(Unusable, match="is not the published one"):
        Encoder(folder, is_published=True)


def test_what_is_missing_of_a_folder_is_named(tmp_path: Path) -> None:
    (write_model(tmp_path) / "config.json").unlink()
    with pytest.raises(Unusable, match=r"has no config\.json"):
        model_folder(str(tmp_path))
