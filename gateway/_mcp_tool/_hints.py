"""The next step, in words for the reader of an answer.

Two kinds of readers get the same answers: a model, which can call `mcp(...)`, and a person at a shell, who
can type `greenroom …`. The facts are the same; only these sentences differ.
"""

from __future__ import annotations

from typing import Final

import attrs


@attrs.frozen
class Hints:
    """Each hint completes a message. `{server}` is filled in."""

    overview: str
    see_servers: str
    search: str
    connect: str
    instructions: str
    learn: str  # what to do about servers of which nothing is known

    def to_connect(self, server: str) -> str:
        return self.connect.format(server=server)


FOR_MODELS: Final = Hints(
    overview='mcp({ server: "name" }) to list tools, mcp({ search: "..." }) to search',
    see_servers="Use mcp({}) to see available servers.",
    search='Use mcp({ search: "..." }) to search.',
    connect='Use mcp({{ connect: "{server}" }}) or greenroom reconnect {server} to retry.',
    instructions='mcp({{ instructions: "{server}" }}) for all of them',
    learn='Use mcp({ connect: "name" }) to ask one what it has.',
)

FOR_PEOPLE: Final = Hints(
    overview="greenroom tools NAME to list tools, greenroom search WORDS to search",
    see_servers="Use greenroom status to see the configured servers.",
    search="Use greenroom search WORDS to search.",
    connect="Use greenroom reconnect {server} to connect it in a running gateway.",
    instructions='a client\'s mcp({{ instructions: "{server}" }}) has all of them',
    learn="Use greenroom refresh to start them once and read what they have.",
)
