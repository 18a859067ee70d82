"""The manifest in docs/cluster-kubernetes.md: it is YAML, its parts fit together, and the front's command is one of
ours. It was held against the schemas of KubeRay and Kubernetes when it was written."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import yaml

from greenroom.cli.serve_command import serve_command

PAGE = Path(__file__).parents[2] / "docs" / "cluster-kubernetes.md"
# What KubeRay requires of each group of workers.
REQUIRED = {"groupName", "maxReplicas", "minReplicas", "template"}


def manifests() -> list[Any]:
    found = re.search(r"^```yaml\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert found is not None
    return list(yaml.safe_load_all(found[1]))


def environment(template: Any) -> dict[str, Any]:
    (container,) = template["spec"]["containers"]
    return {one["name"]: one.get("value") or one["valueFrom"] for one in container["env"]}


def test_the_parts_of_the_manifest_fit_together() -> None:
    cluster, front = manifests()
    (workers,) = cluster["spec"]["workerGroupSpecs"]
    assert workers.keys() >= REQUIRED
    head = cluster["spec"]["headGroupSpec"]
    assert head["rayStartParams"]["num-cpus"] == "0", "no host on the head"
    pods = (head["template"], workers["template"], front["spec"]["template"])
    tokens = [environment(pod)["RAY_AUTH_TOKEN"] for pod in pods]
    assert tokens == tokens[:1] * 3
    assert {environment(pod)["RAY_AUTH_MODE"] for pod in pods} == {"token"}
    labels = front["spec"]["template"]["metadata"]["labels"]
    assert front["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_the_front_of_the_manifest_is_a_command_and_finds_the_head() -> None:
    cluster, front = manifests()
    (container,) = front["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["sh", "-c"]
    (script,) = container["args"]
    joins, _, serves = script.partition(" && exec ")
    service = f"{cluster['metadata']['name']}-head-svc:6379"  # as KubeRay calls it
    assert joins == f"ray start --address={service} --num-cpus=0"
    program, command, *options = shlex.split(serves)
    assert (program, command) == ("greenroom", "serve")
    given = serve_command.read(options)
    assert given is not None
    assert given["ray"] == service
