"""What a server asks or tells a person, as the person may be shown it.

A question is shown by whatever client there is, often on a terminal. Text that holds commands for one, or characters
that turn it round, can hide who asks, and look like a question of ours. So what is for a person's eyes loses such
characters here, once for every door: the sentence, titles and descriptions of a form, the prompts of a sampling
request (a person may read them before the model does), the words of progress and of log messages. An address must stay
the address that it is, so there they are written as `%1B`.

The names of a form's fields and the values to choose from come back to the server, so they cannot be changed: a form
whose names or values nobody can see is refused. What nobody is shown (`_meta`, ids, states) stays as it is, and so
does a result, which is for a model or a program.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from ..catalogue.hidden_characters import unhidden_value
from ..protocol.errors import RpcRefusal
from ..protocol.json_values import is_array, is_object
from ..protocol.jsonrpc.terms import INVALID_PARAMS
from ..protocol.safe_text import printable, unhidden

_FIXED: Final = frozenset({"enum", "const", "required"})  # of a schema: what comes back as it is
_OF_VALIDATORS: Final = frozenset({"pattern", "format", "type"})
_TOLD: Final = ("message", "data", "logger")
_LONGEST: Final = 1 << 16  # characters of an address that are looked at


def shown_request(method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
    """The params of a server's request, as they are shown to a person. Raises `RpcRefusal` for a form with names or
    values that cannot be seen."""
    if method == "elicitation/create":
        return _elicitation(params)
    if method == "sampling/createMessage":
        prompt = params.get("systemPrompt")
        more = {"systemPrompt": printable(prompt)} if isinstance(prompt, str) else {}
        return {
            **params,
            **more,
            **({"messages": _prompts(params["messages"])} if "messages" in params else {}),
        }
    return params


def shown_words(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """The params of a notification, with its words as a person may be shown them; the same object if that changes
    nothing."""
    said = {name: params[name] for name in _TOLD if name in params}
    shown = unhidden_value(said)
    return params if shown is said else {**params, **shown}


def _elicitation(params: Mapping[str, Any]) -> Mapping[str, Any]:
    shown = {**params}
    if isinstance(message := params.get("message"), str):
        shown["message"] = unhidden(message)
    if isinstance(url := params.get("url"), str):
        shown["url"] = _address(url)
    if "requestedSchema" in params:
        shown["requestedSchema"] = _form(params["requestedSchema"])
    return shown


def _address(url: str) -> str:
    """The same address, in which each character can be seen."""
    if unhidden(url) == url and "\n" not in url and "\t" not in url:
        return url
    return "".join(
        one if one.isprintable() and unhidden(one) == one else quote(one) for one in url[:_LONGEST]
    )


def _form(value: Any, name: str = "") -> Any:
    if isinstance(value, str):
        if name in _FIXED:
            return _seen(value)
        return value if name in _OF_VALIDATORS else unhidden(value)
    if is_object(value):
        return {_seen(each): _form(inner, each) for each, inner in value.items()}
    if is_array(value):
        return [_form(each, name) for each in value]
    return value


def _seen(text: str) -> str:
    """A text that cannot be changed. Raises `RpcRefusal`."""
    if printable(text) != text:
        said = (
            "Invalid params: a name or a value in this form has control characters or characters that turn the text "
            "round, which a person cannot see. Nobody was asked."
        )
        raise RpcRefusal(INVALID_PARAMS, said, {"reason": "hidden_characters"})
    return text


def _prompts(value: Any) -> Any:
    if is_object(value):
        return {
            name: printable(each) if name == "text" and isinstance(each, str) else _prompts(each)
            for name, each in value.items()
        }
    if is_array(value):
        return [_prompts(each) for each in value]
    return value
