"""Keeps the docs up to date: what they say is compared with its source.

* The diagrams of `docs/diagrams` are those that the code makes (`tools.diagrams`).
* The pages of `docs/reference` are those that the code makes (`tools.reference`).
* The Python example of README is `examples/embed.py`, word for word (a test runs that file).
* Each example of a test, of a framework and of a web application is shown by a page, word for word (tests and
  `tools.world` run those files).
* `docs/dependencies.md` has one line for each dependency of `pyproject.toml`, and no other.
* Pages for users name no row of a table that is ours alone (`F13`, `B7`, `T05`).
* Code names only documents that are there (`docs/….md`), and pages name only files, folders and modules that are there.
* Relative links in our pages lead to existing files.
* No tracked file names a path of one machine or the host of a package index, and none is a lock file full of addresses.
"""

from __future__ import annotations

import pkgutil
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tools import diagrams
from tools.reference import __main__ as reference
from tools.reference import codes

ROOT = Path(__file__).resolve().parent.parent

MACHINE_PATH = re.compile(r"(?<![\w.~$}])/(?:work|root|home/\w+|Users/\w+)/")
INDEX_HOST = re.compile(r"pypi\.org|pythonhosted\.org|registry\.npmjs\.org|conda\.anaconda\.org")
DOCUMENT = re.compile(r"\bdocs/[\w/-]+\.(?:md|svg)\b|\b(?:DESIGN|FEATURES)\b(?!\.md)")
CODE_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
PATH = re.compile(r"[\w./-]+(?:/|\.\w+)")
MODULE = re.compile(r"(greenroom(?:\.\w+)+)(?:\(\))?")
ROW_ID = re.compile(r"\b[FBT]\d{1,2}\b")
LOCK_FILE = re.compile(r"(^|/)(uv\.lock|poetry\.lock|pdm\.lock|package-lock\.json|pylock[^/]*\.toml)$")
# These have the names of documents as examples.
QUOTING = ("tools/docs.py", "tests/whole/test_project_docs.py")
# Examples of bad input, and what others wrote, may look like the path of somebody.
MAY_BE_ANYWHERE = ("tests/", "tools/", "benchmarks/data/")


def main(root: Path) -> int:
    """Run every check on the tree at `root` and print what is wrong. Returns 1 when something is wrong."""
    wrong = [line for check in CHECKS for line in check(root)]
    for line in wrong:
        print(line)
    return 1 if wrong else 0


def drawings(root: Path) -> Iterator[str]:
    """Each diagram is as it would be drawn now."""
    yield from stale(root, diagrams.pictures(), "tools.diagrams")


def reference_pages(root: Path) -> Iterator[str]:
    """Each page of the reference is as it would be written now."""
    made = reference.pages()
    yield from stale(root, made, "tools.reference")
    yield from (f"{path}: nothing makes it" for path in reference.left_over(root, made))
    yield from codes.unexplained(ROOT)


def stale(root: Path, made: Mapping[str, str], maker: str) -> Iterator[str]:
    """Which files are not what `maker` made."""
    for path, text in made.items():
        if not (root / path).is_file() or _text(root / path) != text:
            yield f"{path}: it is not what the code says; run `python -m {maker}`"


def example(root: Path) -> Iterator[str]:
    """The first Python block of README is the example that is run."""
    if fenced(_text(root / "README.md"), "python") != _text(root / "examples/embed.py"):
        yield "README.md: the first python block differs from examples/embed.py"


def examples(root: Path) -> Iterator[str]:
    """Each example of a test, of a framework and of a web application is shown by a page, word for word."""
    shown = {block for page in root.glob("docs/**/*.md") for block in fenced_all(_text(page), "python")}
    for pattern in ("testing_*.py", "with_*.py", "web_app.py"):
        for file in sorted(root.glob(f"examples/{pattern}")):
            if _text(file) not in shown:
                yield f"examples/{file.name}: no page of the docs shows it, word for word"


def dependencies(root: Path) -> Iterator[str]:
    """One table line per dependency, both ways."""
    project = tomllib.loads(_text(root / "pyproject.toml"))
    wanted = set(required(project))
    explained = re.findall(r"^\| ([a-z0-9-]+) \|", _text(root / "docs/dependencies.md"), re.MULTILINE)
    listed = {name for name in explained if name != "package"}
    yield from (f"docs/dependencies.md: no line for {name}" for name in sorted(wanted - listed))
    yield from (f"docs/dependencies.md: {name} is no longer a dependency" for name in sorted(listed - wanted))


def links(root: Path) -> Iterator[str]:
    """Relative links of the pages exist."""
    for page in [*root.glob("*.md"), *root.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", _text(page)):
            if "://" not in target and not (page.parent / target).exists():
                yield f"{page.relative_to(root)}: the link to {target} leads nowhere"


def ids(root: Path) -> Iterator[str]:
    """No row of our own tables is named in a page for users. Benchmarks are started by such a name."""
    for page in (
        *(root / name for name in ("README.md", "SECURITY.md", "CHANGELOG.md")),
        *sorted(root.glob("docs/**/*.md")),
    ):
        if page.name == "benchmarks.md":
            continue
        for number, line in enumerate(_text(page).splitlines(), 1):
            if found := ROW_ID.search(line):
                yield f"{page.relative_to(root)}:{number}: {found[0]} means nothing to a reader; say it in words"


def named_documents(root: Path) -> Iterator[str]:
    """A docstring that names a page of the docs names one that exists."""
    listing = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=root, capture_output=True, text=True, check=True
    )
    for name in listing.stdout.splitlines():
        for number, line in enumerate(_text(root / name).splitlines() if (root / name).is_file() else (), 1):
            for document in DOCUMENT.findall(line):
                if name not in QUOTING and not (root / document).exists():
                    yield f"{name}:{number}: there is no {document}"


def named_files(root: Path) -> Iterator[str]:
    """What a page calls `room/file.py`, `tests/folder/` or `greenroom.room.name` exists."""
    folders = {
        folder.name for folder in root.iterdir() if folder.is_dir() and not folder.name.startswith(".")
    }
    for page in pages(root):
        for span in CODE_SPAN.findall(_text(page)):
            path = span.partition("::")[0]
            if "/" in path and path.split("/")[0] in folders and PATH.fullmatch(path):
                if not (root / path).exists():
                    yield f"{page.relative_to(root)}: there is no {path}"
            elif (name := MODULE.fullmatch(span)) and not _resolves(name[1]):
                yield f"{page.relative_to(root)}: there is no {name[1]}"


def pages(root: Path) -> list[Path]:
    """What people read: the pages beside the rooms, and those in `docs/`. What is new in a version names what was."""
    return [page for page in (*root.glob("*.md"), *root.glob("docs/**/*.md")) if page.name != "CHANGELOG.md"]


def _resolves(name: str) -> bool:
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        module = ".".join(name.split(".")[:3])  # the framework of an adapter may not be installed
        return name.startswith("greenroom.adapters.") and find_spec(module) is not None
    return True


def tracked_files(root: Path) -> Iterator[str]:
    """No tracked file names a path of one machine or the host of an index, and none is a lock file."""
    listing = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True)
    for name in listing.stdout.splitlines():
        if LOCK_FILE.search(name):
            yield f"{name}: lock files hold download addresses; pin versions in constraints.txt"
        path = root / name
        if path.is_file() and not path.is_symlink():
            yield from addresses(name, path.read_text(encoding="utf-8", errors="replace"))


def addresses(name: str, text: str) -> Iterator[str]:
    """Machine paths and index hosts in one file."""
    for number, line in enumerate(text.splitlines(), 1):
        if INDEX_HOST.search(line):
            yield f"{name}:{number}: names the host of a package index"
        if MACHINE_PATH.search(line) and not name.startswith(MAY_BE_ANYWHERE):
            yield f"{name}:{number}: names a path of one machine"


CHECKS: tuple[Callable[[Path], Iterable[str]], ...] = (
    drawings,
    reference_pages,
    example,
    examples,
    dependencies,
    links,
    ids,
    named_documents,
    named_files,
    tracked_files,
)


def required(project: Mapping[str, Any]) -> Iterator[str]:
    """The names `pyproject.toml` depends on, extras and groups included, without versions."""
    groups: Mapping[str, list[Any]] = project["dependency-groups"] | project["project"].get(
        "optional-dependencies", {}
    )
    for entry in [
        *project["project"]["dependencies"],
        *(entry for group in groups.values() for entry in group),
    ]:
        if isinstance(entry, str):  # otherwise an included group, which is listed itself
            yield re.split(r"[^A-Za-z0-9-]", entry, maxsplit=1)[0].lower()


def fenced(text: str, language: str) -> str:
    """The contents of the first fenced block in `language`; empty when there is none."""
    return next(iter(fenced_all(text, language)), "")


def fenced_all(text: str, language: str) -> list[str]:
    """The contents of every fenced block in `language`."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(ROOT))
