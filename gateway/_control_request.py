"""Requests on the control socket: reads them, and names the fault of a malformed one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from ..protocol.config_readers import is_object, kind_of
from ..protocol.errors import UsageError
from ..protocol.halves import repair_utf8


def parse_request(line: bytes) -> tuple[str, Mapping[str, Any]]:
    """The method and params of a request. Raises a `UsageError` that names the fault."""
    try:
        request: Any = json.loads(repair_utf8(line))
    except RecursionError:
        raise _wrong("this is nested too deeply") from None
    except ValueError as error:
        raise _wrong(f"this is not JSON ({error})") from None
    if not is_object(request):
        raise _wrong(f"this is {kind_of(request)}")
    method, params = request.get("method"), request.get("params")
    if method is None:
        raise _wrong('"method" is missing')
    if not isinstance(method, str):
        raise _wrong(f'"method" must be a string, not {kind_of(method)}')
    if params is not None and not is_object(params):
        raise _wrong(f'"params" must be an object, not {kind_of(params)}')
    return method, params or {}


def text_in(params: Mapping[str, Any], name: str) -> str | None:
    """A parameter that must be a string, if it is there. Raises `UsageError`."""
    value = params.get(name)
    if value is not None and not isinstance(value, str):
        raise _wrong(f'"{name}" must be a string, not {kind_of(value)}')
    return value


def object_in(params: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A parameter that must be an object. An absent one is an empty object. Raises `UsageError`."""
    value = params.get(name)
    if value is not None and not is_object(value):
        raise _wrong(f'"{name}" must be an object, not {kind_of(value)}')
    return value or {}


def texts_in(params: Mapping[str, Any], name: str) -> Sequence[str]:
    """A parameter that must be a list of strings. Raises `UsageError`."""
    value = params.get(name)
    if not isinstance(value, list) or not all(isinstance(each, str) for each in cast("list[Any]", value)):
        raise _wrong(f'"{name}" must be a list of strings')
    return cast("list[str]", value)


def number_in(params: Mapping[str, Any], name: str) -> float:
    """A parameter that must be a number. Raises `UsageError`."""
    value = params.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _wrong(f'"{name}" must be a number, not {kind_of(value)}')
    return value


def whole_in(params: Mapping[str, Any], name: str) -> int:
    """A parameter that must be a whole number. Raises `UsageError`."""
    value = number_in(params, name)
    if not isinstance(value, int):
        raise _wrong(f'"{name}" must be a whole number')
    return value


def _wrong(fault: str) -> UsageError:
    return UsageError(
        f"The control socket takes one JSON object per line, with a method and params: {fault}."
    )
