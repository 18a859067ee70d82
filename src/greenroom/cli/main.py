"""The group of commands. A table says where each command is, so that help and light commands import nothing
else.

Every error of ours ends as one message on stderr and an exit code. So does an error of the system, such as a
full disk. Any other exception is a bug and is reported as one; `GREENROOM_DEBUG=1` shows its traceback. A
command ends in silence when its reader has seen enough (`greenroom tools | head`). A character that the
terminal cannot show is written as an escape.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from ..protocol.errors import ConfigError, GreenroomError, UsageError
from .exit_codes import FAILED, INTERRUPTED, OK, USAGE

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


# Of each group: name -> (module of this package, attribute, one line of help).
GROUPS: Final[Mapping[str, Mapping[str, tuple[str, str, str]]]] = {
    "Set up": {
        "demo": (
            "demo_command",
            "demo_command",
            "See it work, with servers that Greenroom brings along.",
        ),
        "init": (
            "init_command",
            "init_command",
            "Write Greenroom into the configuration of your MCP clients.",
        ),
        "add": ("add_command", "add_command", "Write a server into your own configuration file."),
        "remove": ("add_command", "remove_command", "Take servers out of it."),
        "enable": ("enable_command", "enable_command", "Bring servers back into service."),
        "disable": ("enable_command", "disable_command", "Take servers out of service."),
        "config": (
            "query_commands",
            "config_command",
            "Show the effective configuration, or that of one server.",
        ),
        "trust": (
            "trust_command",
            "trust_command",
            "Decide whether the configuration of this directory may be used.",
        ),
        "auth": ("auth_command", "auth_command", "Log in at an HTTP server, or out; list the logins."),
        "doctor": (
            "doctor_command",
            "doctor_command",
            "Check the set-up: what is wrong, and how to mend it.",
        ),
    },
    "Run": {
        "serve": (
            "serve_command",
            "serve_command",
            "Run the gateway, on standard input and output or over HTTP.",
        ),
        "attach": (
            "attach_command",
            "attach_command",
            "Serve a client from the background room, started if need be.",
        ),
        "stop": ("attach_command", "stop_command", "End the background room."),
        "page": ("page_command", "page_command", "Open the page of the running gateway in a browser."),
    },
    "Look": {
        "status": ("status_command", "status_command", "Show the servers and what each of them does now."),
        "tree": (
            "tree_command",
            "tree_command",
            "Show the room as a tree: servers, sessions, what comes next.",
        ),
        "tools": ("query_commands", "tools_command", "List the tools of all servers, or of one."),
        "search": ("query_commands", "search_command", "Find tools by words or by a pattern."),
        "describe": ("query_commands", "describe_command", "Show a tool and its parameters."),
        "explain": (
            "doctor_command",
            "explain_command",
            "Say why a server is as it is, and what happens next.",
        ),
        "logs": ("logs_command", "logs_command", "Show what a server has written to its stderr."),
        "cost": ("cost_command", "cost_command", "Show how many tokens the tools take in a model's context."),
        "outputs": ("query_commands", "outputs_command", "List the files of long output, or remove them."),
    },
    "Act": {
        "call": ("call_command", "call_command", "Call a tool."),
        "refresh": ("refresh_command", "refresh_command", "Start servers once, to read what they have."),
        "reconnect": ("call_command", "reconnect_command", "Connect servers of a running gateway again."),
        "approve": (
            "approve_command",
            "approve_command",
            "List the calls that wait for approval, or answer one.",
        ),
        "accept": ("accept_command", "accept_command", "Accept tools whose definitions have changed."),
    },
    "Record, compare, measure": {
        "tape": ("tape_command", "tape_command", "Tell what is on a tape."),
        "replay": ("replay_command", "replay_command", "Serve a tape that was recorded; nothing is started."),
        "diff": (
            "diff_command",
            "diff_command",
            "Compare two tapes, or a tape with the servers as they are now.",
        ),
        "explore": (
            "explore_command",
            "explore_command",
            "Run an agent under each fault of a tape, one at a time.",
        ),
        "audit": ("audit_command", "audit_command", "Check an audit file, or show its last lines."),
        "bench": (
            "bench_command",
            "bench_command",
            "Measure what it costs to connect a server over and over.",
        ),
    },
    "More": {
        "cluster": ("cluster_command", "cluster_command", "Many machines: hosts on a Ray cluster."),
        "completion": ("completion", "completion_command", "Let bash, zsh or fish complete our commands."),
    },
}
COMMANDS: Final = {name: row for group in GROUPS.values() for name, row in group.items()}
SHORT: Final = {"ls": "status"}  # another name of a command


_POSIX: Final = ("fcntl", "termios", "resource")  # what Python has on Linux and macOS alone, and we import
_ELSEWHERE: Final = {"top": " To watch the servers: greenroom status --watch"}
_BEHIND: Final = "{0} stands behind the command, as in: greenroom status {0}"


class LazyGroup(click.Group):
    """A group that knows its commands' names and help without importing them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name != "--pid":
                raise
            raise click.UsageError(_BEHIND.format("--pid"), ctx) from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        cmd_name = SHORT.get(cmd_name, cmd_name)
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        return getattr(importlib.import_module(f"{__package__}.{module}"), attribute)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in (*COMMANDS, *SHORT) and not name.startswith("-") and not ctx.resilient_parsing:
            from ..protocol.near_names import meant

            else_ = _ELSEWHERE.get(name) or meant(name, COMMANDS)
            raise click.UsageError(f'There is no command "{name}".{else_}', ctx)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The commands from the table. Click would import all of them for it."""
        from click.shell_completion import CompletionItem

        names = [name for name in COMMANDS if name.startswith(incomplete)]
        if names or not incomplete.startswith("-"):
            return [CompletionItem(name, help=COMMANDS[name][2]) for name in names]
        return click.Command.shell_complete(self, ctx, incomplete)

    # Click ends with 1 when nobody reads what it prints; with us that is no error (`_report`).

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        try:
            return super().make_context(*args, **extra)
        except BrokenPipeError:  # --help and --version print here
            _forget_stdout()
            raise click.exceptions.Exit(OK) from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # not wrapped by a task group; click would print an empty line for it
            raise click.Abort from None
        except BrokenPipeError:  # not wrapped either
            _forget_stdout()
            return OK

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        long = {name: f"{name}, {short}" for short, name in SHORT.items()}
        width = max(len(long.get(name, name)) for name in COMMANDS)
        for title, group in GROUPS.items():
            with formatter.section(title):
                rows = [(long.get(name, name).ljust(width), line) for name, (_, _, line) in group.items()]
                formatter.write_dl(rows)


@click.group(
    cls=LazyGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.option("--version", is_flag=True, help="Show the version and what it runs on.")
@click.option("--config", "config_path", metavar="FILE", help="Read only this configuration file.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (of --version, and without a command).")
@click.pass_context
def cli(context: click.Context, version: bool, config_path: str | None, as_json: bool) -> None:
    """Supervised MCP servers behind one door.

    Without a command it says where you stand, and what to do next. The configuration is merged from
    ./.greenroom/mcp.json, ./.mcp.json and your own file; what stands in the first counts most.
    """
    command = context.invoked_subcommand
    if version:
        from .runs_on import in_words, runs_on
        from .tables import show_lines

        said = runs_on()
        show_lines(in_words(said), said, as_json)
        context.exit()
    elif command is None:
        from .overview_command import show_overview

        context.obj.config = config_path
        show_overview(config_path, as_json)
    elif as_json:
        raise click.UsageError(_BEHIND.format("--json"), context)
    elif config_path is not None:
        from ..gateway.next_steps import WITH_CONFIG

        given: dict[str, object] = {"config_path": config_path}
        if command == "bench":
            given = {"churn": given}
        elif command not in WITH_CONFIG:
            raise click.UsageError(
                f"{command} reads no configuration file, so it takes no --config.", context
            )
        context.default_map = {command: given}  # as if it stood behind the command


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    _fill_the_gaps()
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]  (Python has found it closed)
        click.echo(
            "greenroom: standard output is closed, so nobody can read the answer. Leave it open.", err=True
        )
        sys.exit(USAGE)
    _never_fail_on_a_letter()
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """Run the command line. Returns the exit code."""
    from .common import Typed

    typed = Typed()
    try:
        code: Any = cli.main(arguments, prog_name="greenroom", standalone_mode=False, obj=typed)
    except click.ClickException as error:
        said = io.StringIO()
        error.show(said)
        click.echo(_to_terminal(said.getvalue()), nl=False, err=True)
        return USAGE
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except SystemExit:
        raise
    except BaseException as error:  # a task group wraps a Ctrl-C too
        return _report(error, typed)
    return code if isinstance(code, int) else OK


def _fill_the_gaps() -> None:
    """Put the null device in place of a closed standard descriptor. Otherwise the next file that is opened
    would get its number, and then messages for standard error would be written into that file."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    while nowhere <= 2:
        nowhere = os.open(os.devnull, os.O_RDWR)
    os.close(nowhere)


def _never_fail_on_a_letter() -> None:
    """Print characters that the terminal cannot show as escapes: names and descriptions may have any."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _single(error: BaseException) -> BaseException:
    """The exception that is inside the exception groups of task groups. `error` itself if it holds exceptions of
    several types."""
    first, *others = _leaves(error)
    return error if any(type(other) is not type(first) for other in others) else first


def _leaves(error: BaseException) -> Iterator[BaseException]:
    inner: tuple[BaseException, ...] = getattr(error, "exceptions", ())
    for one in inner:
        yield from _leaves(one)
    if not inner:
        yield error


def _report(error: BaseException, typed: object = None) -> int:
    if any(isinstance(leaf, KeyboardInterrupt) for leaf in _leaves(error)):
        return INTERRUPTED
    error = _single(error)
    if isinstance(error, BrokenPipeError):
        _forget_stdout()
        return OK
    if isinstance(error, GreenroomError):
        from .common import commands_of

        click.echo(_to_terminal(f"greenroom: {commands_of(typed).filled(error.message)}"), err=True)
        return USAGE if isinstance(error, ConfigError | UsageError) else FAILED
    if isinstance(error, ModuleNotFoundError) and error.name in _POSIX and sys.platform == "win32":
        text = "greenroom: this needs Linux or macOS, and is not for Windows. Run it in WSL, or reach servers by URL."
        click.echo(_to_terminal(text), err=True)
        return USAGE
    if os.environ.get("GREENROOM_DEBUG"):
        raise error
    if isinstance(error, OSError):
        from ..config.private_files import refused

        _forget_stdout()  # most often the reason is that stdout cannot be written
        click.echo(_to_terminal(f"greenroom: {refused(error)}"), err=True)
        return FAILED
    click.echo(
        f"greenroom: a bug in Greenroom, please report it: {type(error).__name__}: {error}\n"
        "Set GREENROOM_DEBUG=1 to see where.",
        err=True,
    )
    return FAILED


def _to_terminal(text: str) -> str:
    from .wrapping import fitted

    return fitted(text, sys.stderr)


def _forget_stdout() -> None:
    """Throw away what is still buffered. Otherwise the interpreter would write it again when it exits."""
    with suppress(OSError, ValueError, AttributeError):  # there is no stdout to forget
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, sys.stdout.fileno())
        finally:
            os.close(nowhere)
