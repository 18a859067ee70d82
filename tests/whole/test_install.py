"""What `install/` has: an image, units for the background gateway and the man page say what the command line takes."""

from __future__ import annotations

import configparser
import json
import plistlib
import re
import shlex
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import yaml
from tests.support.rows import for_each
from tools import man_page
from tools.arrows import ROOMS
from tools.package_tree import folder_of

from greenroom.cli.command_group import COMMANDS, cli

ROOT = Path(__file__).resolve().parents[2]
INSTALL = ROOT / "install"


def dockerfile() -> dict[str, list[str]]:
    """The instructions of the Dockerfile, each with its values in order."""
    text = re.sub(r"^#.*\n", "", (INSTALL / "Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    found: dict[str, list[str]] = {}
    for line in text.replace("\\\n", " ").splitlines():
        word, _, value = line.partition(" ")
        if word:
            found.setdefault(word, []).append(" ".join(value.split()))
    return found


def is_understood(words: Sequence[str]) -> dict[str, Any]:
    """What our command line makes of these words, behind `greenroom`."""
    name, *rest = words
    command = cli.get_command(click.Context(cli), name)
    assert command is not None, name
    return command.make_context(name, [*rest]).params


def compose() -> dict[str, Any]:
    return yaml.safe_load((INSTALL / "compose.yaml").read_text(encoding="utf-8"))


def test_the_image_is_of_a_tagged_base_and_runs_without_rights() -> None:
    said = dockerfile()
    for base in said["FROM"]:
        assert re.fullmatch(r"python:3\.\d+-slim-\w+( AS \w+)?", base)
    user, _, group = said["USER"][-1].partition(":")
    assert 0 not in (int(user), int(group))
    assert said["STOPSIGNAL"] == ["SIGTERM"]


def test_what_the_image_starts_and_asks_is_what_serve_takes() -> None:
    said = dockerfile()
    assert json.loads(said["ENTRYPOINT"][0]) == ["greenroom"]
    words: list[str] = json.loads(said["CMD"][0])
    params = is_understood(words)
    port = params["http"].rpartition(":")[2]
    assert said["EXPOSE"] == [port]
    (health,) = re.findall(r"http://127\.0\.0\.1:(\d+)(/\w+)", said["HEALTHCHECK"][0])
    assert health == (port, "/health")
    assert params["token_file"] is not None, "another machine comes only with a token"


def test_the_image_is_made_of_every_room() -> None:
    kept = (INSTALL / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    tops = {folder_of(ROOT, room).relative_to(ROOT).parts[0] for room in ROOMS}
    assert {f"!{top}" for top in tops} <= set(kept)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    needed = {
        "pyproject.toml",
        "setup.py",
        project["project"]["readme"],
        *project["project"]["license-files"],
    }
    needed |= {Path(file).parts[0] for files in _data_files(project).values() for file in files}
    assert {f"!{name}" for name in needed} <= set(kept)


def test_the_container_may_write_nothing_but_its_state() -> None:
    (service,) = compose()["services"].values()
    said = dockerfile()
    assert service["read_only"] is True
    assert service["init"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert [volume for volume in service["volumes"] if not volume.endswith(":ro")] == [
        f"state:{said['VOLUME'][0]}"
    ]
    assert (INSTALL / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    params = is_understood(json.loads(said["CMD"][0]))
    folder = Path(params["config_path"]).parent
    assert service["volumes"][1].endswith(f":{folder}:ro"), "of a mounted file, no change would be seen"
    assert [f"/run/secrets/{name}" for name in service["secrets"]] == [str(params["token_file"])]
    assert set(service["secrets"]) == set(compose()["secrets"])
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])


def test_the_unit_starts_the_background_gateway_and_ends_only_its_own() -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(INSTALL / "greenroom.service")
    start = shlex.split(unit["Service"]["ExecStart"])
    assert start[0] == "%h/.local/bin/greenroom"
    assert is_understood(start[1:])["background"] is True
    assert unit["Service"]["Type"] == "forking", "the command returns when clients can come"
    assert unit["Service"]["KillMode"] == "mixed", "SIGTERM goes to the room, which ends its servers"
    # With a room of a client there already, nothing of the unit runs, and systemd would call this at once.
    assert "ExecStop" not in unit["Service"]


def test_the_agent_of_launchd_starts_it_and_leaves_it_alone() -> None:
    agent = plistlib.loads((INSTALL / "dev.greenroom.room.plist").read_bytes())
    assert agent["Label"] == "dev.greenroom.room"
    *shell, line = agent["ProgramArguments"]
    assert shell == ["/bin/sh", "-lc"]
    words = shlex.split(line)
    assert words[:2] == ["exec", "greenroom"]
    assert is_understood(words[2:])["background"] is True
    assert agent["AbandonProcessGroup"] is True


def test_the_man_page_is_made_of_the_commands_and_packaged() -> None:
    page = man_page.PAGE.read_text(encoding="utf-8")
    assert page == man_page.page(), "run python -m tools.man_page"
    for name in COMMANDS:
        assert f"\n.SS greenroom {name}" in page
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packaged = {file for files in _data_files(project).values() for file in files}
    assert "install/greenroom.1" in packaged
    assert all((ROOT / file).is_file() for file in packaged)


@for_each("text", [".SH no heading", "a\\b", "it's", "--json"])
def test_a_text_is_no_request_of_roff(text: str) -> None:
    made = man_page._text(text)
    assert not made.startswith((".", "'"))
    plain = made.replace("\\&", "").replace("\\-", "-").replace("\\(aq", "'").replace("\\e", "\\")
    assert plain == text


def _data_files(project: dict[str, Any]) -> dict[str, list[str]]:
    return project["tool"]["setuptools"]["data-files"]
