"""Which operations of a document become tools: by tag, by operation and by path.

Patterns are those of all configuration keys that choose (`*`, `?`). An operation is taken when one pattern of what is
included fits it, or nothing is named there, and none of what is excluded does. A pattern of a path may begin with a
method: `GET /pets/*`.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from ..config.model import selector
from .operation import Operation


@attrs.frozen
class Selection:
    """Patterns of operations; one that fits is enough."""

    tags: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()  # of the names of tools, or of the document's operationIds
    paths: tuple[str, ...] = ()  # `/pets/*`, or `GET /pets/*`

    def __bool__(self) -> bool:
        return bool(self.tags or self.operations or self.paths)

    def fits(self, operation: Operation) -> bool:
        """Whether one of the patterns fits."""
        names = (operation.name, operation.operation_id)
        places = (operation.path, f"{operation.method} {operation.path}")
        return (
            any(map(selector(self.tags), operation.tags))
            or any(map(selector(self.operations), filter(None, names)))
            or any(map(selector(self.paths), places))
        )

    def parts(self) -> list[Selection]:
        """Each pattern alone."""
        return [
            *(Selection(tags=(each,)) for each in self.tags),
            *(Selection(operations=(each,)) for each in self.operations),
            *(Selection(paths=(each,)) for each in self.paths),
        ]

    def __str__(self) -> str:
        return ", ".join([*self.tags, *self.operations, *self.paths])


def chosen(
    operations: Mapping[str, Operation], include: Selection, exclude: Selection
) -> dict[str, Operation]:
    """The operations that become tools, in their order."""
    return {
        name: each
        for name, each in operations.items()
        if (not include or include.fits(each)) and not exclude.fits(each)
    }


def unmatched(operations: Mapping[str, Operation], selection: Selection) -> list[str]:
    """The patterns that fit no operation, which are probably misspelled."""
    return [str(part) for part in selection.parts() if not any(map(part.fits, operations.values()))]
