"""Exit codes of every command.

A script that asks only whether a command has failed needs 0. `greenroom doctor` has one code for each weight of a
finding: an error is the failure of a check, as it always was, and the other two are said only if they are asked for
(`--fail-on`), so that a warning never stops a script that did not ask about warnings.
"""

from __future__ import annotations

from typing import Final

OK: Final = 0
FAILED: Final = 1  # what was asked for failed, or is not there; `doctor`: an error; `diff`: something differs
USAGE: Final = 2  # a wrong option, an unusable configuration, or a server that is not configured
WARNED: Final = 3  # `doctor --fail-on warning`: a warning, and nothing worse
NOTED: Final = 4  # `doctor --fail-on note`: a note, and nothing worse
INTERRUPTED: Final = 130  # Ctrl-C, as shells count it
ENDED: Final = 143  # SIGTERM, as shells count it, where a command first takes away what it made
