"""Expressions that are compiled when they are first used."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from greenroom.protocol.lazy_patterns import lazy_pattern


def test_it_finds_what_the_expression_finds() -> None:
    word, byte = lazy_pattern(r"[a-z]+", re.IGNORECASE), lazy_pattern(rb"\d")
    assert word.fullmatch("Room")
    assert not word.fullmatch("4")
    assert (word.sub("-", "a1b"), word.pattern) == ("-1-", r"[a-z]+")
    assert (byte.findall(b"a1b2"), byte.groups) == ([b"1", b"2"], 0)


def test_a_fault_shows_when_it_is_used() -> None:
    broken = lazy_pattern("(")
    with pytest.raises(re.error):
        broken.search("")


def test_a_gateway_that_is_imported_has_compiled_few_expressions() -> None:
    """What makes the room, and the guard over credentials, look for nothing while they are imported. A hundred and
    seventy were compiled here."""
    script = (
        "import re._compiler as made, sys\n"
        "import click, json, shlex, gettext, asyncio, anyio\n"
        "compile, ours = made.compile, []\n"
        "def told(text, flags=0):\n"
        "    ours.append(text)\n"
        "    return compile(text, flags)\n"
        "made.compile = told\n"
        "import greenroom.gateway.serve, greenroom.cli.serve_command\n"
        "print(len(ours))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert 0 < int(done.stdout) < 25
