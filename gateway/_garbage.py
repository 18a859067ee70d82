"""Garbage while starting: none is looked for until a loop runs.

All that is imported stays, and each new module makes the collector go over the earlier ones again, which is a tenth of
the time to start. So the `greenroom` command turns it off before its first import, and whoever runs a loop turns it on
again, with what is there by then set aside for good: a collection looks at calls, never at modules. An embedder's
collector is the embedder's: where it was not turned off, nothing is done.
"""

from __future__ import annotations

import gc


def collect_again() -> None:
    """End what `greenroom.__main__` began. A loop is about to run, and its imports are done."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
