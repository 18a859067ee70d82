"""Make a release: `make release VERSION=1.2.3`, or with `ARGS=--rehearse` everything but the last step.

What is released is a commit of its own: the version is written into `protocol/version.py`, and what stands under
*Unreleased* in CHANGELOG.md becomes the section of this version, after what was written for it ahead, if its section
stands there without a date. It is made in a work tree beside this one. There sdist and wheel are built, both are
installed into a fresh environment, what they hold is compared with the repository, and the demo is run with each.
Only when all of that has worked does this branch move to the commit, which gets the tag. So a release that fails
leaves nothing to undo.

Beside them stand a bundle for clients, the registry's entry and dashboards (`tools/bundle.py`). With `--pythons`,
`--extras` and `--runners` all is tried where its users install it (`tools/installed.py`).

Nothing is sent anywhere: the last lines say what to push and what to upload.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from tools.bundle import write as write_bundle
from tools.installed import TrialFailed, environment, try_extras, try_pythons, try_runners
from tools.package_tree import copy_package

ROOT: Final = Path(__file__).resolve().parent.parent
DIST: Final = Path(".build", "release")
VERSION_FILE: Final = Path("protocol", "version.py")
_VERSION: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)")
_SET_VERSION: Final = re.compile(r'^VERSION = "(.*)"$', re.MULTILINE)
_HEADING: Final = "## [Unreleased]\n"

# Builds sdist and wheel of a tree into a folder, and tries both. Returns the files.
Make = Callable[[Path, Path, str], list[Path]]


class _Cut(NamedTuple):
    """A changelog in three: `notes` is what the version's section will say."""

    before: str
    notes: str
    after: str


class ReleaseRefused(Exception):
    """There is no release; the message says why, and what to do."""


def main() -> int:
    """Make the release and say what is left to do. Returns 1 when it was refused or something failed."""
    parser = argparse.ArgumentParser(prog="make release", description="Make a release.")
    parser.add_argument("version", metavar="VERSION", help="the new version, such as 1.2.3")
    parser.add_argument(
        "--rehearse", action="store_true", help="do everything, and keep nothing but the files"
    )
    parser.add_argument(
        "--pythons", action="store_true", help="try the wheel on each Python at hand, 3.11 to 3.14"
    )
    parser.add_argument(
        "--runners", action="store_true", help="try uvx, pipx and the bundle, from a folder of wheels"
    )
    parser.add_argument(
        "--extras",
        nargs="?",
        const="",
        metavar="NAME,…",
        help="try each extra, or these, alone in an environment of its own",
    )
    options = parser.parse_args()

    def make(tree: Path, dist: Path, version: str) -> list[Path]:
        files = build_and_try(tree, dist, version)
        wheel, constraints = files[0], tree / "constraints.txt"
        bundle, *others = write_bundle(tree, dist, version)
        tries: list[Iterator[str]] = [try_pythons(wheel, constraints)] if options.pythons else []
        if options.extras is not None:
            tries.append(try_extras(wheel, [name for name in options.extras.split(",") if name]))
        if options.runners:
            tries.append(try_runners(wheel, bundle, constraints))
        for line in chain.from_iterable(tries):
            print(line, flush=True)
        return [*files, bundle, *others]

    try:
        files = release(ROOT, options.version, make, rehearse=options.rehearse)
    except (ReleaseRefused, TrialFailed) as reason:
        print(f"no release: {reason}", file=sys.stderr)
        return 1
    print(*files, sep="\n")
    if options.rehearse:
        print(f"{options.version} could be released; nothing was committed")
    else:
        print(f"{options.version} is released here. Next: git push origin HEAD v{options.version}")
        print(f"and upload what is in {DIST}.")
    return 0


def release(root: Path, version: str, make: Make, *, rehearse: bool = False) -> list[Path]:
    """Release what `root` has committed. Returns the files that were built. Raises `ReleaseRefused`."""
    check(root, version, rehearse=rehearse)
    with _worktree(root) as tree:
        notes = write_version(tree, version, datetime.datetime.now(datetime.UTC).date().isoformat())
        nobody = ("-c", "user.name=rehearsal", "-c", "user.email=rehearsal@localhost") if rehearse else ()
        _git(tree, *nobody, "commit", "--quiet", "--all", "--message", f"Release {version}")
        commit = _git(tree, "rev-parse", "HEAD").strip()
        dist = root / DIST
        shutil.rmtree(dist, ignore_errors=True)
        dist.mkdir(parents=True)
        files = make(tree, dist, version)
    if not rehearse:
        _git(root, "merge", "--quiet", "--ff-only", commit)
        _git(
            root,
            "tag",
            "--annotate",
            "--cleanup=verbatim",
            f"v{version}",
            "--message",
            f"{version}\n\n{notes}",
        )
    return files


def check(root: Path, version: str, *, rehearse: bool = False) -> None:
    """Raises `ReleaseRefused` unless `version` can be released from `root` as it is. A rehearsal needs nothing new: it
    tries the build, also right after a release."""
    if not _VERSION.fullmatch(version):
        raise ReleaseRefused(f"{version!r} is no version: write it as 1.2.3")
    if changed := _git(root, "status", "--porcelain"):
        raise ReleaseRefused(
            f"these are not committed:\n{changed.rstrip()}\nCommit them, or put them away with `git stash -u`"
        )
    tags = _git(root, "tag", "--list").split()
    if f"v{version}" in tags:
        raise ReleaseRefused(f"there is a tag v{version} already: take the next version")
    present = _version_of(root)
    if _number(version) < _number(present) or (version == present and f"v{present}" in tags):
        raise ReleaseRefused(f"{version} is not newer than {present}")
    if not rehearse and not _cut(_read(root / "CHANGELOG.md"), version).notes:
        raise ReleaseRefused("CHANGELOG.md has nothing under [Unreleased]: say there what is new")


def write_version(root: Path, version: str, date: str) -> str:
    """Write the version into its file and over its section of the changelog. Returns that section."""
    file, changelog = root / VERSION_FILE, root / "CHANGELOG.md"
    file.write_text(_SET_VERSION.sub(f'VERSION = "{version}"', _read(file)), encoding="utf-8")
    before, notes, after = _cut(_read(changelog), version)
    changelog.write_text(
        f"{before}{_HEADING}\n## [{version}] - {date}\n\n{notes}\n\n{after}".rstrip() + "\n", encoding="utf-8"
    )
    return notes + "\n"


def _cut(changelog: str, version: str) -> _Cut:
    """Cut it where the section of `version` begins and ends. Raises `ReleaseRefused` without a heading for what is
    new."""
    before, found, rest = changelog.partition(_HEADING)
    if not found:
        raise ReleaseRefused(f"CHANGELOG.md has no heading {_HEADING.strip()!r}: put it back")
    new, after = _section(rest)
    older, found, rest = after.partition(f"## [{version}]\n")
    if not found:
        return _Cut(before, new, after)
    ahead, after = _section(rest)
    return _Cut(before, f"{ahead}\n\n{new}".strip(), older + after)


def _section(text: str) -> tuple[str, str]:
    """What stands before the next heading of a version, and the rest from there."""
    end = re.search(r"^## ", text, re.MULTILINE)
    return (text[: end.start()].strip(), text[end.start() :]) if end else (text.strip(), "")


def build_and_try(tree: Path, dist: Path, version: str) -> list[Path]:
    """Build both files from `tree`, and use each of them in a fresh environment. Raises `ReleaseRefused` or
    `TrialFailed`."""
    _run([sys.executable, "-m", "build", "--outdir", dist, tree], "sdist and wheel could not be built")
    files = sorted(dist.iterdir())
    if [file.name.removeprefix(f"greenroom-{version}") for file in files] != ["-py3-none-any.whl", ".tar.gz"]:
        raise ReleaseRefused(
            f"built were {', '.join(file.name for file in files)}, and not a wheel and an sdist of {version}"
        )
    for file in files:
        with environment(Path(sys.executable), [str(file)], tree / "constraints.txt") as (python, home):
            _use(python, version, home, file.name)
            _holds_everything(python, tree, home, file.name)
    return files


def _use(python: Path, version: str, folder: Path, name: str) -> None:
    """As its user does, far from this tree."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "PYTHONPATH": ""}
    said = _run([python, "-m", "greenroom", "--version"], f"{name} does not start", folder, environment)
    if version not in said.split():
        raise ReleaseRefused(f"{name} says that it is {said.strip()!r}, and not {version}")
    _run([python.with_name("greenroom"), "demo"], f"the demo of {name} failed", folder, environment)


def _holds_everything(python: Path, tree: Path, folder: Path, name: str) -> None:
    """What was installed has each file of the package, and nothing else: nobody misses a forgotten folder before its
    first import. Raises `ReleaseRefused`."""
    command = [python, "-c", "import greenroom; print(greenroom.__path__[0])"]
    installed = Path(_run(command, f"{name} cannot be imported", folder).strip())
    copy_package(tree, folder / name / "greenroom")
    differs = _files(installed) ^ _files(folder / name / "greenroom")
    if differs:
        raise ReleaseRefused(f"{name} and the repository differ in {', '.join(sorted(differs))}")


def _files(package: Path) -> set[str]:
    files = (file for file in package.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    return {file.relative_to(package).as_posix() for file in files}


@contextmanager
def _worktree(root: Path) -> Generator[Path]:
    """A work tree of what is committed, for as long as the block lasts."""
    with tempfile.TemporaryDirectory(prefix="greenroom-release-") as folder:
        tree = Path(folder, "tree")
        _git(root, "worktree", "add", "--quiet", "--detach", str(tree), "HEAD")
        try:
            yield tree
        finally:
            _git(root, "worktree", "remove", "--force", str(tree))


def _version_of(root: Path) -> str:
    found = _SET_VERSION.search(_read(root / VERSION_FILE))
    if found is None:
        raise ReleaseRefused(f'{VERSION_FILE} has no line VERSION = "…"')
    return found[1]


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _git(folder: Path, *words: str) -> str:
    return _run(["git", *words], f"git {' '.join(words)} failed", folder)


def _run(
    command: list[str | Path],
    failed: str,
    folder: Path | None = None,
    environment: dict[str, str] | None = None,
) -> str:
    """What it prints. Raises `ReleaseRefused`, with what it said, when it fails."""
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise ReleaseRefused(f"{failed}:\n{(done.stdout + done.stderr).strip()}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
