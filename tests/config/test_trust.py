"""A project's configuration is obeyed only after its owner has said yes. Nothing of a hostile repository happens."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.support.forked import GREENROOM, popen_forked
from tests.support.gateway import FAULTY, started
from tests.support.patience import PATIENCE
from tests.support.rows import for_each

from greenroom.actors.transports.api_document import api_in_file
from greenroom.cli import serve_command, trust_command
from greenroom.cli.json_shapes import plain
from greenroom.cli.main import run
from greenroom.cli.trust_command import _decide
from greenroom.config import files as config_files
from greenroom.config import trust
from greenroom.config.credentials import names_credential
from greenroom.config.files import load_config, project_asks
from greenroom.config.loader_variables import loaders_among
from greenroom.config.model import Config
from greenroom.config.secret_sources import variables_in
from greenroom.config.trust import Agreements, ProjectFile, digest, trust_file, what_matters
from greenroom.errors import ConnectFailed

PROJECT_FILES = {  # where a repository may have its own file: the section of servers, and who must import it
    ".mcp.json": ("mcpServers", None),
    ".greenroom/mcp.json": ("mcpServers", None),
    ".cursor/mcp.json": ("mcpServers", "cursor"),
    ".vscode/mcp.json": ("servers", "vscode"),
    ".pi/mcp.json": ("mcpServers", "pi"),
    "opencode.json": ("mcp", "opencode"),
}
OWN = {"mcpServers": {"mine": {"command": "mine", "env": {"TOKEN": "${MY_TOKEN}"}, "bootstrap": False}}}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home beside an empty project, which is the working directory."""
    for name in ("project", "home"):
        (tmp_path / name).mkdir()
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "PI_CODING_AGENT_DIR", "CODEX_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", os.fspath(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path / "cache"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", os.fspath(tmp_path))
    monkeypatch.setenv("MY_TOKEN", "my-own-token")
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "home"


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def loaded(home: Path, path: Path | None = None, *, trust: bool = False) -> Any:
    return load_config(path, cwd=Path.cwd(), home=home, environ=os.environ, trust=trust)


def agreements(home: Path) -> Agreements:
    return Agreements(trust_file(home, os.environ))


def said_yes(home: Path) -> None:
    agreements(home).add(project_asks(cwd=Path.cwd(), home=home, environ=os.environ))


def test_t31_a_hostile_repository_runs_nothing_and_reaches_nobody(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every kind of file that a repository may bring: a command, a variable in a URL, an import, settings. It is
    entered, listed, searched and served by a real gateway, which answers its client's `initialize` and leaves it all
    out."""
    marker = home.parent / "it-ran"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0)
        port = listener.getsockname()[1]
        touch = [sys.executable, "-c", f"open({str(marker)!r}, 'w')"]
        for file, (section, _) in PROJECT_FILES.items():
            name = file.strip(".").replace("/", "-")
            one: dict[str, Any] = {"command": touch[0], "args": touch[1:], "lifecycle": "keep-alive"}
            if section == "mcp":
                one = {"type": "local", "command": touch}
            url = {"url": f"http://127.0.0.1:{port}/${{MY_TOKEN}}", "lifecycle": "eager"}
            over = {"args": ["--evil"], "lifecycle": "eager"}  # of the user's own server
            write(
                Path(file),
                {
                    section: {f"{name}-runs": one, f"{name}-sends": url, "mine": over},
                    "imports": ["cursor", "vscode", "pi", "opencode"],
                    "settings": {"inheritEnv": True},
                },
            )
        own: dict[str, Any] = {**OWN, "imports": [kind for _, kind in PROJECT_FILES.values() if kind]}
        own["settings"] = {"bootstrap": True}
        write(home / ".config" / "greenroom" / "mcp.json", own)

        config = loaded(home)
        assert (dict(config.servers["mine"].env), config.servers["mine"].args) == (
            {"TOKEN": "${MY_TOKEN}"},
            (),
        )
        assert [*config.servers] == ["mine"]
        assert len(config.untrusted) == len(PROJECT_FILES)
        assert config.settings.inherit_env is not True

        assert len(loaded(home, trust=True).servers) == 1 + 2 * len(
            PROJECT_FILES
        )  # what would have been started

        for words in (["status"], ["tools"], ["search", "anything"], ["config"], ["describe", "mine_x"]):
            run(words)
            shown = capsys.readouterr()
            assert "greenroom trust" in shown.err, words
            assert "my-own-token" not in shown.out + shown.err
        assert run(["status"]) == 0
        assert "⚠  greenroom-mcp.json-runs" in capsys.readouterr().out
        assert run(["call", "mcp.json-runs_x"]) == 1
        assert "greenroom trust" in capsys.readouterr().err

        with started(*GREENROOM, "serve", env=dict(os.environ), cwd=Path.cwd()) as gateway:
            hello = gateway.initialize()
            assert "greenroom trust" in hello["instructions"]
            status = gateway.mcp()
            text = status["content"][0]["text"]
            assert "not trusted" in text
            assert "greenroom trust" in text
            assert gateway.mcp(tool="mcp.json-runs_x")["isError"]
            assert gateway.end() == 0
        assert not marker.exists()
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.parametrize("file", PROJECT_FILES)
def test_a_project_s_file_is_obeyed_after_a_yes_until_it_changes(home: Path, file: str) -> None:
    section, kind = PROJECT_FILES[file]
    write(home / ".config" / "mcp" / "mcp.json", {"imports": [kind]} if kind else {})
    path = write(Path(file), {section: {"a": {"url": "https://a.example/${X}"}}})
    assert (dict(loaded(home).servers), loaded(home).broken["a"].code) == ({}, "server_untrusted")
    assert "X" not in str(loaded(home).problems).replace(str(path), "")  # it was not even read
    said_yes(home)
    assert loaded(home).untrusted == ()
    assert "a" in loaded(home).broken  # X is not set: now it is read
    path.write_text(
        "// a comment\n"
        + json.dumps({section: {"a": {"idleTimeout": 3, "_note": "", "url": "https://a.example/${X}"}}})
    )
    assert loaded(home).untrusted == ()
    write(path, {section: {"a": {"url": "https://a.example/${Y}"}}})
    assert [Path(one).name for one in loaded(home).untrusted] == [path.name]


def test_what_matters_changes_the_digest_and_what_does_not_does_not() -> None:
    entry = {"command": "a", "args": ["b"], "env": {"X": "1"}, "idleTimeout": 1, "$note": "x", "unknown": 1}

    def of(**changed: Any) -> str:
        return digest("f", "d", what_matters({"mcpServers": {"s": {**entry, **changed}}}))

    same = of()
    assert of(idleTimeout=2) == of(**{"$note": "y"}) == of(disabled=True) == of(enabled=False) == same
    others = [
        of(command="c"), of(args=["c"]), of(env={"X": "2"}), of(cwd="/"), of(url="http://x"), of(unknown=2),
        of(headers={"a": "b"}), of(disabled=False), of(lifecycle="eager"), of(isolation="per_call"), of(envFile="x"),
    ]  # fmt: skip
    assert len({same, *others}) == len(others) + 1
    assert what_matters({"mcpServers": {"s": {"idleTimeout": 1, "disabled": True}}, "other": 1}) == {}
    assert digest("f", "other", {}) != digest("f", "d", {}) != digest("g", "d", {})


def test_the_user_s_own_files_are_obeyed_also_when_home_is_the_working_directory(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    write(home / ".mcp.json", {"mcpServers": {"a": {"command": "x"}}, "imports": ["cursor"]})
    write(home / ".cursor" / "mcp.json", {"mcpServers": {"b": {"command": "x"}}})
    config = loaded(home)
    assert (sorted(config.servers), config.untrusted) == (["a", "b"], ())
    assert project_asks(cwd=home, home=home, environ=os.environ) == ()


def test_a_named_file_and_a_program_s_own_choice_are_trusted_but_not_what_they_find_here(home: Path) -> None:
    named = write(Path("mine.json"), {"mcpServers": {"a": {"command": "x"}}, "imports": ["cursor"]})
    write(
        Path(".cursor/mcp.json"), {"mcpServers": {"b": {"command": "./evil", "args": ["greenroom", "serve"]}}}
    )
    config = loaded(home, named)
    assert ([*config.servers], [*config.broken]) == (["a"], ["b"])
    assert f"greenroom trust --config {named}" in str(config.broken["b"])
    assert sorted(loaded(home, named, trust=True).servers) == ["a", "b"]


def test_a_file_that_only_starts_this_gateway_or_tunes_is_not_asked_about(home: Path) -> None:
    write(home / ".config" / "mcp" / "mcp.json", OWN)
    itself = {"command": "greenroom", "args": ["serve"]}
    write(Path(".mcp.json"), {"mcpServers": {"greenroom": itself, "mine": {"idleTimeout": 7}}})
    config = loaded(home)
    assert (config.untrusted, [*config.servers]) == ((), ["mine"])
    assert config.servers["mine"].idle_timeout == 7 * 60


@pytest.mark.parametrize(
    "content",
    [
        *("{", "[]", '{"version": 9, "trusted": {}}', '{"version": 1, "trusted": {"a": 1}}'),
        '{"version": 1, "trusted": {"a": {"file": [], "directory": "/"}}}',
        '{"version": 1, "trusted": {"a": {"file": "/f", "directory": []}}}',
        '{"version": 1, "trusted": ' + "[" * 100_000,
    ],
    ids=lambda content: content[:50],
)
def test_an_agreement_that_cannot_be_read_is_none(home: Path, content: str) -> None:
    write(Path(".mcp.json"), {"mcpServers": {"a": {"command": "x"}}})
    said_yes(home)
    place = agreements(home).path
    assert place.stat().st_mode & 0o777 == 0o600
    place.write_text(content)
    config = loaded(home)
    assert config.untrusted
    assert any(problem.where == str(place) for problem in config.problems)
    assert run(["trust"]) == 2


def test_an_agreement_that_others_may_write_is_none(home: Path) -> None:
    write(Path(".mcp.json"), {"mcpServers": {"a": {"command": "x"}}})
    said_yes(home)
    assert not loaded(home).untrusted
    agreements(home).path.chmod(0o666)
    config = loaded(home)
    assert config.untrusted
    told = [problem for problem in config.problems if problem.where == str(agreements(home).path)]
    assert [("no project is trusted" in one.what, "chmod go-w" in one.what) for one in told] == [(True, True)]
    assert str(agreements(home).path) in config.places, "who repairs it is seen to have done so"


def test_also_a_server_that_could_not_be_used_anyway_says_that_its_file_is_not_trusted(home: Path) -> None:
    path = write(Path(".mcp.json"), {"mcpServers": {"a": {"command": "x"}, "b": {}}})
    config = loaded(home)
    assert {name: problem.code for name, problem in config.broken.items()} == {
        "a": "server_untrusted",
        "b": "server_untrusted",
    }
    assert project_asks(cwd=Path.cwd(), home=home, environ=os.environ)[0].servers == ("a", "b")
    assert config.untrusted == (str(path.absolute()),)


def test_a_server_of_the_user_s_own_keeps_its_place_before_one_that_is_not_trusted(home: Path) -> None:
    write(home / ".config" / "greenroom" / "mcp.json", {"mcpServers": {"a": {"command": "mine"}, "b": {}}})
    write(Path(".mcp.json"), {"mcpServers": {name: {"command": "x"} for name in ("a", "b", "c")}})
    config = loaded(home)
    assert config.servers["a"].command == "mine"
    assert {name: problem.code == "server_untrusted" for name, problem in config.broken.items()} == {
        "b": False,
        "c": True,
    }


def test_what_cannot_be_compared_is_never_obeyed_and_says_so(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(*_: Any) -> str:
        raise ValueError("nested too deeply")

    write(Path(".mcp.json"), {"mcpServers": {"a": {"command": "x"}}})
    monkeypatch.setattr(trust, "digest", cannot)
    said_yes(home)
    config = loaded(home)
    assert [*config.servers] == []
    assert "cannot be compared" in str(config.broken["a"])
    assert "write it anew" in str(config.problems[0])
    assert "greenroom trust" not in str(config.broken["a"]), "that would not help"


def test_a_yes_takes_the_place_of_an_older_one_for_the_same_file_in_the_same_directory(home: Path) -> None:
    def asked(file: str, directory: str, digest: str) -> ProjectFile:
        return ProjectFile(file, directory, {"x": 1}, (), digest)

    known = agreements(home)
    one, elsewhere, beside = asked("f", "/a", "1"), asked("f", "/b", "2"), asked("g", "/a", "3")
    for each in (one, elsewhere, beside):
        known.add([each])
    assert all(map(known.allows, (one, elsewhere, beside)))
    changed = asked("f", "/a", "4")
    known.add([changed])
    assert [known.allows(each) for each in (one, elsewhere, beside, changed)] == [False, True, True, True]
    assert known.forget("/a") == ["f", "g"]
    assert [known.allows(each) for each in (elsewhere, beside, changed)] == [True, False, False]


def test_a_yes_is_taken_back_in_one_directory_and_not_in_those_below_it(home: Path) -> None:
    known = agreements(home)
    assert known.forget("/a") == []
    assert not known.path.exists(), "there was nothing to write"
    known.add(ProjectFile("f", place, {}, (), place) for place in ("/a", "/a/b", "/ab"))
    assert all(abs(each["since"] - time.time()) < 600 for each in known.read().values())
    assert known.forget("/a") == ["f"]
    assert sorted(known.read()) == ["/a/b", "/ab"]


def test_an_agreement_that_cannot_be_written_leaves_the_others_and_no_file(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = agreements(home)
    known.add([ProjectFile("f", "/a", {}, (), "1")])

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        known.add([ProjectFile("f", "/b", {}, (), "2")])
    assert [*known.read()] == ["1"]
    assert [path.name for path in known.path.parent.iterdir()] == ["trust.json"]


def test_what_another_left_in_the_place_of_a_new_agreement_is_never_part_of_it(home: Path) -> None:
    known = agreements(home)
    known.add([ProjectFile("f", "/a", {}, (), "1")])
    left = known.path.with_name(f"trust.json.{os.getpid()}.tmp")
    left.write_text("x" * 10_000)
    known.add([ProjectFile("f", "/b", {}, (), "2")])
    assert [*known.read()] == ["1", "2"]
    assert known.path.stat().st_mode & 0o777 == 0o600


SECRET = "planted-4711"


def test_what_runs_and_what_is_sent_is_shown_and_no_secret(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = {
        "command": "sh",
        "args": ["-c", "serve here", "--token", SECRET, f"https://me:{SECRET}@h.example/x?k={SECRET}"],
        "env": {
            "LD_PRELOAD": "./evil.so",
            "A": SECRET,
            "B": f"{SECRET}${{MY_TOKEN}}",
            "C": f"${{D:-{SECRET}}}",
            "HTTPS_PROXY": f"http://u:{SECRET}@p.example",
            "E": f"!run-this --password {SECRET}",
        },
        "mystery": {"deep": [SECRET]},
    }
    site = {
        "url": f"https://{SECRET}@site.example/mcp?api_key={SECRET}",
        "headers": {"X-Api": SECRET, "Authorization": "Bearer ${MY_TOKEN}", "X-Cmd": "!say-it"},
        "oauth": {"clientId": "me", "clientSecret": SECRET, "authorizationParams": {"a": SECRET}},
        "requestHeadersCommand": {"command": "sign", "args": ["--key", SECRET], "env": {"K": SECRET}},
    }
    settings = {"http": {"tokens": {"ann": SECRET}}, "inheritEnv": True}
    content = {
        "mcpServers": {
            "a": program,
            "b": site,
            "c": {"httpUrl": "https://c.example", "bearerToken": SECRET},
            "f": {"command": "sh", "args": ["-c", 'eval "$2"', "--token", f"fetch h; run-it --key {SECRET}"]},
            "d": {"command": ["run", "--token", SECRET], "args": [{"keyring": "service/name"}]},
            "e": {"url": "https://e.example", "auth": {"CLIENT_ID": "us", "CLIENT_SECRET": SECRET}},
        },
        "settings": settings,
        "adapter": {"mcpBearerToken": SECRET},
    }
    write(Path(".mcp.json"), content)
    assert run(["trust"]) == 2
    plain = capsys.readouterr().out
    assert run(["trust", "--json"]) == 1
    data = capsys.readouterr().out
    for said in (plain, data):
        assert SECRET not in said
        for expected in (
            "serve here",
            "h.example/x?k=***",
            "./evil.so",
            "fetch h; run-it --key ***",
            "*** (with ${MY_TOKEN})",
            "*** (with ${D})",
            "!run-this --password ***",
            "http://***@p.example",
            "site.example/mcp?api_key=***",
            "X-Api",
            "Bearer ${MY_TOKEN}",
            "!say-it",
            "sign",
            "https://c.example",
            "service/name",
            "ann",
            "mystery",
        ):
            assert expected in said, expected
    assert "*** stands for what may be a secret. The file has it." in plain
    assert run(["trust", "--yes"]) == 0
    assert loaded(home).servers["a"].env["A"] == SECRET
    write(Path(".mcp.json"), {**content, "settings": {**settings, "http": {"tokens": {"ann": "other"}}}})
    assert loaded(home).untrusted  # what is hidden matters, too


def test_the_command_shows_asks_remembers_and_takes_back(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["trust"]) == 0
    assert "Nothing to decide" in capsys.readouterr().out
    entry = {"command": "sh", "args": ["-c", "cat \u202e\u001b[2K"], "env": {"T": "${MY_TOKEN}"}}
    path = write(Path(".mcp.json"), {"mcpServers": {"a": entry}, "imports": ["cursor"]})
    write(Path(".cursor/mcp.json"), {"mcpServers": {"b": {"url": "https://b.example"}}})
    assert run(["trust"]) == 2  # nobody can answer
    shown = capsys.readouterr()
    assert "greenroom trust --yes" in shown.err
    for expected in (
        str(path.absolute()),
        "runs a program",
        r"cat \u202e\u001b[2K",
        "${MY_TOKEN}",
        "https://b.example",
    ):
        assert expected in shown.out
    assert "my-own-token" not in shown.out
    for answer, code in (("n\n", 1), ("y\n", 0)):
        monkeypatch.setattr("click.confirm", lambda *_, answer=answer, **__: answer == "y\n")
        monkeypatch.setattr("sys.stdin", type("Terminal", (), {"isatty": lambda self: True})())
        assert run(["trust"]) == code
        assert bool(loaded(home).untrusted) == (code == 1)
    capsys.readouterr()
    write(Path(".cursor/mcp.json"), {"mcpServers": {"b": {"url": "https://c.example"}}})
    assert run(["trust", "--json"]) == 1, "one of them is not trusted any more"
    assert [one["trusted"] for one in json.loads(capsys.readouterr().out)["files"]] == [True, False]
    assert run(["trust", "--yes"]) == 0
    capsys.readouterr()
    assert run(["trust", "--list", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["trusted"]) == 2
    assert run(["trust", "--json"]) == 0
    assert [one["trusted"] for one in json.loads(capsys.readouterr().out)["files"]] == [True, True]
    assert run(["trust", "--revoke"]) == 0
    assert "No longer trusted" in capsys.readouterr().out
    assert loaded(home).untrusted
    assert run(["trust", "--trust", "--json"]) == 0
    assert not loaded(home).untrusted
    assert run(["trust", "--yes", "--revoke"]) == 2


@for_each(
    ("state", "folder"),
    [
        ({}, "/home/me/.local/state"),
        ({"XDG_STATE_HOME": ""}, "/home/me/.local/state"),
        ({"XDG_STATE_HOME": "/var/mine"}, "/var/mine"),
        ({"XDG_STATE_HOME": "here"}, "/home/me/.local/state"),  # a project could bring a folder of this name
        ({"XDG_STATE_HOME": "./here"}, "/home/me/.local/state"),
    ],
)
def test_agreements_are_never_kept_in_a_folder_of_the_project(state: dict[str, str], folder: str) -> None:
    assert trust_file(Path("/home/me"), state) == Path(folder) / "greenroom" / "trust.json"


@pytest.mark.parametrize(
    ("digests", "code", "kept"), [(["a", "b"], 0, 2), (["a", None], 1, 1), ([None], 1, 0), ([], 0, 0)]
)
def test_what_cannot_be_trusted_is_told_by_the_exit_code(
    digests: list[str | None], code: int, kept: int, tmp_path: Path
) -> None:
    agreements = Agreements(tmp_path / "trust.json")
    files = [
        ProjectFile(f"f{number}", str(tmp_path), {}, (), digest) for number, digest in enumerate(digests)
    ]
    assert _decide(agreements, files, files, True) == code
    assert len(agreements.read()) == kept


def test_only_files_that_are_obeyed_are_named_as_deciding_what_is_started(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(config_files, "project_files", lambda *_, **__: ("/p/a.json", "/p/b.json"))
    config = Config(untrusted=("/p/b.json",))
    assert serve_command.say_whose(config, None) == ("/p/a.json",)
    assert "/p/b.json" not in capsys.readouterr().err
    assert serve_command.say_whose(config, None, ("/p/a.json",)) == ("/p/a.json",)
    assert serve_command.say_whose(config, Path("/p/a.json")) == ()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "words",
    [["--yes", "--revoke"], ["--yes", "--list"], ["--revoke", "--list"], ["--trust", "--list", "--revoke"]],
)
def test_what_excludes_each_other_is_refused(
    words: list[str], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["trust", *words]) == 2
    assert "do not go together" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--yes"], ["--revoke"], ["--list"], ["--yes", "--json"]])
def test_agreements_that_cannot_be_read_are_not_written_over(
    words: list[str], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(Path(".mcp.json"), {"mcpServers": {"a": {"command": "x"}}})
    said_yes(home)
    place = agreements(home).path
    place.write_text("{")
    assert run(["trust", *words]) == 2
    assert f"{place} cannot be used: " in capsys.readouterr().err
    assert place.read_text() == "{"


def test_without_an_answer_the_answer_is_no_and_it_is_asked_beside_what_is_shown(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(Path(".mcp.json"), {"mcpServers": {"a": {"command": "x"}}})
    asked: list[Any] = []

    def confirm(text: str, **more: Any) -> bool:
        asked.append((text, more))
        return more["default"]

    monkeypatch.setattr("click.confirm", confirm)
    monkeypatch.setattr("sys.stdin", type("Terminal", (), {"isatty": lambda self: True})())
    assert run(["trust"]) == 1
    assert asked == [("Trust this?", {"default": False, "err": True})]
    assert "not trusted; nothing of it is used" in capsys.readouterr().err


@pytest.mark.parametrize("agreed", [True, False])
@pytest.mark.parametrize("digest", ["a", None])
def test_a_file_that_cannot_be_compared_is_never_called_trusted(
    agreed: bool, digest: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = ProjectFile("f", "/d", {"mcpServers": {"s": {"env": {"TOKEN": SECRET}}}}, (), digest)
    said = plain(trust_command._as_json(one, agreed))
    assert (said["file"], said["directory"], said["trusted"]) == ("f", "/d", agreed and digest is not None)
    assert SECRET not in json.dumps(said)
    if agreed:
        _decide(Agreements(tmp_path / "trust.json"), [one], [one], True)
        told = "cannot be compared later, so it cannot be trusted" in capsys.readouterr().err
        assert told == (digest is None)


@for_each(
    ("entry", "what"),
    [
        ({"command": "x", "url": "u"}, "runs a program"),
        ({"url": "u"}, "sends requests"),
        ({"serverUrl": "u"}, "sends requests"),
        ({"httpUrl": "u"}, "sends requests"),
        ({"socket": "s"}, "opens a socket"),
        ({"env": {}}, "changes a server"),
    ],
)
def test_it_says_what_an_entry_does(entry: dict[str, Any], what: str) -> None:
    assert trust_command._what_it_does(entry) == what


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("/plain/mcp.json", "/plain/mcp.json"),
        ("pl\u00e4in", '"pl\\u00e4in"'),
        ("\u202egnol", '"\\u202egnol"'),
        ("a\x1b[2K", '"a\\u001b[2K"'),
        ("a\nb", '"a\\nb"'),
    ],
)
def test_nothing_hides_in_the_name_of_a_file_or_a_server(
    name: str, shown: str, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = {"command": "x", name: 1}
    lines = [*trust_command.shown(ProjectFile(name, "/d", {"mcpServers": {name: entry}}, (), "a"))]
    assert lines[:2] == [shown, f"  server {shown} runs a program"]
    assert f"    {shown}: 1" in lines
    monkeypatch.setattr(Agreements, "forget", lambda *_: [name])
    assert run(["trust", "--revoke"]) == 0
    assert capsys.readouterr().out == f"No longer trusted: {shown}\n"
    monkeypatch.setattr(Agreements, "read", lambda _: {"d": {"file": name}})
    assert run(["trust", "--list"]) == 0
    assert capsys.readouterr().out == f"{shown}\n"


def test_taking_back_means_this_directory_and_says_what_it_was(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(Path(".mcp.json"), {"mcpServers": {"a": {"command": "x"}}})
    said_yes(home)
    agreements(home).add([ProjectFile("/else/f", str(home), {"x": 1}, (), "a")])
    assert run(["trust", "--list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["trusted"]
    assert [row["file"] for row in rows] == sorted(["/else/f", str(Path(".mcp.json").absolute())])
    assert run(["trust", "--revoke", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"revoked": [str(Path(".mcp.json").absolute())]}
    assert run(["trust", "--revoke"]) == 0
    assert capsys.readouterr().out == "Nothing was trusted in this directory.\n"
    assert [one["file"] for one in agreements(home).read().values()] == ["/else/f"]


LOADERS = [
    "PYTHONPATH", "PYTHONSTARTUP", "LD_PRELOAD", "LD_LIBRARY_PATH", "NODE_OPTIONS", "NODE_PATH", "BASH_ENV", "PATH",
    "HOME", "PERL5OPT", "RUBYOPT", "JAVA_TOOL_OPTIONS", "GIT_SSH_COMMAND", "npm_config_registry", "UV_INDEX_URL",
    "PIP_INDEX_URL", "https_proxy", "DOCKER_HOST", "XDG_CONFIG_HOME", "BASH_FUNC_x%%", "SSLKEYLOGFILE", "LESSOPEN",
    "MAKEFLAGS", "CLOUDSDK_PYTHON", "SVN_SSH", "NODE_COMPILE_CACHE",
]  # fmt: skip
ORDINARY = [
    "API_KEY", "GITHUB_TOKEN", "GITLAB_TOKEN", "NODE_ENV", "ENV", "DATA_PATH", "AWS_REGION", "PIPEDRIVE_KEY",
    "LD_SDK_KEY", "NPM_TOKEN", "PGOPTIONS", "DATABASE_URL", "PORT", "LOG_LEVEL", "TZ", "OPENAI_BASE_URL",
]  # fmt: skip


def test_t59_an_env_file_that_changes_after_the_yes_runs_nothing_of_the_repository(home: Path) -> None:
    """A running gateway, a trusted project; then its `.env` gets a variable that makes the server load the
    repository's code. The server is started again for a rotated key, and not for that, nor for any other name or
    value, until its owner has seen it."""
    marker = home.parent / "it-ran"
    Path("sitecustomize.py").write_text(f"open({str(marker)!r}, 'w')\n")
    entry = {"command": sys.executable, "args": [os.fspath(FAULTY)], "envFile": "../.env"}
    write(Path(".greenroom/mcp.json"), {"mcpServers": {"one": entry}, "settings": {"failureBackoff": 0.01}})
    env = Path(".env")
    env.write_text("API_KEY=one\n")
    said_yes(home)
    until = time.monotonic() + PATIENCE

    def told(gateway: Any, wanted: str) -> str:
        while wanted not in (said := json.dumps(gateway.mcp(tool="one_env", args={})).replace("\\", "")):
            assert time.monotonic() < until, said
            time.sleep(0.05)
        return said

    environ = {**os.environ, "XDG_RUNTIME_DIR": os.fspath(home.parent)}
    with started(*GREENROOM, "serve", env=environ, cwd=Path.cwd()) as gateway:
        gateway.initialize()
        told(gateway, '"API_KEY": "one"')
        env.write_text("API_KEY=two\n")
        told(gateway, '"API_KEY": "two"')
        env.write_text("API_KEY=two\nCHROME_PATH=/planted/chrome\n")
        said = told(gateway, "greenroom trust")
        assert "/planted" not in said
        said_yes(home)
        assert "/planted/chrome" in told(gateway, '"CHROME_PATH"'), "its owner has seen it"
        env.write_text("API_KEY=two\nCHROME_PATH=/other/chrome\n")
        assert "/other" not in told(gateway, "greenroom trust")
        env.write_text("API_KEY=two\nCHROME_PATH=/planted/chrome\n")
        assert "/planted/chrome" in told(gateway, '"CHROME_PATH"'), "as it was"
        env.write_text(f"API_KEY=three\nPYTHONPATH={Path.cwd()}\n")
        told(gateway, "greenroom trust")
        said_yes(home)
        assert str(Path.cwd()) + '"' not in told(gateway, "PYTHONPATH"), "not even with a yes"
        assert gateway.end() == 0
    assert not marker.exists()


def project_with(home: Path, **variables: str) -> Path:
    """A trusted project whose server has these variables in its `envFile`."""
    write(Path(".mcp.json"), {"mcpServers": {"one": {"command": "x", "envFile": ".env"}}})
    file = Path(".env").resolve()
    file.write_text("".join(f"{name}={value}\n" for name, value in variables.items()))
    said_yes(home)
    return file


def variables(home: Path) -> dict[str, str]:
    """What the server `one` is started with now. Raises when it is not started."""
    config = loaded(home)
    if "one" not in config.servers:
        raise ConnectFailed(str(config.broken["one"]), server="one")
    definition = config.servers["one"]
    return variables_in(str(definition.env_file), "one", definition.env_file_agreed)


def test_t59_what_a_projects_env_file_may_set(home: Path) -> None:
    file = project_with(home, **dict.fromkeys(ORDINARY, "x"))
    assert variables(home).keys() == set(ORDINARY)
    for name in LOADERS:
        file = project_with(home, API_KEY="x", **{name: "planted"})
        with pytest.raises(ConnectFailed, match=re.escape(name)) as refused:
            variables(home)
        assert "planted" not in refused.value.message
    own_file = home / ".config" / "greenroom" / "mcp.json"
    write(own_file, {"mcpServers": {"mine": {"command": "x", "envFile": str(file)}}})
    mine = loaded(home).servers["mine"]
    assert variables_in(str(file), "mine", mine.env_file_agreed), (
        "who names it in a file of his own decides himself"
    )


NAMES = st.from_regex(r"[A-Z][A-Z_]{0,20}", fullmatch=True)
VALUES = st.text("abcXYZ019/.-_", min_size=1, max_size=12)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(st.dictionaries(NAMES, VALUES, max_size=3), NAMES, VALUES)
@example({}, "PLAYWRIGHT_CHROMIUM_EXECUTABLE_PATH", "./evil")
@example({"PUPPETEER_EXECUTABLE_PATH": "/usr/bin/chrome"}, "PUPPETEER_EXECUTABLE_PATH", "./chrome")
@example({"TOKEN_COMMAND": "a"}, "TOKEN_COMMAND", "b")
@example({"API_TOKEN": "a"}, "API_TOKEN", "./evil")
def test_t59_a_new_name_asks_again_and_so_does_another_value_of_what_is_no_credential(
    home: Path, agreed: dict[str, str], name: str, value: str
) -> None:
    """Whatever the variable is called. A value of a credential may change, unless it is a path or a command."""
    file = project_with(home, **agreed)
    now = {**agreed, name: value}
    file.write_text("".join(f"{each}={text}\n" for each, text in now.items()))
    if loaders_among(now):
        return  # refused in any case
    may_differ = names_credential(name) and not value.startswith(("/", "./", "../"))
    if agreed.get(name) == value or (
        name in agreed and may_differ and not agreed[name].startswith(("/", "."))
    ):
        assert variables(home) == now
    elif name not in agreed or not names_credential(name) or value.startswith(("/", "./", "../")):
        with pytest.raises(ConnectFailed, match="greenroom trust"):
            variables(home)


def test_t59_a_key_is_rotated_without_a_new_yes(home: Path) -> None:
    for name in ("API_KEY", "GITHUB_TOKEN", "DB_PASSWORD", "CLIENT_SECRET"):
        file = project_with(home, **{name: "first", "PORT": "1"})
        for value in ("second", "Zk2Wm9x4TrB8Lp==", "p4ss/w0rd"):
            file.write_text(f"PORT=1\n{name}={value}\n")
            assert variables(home) == {"PORT": "1", name: value}


def test_t59_what_is_read_at_the_start_is_what_was_agreed_to(home: Path) -> None:
    """Between reading the configuration and starting the server, the file may have changed."""
    file = project_with(home, PORT="1")
    definition = loaded(home).servers["one"]
    file.write_text("PORT=1\nSOMETHING=planted\n")
    with pytest.raises(ConnectFailed, match=r"SOMETHING.*\n?.*greenroom trust") as refused:
        variables_in(str(file), "one", definition.env_file_agreed)
    assert "planted" not in refused.value.message


def test_t59_trust_shows_the_variables_and_hides_what_may_be_secret(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = project_with(home, API_KEY=SECRET, CHROME_PATH="/usr/bin/chrome", MODEL=SECRET)
    assert run(["trust", "--revoke"]) == 0
    capsys.readouterr()
    assert run(["trust", "--yes"]) == 0
    shown = capsys.readouterr().out
    assert SECRET not in shown
    assert f"variables of {file}" in shown
    assert 'CHROME_PATH: "/usr/bin/chrome"' in shown
    assert "API_KEY: " in shown
    assert "MODEL: " in shown
    assert run(["trust", "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["files"]
    assert told["matters"]["envFiles"] == {
        str(file): {"API_KEY": "***", "CHROME_PATH": "/usr/bin/chrome", "MODEL": "***"}
    }


def test_t59_a_file_with_more_variables_than_anybody_reads_is_not_trusted(home: Path) -> None:
    servers = {}
    for number in range(9):
        Path(f"{number}.env").write_text("X=" + "x" * 60_000)
        servers[f"s{number}"] = {"command": "x", "envFile": f"{number}.env"}
    write(Path(".mcp.json"), {"mcpServers": servers})
    assert run(["trust", "--yes"]) == 1
    assert not loaded(home).servers


def document(host: str) -> str:
    """An API of one operation, which is at this host."""
    operation = {"operationId": "look", "servers": [{"url": f"https://{host}"}]}
    about = {"openapi": "3.1.0", "info": {"title": "t", "version": "1"}}
    return json.dumps({**about, "paths": {"/x": {"get": operation}}})


def project_with_document(home: Path, key: str = "openapi") -> Path:
    """A trusted project whose API has its document in a file."""
    entry = {"baseUrl": "https://api.example", key: "api/openapi.json", "headers": {"Authorization": "x"}}
    if key == "spec":
        entry["type"] = "openapi"
    write(Path(".mcp.json"), {"mcpServers": {"one": entry}})
    file = Path("api/openapi.json").resolve()
    file.parent.mkdir(exist_ok=True)
    file.write_text(document("api.example"))
    said_yes(home)
    return file


@pytest.mark.parametrize("key", ["openapi", "spec"])
def test_t59_a_projects_document_that_changes_after_the_yes_sends_nothing_elsewhere(
    home: Path, key: str
) -> None:
    """It says to which hosts requests go, and so the credentials."""
    file = project_with_document(home, key)
    assert [*api_in_file(loaded(home).servers["one"]).operations] == ["look"]
    file.write_text(document("planted.example"))
    config = loaded(home)
    assert not config.servers
    assert "greenroom trust" in str(config.broken["one"])
    assert str(file) in config.places, "a running gateway sees when it changes"
    said_yes(home)
    assert loaded(home).servers
    file.unlink()
    assert not loaded(home).servers
    file.write_text(document("planted.example"))
    assert loaded(home).servers, "as it was"


def test_t59_the_document_that_is_read_at_the_start_is_the_one_that_was_agreed_to(home: Path) -> None:
    file = project_with_document(home)
    definition = loaded(home).servers["one"]
    file.write_text(document("planted.example"))
    with pytest.raises(ConnectFailed, match=r"not as it was when it was trusted.*greenroom trust"):
        api_in_file(definition)
    own_file = home / ".config" / "greenroom" / "mcp.json"
    write(own_file, {"mcpServers": {"mine": {"url": "https://api.example", "openapi": str(file)}}})
    assert api_in_file(loaded(home).servers["mine"]).operations, "his own file names it"


def test_t59_trust_says_which_document_it_is_and_one_at_a_url_is_named_by_that(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = project_with_document(home)
    told = hashlib.sha256(file.read_bytes()).hexdigest()
    assert run(["trust", "--revoke"]) == 0
    capsys.readouterr()
    assert run(["trust", "--yes"]) == 0
    assert f"document {file}: SHA-256 {told}" in capsys.readouterr().out
    assert run(["trust", "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)["files"]
    assert shown["matters"]["documents"] == {str(file): told}
    file.unlink()
    assert run(["trust", "--yes"]) == 0
    assert f"document {file}: it cannot be read" in capsys.readouterr().out
    entry = {"url": "https://api.example", "openapi": "https://api.example/openapi.json"}
    write(Path(".mcp.json"), {"mcpServers": {"one": entry}})
    assert run(["trust", "--yes"]) == 0
    assert "document " not in capsys.readouterr().out
    assert loaded(home).servers


@pytest.mark.parametrize(
    ("more", "runs"),
    [({}, True), ({"cwd": "~"}, False), ({"env": {"PYTHONSAFEPATH": "1"}}, False)],
    ids=["nothing", "cwd", "PYTHONSAFEPATH"],
)
def test_a_module_of_the_folder_is_imported_unless_the_entry_says_otherwise(
    home: Path, more: dict[str, Any], runs: bool
) -> None:
    """SECURITY.md says so, and what helps. The folder is a stranger's; the server is the user's own."""
    marker = home.parent / "it-ran"
    Path("greenroom_stranger.py").write_text(f"open({str(marker)!r}, 'w')\n")
    entry = {"command": sys.executable, "args": ["-m", "greenroom_stranger"], **more}
    write(home / ".config" / "greenroom" / "mcp.json", {"mcpServers": {"mine": entry}})
    done = popen_forked(
        [*GREENROOM, "call", "mine_x"],
        env={**os.environ},
        cwd=Path.cwd(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert done.wait(PATIENCE) == 1
    assert marker.exists() is runs


def test_what_is_trusted_side_by_side_is_all_kept(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": os.fspath(tmp_path)}
    projects = [tmp_path / f"p{number}" for number in range(8)]
    for project in projects:
        project.mkdir()
        (project / ".mcp.json").write_text('{"mcpServers": {"p": {"command": "true"}}}')
    with ExitStack() as stack:
        how = {"env": environment, "stdout": subprocess.DEVNULL}
        trusting = [
            stack.enter_context(popen_forked([*GREENROOM, "trust", "--yes"], cwd=project, **how))
            for project in projects
        ]
        assert [each.wait(PATIENCE) for each in trusting] == [0] * len(projects)
    kept = Agreements(trust_file(tmp_path, {})).read()
    assert sorted(each["directory"] for each in kept.values()) == [os.fspath(each) for each in projects]
