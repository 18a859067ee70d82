"""Vectors: which are nearest, and what of them is kept on disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.support.tiny_model import WIDTH, write_model

from greenroom.catalogue.encoder import Encoder, Floats
from greenroom.catalogue.tool_vectors import ToolVectors, opened
from greenroom.catalogue.vector_file import VectorFile, digest_of

TEXTS = ("search files in the work", "delete a file", "create issues.")
DAY = 86_400.0


class Counting(Encoder):
    """Counts what it encodes."""

    def __init__(self, folder: Path) -> None:
        self.encoded: list[str] = []
        super().__init__(folder)

    def encode(self, text: str) -> Floats:
        self.encoded.append(text)
        return super().encode(text)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


def file_in(folder: Path, model: str = "this one", max_age: float = 0) -> VectorFile:
    return VectorFile(folder / "catalogue.vectors", model, WIDTH, max_age=max_age, lock_timeout=0.05)


def made(encoder: Counting, file: VectorFile | None, texts: Sequence[str] = TEXTS) -> ToolVectors:
    """With vectors for all texts, made or recalled."""
    meanings = ToolVectors(encoder, file)
    meanings.learn(0, texts)
    encoder.encoded.clear()
    meanings.make_all()
    return meanings


def test_the_text_itself_is_the_nearest_and_the_others_follow(model: Path) -> None:
    encoder = Counting(model)
    meanings = made(encoder, None)
    for number, text in enumerate(TEXTS):
        assert meanings.nearest(text, 10)[0] == number
        assert sorted(meanings.nearest(text, 10)) == [0, 1, 2]
        assert meanings.nearest(text, 1) == [number]


def test_nothing_is_near_until_nearly_all_vectors_are_made(model: Path) -> None:
    encoder = Counting(model)
    meanings = ToolVectors(encoder, None)
    assert meanings.nearest("file", 10) == []
    meanings.learn(0, TEXTS)
    meanings.make(0, TEXTS[0])
    assert meanings.nearest("file", 10) == []
    meanings.make(1, TEXTS[1])
    meanings.make(2, TEXTS[2])
    assert len(meanings.nearest("file", 10)) == 3


def test_texts_may_be_told_of_later(model: Path) -> None:
    encoder = Counting(model)
    meanings = made(encoder, None, TEXTS[:1])
    assert meanings.nearest(TEXTS[1], 10) == [0]
    meanings.learn(1, TEXTS[1:])
    meanings.make_all()
    assert meanings.nearest(TEXTS[1], 10)[0] == 1


def test_what_is_kept_is_not_made_again(model: Path, tmp_path: Path) -> None:
    encoder = Counting(model)
    made(encoder, file_in(tmp_path)).save()
    assert encoder.encoded == list(TEXTS)
    meanings = made(encoder, file_in(tmp_path), [*TEXTS, "a new one"])
    assert encoder.encoded == ["a new one"]
    assert meanings.nearest(TEXTS[2], 10)[0] == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda place: place.write_bytes(b""),
        lambda place: place.write_bytes(b"\xff" * 1_000),
        lambda place: place.write_bytes(place.read_bytes()[:-9] + b"\0" * 9),
        lambda place: place.write_bytes(place.read_bytes()[:-9]),
        lambda place: place.chmod(0o666),
        lambda place: (place.unlink(), os.mkfifo(place)),
    ],
)
def test_a_damaged_file_is_as_good_as_none(
    model: Path, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    encoder = Counting(model)
    made(encoder, file_in(tmp_path)).save()
    damage(tmp_path / "catalogue.vectors")
    made(encoder, file_in(tmp_path)).save()
    assert encoder.encoded == list(TEXTS)


def test_vectors_of_another_model_or_width_are_not_used(model: Path, tmp_path: Path) -> None:
    encoder = Counting(model)
    made(encoder, file_in(tmp_path)).save()
    made(encoder, file_in(tmp_path, "another"))
    assert encoder.encoded == list(TEXTS)
    wider = VectorFile(tmp_path / "catalogue.vectors", "this one", WIDTH + 1, max_age=0)
    assert wider.load() == {}


def test_vectors_that_are_not_used_for_long_are_dropped_at_the_next_write(tmp_path: Path) -> None:
    file, vector = file_in(tmp_path, max_age=7 * DAY), b"\1" * WIDTH
    file.save({b"old": vector, b"used": vector}, 0.0)
    file.save({b"used": vector}, 6 * DAY)
    file.save({b"new": vector}, 8 * DAY)
    assert set(file.load()) == {b"used", b"new"}


def test_two_writers_lose_nothing_of_each_other(tmp_path: Path) -> None:
    vector = b"\1" * WIDTH
    file_in(tmp_path).save({b"one": vector}, 1.0)
    file_in(tmp_path).save({b"other": vector}, 2.0)
    assert set(file_in(tmp_path).load()) == {b"one", b"other"}


def test_the_file_is_for_its_owner_alone_and_stands_beside_the_catalogue(model: Path, tmp_path: Path) -> None:
    meanings = opened(str(model), tmp_path / "cache" / "catalogue.json", 0)
    meanings.learn(0, TEXTS)
    meanings.make_all()
    meanings.save()
    assert (tmp_path / "cache" / "catalogue.vectors").stat().st_mode & 0o777 == 0o600


def test_half_a_character_has_a_digest() -> None:
    assert digest_of("\ud83d") != digest_of("\ude00")
