"""`python -m greenroom`, and the `greenroom` command.

Ctrl-C while the commands are still being imported ends the process at once: nothing runs yet that would have to be
ended in order, and a traceback out of somebody's import tells nobody anything.

Nor is garbage looked for meanwhile, nor at the end of a command that ran no loop: `actors.process_tuning` says why,
and collects again.
"""

from __future__ import annotations

import gc
import signal
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line and exit."""
    gc.disable()
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .actors import process_tuning
    from .cli.main import main as command_line

    signal.signal(signal.SIGINT, handler)
    try:
        command_line()
    finally:
        process_tuning.end_uncollected()


if __name__ == "__main__":
    main()
