"""What a server says beside its results: log messages, progress and other notifications. They reach the model or its
client too, so they lose credentials at the same doors as results.

They are scrubbed at once, because they must stay in order. One that is too long for that goes on without its words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from ..config.model import Scrub
from ..config.scrubbing import Secrets
from ..protocol.jsonrpc.encoding import encode_json
from ..protocol.jsonrpc.incoming import decode_result
from .server_questions import shown_words

OnProgress = Callable[[Mapping[str, Any]], None]
_LONGEST: Final = 1 << 16  # bytes: looking through them takes some milliseconds
_INSTEAD: Final = "[REDACTED: too long to be looked through]"
_USUAL: Final = frozenset({"notifications/message", "notifications/elicitation/complete"})
_WORDS: Final = ("message", "data", "logger")


# What scrubs a server's results at a door; None: nothing does. It is the `scrubber` of a `RoomPort`.
ScrubberOf = Callable[[str, Scrub], "Secrets | None"]


def scrubbed_params(
    scrubber_of: ScrubberOf, door: Scrub, server: str, params: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The params of a notification of `server` as this door may show them; the same object if there is nothing to
    remove. Its words are as a person may be shown them."""
    params = shown_words(params)
    scrubber = scrubber_of(server, door)
    if scrubber is None:
        return params
    raw = encode_json(params)
    if len(raw) > _LONGEST:
        short = {name: value for name, value in params.items() if isinstance(value, int | float | bool)}
        return {**short, **{name: _INSTEAD for name in _WORDS if name in params}}
    found = scrubber.scrub(raw)
    return params if found is raw else decode_result(found)


def names_credential(scrubber_of: ScrubberOf, door: Scrub, server: str, method: str) -> bool:
    """Whether the method of a notification contains a credential. Such a method is known to nobody, so the notification
    is passed to nobody."""
    said = {"method": method}
    return method not in _USUAL and scrubbed_params(scrubber_of, door, server, said) is not said


def scrubbed_server_request(
    scrubber_of: ScrubberOf, door: Scrub, server: str, method: str, params: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The params of a request of `server` to its client, as this door may show them. Only the sentence that a person
    reads is scrubbed: a form has members such as `password`, an address is opened as it is, and a model's messages are
    the server's own."""
    if method != "elicitation/create" or not isinstance(params.get("message"), str):
        return params
    return {**params, **scrubbed_params(scrubber_of, door, server, {"message": params["message"]})}


def scrubbed_progress(scrubber_of: ScrubberOf, door: Scrub, server: str, progress: OnProgress) -> OnProgress:
    """`progress` for a call of `server`, given params without credentials."""
    return partial(_told, scrubber_of, door, server, progress)


def _told(
    scrubber_of: ScrubberOf, door: Scrub, server: str, progress: OnProgress, params: Mapping[str, Any]
) -> None:
    progress(scrubbed_params(scrubber_of, door, server, params))
