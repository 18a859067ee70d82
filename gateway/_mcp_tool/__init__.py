"""The `mcp` tool: every server behind one tool of constant size.

* `_definition`  what a client sees, and how a request is read
* `_large_call`  reads a call of megabytes
* `_tool`        `McpTool`, which carries out the requests
* `_reader`      `CatalogueReader`: the modes that only read the catalogue
* `_texts`       the texts of these modes
* `_refusals`    the texts of requests that failed
* `_unknown`     the texts about servers of which nothing is known yet
* `_pages`       how much of a list fits one answer
* `_answers`     ends jobs with results and answers, within the bounds
* `_outcome`     turns a server's answer into what the model reads
* `_binaries`    binary content of a result goes to files
* `_patterns`    search patterns in linear time
* `_spill`       files for what does not fit an answer
* `_ask`         requests to the tool from our own code
* `_answer`, `_hints`  the form of an answer; the next step in words for its reader
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._first_use import first_use
from ._answer import Answer
from ._definition import (
    DEFINITION,
    NAME,
    Mode,
    Request,
    kind_of,
    parse_args,
    parse_request,
    read_plain_request,
    refuse_unknown,
)
from ._hints import FOR_META, FOR_MODELS, FOR_PEOPLE, Hints
from ._reader import CatalogueReader

if TYPE_CHECKING:
    from ._ask import ask
    from ._large_call import reading_call
    from ._spill import Spill
    from ._tool import McpTool

# Imported when first used: what only reads the catalogue needs nothing that calls.
_HOMES = {
    "._ask": ("ask",),
    "._large_call": ("reading_call",),
    "._spill": ("Spill",),
    "._tool": ("McpTool",),
}

__all__ = [
    "DEFINITION",
    "FOR_META",
    "FOR_MODELS",
    "FOR_PEOPLE",
    "NAME",
    "Answer",
    "CatalogueReader",
    "Hints",
    "McpTool",
    "Mode",
    "Request",
    "Spill",
    "ask",
    "kind_of",
    "parse_args",
    "parse_request",
    "read_plain_request",
    "reading_call",
    "refuse_unknown",
]

__getattr__ = first_use(__name__, _HOMES)
