"""What is read of `serve` and `attach` without click: the same as click reads, or nothing."""

from __future__ import annotations

import os
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenroom.cli.attach_command import attach_command
from greenroom.cli.plain_command import PlainCommand
from greenroom.cli.serve_command import serve_command

from ..support.rows import for_each

OPTIONS = [option.name for option in serve_command.options]
VALUES = [
    "proxy",
    "direct",
    "x",
    "a b",
    "",
    "0",
    "1",
    "7",
    "-1",
    "-",
    "--",
    "--expose",
    "-x",
    "1.5",
    "٣",
    "²",
    "+7",
    " 7",
    "1_000",
    "007",
    "PROXY",
    "é\udcff",
    "--expose=direct",
    "9" * 12,
    "=",
    "h:1",
]
WORDS = st.one_of(
    st.sampled_from([*OPTIONS, "-h", "--help", "--max", "--EXPOSE", "stray", *VALUES]),
    st.builds("{}={}".format, st.sampled_from([*OPTIONS, "--no"]), st.sampled_from(VALUES)),
)


def read_by_click(command: PlainCommand, words: list[str]) -> dict[str, object] | None:
    try:
        return command.of_click().make_context(command.name, [*words]).params
    except (click.ClickException, click.exceptions.Exit):
        return None


@given(st.sampled_from([serve_command, attach_command]), st.lists(WORDS, max_size=5))
def test_what_is_read_without_click_is_read_as_click_reads_it(
    command: PlainCommand, words: list[str]
) -> None:
    read = command.read(words)
    assert read is None or read == read_by_click(command, words)


def test_a_file_that_may_not_be_read_is_left_to_who_opens_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    words = ["--config", os.fspath(tmp_path)]
    read = serve_command.read(words)
    assert read is not None
    assert read == read_by_click(serve_command, words), "click looks at no file"


@for_each("words, read", [
    ([], {}),
    (["--config", "mcp.json"], {"config_path": Path("mcp.json")}),
    (["--expose=direct", "--profile", "work"], {"expose": "direct", "profile": "work"}),
    (["--http", "127.0.0.1:0", "--idle-timeout", "0"], {"http": "127.0.0.1:0", "idle_timeout": 0}),
    (["--as-room", "r", "--ready", "5", "--lock", "6"], {"as_room": "r", "ready": 5, "lock": 6}),
])  # fmt: skip
def test_plain_words_are_read_without_click(words: list[str], read: dict[str, object]) -> None:
    defaults = serve_command.read([])
    assert defaults is not None
    assert serve_command.read(words) == defaults | read


@for_each("words", [
    ["--help"],
    ["--background"],
    ["--http"],
    ["--http", "--expose", "direct"],
    ["--http=-1"],
    ["--otlp=--config"],
    ["--expose", "everything"],
    ["--max-connections", "0"],
    ["--profile"],
    ["--profile", "a", "--profile", "b"],
    ["--config", ""],
    ["more"],
])  # fmt: skip
def test_what_is_not_plain_is_left_to_click(words: list[str]) -> None:
    assert serve_command.read(words) is None
