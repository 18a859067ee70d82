"""Pages taken apart: whatever their size and shape, the items are those that a decoder finds, and no slice is long."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.rows import for_each

from greenroom.catalogue import list_pages
from greenroom.catalogue.list_pages import Items, take_object
from greenroom.protocol import bounds
from greenroom.protocol.jsonrpc.terms import WireFault

TOOLS = [
    {"name": f"t{n}", "description": 'says "}, {" and \\', "x": [{"a": 1}, {"b": []}]} for n in range(3_000)
]


def deep(levels: int) -> Any:
    """An array nested so deep."""
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


def read(page: bytes, most: int = 100_000) -> tuple[Items, object]:
    items = Items("tools", "name", most)
    return items, items.read(page)


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" ,\n\t", " : ")])
def test_a_large_page_is_taken_apart_as_a_decoder_does(separators: tuple[str, str]) -> None:
    page = json.dumps({"_meta": {"a": TOOLS[:9]}, "tools": TOOLS, "nextCursor": "n"}, separators=separators)
    items, cursor = read(page.encode())
    assert items.found == TOOLS
    assert (cursor, items.in_words()) == ("n", [])


values = st.recursive(
    st.none() | st.integers() | st.text(max_size=20) | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=40, deadline=None)
@given(
    tools=st.lists(values | st.fixed_dictionaries({"name": st.text(), "rest": values}), max_size=12),
    more=st.dictionaries(st.sampled_from(["nextCursor", "_meta", "too", "x"]), values),
    first=st.booleans(),
    ascii_only=st.booleans(),
    indent=st.sampled_from([None, 1]),
    at_once=st.sampled_from([1, 40, 300]),
)
def test_however_small_the_pieces_the_items_are_the_same(
    tools: list[Any], more: dict[str, Any], first: bool, ascii_only: bool, indent: int | None, at_once: int
) -> None:
    said = {"tools": tools, **more} if first else {**more, "tools": tools}
    page = json.dumps(said, ensure_ascii=ascii_only, indent=indent).encode()
    whole, cursor = read(page)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(list_pages, "AT_ONCE", at_once)
        pieces, other_cursor = read(page)
    assert (
        pieces.found
        == whole.found
        == [one for one in json.loads(page)["tools"] if isinstance(one, dict) and one.get("name")]
    )
    assert (cursor, whole.in_words()) == (other_cursor, pieces.in_words())
    assert cursor == said.get("nextCursor")


@pytest.mark.parametrize("filler", [0, 5_000])
def test_an_item_that_is_too_much_costs_only_itself(filler: int) -> None:
    bad = [
        {"name": "deep", "inputSchema": deep(bounds.DEPTH)},
        {"name": "abyss", "inputSchema": deep(900)},
        {"name": "long", "description": "x" * bounds.ITEM_BYTES},
        {"name": "wide", "inputSchema": [[]] * bounds.ITEM_PARTS},
        {"name": "n" * (bounds.NAME_CHARACTERS + 1)},
        {"description": "nameless"},
        7,
    ]
    good = [{"name": f"t{n}"} for n in range(filler)] + [{"name": "edge", "x": deep(bounds.DEPTH - 1)}]
    items, cursor = read(json.dumps({"tools": [*bad, *good], "nextCursor": None}).encode())
    assert items.found == good
    assert cursor is None
    said = "\n".join(items.in_words())
    assert '2 items nested deeper than 100 were left out ("{\\"name\\": \\"deep' in said
    assert "an item longer than 2,097,152 bytes was left out" in said
    assert "an item of more than 20,000 parts was left out" in said
    assert 'an item with a "name" of more than 8,192 characters was left out' in said
    assert '2 items without a "name" were left out' in said


def test_no_more_items_are_taken_than_there_may_be() -> None:
    small, cursor = read(b'{"tools":[{"name":"a"},{"name":"b"}],"nextCursor":"n"}', most=1)
    assert (small.found, small.is_full, cursor) == ([{"name": "a"}], True, None)
    page = json.dumps({"tools": TOOLS, "nextCursor": "n"}).encode()
    items, cursor = read(page, most=100)
    assert items.found == TOOLS[:100]
    assert items.is_full
    assert cursor is None
    exactly, cursor = read(page, most=3_000)
    assert (len(exactly.found), exactly.is_full, cursor) == (3_000, False, "n")


@for_each("page", [b"[]", b"{}", b'{"tools":7}', b'{"tools":{}}', b'{"x":"' + b"a" * 99_999 + b'"}'])
def test_a_page_without_the_array_is_a_fault(page: bytes) -> None:
    with pytest.raises(WireFault, match='no array "tools"'):
        read(page)


def test_half_a_character_costs_nothing() -> None:
    found, _ = read(rb'{"tools":[{"name":"a\ud83d"},{"name":"b"}]}')
    assert [one["name"] for one in found.found] == ["a\ufffd", "b"]


HOSTILE = {
    "small items": b'{"tools":[' + b",".join([b'{"name":"a"}'] * 200_000) + b"]}",
    "one enormous item": b'{"tools":[{"name":"a","x":[' + b",".join([b"[]"] * 300_000) + b"]}]}",
    "junk before": b'{"x":[' + b",".join([b"{}"] * 300_000) + b'],"tools":[{"name":"a"}]}',
    "numbers": b'{"tools":[{"name":"a","x":[' + b",".join([b"1"] * 600_000) + b"]}]}",
    "escapes": b'{"tools":[{"name":"a","x":"' + b'\\"' * 600_000 + b'"}]}',
    "spaces": b'{"tools":[' + b" " * 2_000_000 + b'{"name":"a"}]}',
    "arrays": b'{"tools":[' + b",".join([b'[{"a":[{},{}]}]'] * 100_000) + b"]}",
    "realistic": json.dumps({"tools": TOOLS * 5}).encode(),
}


@for_each("name", HOSTILE)
def test_a_hostile_page_costs_its_own_items_and_is_read_no_further_than_it_may(name: str) -> None:
    items, cursor = read(HOSTILE[name], 10_000)
    assert cursor is None
    assert len(items.found) + items.left_out.total() <= 10_000
    assert items.is_full is (items.left_out.total() + len(items.found) == 10_000)


@for_each("raw", [b"[]", b'"a"', b"{", b'{"a":' + b"[" * 5_000 + b"]" * 5_000 + b"}"])
def test_what_is_no_bounded_object_is_refused(raw: bytes) -> None:
    with pytest.raises(WireFault):
        take_object(raw)


def sized(size: int) -> bytes:
    """An object of just so many bytes."""
    return b'{"name":"%b"}' % (b"x" * (size - len(b'{"name":""}')))


EDGES = {
    "bytes": (sized(bounds.ITEM_BYTES), sized(bounds.ITEM_BYTES + 1), "longer than 2,097,152 bytes"),
    "parts": (
        b'{"a":[%b]}' % b",".join([b"[]"] * (bounds.ITEM_PARTS - 2)),
        b'{"a":[%b]}' % b",".join([b"{}"] * (bounds.ITEM_PARTS - 1)),
        "of more than 20,000 parts",
    ),
    "depth": (
        json.dumps({"a": deep(bounds.DEPTH - 1), "b": deep(5)}).encode(),
        json.dumps({"a": 1, "b": [{"c": deep(bounds.DEPTH - 2)}]}).encode(),
        "nested deeper than 100",
    ),
    "sense": (b"{}", b'{"a":1', "that cannot be read"),
    "an object": (b'{"a":[]}', b"[{}]", "that is not an object"),
    "characters": (b'{"a":"\\ud83d"}', b'{"a":"\xff"}', "that cannot be read"),
}


@for_each("name", EDGES)
def test_each_bound_of_an_object_is_kept_at_its_edge(name: str) -> None:
    fits, does_not, why = EDGES[name]
    assert isinstance(take_object(fits), dict)
    with pytest.raises(WireFault) as caught:
        take_object(does_not)
    assert str(caught.value) == why


def test_a_name_fits_to_its_last_character_and_one_that_is_none_is_said() -> None:
    fits, long = "n" * bounds.NAME_CHARACTERS, "n" * (bounds.NAME_CHARACTERS + 1)
    items, _ = read(json.dumps({"tools": [{"name": one} for one in (fits, long, "", 7, None)]}).encode())
    assert items.found == [{"name": fits}]
    assert items.in_words() == [
        'an item with a "name" of more than 8,192 characters was left out',
        '3 items without a "name" were left out',
    ]


@for_each(
    ("said", "cursor"),
    [
        (b'"%b"' % (b"c" * (6 * bounds.NAME_CHARACTERS - 2)), "c" * (6 * bounds.NAME_CHARACTERS - 2)),
        (b'"%b"' % (b"c" * (6 * bounds.NAME_CHARACTERS - 1)), False),
        (b"[" * 2_000 + b"]" * 2_000, False),
        (b"7", 7),
        (b"null", None),
    ],
)
@for_each("filler", [0, 40_000])
def test_a_cursor_is_read_if_it_can_be_and_is_not_too_long(said: bytes, cursor: object, filler: int) -> None:
    page = b'{"tools":[{"name":"a"}],"x":"%b","nextCursor":%b}' % (b"x" * filler, said)
    items, found = read(page)
    assert items.found == [{"name": "a"}]
    assert (found, type(found)) == (cursor, type(cursor))
