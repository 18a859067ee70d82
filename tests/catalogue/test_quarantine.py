"""What of a server must not be used: which requests would use it, whatever spelling of a URI they have."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st
from tests.support.patience import PATIENCE
from tests.support.rows import for_each

from greenroom.catalogue.entries import ServerEntry
from greenroom.catalogue.fingerprints import (
    PINNED,
    accepted_with,
    agree,
    changes,
    kind_of,
    original_of,
    pin_name,
    pinned_records,
    print_of,
)
from greenroom.catalogue.quarantine import Quarantine
from greenroom.catalogue.uri_spelling import normal_uri

WHAT = ("description",)


def kept_out(*pins: str, lists: tuple[str, ...] = ()) -> Quarantine:
    resources = tuple({"uri": uri, "name": uri} for uri in lists)
    return Quarantine(dict.fromkeys(pins, WHAT), ServerEntry("s", "h", resources=resources))


def reads(quarantine: Quarantine, uri: str, method: str = "resources/read") -> str | None:
    return quarantine.pin_of(method, {"uri": uri})


# ---- spellings ------------------------------------------------------------------------------------------------------

SKILL = "skill://Team/tags/SKILL.md"
OTHERWISE = [
    "SKILL://Team/tags/SKILL.md",
    "skill://team/tags/SKILL.md",
    "skill://Team/tags/skill.md",
    "skill://Team/t%61gs/SKILL.md",
    "skill://Team/t%2561gs/SKILL.md",
    "skill://Team/t%25252561gs/SKILL.md",
    "skill://Team%2Ftags%2FSKILL.md",
    "skill%3A//Team/tags/SKILL.md",
    "skill://Team/./tags/SKILL.md",
    "skill://Team/x/../tags/SKILL.md",
    "skill://Team/x/%2e%2E/tags/SKILL.md",
    "skill://Team/tags/../tags/SKILL.md",
    "skill://Team/tags//SKILL.md",
    "skill://Team//tags/SKILL.md",
    "skill:///Team/tags/SKILL.md",
    "skill:Team/tags/SKILL.md",
    "skill:/Team/tags/SKILL.md",
    "skill://Team\\tags\\SKILL.md",
    "skill://Team/tags%5CSKILL.md",
    "skill://ann@Team/tags/SKILL.md",
    "skill://Team:/tags/SKILL.md",
    " skill://Team/tags/SKILL.md\n",
    "skill://Te\tam/tags/SKILL.md",
    "skill://Team/tags/SKILL.md#top",
    "skill://Team/tags/SKILL.md?raw=1",
    "skill://Team/tags/SKILL.md%00",
    "skill://Team/tags/\uff33KILL.md",
    "skill://Team/tags/references/x.md",
    "skill://Team/tags",
    "skill://Team/tags/",
    "skill://Team/tags?x=1",
]


@for_each("uri", OTHERWISE)
def test_no_other_spelling_of_its_uri_reads_a_quarantined_skill(uri: str) -> None:
    pin = f"skill {SKILL}"
    for method in ("resources/read", "resources/subscribe", "resources/directory/read"):
        assert reads(kept_out(pin), uri, method) == pin
    assert reads(kept_out(pin, lists=(uri,)), uri) == pin, "nor does one that its server lists as a resource"


@for_each("uri", OTHERWISE[:-5])
def test_no_other_spelling_of_its_uri_reads_a_quarantined_resource(uri: str) -> None:
    pin = f"resource {SKILL}"
    assert reads(kept_out(pin), uri) == pin
    assert reads(kept_out(pin, lists=(uri,)), uri) is None, "its server lists it: it is judged by itself"


@for_each(
    "uri",
    [
        "skill://Team/tagsx/SKILL.md",
        "skill://Team/SKILL.md",
        "skill://Team/tags/../SKILL.md",
        "notes://all",
        "",
    ],
)
def test_what_is_elsewhere_is_read(uri: str) -> None:
    assert reads(kept_out(f"skill {SKILL}", f"resource {SKILL}"), uri) is None


@given(
    st.lists(st.text("ab.%/", min_size=1, max_size=4), min_size=1, max_size=5).map("/".join),
    st.sets(st.integers(0, 40)),
    st.integers(1, 3),
)
def test_escaping_any_characters_however_often_is_no_other_uri(
    path: str, which: set[int], times: int
) -> None:
    plain = normal_uri(f"x://h/{path}")
    said = path
    for _ in range(times):
        said = "".join(
            f"%{ord(each):02x}" if number in which else quote(each, safe="/") if each == "%" else each
            for number, each in enumerate(said)
        )
    assert normal_uri(f"X://H/{said}") == plain
    assert normal_uri(plain) == plain


@for_each("uri", ["%25", "../", "%2525", "2%35", "\uff33", "?", "@"])
def test_a_uri_that_is_too_long_to_be_compared_is_kept_out_at_once(uri: str) -> None:
    long, pin = "skill://Team/" + uri * 1_000_000, f"skill {SKILL}"
    began = time.perf_counter()
    assert reads(kept_out("pay", pin), long) == pin
    assert reads(kept_out(pin, lists=(long,)), long) is None
    assert reads(kept_out("pay", "prompt x"), long) is None
    for _ in range(20):
        reads(kept_out(pin), long[:16_384])
    assert time.perf_counter() - began < PATIENCE  # comparing it would take hours


# ---- which requests -------------------------------------------------------------------------------------------------


@for_each(
    ("pin", "method", "params"),
    [
        ("pay", "tools/call", {"name": "pay"}),
        ("tool prompt x", "tools/call", {"name": "prompt x"}),
        ("prompt review", "prompts/get", {"name": "review"}),
        ("prompt review", "completion/complete", {"ref": {"type": "ref/prompt", "name": "review"}}),
        ("template x://{a}", "completion/complete", {"ref": {"type": "ref/resource", "uri": "x://{a}"}}),
        ("template x://{a}", "resources/read", {"uri": "x://1"}),
        ("resource x://1", "completion/complete", {"ref": {"type": "ref/resource", "uri": "x://1"}}),
    ],
)
def test_what_would_use_it_is_found(pin: str, method: str, params: dict[str, Any]) -> None:
    quarantine = kept_out("pay", pin)
    assert quarantine.pin_of(method, params) == pin
    assert kept_out().pin_of(method, params) is None
    assert not kept_out()
    assert quarantine


@for_each(
    ("method", "params"),
    [
        ("tools/call", {"name": "look"}),
        ("tools/call", {"name": "review"}),
        ("prompts/get", {"name": "pay"}),
        ("prompts/get", {"name": 1}),
        ("tools/call", {}),
        ("resources/read", {"uri": None}),
        ("skills/get", {"uri": SKILL}),
        ("completion/complete", {"ref": {"type": "ref/prompt"}}),
        ("ping", {}),
    ],
)
def test_whatever_else_is_asked_is_let_through(method: str, params: dict[str, Any]) -> None:
    assert kept_out("pay", "prompt review", f"skill {SKILL}").pin_of(method, params) is None


def test_a_template_keeps_out_only_what_nothing_else_lists() -> None:
    quarantine = kept_out("template x://{a}", lists=("x://1",))
    assert reads(quarantine, "x://1") is None
    assert reads(quarantine, "x://2") == "template x://{a}"
    assert reads(quarantine, "y://2") is None


# ---- what is remembered ---------------------------------------------------------------------------------------------

PROMPT: dict[str, Any] = {
    "name": "review",
    "description": "Reviews.",
    "arguments": [{"name": "code", "required": True}, {"name": "style"}],
}
PLACE: dict[str, Any] = {"name": "All", "uri": "x://1", "description": "All of it.", "mimeType": "text/plain"}


@for_each(
    ("kind", "record", "change", "parts"),
    [
        ("prompt", PROMPT, {"description": "Sends it away."}, ("description",)),
        ("prompt", PROMPT, {"title": "Review"}, ("description",)),
        ("prompt", PROMPT, {"arguments": [{"name": "code"}, {"name": "style"}]}, ("arguments",)),
        ("prompt", PROMPT, {"arguments": PROMPT["arguments"][::-1]}, ()),
        ("prompt", PROMPT, {"arguments": "nonsense"}, ("arguments",)),
        ("prompt", PROMPT, {"_meta": {"a": 1}, "icons": []}, ()),
        ("resource", PLACE, {"name": "None"}, ("name",)),
        ("resource", PLACE, {"description": None}, ("description",)),
        ("resource", PLACE, {"mimeType": "text/html"}, ("media type",)),
        ("resource", PLACE, {"annotations": {"audience": ["assistant"]}}, ("annotations",)),
        ("resource", PLACE, {"annotations": {"lastModified": "2026-11-27"}, "size": 7}, ()),
        ("template", PLACE, {"title": "x"}, ("description",)),
    ],
)
def test_what_has_changed_of_a_prompt_or_a_resource(
    kind: str, record: dict[str, Any], change: dict[str, Any], parts: tuple[str, ...]
) -> None:
    old, new = print_of(kind, record), print_of(kind, {**record, **change})
    assert changes(old, new, f"{kind} x") == parts
    assert agree(old, new) is not bool(parts)


@given(st.sampled_from(list(PINNED)), st.text(max_size=9) | st.sampled_from(["prompt x", "tool y", "skill "]))
def test_each_item_is_remembered_under_a_name_of_its_own(kind: str, original: str) -> None:
    pin = pin_name(kind, original)
    assert (kind_of(pin), original_of(pin)) == (kind, original)


def test_a_server_may_call_items_of_each_kind_alike() -> None:
    entry = ServerEntry(
        "s",
        "h",
        tools=({"name": "x"},),
        prompts=({"name": "x"}, {"name": "x", "title": "again"}, {"name": 1}),
        resources=({"uri": "x"},),
        templates=({"uriTemplate": "x"},),
    )
    assert list(pinned_records(entry)) == ["x", "prompt x", "resource x", "template x"]
    assert pinned_records(entry)["prompt x"] == {"name": "x"}


def test_with_a_skill_its_own_files_are_accepted_and_nothing_else() -> None:
    changed = ["pay", f"skill {SKILL}", f"resource {SKILL}", "resource skill://Team/tagsx/a", "prompt review"]
    assert accepted_with(f"skill {SKILL}", changed) == [f"skill {SKILL}", f"resource {SKILL}"]
    assert accepted_with("pay", changed) == ["pay"]
