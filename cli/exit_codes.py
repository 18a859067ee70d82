"""Exit codes of every command."""

from __future__ import annotations

from typing import Final

OK: Final = 0
FAILED: Final = 1  # the call failed
USAGE: Final = 2  # bad usage or configuration
INTERRUPTED: Final = 130  # Ctrl-C, as shells count it
