"""The program of the child in which the code of one `mcp_execute` runs.

It is started by its path, and imports nothing of ours. It is told what to run in one request, and answers that with the
result of the tool. In between the code's own calls go out as requests, and their results come back. Both ways are
lines of JSON-RPC on the standard streams, as between us and a server.

The code does not run here either: `pydantic-monty` interprets it in a process of its own, which has no files, no
network and no environment to give to it. Both processes are bounded in memory and processor time, and end with their
group when the time is over.
"""

from __future__ import annotations

import json
import os
import resource
import select
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final, cast

import pydantic_monty as monty

ARGUMENTS: Final = 1 << 20  # bytes of JSON that a call may pass on
_ADDRESSES: Final = 1 << 30  # bytes that each process may map, whatever for
_SUSPENSIONS: Final = 4_000  # calls, and waits for calls


def main() -> None:
    lines = _HostMessages()
    request = lines.next()
    assert request is not None
    told = request["params"]
    _bound_processes(told["seconds"])
    _write({"id": request["id"], "result": _CodeRun(told, lines).result()})


class _HostMessages:
    """The messages to us."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def next(self, within: float | None = None) -> dict[str, Any] | None:
        """The next one. None: nothing came `within` so many seconds."""
        end = self._rest.find(b"\n")
        while end < 0:
            if not select.select([0], [], [], within)[0]:
                return None
            chunk = os.read(0, 1 << 16)
            if not chunk:
                raise SystemExit(0)  # nobody wants the result any more
            searched = len(self._rest)
            self._rest += chunk
            end = self._rest.find(b"\n", searched)
        raw = bytes(self._rest[:end])
        del self._rest[: end + 1]
        said = json.loads(raw)
        return _whole(said) if b"\\ud" in raw or b"\\uD" in raw else said


class _CodeRun:
    """`told`: the code, and its bounds: `seconds` in all and of a `nap`, bytes of `memory` for its objects, characters
    `printed` and `returned`, and levels of `depth` in what leaves it."""

    def __init__(self, told: dict[str, Any], lines: _HostMessages) -> None:
        self._told = told
        self._lines = lines
        self._printed: list[str] = []
        self._room = told["printed"]
        self._answers: dict[int, Any] = {}  # by call, until the code takes them
        self._naps: dict[int, float] = {}  # when they end, by call

    def result(self) -> dict[str, Any]:
        """The result of the tool."""
        try:
            returned = self._run()
            if _is_deeper(returned, self._told["depth"]):
                raise RecursionError
            text = _text_of(returned, self._told["returned"])
        except monty.MontyCrashedError as error:
            return self._failed(f"it was ended ({error}). It may have used more memory than it may.")
        except monty.MontyError as error:
            return self._failed(_in_words(error))
        except MemoryError:
            return self._failed("MemoryError: it returned more than fits")
        except RecursionError:
            return self._failed("RecursionError: what it returned is nested too deeply")
        return self._said(text)

    def _run(self) -> Any:
        limits: Any = {
            "max_memory": self._told["memory"],
            "max_suspensions": _SUSPENSIONS,
            "max_feed_duration_secs": self._told["seconds"],
        }
        with (
            monty.Monty(max_processes=1) as pool,
            pool.checkout(limits=limits) as session,
        ):
            step = session.feed_start(
                self._told["code"], print_callback=self._print, external_lookup={"call": call}
            )
            while not isinstance(step, monty.MontyComplete):
                step = self._next(step)
            return step.output

    def _next(self, step: Any) -> Any:
        """Do what the code waits for, and let it go on."""
        if isinstance(step, monty.FutureSnapshot):
            return step.resume(self._answered(step.pending_call_ids))
        if isinstance(step, monty.FunctionSnapshot) and step.object_id is None:
            if step.function_name == "call":
                return self._begin_call(step)
            if step.function_name in ("system.sleep", "system.async_sleep"):
                return self._begin_nap(step)
        return step.resume_auto()

    def _begin_call(self, step: monty.FunctionSnapshot) -> Any:
        try:
            params = call(*step.args, **step.kwargs)
            if _is_deeper(params["args"], self._told["depth"]):
                raise ValueError("the arguments are nested too deeply")
            size = len(json.dumps(params, allow_nan=False))
            if size > ARGUMENTS:
                raise ValueError(f"the arguments have {size:,} bytes; at most {ARGUMENTS:,}")
        except (TypeError, ValueError, RecursionError) as error:
            kind = "ValueError" if isinstance(error, ValueError) else "TypeError"
            return step.resume({"exc_type": kind, "message": f"call(): {error}"})
        _write({"id": step.call_id, "method": "call", "params": params})
        return step.resume({"future": ...})

    def _begin_nap(self, step: monty.FunctionSnapshot) -> Any:
        seconds = min(max(float(step.args[0]), 0.0), self._told["nap"])
        if step.function_name == "system.sleep":
            time.sleep(seconds)
            return step.resume({"return_value": None})
        self._naps[step.call_id] = time.monotonic() + seconds
        return step.resume({"future": ...})

    def _answered(self, wanted: list[int]) -> Any:
        """The answers to those of these calls that have any, at least one."""
        while True:
            now = time.monotonic()
            for number in [number for number, end in self._naps.items() if end <= now]:
                del self._naps[number]
                self._answers[number] = {"return_value": None}
            if any(number in self._answers for number in wanted):
                return {number: self._answers.pop(number) for number in wanted if number in self._answers}
            said = self._lines.next(min(self._naps.values()) - now if self._naps else None)
            if said is not None:
                error = said.get("error")
                self._answers[said["id"]] = (
                    {"return_value": said["result"]["value"]}
                    if error is None
                    else {"exc_type": "RuntimeError", "message": error["message"]}
                )

    def _print(self, _stream: str, text: str) -> None:
        if self._room > 0:
            self._printed.append(text[: self._room])
            if len(text) > self._room:
                self._printed.append("\n[output truncated]\n")
        self._room -= len(text)

    def _failed(self, why: str) -> dict[str, Any]:
        return {**self._said(f"mcp_execute error: Sandbox error: {why}"), "isError": True}

    def _said(self, last: str) -> dict[str, Any]:
        printed = "".join(self._printed).removesuffix("\n")
        text = "\n".join(part for part in (printed, last) if part) or "(no output)"
        return {"content": [{"type": "text", "text": text}]}


def call(server: str | None, tool: str, args: dict[str, Any] | None = None) -> dict[str, Any]:
    """What the code calls as `call`: its parameters, checked."""
    if not (server is None or isinstance(server, str)) or not isinstance(tool, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError("server and tool are texts")
    if not (args is None or isinstance(args, dict)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError("args is a dict")
    return {"server": server, "tool": tool, "args": args or {}}


def _is_deeper(value: Any, most: int) -> bool:
    """Whether it is nested deeper. Monty gives only the first thousand levels of a value, which Python 3.14 would write
    as if it were the whole."""
    level = [value]
    for _ in range(most):
        level = [inner for each in level for inner in _parts(each) if isinstance(inner, dict | list | tuple)]
        if not level:
            return False
    return True


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return cast("dict[Any, Any]", value).values()
    return cast("list[Any]", value) if isinstance(value, list | tuple) else ()


def _text_of(value: Any, most: int) -> str:
    """A returned value as text: a text as it is, anything else as JSON."""
    if value is None:
        return ""
    if not isinstance(value, str):
        try:
            value = json.dumps(value, indent=2, ensure_ascii=False, default=repr)
        except (TypeError, ValueError):  # keys that JSON does not have; a cycle
            value = repr(value)
    return value if len(value) <= most else f"{value[:most]}... [result truncated]"


def _in_words(error: monty.MontyError) -> str:
    """The error, and where in the code it was raised."""
    if isinstance(error, monty.MontyRuntimeError | monty.MontySyntaxError):
        said = error.display("type-msg")
        return f"{said}\n{error.display('traceback').removesuffix(said)}".rstrip()
    return str(error)


def _bound_processes(seconds: float) -> None:
    """Bounds for this process and those that it starts."""
    os.nice(5)  # whatever it computes, others come first
    for what, most in (
        (resource.RLIMIT_AS, _ADDRESSES),
        (resource.RLIMIT_CPU, int(seconds) + 2),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
    ):
        with suppress(OSError, ValueError):  # a system that has no such bound, or allows less already
            resource.setrlimit(what, (most, most))


def _whole(value: Any) -> Any:
    """The value without half characters, which no other process would take."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_whole(each) for each in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, dict):
        return {_whole(key): _whole(each) for key, each in value.items()}  # pyright: ignore[reportUnknownVariableType]
    return value


def _write(message: dict[str, Any]) -> None:
    sys.stdout.buffer.write(
        json.dumps({"jsonrpc": "2.0", **message}, ensure_ascii=False).encode(errors="replace") + b"\n"
    )
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
