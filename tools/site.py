"""What MkDocs calls while it builds the site of the docs (`make site`, `mkdocs.yml`).

The pages in `docs/` are written to be read in the repository, where README, SECURITY, CONTRIBUTING and CHANGELOG stand
beside that folder. The site has them too, as pages of its own, so links between all of them lead to a page. What links
to another file of the repository (an example, a result) stays as text, because the site does not have that file.

Rejected: copies of those four pages, or links to a host, which the repository does not know.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any, Final

from mkdocs.structure.files import File

ROOT: Final = Path(__file__).resolve().parent.parent
PAGES: Final = {
    "README.md": "readme.md",
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
# What was changed has every word, and would be found before what says how things are.
_UNSEARCHED: Final = "---\nsearch: {exclude: true}\n---\n"
_LINK: Final = re.compile(r"(!?)\[([^\]\[]*)\]\(([^)\s]+)\)")
_PICTURE: Final = re.compile(
    r'(\bsrc(?:set)?=")([^":]+)(?=")'
)  # in a <picture>, which Markdown has no words for
_CODE: Final = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that stand beside the folder."""
    for name, page in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        told = _UNSEARCHED if name == "CHANGELOG.md" else ""
        files.append(File.generated(config, page, content=told + moved(text, "", _has(files))))
    return files


def on_page_markdown(markdown: str, page: Any, files: Any, **_: object) -> str:
    return (
        markdown
        if page.file.src_uri in PAGES.values()
        else moved(markdown, posixpath.dirname(f"docs/{page.file.src_uri}"), _has(files))
    )


def _has(files: Any) -> set[str]:
    """The paths in the repository of what the site has."""
    return {f"docs/{file.src_uri}" for file in files} | PAGES.keys()


def moved(text: str, folder: str, there: set[str]) -> str:
    """The text of a page that stands in `folder`, with links as the site has them. Code stays as it is."""
    parts = _CODE.split(text)  # every second one is code
    parts[::2] = [_LINK.sub(lambda link: _link(link, folder, there), part) for part in parts[::2]]
    parts[::2] = [
        _PICTURE.sub(lambda picture: picture[1] + _place(picture[2], folder), part) for part in parts[::2]
    ]
    return "".join(parts)


def _link(link: re.Match[str], folder: str, there: set[str]) -> str:
    image, words, target = link.groups()
    path, hash_, anchor = target.partition("#")
    if not path or "://" in path or path.startswith("mailto:"):
        return link[0]
    path = posixpath.normpath(posixpath.join(folder, path))
    if path not in there:
        return link[0] if image else words
    return f"{image}[{words}]({_place(target.partition('#')[0], folder)}{hash_}{anchor})"


def _place(target: str, folder: str) -> str:
    """Where the site has a file that a page in `folder` names so."""
    path = posixpath.normpath(posixpath.join(folder, target))
    return posixpath.relpath(
        PAGES.get(path) or path.removeprefix("docs/"), folder.removeprefix("docs").strip("/") or "."
    )
