"""What `greenroom call` asks its user on the terminal, in a room of its own: whether the call may be sent, and what the
server wants to know meanwhile. Each question says who asks.

A prompt waits in a thread, so that the room goes on. Ctrl-C ends the command, and Ctrl-D leaves a question unanswered.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final, cast

import click

from ..actors.host import ServerRequest
from ..protocol.safe_text import printable
from ..safety.approval import ApprovalRequest, Verdict

_NUMBERS: Final[Mapping[object, Any]] = {"integer": click.INT, "number": click.FLOAT}


def has_terminal() -> bool:
    """Whether somebody is there to answer."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def is_allowed(text: str) -> bool:
    """Ask whether a call may be sent."""
    return click.confirm(printable(text), err=True)


async def ask_for_approval(request: ApprovalRequest) -> Verdict:
    allowed = await _in_thread(lambda: is_allowed(request.text))
    return Verdict.ONCE if allowed else Verdict.DENY


async def answer_elicitation(request: ServerRequest) -> Mapping[str, Any]:
    """The user's answer to a server's request for input."""
    return await _in_thread(lambda: answer_form(request.server, request.params))


async def _in_thread(ask: Any) -> Any:
    import anyio.to_thread

    return await anyio.to_thread.run_sync(ask, abandon_on_cancel=True)


def answer_form(server: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Ask for each field of the form, or show the page that the server wants to be visited."""
    click.echo(f'\nServer "{printable(server)}" asks: {printable(str(params.get("message", "")))}', err=True)
    try:
        if params.get("mode") == "url":
            click.echo(f"It wants you to open this page: {printable(str(params.get('url')))}", err=True)
            return {"action": "accept" if click.confirm("Will you open it?", err=True) else "decline"}
        if not click.confirm("Answer it?", default=True, err=True):
            return {"action": "decline"}
        schema = _object(params.get("requestedSchema"))
        required = schema.get("required") or ()
        fields = {
            name: _asked(name, _object(field), is_required=name in required)
            for name, field in _object(schema.get("properties")).items()
        }
    except click.Abort:
        return {"action": "cancel"}
    return {"action": "accept", "content": {name: said for name, said in fields.items() if said is not None}}


def _asked(name: str, field: Mapping[str, Any], *, is_required: bool) -> Any:
    """The answer for one field; None: it is left out."""
    words = printable(str(field.get("description") or field.get("title") or ""))
    label = f"  {printable(name)}{f' ({words})' if words else ''}"
    default, kind = field.get("default"), field.get("type")
    if kind == "boolean":
        return click.confirm(label, default=bool(default), err=True)
    choices = field.get("enum") or _object(field.get("items")).get("enum")
    if choices:
        label += f" [{', '.join(printable(str(each)) for each in choices)}]"
    while True:
        shown = default if default is not None else None if is_required else ""
        said = click.prompt(label, default=shown, show_default=default is not None, err=True)
        if said == "" and default is None:
            return None
        if said is default:
            return said
        try:
            return _read(str(said), kind, choices)
        except click.BadParameter as error:
            click.echo(f"  {error.message}", err=True)


def _read(text: str, kind: object, choices: Any) -> Any:
    """What was typed, as the field wants it. Raises `click.BadParameter`."""
    if kind == "array":
        return [_read(each.strip(), None, choices) for each in text.split(",")]
    if choices and text not in choices:
        raise click.BadParameter(f'"{printable(text)}" is none of these.')
    return _NUMBERS[kind](text) if kind in _NUMBERS else text


def _object(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
