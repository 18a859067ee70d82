"""Whether a definition means another program in another folder.

`npx -y some-server` is the same server wherever it is started, so what is known of it is known everywhere.
`./server.py` is not. A definition resolves against the folder it is started in when

- a word of it is a path that begins at that folder (`.`, `./x`, `../x`), or its command is a relative path,
- a word of it names something that exists there: `server.py`, `--config=conf.json`, the module of `-m`, or the
  package of `npx` in the folder's `node_modules`,
- its program runs what the folder's project file says (`npm run`, `uv run`, `make`), unless an argument says where
  the project is.

Words are looked for in the arguments and in the values of `env`, also inside of them: `type=bind,src=./data` is one
argument, and so is a whole line for `sh -c`. A URL is no path, and neither is the `src` of `src=…`. When in doubt the
folder counts. That costs one more start of the server, where the opposite would show the tools of one project in
another.

What exists is asked through a function, so nothing is read here. Whoever can put a file into a folder decides only
whether what is known of the server is kept apart there. `resolves_by_itself` does not look at files: pins are
inherited by it, so no file in a folder makes a changed tool look like a new one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Final

Exists = Callable[[str], bool]  # whether a path, relative to the folder, exists

_BETWEEN: Final = re.compile(r"""[\s!,;:|&<>()'"]+""")
_URL: Final = re.compile(r"[A-Za-z][\w+.-]*://\S*")
_FROM_HERE: Final = re.compile(r"\.\.?(?:[/\\]|$)")
_VERSION: Final = re.compile(r"(?<=.)@.*")  # of `name@1` and `@scope/name@1`
_SHELLS: Final = frozenset({"sh", "bash", "zsh", "dash", "fish", "env", "cmd", "powershell", "pwsh"})
_OF_NODE: Final = frozenset({"npx", "npm", "pnpm", "pnpx", "yarn", "bun", "bunx"})
_PROJECTS = """bun bundle cargo composer deno dotnet go gradle hatch just make mise mvn npm nx pdm pipenv pixi pnpm
    poetry rake rye task turbo uv yarn"""
_OF_A_PROJECT: Final = frozenset(_PROJECTS.split())
_ELSEWHERE: Final = frozenset({"x", "dlx", "exec", "tool"})  # `npm exec`, `uv tool run`: as `npx` and `uvx`
_COMPOSE: Final = frozenset({"docker", "podman", "nerdctl"})


def resolves_in_folder(command: str, args: Sequence[str], env: Mapping[str, str], exists: Exists) -> bool:
    """Whether the program depends on the folder it is started in."""
    words = _words(args, env)
    if _resolves_by_itself(command, args, words):
        return True
    named = (*filter(_may_be_file, words), *_by_name(_program(command), args))
    return any(map(exists, named))


def resolves_by_itself(command: str, args: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether it does so whatever is in the folder."""
    return _resolves_by_itself(command, args, _words(args, env))


def _resolves_by_itself(command: str, args: Sequence[str], words: Sequence[str]) -> bool:
    if ("/" in command or "\\" in command) and not _is_absolute(command):
        return True
    return any(word[:1] == "." and _FROM_HERE.match(word) for word in words) or _runs_a_project(
        _program(command), args
    )


def _words(args: Sequence[str], env: Mapping[str, str]) -> list[str]:
    words = [*args, *env.values()]
    for text in tuple(words):
        if "=" in text or _BETWEEN.search(text):
            bare = _URL.sub(" ", text) if "://" in text else text
            words += (word.rpartition("=")[2] for word in _BETWEEN.split(bare))
    return words


def _may_be_file(word: str) -> bool:
    return bool(word) and word[0] not in "-/~" and "\0" not in word


def _is_absolute(path: str) -> bool:
    return PurePath(path).is_absolute() or path.startswith("~")


def _program(command: str) -> str:
    """`npm` of `/usr/bin/npm` and of `npm.cmd`."""
    return re.split(r"[/\\]", command)[-1].partition(".")[0]


def _by_name(program: str, args: Sequence[str]) -> Iterator[str]:
    """The files that such arguments stand for without being their names."""
    for before, arg in zip(("", *args), args, strict=False):
        if before == "-m" and _may_be_file(arg):
            module = arg.replace(".", "/")
            yield from (module, f"{module}.py")
        elif program in _OF_NODE and _may_be_file(arg):
            yield f"node_modules/{_VERSION.sub('', arg)}"


def _runs_a_project(program: str, args: Sequence[str]) -> bool:
    if program in _SHELLS:
        line = [*filter(None, _BETWEEN.split(" ".join(args)))]
        after = ((_program(word), line[place + 1 :]) for place, word in enumerate(line))
        return any(_runs_a_project(name, rest) for name, rest in after if name not in _SHELLS)
    if program in _COMPOSE:
        return "compose" in args[:1]
    return (
        program in _OF_A_PROJECT
        and not _ELSEWHERE.intersection(args[:1])
        and not any(_is_absolute(arg) or _is_absolute(arg.partition("=")[2]) for arg in args)
    )
