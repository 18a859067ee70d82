"""Fault scripts, drawn from the tables by which they are checked, so that none is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from .._faults import Fault, FaultScript
from .._vocabulary import DEEDS, SIGNALS, STEPS
from ._parts import WORDS, together
from ._tools import tool_names


def fault_scripts(
    *,
    faults: int = 4,
    steps: Sequence[str] = tuple(STEPS),
    deeds: Sequence[str] = tuple(DEEDS),
    longest: float = 60.0,
) -> st.SearchStrategy[FaultScript]:
    """Scripts of at most that many faults, each of these deeds at one of these steps; no pause above `longest` seconds.

    For the executable leave out `expire`, which a process cannot play.
    """
    each = [_fault(at, do, longest) for do in deeds for at in DEEDS[do].steps if at in steps]
    return st.lists(st.one_of(each), max_size=faults).map(_script)


def _script(faults: list[Fault]) -> FaultScript:
    return FaultScript(tuple(faults))


def _fault(at: str, do: str, longest: float) -> st.SearchStrategy[Fault]:
    parameters = _parameters(longest)
    deed = DEEDS[do]
    needed = {name: parameters[name] for name in deed.needs}
    optional = {
        name: parameters[name] for name in deed.takes if name not in ("exit_code", "signal", "stderr")
    }
    if do == "crash":
        how = st.fixed_dictionaries({}, optional={"exit_code": parameters["exit_code"]})
        extra = how | st.fixed_dictionaries({"signal": parameters["signal"]})
    elif do == "flood":
        extra = st.fixed_dictionaries({"stderr": parameters["stderr"]})
    else:
        extra = st.just(dict[str, Any]())
    what = st.fixed_dictionaries({"at": st.just(at), "do": st.just(do), **needed}, optional=optional)
    return together(_selection(at, longest), what, extra).map(_made)


def _made(said: dict[str, Any]) -> Fault:
    return Fault(**said)


def _selection(at: str, longest: float) -> st.SearchStrategy[dict[str, Any]]:
    few = st.integers(1, 3)
    optional: dict[str, st.SearchStrategy[Any]] = {"start": few}
    if at not in ("start", "stop"):
        optional["nth"] = few
    if at == "call":
        optional["tool"] = st.just("echo")
    needed = {"after": _pauses(longest)} if at == "idle" else {}
    return st.fixed_dictionaries(needed, optional=optional)


def _parameters(longest: float) -> dict[str, st.SearchStrategy[Any]]:
    return {
        "seconds": _pauses(longest),
        "exit_code": st.integers(0, 255),
        "signal": st.sampled_from(SIGNALS),
        "text": WORDS,
        "code": st.integers(-32_768, -32_000),
        "notifications": st.integers(0, 200),
        "stderr": st.integers(0, 100_000),
        "tools": st.lists(tool_names(), max_size=3, unique=True).map(lambda names: ["echo", *names]),
    }


def _pauses(longest: float) -> st.SearchStrategy[float]:
    """Round ones first: they are the ones that fall on one moment with something else."""
    return st.sampled_from(
        [each for each in (0.0, 0.1, 1.0, 5.0, 30.0, 60.0) if each <= longest]
    ) | st.floats(0, longest, allow_nan=False)
