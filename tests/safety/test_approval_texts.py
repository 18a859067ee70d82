"""What a person is shown of a call that waits for a yes: how much of it, and that nothing is hidden in it."""

from __future__ import annotations

import json
from typing import Any

from tests.support.rows import for_each

from greenroom.catalogue.namespace import Kind, Target
from greenroom.config.model import Approve
from greenroom.safety.approval import (
    ApprovalRequest,
    Verdict,
    asks_about,
    form,
    grant,
    hints_of,
    question,
    verdict_of,
)


def as_it_is(text: str) -> str:
    return text


def of(size: int) -> bytes:
    """Arguments of exactly this many bytes."""
    return json.dumps({"a": "y" * (size - 9)}).encode()


def test_a_question_names_the_tool_the_server_and_the_arguments_on_three_lines() -> None:
    assert question("files", "files_delete", b'{"path": "/a"}', as_it_is) == (
        'Greenroom asks before it calls the tool "files_delete" of the server "files".\n'
        'Arguments: {"path": "/a"}\n'
        "Allow this call?"
    )


@for_each(("size", "is_cut"), [(1_999, False), (2_000, False), (2_001, True), (16_000, True), (70_000, True)])
def test_two_thousand_characters_of_arguments_are_shown_and_a_cut_is_said(size: int, is_cut: bool) -> None:
    raw = of(size)
    assert len(raw) == size
    said = question("s", "t", raw, as_it_is).split("\n")[1].removeprefix("Arguments: ")
    cut = f"… (cut: the arguments have {size:,} bytes, and not all of them are shown)"
    assert said == (raw.decode()[:2_000] + cut if is_cut else raw.decode())


def test_what_is_left_short_by_hiding_still_says_that_it_was_cut() -> None:
    """Behind what was looked at there may be anything."""
    for size, is_cut in ((16_000, False), (16_001, True)):
        said = question("s", "t", of(size), lambda text: text.replace("y", ""))
        assert ("not all of them are shown" in said) is is_cut


@for_each(("length", "is_cut"), [(127, False), (128, False), (129, True), (500, True)])
def test_a_name_is_shown_up_to_a_hundred_and_twenty_eight_characters(length: int, is_cut: bool) -> None:
    name = "n" * length
    head = question(name, name, b"{}", as_it_is).split("\n")[0]
    shown = "n" * 128 + "…" if is_cut else name
    assert head == f'Greenroom asks before it calls the tool "{shown}" of the server "{shown}".'


def test_secrets_are_hidden_in_the_arguments_and_in_the_tools_name() -> None:
    said = question("s", "t-hunter22", b'{"a": "hunter22"}', lambda text: text.replace("hunter22", "***"))
    assert "hunter22" not in said
    assert said.count("***") == 2


def test_neither_a_name_nor_an_argument_adds_a_line_or_hides_a_character() -> None:
    odd = "a\r\nb\x1b[2J\u202ec\u200bd"
    for text in (question(odd, "t", b"{}", as_it_is), question("s", odd, odd.encode(), as_it_is)):
        assert text.count("\n") == 2
        assert "\r" not in text
        assert text.isprintable() or text.replace("\n", "").isprintable()
        assert "\\u202e" in text


def test_the_form_has_the_question_and_three_answers_one_of_which_is_required() -> None:
    said = form("Allow?")
    assert said["message"] == "Allow?"
    assert "default" not in json.dumps(said), "a client could fill that in"
    schema = said["requestedSchema"]
    assert (schema["type"], schema["required"]) == ("object", ["allow"])
    assert list(schema["properties"]) == ["allow"]
    assert schema["properties"]["allow"]["type"] == "string"
    assert schema["properties"]["allow"]["enum"] == ["once", "session", "deny"]
    for answer in ("once", "session", "deny"):
        assert verdict_of({"action": "accept", "content": {"allow": answer}}) is Verdict(answer)


def test_the_arguments_of_a_request_are_complete() -> None:
    request = ApprovalRequest("s", "s_t", "t", None, {}, "?", b'{"a": [1, {"b": null}]}')
    assert request.arguments == {"a": [1, {"b": None}]}
    assert "raw" not in repr(request)


def test_an_allowance_is_the_same_for_the_same_and_takes_any_name() -> None:
    assert grant("s", "t", b"{}") == grant("s", "t", b"{}")
    assert grant("s\ud800", "t", b"{}") != grant("s", "t", b"{}")
    grants = [
        ("s", "a", b"{}"),
        ("s", "b", b"{}"),
        ("t", "a", b"{}"),
        ("s", "a", b'{"x":1}'),
        ("sa", "", b"{}"),
    ]
    grants += [("s", "a{}", b""), ("1 a", "b", b""), ("1", " ab", b"")]
    assert len({grant(*each) for each in grants}) == len(grants)


def one(kind: Kind = "tool", override: Any = None, **record: Any) -> Target:
    return Target("s_shown", "s", kind, "do", {"name": "do", **record}, "", None, override)


def test_hints_are_those_of_a_tool_and_only_if_they_are_an_object() -> None:
    assert hints_of(one(annotations={"readOnlyHint": True})) == {"readOnlyHint": True}
    for target in (None, one(), one(annotations=["readOnlyHint"]), one("resource", annotations={"a": 1})):
        assert hints_of(target) == {}


def test_a_list_names_a_tool_by_its_own_its_new_and_its_shown_name() -> None:
    from greenroom.catalogue.overrides import ToolOverride

    renamed = one(override=ToolOverride(rename="act"))
    for name in ("do", "act", "s_do", "s_act", "s_shown", "s-shown"):
        assert asks_about((name,), "s", "do", renamed), name
    assert not asks_about(("act",), "s", "do", one())
    assert not asks_about(("s_shown",), "s", "do", None)
    assert not asks_about((), "s", "do", renamed)
    resource = one("resource", annotations={})
    assert asks_about(("do",), "s", "do", resource)
    assert [rule.value for rule in Approve if asks_about(rule, "s", "do", resource)] == ["all"]
