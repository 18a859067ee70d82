"""Every block of code in the docs is tried, or says in its page why it is not.

The pages that a person reads first are run whole, by their reader (`test_pages`). Of all others:

* `json` and `yaml` are a configuration that is read without a word of complaint, or a part of one.
* A line of a shell that calls `greenroom`, `make`, `pip` or `python -m` names a command, options, a target, an extra or
  a module that there is. It is not run: most of them start a gateway, or change files of the user.
* `python` is run here, or by the test that is named in `RUN_BY`.
* A block of any other language is a picture or a quotation. `<!-- not run: why -->` before a block leaves it out.

Rejected: running every command. Half of them go on until somebody stops them.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import anyio
import click
import pytest
import yaml
from click.testing import CliRunner
from tests.support.patience import PATIENCE
from tests.support.rows import for_each
from tests.whole.test_pages import FIRST, HOWTOS

from greenroom import Greenroom
from greenroom.cli.command_group import cli
from greenroom.config.parse import parse_config
from greenroom.testing import FakeServer, fake_room

ROOT: Final = Path(__file__).resolve().parents[2]
SHELL: Final = ("sh", "console", "bash")
# The Python blocks of these pages are run by other tests, all of them.
RUN_BY: Final = {
    "README.md": "tests/whole/test_project_docs.py",  # as examples/embed.py
    **{
        f"docs/{name}.md": "tests/testing/test_programs.py"
        for name in ("programs", "models", "sync", "in-process")
    },
}
_BLOCK: Final = re.compile(
    r"^(?P<mark><!-- not run: [^\n]+ -->\n+)?(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
_CLOCK: Final = {"command": sys.executable, "args": ["-m", "greenroom.testing.servers.demo_clock"]}
_KNOWN: Final = {"mcpServers", "settings", "imports", "profiles"}
# Programs that are not ours, and that a reader of such a page has.
OTHERS: Final = frozenset(
    {"ray", "export", "echo", "install", "jq", "openssl", "ssh", "rm", "./nightly-report"}
)


class Block:
    def __init__(self, page: Path, found: re.Match[str], text: str) -> None:
        self.page = page.relative_to(ROOT).as_posix()
        self.line = text.count("\n", 0, found.start("text"))
        self.language: str = found["language"]
        self.text = textwrap.dedent(found["text"])
        self.is_left_out = found["mark"] is not None

    def __repr__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks() -> Iterator[Block]:
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        if page not in (*FIRST, *HOWTOS) and page.name != "CHANGELOG.md" and "reference" not in page.parts:
            text = page.read_text(encoding="utf-8")
            yield from (Block(page, found, text) for found in _BLOCK.finditer(text))


BLOCKS: Final = [block for block in blocks() if not block.is_left_out]
DATA: Final = [block for block in BLOCKS if block.language in ("json", "jsonc", "yaml")]
COMMANDS: Final = [block for block in BLOCKS if block.language in SHELL]
# Those that are a file of `examples` are run as that: by `tools.world`, which has the frameworks, and by our tests.
EXAMPLES: Final = {file.read_text(encoding="utf-8") for file in ROOT.glob("examples/*.py")}
PYTHON: Final = [
    block
    for block in BLOCKS
    if block.language == "python" and block.page not in RUN_BY and block.text not in EXAMPLES
]


def test_each_language_is_tried_or_a_quotation() -> None:
    assert {block.language for block in BLOCKS} <= {"json", "jsonc", "yaml", "python", "text", *SHELL}
    assert DATA
    assert COMMANDS
    assert PYTHON
    assert all((ROOT / test).is_file() for test in RUN_BY.values())


@for_each("block", DATA, ids=repr)
def test_a_configuration_is_read_without_a_word(block: Block) -> None:
    if block.language == "yaml":
        assert list(yaml.safe_load_all(block.text))
        return
    text = re.sub(r"^\s*//.*$", "", block.text, flags=re.MULTILINE)
    raw: Any = json.loads(text if text.lstrip().startswith("{") else f"{{{text}}}")
    if not raw.keys() & _KNOWN:
        raw = {"mcpServers": {"one": raw}} if raw.keys() & {"command", "url"} else {"settings": raw}
    assert not parse_config(raw).problems


@for_each("block", COMMANDS, ids=repr)
def test_a_command_is_one_that_there_is(block: Block) -> None:
    for line in commands(block):
        try_words(shlex.split(line, comments=True))


@for_each(
    "line",
    [
        "greenroom serv",
        "greenroom serve --no-such",
        "make nothing",
        "pip install 'greenroom[no]'",
        "python -m no_such",
        "curl x",
    ],
)
def test_what_there_is_not_is_found(line: str) -> None:
    with pytest.raises((AssertionError, click.UsageError)):
        try_words(shlex.split(line))


def commands(block: Block) -> Iterator[str]:
    """The lines that are typed: of a `console`, those behind `$`."""
    lines = block.text.replace("\\\n", " ").splitlines()
    if block.language == "console":
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    if any(line.startswith("python3 -c") for line in lines):
        return  # several lines in quotes, run below
    for line in lines:
        plain = re.sub(r"\s#\s.*$", "", line)
        yield from (
            part for part in re.split(r"\s(?:\|\|?|&&|;)\s", plain) if part.strip(" ") and part[0] != "#"
        )


def try_words(words: list[str]) -> None:
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    match words:
        case ["greenroom", *rest]:
            try_greenroom(rest)
        case ["make", *rest]:
            targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
            asked = [word for word in rest if "=" not in word and not word.startswith("-")]
            assert set(asked) <= set(targets), f"there is no target {set(asked) - set(targets)}"
        case ["pip", "install", *rest]:
            project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
            for extra in re.findall(r"greenroom\[([\w,-]+)\]", " ".join(rest)):
                assert set(extra.split(",")) <= project["optional-dependencies"].keys()
        case ["python" | ".venv/bin/python", "-m", module, *_]:
            assert find_spec(module), f"there is no module {module}"
        case ["python" | ".venv/bin/python", file, *_] if file.endswith(".py"):
            assert (ROOT / file).is_file(), f"there is no {file}"
        case [file, *_] if (ROOT / file).is_file():
            pass
        case [program, *_]:
            assert program in OTHERS, f"nothing tries {program}"
        case _:
            pass


def try_greenroom(words: list[str]) -> None:
    """Let the command line take the words, and do nothing."""
    context = click.Context(cli, info_name="greenroom")
    command: click.Command = cli
    rest = words
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        found = command.get_command(context, rest[0])
        assert found is not None, f"there is no command greenroom {' '.join(words)}"
        command, rest = found, rest[1:]
    if command is not cli:
        parser = command.make_parser(click.Context(command, parent=context, info_name=command.name))
        parser.parse_args(list(rest))


@pytest.mark.parametrize(
    "name",
    [
        "call",
        "search",
        "init",
        "serve",
        "refresh",
        "status",
        "doctor",
        "explain",
        "tape",
        "replay",
        "approve",
    ],
)
def test_an_example_in_the_help_of_a_command_is_one_that_there_is(name: str) -> None:
    shown = CliRunner().invoke(cli, [name, "--help"]).output.partition("Examples:\n")[2].splitlines()
    assert shown
    for line in shown:
        program, *words = shlex.split(line)
        assert (program, words[0]) == ("greenroom", name)
        try_greenroom(words)


# ---- Python ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", PYTHON, ids=repr)
def test_python_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"clock": _CLOCK}}))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"Greenroom": Greenroom, "run_my_agent": agent}
    body = textwrap.indent(block.text, "    ")
    exec(compile(f"async def run(room):\n{body}\n    return locals()\n", repr(block), "exec"), names)

    async def main() -> None:
        skills = {"forms/pdf-forms": {"SKILL.md": SKILL, "references/forms.md": "Forms are in PDF.\n"}}
        entries = {"clock": _CLOCK}
        async with (
            fake_room({"docs": FakeServer(skills=skills)}) as fakes,
            Greenroom.open({"mcpServers": entries}, cache_path=":memory:") as clocks,
        ):
            await fakes.connect("docs")
            is_about_skills = "skill" in block.text
            made = await names["run"](fakes if is_about_skills else clocks)
            if "with_the_sdk" in made:
                assert (await made["with_the_sdk"](clocks)).content

    anyio.run(main)


async def agent(room: Greenroom) -> None:
    """What a page calls the reader's own agent."""
    (await room.call("clock_now", {"utc_offset": 1})).or_raise()


SKILL: Final = "---\nname: pdf-forms\ndescription: How to fill in forms\n---\nRead the forms first.\n"


def test_the_hash_that_the_audit_page_computes_is_that_of_the_file() -> None:
    """The one program of a shell that is not ours."""
    [block] = [block for block in COMMANDS if "hashlib" in block.text]
    done = subprocess.run(
        ["bash", "-c", block.text], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    assert re.fullmatch(r"sha256:[0-9a-f]{64}\n", done.stdout)
