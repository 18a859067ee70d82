"""`greenroom page`: the page of the running gateway, in the owner's browser.

This command serves the page for as long as it runs, and asks the gateway over its control socket (`gateway.page`). So
every gateway has a page, also one that a client has started on standard input and output. Whoever runs this command is
the owner, so on this page one may act.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..gateway.doors.control_client import Gateway, find_gateway
from ..gateway.doors.control_protocol import name_of
from ..protocol.errors import UsageError
from .common import common_options, read_config, say, say_elsewhere, show
from .exit_codes import FAILED, OK

if TYPE_CHECKING:
    from . import json_shapes as shapes


@click.command("page")
@click.option("--no-browser", is_flag=True, help="Print the address, and open nothing.")
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=0, help="Listen on this port.  [default: a free one]"
)
@common_options
def page_command(
    no_browser: bool, port: int, config_path: Path | None, pid: int | None, as_json: bool
) -> int:
    """Open the page of the running gateway in a browser, until Ctrl-C.

    It shows every server, call and client as it changes, and here one may also act: connect, drain, approve, accept. It
    is served on this machine alone, to whoever has the address, which is made anew each time.
    """
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

    def find() -> Gateway | None:
        """The gateway that is shown, or, once that has ended, the newest."""
        nonlocal at
        try:
            return find_gateway(name, at)
        except UsageError:
            other = None if pid is not None else find_gateway(name)
            at = at if other is None else other.pid
            return other

    def ready(url: str) -> None:
        details: shapes.PageAddress = {"url": url, "pid": at}
        show(f"the page of the gateway {at}: {url}\nCtrl-C ends it.", details, as_json)
        if not no_browser and not as_json:
            _open(url)

    def main() -> Any:
        from ..gateway.page.bridge import serve_page

        return serve_page(find, port, ready, say)

    import anyio

    anyio.run(main, backend="asyncio")
    return OK


def _open(url: str) -> None:
    """Open a browser, if there is one. What it prints is not ours."""
    import webbrowser

    if not webbrowser.open(url):
        say("no browser was found. Open the address in one.")
