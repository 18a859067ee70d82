"""`greenroom page`: the page of the running gateway, in the owner's browser.

This command serves the page for as long as it runs, and asks the gateway over its control socket (`gateway.page`). So
every gateway has a page, also one that a client has started on standard input and output. Whoever runs this command is
the owner, so on this page one may act. With `--tape` it shows a recording, without a gateway.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import click

from ..config.private_files import make_own_folder, open_own
from ..gateway.doors.control_client import Gateway, find_gateway
from ..gateway.doors.control_protocol import control_directory, name_of
from ..protocol.errors import UsageError
from ..protocol.version import VERSION
from .config_reading import read_config
from .exit_codes import FAILED, OK
from .interruption import until_told
from .json_shapes import Shape, says
from .printing import say, show
from .running_gateways import say_elsewhere
from .shared_options import common_options
from .typed_options import commands_typed


class PageAddressJson(Shape, kw_only=True):
    """Where the page is, for as long as the command runs."""

    url: Annotated[str, says("its address, with a token: anyone who has it may act")]
    pid: Annotated[int | None, says("the gateway that is shown; null: a tape is")]


@click.command("page")
@click.option("--no-browser", is_flag=True, help="Print the address, and open nothing.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    metavar="PORT",
    default=0,
    help="Listen on this port.  [default: a free one]",
)
@click.option(
    "--tape", type=click.Path(path_type=Path), metavar="TAPE", help="Show this tape instead of a gateway."
)
@common_options
def page_command(
    no_browser: bool,
    port: int,
    tape: Path | None,
    config_path: Path | None,
    pid: int | None,
    as_json: bool,
) -> int:
    """Open the page of the running gateway, or of a tape, in a browser, until Ctrl-C.

    It shows every server, call and client as they change, and you can act there: connect, drain, approve, accept. It
    is served on this machine alone, to anyone who has the address, which is made anew each time.
    """
    if tape is not None:
        if pid is not None:
            raise UsageError("--pid names a gateway, and --tape a tape. Leave one of them out.")
        return _show_tape(tape, port, no_browser, as_json)
    name = name_of(read_config(config_path))
    found = find_gateway(name, pid)
    if found is None:
        say(
            "no gateway runs for this configuration, so there is no page. To start one: greenroom serve --background"
        )
        say_elsewhere(read_config(config_path))
        return FAILED
    with found:
        at = found.pid
        version = found.ask("hello", quickly=True).get("version")
    if version != VERSION:
        stop = commands_typed().about("stop")
        say(
            f"the gateway that runs as process {at} is Greenroom {version}, and cannot answer the page of {VERSION}. "
            f"Restart the client that started it, or, if it is the background gateway: {stop}"
        )
        return FAILED

    def find() -> Gateway | None:
        """The gateway that is shown, and never another one: a page must not act at a gateway that nobody chose."""
        with suppress(UsageError):
            return find_gateway(name, at)
        return None

    from ..gateway.page.page_bridge import serve_page

    _serve(partial(serve_page, find, port), f"the gateway {at}", at, no_browser, as_json)
    return OK


def _show_tape(file: Path, port: int, no_browser: bool, as_json: bool) -> int:
    """Show a tape until Ctrl-C."""
    from ..gateway.page.page_bridge import serve_tape
    from ..tape.tape_reader import read_tape

    _serve(partial(serve_tape, read_tape(file), port), f"the tape {file}", None, no_browser, as_json)
    return OK


def _serve(
    serve: Callable[..., Awaitable[None]], of: str, pid: int | None, no_browser: bool, as_json: bool
) -> None:
    """Serve a page until Ctrl-C, and say where it is once it is there."""
    import anyio

    def ready(url: str) -> None:
        details = PageAddressJson(url=url, pid=pid)
        show(f"the page of {of}: {url}\nCtrl-C ends it.", details, as_json)
        if not no_browser and not as_json:
            _open(click.get_current_context().with_resource(_way_to(url)))

    anyio.run(until_told, partial(serve, ready, say), backend="asyncio")


_WAY: Final = (
    '<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer"><title>Greenroom</title>'
    '<meta http-equiv="refresh" content="0; url={url}"><a href="{url}">The page of Greenroom</a>\n'
)


@contextmanager
def _way_to(url: str) -> Generator[Path]:
    """A file that leads a browser to the page. Only its owner can read it, and a browser is given its name: everybody
    on this machine can read the words of a command, and the address has the token."""
    folder = control_directory()
    make_own_folder(folder)
    path = folder / f"page-{os.getpid()}.html"
    path.unlink(missing_ok=True)
    try:
        with open(open_own(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w", encoding="utf-8") as file:
            file.write(_WAY.format(url=url))
        yield path
    finally:
        path.unlink(missing_ok=True)


def _open(path: Path) -> None:
    """Open a browser, if there is one."""
    import webbrowser

    if not webbrowser.open(path.as_uri()):
        say("no browser was found. Open the address in one.")
