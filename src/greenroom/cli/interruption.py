"""How the work of a command is interrupted: by Ctrl-C only where it waits, by SIGTERM, by a closed terminal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from ..actors.process_tuning import collect_again

T = TypeVar("T")


def run_to_end(main: Callable[[], Awaitable[T]]) -> T:
    """Run `main` on trio. Ctrl-C is raised only in `main`, where it waits. Raised at an arbitrary place, it
    would end a task of the room."""
    import anyio

    collect_again()
    return anyio.run(
        main, backend="trio", backend_options={"restrict_keyboard_interrupt_to_checkpoints": True}
    )


async def until_told(main: Callable[[], Awaitable[T]]) -> T | None:
    """What `main` gives; None: we were told to end, or the terminal was closed. Then it is cancelled, so that nothing
    of ours is left."""
    import signal

    import anyio

    from ..actors.backend import pump_group

    async with pump_group() as tasks:

        async def watch() -> None:
            with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGHUP) as signals:
                async for _ in signals:
                    tasks.cancel_scope.cancel()

        tasks.start_soon(watch)
        return await main()
    return None
