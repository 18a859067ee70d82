"""Who mistypes the name of a command, a client, a server or a profile is told which one was probably meant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.homes import home as home
from tests.support.homes import own_config

from greenroom.gateway._cli._main import run


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
