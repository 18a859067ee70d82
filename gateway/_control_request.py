"""Requests on the control socket: the form they must have, and the errors for those that do not have it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..protocol._config_readers import is_object, kind_of
from ..protocol.errors import UsageError
from ..protocol.halves import repair_utf8


def parse_request(line: bytes) -> tuple[str, Mapping[str, Any]]:
    """Its method and params. Raises `UsageError` that names the fault."""
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
    """A parameter that is a string or absent. Raises `UsageError` for another."""
    value = params.get(name)
    if value is not None and not isinstance(value, str):
        raise _wrong(f'"{name}" must be a string, not {kind_of(value)}')
    return value


def object_in(params: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A parameter that is an object, or absent, which is an empty one. Raises `UsageError` for another."""
    value = params.get(name)
    if value is not None and not is_object(value):
        raise _wrong(f'"{name}" must be an object, not {kind_of(value)}')
    return value or {}


def _wrong(fault: str) -> UsageError:
    return UsageError(f"The control socket takes one JSON object a line, with a method and params: {fault}.")
