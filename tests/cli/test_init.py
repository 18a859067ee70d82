"""`greenroom init`: only our entry differs, whatever the file looks like, and `--undo` restores the bytes."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.rows import for_each

from greenroom.cli import client_files, file_edits, json_edit, toml_edit
from greenroom.cli.client_files import CLIENTS, meaning, surroundings
from greenroom.cli.file_edits import CannotEdit
from greenroom.cli.main import run
from greenroom.config.files import load_config

BOM = b"\xef\xbb\xbf"
JSON_FILES: dict[str, bytes] = {
    "empty": b"",
    "bom-alone": BOM,
    "blank-lines": b"\n\n  \n",
    "comment-alone": b"// my settings\n",
    "empty-object": b"{}",
    "empty-object-line": b"{}\n",
    "empty-object-open": b"{\n}\n",
    "empty-object-comment": b"{\n  // nothing yet\n}\n",
    "empty-object-block": b"{ /* nothing */ }",
    "other-keys": b'{\n  "theme": "dark",\n  "n": [1, 2]\n}\n',
    "empty-section": b'{\n  "SECTION": {}\n}\n',
    "empty-section-open": b'{\n  "SECTION": {\n  }\n}\n',
    "empty-section-comment": b'{\n  "SECTION": {\n    // here\n  }\n}\n',
    "null-section": b'{\n  "SECTION": null\n}\n',
    "one-server": b'{\n  "SECTION": {\n    "a": {"command": "a"}\n  }\n}\n',
    "no-last-newline": b'{\n  "SECTION": {\n    "a": {"command": "a"}\n  }\n}',
    "bom": BOM + b'{\n  "SECTION": {\n    "a": {"command": "a"}\n  }\n}\n',
    "crlf": b'{\r\n  "SECTION": {\r\n    "a": {\r\n      "command": "a"\r\n    }\r\n  }\r\n}\r\n',
    "bom-crlf": BOM + b'{\r\n\t"SECTION": {\r\n\t\t"a": {"command": "a"}\r\n\t}\r\n}\r\n',
    "tabs": b'{\n\t"SECTION": {\n\t\t"a": {\n\t\t\t"command": "a"\n\t\t}\n\t}\n}\n',
    "four-spaces": b'{\n    "x": 1,\n    "SECTION": {\n        "a": {"command": "a"}\n    },\n    "y": 2\n}\n',
    "trailing-commas": b'{\n  "SECTION": {\n    "a": {"command": "a",},\n  },\n}\n',
    "line-comments": b'{\n  // before\n  "SECTION": {\n    "a": {"command": "a"} // why\n    // "b"\n  } // end\n}\n',
    "comma-then-comment": b'{"SECTION": {\n  "a": {"command": "a"}, // kept, "b": {\n}}\n',
    "block-comments": b'/* a { */ {\n  "SECTION": /* } */ {\n    "a": {"command": "a"} /* , */\n  }\n}\n',
    "minified": b'{"theme":"dark","SECTION":{"a":{"command":"a"}}}',
    "minified-empty": b'{"theme":"dark","SECTION":{}}',
    "one-line-spaces": b'{ "SECTION": { "a": { "command": "a" } } }\n',
    "closing-on-line": b'{\n  "SECTION": { "a": {"command": "a"},\n    "b": {"command": "b"} }\n}\n',
    "odd-indent": b'  {\n "SECTION":\n   {\n       "a"  :{"command":"a"}\n   }\n }',
    "commas-first": b'{ "x": 1\n, "SECTION": {\n    "a": {"command": "a"}\n  , "b": {"command": "b"}\n  }\n}\n',
    "duplicate-section": b'{"SECTION": {"old": {"command": "o"}},\n "SECTION": {"a": {"command": "a"}}\n}\n',
    "duplicate-server": b'{"SECTION": {\n  "a": {"command": "1"},\n  "a": {"command": "2"}\n}}\n',
    "nested-namesake": b'{\n  "projects": {"p": {"SECTION": {"x": {}}}},\n  "SECTION": {"a": {"command": "a"}}\n}\n',
    "braces-in-text": b'{\n  "say": "} // \\" /* {",\n  "SECTION": {"a": {"command": "}\\\\"}}\n}\n',
    "json5": b"{\n  theme: 'it\\'s', // bare\n  SECTION: {\n    'a': {command: 'a'},\n  },\n}\n",
    "unicode": '{\n  "näme": "日本 😀",\n  "SECTION": {"ä": {"command": "é"}}\n}\n'.encode(),
    "ours-is-old": b'{\n  "SECTION": {\n    "greenroom": {"command": "old"}, // us\n    "a": {}\n  }\n}\n',
    "old-macintosh": b'{\r  "SECTION": {\r    "a": {"command": "a"}\r  }\r}\r',
}
TOML_FILES: dict[str, bytes] = {
    "toml-empty": b"",
    "toml-bom": BOM + b'model = "x"\n',
    "toml-keys": b'# mine\nmodel = "x" # why\n\n[tui]\ntheme = "dark"\n',
    "toml-no-newline": b'model = "x"',
    "toml-crlf": b'model = "x"\r\n\r\n[mcp_servers.a]\r\ncommand = "a"\r\n',
    "toml-servers": b'[mcp_servers.a]\ncommand = "a"\nargs = [\n  "[x]", # one\n]\n\n[mcp_servers.a.env]\nK = "v"\n',
    "toml-strings": b"text = '''\n[mcp_servers.greenroom]\n'''\nmore = \"\"\"\n[x\n\"\"\"\n",
    "toml-ours-is-old": b'[mcp_servers.greenroom]\ncommand = "o"\n[mcp_servers.greenroom.env]\nA = "1"\n# x\n[tui]\n',
}
YAML_FILES: dict[str, bytes] = {
    "yaml-empty": b"",
    "yaml-keys": b"# mine\nGOOSE_MODEL: x # why\n",
    "yaml-no-newline": b"GOOSE_MODEL: x",
    "yaml-section": b"extensions: # all\n  # built in\n  developer:\n    type: builtin\n\n  'a b':\n    cmd: a\nX: 1\n",
    "yaml-deep": b"extensions:\n    a:\n        cmd: |\n            greenroom:\n        args: [x]\n",
    "yaml-crlf": b"a: 1\r\nextensions:\r\n  z:\r\n    cmd: q\r\n",
    "yaml-empty-section": b"extensions: {}\nX: 1\n",
    "yaml-ours-is-old": b"extensions:\n  greenroom:\n    cmd: old\n  a:\n    cmd: a\n",
}
FILES = [
    *(("cursor", name) for name in JSON_FILES),
    *(("codex", name) for name in TOML_FILES),
    *(("goose", name) for name in YAML_FILES),
]
REPLACED = ("null-section", "ours-is-old", "toml-ours-is-old", "yaml-empty-section", "yaml-ours-is-old")
SECRET = "sk-planted-4711"


def file_of(client: str) -> Path:
    return CLIENTS[client].file(surroundings(os.environ, sys.platform))


def write(client: str, data: bytes) -> Path:
    file = file_of(client)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data.replace(b"SECTION", CLIENTS[client].section.encode()))
    return file


def read(file: Path) -> dict[str, Any]:
    return meaning(file, file.read_bytes().decode())


@pytest.mark.parametrize(("client", "name"), FILES)
def test_only_our_entry_differs_and_undo_restores_the_bytes(home: Path, client: str, name: str) -> None:
    data = {**JSON_FILES, **TOML_FILES, **YAML_FILES}[name]
    file = write(client, data)
    before, section = file.read_bytes(), CLIENTS[client].section
    was = read(file)
    assert run(["init", client]) == 0
    now = read(file)
    ours = now[section].pop("greenroom")
    assert ours["args"][-1] == "serve"
    was[section] = was.get(section) or {}
    was[section].pop("greenroom", None)
    assert now == was
    after = file.read_bytes()
    if name not in REPLACED:  # characters are only added, none is taken away
        rest = iter(after)
        assert all(byte in rest for byte in before), after
    assert after.count(b"\r\n") == after.count(b"\n") or b"\r\n" not in before
    assert run(["init", client]) == 0
    assert file.read_bytes() == after, "the second time changes nothing"
    assert run(["init", client, "--undo"]) == 0
    assert file.read_bytes() == before


@pytest.mark.parametrize("client", CLIENTS)
def test_each_client_gets_the_entry_that_it_reads(home: Path, client: str) -> None:
    assert run(["init", client, "--force", "--attach", "--config", "some.json"]) == 0
    file = file_of(client)
    assert file.is_relative_to(home)
    assert file.stat().st_mode & 0o777 == 0o600
    entry = read(file)[CLIENTS[client].section]["greenroom"]
    command = entry["cmd" if client == "goose" else "command"]
    words = command if client == "opencode" else [command, *entry["args"]]
    assert words[-3:] == ["attach", "--config", str(Path.cwd() / "some.json")]
    assert Path(words[0]).is_absolute()
    assert run(["init", client, "--undo"]) == 0
    assert not file.exists()


@pytest.mark.parametrize(
    "data", [b'{"mcpServers": [', b'{"mcpServers": 3}', b"[]", b"\xff\xfe{\x00}\x00", b'{"a": }', b"{'a: 1}"]
)
def test_a_file_that_cannot_be_changed_stays_and_is_named(
    home: Path, data: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write("cursor", data)
    assert run(["init", "cursor"]) == 1
    assert file.read_bytes() == data
    said = capsys.readouterr().err
    assert "cursor: " in said
    assert "hand" in said or "UTF-8" in said or "line 1" in said


@pytest.mark.parametrize(
    "there",
    [
        "mcp_servers = { a = { command = 'a' } } # mine\n",
        "mcp_servers = {}\n[tui]\n",
        "[mcp_servers] # mine\na.command = 'a'\ngreenroom = { command = 'old' }\n",
        "[mcp_servers.a]\nurl = 'a'\n[tui]\n[mcp_servers.greenroom]\nurl = 'o'\n# b\n[mcp_servers.b]\nurl = 'b'\n",
        "[mcp_servers]\ngreenroom.command = 'old'\n# of a\na.command = 'a'\n",
        "mcp_servers.greenroom.command = 'old'\nmcp_servers.greenroom.args = ['x']\nmcp_servers.a.url = 'a'\n",
        "[mcp_servers.greenroom]\ncommand = 'o'\n# of tui\n[tui]\n[mcp_servers.greenroom.env]\nK = 'v'\n\n# end\n",
    ],
)
def test_a_table_of_codex_may_be_written_in_any_form(home: Path, there: str) -> None:
    file = write("codex", there.encode())
    was = read(file)
    assert run(["init", "codex"]) == 0
    now = read(file)
    assert now["mcp_servers"].pop("greenroom")["args"][-1] == "serve"
    was["mcp_servers"].pop("greenroom", None)
    assert now == was
    text = file.read_text()
    comments = [line for line in there.splitlines() if line.startswith("#")]
    assert [line for line in text.splitlines() if line.startswith("#")] == comments
    following = {line: after for line, after in itertools.pairwise(text.splitlines()) if line in comments}
    assert following.get("# of tui", "[tui]") == "[tui]"
    assert "# mine" in text or "# mine" not in there
    assert run(["init", "codex", "--undo"]) == 0
    assert file.read_text() == there


def test_a_form_of_toml_that_cannot_be_changed_is_refused(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = b'[mcp_servers.greenroom]\ncommand = "old"\n[[x]]\ny = 1\n[mcp_servers.a]\ncommand = "a"\n'
    file = write("codex", data)
    assert run(["init", "codex"]) == 1
    assert file.read_bytes() == data
    assert "by hand" in capsys.readouterr().err


def test_links_and_modes_stay(home: Path) -> None:
    real = home / "dotfiles" / "mcp.json"
    real.parent.mkdir()
    real.write_bytes(b"{}")
    real.chmod(0o640)
    link = home / ".cursor" / "mcp.json"
    link.parent.mkdir()
    link.symlink_to(real)
    assert run(["init", "cursor"]) == 0
    assert link.is_symlink()
    assert b"greenroom" in real.read_bytes()
    assert real.stat().st_mode & 0o777 == 0o640
    assert run(["init", "cursor", "--undo"]) == 0
    assert link.is_symlink()
    assert real.read_bytes() == b"{}"
    assert [each.name for each in real.parent.iterdir()] == ["mcp.json"]


def test_a_file_that_another_program_changed_just_now_is_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_bytes(b"theirs")
    for before, after in ((b"old", b"new"), (None, b"new"), (b"old", None)):
        with pytest.raises(file_edits.FileChanged, match="was changed by another program just now"):
            file_edits.replace(file, before, after)
        assert file.read_bytes() == b"theirs"
        assert [each.name for each in tmp_path.iterdir()] == ["mcp.json"], "nothing is left beside it"


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o1640])
def test_a_replaced_file_keeps_each_bit_of_its_mode_and_a_new_one_is_its_owners(
    tmp_path: Path, mode: int
) -> None:
    file, new = tmp_path / "mcp.json", tmp_path / "deep" / "new.json"
    file.write_bytes(b"old")
    file.chmod(mode)
    file_edits.replace(file, b"old", b"new")
    assert (file.read_bytes(), file.stat().st_mode & 0o7777) == (b"new", mode)
    file_edits.replace(new, None, b"new")
    assert (new.read_bytes(), new.stat().st_mode & 0o7777) == (b"new", 0o600)
    file_edits.replace(file, b"new", None)
    assert not file.exists()


def test_a_dry_run_writes_nothing_and_the_diff_shows_no_secret(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = {"a": {"command": "a", "env": {"K": SECRET}}}
    data = json.dumps({"mcpServers": servers, "key": SECRET}, indent=2).encode()
    file = write("cursor", data + b" // " + SECRET.encode() + b"\n")
    toml = write("codex", f'[mcp_servers.a]\ncommand = "a" # {SECRET}\nenv = {{ K = "{SECRET}" }}\n'.encode())
    before = file.read_bytes(), toml.read_bytes()
    assert run(["init", "cursor", "codex", "--dry-run", "--move"]) == 0
    said = capsys.readouterr()
    assert SECRET not in said.out + said.err
    assert '+    "greenroom": {' in said.out
    assert "+[mcp_servers.greenroom]" in said.out
    assert said.out.count('"serve"') == 2, "our own entry can be read"
    assert (file.read_bytes(), toml.read_bytes()) == before
    assert [each.name for each in home.iterdir()] == [".cursor", ".codex"] or not (home / ".local").exists()


def test_undo_refuses_a_changed_file_unless_it_is_forced(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write("cursor", b"{}")
    assert run(["init", "cursor"]) == 0
    mine = file.read_bytes() + b"// mine\n"
    file.write_bytes(mine)
    assert run(["init", "cursor", "--undo"]) == 1
    assert "--force" in capsys.readouterr().err
    assert file.read_bytes() == mine
    assert run(["init", "cursor", "--undo", "--force", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["clients"][0]
    assert file.read_bytes() == b"{}"
    assert Path(row["kept"]).read_bytes() == mine
    assert run(["init", "cursor", "--undo"]) == 1
    assert "nothing to undo" in capsys.readouterr().err


def test_undo_leads_back_to_what_somebody_else_wrote_between_our_changes(home: Path) -> None:
    file = write("cursor", b'{"a": 1}')
    assert run(["init", "cursor"]) == 0
    file.write_bytes(b'{"a": 2}')
    assert run(["init", "cursor"]) == 0
    assert run(["init", "cursor", "--undo"]) == 0
    assert file.read_bytes() == b'{"a": 2}'


@pytest.mark.parametrize("client", CLIENTS)
def test_the_entry_that_starts_us_never_moves_into_our_own_file(
    home: Path, client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it says `greenroom` nowhere but in its program, as every installed one does."""
    program = tmp_path / "greenroom"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    write(client, b"")
    assert run(["init", client, "--move", "--force"]) == 0
    file = CLIENTS[client].file(surroundings(os.environ, sys.platform))
    (entry,) = read(file)[CLIENTS[client].section].values()
    assert os.fspath(program) in json.dumps(entry)
    assert not load_config(cwd=home, home=home, environ={}, platform=sys.platform).servers


@pytest.mark.parametrize(
    "client", ["cursor", "vscode", "codex", "zed", "opencode", "copilot-cli", "goose", "cline"]
)
def test_servers_move_to_our_file_and_nothing_is_lost(
    home: Path, client: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if client == "codex":
        data = f'model = "x"\n\n[mcp_servers.one]\ncommand = "one"\nargs = ["-v"]\nenv = {{ K = "{SECRET}" }}\n\n'
        data += '# two\n[mcp_servers.two]\nurl = "https://two.example/mcp"\n'
    else:
        one: dict[str, Any] = {"command": "one", "args": ["-v"], "env": {"K": SECRET}}
        if client == "opencode":
            one = {"type": "local", "command": ["one", "-v"], "environment": {"K": SECRET}}
        if client == "copilot-cli":
            one |= {"type": "local", "tools": ["*"]}
        servers = {"one": one, "two": {"url": "https://two.example/mcp"}, "asks": {"command": "${input:x}"}}
        data = json.dumps({"x": 1, CLIENTS[client].section: servers}, indent=2)
    if client == "goose":
        data = f"""
extensions:
  asks: {{type: builtin, name: developer}}
  one:
    type: stdio
    cmd: one
    args: [-v]
    envs:
      K: {SECRET}
  two:
    type: streamable_http
    uri: https://two.example/mcp
"""
    file = write(client, data.encode())
    before = file.read_bytes()
    assert run(["init", client, "--move"]) == 0
    said = capsys.readouterr()
    assert SECRET not in said.out + said.err
    left = read(file)[CLIENTS[client].section]
    assert {*left} == ({"greenroom"} if client == "codex" else {"asks", "greenroom"})
    config = load_config(cwd=home, home=home, environ={}, platform=sys.platform)
    assert config.problems == ()
    assert [*config.servers] == ["one", "two"]
    assert config.servers["one"].command == "one"
    assert config.servers["one"].args == ("-v",)
    assert config.servers["one"].env == {"K": SECRET}
    ours = home / ".config" / "greenroom" / "mcp.json"
    assert ours.stat().st_mode & 0o777 == 0o600
    assert run(["init", client, "--undo"]) == 0
    assert file.read_bytes() == before
    assert "and stay there: one, two\n" in capsys.readouterr().out, "what is in both places is said"


def test_a_server_of_the_same_name_stays(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours = home / ".config" / "greenroom" / "mcp.json"
    ours.parent.mkdir(parents=True)
    ours.write_text('{"mcpServers": {"a": {"command": "mine"}}} // kept')
    write("cursor", b'{"mcpServers": {"a": {"command": "other"}, "b": {"command": "b"}}}')
    assert run(["init", "cursor", "--move", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["clients"][0]
    assert row["moved"] == ["b"]
    assert list(row["stay"]) == ["a"]
    assert ours.read_text().startswith('{"mcpServers": {"a": {"command": "mine"}, "b": {')
    assert ours.read_text().endswith("// kept")


def test_relative_paths_keep_their_meaning_when_a_server_moves(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRETS", "/run/secrets")
    servers = {
        "here": {"command": "a", "envFile": "keys/.env"},
        "there": {"command": "a", "envFile": "${SECRETS}/a.env", "cwd": "~/a"},
        "anywhere": {"command": "a", "cwd": "work"},
    }
    file = write("cursor", json.dumps({"mcpServers": servers}).encode())
    assert run(["init", "cursor", "--move", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["clients"][0]
    assert row["moved"] == ["here", "there"]
    assert list(row["stay"]) == ["anywhere"]
    assert "whole path" in row["stay"]["anywhere"]
    moved = json.loads((home / ".config" / "greenroom" / "mcp.json").read_text())["mcpServers"]
    assert moved["here"]["envFile"] == str(file.parent / "keys/.env")
    assert moved["there"] == servers["there"]
    assert run(["init", "cursor", "--undo"]) == 0
    capsys.readouterr()
    assert run(["init", "cursor", "--move", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)["clients"][0]
    assert again["moved"] == again["there"] == ["here", "there"], "what was moved before is the same server"
    assert run(["init", "cursor", "--undo"]) == 0
    capsys.readouterr()
    assert run(["init", "cursor", "--move"]) == 0
    said = capsys.readouterr().out
    assert f"In {home}/.config/greenroom/mcp.json already: here, there\n" in said
    assert "Moved to" not in said


def test_where_no_client_is_the_known_ones_are_named(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init"]) == 0
    first, second, *_, force, by_hand = capsys.readouterr().out.splitlines()
    assert force.endswith(": greenroom init --force CLIENT")
    entry = json.loads(by_hand.partition(": ")[2])
    assert entry == {"mcpServers": {"greenroom": {"command": "greenroom", "args": ["serve"]}}}
    assert first == "None of the clients that Greenroom knows is on this machine."
    assert second == f"Known are: {', '.join(CLIENTS)}"


def test_each_client_that_is_here_is_listed_with_its_command(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write("cursor", b"{}")
    write("codex", b'[mcp_servers.x]\ncommand = "x"\n')
    assert run(["init"]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "Cursor has no servers of its own. To let it use Greenroom: greenroom init cursor",
        "Codex has 1 server. To let Greenroom run it: greenroom init codex --move",
    ]


def test_without_a_client_it_lists_and_writes_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write("cursor", b"{}")
    assert run(["init"]) == 0
    said = capsys.readouterr().out
    assert "○ cursor  ~/.cursor/mcp.json\n" in said, "it is here, and nothing is written there yet"
    assert "\nAlso known: claude-desktop, " in said
    step = "Cursor has no servers of its own. To let it use Greenroom: greenroom init cursor\n"
    assert said.endswith(f"\n\n{step}")
    assert all(len(line) <= 80 or line.startswith("Also known") for line in said.splitlines())
    write("cursor", b'{"SECTION": {"mail": {"command": "two"}}}')
    assert run(["init"]) == 0
    said = capsys.readouterr().out
    assert "○ cursor  1 server  ~/.cursor/mcp.json\n" in said
    assert said.endswith("\nCursor has 1 server. To let Greenroom run it: greenroom init cursor --move\n")
    write("cursor", b"{}")
    assert run(["init", "--list"]) == 0
    assert "○ zed " in capsys.readouterr().out
    assert run(["init", "--list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["clients"]
    assert [row["client"] for row in rows if row["found"]] == ["cursor"]
    assert file_of("cursor").read_bytes() == b"{}"
    assert run(["init", "--all"]) == 0
    assert b"greenroom" in file_of("cursor").read_bytes()
    capsys.readouterr()
    assert run(["init"]) == 0
    said = capsys.readouterr().out
    assert (said.count("✓ "), "✓: it uses Greenroom already.\n" in said) == (1, True)
    assert [row["client"] for row in rows_of(capsys, "--list") if row["written"]] == ["cursor"]
    assert run(["init", "nobody"]) == 2


@pytest.mark.parametrize("ours", [{"env": {}}, {"env": {"KEY": "1"}, "disabled": True}])
def test_a_server_with_other_variables_or_that_is_disabled_here_does_not_run_twice(
    ours: dict[str, Any], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was said of one that has the program of another, and that stays with its client."""
    write("kiro", b'{"SECTION": {"mail": {"command": "two", "env": {"KEY": "x"}}}}')
    assert run(["init", "kiro"]) == 0
    own = home / ".config" / "greenroom" / "mcp.json"
    own.parent.mkdir(parents=True)
    own.write_text(json.dumps({"mcpServers": {"wiki": {"command": "two", **ours}}}))
    capsys.readouterr()
    assert run([]) == 0
    said = capsys.readouterr().out
    assert "Kiro also starts 1 server itself" in said
    assert "twice" not in said


def test_servers_that_a_client_starts_itself_are_counted_and_those_that_run_twice_named(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write("kiro", b'{"SECTION": {"one": {"command": "one"}, "two": {"command": "two"}}}')
    move = "greenroom init kiro --move"
    for words in ([], ["init"]):
        assert run(words) == 0
        assert f"Kiro has 2 servers. To let Greenroom run them: {move}" in capsys.readouterr().out
    assert [row["servers"] for row in rows_of(capsys, "--list") if row["found"]] == [2]
    assert run(["init", "kiro"]) == 0
    assert f"Kiro also starts 2 servers itself: {move}" in capsys.readouterr().out
    own = home / ".config" / "greenroom" / "mcp.json"
    own.parent.mkdir(parents=True)
    own.write_text('{"mcpServers": {"another name": {"command": "two"}}}')
    assert run([]) == 0
    assert f"Kiro starts two itself, too, so it runs twice: {move}" in capsys.readouterr().out
    assert run(["init", "kiro", "--move"]) == 0
    assert "Kiro" not in capsys.readouterr().out.partition("Restart Kiro")[2]


def test_what_cannot_move_is_not_told_to_move(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = home / ".config" / "greenroom" / "mcp.json"
    own.parent.mkdir(parents=True)
    own.write_text('{"mcpServers": {"time": {"command": "another"}}}')
    write("kiro", b'{"SECTION": {"time": {"command": "time"}}}')
    assert run(["init", "kiro", "--move"]) == 0
    said = capsys.readouterr().out
    assert "Not moved: time, because Greenroom's own file has another server of this name." in said
    assert "rename time in one of the two, then: greenroom init kiro --move" in said
    assert run(["init", "kiro", "--undo"]) == 0
    write("kiro", b'{"SECTION": {"time": {"command": "time", "cwd": "work"}}}')
    capsys.readouterr()
    assert run(["init", "kiro", "--move"]) == 0
    said = capsys.readouterr().out
    assert "Kiro also starts 1 server itself.\n" in said
    assert "--move" not in said, "it would change nothing"


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
def test_every_client_has_a_place_on_every_system(home: Path, platform: str) -> None:
    around = surroundings({"APPDATA": str(home / "Roaming")}, platform)
    files = {key: one.file(around) for key, one in CLIENTS.items()}
    assert len(set(files.values())) == len(CLIENTS)
    desktop = {"linux": ".config", "darwin": "Library/Application Support", "win32": "Roaming"}[platform]
    assert files["claude-desktop"] == home / desktop / "Claude" / "claude_desktop_config.json"
    assert files["zed"] == home / ("Roaming/Zed" if platform == "win32" else ".config/zed") / "settings.json"


def test_removing_leaves_a_file_that_reads_as_before() -> None:
    text = '{"s": {\n  // one\n  "a": 1, // a\n  "b": {"x": [1, {}]}\n}}'
    assert json_edit.remove(text, ("s", "b")) == '{"s": {\n  // one\n  "a": 1 // a\n}}'
    assert json_edit.remove(text, ("s", "a")) == '{"s": {\n  // one\n   // a\n  "b": {"x": [1, {}]}\n}}'
    assert json_edit.remove('{"s": {"a": 1, "b": 2}}', ("s", "a")) == '{"s": {"b": 2}}'
    table = "[a.b]\nx = 1\n\n# of c\n[c]\ny = 2\n[a.b.d]\nz = 3\n"
    assert toml_edit.remove(table, ("a", "b")) == "\n# of c\n[c]\ny = 2\n"


@for_each(
    ("entry", "is_us"),
    [
        ({"command": "greenroom"}, True),
        ({"command": "/opt/bin/greenroom", "args": ["serve"]}, True),
        ({"command": "uvx", "args": ["greenroom", "serve"]}, True),
        ({"command": ["uvx", "greenroom"]}, True),
        ({"command": "greenroomish"}, False),
        ({"command": "npx", "args": [7, None]}, False),
        ({"args": "greenroom"}, True),
        ({}, False),
        ("greenroom", False),
        (None, False),
    ],
)
def test_greenroom_never_moves_into_greenroom(entry: Any, is_us: bool) -> None:
    assert client_files.starts_us(entry) is is_us


@for_each(
    ("entry", "new"),
    [
        ({"source": "custom", "command": "a", "args": ["b"]}, {"command": "a", "args": ["b"]}),
        (
            {"command": {"path": "a", "args": ["b"], "env": {"K": "v"}}, "settings": {}},
            {"command": "a", "args": ["b"], "env": {"K": "v"}, "settings": {}},
        ),
        ({"source": "custom", "url": "https://h.example"}, {"url": "https://h.example"}),
        ({"source": "extension", "settings": {}}, None),
        ({"command": {"args": []}}, None),
    ],
)
def test_what_zed_writes_is_read_in_each_of_its_forms(entry: Any, new: Any) -> None:
    assert client_files._from_zed(entry) == new


def rows_of(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert run(["init", *words, "--json"]) == code
    return json.loads(capsys.readouterr().out)["clients"]


def test_all_means_the_clients_that_are_found_and_to_list_writes_to_none(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["init", "--all"]) == 2
    assert "No known client was found" in capsys.readouterr().err
    file = write("cursor", b"{}")
    for words in (["--list", "cursor"], ["--list", "--all"]):
        assert len(rows_of(capsys, *words)) == len(CLIENTS)
        assert file.read_bytes() == b"{}"
    assert [row["client"] for row in rows_of(capsys, "--all")] == ["cursor"]
    assert [key for key in CLIENTS if file_of(key).exists()] == ["cursor"]
    file_of("zed").parent.mkdir(parents=True)
    assert [row["client"] for row in rows_of(capsys, "cursor", "zed", "--dry-run")] == [
        key for key in CLIENTS if key in ("cursor", "zed")
    ]


def test_each_step_says_what_it_did_or_would_do(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write("cursor", b"{}")

    def state(*words: str) -> Any:
        (row,) = rows_of(capsys, "cursor", *words)
        return row["state"]

    assert (state("--undo", "--dry-run"), file.read_bytes()) == ("unchanged", b"{}")
    assert (state("--dry-run"), file.read_bytes()) == ("would be written", b"{}")
    (written,) = rows_of(capsys, "cursor")
    after = file.read_bytes()
    assert written["state"] == "written"
    assert Path(written["backup"]).read_bytes() == b"{}"
    (again,) = rows_of(capsys, "cursor")
    assert (again["state"], "diff" in again, "backup" in again) == ("unchanged", False, False)
    assert (state("--undo", "--dry-run"), file.read_bytes()) == ("would be put back", after)
    assert (state("--undo"), file.read_bytes()) == ("put back", b"{}")


def test_our_entry_has_the_name_that_was_asked_for_and_is_shown_unmasked(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(
        "cursor", b'{"mcpServers": {"other": {"command": "x", "args": ["--token", "sk-planted-4711"]}}}'
    )
    (row,) = rows_of(capsys, "cursor", "--name", "gr", "--attach")
    assert [*read(file)["mcpServers"]] == ["other", "gr"]
    assert read(file)["mcpServers"]["gr"]["args"][-1] == "attach"
    assert '"attach"' in row["diff"]
    assert SECRET not in row["diff"]


@pytest.mark.parametrize(
    "error", [CannotEdit("no"), PermissionError(13, "no"), OverflowError("no")], ids=repr
)
def test_a_client_whose_file_cannot_be_used_does_not_stop_the_others(
    error: Exception, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, real = file_of("cursor"), file_edits.read
    for client in ("cursor", "zed"):
        file_of(client).parent.mkdir(parents=True)

    def reads(file: Path) -> bytes | None:
        if file == broken:
            raise error
        return real(file)

    monkeypatch.setattr(file_edits, "read", reads)
    failed, other = sorted(rows_of(capsys, "cursor", "zed", code=1), key=lambda row: row["client"])
    assert (failed["client"], failed["state"], other["state"]) == ("cursor", "failed", "written")
    assert "no" in failed["error"]
    assert run(["init", "cursor"]) == 1
    shown = capsys.readouterr()
    assert shown.err.startswith("greenroom: cursor: ")
    assert shown.out == ""


def test_a_folder_that_cannot_be_made_comes_with_the_next_step(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / ".cursor").mkdir()
    (home / ".cursor" / "mcp.json").write_text("{}")
    (home / ".local").symlink_to("/proc/nothing")  # root cannot make a folder there either
    assert run(["init", "cursor"]) == 1
    assert "name another one in XDG_STATE_HOME" in capsys.readouterr().err


def test_what_stays_with_its_client_comes_with_the_reason() -> None:
    client, around = CLIENTS["cursor"], surroundings({}, "linux")
    theirs = {
        "odd": 7,
        "bare": {"env": {}},
        "asks": {"command": "a", "args": ["${input:token}"]},
        "here": {"command": "a", "cwd": "sub"},
        "other": {"command": "a"},
        "same": {"command": "a"},
        "us": {"command": "/opt/greenroom", "args": ["serve"]},
    }
    ours = {"other": {"command": "b"}, "same": {"command": "a"}}
    move = client_files.movable("cursor", client, around, {"mcpServers": theirs}, ours)
    assert dict(move.stay) == {
        "odd": "it is not of a form that we can run",
        "bare": "it is not of a form that we can run",
        "asks": "it uses ${input…}, which only its client can fill in",
        "here": "its cwd is relative to where its client is started: write the whole path",
        "other": "Greenroom's own file has another server of this name",
    }
    assert dict(move.servers) == {"same": {"command": "a"}}
    for nothing in ({}, {"mcpServers": []}, []):
        assert client_files.movable("cursor", client, around, nothing, ours) == client_files.Move({}, {})


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("option", [[], ["--dry-run"], ["--move"], ["--attach"]], ids=str)
def test_nothing_is_made_for_a_client_that_is_not_here(
    home: Path, client: str, option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(home.rglob("*"))
    (row,) = rows_of(capsys, client, *option, code=1)
    assert row["state"] == "failed"
    assert sorted(home.rglob("*")) == before
    assert run(["init", client, *option]) == 1
    said = capsys.readouterr()
    assert "✓" not in said.out
    assert str(file_of(client)) in said.err


def test_a_client_is_here_if_its_command_is(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(["init", "codex"]) == 1
    program = home / "bin" / "codex"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    assert run(["init", "codex"]) == 0
    assert b"greenroom" in file_of("codex").read_bytes()


@pytest.mark.parametrize("named", [False, True], ids=["found", "--config"])
@pytest.mark.parametrize("servers", [{}, {"a": {"command": sys.executable}}], ids=["no server", "a server"])
def test_it_ends_with_a_step_that_works_as_printed(
    home: Path, named: bool, servers: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    file = home / "my files" / "f.json" if named else home / ".config" / "greenroom" / "mcp.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"mcpServers": servers}))
    file.chmod(0o600)
    options = ["--config", str(file)] if named else []
    write("cursor", b"{}")
    for words in (["--dry-run"], []):
        assert run(["init", "cursor", *words, *options]) == 0
        last = capsys.readouterr().out.splitlines()[-1]
        typed = shlex.split(last[last.index("greenroom ") :])[1:]
        assert run([{"NAME": "new", "COMMAND": "cat"}.get(word, word) for word in typed]) == 0, last
        capsys.readouterr()
        assert b"greenroom" in file_of("cursor").read_bytes(), "the step of a dry run does it"
        assert not named or str(file) in typed
    assert [*json.loads(file.read_text())["mcpServers"]] == ([*servers] or ["new"])
