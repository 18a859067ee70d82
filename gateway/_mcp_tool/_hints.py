"""The next step, in words for the reader of an answer.

Three kinds of readers get the same answers: a model that can call `mcp(...)`, a model that can call the tools of the
exposure `meta`, and a person at a shell, who can type `greenroom …`. The facts are the same; only these sentences
differ.
"""

from __future__ import annotations

from typing import Final

import attrs


@attrs.frozen
class Hints:
    """Each hint completes a message. `{server}`, `{tool}`, `{output}` and `{offset}` are filled in."""

    overview: str
    see_servers: str
    search: str
    connect: str
    instructions: str
    learn: str  # what to do about servers of which nothing is known
    mend: str  # and about one that failed
    log_in: str = "Use greenroom auth {server} to log in."
    call: str = 'mcp({{ tool: "{tool}" }})'
    page: str = 'mcp({{ output: "{output}", offset: {offset} }})'  # the next part of a long text

    def to_connect(self, server: str) -> str:
        return self.connect.format(server=server)

    def to_mend(self, server: str) -> str:
        return self.mend.format(server=server)

    def to_log_in(self, server: str) -> str:
        return self.log_in.format(server=server)

    def to_call(self, tool: str) -> str:
        return self.call.format(tool=tool)

    def next_page(self, output: str, offset: int) -> str:
        return self.page.format(output=output, offset=offset)


FOR_MODELS: Final = Hints(
    overview='mcp({ server: "name" }) to list tools, mcp({ search: "..." }) to search',
    see_servers="Use mcp({}) to see available servers.",
    search='Use mcp({ search: "..." }) to search.',
    connect='Use mcp({{ connect: "{server}" }}) or greenroom reconnect {server} to retry.',
    instructions='mcp({{ instructions: "{server}" }}) for all of them',
    learn='Use mcp({ connect: "name" }) to ask one what it has.',
    mend='Use mcp({{ connect: "{server}" }}) to try again; greenroom explain {server} says more.',
)

FOR_META: Final = Hints(
    overview='mcp_discover({ server: "name" }) to list tools, mcp_discover({ query: "..." }) to search',
    see_servers="Use mcp_discover({}) to see available servers.",
    search='Use mcp_discover({ query: "..." }) to search.',
    connect='Use mcp_provision({{ intent: "{server}", autoProvision: true }}) to retry.',
    instructions='mcp_discover({{ instructions: "{server}" }}) for all of them',
    learn='Use mcp_provision({ intent: "name", autoProvision: true }) to ask one what it has.',
    mend=(
        'Use mcp_provision({{ intent: "{server}", autoProvision: true }}) to try again; '
        "greenroom explain {server} says more."
    ),
    call='mcp_call({{ tool: "{tool}" }})',
    page='mcp_discover({{ output: "{output}", offset: {offset} }})',
)

FOR_PEOPLE: Final = Hints(
    overview="greenroom tools NAME to list tools, greenroom search WORDS to search",
    see_servers="Use greenroom status to see the configured servers.",
    search="Use greenroom search WORDS to search.",
    connect="Use greenroom reconnect {server} to connect it in a running gateway.",
    instructions='a client\'s mcp({{ instructions: "{server}" }}) has all of them',
    learn="Use greenroom refresh to start them once and read what they have.",
    mend="Use greenroom explain {server} to see why, and greenroom refresh {server} to try again.",
)
