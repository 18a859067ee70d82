"""A shell that starts the tests in the background makes them ignore Ctrl-C, and their children would inherit that. A
test that interrupts a child would then wait for ever. Our own handler is not inherited, so children begin with the
default."""

from __future__ import annotations

import signal


def restore_ignored_signals() -> None:
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
