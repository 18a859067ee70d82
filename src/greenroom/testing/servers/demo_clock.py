"""`python -m greenroom.testing.servers.demo_clock`: tells the time and does sums with it."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from .minimal import Json, MinimalTool, ToolError, serve


def now(arguments: Json) -> Json:
    """The time now, at an offset from UTC in hours."""
    offset = _number(arguments.get("utc_offset", 0), "utc_offset")
    if not -24 < offset < 24:
        raise ToolError(f"utc_offset must lie between -24 and 24, got {offset:g}")
    moment = datetime.now(timezone(timedelta(hours=offset)))
    return {"time": moment.isoformat(timespec="seconds"), "weekday": moment.strftime("%A")}


def between(arguments: Json) -> Json:
    """The time from one moment to another, both ISO 8601."""
    try:
        start, end = (datetime.fromisoformat(str(arguments[key])) for key in ("start", "end"))
        passed = end - start
    except (ValueError, TypeError) as error:
        raise ToolError(f"not two moments that can be compared: {error}") from None
    return {"seconds": passed.total_seconds(), "text": str(passed)}


def _number(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ToolError(f"{name} must be a number, got {value!r}")
    return float(value)


TOOLS = {
    "now": MinimalTool(
        "Current time and weekday at an offset from UTC.",
        {"utc_offset": {"type": "number", "description": "hours from UTC, default 0"}},
        now,
        read_only=True,
    ),
    "between": MinimalTool(
        "How much time lies between two moments.",
        {
            "start": {"type": "string", "description": "ISO 8601, e.g. 2026-01-31T12:00"},
            "end": {"type": "string", "description": "ISO 8601"},
        },
        between,
        required=("start", "end"),
        read_only=True,
    ),
}


if __name__ == "__main__":
    serve("demo-clock", TOOLS)
