"""The command line as one table: in a prepared room, what is typed, how it ends, and what is printed where."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec
import pytest
from tests.support.door_rooms import NOW, FakeRoom
from tests.support.gateway import faulty
from tests.support.homes import own_config

from greenroom.catalogue.entries import ServerEntry
from greenroom.catalogue.store import CatalogueFile, catalogue_keys, default_cache_path
from greenroom.cli.command_group import COMMANDS, GROUPS, cli
from greenroom.cli.main import run
from greenroom.config.files import load_config
from greenroom.gateway.doors import control_client as control
from greenroom.gateway.json_views import status_view
from greenroom.protocol.errors import ConfigError, Problem, ServerDown, UsageError
from greenroom.protocol.lifecycle import State
from greenroom.protocol.status import ServerStatus
from greenroom.protocol.typed_arguments import typed_arguments

CLOCK = {"command": "no-such-clock"}


# ---- the rooms -------------------------------------------------------------------------------------------------------


def of(servers: Mapping[str, Any], **more: Any) -> Callable[[Path], None]:
    """The user's own configuration, and nothing is known."""
    return lambda home: void(own_config(home, json.dumps({"mcpServers": servers, **more})))


def void(_: object) -> None:
    pass


def known(home: Path, days: float = 0.0, **more: Any) -> None:
    """The clock has been asked, so many days ago."""
    own_config(home, json.dumps({"mcpServers": {"clock": CLOCK}, **more}))
    keys = catalogue_keys(load_config(cwd=Path.cwd(), home=home, environ=os.environ))
    problems = ("tools/list: cut after 3 pages",)
    fetched = time.time() - days * 86_400 - 60
    entry = ServerEntry("clock", keys["clock"], tools=(NOW,), problems=problems, fetched_at=fetched)
    assert CatalogueFile(default_cache_path()).save([entry], entry.fetched_at) is None


def known_shops(home: Path) -> None:
    """Two servers whose tools are known, and which cannot be started."""
    kiosk = {**CLOCK, "excludeTools": ["re*"], "includeTools": ["buy", "rent"]}
    own_config(home, json.dumps({"mcpServers": {"shop": CLOCK, "kiosk": kiosk}}))
    keys = catalogue_keys(load_config(cwd=Path.cwd(), home=home, environ=os.environ))
    item = {"type": "string", "description": "What to buy"}
    given = {"item": item, "count": {"type": "integer"}, "gift": {}}
    buys = {"type": "object", "properties": given, "required": ["item", "count"]}
    closed = {**buys, "required": ["item"], "additionalProperties": False}
    swaps = {"type": "object", "properties": {"item1": item, "item2": item}, "required": ["item1", "item2"]}
    named = {
        "shop": {"buy": buys, "pay": closed, "swap": swaps, "list_items": {}},
        "kiosk": {"buy": buys, "rent": {}, "sell": {}},
    }
    for server, tools in named.items():
        records = tuple({"name": name, "inputSchema": schema} for name, schema in tools.items())
        entry = ServerEntry(server, keys[server], tools=records, fetched_at=time.time())
        assert CatalogueFile(default_cache_path()).save([entry], entry.fetched_at) is None


def torn_cache(home: Path) -> None:
    known(home)
    default_cache_path().write_text("{")


def broken_file(home: Path) -> None:
    own_config(home, "{ nonsense")


def untrusted(_home: Path) -> None:
    Path(".mcp.json").write_text(json.dumps({"mcpServers": {"mine": CLOCK, "other": CLOCK}}))


ROOMS: dict[str, Callable[[Path], None]] = {
    "nothing": void,
    "clock": of({"clock": CLOCK}),
    "clock and a broken one": of({"clock": CLOCK, "bad": {}}),
    "a secret": of({"clock": {**CLOCK, "env": {"API_TOKEN": "hush-hush"}}}),
    "known": known,
    "known for 3 days": lambda home: known(home, 3.0, settings={"cacheMaxAgeDays": 2}),
    "known for a day": lambda home: known(home, 1.0, settings={"cacheMaxAgeDays": 2}),
    "known shops": known_shops,
    "a torn cache": torn_cache,
    "a broken file": broken_file,
    "untrusted": untrusted,
    "tickets": of({"tickets": CLOCK, "b": CLOCK}, profiles={"review": {"servers": ["b"]}}),
    "two ways": of({"a": {"url": "http://127.0.0.1:9/mcp", "command": "x"}}),
    "odd keys": of({"a": {"command": "a", **{f"zebra{number}": 1 for number in range(14)}}}),
    "ten odd keys": of({"a": {"command": "a", **{f"zebra{number}": 1 for number in range(10)}}}),
}  # fmt: skip

# Of each pattern: `""` is nothing at all, `= text` the whole, `! text` what must not be in it, anything else is in it.
Patterns = tuple[str, ...]


class Row(NamedTuple):
    room: str
    typed: str
    code: int
    out: Patterns = ("",)
    err: Patterns = ()


def refused(room: str, code: int, *rows: tuple[str, str]) -> list[Row]:
    return [Row(room, typed, code, err=(said,)) for typed, said in rows]


MEANT = {
    "statsu": "status", "Describe x": "describe", "init cursr": "cursor",
    "attach --profile reviw": "review", "search x --server tickts": "tickets",
    **{f"{verb} tickts": "tickets" for verb in (
        "explain", "logs", "disable", "auth", "reconnect", "refresh", "remove", "tools")},
}  # fmt: skip
NOT_KNOWN = ("The tools of clock are not known yet. To read them: greenroom refresh clock\n",)
OFFLINE = "! no gateway runs"  # which is for a person at a terminal

TABLE: list[Row] = [
    Row("nothing", "status", 0, ("= No servers are configured.\nTo add one: greenroom add NAME -- COMMAND\n",)),
    Row("nothing", "ls", 0, ("= No servers are configured.\nTo add one: greenroom add NAME -- COMMAND\n",),
        (OFFLINE, "! No servers")),
    Row("nothing", "refresh", 0, ("= No servers are configured.\nTo add one: greenroom add NAME -- COMMAND\n",)),
    *(Row("nothing", command, code, ("! To add one",), ("greenroom add NAME -- COMMAND\n",))
      for command, code in (("search x", 0), ("tools", 0), ("describe x", 1), ("call x", 1))),
    Row("nothing", "--json status", 2, ("",), ("greenroom status --json",)),
    Row("nothing", "--pid 7 status", 2, ("",), ("greenroom status --pid",)),
    Row("nothing", "--help", 0, ("One process of each MCP server",), ("",)),
    *(Row("nothing", command, 2, ("",), ("There are none. To add one: greenroom add NAME -- COMMAND\n",))
      for command in ("explain x", "logs x", "enable x", "remove x", "auth x", "accept x", "refresh x")),
    Row("nothing", "audit calls.jsonl", 2, ("",), ("There is: greenroom audit show, greenroom audit verify\n",)),
    Row("nothing", "bench clock", 2, ("",), ("There is: greenroom bench churn\n",)),
    Row("nothing", "bench --help", 0, ("Connect a server again and again.",), ("",)),
    Row("nothing", "cluster --help", 0, ("See it work, on this machine alone.",), ("",)),
    Row("nothing", "tape nowhere.tape", 2, ("",), ("There is no tape nowhere.tape.", "! cannot be used")),
    Row("nothing", "completion bash", 0, ("_GREENROOM_COMPLETE=bash_complete",), ("",)),
    Row("nothing", "completion zsh", 0, ("_GREENROOM_COMPLETE=zsh_complete",), ("",)),
    Row("nothing", "completion fish", 0, ("_GREENROOM_COMPLETE=fish_complete", 'split --max 1 ","'), ("",)),
    Row("nothing", "stop --json", 0, ('"ended": null',)),
    Row("nothing", "config --schema", 0, ('"properties"',)),
    Row("a secret", "config --changed", 0, ('"clock"', '! "default"', '"settings": {}')),
    Row("clock and a broken one", "config clock", 0, ('"clock"', '! "bad"', '"settings": {}'), ("! bad",)),
    Row("clock and a broken one", "config bad", 0, ('"bad"', '! "clock"')),
    Row("clock", "config zebra", 2, err=('There is no server "zebra"',)),
    # looking, with nothing running
    Row("clock and a broken one", "status", 0,
        ("○  clock   not connected ", "✗  bad     broken", "\n0 of 2 connected, 0 tools\n"), (OFFLINE,)),
    Row("clock and a broken one", "status --json", 0, ('"source": "cache"', '"status": "not-connected"')),
    Row("clock and a broken one", "ls", 0, ("○  clock ",), (OFFLINE,)),
    Row("clock and a broken one", "tree", 0, ("├─ clock  not connected\n└─ bad  broken\n",)),
    Row("nothing", "top", 2, err=("greenroom status --watch", "! stop")),
    Row("nothing", "watch", 2, err=("greenroom status --watch",)),
    *(Row("nothing", f"{typed} x", 1, err=("To add one: greenroom add NAME -- COMMAND\n", "! WORDS", "! status"))
      for typed in ("describe", "call")),
    Row("nothing", "search x", 0, ('= No tools matching "x".\n',)),
    Row("nothing", "list", 2, err=("greenroom tools",)),
    Row("nothing", "restart", 2, err=("greenroom reconnect SERVER",)),
    Row("nothing", "drain", 2, err=("greenroom disable SERVER",)),
    Row("nothing", "version", 2, err=("greenroom --version",)),
    Row("nothing", "help", 0, ("One process of each MCP server", "Set up:"), ("",)),
    Row("nothing", "help status", 0, ("Usage: greenroom status",), ("",)),
    Row("nothing", "drain a", 2, err=("until it is reconnected: Drain, in greenroom page",)),
    Row("nothing", "help zebra", 2, err=('There is no command "zebra"',)),
    Row("clock", "search zebra", 0, NOT_KNOWN),
    Row("clock", "tools", 0, NOT_KNOWN),
    Row("clock", "tools clock", 1, ("",), (*NOT_KNOWN, "! not found")),
    Row("clock", "tools clock --json", 1, ('"error": "not_known_yet"', '"count": 0'), ()),
    Row("clock", "describe clock_now", 1, ("",), (*NOT_KNOWN, "! not found")),
    Row("known", "status", 0, ("○  clock   cached      1 ", "cut after 3 pages", "! 1 tools")),
    Row("known", "", 0, ("1 tool", "! 1 tools", "! 1 servers")),
    Row("known", "doctor", 1, ("! 1 tools", "! 1 servers")),
    Row("known shops", "doctor", 1, ("! Nobody has started",)),
    Row("known", "search time", 0, (
        "- clock_now - The time", "\nTo see one, and how it is called: greenroom describe clock_now\n")),
    Row("known", "search time --schemas", 0, ("! greenroom describe",)),
    Row("known", "search zebra", 0, ('No tools matching "zebra".\nTo see all tools: greenroom tools\n',)),
    Row("known", "describe clock-now", 0, ("clock_now\nServer: clock\n\nThe time",)),
    Row("known", "describe now --server clock", 0, ("clock_now\nServer: clock\n",)),
    Row("known", "tools", 0, ("= clock_now\nTotal: 1 tool\n",)),
    Row("known", "tools --server clock", 0, ("= clock_now\nTotal: 1 tool\n",)),
    Row("known", "tools clock --server clock", 0, ("= clock_now\nTotal: 1 tool\n",)),
    Row("known", "tools --json", 0, ('"original": "now"',)),
    Row("known for 3 days", "status", 0, ("○  clock   not connected ", "! cut after")),
    Row("known for a day", "status", 0, ("○  clock   cached      1 ", "cut after 3 pages")),
    Row("a torn cache", "tools", 0, NOT_KNOWN, ("The catalogue cache ",)),
    *(Row("a broken file", command, 0, ("cannot be read", "greenroom doctor\n", "! greenroom add"), ("mcp.json",))
      for command in ("status", "refresh")),
    Row("a secret", "config", 0, ('"clock"', "! hush-hush")),
    *(Row("untrusted", command, 0, ("mine, other", "greenroom trust\n")) for command in ("refresh", "tools")),
    Row("untrusted", "tools --json", 0, ("mine, other",)),
    Row("untrusted", "doctor", 0, ("mine, other", "\n2 servers, from ")),
    # warnings
    Row("odd keys", "tools", 0, ("Total: 0 tools",),
        ("zebra9", "! zebra10", "and 4 more about the configuration. To see all of them: greenroom doctor\n")),
    Row("odd keys", "config", 0, ("{",), ("zebra0", "zebra13", "! more about")),
    Row("ten odd keys", "tools", 0, ("Total: 0 tools",),
        ("zebra9", "! more about", "once a day. To see all of them: greenroom doctor\n")),
    # what cannot be meant
    *refused("clock", 2,
        ("zebra", 'There is no command "zebra"'), ("search", "Missing argument"),
        ("explain", "Missing argument 'SERVER'.\nTo see the servers: greenroom status\n"),
        ("disable", "To see the servers: greenroom status\n"), ("remove", "To see the servers: greenroom status\n"),
        ("call", "To see the tools: greenroom tools\n"),
        ("describe", "To see the tools: greenroom tools\n"),
        ("search x --limit 0", "0 is not in the range"), ("status --config missing.json", "missing.json"),
        ("status --pid 1", "No gateway runs as process 1."), ("call clock_now oops", "is not K=V"),
        ("call clock now", "Did you mean: greenroom call clock_now\n"),
        ("call clock now n=1 b='x y' --args {}",
         "Did you mean: greenroom call --args '{}' clock_now n=1 'b=x y'\n"),
        ("call clock_now --n 1", "NAME=VALUE: n=…\n"),
        ("call clock_now n=1 n:=2", "n was given twice"),
        ("call clock_now --args [1]", "expected a JSON object, got array"),
        ("serve --expose everything", "everything"), ("tools a --server b", 'Two servers are named: "a" and "b"'),
        ("disable nobody", "There are: clock."), ("approve --deny", "Which call is meant?"),
        ("approve 5 --session --deny", "Give one of them"), ("approve 0", "0 is not in the range"),
        ("refresh nobody", "There are: clock."),
        ("approve x", "is not a valid"), ("approve --pid 1", "No gateway runs as process 1"),
        ("init nobody", "nobody"), ("init --all", "No known client was found"),
    ),
    *refused("clock", 1,
        ("describe clock", "is a server, and not a tool.\nTo see its tools: greenroom tools clock\n"),
        ("describe zebra", "zebra"), ("search ( --regex", "("), ("reconnect", "greenroom refresh"),
        ("approve", "no gateway runs"), ("approve 1000", "no gateway runs"),
    ),
    *(Row("known", f"{typed} zebra", 2, err=("zebra", "greenroom status\n")) for typed in
      ("tools", "tools --server", "search x --server", "describe x --server", "call x --server")),
    # calls that the schema refuses are not sent: these servers cannot be started
    *refused("known shops", 1,
        ("call shop_buy", "was not called: it requires item and count.\n"),
        ("call shop_buy", "\nTo call it: greenroom call shop_buy item=… count=…\n"),
        ("call shop_buy cuont=2 item=x", 'it requires count, and it has no "cuont". Did you mean "count"?\n'),
        ("call shop_buy cuont=2 item=x", "\nTo call it: greenroom call shop_buy count=2 item=x\n"),
        ("call shop_buy --args '{\"count\":1}'", "greenroom call shop_buy count=1 item=…\n"),
        ("call shop_pay item=x zebra=1", 'it has no "zebra".\nTo call it: greenroom call shop_pay item=x\n'),
        ("call shop_buy item=x count=many", 'shop_buy was not called: count must be an integer, not "many".\n'),
        ("call shop_buy item=x count=1.5", "\nTo call it: greenroom call shop_buy item=x count=…\n"),
        ("call shop_buy item=x count=1.0", "no-such-clock"),
        ("call shop_pay item=x count=many", "\nTo call it: greenroom call shop_pay item=x count=…\n"),
        ("call shop_pay --args '{\"item\":1,\"zebra\":1}'", "no-such-clock"),
        ("call shop_buy item=x count=1 gft=true", 'it has no "gft". Did you mean "gift"?\n'),
        ("call shop_buy item=x count=1 gft:=true", 'greenroom call shop_buy gift=true item=x count=1\n--args \'{…}\''),
        ("call shop_swap item1=x", "\nTo call it: greenroom call shop_swap item1=x item2=…\n"),
        ("call shop_list_items zebra=1", "no-such-clock"),
        ("call buy item=x", 'No tool is called "buy" alone.\nBy their full names:\n'),
        ("call buy item=x", "\ngreenroom call kiosk_buy item=x count=…\ngreenroom call shop_buy item=x count=…\n"),
        ("describe pay", "By its full name: greenroom describe shop_pay\n"),
        ("call list_items", "By its full name: greenroom call shop_list_items\n"),
        # what was typed stays in the command that is proposed
        ("call pay item='a b' count=2", "By its full name: greenroom call shop_pay 'item=a b' count=2\n"),
        ("call pay --args '{\"item\":\"a\"}'", "By its full name: greenroom call shop_pay item=a"),
        ("call sop_pay itm=hat count:=2", "greenroom call shop_pay count=2 item=hat\n"),
        ("describe sop_pay", "Did you mean: greenroom describe shop_pay\n"),
        ("call shop_zebra item=a", "! Did you mean"),
        ("reconnect shop", "greenroom refresh shop"),
        # what the configuration excludes is told from what there is not
        ("call kiosk_rent", 'Tool "kiosk_rent" is excluded: it is in "excludeTools" of the server "kiosk" in '),
        ("call kiosk_rent", "mcp.json.\nTo use it, take it out of that list.\n"),
        ("describe rent --server kiosk", 'Tool "rent" is excluded: it is in "excludeTools"'),
        ("call kiosk_sell", 'is excluded: it is not in "includeTools" of the server "kiosk" in '),
        ("call kiosk_sell", "To use it, add it to that list.\n"),
        ("call kiosk_lend", "no-such-clock"),
        ("call everything_else", "! Did you mean"), ("call shop_by count=1 item=x", "! kiosk"),
    ),
    *refused("known shops", 2,
        ("call shop_buy '{item: 1}'", "\nTo call it: greenroom call shop_buy item=… count=…\n"),
        ("call shop_buy --args [1]", "\nTo call it: greenroom call shop_buy item=… count=…\n"),
        ("call shop_buy count:=x", "\nTo call it: greenroom call shop_buy item=… count=…\n"),
        ("call zebra_buy a", "\nTo see what zebra_buy takes: greenroom describe zebra_buy\n"),
    ),
    Row("known shops", "describe shop_buy", 0, (
        "item (string, required) - What to buy\ncount (integer, required)\ngift\n",
        "\nTo call it: greenroom call shop_buy item=… count=…\n", "! *required*")),
    Row("known shops", "search buy --schemas", 0, ("    item (string, required) - What to buy\n",)),
    Row("known shops", "call shop_buy --json", 1, ('"error": "invalid_args"', '"reach": "not_sent"')),
    Row("clock", "describe zebra --json", 1, ('"error"',)),
    Row("clock", "tools zebra --json", 2, ('"error": "server_not_found"',)),
    Row("a broken file", "status --config ../.config/greenroom/mcp.json", 2, err=("mcp.json",)),
    *(Row("tickets", typed, 2, err=(f'Did you mean "{name}"?',)) for typed, name in MEANT.items()),
    *(Row("tickets", typed, 2, err=("! Did you mean",)) for typed in
      ("zzzz", "init zzzz", "explain zzzz", "attach --profile zzzz")),
    *(Row("two ways", typed, 2, err=("remove all but one", "! no server")) for typed in (
      "auth a", "auth a --logout", "accept a", "reconnect a", "bench churn a")),
    *(Row("two ways", typed, 1, err=("remove all but one", "! no server")) for typed in (
      "tools a", "search x --server a", "call a_x", "describe a_x", "call x --server a", "logs a", "refresh a")),
]  # fmt: skip


def holds(said: str, patterns: Patterns) -> None:
    for pattern in patterns:
        kind, text = (pattern[:2], pattern[2:]) if pattern[:2] in ("= ", "! ") else ("", pattern)
        if kind == "= " or not pattern:
            assert said == text
        elif kind == "! ":
            assert text not in said
        else:
            assert text in said


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.room}: {row.typed}")
def test_each_command_ends_as_it_should(home: Path, row: Row, capsys: pytest.CaptureFixture[str]) -> None:
    ROOMS[row.room](home)
    if row.room == "two ways":
        run(["status"])  # the warnings are said
        capsys.readouterr()
    code = run(shlex.split(row.typed))
    said = capsys.readouterr()
    assert code == row.code, said.err
    holds(said.out, row.out)
    holds(said.err, row.err)
    assert "Traceback" not in said.err
    assert "a bug in Greenroom" not in said.err


def test_a_torn_cache_is_said_once(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torn_cache(home)
    for is_said in (True, False):
        assert run(["tools"]) == 0
        assert ("The catalogue cache " in capsys.readouterr().err) is is_said, "it was set aside"


# ---- the commands ----------------------------------------------------------------------------------------------------


def commands() -> dict[str, click.Command]:
    """Each command, with those of its group."""
    context, found = click.Context(cli), dict[str, click.Command]()
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        found[name] = command
        if isinstance(command, click.Group):
            found |= {f"{name} {inner}": each for inner, each in command.commands.items()}
    return found


def test_every_command_explains_itself_answers_in_json_and_is_in_the_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    without_json: set[str] = set()
    for name, command in commands().items():
        assert command.help, name
        options = [each for each in command.params if isinstance(each, click.Option)]
        assert [each.name for each in options if not each.help] == [], name
        if not isinstance(command, click.Group) and not any("--json" in each.opts for each in options):
            without_json.add(name)
    assert without_json == {"serve", "attach", "replay", "completion"}, "they speak MCP, or to a shell"
    assert run(["--help"]) == 0
    help_text = capsys.readouterr().out
    names = re.findall(r"^  ([a-z]+)(?:,| )", help_text.partition(f"{next(iter(GROUPS))}:")[2], re.MULTILINE)
    assert names == list(COMMANDS)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, ""),
        (BrokenPipeError(), 0, ""),
        (OSError(28, "No space left"), 1, "greenroom: the system refused: No space left.\n"),
        (OSError("odd"), 1, "greenroom: the system refused: odd.\n"),
        (UsageError("a\x1b[2Jb"), 2, "greenroom: ab\n"),
        (ConfigError([Problem("f", "wrong")]), 2, "greenroom: f: wrong\n"),
        (ServerDown("down", server="s"), 1, "greenroom: down\n"),
        (click.ClickException("not so"), 2, "Error: not so\n"),
        (ZeroDivisionError("x"), 1, "greenroom: a bug in Greenroom, please report it: ZeroDivisionError: x\n"),
        ((UsageError("first"), UsageError("second")), 2, "greenroom: first\n"),
        (((ServerDown("down", server="s"),), ServerDown("too", server="s")), 1, "greenroom: down\n"),
        ((UsageError("first"), ServerDown("down", server="s")), 1, "greenroom: a bug in Greenroom"),
        ((UsageError("first"), KeyboardInterrupt()), 130, ""),
        (((BrokenPipeError(),),), 0, ""),
    ],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("debugged", [False, True])
def test_whatever_a_command_raises_it_ends_with_one_line_and_a_code(
    error: Any,
    code: int,
    said: str,
    debugged: bool,
    home: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also in the groups of a task group. `GREENROOM_DEBUG` shows the traceback of a bug, and of nothing else."""

    def fails(*_: object) -> Any:
        raise grouped(error)

    monkeypatch.setattr(control, "find_gateway", fails)
    monkeypatch.setattr("greenroom.cli.main.forget_stdout", lambda: None)
    monkeypatch.setenv("GREENROOM_DEBUG", "1" if debugged else "")
    if debugged and (code, "refused" in said or "bug" in said) == (1, True):
        with pytest.raises(BaseException):  # noqa: B017, PT011
            run(["status"])
        return
    assert run(["status"]) == code
    shown = capfd.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(said) if said else shown.err == ""


def grouped(error: Any) -> BaseException:
    return error if isinstance(error, BaseException) else BaseExceptionGroup("some", [*map(grouped, error)])


# ---- with a gateway that was written down beforehand -----------------------------------------------------------------


class Written:
    """A running gateway as a command sees it. `answers`: by method; a function gets what was asked."""

    pid = 7

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.is_open = True

    def ask(self, method: str, **params: Any) -> Any:
        self.asked.append((method, params))
        answer = self.answers[method]
        return answer(**params) if callable(answer) else answer

    def __enter__(self) -> Written:
        return self

    def __exit__(self, *_: object) -> None:
        self.is_open = False


def answer(mode: str, text: str = "done", **details: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": text}]
    return {"content": content, "_meta": {"greenroom/details": {"mode": mode, **details}}}


def servers(*errors: str | None) -> Any:
    return {"servers": [{"name": f"s{number}", "error": error} for number, error in enumerate(errors)]}


IMAGE = {
    **answer("call"),
    "content": [{"type": "text", "text": "done"}, {"type": "image", "data": "abcd", "mimeType": "image/png"}],
}
HERE = {"quickly": True}
BEGUN = {"names": ["a"], "since": 5.0}


def asking(**arguments: Any) -> list[tuple[str, dict[str, Any]]]:
    return [("mcp", {"arguments": arguments})]


def calling(**arguments: Any) -> list[tuple[str, dict[str, Any]]]:
    return saying({}, **arguments)


def saying(texts: dict[str, str], **arguments: Any) -> list[tuple[str, dict[str, Any]]]:
    return [("mcp", {"arguments": {"tool": "t", "args": {}, **arguments}, "texts": texts})]


def refreshing(*states: str) -> dict[str, Any]:
    rows = [
        {"name": f"s{number}", "state": state, "tools": number, "failure": "no"}
        for number, state in enumerate(states)
    ]
    return {"refresh": BEGUN, "refreshed": rows}


def reconnecting(server: str | None) -> list[tuple[str, dict[str, Any]]]:
    return [("reconnect", {"server": server})]


class Talk(NamedTuple):
    typed: str
    answers: dict[str, Any]
    code: int
    out: Patterns
    asked: list[tuple[str, dict[str, Any]]]
    err: Patterns = ()


BOTH = [("refresh", {"servers": ("s0",), "every": False}), ("refreshed", BEGUN)]
FIRST = {"regex": False, "includeSchemas": False, "limit": 12, "offset": 0}
NEXT = {"regex": True, "includeSchemas": True, "limit": 3, "offset": 6, "server": "s"}
LIST = {"tools": [{"name": "a_b"}], "count": 1, "message": "Not known yet: s."}
TALKS = [
    Talk("reconnect", {"reconnect": servers(None, None)}, 0, ("= ✓ s0\n✓ s1\n",), reconnecting(None)),
    Talk("reconnect s", {"reconnect": servers(None, "no")}, 1, ("= ✓ s0\n✗ s1: no\n",), reconnecting("s")),
    Talk("reconnect", {"reconnect": servers()}, 0, ("No server was connected",), reconnecting(None)),
    Talk("refresh s0", refreshing("known", "known"), 0, ("= ✓ s0: 0 tools\n✓ s1: 1 tool\n",), BOTH, ("1 tool\n",)),
    Talk("refresh s0", refreshing("known", "failed"), 1, ("= ✓ s0: 0 tools\n✗ s1: no\n",), BOTH,
         ("1 of 2 servers answered, 0 tools\n",)),
    Talk("refresh s0", refreshing(), 0, ("= Every server is known; nothing to do.\n",), BOTH),
    Talk("refresh s0 --json", refreshing("failed"), 1,
         ('"state": "failed"', '"source": "gateway"', '"pid": 7'), BOTH, ("",)),
    Talk("search read file", {"mcp": answer("search", "found")}, 0, ("= found\n",),
         asking(search="read file", **FIRST)),
    Talk("search r.* --regex --server s --limit 3 --offset 6 --schemas", {"mcp": answer("search", "found")}, 0,
         ("= found\n",), asking(search="r.*", **NEXT)),
    Talk("describe read", {"mcp": answer("describe")}, 0, ("= done\n",), asking(describe="read")),
    Talk("describe read --server s", {"mcp": answer("describe")}, 0, ("= done\n",),
         asking(describe="read", server="s")),
    Talk("tools s", {"tools": LIST}, 0, ("= a_b\nTotal: 1 tool\nNot known yet: s.\n",),
         [("tools", {**HERE, "server": "s"})]),
    Talk("""call t n=2 --args '{"n": 1, "m": 1}' --server s""", {"mcp": IMAGE}, 0,
         ("= done\n[image: image/png, 4 characters of base64]\n",),
         saying({"n": "2"}, args={"n": 1, "m": 1}, server="s")),
    Talk("call t --json", {"mcp": answer("call", server="s", source="a server's", pid="another")}, 0,
         ('"mode": "call"', '"text": "done"', '"source": "gateway"', '"pid": 7', '! "pid": "another"'), calling()),
    Talk("call t --json", {"mcp": answer("search")}, 0, ('"mode": "search"', '! "content"'), calling()),
    Talk("call t", {"mcp": answer("call", "c\x1b[2Jd")}, 0, ("= cd\n",), calling()),
    Talk("call t", {"mcp": answer("call", "a\x1b[2Jb", error="call_failed")}, 1, ("",), calling(),
         ("= greenroom: ab\n",)),
    Talk("call t", {"mcp": answer("call", "a\x1b[2Jb", error="tool_error")}, 1, ("",), calling(), ("= ab\n",)),
]  # fmt: skip


@pytest.fixture
def gateway(home: Path, monkeypatch: pytest.MonkeyPatch) -> Written:
    ROOMS["clock"](home)
    written = Written()
    monkeypatch.setattr(control, "find_gateway", lambda _name, pid: written if pid in (None, 7) else None)  # pyright: ignore[reportUnknownLambdaType]
    return written


@pytest.mark.parametrize("talk", TALKS, ids=lambda talk: talk.typed)
def test_what_was_typed_is_asked_and_what_is_answered_is_printed(
    gateway: Written, talk: Talk, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway.answers = talk.answers
    code = run(shlex.split(talk.typed))
    said = capsys.readouterr()
    assert code == talk.code, said.err
    holds(said.out, talk.out)
    holds(said.err, talk.err)
    assert gateway.asked == talk.asked
    assert not gateway.is_open, "the connection ends with the command"


SERVER = {
    "name": "a", "status": "cached", "state": "idle", "toolCount": 1, "pid": None, "inFlight": 0,
    "queued": 0, "waitingFor": None, "lastLine": "", "faults": (), "retryIn": None,
}  # fmt: skip
CLIENT = {"pid": 5, "name": "cursor", "expose": None, "profile": None, "inFlight": 0, "seconds": 7.4}
OTHER = {**CLIENT, "name": None, "expose": "direct", "profile": "wo\x1b[2Jrk", "inFlight": 3}
AUDIT = {"file": "calls.jsonl", "failing": True, "missed": 0}


def background(*clients: Any) -> dict[str, Any]:
    return {"background": {"pid": 9, "clients": [*clients]}}


KNOWN = "○ a cached 1 "
APPROVE = "for approval; to see and decide: greenroom approve"
LINES: list[tuple[dict[str, Any], str]] = [  # what a gateway says of the server, and the line of it
    ({}, KNOWN),
    ({"status": "connected", "state": "connected"}, "✓ a connected 1"),
    ({"status": "failed"}, "✗ a failed 1"),
    ({"status": "broken"}, "✗ a broken"),
    ({"status": "needs-auth"}, "⚠ a needs auth 1"),
    ({"status": "untrusted"}, "⚠ a untrusted"),
    ({"status": "disabled"}, "⊘ a disabled"),
    ({"status": "disabled", "down": "It is disabled."}, "⊘ a disabled"),
    ({"status": "not-connected"}, "○ a not connected 1"),
    ({"state": "closed"}, KNOWN),
    ({"status": "draining", "state": "draining"}, "○ a draining 1"),
    ({"status": "connecting", "state": "connecting", "waiting": 3.2}, "○ a connecting 1 for 3 s"),
    ({"status": "not-connected", "toolCount": 0, "cached": False}, "○ a not connected ?"),
    ({"pid": 7}, f"{KNOWN}pid 7"),
    ({"inFlight": 1}, f"{KNOWN}1 in flight, 0 queued"),
    ({"queued": 1}, f"{KNOWN}0 in flight, 1 queued"),
    ({"status": "waiting", "waitingFor": "slot"}, "○ a waiting 1 for a slot"),
    ({"status": "waiting", "waitingFor": "slot", "waiting": 0.0}, "○ a waiting 1 0 s for a slot"),
    ({"status": "installing", "waitingFor": "install", "waiting": 12.4, "lastLine": "npm: 3"},
     "○ a installing 1 for 12 s: npm: 3"),
    ({"status": "waiting", "waitingFor": "permit", "waiting": 3.0, "retryIn": 7.6},
     "○ a waiting 1 3 s for a start permit, next try in 8 s"),
    ({"retryIn": 0.0}, KNOWN),
    ({"retryIn": 4.2, "failure": "it died"}, f"{KNOWN}refuses calls for 5 s; it died"),
    ({"retryIn": 4.2, "failure": "Install it."}, f"{KNOWN}refuses calls for 5 s; Install it."),
    ({"status": "waiting", "waitingFor": "breaker", "waiting": 30.0, "retryIn": 22.0},
     "○ a waiting 1 30 s, next try in 22 s"),
    ({"status": "failed", "failure": "it died"}, "✗ a failed 1 it died"),
    ({"status": "failed", "failure": "no", "failedStarts": 2}, "✗ a failed 1 no"),
    ({"status": "failed", "failure": "died", "retryIn": 4.2}, "✗ a failed 1 refuses calls for 5 s; died"),
    ({"status": "down", "failure": "it said \x1b[2J", "down": "drained"}, "○ a down 1 drained; it said"),
    ({"status": "failed", "failure": "died", "retryIn": 4.2, "nextTry": 3597.0},
     "✗ a failed 1 refuses calls for 5 s, next try in 60 min; died"),
    ({"status": "failed", "failure": "died", "retryIn": 4.2, "nextTry": 4.2},
     "✗ a failed 1 refuses calls, next try in 4 s; died"),
    ({"status": "failed", "failure": "died", "nextTry": 8.6},
     "✗ a failed 1 next try in 9 s, or by a call; died"),
    ({"status": "lost", "failure": "died"}, "✗ a lost 1 a call starts it again; died"),
    ({"status": "lost", "failure": "died", "nextTry": 8.6}, "✗ a lost 1 next try in 9 s, or by a call; died"),
    ({"problems": ("odd",)}, f"{KNOWN}odd"),
    ({"faults": ("x",)}, f"{KNOWN}clients would refuse x"),
    ({"faults": ("x", "y", "z")}, f"{KNOWN}clients would refuse x, and 2 more"),
]  # fmt: skip
BELOW: list[tuple[dict[str, Any], tuple[str, ...]]] = [  # what it says of itself, and what stands below the servers
    (background(CLIENT), ("background gateway, pid 9: 1 client is attached", "cursor, pid 5, 0 in flight, for 7 s")),
    (background(), ("background gateway, pid 9: 0 clients are attached",)),
    (background(CLIENT, OTHER), (
        "background gateway, pid 9: 2 clients are attached",
        "cursor, pid 5, 0 in flight, for 7 s",
        "a client, pid 5, direct, work, 3 in flight, for 7 s",
    )),
    ({"waitingForApproval": 0}, ()),
    ({"waitingForApproval": 1}, (f"1 call waits {APPROVE}",)),
    ({"waitingForApproval": 2}, (f"2 calls wait {APPROVE}",)),
    ({"audit": AUDIT}, ("The audit file calls.jsonl cannot be written: the gateway's log says why.",)),
    ({"audit": {**AUDIT, "failing": False}}, ()),
]  # fmt: skip


def status_of(gateway: Written, capsys: pytest.CaptureFixture[str], row: Any, whole: Any) -> list[str]:
    """The lines of a status, without what only fills up."""
    counts = {"disabledCount": 0, "connectedCount": 0, "totalTools": 1}
    gateway.answers = {"status": {**counts, "servers": [{**SERVER, **row}], **whole}}
    assert run(["status"]) == 0
    assert gateway.asked == [("status", HERE)]
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(("row", "line"), LINES, ids=repr)
def test_the_line_of_a_server_says_what_is_worth_knowing(
    gateway: Written, row: dict[str, Any], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    head, first, *others = status_of(gateway, capsys, row, {})
    assert head == "SERVER STATE TOOLS NOTES"
    assert first == line.strip()
    is_up, has_failed = row.get("status") == "connected", row.get("status") in ("failed", "lost")
    assert others[:2] == ["", f"{int(is_up)} of 1 connected, 1 tool"]
    assert others[2:3] == ["Why a server failed, and what to do: greenroom explain NAME"] * has_failed


def test_the_states_fit_into_a_narrow_window(capsys: pytest.CaptureFixture[str]) -> None:
    """A block that is not wrapped is as wide as it is written."""
    assert run(["status", "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:1] == ["down"] for line in lines)
    assert [line for line in lines if len(line) > 80] == []


def test_a_process_that_is_asked_for_lists_says_so_and_not_by_its_scope(
    gateway: Written, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = {**SERVER, "scope": "call:catalogue", "state": "connecting", "status": "connecting"}
    _, _, row, *_ = status_of(gateway, capsys, {}, {"addresses": [asked]})
    assert row == "its list reader connecting"


@pytest.mark.parametrize(("whole", "lines"), BELOW, ids=repr)
def test_what_concerns_all_servers_stands_below_them(
    gateway: Written, whole: dict[str, Any], lines: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert tuple(status_of(gateway, capsys, {}, whole)[4:]) == lines


def test_a_status_says_of_each_server_what_its_row_says() -> None:
    class Sessions(FakeRoom):
        def status(self, server: str | None = None) -> list[ServerStatus]:
            own = ServerStatus("clock", scope="session:x", state=State.CONNECTED, pid=7, in_flight=2)
            return [*super().status(server), own, msgspec.structs.replace(own, server="github")]

    room = Sessions()
    room.rows["clock"] = {
        "state": State.DRAINING, "incarnation": 3, "in_flight": 1, "queued": 2, "waiting_for": "permit",
        "waiting": 1.26, "last_line": "hello", "pid": 5, "down": "taken down", "failure": "it died",
        "faults": ("bad_tool",), "retry_in": 2.34, "problems": ("cut after 3 pages",),
    }  # fmt: skip
    view = status_view(room)
    expected = {
        "state": "draining", "incarnation": 3, "inFlight": 1, "queued": 2, "waitingFor": "permit", "waiting": 1.3,
        "lastLine": "hello", "lifecycle": "lazy", "pid": 5, "down": "taken down", "failure": "it died",
        "faults": ["bad_tool"], "retryIn": 2.3,
    }  # fmt: skip
    rows = {server["name"]: server for server in view["servers"]}
    assert expected.items() <= rows["clock"].items()
    assert {name: (row["status"], row["toolCount"]) for name, row in rows.items()} == {
        "clock": ("draining", 1),
        "github": ("connected", 3),  # for a session
        "fresh": ("not-connected", 0),
        "off": ("disabled", 0),
        "bad": ("broken", 0),
    }
    own, _ = view["addresses"]
    assert (own["name"], own["scope"], own["state"], own["status"], own["inFlight"]) == (
        "clock", "session:x", "connected", "connected", 2,
    )  # fmt: skip
    assert "addresses" not in status_view(FakeRoom())


# ---- the arguments of a call -----------------------------------------------------------------------------------------

SENT: list[tuple[str, Any]] = [
    ("v=5", {"v": 5}), ("v=true", {"v": True}), ("'v=[1, 2]'", {"v": [1, 2]}), ("v=null", {"v": None}),
    ("'v=x y'", {"v": "x y"}), ("v=007", {"v": "007"}), ("v=", {"v": ""}), ("v=NaN", {"v": "NaN"}),
    ("v=1e999", {"v": "1e999"}), ("v=-Infinity", {"v": "-Infinity"}), ("v=1=2", {"v": "1=2"}),
    ("""v='"5"'""", {"v": "5"}), ("v:=5", {"v": 5}), ("""v:='"5"'""", {"v": "5"}),
    ("v=" + "[" * 99_999, {"v": "[" * 99_999}), ("a=1 b=x=y d::=2", {"a": 1, "b": "x=y", "d:": 2}),
    ("""'{"a": 1, "url": "x?a=b"}'""", {"a": 1, "url": "x?a=b"}),
    ("""a=0 ' {"a": 1, "b": 2}' b=3""", {"a": 1, "b": 3}), ("""--args '{"a": 1}'""", {"a": 1}),
    ("=1", "is not K=V"), ("a", "is not K=V"), (":=1", "is not K=V"), ("'{a: 1}'", "Invalid args JSON"),
    ("a:=x", "what follows := is not JSON"), ("--args []", "expected a JSON object, got array"),
]  # fmt: skip


@pytest.mark.parametrize(("typed", "meant"), SENT, ids=lambda value: str(value)[:30])
def test_values_are_json_where_they_are_json(
    gateway: Written, typed: str, meant: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway.answers = {"mcp": answer("call")}
    assert run(["call", "t", *shlex.split(typed)]) == (2 if isinstance(meant, str) else 0)
    if isinstance(meant, str):
        assert meant in capsys.readouterr().err
        assert gateway.asked == []
    else:
        ((_, asked),) = gateway.asked
        # What the gateway makes of the texts, of a tool whose schema says nothing of them.
        assert {**asked["arguments"]["args"], **typed_arguments(asked["texts"], {})} == meant


# ---- calls that somebody has to allow --------------------------------------------------------------------------------

NEEDS_YES = answer("call", "It has to be allowed.", error="approval_required", question="Allow \x1b[2Jit?")


class Terminal:
    """A stream of the process, at a terminal or not."""

    def __init__(self, stream: Any, *, is_one: bool) -> None:
        self._stream = stream
        self._is_one = is_one

    def isatty(self) -> bool:
        return self._is_one

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@pytest.mark.parametrize(
    ("words", "terminals", "typed", "allowed"),
    [
        ([], (True, True), "y\n", [None, True]),
        ([], (True, True), "n\n", [None, None]),  # the gateway is told the no
        ([], (True, False), "y\n", [None]),
        ([], (False, True), "y\n", [None]),
        ([], (False, False), "y\n", [None]),
        (["--yes"], (True, True), "n\n", [True]),
    ],
)
def test_a_call_that_has_to_be_allowed_is_asked_about_where_somebody_is(
    words: list[str],
    terminals: tuple[bool, bool],
    typed: str,
    allowed: list[bool | None],
    gateway: Written,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gateway.answers = {"mcp": lambda **asked: answer("call") if asked.get("allowed") else NEEDS_YES}  # pyright: ignore[reportUnknownLambdaType]
    keyboard, terminal = os.openpty()
    os.write(keyboard, typed.encode())
    with os.fdopen(terminal) as stdin, os.fdopen(keyboard, "wb"):
        monkeypatch.setattr("sys.stdin", Terminal(stdin, is_one=terminals[0]))
        monkeypatch.setattr("sys.stderr", Terminal(sys.stderr, is_one=terminals[1]))
        ended = run(["call", "t", *words])
    assert ended == (0 if allowed[-1] else 1)
    assert [asked.get("allowed") for _, asked in gateway.asked] == allowed
    out, err = capsys.readouterr()
    assert out.endswith("done\n") == bool(allowed[-1])
    assert ("Allow it?" in out + err) == (all(terminals) and not words)
    assert ("--yes allows the call" in err) == (not all(terminals))


@pytest.mark.parametrize(
    ("words", "first"),
    [([], answer("call", error="call_failed", question="Really?")), (["--yes"], NEEDS_YES)],
    ids=["another error", "allowed already"],
)
def test_a_call_that_fails_otherwise_or_was_allowed_already_is_not_asked_about(
    words: list[str], first: Any, gateway: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.answers = {"mcp": first}
    monkeypatch.setattr(click, "confirm", lambda *_, **__: pytest.fail("it was asked about"))
    assert run(["call", "t", *words]) == 1
    assert len(gateway.asked) == 1


def test_a_call_without_a_gateway_is_allowed_by_its_option_alone(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own_config(
        home, json.dumps({"mcpServers": {"a": faulty(home, "a")}, "settings": {"approve": ["a_echo"]}})
    )
    assert run(["call", "a_echo", "text=hi"]) == 1
    said = capsys.readouterr().err
    assert "--yes allows the call" in said
    assert "Tell the user" not in said, "the user reads it"
    assert run(["call", "a_echo", "text=hi", "--yes"]) == 0
    assert "hi" in capsys.readouterr().out
