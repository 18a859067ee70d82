"""Our commands as they are typed for one configuration: every next step that is printed goes through here.

A command works as printed only with the options that the one before it had: the file of `--config`, the gateway of
`--pid`. Who makes a step composes it (`about`, `live`). A text from a room that knows nothing of a command line, such
as the error of a server that wants a login, names commands without options: the rim puts them in (`filled`).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from ..protocol.lazy_patterns import lazy_pattern
from ..protocol.safe_text import typed

WITH_PID: Final = frozenset(
    {
        *("status", "tree", "tools", "search", "describe", "call", "refresh", "reconnect"),
        *("explain", "approve", "accept", "stop", "doctor", "logs", "page"),
    }
)
# `init` is here, too: what it has under this name is what its client shall use, which is the same file.
WITH_CONFIG: Final = WITH_PID | {
    *("serve", "attach", "add", "remove", "enable", "disable", "trust", "auth"),
    *("config", "cost", "init", "replay"),
}
# Where a text of ours stands in JSON that is made of status rows, tools and answers, and what such JSON holds.
_OURS: Final = ("message", "failure", "broken", "down", "problems")
_HELD: Final = ("servers", "addresses", "tools", "tool")
_NAMED: Final = lazy_pattern(r"(?<![\w./-])greenroom ([a-z]+)(?![\w-])(?! --(?:config|pid)\b)")


class Commands(msgspec.Struct, frozen=True):
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

    def filled_in(self, said: Mapping[str, Any]) -> Mapping[str, Any]:
        """Some JSON, with these options behind each command that our texts in it name without them. Where a tool has
        changed, its description is ours, too. What a server says stays as it is."""
        if self == Commands():
            return said
        ours = (*_OURS, "description") if said.get("changed") else _OURS
        new = {key: self._filled_value(said[key]) for key in ours if said.get(key)}
        new |= {key: self._filled_parts(said[key]) for key in _HELD if said.get(key)}
        return {**said, **new}

    def _filled_value(self, value: object) -> object:
        if isinstance(value, list | tuple):
            return [self._filled_value(each) for each in cast("Sequence[object]", value)]
        return self.filled(value) if isinstance(value, str) else value

    def _filled_parts(self, value: object) -> object:
        if isinstance(value, list | tuple):
            return [self._filled_parts(each) for each in cast("Sequence[object]", value)]
        return self.filled_in(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else value

    def _of_config(self, verb: str) -> tuple[str, ...]:
        return ("--config", self.config) if self.config is not None and verb in WITH_CONFIG else ()

    def _of_pid(self, verb: str) -> tuple[str, ...]:
        return ("--pid", str(self.pid)) if self.pid is not None and verb in WITH_PID else ()

    @staticmethod
    def _typed(verb: str, names: tuple[str, ...], options: tuple[str, ...]) -> str:
        said = [shlex.join(["greenroom", verb, *options]), *([typed(*names)] if names else [])]
        return " ".join(said)


PLAIN: Final = Commands()  # without options
