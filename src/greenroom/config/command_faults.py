"""Why the command of a server cannot be started, and what to do about it.

"Not found" is said of many things that nothing can be installed for: a file of another program's configuration was
written on Windows, a URL or a whole line stands where a program belongs, quotation marks are part of the name, or the
program is there and its first line names another that is not. So the words of the command and the first bytes of its
file decide what is said. The start that failed and `doctor` say the same.

Rejected: repairing such a command (`cmd /c npx` to `npx`). What is started is what the configuration says, for
that is what a person has said yes to.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import PureWindowsPath
from typing import Final, NamedTuple

_HEAD: Final = 512  # bytes of a file
_WINDOWS_ENDING: Final = re.compile(r"\.(?:exe|cmd|bat|com|ps1)$", re.IGNORECASE)
_OF_WINDOWS: Final = frozenset({"cmd", "powershell", "py", "pyw", "start"})
_ITSELF: Final = 'Name the program itself in "command"'
_NAMED_HERE: Final = {"py": "python3", "pyw": "python3", "python": "python3", "powershell": "pwsh"}
_OF_A_SHELL: Final = frozenset("cd source . export alias eval exec set unset ulimit umask nvm if for".split())
_OPERATORS: Final = re.compile(r"&&|\|\|?|;|[<>]|\$\(|`")
_QUOTES: Final = "\"'`\u2018\u2019\u201c\u201d"
_BINARIES: Final = (b"\x7fELF", b"MZ", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")


class CommandFault(NamedTuple):
    """What is wrong with a command, and the next step. Neither ends with a full stop."""

    what: str
    mend: str

    def __str__(self) -> str:
        return f"{self.what}. {self.mend}."

    @property
    def in_short(self) -> str:
        """Both, as a part of a sentence."""
        return f"{self.what}; {self.mend[0].lower()}{self.mend[1:]}"


def why_not_found(
    command: str, args: Sequence[str], cwd: str | None, path: str | None, *, windows: bool = os.name == "nt"
) -> CommandFault | None:
    """What is wrong with a command that the system does not find; None: nothing but that. `path`: the server's PATH."""
    file = file_of(command, cwd, path)
    if file is not None:
        return why_not_run(file) or CommandFault(
            f'"{file}" is there, and what the system needs to run it is not', "Install it for this system"
        )
    told = f'command "{command}"'
    bare = command.strip().strip(_QUOTES).strip()
    if bare and command != bare:
        return CommandFault(
            f"{told} begins or ends with a blank, a line break or a quotation mark",
            f'Write "command": "{bare}"',
        )
    if re.match(r"(?:https?|wss?)://", command):
        return CommandFault(f"{told} is a URL", 'Write it as "url", without "command"')
    if not windows and (fault := _of_windows(command, args)) is not None:
        return fault
    if _is_a_line(command):
        return CommandFault(
            f"{told} is a line for a shell", 'Write "command": "sh", "args": ["-c", "the line"]'
        )
    if (program := _program_of_line(command, cwd, path)) is not None:
        put = 'and put the rest into "args", each argument on its own'
        return CommandFault(f'"{command}" is a whole line', f'Write "command": "{program}", {put}')
    if os.path.isabs(command):
        return CommandFault(f"{told} was not found: there is no such file", 'Correct the path in "command"')
    if os.sep in command:
        where = os.path.abspath(os.path.join(cwd or "", command))
        mend = 'Give its full path in "command", or set "cwd"'
        return CommandFault(f"{told} was not found: there is no file {where}", mend)
    return None


def why_not_run(file: str) -> CommandFault | None:
    """Why the system cannot run this file; None: nothing of the kind can be seen."""
    if os.path.isdir(file):
        return CommandFault(f'"{file}" is a folder', 'Name the program in it in "command"')
    head = _head_of(file)
    if head.startswith(b"\xef\xbb\xbf#!"):
        return CommandFault(f'"{file}" has a byte order mark before its "#!"', "Save it as UTF-8 without one")
    if not head.startswith(b"#!"):
        return None
    line, newline, _ = head.partition(b"\n")
    if newline and line.endswith(b"\r"):
        return CommandFault(
            f'the first line of "{file}" ends with a carriage return, as lines do on Windows, and so names no program',
            f"Save it with the line ends of this system: sed -i 's/\\r$//' {shlex.quote(file)}",
        )
    interpreter = os.fsdecode(line[2:]).split()
    if interpreter and not os.path.exists(interpreter[0]):
        return CommandFault(
            f'the interpreter named in the first line of "{file}" does not exist: {interpreter[0]}',
            "Install it, or correct that line",
        )
    return None


def file_fault(command: str, cwd: str | None, path: str | None) -> CommandFault | None:
    """Why the system cannot run the file of this command; None: there is no such file, or nothing to be seen."""
    file = file_of(command, cwd, path)
    return None if file is None else why_not_run(file)


def why_no_program(command: str, file: str | None) -> CommandFault:
    """Why the system does not take a file for a program."""
    if _head_of(file or command).startswith(_BINARIES):
        return CommandFault(
            f'"{command}" is a program for another system or processor', "Install the one for this machine"
        )
    return (None if file is None else why_not_run(file)) or CommandFault(
        f'"{command}" is not a program', 'Name its interpreter in "command" and the file in "args"'
    )


def _head_of(file: str) -> bytes:
    with suppress(OSError), open(file, "rb") as opened:
        return opened.read(_HEAD)
    return b""


def file_of(command: str, cwd: str | None, path: str | None) -> str | None:
    """The file that is run for this command, as the system looks for it; None when there is none."""
    import shutil  # it brings three compressors, which no start needs

    if os.sep in command:
        file = os.path.join(cwd or "", command)
        return file if os.path.exists(file) else None
    return shutil.which(command, path=path)


def _of_windows(command: str, args: Sequence[str]) -> CommandFault | None:
    """What is wrong with a command that exists on Windows alone; None when it does not look like one."""
    told = f'command "{command}" is'
    if "\\" in command or re.match(r"[A-Za-z]:/", command):
        name = _WINDOWS_ENDING.sub("", PureWindowsPath(command).name)
        mend = f'Write where {name} is on this one, in "command"'
        return CommandFault(f"{told} a path of Windows, and this is another system", mend)
    program, *words = command.split() or [""]
    name = _WINDOWS_ENDING.sub("", program)
    if name.lower() == "cmd":
        rest = [word for word in (*words, *args) if not word.startswith("/")]
        mend = f'Write "command": "{rest[0]}", and only what follows it in "args"' if rest else _ITSELF
        return CommandFault(f"{told} the shell of Windows, and this is another system", mend)
    if name != program or name.lower() in _OF_WINDOWS:
        here = _NAMED_HERE.get(name.lower(), name)
        mend = _ITSELF if here.lower() == "start" or "/" in here else f'Write "command": "{here}"'
        return CommandFault(f"{told} a program of Windows, and this is another system", mend)
    return None


def _is_a_line(command: str) -> bool:
    words = command.split()
    return bool(words) and (words[0] in _OF_A_SHELL or (len(words) > 1 and bool(_OPERATORS.search(command))))


def _program_of_line(command: str, cwd: str | None, path: str | None) -> str | None:
    """The program, if `command` is a whole line: a program that there is, followed by arguments."""
    program, *rest = command.split() or [""]
    return program if rest and file_of(program, cwd, path) is not None else None
