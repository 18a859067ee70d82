"""Reads values from the system's keyring: `{"keyring": "service/name"}` (the extra `keyring`).

An entry is read when an incarnation starts, in a thread, because a keyring may ask its owner first. The start waits for
it within its time and then goes on without the thread: a keyring cannot be interrupted. No message shows what was read.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import anyio
import anyio.to_thread
import attrs

from ..protocol.errors import ConnectFailed


@attrs.frozen
class Entry:
    """An entry of the keyring, and the place of its value in the definition, for messages: `env.TOKEN`."""

    service: str
    name: str
    place: str


async def kept(server: str, entries: Iterable[Entry], limit: float) -> dict[tuple[str, str], str]:
    """What the keyring has for each entry, by service and name; `limit` seconds for each. Raises `ConnectFailed` with
    the place, what went wrong, and the next step."""
    found: dict[tuple[str, str], str] = {}
    for one in entries:
        read = partial(_read, one.service, one.name)
        late = f'has not come in {limit:g} s (the setting "secretTimeoutMs"): unlock the keyring first'
        value, wrong = None, late
        with anyio.move_on_after(limit):
            value, wrong = await anyio.to_thread.run_sync(read, abandon_on_cancel=True)
        if value is None:
            text = f'The value of {one.place} of server "{server}", which the keyring keeps, {wrong}.'
            raise ConnectFailed(text, server=server)
        found[one.service, one.name] = value
    return found


def _read(service: str, name: str) -> tuple[str | None, str]:
    """The value, or what is wrong with it."""
    try:
        import keyring
    except ImportError:
        return None, 'cannot be read: run pip install "greenroom[keyring]"'
    try:
        value = keyring.get_password(service, name)
    except Exception as error:  # each keyring has its own errors, and their texts may quote anything
        return (
            None,
            f"cannot be read ({type(error).__name__}): unlock the keyring, or write the value elsewhere",
        )
    if not value or "\0" in value:
        step = f"add it with `keyring set {service} {name}`"
        what = "is not there" if value is None else "holds a NUL" if value else "is empty"
        return None, f"{what}: {step}"
    return value, ""
