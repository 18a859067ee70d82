"""The dashboards for Grafana that a release has ask for what is measured, by what it has."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.gateway.test_conversations import talking
from tests.support import in_virtual_time
from tests.support.rooms import open_room
from tests.support.traced import Telemetry
from tools.bundle import duration_panels, metrics_panels
from tools.bundle import write as write_bundle

from greenroom.observe.metrics import METRICS
from greenroom.observe.tracing import DURATIONS
from greenroom.testing.fake_servers import FakeServer, tool

ROOT = Path(__file__).resolve().parents[2]


def test_what_a_release_has_are_these_dashboards(tmp_path: Path) -> None:
    write_bundle(ROOT, tmp_path, "1.2.3")
    for name, panels in (
        ("grafana-metrics.json", metrics_panels()),
        ("grafana-otlp.json", duration_panels()),
    ):
        written = json.loads((tmp_path / name).read_text())["panels"]
        assert [each["targets"] for each in written] == [each["targets"] for each in panels]
        assert {each["datasource"]["uid"] for each in written} == {"${datasource}"}


def test_dashboards_ask_each_metric_for_what_it_has() -> None:
    for panel in metrics_panels():
        query, legend = panel["targets"][0]["expr"], panel["targets"][0]["legendFormat"]
        for name, matchers in re.findall(r"(greenroom_\w+)(?:{(.*?)})?", query):
            metric = next(each for each in METRICS if each.exported == name.removesuffix("_bucket"))
            assert name.endswith("_bucket") == (metric.kind == "histogram"), query
            assert ("rate(" in query or "increase(" in query) == (metric.kind != "gauge"), query
            asked = {label for label in _labels_by(query) if label != "le"}
            assert asked | set(re.findall(r"(\w+)!?=", matchers)) <= set(metric.labels), query
            shown = set(re.findall(r"{{(\w+)}}", legend))
            assert shown <= (asked or set(metric.labels)), query


@in_virtual_time
async def test_dashboards_ask_each_duration_for_what_it_has() -> None:
    telemetry = Telemetry()
    server = FakeServer([tool("echo")])
    async with (
        open_room({"a": server}, callbacks=telemetry.providers) as room,
        talking(room, "direct") as talk,
    ):
        await room.connect("a")
        async with talk("ann") as ann:
            await ann.ask("tools/call", {"name": "a_echo", "arguments": {}})
        await room.drain("a")
    asked = set[str]()
    for panel in duration_panels():
        query, legend = panel["targets"][0]["expr"], panel["targets"][0]["legendFormat"]
        [exported] = re.findall(r"rate\((\w+)_seconds_(?:bucket|count)", query)
        name = exported.replace("_", ".")
        points = telemetry.durations(name)
        assert points, name
        for attributes, _ in points:
            had = {each.replace(".", "_") for each in attributes}
            assert {label for label in _labels_by(query) if label != "le"} <= had, query
        assert re.findall(r"{{(\w+)}}", legend) == [each for each in _labels_by(query) if each != "le"]
        asked.add(name)
    assert asked == set(DURATIONS)


def _labels_by(query: str) -> list[str]:
    return [label for labels in re.findall(r"by \((.*?)\)", query) for label in labels.split(", ")]
