"""Async tests that a helper runs: it opens what the test is about, and gives it to the test's body."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

Body = Callable[..., Awaitable[None]]


def body_of(runner: Callable[..., None], *args: Any, **how: Any) -> Callable[[Body], Callable[..., None]]:
    """Make of an async function a test, whose body it is: `runner(body, *args, **how)`.

    What stands before `/` in its parameters is given by the runner. The others are fixtures; so is `backend`, if the
    runner takes one, and the function may ask for it, too.
    """
    takes_backend = "backend" in inspect.signature(runner).parameters

    def made(body: Body) -> Callable[..., None]:
        parameters = inspect.signature(body).parameters.values()
        fixtures = [each for each in parameters if each.kind is not inspect.Parameter.POSITIONAL_ONLY]
        asks_backend = any(each.name == "backend" for each in fixtures)

        @functools.wraps(body)
        def test(**given: Any) -> None:
            backend = {"backend": given["backend"]} if takes_backend else {}
            if takes_backend and not asks_backend:
                del given["backend"]
            runner(functools.partial(body, **given), *args, **backend, **how)

        kind = inspect.Parameter.KEYWORD_ONLY
        own = [inspect.Parameter("backend", kind)] if takes_backend and not asks_backend else []
        wanted = [*own, *(each.replace(kind=kind) for each in fixtures)]
        setattr(test, "__signature__", inspect.Signature(wanted))  # noqa: B010 -- it is what pytest reads
        return test

    return made
