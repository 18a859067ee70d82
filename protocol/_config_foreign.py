"""Keys of other programs that have no effect here, and what is said of them.

A file says it once, however many of its servers have the key, and with what to write instead if there is something.
Nothing is said of keys that only describe a server, nor where a value asks for nothing (`"autoApprove": []`). All of
them are kept as read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from ._config_place import place
from .errors import NO_EFFECT_HERE, Problem

if TYPE_CHECKING:
    from ._config_dialects import Givens

DESCRIBE: Final = frozenset(
    {"description", "gallery", "icon", "icons", "name", "remoteConfigured", "source", "title", "version"}
)
_ASKING: Final = 'here "approve" says which calls a person has to allow; without it none'
_LOGIN: Final = 'write "auth": "oauth", a "bearerToken" or a "requestHeadersCommand"'
_RESTART: Final = "it is not started again when files change; `greenroom reconnect` does that"
NO_EFFECT: Final[Mapping[str, str]] = {
    "alwaysAllow": _ASKING,
    "authProviderType": _LOGIN,
    "autoApprove": _ASKING,
    "baseUrl": 'servers made from an HTTP API are not served; an MCP endpoint goes into "url"',
    "bearerTokenStore": 'write "bearerToken": {"keyring": "service/name"}',
    "criticality": "",
    "debug": "what it writes to stderr is shown when it fails",
    "dev": _RESTART,
    "headersHelper": 'write "requestHeadersCommand"',
    "literalEnv": "variables in its env are expanded",
    "pluginDataDir": "",
    "protocolVersion": 'write "era": "handshake" or "stateless"',
    "required": "a server that fails keeps no other from being served",
    "sandbox": "it runs without a sandbox",
    "sandboxEnabled": "it runs without a sandbox",
    "searchKeywords": 'what is searched are names and descriptions; "toolOverrides" can change those',
    "spec": "servers made from an OpenAPI document are not served",
    "targetAudience": _LOGIN,
    "targetServiceAccount": _LOGIN,
    "timeout": 'clients disagree about its unit; write "requestTimeoutMs"',
    "trace": "`greenroom serve --events FILE` writes all events",
    "trust": _ASKING,
    "watchPaths": _RESTART,
}

# Settings of pi that are about its own screen, or done otherwise here.
_SCREEN: Final = "only for pi's own screen"
_CLIENTS: Final = "what a client can answer decides"
SETTINGS_NO_EFFECT: Final[Mapping[str, str]] = {
    "agentPluginPaths": "",
    "authRequiredMessage": "",
    "autoAuth": "`greenroom auth S` logs in",
    "collapsedResultLines": _SCREEN,
    "disableProxyTool": "`greenroom serve --expose direct` shows no `mcp` tool",
    "elicitation": _CLIENTS,
    "freezeDirectTools": "",
    "hostConfigDiscovery": 'name the programs in "imports"',
    "mcpFooterStatus": _SCREEN,
    "notifyOnStartupConnect": _SCREEN,
    "oauthCredentialStore": "logins in encrypted files are not read",
    "sampling": _CLIENTS,
    "samplingAutoApprove": _CLIENTS,
    "scriptMode": "`greenroom serve --expose meta` has a tool for scripts",
    "showStatusIcon": _SCREEN,
    "toolResultRendering": _SCREEN,
    "trace": "`greenroom serve --events FILE` writes all events",
    "warnOnLargeDirectTools": _SCREEN,
}
_ON_BY_DEFAULT: Final = frozenset({"elicitation", "sampling"})  # whose `false` asks for something
_NAMED: Final = 5  # servers that are named in a line


def foreign_keys(entries: Mapping[str, Givens]) -> Iterable[Problem]:
    """What is said of keys without effect in the entries of servers."""
    groups: dict[tuple[str, str], list[str]] = {}
    for server, entry in entries.items():
        for key in NO_EFFECT.keys() & entry.keys():
            if not _asks_nothing(entry[key].value):
                groups.setdefault((entry[key].source, key), []).append(server)
    for (source, key), servers in sorted(groups.items(), key=lambda group: group[0]):
        advice = f" ({NO_EFFECT[key]})" if NO_EFFECT[key] else ""
        what = f"has no effect here; it is kept as read{advice}"
        given = entries[servers[0]][key]
        if len(servers) == 1:
            yield Problem(given.place(), what, fatal=False, code=NO_EFFECT_HERE)
        else:
            more = f" and {len(servers) - _NAMED} more" if len(servers) > _NAMED else ""
            named = ", ".join(servers[:_NAMED]) + more
            where = place(source, str(given.path[0]))
            yield Problem(where, f'"{given.path[-1]}" of {named}: {what}', fatal=False, code=NO_EFFECT_HERE)


def _asks_nothing(value: Any) -> bool:
    return value in (None, False, "", "off") or value == [] or value == {}


def foreign_settings(merged: Givens) -> Iterable[Problem]:
    """What is said of settings without effect: of all that have the same advice at once."""
    groups: dict[tuple[str, str], list[str]] = {}
    for key, given in merged.items():
        asks_nothing = given.value is True if key in _ON_BY_DEFAULT else _asks_nothing(given.value)
        if key in SETTINGS_NO_EFFECT and not asks_nothing:
            groups.setdefault((given.source, SETTINGS_NO_EFFECT[key]), []).append(key)
    for (_, advice), keys in groups.items():
        then = f": {advice}" if advice else ""
        given = merged[keys[0]]
        if len(keys) == 1:
            yield Problem(given.place(), f"has no effect here{then}", fatal=False)
        else:
            named = ", ".join(f'"{key}"' for key in keys)
            where = place(given.source, *given.path[:-1])
            yield Problem(where, f"{named} have no effect here{then}", fatal=False, code=NO_EFFECT_HERE)
