"""What `greenroom doctor` names as a mend works as it is printed: a shell runs it, and the finding is gone.

`test_next_steps` follows what all commands name; here each finding of the table in `test_doctor` is made in turn."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from tests.cli.test_doctor import WRONG, no_cache
from tests.cli.test_next_steps import FILLED_IN, quarantined, steps_in
from tests.cli.test_next_steps import wants_login as wants_login
from tests.support.forked import write_forked_greenroom
from tests.support.gateway import FAULTY
from tests.support.homes import home as home
from tests.support.homes import own_config
from tests.support.patience import PATIENCE

from greenroom.cli.main import run

# Rows of `WRONG` without a command that a test can run, and why.
BY_HAND: Final = {
    "no JSON": "only its owner knows what was meant",
    "a key": "only its owner knows what was meant",
    "a variable": "only its owner knows its value",
    "a key of another client": "it is right for that client",
    "half a document": "its author corrects it",
    "half an operation": "its author corrects it",
    "a port": "how somebody's server is started is not known here",
    "a socket": "how somebody's server is started is not known here",
    "no login": "a person logs in, in a browser",
    "a login that is over": "a person logs in, in a browser",
    "a login that is none": "a person logs in, in a browser",
    "no cache": "a variable of the shell of its owner: tried below",
}


def findings(capsys: pytest.CaptureFixture[str], *options: str) -> list[dict[str, str]]:
    capsys.readouterr()
    run(["doctor", "--json", *options])
    return json.loads(capsys.readouterr().out)["findings"]


def in_a_shell(command: str) -> subprocess.CompletedProcess[str]:
    """Run what somebody has copied: `greenroom` is found on PATH, and nobody sits at a terminal."""
    for word, value in FILLED_IN.items():
        command = re.sub(rf"\b{word}\b", value, command)
    own = Path.home() / ".bin"
    own.mkdir(exist_ok=True)
    write_forked_greenroom(own / "greenroom")
    environ = {**os.environ, "PATH": f"{own}{os.pathsep}{os.environ['PATH']}"}
    shell = ["/bin/sh", "-c", command]
    done = subprocess.run(
        shell,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    if done.returncode == 2 and "Nobody can answer here" in done.stderr:
        return in_a_shell(list(steps_in(done.stderr))[-1])
    return done


@pytest.mark.parametrize(
    ("name", "break_it", "check"), [(row[0], row[1], row[3]) for row in WRONG], ids=[row[0] for row in WRONG]
)
def test_the_command_of_each_mend_works_as_printed(
    home: Path,
    name: str,
    break_it: Callable[[Path], object],
    check: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    break_it(home)
    (found,) = (one for one in findings(capsys) if one["check"] == check)
    steps = list(steps_in(found["mend"]))
    if name in BY_HAND:
        assert all(step.startswith("greenroom auth ") for step in steps)
        return
    done = in_a_shell(steps[0])
    assert done.returncode == 0, done.stderr
    assert found not in findings(capsys)


def test_a_folder_of_the_cache_that_can_be_used_is_named_with_its_variable(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    no_cache(home)
    (found,) = (one for one in findings(capsys) if one["check"] == "cache")
    (variable,) = re.findall(r"XDG_\w+", found["mend"])
    monkeypatch.setenv(variable, str(home / "elsewhere"))
    assert found not in findings(capsys)


def test_a_changed_tool_is_accepted_by_the_command_that_is_printed(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quarantined(own_config(home, "{}"))
    (found,) = (one for one in findings(capsys) if one["check"] == "changed")
    assert in_a_shell(found["mend"]).returncode == 0
    assert found not in findings(capsys)


def test_what_failed_is_tried_again_by_the_command_that_is_printed(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = home / "server.py"
    script.write_text("raise SystemExit('no database')")
    own_config(
        home, json.dumps({"mcpServers": {"a": {"command": sys.executable, "args": ["-S", str(script)]}}})
    )
    assert run(["refresh", "a"]) == 1
    (found,) = (one for one in findings(capsys) if one["check"] == "failure")
    script.write_text(f"import runpy; runpy.run_path({str(FAULTY)!r}, run_name='__main__')")
    again, explain = steps_in(found["mend"])
    done = in_a_shell(again)
    assert done.returncode == 0, done.stderr
    assert in_a_shell(explain).returncode == 0
    assert found not in findings(capsys)


REQUIRED: dict[str, dict[str, Any]] = {
    "disabled": {"a": {"command": sys.executable, "args": ["-S", str(FAULTY)], "disabled": True}},
    "not there": {},
}  # fmt: skip


@pytest.mark.parametrize("name", REQUIRED)
def test_what_a_required_server_lacks_is_mended_as_printed(
    home: Path, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FILLED_IN, "COMMAND", f"{sys.executable} -S {FAULTY}")
    own_config(home, json.dumps({"mcpServers": REQUIRED[name]}))
    (found,) = findings(capsys, "--require", "a")
    done = in_a_shell(found["mend"])
    assert done.returncode == 0, done.stderr
    assert findings(capsys, "--require", "a") == []


def test_an_untrusted_server_that_is_required_is_trusted_as_printed(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = {"command": sys.executable, "args": ["-S", str(FAULTY)]}
    Path(".mcp.json").write_text(json.dumps({"mcpServers": {"a": entry}}))
    (found,) = findings(capsys, "--require", "a")
    assert found["check"] == "trust"
    assert in_a_shell(found["mend"]).returncode == 0
    assert findings(capsys, "--require", "a") == []


def test_a_server_that_ended_while_it_ran_needs_only_a_call_and_everybody_says_so(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flaky = {"command": sys.executable, "args": ["-m", "greenroom.testing.servers.demo_flaky"]}
    own_config(home, json.dumps({"mcpServers": {"flaky": flaky}}))
    assert in_a_shell("greenroom call flaky_crash").returncode == 1
    (found,) = findings(capsys)
    assert "the next call starts it again" in found["mend"]
    assert list(steps_in(found["mend"])) == ["greenroom explain flaky"]
    assert run(["status"]) == 0
    assert "lost       2  a call starts it again; exited with code" in capsys.readouterr().out
    assert in_a_shell("greenroom call flaky_divide dividend=6 divisor=2").stdout == "3\n"
    assert findings(capsys) == []


def test_a_login_that_is_missing_is_told_of_once(
    home: Path, wants_login: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its entry says OAuth, and the server has refused a request."""
    own_config(home, json.dumps({"mcpServers": {"a": {"url": wants_login, "auth": "oauth"}}}))
    assert in_a_shell("greenroom refresh").returncode == 1
    assert [(one["check"], one["mend"]) for one in findings(capsys)] == [("login", "greenroom auth a")]
    run(["doctor", "--json"])
    assert json.loads(capsys.readouterr().out)["notSeenStarting"] == [], "it has been tried"
