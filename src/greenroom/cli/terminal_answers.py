"""The person at the terminal of `greenroom call`, who is asked whether a call may be sent, and what a server wants to
know while it works. Each question says who asks.

There is one person, so one thing is asked at a time, in the order in which the questions came. What has become
pointless meanwhile, because the call has ended, is not asked any more. No thread waits for the answer: the room goes
on, and whoever withdraws a question leaves nothing behind that reads the terminal. The terminal edits the line itself.

Ctrl-C ends the command, and Ctrl-D leaves a question unanswered.
"""

from __future__ import annotations

import os
import sys
import termios
from collections.abc import Mapping
from typing import Any, Final

import anyio
import click

from ..actors.host import ServerRequest
from ..protocol.json_values import object_or_empty
from ..protocol.safe_text import printable
from ..safety.approval import ApprovalRequest, Verdict
from .text_wrapping import fitted

_NUMBERS: Final[Mapping[object, Any]] = {"integer": click.INT, "number": click.FLOAT}
_YES_NO: Final[Mapping[str, bool]] = {"y": True, "yes": True, "n": False, "no": False}


class _NoAnswer(Exception):
    """Ctrl-D was typed, or the terminal is gone."""


class Person:
    """Who sits at our terminal: there must be one (`has_terminal`)."""

    def __init__(self) -> None:
        self._terminal = sys.stdin.fileno()
        self._attention = anyio.Lock()  # it is given in the order of asking

    async def allows(self, question: str) -> bool | None:
        """Whether a call may be sent. None: the person does not say."""
        async with self._attention:
            try:
                return await self._agrees(fitted(question, sys.stderr), default=False)
            except _NoAnswer:
                return None

    async def decide(self, request: ApprovalRequest) -> Verdict:
        """Whether a call of a room that runs here may be sent. Nobody else could say so: no answer is a no."""
        return Verdict.ONCE if await self.allows(request.text) else Verdict.DENY

    async def answer(self, request: ServerRequest) -> Mapping[str, Any]:
        """The answer to a server's request for input: to each field of its form, or whether the page that it wants to
        be visited will be."""
        asks = f'\nServer "{printable(request.server)}" asks: {printable(str(request.params.get("message", "")))}'
        async with self._attention:
            click.echo(asks, err=True)
            try:
                return await self._fill_in(request.params)
            except _NoAnswer:
                return {"action": "cancel"}

    async def _fill_in(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        if params.get("mode") == "url":
            click.echo(f"It wants you to open this page: {printable(str(params.get('url')))}", err=True)
            return {
                "action": "accept" if await self._agrees("Will you open it?", default=False) else "decline"
            }
        if not await self._agrees("Answer it?", default=True):
            return {"action": "decline"}
        schema = object_or_empty(params.get("requestedSchema"))
        required = schema.get("required") or ()
        content: dict[str, Any] = {}
        for name, field in object_or_empty(schema.get("properties")).items():
            said = await self._field(name, object_or_empty(field), is_required=name in required)
            if said is not None:
                content[name] = said
        return {"action": "accept", "content": content}

    async def _field(self, name: str, field: Mapping[str, Any], *, is_required: bool) -> Any:
        """The answer for one field; None: it is left out."""
        words = printable(str(field.get("description") or field.get("title") or ""))
        label = f"  {printable(name)}{f' ({words})' if words else ''}"
        default, kind = field.get("default"), field.get("type")
        if kind == "boolean":
            return await self._agrees(label, default=bool(default))
        choices = field.get("enum") or object_or_empty(field.get("items")).get("enum")
        if choices:
            label += f" [{', '.join(printable(str(each)) for each in choices)}]"
        if default is not None:
            label += f" [{printable(str(default))}]"
        while True:
            text = await self._line(f"{label}: ")
            if not text:
                if default is not None or not is_required:
                    return default
                continue
            try:
                return _read(text, kind, choices)
            except click.BadParameter as error:
                click.echo(f"  {error.message}", err=True)

    async def _agrees(self, question: str, *, default: bool) -> bool:
        while True:
            text = (await self._line(f"{question} [{'Y/n' if default else 'y/N'}]: ")).strip().lower()
            if not text:
                return default
            if text in _YES_NO:
                return _YES_NO[text]
            click.echo("Please type y or n.", err=True)

    async def _line(self, prompt: str) -> str:
        """The next line that is typed. Raises `_NoAnswer`. When it is cancelled, what was typed so far is forgotten,
        so that it does not answer the next question."""
        click.echo(prompt, nl=False, err=True)
        typed = b""
        try:
            while not typed.endswith(b"\n"):
                await anyio.wait_readable(self._terminal)
                some = os.read(self._terminal, 1 << 12)
                if not some:
                    break
                typed += some
        except OSError:  # the terminal is gone
            raise _NoAnswer from None
        except BaseException:
            termios.tcflush(self._terminal, termios.TCIFLUSH)
            click.echo("\ngreenroom: this is not asked any more.", err=True)
            raise
        if not typed:
            click.echo(err=True)
            raise _NoAnswer
        return typed.decode(errors="replace").rstrip("\r\n")


def _read(text: str, kind: object, choices: Any) -> Any:
    """What was typed, as the field wants it. Raises `click.BadParameter`."""
    if kind == "array":
        return [_read(each.strip(), None, choices) for each in text.split(",")]
    if choices and text not in choices:
        raise click.BadParameter(f'"{printable(text)}" is none of these.')
    return _NUMBERS[kind](text) if kind in _NUMBERS else text
