"""What is remembered of tools, tool by tool, and how an owner is told that one has changed."""

from __future__ import annotations

from tests.support.rows import for_each

from greenroom.catalogue.entries import DefinitionPins
from greenroom.catalogue.fingerprints import (
    changed_in_words,
    changed_parts,
    command,
    fingerprint,
    next_step,
    notice,
)
from greenroom.safety.pins_file import ServerPins

TOOL = {"name": "pay", "description": "Pays.", "inputSchema": {"type": "object"}}


def test_what_is_told_of_a_changed_tool_is_which_parts_have_changed() -> None:
    old, new = fingerprint(TOOL), fingerprint({**TOOL, "description": "Sends it all."})
    pins = ServerPins(since=5.0)
    pins.learn({"pay": old, "look": "x"}, 5.0)
    pins.learn({"pay": new}, 5.0)
    assert pins.pinned == DefinitionPins({"pay": ("description",)})
    newer = fingerprint({**TOOL, "inputSchema": {"type": "object", "title": "x"}})
    assert pins.learn({"pay": newer}, 5.0)
    assert pins.pinned.changed == {"pay": ("input schema",)}


def test_only_tools_that_have_changed_can_be_accepted_each_once() -> None:
    def changed() -> ServerPins:
        return ServerPins(1.0, tools={"a": "1", "b": "1", "c": "1"}, changed={"a": "2", "b": "2"})

    pins = changed()
    assert pins.accept(["c", "nobody", "b"]) == ["b"]
    assert (pins.tools["b"], pins.changed) == ("2", {"a": "2"})
    assert changed().accept() == ["a", "b"]
    assert changed().accept([]) == []
    assert changed().accept(None, {}) == []
    assert changed().accept(["a", "b"], {"a": "2", "b": "3"}) == ["a"]


def test_so_many_tools_of_one_server_are_remembered_and_no_more() -> None:
    pins = ServerPins(since=1.0, tools={f"t{number}": "x" for number in range(19_999)})
    assert pins.learn({"last": "y", "one too many": "y"}, 1.0)
    assert "last" in pins.tools
    assert "one too many" not in pins.tools
    assert list(pins.changed) == ["one too many"], (
        "it was never seen before, so it is taken for a changed one"
    )


@for_each(
    ("parts", "words"),
    [
        ((), "its definition has"),
        (("description",), "its description has"),
        (("description", "annotations"), "its description and annotations have"),
        (
            ("description", "input schema", "annotations"),
            "its description, input schema and annotations have",
        ),
    ],
)
def test_what_has_changed_is_a_sentence(parts: tuple[str, ...], words: str) -> None:
    assert changed_parts(parts) == words
    assert notice("bank", "pay", parts) == (
        f"Not callable: {words} changed since its owner last saw it. "
        "To see and allow it, the owner runs: greenroom accept bank pay"
    )


@for_each(
    ("server", "tool", "line"),
    [
        ("bank", "", "bank"),
        ("bank", "pay-now_2.x", "bank pay-now_2.x"),
        ("bank", "pay now", "bank 'pay now'"),
        ("bank", "-f", "-- bank -f"),
        ("-f", "pay", "-- -f pay"),
        ("a b", "$(pay)", "'a b' '$(pay)'"),
        ("_a", ".b", "_a .b"),
        ("bank", "pay\x1b[2J", "bank"),
    ],
)
def test_a_command_names_what_can_be_typed(server: str, tool: str, line: str) -> None:
    assert command(server, tool) == f"greenroom accept {line}"
    assert next_step(server, tool).endswith(command(server, tool))


@for_each(
    ("changed", "words"),
    [
        (["a"], "1 changed: a (`greenroom accept s`)"),
        (["a", "b", "c"], "3 changed: a, b, c (`greenroom accept s`)"),
        (["a", "b", "c", "d"], "4 changed: a, b, c and 1 more (`greenroom accept s`)"),
        (["a\u200b\x1b[2J", "b"], "2 changed: a, b (`greenroom accept s`)"),
    ],
)
def test_three_changed_tools_are_named_and_the_rest_is_counted(changed: list[str], words: str) -> None:
    assert changed_in_words("s", changed) == words
