"""Whether an installed package is the one that `npx` would start, told from what npm has written."""

from __future__ import annotations

from typing import Any

from tests.support.rows import for_each

from greenroom.actors.transports.npx_request import (
    Folders,
    NpxRequest,
    folders,
    wanted,
)


def asked(spec: str) -> NpxRequest:
    found = wanted("npx", ["-y", spec])
    assert found is not None
    return found


MANIFEST = {"name": "pkg", "version": "1.2.3"}


def folder(*specs: str) -> dict[str, Any]:
    return {"_npx": {"packages": [*specs]}}


def lock(version: str, name: str = "pkg") -> dict[str, Any]:
    return {"packages": {f"node_modules/{name}": {"version": version}}}


@for_each(
    ("spec", "made_for", "locked", "manifest", "is_ready"),
    [
        ("pkg", folder("pkg"), lock("1.2.3"), MANIFEST, True),
        ("pkg@1.2.3", folder("pkg@1.2.3"), lock("1.2.3"), MANIFEST, True),
        ("pkg@^1", folder("pkg@^1"), lock("1.2.3"), MANIFEST, True),
        ("pkg", folder("pkg@1.2.3"), lock("1.2.3"), MANIFEST, False),
        ("pkg", folder("pkg", "more"), lock("1.2.3"), MANIFEST, False),
        ("pkg", folder(), lock("1.2.3"), MANIFEST, False),
        ("pkg", {"_npx": {"packages": "pkg"}}, lock("1.2.3"), MANIFEST, False),
        ("pkg", None, lock("1.2.3"), MANIFEST, False),
        ("pkg", folder("pkg"), None, MANIFEST, False),
        ("pkg", folder("pkg"), {"packages": {}}, MANIFEST, False),
        ("pkg", folder("pkg"), lock("1.2.4"), MANIFEST, False),
        ("pkg", folder("pkg"), lock("1.2.3", "other"), MANIFEST, False),
        ("pkg", folder("pkg"), lock("1.2.3"), {**MANIFEST, "name": "other"}, False),
        ("pkg@1.2.4", folder("pkg@1.2.4"), lock("1.2.3"), MANIFEST, False),
        ("pkg", folder("pkg"), {"packages": {"node_modules/pkg": {}}}, {"name": "pkg"}, False),
    ],
)
def test_an_install_is_ready_if_it_was_made_for_these_words_and_finished(
    spec: str, made_for: Any, locked: Any, manifest: Any, is_ready: bool
) -> None:
    assert asked(spec).is_installed_for(made_for, locked, manifest) is is_ready


@for_each(
    ("spec", "manifest", "is_same"),
    [
        ("pkg", MANIFEST, True),
        ("pkg@1.2.3", MANIFEST, True),
        ("pkg@=1.2.3", MANIFEST, True),
        ("pkg@1.2.3+build", MANIFEST, True),
        ("pkg@1.2.3", {**MANIFEST, "version": "1.2.3+build.7"}, True),
        ("pkg@1.2.3", {**MANIFEST, "version": "1.2.3-rc.1"}, False),
        ("pkg@1.2.3-rc.1", {**MANIFEST, "version": "1.2.3-rc.1"}, True),
        ("pkg@1.2.30", MANIFEST, False),
        ("pkg", {"name": "pkg"}, False),
        ("pkg", {"name": "pkg", "version": 1}, False),
        ("pkg", {"version": "1.2.3"}, False),
        ("pkg", {**MANIFEST, "name": "@a/pkg"}, False),
        ("pkg", [], False),
        ("@a/pkg", {**MANIFEST, "name": "@a/pkg"}, True),
    ],
)
def test_a_package_is_the_one_that_is_asked_for_in_that_version(
    spec: str, manifest: Any, is_same: bool
) -> None:
    assert asked(spec).is_in(manifest) is is_same


@for_each(
    ("spec", "package", "version", "is_bare"),
    [
        ("pkg", "pkg", None, True),
        ("pkg@latest", "pkg", None, False),
        ("pkg@1", "pkg", None, False),
        ("pkg@1.2.3", "pkg", "1.2.3", False),
        ("@a/b", "@a/b", None, True),
        ("@a/b@~2.0", "@a/b", None, False),
        ("@a/b@v2.0.0", "@a/b", "2.0.0", False),
    ],
)
def test_a_version_is_exact_or_npms_to_choose(
    spec: str, package: str, version: str | None, is_bare: bool
) -> None:
    found = asked(spec)
    assert (found.spec, found.package, found.version, found.is_bare) == (spec, package, version, is_bare)
    assert len(found.folder) == 16
    assert found.folder != asked(f"{spec}-x").folder


SAFE = ["cache", "loglevel", "progress", "fund", "audit", "update_notifier", "yes", "color"]
CHANGES = ["node-options", "script_shell", "package", "call", "global", "workspaces"]


@for_each("name", CHANGES)
def test_what_changes_what_npm_starts_is_left_to_npm(name: str) -> None:
    assert folders({}, f"{name}=x") is None
    assert folders({}, f"{name.replace('_', '-').upper()} = x\n") is None
    assert folders({}, f"; {name}=x\n# {name}=x\n//{name}=x\n{name}") == Folders("~/.npm", None)


@for_each("name", SAFE)
def test_what_changes_nothing_of_it_may_be_set_in_the_environment(name: str) -> None:
    found = folders({f"npm_config_{name.replace('_', '-')}": "/x", "OTHER": "y"}, "")
    assert found == Folders("/x" if name == "cache" else "~/.npm", None)
    assert folders({"npm_config_userconfig": "/x"}, "") is None
    assert folders({"npm_config_prefix": "/x"}, "") is None


@for_each(
    ("environment", "config", "found"),
    [
        ({}, "", Folders("~/.npm", None)),
        ({}, "cache=", Folders("~/.npm", None)),
        ({}, "cache = '/a b'\nprefix=\"~/g\"", Folders("/a b", "~/g")),
        ({}, "prefix=$HOME/g", None),
        ({}, "cache=$HOME/g", None),
        ({"npm_config_cache": ""}, "cache=/b", Folders("~/.npm", None)),
        ({"Npm_Config_Cache": "/c"}, "cache=/b\nprefix=/g", Folders("/c", "/g")),
        ({}, "registry=http://h/$x", Folders("~/.npm", None)),
    ],
)
def test_where_npm_keeps_things_is_what_it_is_told_last(
    environment: dict[str, str], config: str, found: Folders | None
) -> None:
    assert folders(environment, config) == found
