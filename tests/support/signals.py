"""A shell that starts the tests in the background lets them ignore Ctrl-C, and so would every child they start: a test
that interrupts one would wait in vain. A handler of our own is not handed down, so children begin with the default."""

from __future__ import annotations

import signal


def restore_ignored_signals() -> None:
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
