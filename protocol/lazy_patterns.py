"""Expressions that are compiled when something is first looked for with them.

A gateway has a hundred and fifty of them, and most starts use a third: what hides credentials, say, is needed when a
result comes, and what checks a schema when somebody lists tools. Compiling them all took a tenth of a start.
"""

from __future__ import annotations

import re
from typing import Any, Generic, TypeVar, cast

_Text = TypeVar("_Text", str, bytes)


class _LazyPattern(Generic[_Text]):
    """Stands in for an expression. Each method that was asked for once is kept here, so a later call costs what it
    costs with the expression itself."""

    def __init__(self, text: _Text, flags: int) -> None:
        self.pattern = text
        self._flags = flags

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = self.__dict__.get("_compiled")
        if found is None:
            found = self.__dict__["_compiled"] = re.compile(self.pattern, self._flags)
        method = self.__dict__[name] = getattr(found, name)
        return method


def lazy_pattern(text: _Text, flags: int = 0) -> re.Pattern[_Text]:
    """As `re.compile`, later: a fault in the expression shows when it is first used."""
    return cast("re.Pattern[_Text]", _LazyPattern(text, flags))
