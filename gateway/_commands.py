"""Our commands as they are typed for one configuration: every next step that is printed goes through here.

A command works as printed only with the options that the one before it had: the file of `--config`, the gateway of
`--pid`. Who makes a step composes it (`about`, `live`). A text from a room that knows nothing of a command line, such
as the error of a server that wants a login, names commands without options: the rim puts them in (`filled`).
"""

from __future__ import annotations

import re
import shlex
from typing import Final

import attrs

WITH_PID: Final = frozenset(
    {
        *("status", "top", "tools", "search", "describe", "call", "refresh", "reconnect"),
        *("explain", "approve", "accept"),
    }
)
# `init` is here, too: what it has under this name is what its client shall use, which is the same file.
WITH_CONFIG: Final = WITH_PID | {
    *("serve", "attach", "stop", "add", "remove", "enable", "disable", "trust", "auth"),
    *("config", "doctor", "cost", "init", "logs"),
}
_NAMED: Final = re.compile(r"(?<![\w./-])greenroom ([a-z]+)(?![\w-])(?! --(?:config|pid)\b)")


@attrs.frozen
class Commands:
    """`config`: the file that was named; `pid`: the gateway."""

    config: str | None = None
    pid: int | None = None

    def about(self, verb: str, *names: str, options: tuple[str, ...] = ()) -> str:
        """A command that reads or changes the configuration."""
        return self._typed(verb, names, (*self._of_config(verb), *options))

    def live(self, verb: str, *names: str) -> str:
        """A command that asks the running gateway."""
        return self._typed(verb, names, (*self._of_config(verb), *self._of_pid(verb)))

    def filled(self, text: str) -> str:
        """A text of ours, with these options behind each command that it names without them."""
        if self == Commands():
            return text

        def with_options(found: re.Match[str]) -> str:
            return shlex.join([*found[0].split(), *self._of_config(found[1]), *self._of_pid(found[1])])

        return _NAMED.sub(with_options, text)

    def _of_config(self, verb: str) -> tuple[str, ...]:
        return ("--config", self.config) if self.config is not None and verb in WITH_CONFIG else ()

    def _of_pid(self, verb: str) -> tuple[str, ...]:
        return ("--pid", str(self.pid)) if self.pid is not None and verb in WITH_PID else ()

    @staticmethod
    def _typed(verb: str, names: tuple[str, ...], options: tuple[str, ...]) -> str:
        apart = ("--",) if any(name.startswith("-") for name in names) else ()
        return shlex.join(["greenroom", verb, *options, *apart, *names])
