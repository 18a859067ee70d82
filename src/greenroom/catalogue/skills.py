"""Skills: folders of instructions for a model that a server shows file by file (`io.modelcontextprotocol/skills`).

A skill is known by the URI of its `SKILL.md`, and its entry has the front matter of that file and a list of all its
files, each with size and digest. What is read is compared with that list, so a file that is not in it, or is not what
it says, is not shown to anybody. A skill that is made anew for each reader has no such list (`dynamic`).

The front matter of a `SKILL.md` is compared with the entry's as well, value by value: an owner who looks at the entry
must have seen what a model is given. Readers of YAML differ about words such as `yes` and about dates, and some make
texts of numbers. Such differences mean nothing, so they do not count.

An entry must be whole: a client refuses the whole list for one that is not, and half of a skill is none. So here is
what is wrong with an entry, and what a good one says.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from ..config.file_formats import NotYamlError, load_yaml
from ..protocol.bounds import SKILL_BYTES, SKILL_FILES
from ..protocol.json_values import is_array, is_object, object_or_empty
from ..protocol.lazy_patterns import lazy_pattern
from ..protocol.safe_text import unhidden
from .entries import Raw

EXTENSION: Final = "io.modelcontextprotocol/skills"
FILE: Final = "SKILL.md"
DYNAMIC: Final = "dynamic"
_NAME: Final = lazy_pattern(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_DIGEST: Final = lazy_pattern(r"sha256:[0-9a-f]{64}")
_ENDS_PATH: Final = frozenset("?#")
_LONGEST_NAME: Final = 64
_LONGEST_DESCRIPTION: Final = 1_024
_FRONT_MATTER: Final = lazy_pattern(r"\A\ufeff?---[ \t]*\r?\n(.*?\r?\n)---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_WORDS: Final = {
    **dict.fromkeys(("y", "yes", "on", "true"), True),
    **dict.fromkeys(("n", "no", "off", "false"), False),
}
_TIME: Final = lazy_pattern(r"(?<=\d)[Tt](?=\d)")
_NUMBER: Final = lazy_pattern(r"[-+]?\.?[0-9][0-9_.]*(?:[eE][-+]?[0-9]+)?", re.ASCII)


def has_skills(capabilities: Raw) -> bool:
    """Whether a server declares that it has skills."""
    return object_or_empty(capabilities.get("extensions")).get(EXTENSION) is not None


def reads_directories(capabilities: Raw) -> bool:
    """Whether a server with skills answers `resources/directory/read`."""
    if not has_skills(capabilities):
        return False
    return capabilities["extensions"][EXTENSION].get("directoryRead") is True


class SkillFile(msgspec.Struct, frozen=True):
    """A file of a skill. `path`: in the skill's folder; `uri`: what its server calls it."""

    path: str
    uri: str
    size: int
    digest: str

    def accepts(self, content: bytes) -> bool:
        """Whether this is the content that the skill's list of files tells of."""
        if len(content) != self.size:
            return False
        return f"sha256:{hashlib.sha256(content).hexdigest()}" == self.digest


def name_of(record: Raw) -> str:
    """The name in the front matter; empty if there is none."""
    return _said(record, "name")


def description_of(record: Raw) -> str:
    return _said(record, "description")


def root_of(uri: str) -> str:
    """The folder of the skill whose `SKILL.md` this is."""
    return uri.removesuffix(f"/{FILE}")


def weight_of(records: Iterable[Raw] | None) -> int:
    """How much work it is to go over these entries, counted in items of a list: each file is one."""
    return sum(1 + len(record["resources"]) for record in records or ())


def is_within(uri: str, roots: Collection[str]) -> bool:
    """Whether the URI is in one of these folders."""
    end = uri.rfind("/")
    while end > 0:
        if uri[:end] in roots:
            return True
        end = uri.rfind("/", 0, end)
    return False


def files_of(record: Raw) -> tuple[SkillFile, ...] | None:
    """The files of a good entry; None: it is dynamic."""
    resources: Any = record["resources"]
    if resources == DYNAMIC:
        return None
    start = len(root_of(record["uri"])) + 1
    return tuple(SkillFile(one["uri"][start:], one["uri"], one["size"], one["digest"]) for one in resources)


def children_of(records: Iterable[Raw], folder: str) -> dict[str, bool] | None:
    """What is in a folder of these skills, by URI: whether it is a folder itself. None: this is no folder of a skill
    whose files are known."""
    found: dict[str, bool] = {}
    for record in records:
        root = root_of(record["uri"])
        if folder == root or folder.startswith(root + "/"):
            for file in files_of(record) or ():
                if file.uri.startswith(folder + "/"):
                    child, slash, _ = file.uri[len(folder) + 1 :].partition("/")
                    found[f"{folder}/{child}"] = bool(slash)
    return found or None


def may_be_in(path: str) -> bool:
    """Whether a file of a skill can have this path, however its server reads URIs: it leads nowhere else."""
    return _is_plain(unquote(path)) and not _ENDS_PATH.intersection(path)


def fault_of(record: Any) -> str:
    """What is wrong with an entry, in words; empty: nothing."""
    if not is_object(record):
        return "it is not an object"
    return next(_faults(record), "")


def _faults(record: Raw) -> Iterator[str]:
    uri, front_matter = record.get("uri"), record.get("frontmatter")
    if not isinstance(uri, str) or not is_object(front_matter):
        yield "it has no uri or no frontmatter"
        return
    name, description = name_of(record), description_of(record)
    if len(name) > _LONGEST_NAME or _NAME.fullmatch(name) is None:
        yield "its name is not a name of a skill (lower-case letters, digits and single hyphens, 64 at most)"
    if not description.strip() or len(description) > _LONGEST_DESCRIPTION:
        yield f"its description is missing or longer than {_LONGEST_DESCRIPTION:,} characters"
    if unhidden(uri) != uri or not uri.endswith(f"/{name}/{FILE}"):
        yield f"its uri does not end in /{unhidden(name)}/{FILE}"
    yield from _faults_of_files(root_of(uri) + "/", uri, record.get("resources"))


def _faults_of_files(root: str, uri: str, resources: Any) -> Iterator[str]:
    if resources == DYNAMIC:
        return
    if not is_array(resources):
        yield 'its resources are neither an array nor "dynamic"'
        return
    if len(resources) > SKILL_FILES:
        yield f"it has more than {SKILL_FILES:,} files"
    if not all(_is_file(each, root) for each in resources):
        yield "a file of it is outside its folder, or has no size or digest"
        return
    names = {each["uri"] for each in resources}
    if uri not in names or len(names) != len(resources):
        yield f"its files do not have {FILE} and each other file once"
    if sum(each["size"] for each in resources) > SKILL_BYTES:
        yield f"it is larger than {SKILL_BYTES:,} bytes"


def _is_file(said: Any, root: str) -> bool:
    if not is_object(said):
        return False
    uri, size, digest = said.get("uri"), said.get("size"), said.get("digest")
    if not isinstance(uri, str) or not isinstance(digest, str) or _DIGEST.fullmatch(digest) is None:
        return False
    path = uri[len(root) :]
    is_inside = uri.startswith(root) and unhidden(uri) == uri and _is_plain(path)
    return is_inside and type(size) is int and size >= 0


def _is_plain(path: str) -> bool:
    return all(part not in ("", ".", "..") and "\\" not in part for part in path.split("/"))


def _said(record: Raw, key: str) -> str:
    value = object_or_empty(record.get("frontmatter")).get(key)
    return value if isinstance(value, str) else ""


# ---- what is read --------------------------------------------------------------------------------------------------
def content_of(result: Raw) -> bytes | None:
    """The bytes of a file, from the result of reading it; None: it is not the content of one file."""
    contents: Any = result.get("contents")
    match contents:
        case [{"text": str(text)}]:
            return text.encode("utf-8", "surrogatepass")
        case [{"blob": str(blob)}]:
            try:
                return base64.b64decode(blob, validate=True)
            except (binascii.Error, ValueError):
                return None
        case _:
            return None


def is_introduced_as(
    front_matter: Raw, content: bytes, kept: Callable[[Raw], Raw] = lambda read: read
) -> bool:
    """Whether a `SKILL.md` begins with the front matter of its entry (SEP-2640, frontmatter verification). `kept`: what
    the entry keeps of it."""
    found = _FRONT_MATTER.match(content.decode("utf-8", "replace"))
    if found is None:
        return False
    repeated: dict[str, None] = {}
    try:
        said = load_yaml(found[1], repeated)
    except NotYamlError:
        return False
    return is_object(said) and not repeated and _means_the_same(kept(said), front_matter)


def _means_the_same(read: Any, said: Any) -> bool:
    """Whether a value of YAML, as we read it, and one of an entry can come from the same text."""
    if is_object(read) and is_object(said):
        keys = read.keys() | said.keys()
        return all(_means_the_same(read.get(key), said.get(key)) for key in keys)
    if is_array(read) and is_array(said):
        return len(read) == len(said) and all(map(_means_the_same, read, said))
    if isinstance(read, Mapping | list) or isinstance(said, Mapping | list):
        return False
    return _as_word(read) == _as_word(said)


def _as_word(value: Any) -> Any:
    """A scalar in the form that all readers of YAML would agree on."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return value
    word = str(value).strip()
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    try:
        return Decimal(word) if _NUMBER.fullmatch(word) else _TIME.sub(" ", word)
    except ArithmeticError:
        return word


def without_front_matter(text: str) -> str:
    """The instructions in a `SKILL.md`. Its front matter is known from the skill's entry, which is what was shown."""
    return text[found.end() :] if (found := _FRONT_MATTER.match(text)) else text
