"""The connector of a server some of whose values stand in no file of ours: it asks for them before each start.

They are the variables of an `envFile`, the output of commands, and entries of the keyring. Each is asked for when an
incarnation opens, is told to the known secrets, so that no text shows it, and is kept nowhere else. A variable of the
file gives way to one of the same name in `env`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import attrs

from ..actors import Connector, LostReason, connect_failed
from ..protocol.asked import command_in, keyring_in, with_answer
from ..protocol.config import ServerDefinition
from ..protocol.interpolate import header_problem
from ..protocol.secrets import Hidden, KnownSecrets

if TYPE_CHECKING:
    from ..actors import Connection, PeerHooks


@attrs.frozen
class AskingConnector:
    """`asked`: attribute, place in it, and text of each value. `limit`: seconds for one command or entry."""

    reach: Callable[[ServerDefinition], Connector]  # for the complete definition
    definition: ServerDefinition  # complete but for these values
    asked: tuple[tuple[str, str | int, str], ...]
    limit: float
    secrets: KnownSecrets
    session: str | None

    @asynccontextmanager
    async def open(self, hooks: PeerHooks) -> AsyncGenerator[Connection]:
        """Ask, then start the other side. Raises `ConnectFailed` also when a value cannot be had."""
        definition = await self._complete()
        async with self.reach(definition).open(hooks) as connection:
            yield connection

    async def _complete(self) -> ServerDefinition:
        variables = await self._variables()
        answers = await self._answers()
        name = self.definition.name
        hidden = (
            *(Hidden(variable, value) for variable, value in variables.items()),
            *(
                Hidden(str(place), said, known=True)
                for (_, place, _), said in zip(self.asked, answers, strict=True)
            ),
        )
        self.secrets.answered(name, hidden, self.session)
        changed: dict[str, Any] = {
            "args": [*self.definition.args],
            "env": {**variables, **self.definition.env},
            "headers": {**self.definition.headers},
        }
        for (attribute, place, text), said in zip(self.asked, answers, strict=True):
            value = with_answer(text, said)
            if attribute == "headers" and (wrong := header_problem(str(place), value)) is not None:
                source = "a command gives" if command_in(text) is not None else "the keyring keeps"
                raise connect_failed(name, LostReason(f"headers.{place}, which {source}: {wrong}"))
            changed[attribute][place] = value
        return attrs.evolve(self.definition, **{**changed, "args": tuple(changed["args"])})

    async def _variables(self) -> Mapping[str, str]:
        """Those of the `envFile`."""
        file = self.definition.env_file
        if file is None:
            return {}
        from ..actors.env_file import variables_in

        definition = self.definition
        return await anyio.to_thread.run_sync(variables_in, file, definition.name, definition.env_file_asked)

    async def _answers(self) -> list[str]:
        """What the commands and the keyring say, in the order of `asked`."""
        name = self.definition.name
        places = {text: f"{attribute}.{place}" for attribute, place, text in reversed(self.asked)}
        commands = {text: said for text in places if (said := command_in(text)) is not None}
        entries = {text: said for text in places if (said := keyring_in(text)) is not None}
        said, kept = dict[str, str](), dict[tuple[str, str], str]()
        if commands:
            from ..actors.secret_commands import Asked, answers

            asked = [Asked(command, places[text]) for text, command in commands.items()]
            said = await answers(name, asked, self.limit)
        if entries:
            from ..actors.secret_keyring import Entry
            from ..actors.secret_keyring import kept as kept_in_keyring

            wanted = [Entry(*entry, places[text]) for text, entry in entries.items()]
            kept = await kept_in_keyring(name, wanted, self.limit)
        return [
            said[commands[text]] if text in commands else kept[entries[text]] for _, _, text in self.asked
        ]
