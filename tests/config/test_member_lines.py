"""A file with a line for each member of its object: the same JSON, read and written member by member."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.support.rows import for_each

from greenroom.config.member_lines import from_lines, in_lines
from greenroom.config.private_files import LockedFile

HEAD, TAIL = b'{"version":1,"all":{', b'},"more":{"a":1}}'
AS_LINE = msgspec.json.Decoder(dict[str, int])


def written(members: dict[str, int]) -> bytes:
    return b"".join(in_lines(HEAD, ((key, b"%d" % value) for key, value in members.items()), TAIL))


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.integers(0, 99), max_size=5))
def test_it_is_json_with_a_line_for_each_member_and_read_as_it_was_written(members: dict[str, int]) -> None:
    data = written(members)
    assert json.loads(data) == {"version": 1, "all": members, "more": {"a": 1}}
    assert data.count(b"\n") == len(members) + 1
    assert from_lines(data, HEAD, AS_LINE) == (members, HEAD + TAIL)


@for_each("data", [
    b"",
    HEAD,
    HEAD + b'"a":1' + TAIL,
    b'{"version":2,"all":{\n"a":1\n' + TAIL,
    HEAD + b'\n"a":1,\n"b":"no number"\n' + TAIL,
    HEAD + b'\n"a":1,\n"b":\n' + TAIL,
    HEAD + b'\n"a":' + b"[" * 100_000 + b"\n" + TAIL,
])  # fmt: skip
def test_of_another_form_nothing_is_read(data: bytes) -> None:
    assert from_lines(data, HEAD, AS_LINE) is None


def test_what_is_torn_lacks_its_end() -> None:
    whole = written({"a": 1, "b": 2, "c": 3})
    for end in range(len(whole)):
        found = from_lines(whole[:end], HEAD, AS_LINE)
        assert found is None or found[1] != HEAD + TAIL


def test_the_pieces_of_a_file_are_asked_for_one_by_one(tmp_path: Path) -> None:
    file, asked = LockedFile(tmp_path / "file"), list[int]()

    def piece(number: int) -> bytes:
        asked.append(number)
        return b"%d" % number

    file.replace(b"old")
    with file.locked():
        file.replace(map(piece, range(3)))
    assert (file.read(), asked) == (b"012", [0, 1, 2])
