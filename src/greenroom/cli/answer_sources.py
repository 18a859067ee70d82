"""Where a command's answers come from.

A `Source` is a running gateway of the same configuration, or else the cache. Both give answers of the same
form, so a command need not know which it is. A line on stderr tells it to the person.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import asdict, replace

from ..gateway.next_steps import Commands
from .config_reading import read_config
from .missing_servers import say_if_none
from .printing import say, say_at_terminal
from .running_gateways import running_gateway, say_elsewhere

if TYPE_CHECKING:
    from ..config.model import Config
    from ..gateway.doors import control_client as control
    from ..gateway.exposures.query_modes import CatalogueReader
    from ..gateway.offline_catalogue import OfflineCatalogue


class Source(Protocol):
    """Where the answers come from. `origin` names it, for `--json`."""

    origin: Mapping[str, Any]

    def status(self) -> dict[str, Any]: ...

    def explain(self, server: str, commands: Commands) -> dict[str, Any]:
        """What `explained` says of this server."""
        ...

    def tools(self, server: str | None) -> dict[str, Any]: ...

    def tree(self) -> dict[str, Any]:
        """The room as `tree`, a `TreeNode` in JSON."""
        ...

    def look(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The result of a request to the `mcp` tool that only looks."""
        ...


class GatewaySource:
    def __init__(self, gateway: control.Gateway) -> None:
        self._gateway = gateway
        self.origin: Mapping[str, Any] = {"source": "gateway", "pid": gateway.pid}

    def status(self) -> dict[str, Any]:
        return self._gateway.ask("status", quickly=True)

    def explain(self, server: str, commands: Commands) -> dict[str, Any]:
        return self._gateway.ask("explain", quickly=True, server=server, **asdict(commands))

    def tools(self, server: str | None) -> dict[str, Any]:
        return self._gateway.ask("tools", quickly=True, server=server)

    def tree(self) -> dict[str, Any]:
        return self._gateway.ask("tree", quickly=True)

    def look(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return self._gateway.ask("mcp", arguments=dict(arguments))


class CacheSource:
    def __init__(
        self, catalogue: OfflineCatalogue, reader: CatalogueReader, origin: Mapping[str, Any]
    ) -> None:
        self._catalogue = catalogue
        self._reader = reader
        self.origin = origin

    def status(self) -> dict[str, Any]:
        from ..gateway.json_views import status_view

        return status_view(self._catalogue)

    def explain(self, server: str, commands: Commands) -> dict[str, Any]:
        from ..gateway.explain import explained

        return explained(self.status(), self._catalogue.config, server, commands, runs=False)

    def tools(self, server: str | None) -> dict[str, Any]:
        from ..gateway.json_views import tools_view

        return tools_view(self._catalogue, server)

    def tree(self) -> dict[str, Any]:
        from ..gateway.json_views import offline_tree_view

        return offline_tree_view(self._catalogue)

    def look(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        from ..catalogue.meaning_model import Unusable
        from ..gateway.exposures.tool_definition import Mode, parse_request

        request = parse_request(arguments)
        if request.mode is Mode.SEARCH and not request.regex:
            try:
                request = replace(request, near=self._catalogue.near(request.subject))
            except Unusable as error:
                say(f"tools are found by their words alone: {error}")
        return self._reader.answer(request).as_result()


def open_source(path: Path | None, pid: int | None, config: Config | None = None) -> Source:
    """The running gateway of this configuration, or else the cache; then a line on stderr says so. `config`: if it has
    been read already."""
    import click

    config = config or read_config(path)
    gateway = running_gateway(config, pid)
    if gateway is not None:
        return GatewaySource(gateway)
    say_at_terminal("no gateway runs for this configuration; this is what the cache knows.", config)
    if click.get_current_context().command.name != "status":  # which says it in its answer
        say_if_none(config)
    return from_cache(config, say_elsewhere(config), warns=True)


def from_cache(
    config: Config, elsewhere: Mapping[str, Any] | None = None, *, warns: bool = False
) -> CacheSource:
    """The cache as a source. `warns`: a line on stderr says if it cannot be read."""
    from ..gateway.exposures.query_modes import CatalogueReader
    from ..gateway.exposures.tool_definition import FOR_PEOPLE
    from ..gateway.offline_catalogue import open_catalogue

    catalogue = open_catalogue(config)
    if warns and catalogue.warning is not None:
        say(catalogue.warning)
    origin = {"source": "cache", **(elsewhere or {})}
    return CacheSource(catalogue, CatalogueReader(catalogue, hints=FOR_PEOPLE), origin)
