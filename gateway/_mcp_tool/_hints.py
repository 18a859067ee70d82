"""The next step, in words for the reader of an answer.

Three kinds of readers get the same answers: a model that can call `mcp(...)`, a model that can call the tools of the
exposure `meta`, and a person at a shell, who can type `greenroom …`. The facts are the same; only these sentences
differ.
"""

from __future__ import annotations

from typing import Final

import attrs

from ...protocol.plain_text import typed


@attrs.frozen
class Hints:
    """Each hint completes a message. `{server}`, `{typed}` (the server, for a shell), `{tool}`, `{output}` and
    `{offset}` are filled in."""

    overview: str
    see_servers: str
    search: str
    connect: str
    instructions: str
    learn: str  # what to do about servers of which nothing is known
    mend: str  # and about one that failed
    log_in: str = "To log in: greenroom auth {typed}"
    call: str = 'mcp({{ tool: "{tool}" }})'
    more: str = "offset: {offset} for more"  # below a list
    page: str = 'mcp({{ output: "{output}", offset: {offset} }})'  # the next part of a long text
    stands_alone: bool = False  # each step is a line of its own, behind all facts, so that it can be copied

    @property
    def between(self) -> str:
        """What stands before a step."""
        return "\n" if self.stands_alone else " "

    def with_step(self, text: str, step: str, more: str = "") -> str:
        """A message with a step, and what else is to be said."""
        return f"{text}{more}\n{step}" if self.stands_alone else f"{text} {step}{more}"

    def to_connect(self, server: str) -> str:
        return self.connect.format(server=server, typed=typed(server))

    def to_mend(self, server: str) -> str:
        return self.mend.format(server=server, typed=typed(server))

    def to_log_in(self, server: str) -> str:
        return self.log_in.format(server=server, typed=typed(server))

    def to_call(self, tool: str) -> str:
        return self.call.format(tool=tool)

    def for_more(self, offset: int) -> str:
        return self.more.format(offset=offset)

    def next_page(self, output: str, offset: int) -> str:
        return self.page.format(output=output, offset=offset)


FOR_MODELS: Final = Hints(
    overview='mcp({ server: "name" }) to list tools, mcp({ search: "..." }) to search',
    see_servers="Use mcp({}) to see available servers.",
    search='Use mcp({ search: "..." }) to search.',
    connect='Use mcp({{ connect: "{server}" }}) or greenroom reconnect {typed} to retry.',
    instructions='mcp({{ instructions: "{server}" }}) for all of them',
    learn='Use mcp({ connect: "name" }) to ask one what it has.',
    mend='Use mcp({{ connect: "{server}" }}) to try again; `greenroom explain {typed}` says more.',
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
        "`greenroom explain {typed}` says more."
    ),
    call='mcp_call({{ tool: "{tool}" }})',
    page='mcp_discover({{ output: "{output}", offset: {offset} }})',
)

FOR_PEOPLE: Final = Hints(
    overview="`greenroom tools NAME` lists tools, `greenroom search WORDS` finds them",
    see_servers="To see the configured servers: greenroom status",
    search="To find one: greenroom search WORDS",
    connect="To ask it what it has: greenroom refresh {typed}",
    instructions='a client\'s mcp({{ instructions: "{server}" }}) has all of them',
    learn="To start them once and read what they have: greenroom refresh",
    mend="To try again: `greenroom refresh {typed}`. To see why: greenroom explain {typed}",
    more="add --offset {offset} for more",
    stands_alone=True,
)
