"""What a scripted model notes of a run: what it was offered, and what it was told of each call.

A model makes the calls that it is given, one a turn, whatever it is told. The scripts of clients and of adapters have
this folder on their path: `scripted_….py` is the model of a framework.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Shown:
    """What a model was told of one call: in which way of its framework, and in which words."""

    how: str
    text: str = ""
    images: int = 0


@dataclass
class Run:
    """One run of an agent."""

    shown: list[Shown] = field(default_factory=list)
    offered: list[set[str]] = field(default_factory=list)  # the tools' names, for each turn of the model
    asked: list[str] = field(default_factory=list)  # the tools about which the framework interrupted
    structured: list[Any] = field(
        default_factory=list
    )  # what the program got of each call, where it gets any
    defined: list[Any] = field(default_factory=list)  # the tools as the model was last offered them, in full
    said: str = ""  # what the agent said in the end
