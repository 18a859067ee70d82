"""What search has made of tools is kept beside the catalogue: the next first search is quick, and finds the same."""

from __future__ import annotations

import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import in_real_time

from greenroom import Greenroom
from greenroom.catalogue import search_cache
from greenroom.catalogue.entries import ServerEntry
from greenroom.catalogue.index import Index
from greenroom.catalogue.namespace import Target
from greenroom.catalogue.ranking import ToolDocument
from greenroom.catalogue.search import search
from greenroom.catalogue.search_cache import SearchCache, key_of
from greenroom.catalogue.search_file import SearchFile
from greenroom.catalogue.store import CatalogueFile, catalogue_keys
from greenroom.config.model import PrefixMode, ServerDefinition, Settings
from greenroom.config.parse import parse_config
from greenroom.gateway.offline_catalogue import open_catalogue
from greenroom.testing.fake_servers import FakeServer, fake_connectors, tool

NOW = 1_000_000_000.0
DAY = 86_400.0
QUERIES = ("create issue", "file", "the", "delete removes", "s creat_issue", "repositry", "owner", "")

Listed = Sequence[Mapping[str, Any]]


def entries_of(servers: Mapping[str, Listed]) -> dict[str, ServerEntry]:
    return {
        name: ServerEntry(name, "h", tools=tuple(tools), fetched_at=NOW) for name, tools in servers.items()
    }


def index_of(
    servers: Mapping[str, Listed],
    forms: SearchCache | None = None,
    overrides: Mapping[str, Any] = {},
    settings: Settings = Settings(),  # noqa: B008
) -> Index:
    definitions = {
        name: ServerDefinition(name, command="x", tool_overrides=dict(overrides)) for name in servers
    }
    return Index.build(definitions, entries_of(servers), settings, forms=forms)


def found(index: Index) -> list[Any]:
    """All that search finds, with its points."""
    return [
        [(match.target.name, match.score) for match in search(index, query, limit=1_000).matches]
        for query in QUERIES
    ]


def file_in(folder: Path, max_age: float = 7 * DAY) -> SearchFile:
    return SearchFile(folder / "catalogue.json", max_age=max_age, lock_timeout=0.05)


def keep(
    file: SearchFile,
    servers: Mapping[str, Listed],
    now: float = NOW,
    settings: Settings = Settings(),  # noqa: B008
) -> list[str]:
    """Search in these servers with what the file has, and write what is new. Returns the keys that were written."""
    written = list[str]()

    def on_news(news: Mapping[str, Sequence[Target]]) -> None:
        written.extend(news)
        file.save(news, now)

    found(index_of(servers, loaded(file, servers, on_news), settings=settings))
    return written


def loaded(file: SearchFile, servers: Mapping[str, Listed], on_news: Any = None) -> SearchCache:
    return SearchCache(file.load(map(key_of, entries_of(servers).values())), on_news)


def read_nothing(patched: pytest.MonkeyPatch) -> None:
    """From now on, a tool that is read again is a failure."""

    def of(*_: Any, **__: Any) -> ToolDocument:
        raise AssertionError("a tool was read that was kept")

    patched.setattr(ToolDocument, "of", of)


GITHUB = [
    tool("create_issue", "Create an issue in a repository"),
    {
        "name": "delete_file",
        "description": "Removes one file. It is gone for ever.",
        "inputSchema": {"properties": {"owner": {"description": "Whose", "enum": ["me", 1]}}},
    },
]
NOTES = [tool("the", "Read the note"), tool("createNote", "Create a note")]
SERVERS: Mapping[str, Listed] = {"github": GITHUB, "s": NOTES}


# ---- at the doors ----


@in_real_time
async def test_the_first_search_of_the_next_room_reads_no_tool_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = {"github": FakeServer(tools=GITHUB), "notes": FakeServer(tools=NOTES)}
    config = {"mcpServers": {name: {"command": "fake"} for name in servers}}

    def room() -> Greenroom:
        cache = tmp_path / "catalogue.json"
        return Greenroom.open(config, cache_path=cache, connectors=fake_connectors(servers), bootstrap=True)

    async with room() as first:
        await first.catalogued()
        before = [first.search(query or "x").matches for query in QUERIES]
    assert stat.S_IMODE((tmp_path / "catalogue.search").stat().st_mode) == 0o600
    written = (tmp_path / "catalogue.search").read_bytes()
    with monkeypatch.context() as patched:
        read_nothing(patched)
        async with room() as second:
            after = [second.search(query or "x").matches for query in QUERIES]
    assert [[(m.target.name, m.score) for m in page] for page in after] == [
        [(m.target.name, m.score) for m in page] for page in before
    ]
    assert (tmp_path / "catalogue.search").read_bytes() == written, "nothing was new"


@in_real_time
async def test_who_searches_in_a_thread_of_his_own_keeps_it_too(tmp_path: Path) -> None:
    config = {"mcpServers": {"github": {"command": "fake"}}}
    servers = {"github": FakeServer(tools=GITHUB)}

    async with Greenroom.open(
        config,
        cache_path=tmp_path / "catalogue.json",
        connectors=fake_connectors(servers),
        bootstrap=True,
    ) as room:
        await room.catalogued()
        page = await anyio.to_thread.run_sync(room.search, "create issue")
        assert page.total
        assert b"createissu" in (tmp_path / "catalogue.search").read_bytes()


def test_a_command_that_searches_the_cache_keeps_what_it_made_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    config = parse_config({"mcpServers": {"github": {"command": "x"}}}, environ={})
    key = catalogue_keys(config)["github"]
    entry = ServerEntry("github", key, tools=tuple(GITHUB), fetched_at=NOW)
    CatalogueFile(tmp_path / "greenroom" / "catalogue.json").save([entry], NOW)
    monkeypatch.setattr("time.time", lambda: NOW)
    first = found(open_catalogue(config).index)
    read_nothing(monkeypatch)
    assert found(open_catalogue(config).index) == first


@in_real_time
async def test_it_never_takes_the_place_of_the_catalogue(tmp_path: Path) -> None:
    config = {"mcpServers": {"github": {"command": "fake"}}}
    cache, connectors = tmp_path / "known.search", fake_connectors({"github": FakeServer(tools=GITHUB)})

    for asks in (True, False):
        opened = Greenroom.open(config, cache_path=cache, connectors=connectors, bootstrap=asks)
        async with opened as room:
            await room.catalogued()
            assert room.search("create issue").total


# ---- what is found does not depend on it ----

TEXTS = st.lists(
    st.sampled_from(
        ["create", "Issues", "the", "file.", "ïssue", "half \ud83d", "removing", "pr", "k8s", "owner"]
    ),
    max_size=5,
).map(" ".join)
SCHEMAS = st.none() | st.dictionaries(
    st.sampled_from(["owner", "issue_id", "the"]),
    st.fixed_dictionaries({"description": TEXTS}) | st.integers(0, 2**70),
    max_size=2,
).map(lambda properties: {"type": "object", "properties": properties})
TOOLS = st.lists(
    st.builds(
        lambda name, text, schema: {"name": name, "description": text, "inputSchema": schema},
        st.sampled_from(["create_issue", "deleteFile", "the", "it s", "hid\u200bden"]),
        TEXTS,
        SCHEMAS,
    ),
    max_size=3,
)
CATALOGUES = st.dictionaries(st.sampled_from(["s", "github", "s-s", "the"]), TOOLS, max_size=3)


@given(CATALOGUES, CATALOGUES, CATALOGUES)
def test_a_search_finds_the_same_with_a_file_of_an_older_catalogue(
    older: Mapping[str, Listed], old: Mapping[str, Listed], now: Mapping[str, Listed]
) -> None:
    with TemporaryDirectory() as folder:
        file = file_in(Path(folder))
        for catalogue in (older, old):
            keep(file, catalogue)
        assert found(index_of(now, loaded(file, now))) == found(index_of(now))


@given(st.data())
def test_a_damaged_file_changes_nothing_and_is_replaced(data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        file = file_in(Path(folder))
        keep(file, SERVERS)
        whole = file.path.read_bytes()
        at = data.draw(st.integers(0, len(whole) - 1))
        damaged = data.draw(
            st.sampled_from(
                [
                    whole[:at],
                    whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :],
                    whole[at:],
                    b"{}",
                ]
            )
        )
        file.path.write_bytes(damaged)
        expected = found(index_of(SERVERS))
        assert found(index_of(SERVERS, loaded(file, SERVERS))) == expected
        keep(file, SERVERS)
        assert keep(file, SERVERS) == [], "the file is whole again"
        assert found(index_of(SERVERS, loaded(file, SERVERS))) == expected


def test_a_file_of_another_form_counts_for_nothing(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    keep(file, SERVERS)
    content = file.path.read_bytes()
    once = msgspec.msgpack.encode(("2", {"h s": (NOW, b"", b"")}))
    for other in (b"later " + content, content[1:], once):
        file.path.write_bytes(other)
        assert loaded(file, SERVERS).records == {}
    assert len(keep(file, SERVERS)) == 2


def test_what_was_made_in_another_way_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = file_in(tmp_path)
    keep(file, SERVERS)
    assert keep(file, SERVERS) == []
    monkeypatch.setattr(search_cache, "how_made", lambda: b"by a later version")
    assert len(keep(file, SERVERS)) == 2
    assert keep(file, SERVERS) == []


def test_a_folder_or_a_link_in_its_place_costs_nothing_but_the_time(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    file.path.mkdir()
    assert len(keep(file, SERVERS)) == 2
    file.path.rmdir()
    (tmp_path / "elsewhere").write_bytes(b"somebody else's")
    file.path.symlink_to(tmp_path / "elsewhere")
    assert len(keep(file, SERVERS)) == 2
    assert (tmp_path / "elsewhere").read_bytes() == b"somebody else's"
    assert keep(file, SERVERS) == []


def test_only_the_tools_that_have_changed_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, read = file_in(tmp_path), list[str]()
    keep(file, SERVERS)
    changed = {"github": [tool("create_issue", "Create an issue, or two"), GITHUB[1]], "s": NOTES}
    made = ToolDocument.of

    def of(name: str, *rest: Any, **more: Any) -> ToolDocument:
        read.append(name)
        return made(name, *rest, **more)

    monkeypatch.setattr(ToolDocument, "of", of)
    assert len(keep(file, changed)) == 1
    assert read == ["github_create_issue"]
    assert keep(file, changed) == []
    assert read == ["github_create_issue"]


# ---- what is in the file ----


def test_two_writers_keep_what_the_other_wrote_and_what_is_old_is_dropped(tmp_path: Path) -> None:
    one, other = file_in(tmp_path), file_in(tmp_path)
    keep(one, {"github": GITHUB}, NOW - 8 * DAY)
    keep(one, {"s": NOTES})
    assert len(loaded(other, SERVERS).records) == 1, "what was a week old went when another was written"
    keep(other, {"github": GITHUB})
    assert len(loaded(one, SERVERS).records) == 2


def test_when_the_space_is_limited_the_newest_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = file_in(tmp_path)
    keep(file, {"github": GITHUB}, NOW)
    monkeypatch.setattr("greenroom.protocol.bounds.CACHE_BYTES", file.path.stat().st_size)
    keep(file, {"s": NOTES}, NOW + 1)
    assert list(loaded(file, SERVERS).records) == ["h s"]


def test_words_of_the_configuration_are_not_written(tmp_path: Path) -> None:
    file, news = file_in(tmp_path), dict[str, Sequence[Target]]()
    overrides = {"create_issue": {"description": "Confidential"}}
    found(index_of(SERVERS, SearchCache(on_news=news.update), overrides))
    file.save(news, NOW)
    assert b"confidenti" not in file.path.read_bytes().lower()
    assert b"remov" in file.path.read_bytes()


def test_a_profile_keeps_what_it_made_and_a_session_with_lists_of_its_own_does_not(tmp_path: Path) -> None:
    file, news = file_in(tmp_path), dict[str, Sequence[Target]]()
    index = index_of(SERVERS, SearchCache(on_news=news.update))
    own = {"s": ServerEntry("s", "h", tools=(tool("theirs", "What one caller may see"),))}
    found(index.replaced(own))
    assert news == {}
    found(index)
    assert len(news["h github"]) == len(news["h s"]) == 2, "also what the session made first"
    file.save(news, NOW)
    assert b"caller" not in file.path.read_bytes()
    news.clear()
    again = index_of(SERVERS, loaded(file, SERVERS, news.update))
    for seen in (again, again.narrowed(["github"], ("create_*",))):
        found(seen)
    assert news == {}
    other = index_of(SERVERS, SearchCache(on_news=news.update))
    found(other.narrowed(["github"], ("create_*",)))
    assert [target.name for target in news["h github"]] == ["github_create_issue"]


def test_two_configurations_that_show_the_same_tools_by_other_names_keep_what_is_made_for_both(
    tmp_path: Path,
) -> None:
    file, plain = file_in(tmp_path), Settings(tool_prefix=PrefixMode.NONE)
    assert keep(file, SERVERS)
    assert keep(file, SERVERS, settings=plain), "they have other names"
    for settings in (Settings(), plain, Settings()):
        assert keep(file, SERVERS, settings=settings) == [], "nothing is written anew"
    before = file.path.stat().st_size
    more = {**SERVERS, "s": [*NOTES, tool("more", "Another")]}
    keep(file, {**more, "s": NOTES[:1]}, settings=Settings(tool_prefix=PrefixMode.SHORT))
    assert file.path.stat().st_size <= 2 * before, "what is kept beside it is bounded"
