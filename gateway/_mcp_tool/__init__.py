"""The `mcp` tool: every server behind one tool of constant size.

* `_definition`  what a client sees, and how a request is read
* `_tool`        `McpTool`: the modes carried out
* `_reader`      `CatalogueReader`: those that only look
* `_texts`       what the looking modes say
* `_refusals`    what is said when it did not go well
* `_outcome`     from a server's answer to what the model reads
* `_patterns`    search patterns in linear time
* `_spill`       files for text that is too long
* `_ask`         the tool asked from our own code
* `_answer`, `_hints`  the shape of an answer; the next step in the reader's words
"""

from ._answer import Answer
from ._ask import ask
from ._definition import DEFINITION, NAME, Mode, Request, parse_args, parse_request
from ._hints import FOR_MODELS, FOR_PEOPLE, Hints
from ._reader import CatalogueReader
from ._spill import Spill
from ._tool import McpTool

__all__ = [
    "DEFINITION",
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
    "parse_args",
    "parse_request",
]
