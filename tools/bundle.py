"""What a release has beside wheel and sdist: files by which others find it, install it and look at it.

* `greenroom-VERSION.mcpb`: a bundle (MCPB 0.4, `uv`) that a client such as Claude Desktop installs by a double click.
  It starts `greenroom attach`, so all clients of the user share one room.
* `server.json`: the entry of the MCP registry, which leads to the package on the index.
* `grafana-metrics.json`, `grafana-otlp.json`: dashboards for `/metrics`, and for the durations of `serve --otlp`. Their
  metrics are named from the code that makes them, so a renamed one cannot be missed here.

Each is written from what the project says of itself in `pyproject.toml`. `tools.installed` tries them.

Rejected: a bundle with all packages inside. It would be one for each system and Python, and 40 MB.
"""

from __future__ import annotations

import json
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from greenroom.observe import metrics
from greenroom.observe.tracing import DURATIONS

NAME: Final = (
    "dev.greenroom/greenroom"  # in the registry; README says it, too, which is how the registry knows us
)
_SCHEMA: Final = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"
_STARTER: Final = """\
import sys

from greenroom.__main__ import main

sys.argv[1:] = ["attach"]
main()
"""


def write(root: Path, dist: Path, version: str) -> list[Path]:
    """Write all of them into `dist`, for `version` of the project at `root`. Returns the files."""
    project: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bundle = dist / f"greenroom-{version}.mcpb"
    with zipfile.ZipFile(bundle, "w", zipfile.ZIP_DEFLATED) as files:
        files.writestr("manifest.json", _json(manifest(project, version)))
        files.writestr("pyproject.toml", _bundled_project(project, version))
        files.writestr("server.py", _STARTER)
        files.write(root / "install" / "icon.png", "icon.png")
    documents = {
        "server.json": registry_entry(project, version),
        "grafana-metrics.json": dashboard("Greenroom", metrics_panels()),
        "grafana-otlp.json": dashboard("Greenroom, OTLP", duration_panels()),
    }
    for name, document in documents.items():
        (dist / name).write_text(_json(document), encoding="utf-8")
    return [bundle, *(dist / name for name in documents)]


def manifest(project: dict[str, Any], version: str) -> dict[str, Any]:
    """The manifest of the bundle, by version 0.4 of the specification of MCPB."""
    return {
        "manifest_version": "0.4",
        "name": "greenroom",
        "display_name": "Greenroom",
        "version": version,
        "description": project["description"],
        "long_description": "One process of each MCP server for all your clients, from ~/.config/greenroom/mcp.json: "
        "started when a tool is called, stopped when idle, started again when it crashes.",
        "author": {"name": "The Greenroom authors"},
        "license": project["license"],
        "keywords": project["keywords"],
        "icon": "icon.png",
        "server": {
            "type": "uv",
            "entry_point": "server.py",
            "mcp_config": {"command": "uv", "args": ["run", "--directory", "${__dirname}", "server.py"]},
        },
        "tools_generated": True,
        "prompts_generated": True,
        "compatibility": {
            "platforms": ["darwin", "linux"],
            "runtimes": {"python": project["requires-python"]},
        },
    }


def _bundled_project(project: dict[str, Any], version: str) -> str:
    return (
        f'[project]\nname = "greenroom-bundle"\nversion = "{version}"\n'
        f'requires-python = "{project["requires-python"]}"\ndependencies = ["greenroom=={version}"]\n'
    )


def registry_entry(project: dict[str, Any], version: str) -> dict[str, Any]:
    """The entry of the MCP registry. Its description has a hundred characters at most."""
    return {
        "$schema": _SCHEMA,
        "name": NAME,
        "title": "Greenroom",
        "description": project["description"].partition(":")[0],
        "version": version,
        "packages": [
            {
                "registryType": "pypi",
                "identifier": project["name"],
                "version": version,
                "runtimeHint": "uvx",
                "transport": {"type": "stdio"},
                "packageArguments": [{"type": "positional", "value": "serve"}],
            }
        ],
    }


def _rate(metric: metrics.MetricName, by: str, *, only: str = "") -> str:
    return f"sum by ({by}) (rate({metric.exported}{only}[$__rate_interval]))"


def _quantile(exported: str, by: str, part: float = 0.95) -> str:
    return f"histogram_quantile({part}, sum by (le, {by}) (rate({exported}_bucket[$__rate_interval])))"


def metrics_panels() -> Iterator[dict[str, Any]]:
    """What one looks at: calls, how they end, how long they take and wait, servers, slots, refusals."""
    yield _panel("Calls a second", _rate(metrics.CALLS, "server"), "{{server}}")
    yield _panel(
        "Calls that ended otherwise than with a result",
        _rate(metrics.CALLS, "outcome", only='{outcome!="result"}'),
        "{{outcome}}",
    )
    yield _panel("A call takes (95 %)", _quantile(metrics.CALL_SECONDS.exported, "server"), "{{server}}", "s")
    yield _panel("A call waits (95 %)", _quantile(metrics.WAIT_SECONDS.exported, "server"), "{{server}}", "s")
    yield _panel("Refused calls a second", _rate(metrics.REFUSED, "code"), "{{code}}")
    yield _panel("In flight", f"sum by (server) ({metrics.IN_FLIGHT.exported})", "{{server}}")
    yield _panel("Queued", f"sum by (server) ({metrics.QUEUED.exported})", "{{server}}")
    yield _panel("Connections by state", f"sum by (state) ({metrics.CONNECTIONS.exported})", "{{state}}")
    yield _panel("Breakers that are open", f"{metrics.BREAKER_OPEN.exported} > 0", "{{server}}")
    yield _panel("Restarts", f"sum by (server) (increase({metrics.RESTARTS.exported}[1h]))", "{{server}}")
    yield _panel("Endings by cause", _rate(metrics.ENDINGS, "cause"), "{{cause}}")
    yield _panel(
        "Slots in use",
        f"{metrics.POOL_HELD.exported} / {metrics.POOL_SLOTS.exported}",
        "shared",
        "percentunit",
    )
    yield _panel("Waiting for a slot", metrics.POOL_WAITING.exported, "waiting")
    yield _panel("HTTP sessions", metrics.SESSIONS.exported, "sessions")


# What durations of clients are told apart by; those of servers by their server.
_TOLD_APART: Final = {
    "mcp.server.operation.duration": "mcp_method_name",
    "mcp.server.session.duration": "network_transport",
}


def duration_panels() -> Iterator[dict[str, Any]]:
    """The durations of the semantic conventions, under the names that a collector gives them for Prometheus."""
    for name, said in DURATIONS.items():
        exported = f"{name.replace('.', '_')}_seconds"
        by = _TOLD_APART.get(name, "greenroom_server")
        yield _panel(f"{said.rstrip('.')} (95 %)", _quantile(exported, by), f"{{{{{by}}}}}", "s")
        yield _panel(
            f"{name}: how many a second",
            f"sum by ({by}) (rate({exported}_count[$__rate_interval]))",
            f"{{{{{by}}}}}",
        )


def _panel(title: str, query: str, legend: str, unit: str = "short") -> dict[str, Any]:
    return {
        "title": title,
        "type": "timeseries",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [{"refId": "A", "expr": query, "legendFormat": legend}],
    }


def dashboard(title: str, panels: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """A dashboard of Grafana, two panels a row, that asks for its source of data when it is imported."""
    width, height = 12, 8
    placed = [
        panel
        | {
            "id": number + 1,
            "gridPos": {"x": number % 2 * width, "y": number // 2 * height, "w": width, "h": height},
        }
        for number, panel in enumerate(panels)
    ]
    return {
        "title": title,
        "uid": title.lower().replace(", ", "-"),
        "schemaVersion": 39,
        "tags": ["mcp", "greenroom"],
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}]},
        "panels": placed,
    }


def _json(document: Any) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
