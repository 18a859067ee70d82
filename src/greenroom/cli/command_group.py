"""The group of commands, as click reads it. A table says where each command is, so that help and light commands
import nothing else.
"""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from .exit_codes import INTERRUPTED, OK, USAGE
from .plain_command import PlainCommand
from .standard_streams import forget_stdout, print_line
from .text_wrapping import fitted

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


# Of each group: name -> (module of this package, one line of help). In its module a command is `NAME_command`.
GROUPS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "Set up": {
        "demo": ("demo_command", "See it work, with servers that Greenroom brings along."),
        "init": ("init_command", "Write Greenroom into the configuration of your MCP clients."),
        "add": ("add_command", "Write a server into your own configuration file."),
        "remove": ("add_command", "Take servers out of your own configuration file."),
        "enable": ("enable_command", "Bring servers back into service."),
        "disable": ("enable_command", "Take servers out of service."),
        "config": ("query_commands", "Show the effective configuration, or that of one server."),
        "trust": ("trust_command", "Decide whether the configuration of this directory may be used."),
        "auth": ("auth_command", "Log in at an HTTP server, or out; list the logins."),
        "doctor": ("doctor_command", "Check the set-up: what is wrong, and how to fix it."),
    },
    "Run": {
        "serve": ("serve_command", "Run the gateway, on standard input and output or over HTTP."),
        "attach": ("attach_command", "Serve a client from the background gateway, started if need be."),
        "stop": ("stop_command", "End the background gateway."),
        "page": ("page_command", "Open the page of the running gateway in a browser."),
    },
    "Look": {
        "status": ("status_command", "Show the servers and what each of them does now."),
        "tree": ("tree_command", "Show what runs as a tree: servers, sessions, what comes next."),
        "tools": ("query_commands", "List the tools of all servers, or of one."),
        "search": ("query_commands", "Find tools by words or by a pattern."),
        "describe": ("query_commands", "Show a tool and its parameters."),
        "explain": ("doctor_command", "Say why a server is as it is, and what happens next."),
        "logs": ("logs_command", "Show what a server has written to its stderr."),
        "cost": ("cost_command", "Show how many tokens the tools take in a model's context."),
        "outputs": ("query_commands", "List the files of long output, or remove them."),
    },
    "Act": {
        "call": ("call_command", "Call a tool."),
        "refresh": ("refresh_command", "Start servers once, to read which tools they have."),
        "reconnect": ("call_command", "Restart servers of the running gateway."),
        "approve": ("approve_command", "List the calls that wait for approval, or answer one."),
        "accept": ("accept_command", "Accept tools whose definitions have changed."),
    },
    "Record, compare, measure": {
        "tape": ("tape_command", "Tell what is on a tape."),
        "replay": ("replay_command", "Serve a tape that was recorded; nothing is started."),
        "diff": ("diff_command", "Compare two tapes, or a tape with the servers as they are now."),
        "explore": ("explore_command", "Run an agent under each fault of a tape, one at a time."),
        "audit": ("audit_command", "Check an audit file, or show its last lines."),
        "bench": ("bench_command", "Measure what it costs to connect a server over and over."),
    },
    "More": {
        "cluster": ("cluster_command", "Many machines: hosts on a Ray cluster."),
        "completion": ("completion", "Let bash, zsh or fish complete greenroom's commands."),
    },
}
COMMANDS: Final = {name: row for group in GROUPS.values() for name, row in group.items()}
EXAMPLES: Final[Mapping[str, Sequence[str]]] = {  # at the end of the help of the commands that are used most
    "init": ("init cursor --move", "init cursor --undo"),
    "doctor": ("doctor --start", "doctor --require github,linear"),
    "serve": ("serve --background", "serve --http 127.0.0.1:8000"),
    "status": ("status --watch", "status --output wide"),
    "search": ('search "add a note"', "search --regex '^notes_'"),
    "explain": ("explain notes",),
    "call": ('call notes_add text="Buy milk"', "call notes_find --json"),
    "refresh": ("refresh notes", "refresh --all"),
    "approve": ("approve", "approve 3"),
    "tape": ("tape run.tape",),
    "replay": ("replay run.tape", "replay run.tape --http 127.0.0.1:8000"),
}
SHORT: Final = {"ls": "status"}  # another name of a command


_WATCHES: Final = " To watch the servers: greenroom status --watch"
_ELSEWHERE: Final = {  # names that other programs have for what ours do
    "top": _WATCHES,
    "watch": _WATCHES,
    "list": " To list the servers: greenroom status. To list their tools: greenroom tools",
    "restart": " To start a server again: greenroom reconnect SERVER",
    "drain": " To stop a server until it is reconnected: Drain, in greenroom page. To disable it in its file: "
    "greenroom disable SERVER",
    "install": " To add a server: greenroom add NAME -- COMMAND",
    "login": " To log in at a server: greenroom auth SERVER",
    "start": " To start the background gateway: greenroom serve --background",
    "update": " To read again what servers have: greenroom refresh --all",
    "version": " To see the version: greenroom --version",
}
_BEHIND: Final = "{0} goes after the command, as in: greenroom status {0}"


class LazyGroup(click.Group):
    """A group that knows its commands' names and help without importing them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args[:1] == ["help"]:  # as other programs have it
            args = [*args[1:2], "--help"]
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name != "--pid":
                raise
            raise click.UsageError(_BEHIND.format("--pid"), ctx) from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"{__package__}.{COMMANDS[cmd_name][0]}")
        command = getattr(module, f"{cmd_name}_command")
        made: click.Command = command.of_click() if isinstance(command, PlainCommand) else command
        if examples := EXAMPLES.get(cmd_name):
            made.epilog = "\n".join(("\b", "Examples:", *(f"  greenroom {each}" for each in examples)))
        return made

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = SHORT.get(args[0], args[0])
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            from ..protocol.near_names import meant

            else_ = _ELSEWHERE.get(name) or meant(name, COMMANDS)
            raise click.UsageError(f'There is no command "{name}".{else_}', ctx)
        return super().resolve_command(ctx, [name, *args[1:]])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The commands from the table. Click would import all of them for it."""
        from click.shell_completion import CompletionItem

        names = [name for name in COMMANDS if name.startswith(incomplete)]
        if names or not incomplete.startswith("-"):
            return [CompletionItem(name, help=COMMANDS[name][1]) for name in names]
        return click.Command.shell_complete(self, ctx, incomplete)

    # Click ends with 1 when nobody reads what it prints; with us that is no error (`main`).

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        try:
            return super().make_context(*args, **extra)
        except BrokenPipeError:  # --help and --version print here
            forget_stdout()
            raise click.exceptions.Exit(OK) from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # not wrapped by a task group; click would print an empty line for it
            raise click.Abort from None
        except BrokenPipeError:  # not wrapped either
            forget_stdout()
            return OK

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        long = {name: f"{name}, {short}" for short, name in SHORT.items()}
        width = max(len(long.get(name, name)) for name in COMMANDS)
        for title, group in GROUPS.items():
            with formatter.section(title):
                rows = [(long.get(name, name).ljust(width), line) for name, (_, line) in group.items()]
                formatter.write_dl(rows)


@click.group(
    cls=LazyGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.option("--version", is_flag=True, help="Show the version and what it runs on.")
@click.option("--config", "config_path", metavar="FILE", help="Read only this configuration file.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (of --version, and without a command).")
@click.pass_context
def cli(context: click.Context, version: bool, config_path: str | None, as_json: bool) -> None:
    """One process of each MCP server for all your clients and programs.

    Without a command, it shows your set-up and the next step. The configuration is merged from
    ./.greenroom/mcp.json, ./.mcp.json and your own file; the first one has the highest priority.
    """
    command = context.invoked_subcommand
    if version:
        from .printing import show
        from .version_report import in_words, runs_on

        said = runs_on()
        show("\n".join(in_words(said)), said, as_json)
        context.exit()
    elif command is None:
        from .overview_command import show_overview
        from .typed_options import remember

        remember("config", config_path)
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


_WHERE: Final = {  # what a command lacks -> where to find it
    "server": "To see the servers: greenroom status\n",
    "servers": "To see the servers: greenroom status\n",
    "names": "To see the servers: greenroom status\n",
    "tool": "To see the tools: greenroom tools\n",
}


def run_command(words: Sequence[str]) -> int:
    """Run the command that these words name. Returns the exit code. What click finds wrong with them is printed; any
    other error is raised."""
    try:
        code = cli.main([*words], prog_name="greenroom", standalone_mode=False)
    except click.ClickException as error:
        said = io.StringIO()
        error.show(said)
        if isinstance(error, click.MissingParameter) and error.param is not None:
            said.write(_WHERE.get(error.param.name or "", ""))
        print_line(fitted(said.getvalue(), sys.stderr), sys.stderr, end="")
        return USAGE
    except click.Abort:
        return INTERRUPTED
    return code if isinstance(code, int) else OK
