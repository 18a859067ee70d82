"""A release in a repository of its own, and what keeps it from being one; and the hooks before a commit.

Building and trying what was built is played here. CI does it in earnest (`make release`, with `--rehearse`).
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from tools.bundle import write as write_bundle
from tools.installed import TrialFailed, use_of
from tools.release import ReleaseRefused, release

ROOT = Path(__file__).resolve().parents[2]
NEWS = "### Added\n\n- Something new.\n"
CHANGELOG = f"# Changelog\n\n## [Unreleased]\n\n{NEWS}"


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with what a release writes to, and one release."""
    root = tmp_path / "repository"
    (root / "protocol").mkdir(parents=True)
    (root / "protocol/version.py").write_text('"""The version."""\n\nVERSION = "1.1.0"\n')
    (root / "CHANGELOG.md").write_text(
        f"{CHANGELOG}\n## [1.1.0] - 2026-01-01\n\n### Added\n\n- Something old.\n"
    )
    (root / ".gitignore").write_text(".build/\n")
    git(root, "init", "--quiet")
    for key, value in (("user.name", "Ada"), ("user.email", "ada@example.com")):
        git(root, "config", key, value)
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "Begin")
    git(root, "tag", "v1.1.0")
    return root


def played(tree: Path, dist: Path, version: str) -> list[Path]:
    """In place of building: a file that says what would have been built."""
    wheel = dist / f"greenroom-{version}.whl"
    wheel.write_text((tree / "protocol/version.py").read_text())
    return [wheel]


def state(root: Path) -> tuple[str, ...]:
    return tuple(
        git(root, *words.split())
        for words in ("rev-parse HEAD", "tag", "status --porcelain", "worktree list")
    )


def test_a_release_is_a_commit_a_section_a_tag_and_what_was_built(repository: Path) -> None:
    [wheel] = release(repository, "1.2.0", played)

    assert git(repository, "log", "--format=%s") == "Release 1.2.0\nBegin\n"
    assert 'VERSION = "1.2.0"' in (repository / "protocol/version.py").read_text()
    changelog = (repository / "CHANGELOG.md").read_text()
    date = git(repository, "log", "-1", "--format=%cs").strip()
    assert f"## [Unreleased]\n\n## [1.2.0] - {date}\n\n{NEWS}\n## [1.1.0] - 2026-01-01\n" in changelog
    assert (
        git(repository, "tag", "--list", "v1.2.0", "--format=%(contents)").strip()
        == f"1.2.0\n\n{NEWS}".strip()
    )
    assert git(repository, "rev-parse", "v1.2.0^{}") == git(repository, "rev-parse", "HEAD")
    assert wheel.parent == repository / ".build/release"
    assert 'VERSION = "1.2.0"' in wheel.read_text()
    assert git(repository, "status", "--porcelain") == ""


def test_what_cannot_be_built_or_does_not_work_leaves_no_release(repository: Path) -> None:
    before = state(repository)

    def fails(tree: Path, dist: Path, version: str) -> list[Path]:
        raise ReleaseRefused("the demo failed")

    with pytest.raises(ReleaseRefused, match="the demo failed"):
        release(repository, "1.2.0", fails)
    assert state(repository) == before


@pytest.mark.parametrize(
    ("version", "why"),
    [
        ("1.1.0", "a tag v1.1.0 already"),
        ("1.0.9", "not newer than 1.1.0"),
        ("next", "no version: write it as 1.2.3"),
        ("1.2", "no version"),
        ("1.2.0rc1", "no version"),
    ],
)
def test_a_version_that_is_none_or_is_not_new_is_refused(repository: Path, version: str, why: str) -> None:
    with pytest.raises(ReleaseRefused, match=why):
        release(repository, version, played)


@pytest.mark.parametrize(
    ("file", "text", "why"),
    [("new.py", "", "new.py"), ("CHANGELOG.md", "mine", "not committed")],
)
def test_a_tree_with_something_uncommitted_is_refused(
    repository: Path, file: str, text: str, why: str
) -> None:
    (repository / file).write_text(text)

    with pytest.raises(ReleaseRefused, match=why):
        release(repository, "1.2.0", played)
    assert (repository / file).read_text() == text


def test_this_tree_has_what_a_release_writes_to() -> None:
    assert (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").count("## [Unreleased]\n") == 1
    assert (ROOT / "protocol/version.py").read_text(encoding="utf-8").count("\nVERSION = ") == 1


# ---- before a commit -------------------------------------------------------------------------------------------------

HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook["id"])
def test_a_hook_runs_as_it_is_written(hook: dict[str, object], tmp_path: Path) -> None:
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text('"""A module."""\n')
    bad.write_text("import os,sys\n")

    program, *words = shlex.split(str(hook["entry"]).replace(".venv/bin", str(Path(sys.executable).parent)))

    def status(file: Path) -> int:
        check = ("--check",) if hook["id"] == "ruff-format" else ()  # without it, it mends the file
        return subprocess.run([program, *words, *check, file], cwd=ROOT, capture_output=True).returncode

    if hook.get("pass_filenames", True):
        assert (status(good), status(bad)) == (0, 1)
    else:  # it looks at the whole tree, as a test of its own does
        assert words[0] == "-m"
        assert (ROOT / "tools" / f"{words[1].removeprefix('tools.')}.py").is_file()


def test_each_extra_has_something_that_is_tried_with_it_alone() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for extra in project["optional-dependencies"]:
        use_of(extra)  # raises where there is nothing
    with pytest.raises(TrialFailed, match="has no trial"):
        use_of("nothing")


def test_the_registry_knows_the_package_by_readme(tmp_path: Path) -> None:
    write_bundle(ROOT, tmp_path, "1.2.3")

    entry = json.loads((tmp_path / "server.json").read_text())
    assert f"mcp-name: {entry['name']} " in (ROOT / "README.md").read_text()
    assert len(entry["description"]) <= 100  # the registry takes no more
    assert entry["version"] == entry["packages"][0]["version"] == "1.2.3"
