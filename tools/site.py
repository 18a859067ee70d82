"""What MkDocs calls while it builds the site of the docs (`make site`, `mkdocs.yml`).

The pages in `docs/` are written to be read in the repository, where README, SECURITY, CONTRIBUTING and CHANGELOG stand
beside that folder. The site has them too, as pages of its own, so links between all of them lead to a page. What links
to another file of the repository (an example, a result) stays as text, because the site does not have that file.

What has been built is looked at as well: each page is there, links lead to it from the first one, and none loads
anything from elsewhere.

Rejected: copies of those four pages, or links to a host, which the repository does not know.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from mkdocs.exceptions import PluginError
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
# How the search weighs pages: the answers to questions first, then the guides. What is looked up by its name is
# found by that name anyway.
_FOUND: Final = {
    "faq": 2,
    "cli": 2,
    "reference/environment": 2,
    "reference/": 0.4,
    "decisions/": 0.4,
    "results/": 0.4,
}
# The page above those whose path begins so, which are not in the list of pages themselves.
_ABOVE: Final = {
    "reference/python/": ("Python reference", "reference/python.md"),
    "reference/commands/": ("Commands", "reference/commands.md"),
    "frameworks/": ("Agent frameworks", "frameworks.md"),
    "decisions/": ("Decisions", "decisions/index.md"),
    "results/": ("Benchmarks", "benchmarks.md"),
}
_LINK: Final = re.compile(r"(!?)\[([^\]\[]*)\]\(([^)\s]+)\)")
_PICTURE: Final = re.compile(
    r'(\bsrc(?:set)?=")([^":]+)(?=")'
)  # in a <picture>, which Markdown has no words for
_LOADED: Final = re.compile(r'<(?:script|link|img|iframe)[^>]*(?:src|href)="?((?:https?:)?//[^">]*)')
_LINKED: Final = re.compile(r'<a [^>]*href="?([^":#?> ]+)\.html')
_STYLED: Final = re.compile(r"""(?:url\(["']?|@import ["'])((?:https?:)?//[^"')]*)""")
_TABLE_CODE: Final = re.compile(
    r"(?<=[|, ])`[^`\n]*\\\|[^`\n]*`"
)  # GitHub needs the escape of the bar, Python-Markdown shows it
_CODE: Final = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that stand beside the folder."""
    for name, page in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        told = _UNSEARCHED if name == "CHANGELOG.md" else ""
        files.append(File.generated(config, page, content=told + moved(text, "", _has(files))))
    return files


def on_page_markdown(markdown: str, page: Any, files: Any, **_: object) -> str:
    found = next((factor for start, factor in _FOUND.items() if page.file.src_uri.startswith(start)), None)
    if found:
        page.meta["search"] = {"boost": found}
    if (title := title_of(markdown)) != "Greenroom":
        page.meta["title"] = title
    markdown = below_its_index(
        _TABLE_CODE.sub(lambda line: line[0].replace("\\|", "|"), markdown), page.file.src_uri
    )
    return (
        markdown
        if page.file.src_uri in PAGES.values()
        else moved(markdown, posixpath.dirname(f"docs/{page.file.src_uri}"), _has(files))
    )


def title_of(markdown: str) -> str:
    """The heading of a page as plain text: the name of the window, where the list of pages has a shorter one."""
    found = re.search(r"^# (.+)$", markdown, re.MULTILINE)
    return _LINK.sub(r"\2", found[1]).replace("`", "") if found else "Greenroom"


def below_its_index(markdown: str, page: str) -> str:
    """The text of a page with a link to the index above it, below its heading."""
    above = above_of(page)
    if above is None:
        return markdown
    name, index = above
    heading, _, rest = markdown.partition("\n")
    return f"{heading}\n\n[↑ {name}]({posixpath.relpath(index, posixpath.dirname(page) or '.')})\n{rest}"


def above_of(page: str) -> tuple[str, str] | None:
    """The name and the path of the page above one that is not in the list of pages."""
    found = (above for start, above in _ABOVE.items() if page.startswith(start) and page != above[1])
    return next(found, None)


def on_page_context(context: Any, *, page: Any, nav: Any, **_: object) -> Any:
    """Show a page that is not in the list of pages below the one above it: else it would have no list beside it."""
    above = above_of(page.file.src_uri)
    for each in nav.pages:  # first all, because one that is not shown tells the part that has it
        each.active = False
    for each in nav.pages:
        if each is page or (above is not None and each.file.src_uri == above[1]):
            each.active = True
    return context


def on_post_build(config: Any) -> None:
    """Look at what was built. Raises PluginError, which ends `mkdocs build`, with all that is wrong."""
    site = Path(config["site_dir"])
    pages = {_name_of(page, site): page.read_text(encoding="utf-8") for page in site.glob("**/*.html")}
    docs = ROOT / "docs"
    ours = {_name_of(page, docs) for page in docs.glob("**/*.md")}
    ours |= {"404", *(page.removesuffix(".md") for page in PAGES.values())}
    wrong = [
        f"{name}: it is a page of the site or of the docs, and not of both" for name in pages.keys() ^ ours
    ]
    wrong += [f"{name}: no link leads to it" for name in pages.keys() - _reached(pages) - {"404"}]
    wrong += [
        f"{name}: it has no list of pages beside it; put it into `nav` of mkdocs.yml, or into `_ABOVE`"
        for name, page in pages.items()
        if "md-tabs__item--active" not in page and name != "404"
    ]
    styles = {_name_of(file, site): file.read_text(encoding="utf-8") for file in site.glob("**/*.css")}
    wrong += [f"{name} loads {url}" for name, page in pages.items() for url in _LOADED.findall(page)]
    wrong += [f"{name}.css loads {url}" for name, style in styles.items() for url in _STYLED.findall(style)]
    if wrong:
        raise PluginError("\n".join(wrong))


def _reached(pages: Mapping[str, str]) -> set[str]:
    """The pages that a reader comes to from the first one, by links."""
    reached: set[str] = set()
    ahead = {"index"}
    while ahead:
        name = ahead.pop()
        reached.add(name)
        linked = {
            posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
            for target in _LINKED.findall(pages[name])
        }
        ahead |= linked & pages.keys() - reached
    return reached


def _name_of(file: Path, folder: Path) -> str:
    return file.relative_to(folder).with_suffix("").as_posix()


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
