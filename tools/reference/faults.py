"""The page of fault scripts, from the tables with which scripts are checked and played."""

from __future__ import annotations

from greenroom.protocol.fault_plan import DEEDS, SELECTORS, STEPS, VALUES

from .markdown import page, table


def fault_page() -> str:
    """The steps, what can be done at them, and the fields of both."""
    values = [name for name in VALUES if name not in SELECTORS]
    return page(
        "# Faults",
        "Every step at which something can go wrong, and what can be done there. [Fault scripts](../fault-scripts.md) "
        "shows how they are written.",
        "## At which step",
        table(("`at`", "when"), [(f"`{step}`", meaning) for step, meaning in STEPS.items()]),
        "Which occurrence of the step, if not each:",
        table(("field", "is"), [(f"`{name}`", VALUES[name].words) for name in SELECTORS]),
        "## What is done",
        table(
            ("`do`", "at", "fields", "what happens"),
            [
                (f"`{word}`", ", ".join(deed.steps), _fields(deed.needs, deed.takes), deed.meaning)
                for word, deed in DEEDS.items()
            ],
        ),
        "With which values:",
        table(("field", "is"), [(f"`{name}`", VALUES[name].words) for name in values]),
    )


def _fields(needed: tuple[str, ...], taken: tuple[str, ...]) -> str:
    return ", ".join([*(f"`{name}`" for name in needed), *(f"`{name}` (may)" for name in taken)]) or "–"
