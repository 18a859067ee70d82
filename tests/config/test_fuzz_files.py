"""Files nobody should write: configurations of any dialect, and the catalogue's cache. Nothing escapes or hangs.

A configuration is a `Config`, or a `ConfigError` that names the file; a cache that is none is set aside and rebuilt.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.junk import FRAGMENTS, TEXTS, VALUES, dumped
from tests.support.profiles import examples
from tests.support.rows import for_each

from greenroom.catalogue.entries import ServerEntry
from greenroom.catalogue.store import VERSION, CatalogueFile
from greenroom.config.definition_identity import definition_hash
from greenroom.config.files import load_config
from greenroom.config.keys import IMPORT_KINDS
from greenroom.config.masking import redacted
from greenroom.config.model import Config, selector
from greenroom.config.parse import parse_config
from greenroom.config.references import expand, missing_variables
from greenroom.protocol.errors import ConfigError

PATIENCE = 2.0  # seconds of our own time; each of these took minutes, or for ever, when it was wrong
PIECES = ["$", "{", "}", ":-", "~", "a", "A", "${", "$env:", "{env:", "${A:-", "\ud800", "!", "${input:x}"]
REFERENCES = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)
WORDS = st.one_of(
    TEXTS, REFERENCES, st.sampled_from(["x", "lazy", "eager", "per_call", "http://h/${X}", "http://[", "~"])
)
ANYTHING = VALUES | WORDS | st.lists(WORDS, max_size=3) | st.dictionaries(WORDS, WORDS, max_size=3)
KEYS = st.sampled_from(
    ["command", "args", "env", "cwd", "url", "headers", "socket", "lifecycle", "isolation", "idleTimeout", "type",
     "includeTools", "restartPolicy", "disabled", "enabled", "bearerToken", "bearerTokenEnv", "httpTransport",
     "toolPrefix", "requestTimeoutMs", "timeout", "auth", "startup_timeout_sec", "env_vars", "env_http_headers"]
)  # fmt: skip
ENTRIES = st.dictionaries(KEYS | WORDS, ANYTHING, max_size=5) | ANYTHING
SECTIONS = st.sampled_from(["mcpServers", "mcp-servers", "servers", "mcp_servers", "mcp", "projects"])
SETTINGS = st.dictionaries(
    st.sampled_from(["maxConnections", "minConnections", "restartBackoff", "outputGuard", "idleTimeout", "reserve",
                     "failureBackoff", "toolPrefix", "startPermits", "backoffJitter"]) | WORDS,
    ANYTHING | st.fixed_dictionaries({"minMs": VALUES, "maxMs": VALUES}),
    max_size=4,
)  # fmt: skip


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """A configuration as to its shape, often, and anything at all in it."""
    section = st.dictionaries(WORDS, ENTRIES, max_size=3) | ANYTHING
    imports = st.lists(st.sampled_from(IMPORT_KINDS) | ANYTHING, max_size=3) | ANYTHING
    blocks = {"settings": SETTINGS | ANYTHING, "adapter": SETTINGS | ANYTHING, "imports": imports}
    servers = draw(st.dictionaries(SECTIONS, section, max_size=2))
    return {**servers, **draw(st.fixed_dictionaries({}, optional=blocks))}


@st.composite
def spoilt(draw: st.DrawFn) -> bytes:
    """One byte of it is another."""
    line = draw(configs().map(dumped))
    at = draw(st.integers(0, len(line)))
    return line[:at] + draw(st.binary(min_size=1, max_size=1)) + line[at + 1 :]


FILES = st.one_of(configs().map(dumped), spoilt(), FRAGMENTS, st.binary(max_size=60))
TOML = st.sampled_from(
    [
        b"a = 1" + b"0" * 5000,
        b"a = " + b"[" * 5000,
        b"a" + b".a" * 3000 + b" = 1",
        b"a = 0x" + b"f" * 9000,
        b"\xff = 1",
        b"[mcp_servers]\nx = [1, 2",
        b"[mcp_servers.x]\ncommand = 1979-05-27",
        b'[mcp_servers.x]\ncommand = "y"\nstartup_timeout_sec = inf\ntool_timeout_sec = nan',
        b'[mcp_servers.x]\ncommand = "y"\nenv_vars = [1979-05-27, {}]',
    ]
)


def load(file: bytes, *, toml: bytes = b"", named: bool) -> Config | None:
    """What comes of a file: used as it would be, up to the moment a server is started."""
    with TemporaryDirectory() as folder:
        home = Path(folder)
        (home / ".mcp.json").write_bytes(file)
        (home / ".codex").mkdir()
        (home / ".codex" / "config.toml").write_bytes(toml)
        (home / ".cursor").mkdir()
        (home / ".cursor" / "mcp.json").write_bytes(file)
        try:
            config = load_config(
                ".mcp.json" if named else None, cwd=home, home=home, environ={}, platform="linux"
            )
        except ConfigError as error:
            _check_refusal(error, named)
            return None
    for definition in config.servers.values():
        definition_hash(definition, {}, "/")
    assert all(problem.where and problem.what for problem in config.problems)
    json.dumps(redacted(config), ensure_ascii=False).encode()
    return config


def _check_refusal(error: ConfigError, named: bool) -> None:
    assert named, "only a named file is refused"
    assert all(problem.where.startswith(".mcp.json") for problem in error.problems)
    str(error).encode()


@examples(150)
@given(FILES, TOML | FRAGMENTS, st.booleans())
def test_any_file_is_a_configuration_or_a_complaint_about_it(file: bytes, toml: bytes, named: bool) -> None:
    load(file, toml=toml, named=named)


@examples(100)
@given(configs())
def test_any_dict_is_a_configuration_or_a_complaint_about_it(raw: dict[str, Any]) -> None:
    with suppress(ConfigError):
        config = parse_config(raw, environ={})
        json.dumps(redacted(config), ensure_ascii=False).encode()


@pytest.mark.parametrize("toml", [b"a = 1" + b"0" * 5000, b"a = " + b"[" * 5000])
def test_another_program_s_toml_is_skipped_whatever_is_in_it(toml: bytes) -> None:
    config = load(b'{"imports": ["codex"], "mcpServers": {"a": {"command": "x"}}}', toml=toml, named=True)

    assert config is not None
    assert [problem for problem in config.problems if "config.toml" in problem.where]


@pytest.mark.parametrize(
    "entry",
    [{"command": "x\ud800"}, {"command": "x", "args": ["\ud800"]}, {"command": "x", "env": {"A": "\ud800"}}],
    ids=["command", "args", "env"],
)
def test_half_a_character_breaks_the_server_that_has_it_and_no_other(entry: dict[str, Any]) -> None:
    config = parse_config({"mcpServers": {"a": entry, "b": {"command": "y"}, "\ud800": {"command": "z"}}})

    assert list(config.servers) == ["b"]
    assert "half of a character" in config.broken["a"].what
    assert "has no usable name" in "\n".join(map(str, config.problems))
    str(config.problems).encode()


@for_each("text", ["${a:-" * 30_000, "${" * 50_000, "$env:" * 50_000, "{env:a" * 50_000, "${a:-}" * 20_000])
def test_references_are_expanded_in_linear_time(text: str) -> None:
    begun = time.process_time()
    expand(text, {})
    missing_variables(text, {})

    assert time.process_time() - begun < PATIENCE


def test_a_reference_after_the_last_brace_is_one_too() -> None:
    assert expand("${A:-b}$env:E ${A:-", {"E": "e"}) == "be ${A:-"
    assert missing_variables("}$env:E", {}) == ("E",)


def test_a_pattern_of_many_stars_takes_no_time() -> None:
    begun = time.process_time()
    assert not selector(("a" + "*a" * 20 + "b",))("a" * 64)
    assert not selector(("*" * 500 + "b",))("a" * 64)

    assert time.process_time() - begun < PATIENCE


@for_each(
    ("pattern", "name", "matches"),
    [
        ("*ab", "abab", True),
        ("a*b*c", "axbxbxc", True),
        ("a*b*c", "ac", False),
        ("*", "", True),
        ("a*a", "a", False),
    ],
)
def test_stars_match_what_they_always_did(pattern: str, name: str, matches: bool) -> None:
    assert selector((pattern,))(name) is matches


# ---- the catalogue's file ------------------------------------------------------------------------------------------

NOW = 1_000_000_000.0
KEPT = {"fetched_at": VALUES | st.just(NOW), "revision": VALUES | st.just(1), "body": VALUES}
CACHES = st.fixed_dictionaries(
    {"version": st.just(VERSION) | VALUES},
    optional={
        "entries": st.dictionaries(st.just("h s") | TEXTS, st.fixed_dictionaries({}, optional=KEPT) | VALUES)
        | VALUES
    },
).map(lambda cache: json.dumps(cache).encode())


@examples(100)
@given(CACHES | FRAGMENTS | st.binary(max_size=60))
def test_whatever_is_in_the_cache_it_is_read_or_rebuilt(content: bytes) -> None:
    """Read, merged into, read again: what was saved is there, and what was broken stands beside it."""
    with TemporaryDirectory() as folder:
        file = CatalogueFile(Path(folder) / "catalogue.json")
        file.path.write_bytes(content)
        before = file.load({"s": "h"}, NOW)
        file.save(
            [ServerEntry("s", "h", tools=({"name": "t"},), fetched_at=NOW + 1, revision=2**40)], NOW + 1
        )
        after = file.load({"s": "h"}, NOW + 1)

        assert after.entries["s"].tools == ({"name": "t"},)
        assert after.warning is None
        asides = list(Path(folder).glob("*.broken-*"))
        assert bool(asides) == (before.warning is not None)
        assert [path.read_bytes() for path in asides] == [content] * len(asides)
