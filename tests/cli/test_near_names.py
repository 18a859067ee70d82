"""Who mistypes the name of a command, a client, a server or a profile is told which one was probably meant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.homes import home as home
from tests.support.homes import own_config

from greenroom.cli.main import run


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("statsu", "status"),
        ("Describe x", "describe"),
        ("init cursr", "cursor"),
        ("explain tickts", "tickets"),
        ("logs tickts", "tickets"),
        ("disable tickts", "tickets"),
        ("auth tickts", "tickets"),
        ("reconnect tickts", "tickets"),
        ("refresh tickts", "tickets"),
        ("remove tickts", "tickets"),
        ("tools tickts", "tickets"),
        ("search x --server tickts", "tickets"),
        ("attach --profile reviw", "review"),
    ],
)
def test_a_mistyped_name_is_answered_with_the_one_that_was_meant(
    home: Path, words: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = {"tickets": {"command": "t"}, "b": {"command": "b"}}
    own_config(home, json.dumps({"mcpServers": servers, "profiles": {"review": {"servers": ["b"]}}}))
    assert run(words.split()) in (1, 2)
    said = capsys.readouterr()
    assert f'Did you mean "{meant}"?' in said.err
    assert said.out == ""


@pytest.mark.parametrize("words", ["zzzz", "init zzzz", "explain zzzz", "attach --profile zzzz"])
def test_nothing_is_guessed_where_nothing_is_near(
    home: Path, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    own_config(home, json.dumps({"mcpServers": {"tickets": {"command": "t"}}}))
    assert run(words.split()) == 2
    assert "Did you mean" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        *(["auth", "a"], ["auth", "a", "--logout"], ["accept", "a"], ["reconnect", "a"], ["refresh", "a"]),
        *(["bench", "churn", "a"], ["logs", "a"], ["tools", "a"], ["search", "x", "--server", "a"]),
        *(["call", "a_x"], ["describe", "a_x"], ["call", "x", "--server", "a"]),
    ],
    ids=" ".join,
)
def test_of_a_server_whose_entry_is_broken_it_is_said_what_is_wrong(
    words: list[str], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own_config(home, json.dumps({"mcpServers": {"a": {"url": "http://127.0.0.1:9/mcp", "command": "x"}}}))
    run(["status"])  # the warnings are said
    capsys.readouterr()
    assert run(words) in (1, 2)
    said = capsys.readouterr().err
    assert "remove all but one" in said
    assert "no server" not in said
