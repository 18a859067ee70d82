"""What is wrong with the entry of a skill, what a good one says, and how it is remembered."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import pytest
from tests.support.rows import for_each

from greenroom.catalogue.entries import ServerEntry
from greenroom.catalogue.fingerprints import (
    agree,
    changes,
    fingerprint,
    kind_of,
    pin_name,
    prints_of,
    skill_print,
)
from greenroom.catalogue.namespace import is_ours, qualified, unqualified
from greenroom.catalogue.skills import (
    SkillFile,
    content_of,
    fault_of,
    files_of,
    has_skills,
    is_introduced_as,
    is_within,
    weight_of,
    without_front_matter,
)
from greenroom.protocol.bounds import SKILL_BYTES, SKILL_FILES

URI = "skill://team/tags/SKILL.md"
DIGEST = f"sha256:{'0' * 64}"


def file(uri: str = URI, **more: Any) -> dict[str, Any]:
    return {"uri": uri, "size": 3, "digest": DIGEST, **more}


def entry(*files: Any, **more: Any) -> dict[str, Any]:
    said = {"name": "tags", "description": "How we tag"}
    return {"uri": URI, "frontmatter": said, "resources": [file(), *files], **more}


def front(**said: Any) -> dict[str, Any]:
    return entry(frontmatter={"name": "tags", "description": "How we tag", **said})


@for_each(
    "good",
    [
        entry(),
        entry(file("skill://team/tags/a/b.md"), extra=1),
        entry(resources="dynamic"),
        entry(*(file(f"skill://team/tags/{n}") for n in range(SKILL_FILES - 1))),
        entry(file("skill://team/tags/a", size=SKILL_BYTES - 3)),
        front(license="MIT", metadata={"a": [1]}),
        front(description="x" * 1024),
        {**entry(resources="dynamic"), "uri": "github://owner/tags/SKILL.md"},
    ],
)
def test_a_whole_entry_has_no_fault(good: dict[str, Any]) -> None:
    assert fault_of(good) == ""


@for_each(
    ("bad", "why"),
    [
        (7, "not an object"),
        (entry(uri=None), "no uri"),
        (entry(frontmatter=[]), "no frontmatter"),
        (front(name="Tags"), "name"),
        (front(name="a--b"), "name"),
        (front(name="-a"), "name"),
        (front(name="a" * 65), "name"),
        (front(name=None), "name"),
        (front(description=" "), "description"),
        (front(description="x" * 1025), "description"),
        (front(description=None), "description"),
        (front(name="other"), "uri does not end in"),
        (entry(uri="skill://team/tags/skill.md"), "uri does not end in"),
        (entry(uri="skill://te\u200bam/tags/SKILL.md"), "uri does not end in"),
        (entry(resources=None), "neither an array"),
        (entry(resources={}), "neither an array"),
        (entry(resources=[]), "each other file once"),
        (entry(file()), "each other file once"),
        (entry(file("skill://team/tags-too/a")), "outside"),
        (entry(file("skill://team/tags/../a")), "outside"),
        (entry(file("skill://team/tags/a//b")), "outside"),
        (entry(file("skill://team/tags/")), "outside"),
        (entry(file("skill://team/tags/a\\b")), "outside"),
        (entry(file("skill://team/tags/a\u202eb")), "outside"),
        (entry(file("skill://team/tags/a", size=-1)), "size"),
        (entry(file("skill://team/tags/a", size=True)), "size"),
        (entry(file("skill://team/tags/a", size="3")), "size"),
        (entry(file("skill://team/tags/a", digest=DIGEST.upper())), "digest"),
        (entry(file("skill://team/tags/a", digest=None)), "digest"),
        (entry("skill://team/tags/a"), "outside"),
        (entry(*(file(f"skill://team/tags/{n}") for n in range(SKILL_FILES))), "more than 512 files"),
        (entry(file("skill://team/tags/a", size=SKILL_BYTES - 2)), "larger than 16,777,216 bytes"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_an_entry_is_said(bad: Any, why: str) -> None:
    assert why in fault_of(bad)


def test_a_server_has_skills_if_it_says_so() -> None:
    assert has_skills({"extensions": {"io.modelcontextprotocol/skills": {}}})
    assert not has_skills({"extensions": {"io.modelcontextprotocol/ui": {}}})
    assert not has_skills({"extensions": ["io.modelcontextprotocol/skills"], "resources": {}})


def test_files_are_named_by_their_place_in_the_folder() -> None:
    files = files_of(entry(file("skill://team/tags/a/b.md"))) or ()
    assert [one.path for one in files] == ["SKILL.md", "a/b.md"]
    assert files_of(entry(resources="dynamic")) is None
    assert weight_of([entry(file("skill://team/tags/a"))]) == 3
    assert (weight_of(None), weight_of(())) == (0, 0)


def test_a_content_is_accepted_by_its_size_and_its_digest() -> None:
    digest = f"sha256:{hashlib.sha256(b'abc').hexdigest()}"
    assert SkillFile("a", "u", 3, digest).accepts(b"abc")
    assert not SkillFile("a", "u", 3, digest).accepts(b"abd")
    assert not SkillFile("a", "u", 4, digest).accepts(b"abc")


def test_the_content_of_a_file_is_its_text_or_its_bytes() -> None:
    raw = bytes(range(256))
    assert content_of({"contents": [{"uri": "u", "text": "é"}]}) == "é".encode()
    assert content_of({"contents": [{"uri": "u", "blob": base64.b64encode(raw).decode()}]}) == raw
    for other in ({}, {"contents": []}, {"contents": [{"blob": "é"}]}, {"contents": [{"text": "a"}] * 2}):
        assert content_of(other) is None


def test_the_front_matter_is_left_away() -> None:
    for head in ("---\nname: a\n---\n", "\ufeff---\r\nname: a\r\n---\r\n"):
        assert without_front_matter(f"{head}Body.\n---\nMore.\n") == "Body.\n---\nMore.\n"
    for plain in ("Body.\n", "---\nname: a\n", "a\n---\nb\n---\nc"):
        assert without_front_matter(plain) == plain


def test_what_is_in_a_folder_is_known_by_its_uri() -> None:
    roots = {"skill://team/tags"}
    assert is_within("skill://team/tags/a", roots)
    assert is_within("skill://team/tags/a/b", roots)
    assert not is_within("skill://team/tags", roots)
    assert not is_within("skill://team/tags-too/a", roots)
    assert not is_within("", roots)


@pytest.mark.parametrize("uri", ["skill://a/SKILL.md", "skill://greenroom/a/SKILL.md", "SKILL://a"])
def test_a_qualified_uri_of_a_skill_says_its_server_and_the_original(uri: str) -> None:
    long = qualified("my/server", uri)
    assert is_ours(long)
    assert unqualified(long) == ("my/server", uri)


def test_a_skill_is_remembered_by_its_front_matter_and_its_files() -> None:
    old = skill_print(entry(file("skill://team/tags/a")))
    same = entry(_meta={"x": 1})
    same["resources"] = [file("skill://team/tags/a"), file()]
    pin = pin_name("skill", URI)
    assert agree(old, skill_print(same))
    for new, parts in (
        (entry(), ("list of files",)),
        (entry(file("skill://team/tags/a", size=4)), ("list of files",)),
        (entry(resources="dynamic"), ("list of files",)),
        ({**same, "frontmatter": {**same["frontmatter"], "license": "MIT"}}, ("front matter",)),
    ):
        assert not agree(old, skill_print(new))
        assert changes(old, skill_print(new), pin) == parts


def test_no_tool_is_remembered_in_the_place_of_a_skill() -> None:
    tool: dict[str, Any] = {"name": f"skill {URI}", "inputSchema": {}}
    pins = [
        pin_name("tool", tool["name"]),
        pin_name("skill", URI),
        pin_name("tool", "tool a"),
        pin_name("tool", "a"),
    ]
    assert len(set(pins)) == 4
    assert [kind_of(pin) for pin in pins] == ["tool", "skill", "tool", "tool"]
    listed = ServerEntry("s", "h", tools=(tool,), skills=(entry(),))
    assert prints_of(listed, pins[:2]) == {pins[0]: fingerprint(tool), pins[1]: skill_print(entry())}


ABOUT: dict[str, Any] = {
    "name": "tags",
    "description": "How to: tag",
    "license": None,
    "metadata": {"version": "1.0", "since": "2026-11-27", "draft": "no", "of": [1, "2"]},
}
WRITTEN = """name: tags
description: "How to: tag"
license:
metadata: {version: 1.0, since: 2026-11-27, draft: no, of: [1, 2]}
"""


@for_each(
    ("written", "is_so"),
    [
        (WRITTEN, True),
        (WRITTEN.replace("1.0", "1.1"), False),
        (WRITTEN.replace("no,", "yes,"), False),
        (WRITTEN.replace("[1, 2]", "[2, 1]"), False),
        (WRITTEN.replace("[1, 2]", "[1, 2, 3]"), False),
        (WRITTEN.replace("[1, 2]", "{1: 2}"), False),
        (WRITTEN.replace("license:", "license: MIT"), False),
        (WRITTEN + "allowed-tools: Bash\n", False),
        (WRITTEN + "name: other\n", False),
        (WRITTEN + "name: tags\n", False),
        ("*nothing\n", False),
        ("[" * 60_000 + "\n", False),
        ("# " + "x" * 70_000 + "\n" + WRITTEN, False),
        ("a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nd: [*c, *c]\n" + WRITTEN, False),
    ],
)
def test_a_skill_begins_with_the_front_matter_of_its_entry(written: str, is_so: bool) -> None:
    for begin, end in (("---\n", "---\nBody.\n"), ("\ufeff--- \r\n", "---")):
        assert is_introduced_as(ABOUT, f"{begin}{written}{end}".encode()) is is_so
    assert not is_introduced_as(ABOUT, written.encode())
    typed = {
        **ABOUT,
        "license": "",
        "metadata": {"version": 1, "since": "2026-11-27", "draft": False, "of": [1, 2]},
    }
    assert is_introduced_as(typed, f"---\n{written}---\n".encode()) is is_so


@for_each("content", [b"", b"\xff\xfe", b"---\n---\n", b"---\nname: tags\n", b"--- \nx\n---"])
def test_what_has_no_front_matter_is_not_introduced(content: bytes) -> None:
    assert not is_introduced_as(ABOUT, content)
