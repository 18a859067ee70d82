"""What tools cost a model's context.

A client gives a model each tool's name, description and parameters, and these are there in every turn. `direct` shows
all tools, `proxy` the one `mcp` tool, `meta` its few, and what a search finds is paid for when it is found. So the cost
of an exposure is the tokens of what it shows from the beginning. The cost of a task is what a model is given over all
its turns. With all tools shown these are two: it calls, and it reads the answer. Behind one tool it searches first, and
that request and its answer stand in both turns that follow. The call and its answer are the same everywhere, and are
not counted.

How many tokens a text has depends on the model. Without a tokenizer one token counts as four characters, which is near
enough to compare exposures. The text of a definition is the compact JSON of what a model is given of it. How a client
words it for its model is the client's; nobody outside sees that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from ..protocol.errors import UsageError
from ._mcp_tool import DEFINITION
from ._meta import definitions

if TYPE_CHECKING:
    from ..protocol.index import Index, Target

CHARACTERS: Final = 4  # of a token, when nothing counts them
Count = Callable[[str], int]


@attrs.frozen
class ServerCost:
    server: str
    tools: int
    tokens: int  # of all their definitions


@attrs.frozen
class Cost:
    """Tokens. `servers`, `direct`: every definition of every known tool. `proxy`: the `mcp` tool's and those of the
    tools that were chosen to be shown `beside` it. `meta`: those of its tools."""

    counted_by: str
    servers: tuple[ServerCost, ...]
    proxy: int
    beside: int
    meta: int

    def task(self, search: int) -> Mapping[str, int]:
        """A tool that is found and called once, in all, by exposure. `search`: the request and its answer."""
        return {
            "direct": 2 * self.direct,
            "proxy": 3 * self.proxy + 2 * search,
            "meta": 3 * self.meta + 2 * search,
        }

    @property
    def tools(self) -> int:
        return sum(one.tools for one in self.servers)

    @property
    def direct(self) -> int:
        return sum(one.tokens for one in self.servers)


def counter(encoding: str | None = None) -> tuple[str, Count]:
    """What counts tokens, and its name. `encoding`: one of tiktoken's, for example "o200k_base"; tiktoken must be
    installed, and reads its vocabulary from the network once. Raises `UsageError`."""
    if encoding is None:
        return f"{CHARACTERS} characters a token", lambda text: -(-len(text) // CHARACTERS)
    try:
        import tiktoken  # pyright: ignore[reportMissingImports]
    except ImportError:
        text = "Counting in a real encoding needs tiktoken, which is not installed. Install it: pip install tiktoken"
        raise UsageError(text) from None
    library: Any = tiktoken
    try:
        encode = library.get_encoding(encoding).encode
    except Exception as error:  # an unknown name, or its vocabulary cannot be had: many kinds
        raise UsageError(f"tiktoken cannot use the encoding {encoding!r}: {error}") from None
    return encoding, lambda text: len(encode(text, disallowed_special=()))


def cost_of(index: Index, counted_by: str, count: Count) -> Cost:
    """What the tools of an index cost a model, server by server, the dearest first."""
    found: dict[str, list[int]] = {server: [] for server in index.servers}
    beside = 0
    for target in index.tools():
        tokens = count(_shown(target))
        found[target.server].append(tokens)
        beside += tokens if index.is_direct(target, beside=True) else 0
    servers = [ServerCost(server, len(tokens), sum(tokens)) for server, tokens in found.items() if tokens]
    servers.sort(key=lambda one: (-one.tokens, one.server))
    meta = sum(definition_cost(definition, count) for definition in definitions())
    return Cost(counted_by, tuple(servers), definition_cost(DEFINITION, count) + beside, beside, meta)


def search_cost(words: str, answer: str, count: Count) -> int:
    """The tokens of a search: of its request, as the `mcp` tool is given it, and of the answer."""
    return count(_compact({"search": words})) + count(answer)


def definition_cost(definition: Mapping[str, Any], count: Count) -> int:
    """The tokens of one definition, as `tools/list` has it."""
    said = {
        "name": definition["name"],
        "description": definition.get("description", ""),
        "input_schema": definition.get("inputSchema", {}),
    }
    return count(_compact(said))


def _shown(target: Target) -> str:
    said = {
        "name": target.name,
        "description": target.description,
        "input_schema": dict(target.input_schema or {}),
    }
    return _compact(said)


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
