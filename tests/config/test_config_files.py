"""Which files are read, what JSON they may be, and what happens to a broken one: real files, no I/O pretended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.support.rows import for_each

from greenroom.config.files import find_files, load_config, project_files, working_directory
from greenroom.config.importers import Surroundings, places_of
from greenroom.config.masking import redacted
from greenroom.config.model import Config
from greenroom.protocol.errors import ConfigError, UsageError


@attrs.frozen
class Place:
    """A project folder and a home folder, and the configuration as seen from there."""

    root: Path

    @property
    def cwd(self) -> Path:
        return self.root / "project"

    @property
    def home(self) -> Path:
        return self.root / "home"

    def write(self, path: str, content: Any) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            file.write_bytes(content)
        else:
            file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return file

    def load(self, path: str | Path | None = None, *, platform: str = "linux", **environ: str) -> Config:
        return load_config(path, cwd=self.cwd, home=self.home, environ=environ, platform=platform, trust=True)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "project").mkdir()
    (tmp_path / "home").mkdir()
    return Place(tmp_path)


def one(command: str, **more: Any) -> dict[str, Any]:
    return {"mcpServers": {"s": {"command": command, **more}}}


# ---- discovery ---------------------------------------------------------------------------------------

ORDER = (
    "project/.greenroom/mcp.json",
    "project/.mcp.json",
    "xdg/greenroom/mcp.json",
    "home/.config/mcp/mcp.json",
)


def test_files_are_found_in_order_and_the_nearest_wins(place: Place) -> None:
    for path in reversed(ORDER):
        place.write(path, one(path))
        assert place.load(XDG_CONFIG_HOME=str(place.root / "xdg")).servers["s"].command == path
    config = place.load(XDG_CONFIG_HOME=str(place.root / "xdg"))
    assert config.files == tuple(str(place.root / path) for path in ORDER)
    assert config.servers["s"].sources == {"command": str(place.root / ORDER[0])}


def test_without_xdg_the_users_file_is_under_dot_config(place: Place) -> None:
    file = place.write("home/.config/greenroom/mcp.json", one("x"))
    assert find_files(cwd=place.cwd, home=place.home, environ={}) == [file]


def test_nothing_to_find_is_an_empty_configuration(place: Place) -> None:
    config = place.load()
    assert (config.servers, config.problems, config.files) == ({}, (), ())


def test_a_broken_file_that_was_found_is_skipped_with_a_warning(place: Place) -> None:
    broken = place.write("project/.mcp.json", '{"mcpServers": {')
    place.write("home/.config/mcp/mcp.json", one("x"))
    config = place.load()
    assert config.servers["s"].command == "x"
    (problem,) = config.problems
    assert str(problem).startswith(f"{broken}: is not valid JSON: ")
    assert str(problem).endswith("(line 1, column 17); it is skipped")
    assert not problem.fatal
    assert config.unread == (str(broken),)
    assert config.files[0] == str(broken), "its servers are still meant"


@pytest.mark.parametrize("content", ["{", "", "[1]", "null"])
@pytest.mark.parametrize("file", ["project/.mcp.json", "home/.cursor/mcp.json"])
def test_a_file_that_cannot_be_read_belongs_to_the_configuration_all_the_same(
    place: Place, file: str, content: str
) -> None:
    """It is the same configuration when it can be read again."""
    place.write("home/.config/mcp/mcp.json", {"imports": ["cursor"], **one("x")})
    place.write(file, one("y"))
    whole = place.load()
    path = place.write(file, content)
    config = place.load()
    assert (config.files, config.unread) == (whole.files, (str(path),))
    assert str(path) in [problem.where for problem in config.problems]
    assert (redacted(config)["unread"], whole.unread) == ([str(path)], ())


# ---- a named file ------------------------------------------------------------------------------------


def test_a_named_file_stands_alone(place: Place) -> None:
    place.write("project/.mcp.json", {"mcpServers": {"other": {"command": "x"}}})
    place.write("project/mine.json", one("mine"))
    assert set(place.load("mine.json").servers) == {"s"}
    assert place.load("mine.json").files == ("mine.json",)


def test_a_named_file_may_be_at_home(place: Place) -> None:
    place.write("home/mine.json", one("mine"))
    assert place.load("~/mine.json").servers["s"].command == "mine"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "mine.json: does not exist: create it, or name another file"),
        ("", "mine.json: is empty: write {} for no servers"),
        ("[1]", 'mine.json: must be an object like {"mcpServers": {…}}, is an array'),
        ('{"mcpServers": 3}', "mine.json: mcpServers: must be an object"),
        (
            '{\n  "mcpServers": {}\n  "x": 1}',
            "mine.json: is not valid JSON: expecting ',' delimiter (line 3, column 3)",
        ),
        (
            '{\n  // a comment\n  "mcpServers": {}\n  "x": 1}',
            "mine.json: is not valid JSON: expected comma or '}' (line 4, column 3)",
        ),
        ('{"a": ' + "[" * 100_000, "mine.json: is nested too deeply"),
        ('{"a": ' + "9" * 5_000 + "}", "mine.json: holds a number that is too long"),
        ('{"mcpServers": {', "mine.json: is not valid JSON"),
        ('{"a": {"b": 1,}, "c": }', "mine.json: is not valid JSON: expected a value (line 1, column 23)"),
        ('{// so\n"\\u00g9": {}}', "mine.json: is not valid JSON: expected hexadecimal character (line 2, column 3)"),
        (b'{"a": "\xff"}', "is not UTF-8 (byte 7): save it as UTF-8"),
        ('{"settings": {"idleTimeout": -1}}', "mine.json: settings.idleTimeout: must be a number of minutes from 0"),
    ],
)  # fmt: skip
def test_a_broken_named_file_is_an_error_that_says_where(place: Place, content: Any, message: str) -> None:
    if content is not None:
        place.write("project/mine.json", content)
    with pytest.raises(ConfigError) as caught:
        place.load("mine.json")
    assert str(caught.value).startswith("mine.json: ")
    assert message in str(caught.value)


def test_a_directory_or_a_bad_path_is_no_file(place: Place) -> None:
    with pytest.raises(ConfigError, match="is a directory: name the file in it"):
        place.load(".")
    with pytest.raises(ConfigError, match="cannot be read"):
        place.load("a\0b")
    place.write("project/mine.json", "{}")
    with pytest.raises(ConfigError, match=r"mine\.json/x: cannot be read \(Not a directory\)"):
        place.load("mine.json/x")


def test_a_broken_server_of_a_named_file_is_no_error(place: Place) -> None:
    place.write("project/mine.json", {"mcpServers": {"s": {}, "good": {"command": "x"}}})
    config = place.load("mine.json")
    assert set(config.servers) == {"good"}
    assert str(config.broken["s"]).startswith("mine.json: mcpServers.s: has neither command, url nor socket")


@pytest.mark.parametrize(
    "text",
    [
        '\ufeff{"mcpServers": {"s": {"command": "x"}}}', '{"mcpServers": {"s": {"command": "x",},},}',
        '// first\n{"mcpServers": /* here */ {"s": {"command": "x" // there\n}}}',
        '\ufeff// mark and comment\n{"mcpServers": {"s": {"command": "x"}}}',
    ],
)  # fmt: skip
def test_comments_trailing_commas_and_a_byte_order_mark_are_welcome(place: Place, text: str) -> None:
    place.write("project/mine.json", text)
    assert place.load("mine.json").servers["s"].command == "x"


def test_a_url_in_a_string_is_no_comment(place: Place) -> None:
    place.write(
        "project/mine.json",
        '{"mcpServers": {"s": {"url": "http://h//x", /* y */ "headers": {"A": "/*,]*/"}}}}',
    )
    server = place.load("mine.json").servers["s"]
    assert (server.url, server.headers) == ("http://h//x", {"A": "/*,]*/"})


def test_references_are_checked_and_stay_as_written(place: Place) -> None:
    place.write("project/mine.json", one("x", env={"K": "${SECRET}", "L": "${NOPE}"}))
    config = place.load("mine.json", SECRET="hush")
    assert config.servers["s"].env == {"K": "${SECRET}", "L": "${NOPE}"}
    assert [problem.where for problem in config.problems] == ["mine.json: mcpServers.s.env.L"]
    assert "hush" not in str(config)


# ---- imports -----------------------------------------------------------------------------------------

PLACES = [
    ("cursor", "linux", "home/.cursor/mcp.json"),
    ("cursor", "linux", "project/.cursor/mcp.json"),
    ("claude-code", "linux", "home/.claude/mcp.json"),
    ("claude-code", "linux", "home/.claude.json"),
    ("claude-code", "linux", "home/.claude/claude_desktop_config.json"),
    ("claude-desktop", "linux", "home/.config/Claude/claude_desktop_config.json"),
    ("claude-desktop", "darwin", "home/Library/Application Support/Claude/claude_desktop_config.json"),
    ("claude-desktop", "win32", "home/AppData/Roaming/Claude/claude_desktop_config.json"),
    ("vscode", "linux", "project/.vscode/mcp.json"),
    ("vscode", "darwin", "home/Library/Application Support/Code/User/mcp.json"),
    ("windsurf", "linux", "home/.codeium/windsurf/mcp_config.json"),
    ("windsurf", "linux", "home/.windsurf/mcp.json"),
    ("codex", "linux", "home/.codex/config.json"),
    ("pi", "linux", "project/.pi/mcp.json"),
    ("pi", "linux", "home/.pi/agent/mcp.json"),
]


@pytest.mark.parametrize(("kind", "platform", "path"), PLACES)
def test_each_program_is_read_where_it_keeps_its_file(
    place: Place, kind: str, platform: str, path: str
) -> None:
    file = place.write(path, one("theirs"))
    place.write("project/mine.json", {"imports": [kind]})
    config = place.load("mine.json", platform=platform)
    assert config.servers["s"].command == "theirs"
    assert config.servers["s"].sources["command"] == str(file)
    assert config.files == ("mine.json", str(file))
    assert not config.problems


@pytest.mark.parametrize(
    "kind", ["cursor", "claude-code", "claude-desktop", "vscode", "windsurf", "codex", "opencode", "pi"]
)
def test_a_program_that_is_not_there_or_broken_is_a_warning(place: Place, kind: str) -> None:
    place.write("project/mine.json", {"imports": [kind], **one("ours")})
    (problem,) = place.load("mine.json").problems
    assert str(problem).startswith(f"imports: {kind}: no file of it was found (looked for {place.root}")
    assert not problem.fatal


def test_a_broken_import_is_skipped_even_by_a_named_file(place: Place) -> None:
    place.write("home/.cursor/mcp.json", "{")
    place.write("project/.cursor/mcp.json", "3")
    place.write("project/mine.json", {"imports": ["cursor"], **one("ours")})
    config = place.load("mine.json")
    assert config.servers["s"].command == "ours"
    assert len(config.problems) == 2
    assert all(str(problem).endswith("it is skipped") and not problem.fatal for problem in config.problems)


def test_imports_of_all_files_add_up_below_all_of_them(place: Place) -> None:
    place.write("project/.mcp.json", {"imports": ["windsurf"], "mcpServers": {"ours": {"command": "x"}}})
    place.write("home/.config/mcp/mcp.json", {"imports": ["pi", "windsurf"]})
    place.write(
        "home/.windsurf/mcp.json", {"mcpServers": {"ours": {"args": ["bad"]}, "w": {"command": "windsurf"}}}
    )
    place.write("home/.pi/agent/mcp.json", {"mcpServers": {"w": {"command": "pi"}, "p": {"command": "pi"}}})
    servers = place.load().servers
    assert {name: each.command for name, each in servers.items()} == {"ours": "x", "w": "windsurf", "p": "pi"}
    assert servers["ours"].args == ()


def imported(place: Place, kind: str, path: str, content: Any, **environ: str) -> Config:
    place.write(path, content)
    place.write("project/mine.json", {"imports": [kind]})
    return place.load("mine.json", **environ)


def test_codex_toml_is_mapped_key_by_key(place: Place) -> None:
    toml = """
        model = "x"
        [mcp_servers.local]
        command = "npx"
        args = ["-y"]
        env_vars = ["PATH"]
        startup_timeout_sec = 20
        tool_timeout_sec = 1.5
        enabled_tools = ["a"]
        disabled_tools = ["b"]
        [mcp_servers.local.env]
        A = "1"
        [mcp_servers.remote]
        url = "https://h/mcp"
        bearer_token_env_var = "PATH"
        http_headers = { X = "1" }
        env_http_headers = { X = "NOT", Y = "PATH" }
        [mcp_servers.off]
        command = "x"
        enabled = false
        startup_timeout_ms = 500
        surprise = 1
    """
    config = imported(place, "codex", "home/.codex/config.toml", toml, PATH="/bin")
    local, remote, off = (config.servers[name] for name in ("local", "remote", "off"))
    assert (local.command, local.args, local.env) == ("npx", ("-y",), {"PATH": "${PATH}", "A": "1"})
    assert (local.connect_timeout, local.call_timeout) == (20.0, 1.5)
    assert (local.include_tools, local.exclude_tools) == (("a",), ("b",))
    assert remote.headers == {"X": "1", "Y": "$env:PATH", "Authorization": "Bearer ${PATH}"}
    assert (off.disabled, off.connect_timeout) == (True, 0.5)
    assert [problem.where.rsplit(": ")[-1] for problem in config.problems] == ["mcpServers.off.surprise"]


def test_what_is_wrong_in_a_file_of_codex_is_called_what_the_file_calls_it(place: Place) -> None:
    toml = """
        [mcp_servers.unset]
        url = "https://h/mcp"
        bearer_token_env_var = "NOWHERE"
        [mcp_servers.number]
        url = "https://h/mcp"
        bearer_token_env_var = 5
        [mcp_servers.local]
        command = "x"
        bearer_token_env_var = "NOWHERE"
        enabled_tools = 5
        disabled_tools = 5
        startup_timeout_ms = "x"
        [mcp_servers.headers]
        url = "https://h/mcp"
        http_headers = 5
        [mcp_servers.line]
        url = "https://h/mcp"
        bearer_token_env_var = "LINE"
    """
    config = imported(place, "codex", "home/.codex/config.toml", toml, LINE="a\nb")
    wrong = {(each.split(".")[1], each.split(".")[2]) for each in _places(config)}
    written = ("bearer_token_env_var", "enabled_tools", "disabled_tools", "startup_timeout_ms")
    assert wrong == {
        *((name, "bearer_token_env_var") for name in ("unset", "number", "line")),
        *(("local", key) for key in written),
        ("headers", "http_headers"),
    }
    told = "\n".join(problem.what for problem in config.problems)
    assert "bearerTokenEnv" not in told
    assert "${NOWHERE" not in told, "the key holds a name, and no default can be written there"


def _places(config: Config) -> list[str]:
    return [problem.where.rsplit(": ")[-1] for problem in config.problems]


def test_broken_toml_says_where(place: Place) -> None:
    (problem, *_) = imported(place, "codex", "home/.codex/config.toml", "a = = 1").problems
    assert "config.toml: is not valid TOML: " in str(problem)
    assert "line 1" in str(problem)


def test_opencode_is_merged_from_the_nearest_file_and_the_users(place: Place) -> None:
    place.write("project/.git/HEAD", "")
    place.write(
        "project/opencode.json",
        {"mcp": {"a": {"type": "local", "command": ["near", "-y"], "enabled": False}}},
    )
    users = {
        "a": {"type": "local", "command": ["far"]},
        "b": {"type": "remote", "url": "https://h", "headers": {"A": "b"}, "timeout": 5},
        "c": {"type": "local", "command": ["c"], "environment": {"K": "{env:PATH}"}},
    }
    path = "home/.config/opencode/opencode.json"
    config = imported(place, "opencode", path, {"$schema": "x", "mcp": users}, PATH="/bin")
    a, b, c = (config.servers[name] for name in "abc")
    assert (a.command, a.args, a.disabled) == ("near", ("-y",), True)
    assert (b.url, b.headers) == ("https://h", {"A": "b"})
    assert (c.command, c.args, c.env) == ("c", (), {"K": "{env:PATH}"})
    assert ["b.timeout" in str(problem) for problem in config.problems] == [True]


def test_vs_codes_section_and_variables_are_read_and_its_inputs_named(place: Place) -> None:
    content = {
        "inputs": [{"id": "key"}],
        "servers": {
            "a": {"command": "${userHome}/x", "args": ["${workspaceFolder}/y"], "env": {"K": "${env:PATH}"}},
            "b": {"type": "http", "url": "https://h", "headers": {"K": "${input:key}"}},
        },
    }
    config = imported(place, "vscode", "project/.vscode/mcp.json", content, PATH="/bin")
    a = config.servers["a"]
    assert (a.command, a.args, a.env) == (f"{place.home}/x", (f"{place.cwd}/y",), {"K": "${PATH}"})
    assert "mcpServers.b.headers.K: asks for an ${input:…}" in str(config.broken["b"])
    assert len(config.problems) == 1


def test_claude_code_knows_servers_of_this_project_only(place: Place) -> None:
    state = {
        "mcpServers": {"all": {"command": "all"}, "s": {"command": "all"}},
        "projects": {
            str(place.cwd): {"mcpServers": {"s": {"type": "stdio", "command": "here"}}},
            "/elsewhere": {"mcpServers": {"other": {"command": "x"}}},
        },
        "numStartups": 7,
    }
    config = imported(place, "claude-code", "home/.claude.json", state)
    assert {name: each.command for name, each in config.servers.items()} == {"all": "all", "s": "here"}
    assert not config.problems


def test_a_toml_file_may_begin_with_a_byte_order_mark(place: Place) -> None:
    toml = b"\xef\xbb\xbf[mcp_servers.s]\ncommand = 'x'\n"
    assert imported(place, "codex", "home/.codex/config.toml", toml).servers["s"].command == "x"


def test_opencodes_file_is_looked_for_up_to_the_root_of_the_repository_and_no_further(place: Place) -> None:
    deep = Place(place.root / "project" / "a")
    (deep.cwd / "b").mkdir(parents=True)

    def found(*files: str) -> list[str]:
        around = Surroundings(deep.cwd / "b", place.home, {}, "linux")
        for file in files:
            place.write(file, "{}")
        paths = places_of("opencode", around)
        return [
            str(path.relative_to(place.root)) for path in paths if path.is_relative_to(place.root / "project")
        ]

    here = "project/a/project/b/opencode.json"
    place.write("project/opencode.json", "{}")
    assert found() == [here], "without a repository only here"
    (place.root / "project" / "a" / ".git").mkdir()
    assert found() == [here], "that one is outside"
    assert found("project/a/opencode.jsonc") == ["project/a/opencode.jsonc"], "its root is inside"
    assert found("project/a/opencode.json") == ["project/a/opencode.json"]
    assert found(here) == [here]


def test_an_empty_xdg_is_none_and_every_place_that_counts_is_watched(place: Place) -> None:
    place.write("home/.config/greenroom/mcp.json", {"imports": ["windsurf", "pi"], **one("users")})
    for environ in ({}, {"XDG_CONFIG_HOME": ""}):
        config = place.load(**environ)
        assert config.servers["s"].command == "users"
        assert [Path(path).relative_to(place.root).as_posix() for path in config.places] == [
            "project/.greenroom/mcp.json",
            "project/.mcp.json",
            "home/.config/greenroom/mcp.json",
            "home/.config/mcp/mcp.json",
            "home/.codeium/windsurf/mcp_config.json",
            "home/.windsurf/mcp.json",
            "project/.pi/mcp.json",
            "home/.pi/agent/mcp.json",
        ], "also where there is no file yet"
    place.write("project/mine.json", {"imports": ["cursor"]})
    config = place.load("mine.json")
    assert [Path(path).relative_to(place.root).as_posix() for path in config.places] == [
        "project/mine.json", "project/.cursor/mcp.json", "home/.cursor/mcp.json",
    ]  # fmt: skip


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_a_mistake_is_told_by_line_and_column_whatever_ends_the_lines(place: Place, ending: str) -> None:
    text = ending.join(["{ // comment", '  "mcpServers": {', '    "s": {"command" "x"}', "  }", "}"])
    place.write("project/mine.json", text.encode())
    with pytest.raises(ConfigError, match=r"\(line 3, column 21\)"):
        place.load("mine.json")
    place.write("project/mine.json", ending.join(['{"mcpServers": {', "}", "x"]).encode())
    with pytest.raises(ConfigError, match=r"\(line 3, column 1\)"):
        place.load("mine.json")


@pytest.mark.parametrize(
    ("kind", "files", "all_count"),
    [
        ("claude-code", ("home/.claude/mcp.json", "home/.claude.json"), False),
        ("windsurf", ("home/.codeium/windsurf/mcp_config.json", "home/.windsurf/mcp.json"), False),
        ("cursor", ("project/.cursor/mcp.json", "home/.cursor/mcp.json"), True),
        ("vscode", ("project/.vscode/mcp.json", "home/.config/Code/User/mcp.json"), True),
        ("pi", ("project/.pi/mcp.json", "home/.pi/agent/mcp.json"), True),
    ],
)
def test_of_a_program_with_several_files_all_count_only_if_it_merges_them_itself(
    place: Place, kind: str, files: tuple[str, str], all_count: bool
) -> None:
    place.write("project/mine.json", {"imports": [kind]})
    for name, file in zip(("near", "far"), files, strict=True):
        place.write(file, {"mcpServers": {name: {"command": name}, "both": {"command": name}}})
    config = place.load("mine.json")
    assert set(config.servers) == ({"near", "far", "both"} if all_count else {"near", "both"})
    assert config.servers["both"].command == "near"
    place.write(files[0], "{")
    config = place.load("mine.json")
    assert set(config.servers) == {"far", "both"}, "the first one that can be read"
    assert len(config.problems) == 1


@pytest.mark.parametrize(("said", "read"), [(30, 30.0), (0.5, 0.5), (True, None), ("30", None)])
def test_seconds_of_another_program_are_read_as_seconds_or_named(
    place: Place, said: Any, read: float | None
) -> None:
    content = json.dumps({"mcp_servers": {"s": {"command": "x", "startup_timeout_sec": said}}})
    config = imported(place, "codex", "home/.codex/config.json", content)
    assert config.servers["s"].connect_timeout == read
    assert len(config.problems) == (read is None)


def test_which_files_are_the_projects(place: Place) -> None:
    inside, own = place.cwd / "deep" / "x.json", place.cwd / ".mcp.json"
    users = place.home / ".config" / "mcp" / "mcp.json"
    config = Config(files=(str(own), str(inside), str(users)))

    def projects(cwd: Path, home: Path) -> tuple[str, ...]:
        return project_files(config, cwd=cwd, home=home, environ={})

    assert projects(place.cwd, place.home) == (str(own), str(inside))
    assert projects(place.root, place.home) == (), "with the home inside nobody else could write there"
    assert projects(place.home, place.home) == ()
    assert projects(place.cwd, place.cwd / "home") == (str(own),)
    assert projects(users.parent, place.home) == (), "the user's own file, seen from its own folder"


def test_a_file_that_cannot_be_looked_at_is_said_to_be_there(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_self: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_file", refuse)
    assert find_files(cwd=place.cwd, home=place.home, environ={}) == [
        place.cwd / ".greenroom" / "mcp.json",
        place.cwd / ".mcp.json",
        place.home / ".config" / "greenroom" / "mcp.json",
        place.home / ".config" / "mcp" / "mcp.json",
    ]
    config = place.load()
    assert len(config.problems) == 4
    assert all("it is skipped" in str(each) for each in config.problems)


@for_each(
    ("kind", "platform", "environ", "files"),
    [
        ("claude-desktop", "linux", {"XDG_CONFIG_HOME": "/x"}, ["/x/Claude/claude_desktop_config.json"]),
        ("claude-desktop", "linux", {"APPDATA": "/x"}, ["/h/.config/Claude/claude_desktop_config.json"]),
        ("claude-desktop", "win32", {"APPDATA": "/x"}, ["/x/Claude/claude_desktop_config.json"]),
        (
            "claude-desktop", "win32", {"XDG_CONFIG_HOME": "/x"},
            ["/h/AppData/Roaming/Claude/claude_desktop_config.json"],
        ),
        ("vscode", "linux", {"XDG_CONFIG_HOME": "/x"}, ["/p/.vscode/mcp.json", "/x/Code/User/mcp.json"]),
        ("codex", "linux", {"CODEX_HOME": "/x"}, ["/x/config.toml", "/x/config.json"]),
        ("codex", "linux", {"CODEX_HOME": ""}, ["/h/.codex/config.toml", "/h/.codex/config.json"]),
        (
            "opencode", "linux", {"XDG_CONFIG_HOME": "/x"},
            ["/p/opencode.json", "/x/opencode/opencode.json", "/x/opencode/opencode.jsonc"],
        ),
        (
            "opencode", "linux", {"XDG_CONFIG_HOME": ""},
            ["/p/opencode.json", "/h/.config/opencode/opencode.json", "/h/.config/opencode/opencode.jsonc"],
        ),
        ("claude-desktop", "linux", {"XDG_CONFIG_HOME": "x"}, ["/h/.config/Claude/claude_desktop_config.json"]),
        (
            "opencode", "linux", {"XDG_CONFIG_HOME": "x"},
            ["/p/opencode.json", "/h/.config/opencode/opencode.json", "/h/.config/opencode/opencode.jsonc"],
        ),
        ("pi", "linux", {"PI_CODING_AGENT_DIR": "/x"}, ["/p/.pi/mcp.json", "/x/mcp.json"]),
        ("pi", "linux", {"PI_CODING_AGENT_DIR": "~/x"}, ["/p/.pi/mcp.json", "/h/x/mcp.json"]),
        ("pi", "linux", {"PI_CODING_AGENT_DIR": ""}, ["/p/.pi/mcp.json", "/h/.pi/agent/mcp.json"]),
    ],
)  # fmt: skip
def test_each_program_is_looked_for_where_its_own_variables_lead(
    kind: str, platform: str, environ: dict[str, str], files: list[str]
) -> None:
    around = Surroundings(Path("/p"), Path("/h"), environ, platform)
    assert [path.as_posix() for path in places_of(kind, around)] == files


@pytest.mark.parametrize(
    ("kind", "path", "content", "servers"),
    [
        ("vscode", "project/.vscode/mcp.json", {"mcpServers": {"s": {"command": "x"}}}, ["s"]),
        ("vscode", "project/.vscode/mcp.json", {"mcp-servers": {"s": {"command": "x"}}}, ["s"]),
        ("vscode", "project/.vscode/mcp.json", {"inputs": []}, []),
        ("codex", "home/.codex/config.json", {"mcpServers": {"s": {"command": "x"}}}, ["s"]),
        ("codex", "home/.codex/config.json", {"model": "x"}, []),
        ("opencode", "home/.config/opencode/opencode.json", {"model": "x", "theme": "y"}, []),
        (
            "opencode", "home/.config/opencode/opencode.json",
            {"mcp": {"s": {"command": "one"}, "t": {"command": ["x"]}}}, ["s", "t"],
        ),
    ],
)  # fmt: skip
def test_a_program_s_servers_are_found_in_any_section_it_may_have_and_its_own_matters_are_not_named(
    place: Place, kind: str, path: str, content: Any, servers: list[str]
) -> None:
    config = imported(place, kind, path, content)
    assert ([*config.servers], config.problems) == (servers, ())


@pytest.mark.parametrize(
    ("kind", "path", "content", "said"),
    [
        ("opencode", "home/.config/opencode/opencode.json", {"mcp": 3}, "mcpServers: must be an object"),
        (
            "opencode", "home/.config/opencode/opencode.json", {"mcp": {"s": {"command": []}}},
            "mcpServers.s.command: must be",
        ),
        ("codex", "home/.codex/config.toml", "a = " + "[" * 20_000, "is nested too deeply"),
        ("codex", "home/.codex/config.toml", "a = " + "9" * 5_000, "is not valid TOML: "),
        ("claude-code", "home/.claude.json", [], "must be an object"),
        ("vscode", "project/.vscode/mcp.json", [], "must be an object"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_program_s_file_is_named_with_the_file(
    place: Place, kind: str, path: str, content: Any, said: str
) -> None:
    config = imported(place, kind, path, content)
    assert config.servers == {}
    (problem, *_) = [*config.problems, *config.broken.values()]
    assert str(problem).startswith(str(place.root / path))
    assert said in str(problem)


def test_codex_s_own_values_are_stronger_than_those_it_takes_from_variables(place: Place) -> None:
    entry = {"command": "x", "env_vars": ["A", "B"], "env": {"A": "own"}}
    config = imported(place, "codex", "home/.codex/config.json", {"mcp_servers": {"s": entry}}, A="a", B="b")
    assert config.servers["s"].env == {"A": "own", "B": "${B}"}


def test_a_file_of_another_program_that_cannot_be_looked_at_is_told(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_self: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    place.write("project/mine.json", {"imports": ["windsurf"]})
    monkeypatch.setattr(Path, "exists", refuse)
    config = place.load("mine.json")
    assert len(config.problems) == 2
    assert all("it is skipped" in str(each) for each in config.problems)


def test_an_import_that_is_none_is_told_by_whoever_asked_for_it_and_fails_only_a_named_file(
    place: Place,
) -> None:
    file = place.write("project/.mcp.json", {"imports": ["nope", "pi"]})
    far = place.write("home/.pi/agent/mcp.json", {"imports": ["nope"], **one("x")})
    config = place.load()
    assert config.servers["s"].command == "x"
    assert {str(problem).split(":")[0] for problem in config.problems} == {str(file), str(far)}


@pytest.mark.parametrize("name", ["mine.json", "mine.yaml", ".mcp.json", ".cursor/mcp.json"])
@pytest.mark.parametrize("keys", [1, 4, 5])
def test_keys_that_stand_twice_are_named_wherever_the_file_comes_from_and_the_last_counts(
    place: Place, name: str, keys: int
) -> None:
    twice = ",".join(f'"_{number}":1,"_{number}":2' for number in range(keys))
    servers = '"mcpServers":{"s":{"command":"x"}},"mcpServers":{"s":{"command":"y"}}'
    file = place.write(f"project/{name}", f'{{"x":[{{{twice}}}],{servers}}}')
    if name == ".cursor/mcp.json":
        place.write("project/.mcp.json", {"imports": ["cursor"]})
    config = place.load(name if name.startswith("mine") else None)
    assert config.servers["s"].command == "y"
    (told,) = [str(problem) for problem in config.problems if "more than once" in str(problem)]
    assert told.startswith(f"{name if name.startswith('mine') else file}: has ")
    assert told.count('"') == 2 * min(5, keys + 1), "with the section of the servers"
    assert (", …" in told) is (keys == 5)


def test_a_file_that_is_too_large_is_named_and_not_read(place: Place) -> None:
    file = place.write("project/mine.json", "{}")
    with file.open("r+b") as sparse:
        sparse.truncate(64 * 1024 * 1024 + 1)
    with pytest.raises(ConfigError, match=r"^mine\.json: has more than 67,108,864 bytes"):
        place.load("mine.json")


def test_a_folder_of_pi_that_is_named_from_the_project_belongs_to_the_project(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place.cwd)
    place.write("home/.config/mcp/mcp.json", {"imports": ["pi"]})
    place.write("project/agent/mcp.json", one("evil"))
    place.write("home/agent/mcp.json", one("own"))
    for folder, servers in (("agent", {}), (str(place.home / "agent"), {"s": "own"})):
        environ = {"PI_CODING_AGENT_DIR": folder}
        config = load_config(cwd=place.cwd, home=place.home, environ=environ, platform="linux")
        assert {name: each.command for name, each in config.servers.items()} == servers


def test_a_working_directory_that_is_gone_needs_a_path_that_does_not_start_there(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert working_directory(None) == Path.cwd()

    def gone() -> Path:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(Path, "cwd", gone)
    for path in ("/a/b.json", "~/b.json", Path("/x")):
        assert working_directory(path) == Path("/deleted working directory")
    for path in (None, "b.json", "~b.json"):
        with pytest.raises(UsageError, match="The working directory is gone"):
            working_directory(path)


def test_a_file_of_too_many_values_is_no_configuration(tmp_path: Path) -> None:
    """Reading it would hold the whole program up (issue 38)."""
    file = tmp_path / "mcp.json"
    file.write_text('{"mcpServers": {}, "x": [' + "1," * 1_000_000 + "1]}")
    with pytest.raises(ConfigError, match="values and keys"):
        load_config(file, cwd=tmp_path, home=tmp_path, environ={}, trust=True)
