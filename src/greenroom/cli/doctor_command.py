"""`greenroom explain`: why one server is as it is. It starts nothing.

`gateway.explain` puts into words what the status, its entry and the settings say: in the running gateway, if there is
one. `doctor_checks` finds what is wrong around it. Its entry is shown with the place of each key, because what
surprises is often in another file.
"""

from __future__ import annotations

import json
import os
import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import click
from msgspec import UNSET, UnsetType

from ..protocol.errors import ConfigError, FailureKind, UsageError
from ..protocol.safe_text import counted, one_line
from ..protocol.status import about, silence_in_words
from .answer_sources import open_source
from .completion import complete_servers, complete_several_servers
from .config_reading import load_asked
from .interruption import run_to_end
from .json_shapes import AddressJson, Object, OriginJson, ServerJson, Shape, says
from .missing_servers import no_such_server
from .printing import say, show
from .shared_options import common_options, names_in
from .typed_options import commands_typed

if TYPE_CHECKING:
    from ..config.model import Config
    from .doctor_checks import Finding, Setup


class ReasonJson(Shape, kw_only=True):
    """Why a server is as it is."""

    about: Annotated[
        Literal["state", "failure", "history", "calls", "tools"],
        says(
            "what it is about: what the server does; its last `failure`; what has happened of late (`history`); what "
            "refuses its `calls`, or does not answer them; its `tools`"
        ),
    ]
    what: Annotated[str, says("one sentence")]
    step: Annotated[str | None, says("a command, or what to do; null: nothing has to be done")]


class PolicyJson(Shape, kw_only=True):
    """A policy that a server follows."""

    key: Annotated[str, says("its key in a file")]
    value: Annotated[str, says("its value, in words")]
    file: Annotated[str, says('the file that says so; "": none does, so it is the default')]


class FindingJson(Shape, kw_only=True):
    """One thing that is wrong."""

    severity: Annotated[Literal["error", "warning", "note"], says("how bad it is")]
    check: Annotated[str, says("which check found it")]
    about: Annotated[str, says("a server, a file or a process")]
    what: Annotated[str, says("what is wrong")]
    mend: Annotated[str, says("a command, or what to do")]


class ExplainedJson(OriginJson, kw_only=True):
    """Why one server is as it is."""

    server: Annotated[str, says("the server")]
    reasons: Annotated[list[ReasonJson], says("why it is in its state, and what happens next")]
    since: Annotated[float | None, says("how long it has been in its state; null: it is not known", "s")]
    policies: Annotated[list[PolicyJson], says("what it follows; empty if it cannot be used")]
    status: Annotated[ServerJson, says("its row of `status`")]
    addresses: Annotated[list[AddressJson], says("its sessions' and calls' own addresses")]
    findings: Annotated[list[FindingJson], says("what `doctor` finds about it")]
    entry: Annotated[Object, says("its entry, without secrets, by the keys of a file")]
    sources: Annotated[dict[str, str], says("which file each key of the entry is from")]


class RequiredJson(Shape, kw_only=True):
    """A server that must start and list its tools."""

    server: Annotated[str, says("the server")]
    tools: Annotated[int | None, says("how many it has listed; null: it did not start", "tools")]


class DoctorJson(Shape, kw_only=True):
    """What is wrong with the set-up. The exit code is that of the worst finding, if it weighs at least as much as
    `--fail-on` says: 1 for an error, 3 for a warning, 4 for a note."""

    findings: Annotated[list[FindingJson], says("in the order of the checks")]
    files: Annotated[list[str], says("the files that the configuration is made of")]
    not_seen_starting: Annotated[
        list[str], says("servers that nobody has started so far; empty if they are started now")
    ]
    error: Annotated[int, says("how many findings are errors", "findings")]
    warning: Annotated[int, says("how many are warnings", "findings")]
    note: Annotated[int, says("how many are notes", "findings")]
    required: Annotated[
        list[RequiredJson] | UnsetType, says("in the order they were named in", when="`--require` is given")
    ] = UNSET


# ---- `greenroom doctor`: what is wrong with the set-up, and what mends it -------------------------------------------

_NAMED = 5
# Of a check that finds the cause of a failure: the kind of that failure.
_CAUSES = {"program": FailureKind.PROGRAM, "port": FailureKind.CONNECTION}
MARKS = {"error": "✗", "warning": "⚠", "note": "·"}


def _names(_context: click.Context, _option: click.Parameter, said: Sequence[str]) -> tuple[str, ...]:
    """The names in `--require a,b --require c`, each once."""
    names = [name.strip() for each in said for name in each.split(",")]
    if not all(names):
        raise click.BadParameter("a name is empty. Write it as: --require github,linear")
    return tuple(dict.fromkeys(names))


@click.command("doctor")
@click.option("--start", "starts", is_flag=True, help="Start every server once, and say what goes wrong.")
@click.option(
    "--require",
    "required",
    multiple=True,
    metavar="SERVER,…",
    callback=_names,
    shell_complete=complete_several_servers,
    help="Start only these servers, once. It is an error if one does not list its tools.",
)
@click.option(
    "--fail-on",
    "least",
    type=click.Choice(["error", "warning", "note"]),
    default="error",
    show_default=True,
    help="The mildest finding that makes this command fail.",
)
@click.option(
    "--otlp",
    is_flag=False,
    flag_value="",
    metavar="URL",
    help="Ask this OpenTelemetry collector whether it takes spans. Without a value: as the variables OTEL_* say.",
)
@click.option(
    "--tape",
    "tape",
    is_flag=False,
    flag_value="",
    metavar="FILE",
    help="Write a tape of the last minutes of the running gateway instead. Without a value: a file in this folder.",
)
@click.option(
    "--redact", metavar="NAMES", help="Leave the values of these keys out of the tape, as in password,pin."
)
@common_options
def doctor_command(
    starts: bool,
    required: tuple[str, ...],
    least: str,
    otlp: str | None,
    tape: str | None,
    redact: str | None,
    config_path: Path | None,
    pid: int | None,
    as_json: bool,
) -> int:
    """Check the set-up: what is wrong, and how to fix it.

    It changes nothing, and starts nothing without --start or --require. The running gateway, or else the cache, tells
    it how servers started and failed.

    The exit code is that of the worst finding: 1 for an error, 3 for a warning, 4 for a note. Findings that are milder
    than --fail-on do not count.
    """
    try:
        config = load_asked(config_path, pid)
    except ConfigError as error:
        if tape is not None or config_path is None or not config_path.exists():
            raise
        config = _unreadable(error)
    if tape is not None:
        from .doctor_tape import tape_last_minutes

        if starts or required or otlp is not None:
            raise UsageError("--tape is of what has happened, and looks at nothing else. Give it alone.")
        return tape_last_minutes(config, pid, tape, names_in(redact), as_json=as_json)
    if redact is not None:
        raise UsageError("--redact is for a tape: greenroom doctor --tape --redact password,pin")
    from .doctor_checks import Setup, Severity, collector, examine, examine_required, exit_code

    setup = Setup(config, config_path, os.environ, commands_typed(), otlp, is_preflight=bool(required))
    if required:
        found = [*examine_required(setup, required), *(collector(setup) if otlp is not None else ())]
    else:
        found = examine(setup)
    if starts or required:
        from .doctor_checks import LAST, try_servers, worst_first

        found = [one for one in found if one.check != LAST]  # whether it still fails is seen now
        known = {one.about for one in found if one.severity is Severity.ERROR}
        tried = run_to_end(lambda: try_servers(setup, known, say, required or None))
        found = worst_first((*found, *tried))
    counts = {each.value: sum(one.severity is each for one in found) for each in Severity}
    details: dict[str, Any] = {
        "findings": [one.as_dict() for one in found],
        "files": list(config.files),
        "notSeenStarting": [] if starts or required else _not_seen(setup),
        **counts,
    }
    if required:
        details["required"] = [{"server": name, "tools": setup.tools.get(name)} for name in required]
        lines = _of_required(found, required, setup.tools)
    else:
        lines = _lines(found, config, details["notSeenStarting"], starts=starts)
    show("\n".join(lines), details, as_json, DoctorJson)
    return exit_code(found, Severity(least))


def _unreadable(error: ConfigError) -> Config:
    """A configuration without servers, of which the named file cannot be read: that is what is found."""
    from ..config.model import Config

    files = tuple(problem.where for problem in error.problems)
    return Config(problems=error.problems, files=files, places=files, unread=files)


def _not_seen(setup: Setup) -> list[str]:
    """The servers of which nobody knows how they start."""
    return [server.name for server in setup.in_service() if server.name not in setup.seen_starting]


def _found(found: Sequence[Finding]) -> Iterator[str]:
    for one in found:
        yield one_line(f"{MARKS[one.severity.value]} {one.about}: {one.what}")
        yield f"    → {' '.join(one.mend.splitlines())}"  # the rest stays, for a command may be in it


def _of_required(
    found: Sequence[Finding], required: Sequence[str], tools: Mapping[str, int]
) -> Iterator[str]:
    yield from _found(found)
    for name in required:
        if tools.get(name):
            yield one_line(f"✓ {name}: it starts, and has {counted(tools[name], 'tool')}")


def _lines(found: Sequence[Finding], config: Config, unseen: Sequence[str], *, starts: bool) -> Iterator[str]:
    yield from _found(found)
    if not found:
        yield f"✓ Nothing is wrong{'' if starts else ' that can be seen without starting a server'}."
    if unseen:
        names = ", ".join(unseen[:_NAMED]) + (", …" if len(unseen) > _NAMED else "")
        yield one_line(
            f"· Nobody has started these so far: {names}. To start each once: greenroom doctor --start"
        )
    if found:
        times = Counter(one.severity.value for one in found)
        yield f"Found: {', '.join(counted(times[each], each) for each in MARKS if times[each])}"
    count = len({*config.servers, *config.broken})
    yield f"{counted(count, 'server')}, from {', '.join(config.files) or 'no file'}"


_BY_HAND: Final = {  # how a start failed, and what may be behind it
    FailureKind.SILENCE.value: "Is it an MCP server on stdio? Such a server waits for input and prompts nobody.",
    FailureKind.EXIT.value: "Its command often tells more when you run it by hand.",
}
_NOT_AS_TYPED: Final = ("${", "***", "~")  # in a shell they would be something else, or are hidden here


@click.command("explain")
@click.argument("server", shell_complete=complete_servers)
@common_options
def explain_command(server: str, config_path: Path | None, pid: int | None, as_json: bool) -> None:
    """Say why SERVER is as it is, and what happens next.

    It says what SERVER does and since when, why, and what happens next; what happened before, and who has called it.
    What you can do stands behind the arrows, usually as a command. Below that is what `greenroom doctor` finds about
    it, its policies, and its entry with the file of each key.
    """
    from ..config.masking import redacted
    from .logs_command import has_printed

    config = load_asked(config_path, pid)
    if server not in config.servers and server not in config.broken:
        raise no_such_server(config, server)
    source = open_source(config_path, pid, config)
    typed = commands_typed()
    found = source.explain(server, typed)
    if "status" not in found:
        text = f'The running gateway does not know the server "{server}" yet. Try again in a moment.'
        step = f"If it still does not: {typed.about('doctor')}"
        raise UsageError(f"{text} {step}", server=server)
    if server in config.broken and found["status"]["status"] not in ("broken", "untrusted"):
        what = f"As read here its entry cannot be used: {config.broken[server]}. The gateway has read it otherwise."
        found["reasons"].insert(0, {"about": "state", "what": what, "step": None})
    if server in config.servers and not has_printed(config, server):
        logs = typed.about("logs", server)
        found["reasons"] = [{**one, "step": None} if one["step"] == logs else one for one in found["reasons"]]
    findings: list[Finding] = []
    if server in config.servers:
        findings = _findings(config, config_path, server, found["status"])
        findings = _without_causes(findings, found["reasons"], found["status"].get("failureKind"))
    said = redacted(config)
    entry, places = said["mcpServers"].get(server, {}), said["sources"]["mcpServers"].get(server, {})
    found["reasons"] = [*_with_command(found["reasons"], found["status"], entry)]
    details: dict[str, Any] = {
        "server": server,
        **found,
        "findings": [one.as_dict() for one in findings],
        "entry": entry,
        "sources": places,
        **source.origin,
    }
    show("\n".join(_explained(found, server, findings, entry, places)), details, as_json, ExplainedJson)


def _with_command(
    reasons: list[dict[str, Any]], row: Mapping[str, Any], entry: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """The reasons, and behind the one how its start failed, what to try with its command, which started."""
    for one in reasons:
        yield one
        hint = _BY_HAND.get(row.get("failureKind") or "") if one.get("about") == "failure" else None
        if row.get("failureKind") == FailureKind.SILENCE.value and "handshake" not in row["failure"]:
            hint = None  # it is an MCP server
        if hint is not None and "command" in entry and not row["cached"] and row["state"] != "connected":
            words = [entry["command"], *entry.get("args", ())]
            as_typed = not any(sign in word for word in words for sign in _NOT_AS_TYPED)
            command = shlex.join(words) if as_typed else "its command, which is below"
            own = [key for key in ("env", "cwd") if entry.get(key)]
            where = f" (with the {' and '.join(own)} that it has below)" if own else ""
            yield {"about": "failure", "what": hint, "step": f"run it by hand{where}: {command}"}


def _without_causes(
    findings: list[Finding], reasons: list[dict[str, Any]], kind: str | None
) -> list[Finding]:
    """The findings but for one that tells the cause of the last failure, which is of this kind, once more: what mends
    it becomes the step of that reason, in place of the reason's last sentence, which says it without the file."""
    failed = next((one for one in reasons if one.get("about") == "failure"), None)
    kept: list[Finding] = []
    for one in findings:
        if failed is None or kind is None or _CAUSES.get(one.check) != kind:
            kept.append(one)
        else:
            cause = str(failed["what"]).rpartition(". ")[0]
            failed |= {"what": f"{cause}." if cause else failed["what"], "step": one.mend}
    return kept


def _findings(config: Config, path: Path | None, server: str, row: Mapping[str, Any]) -> list[Finding]:
    from .doctor_checks import Setup, examine_one

    return examine_one(Setup(config, path, os.environ, commands_typed()), server, row)


def _explained(
    found: Mapping[str, Any],
    server: str,
    findings: Sequence[Finding],
    entry: Mapping[str, Any],
    places: Mapping[str, str],
) -> Iterator[str]:
    yield f"{server}: {_state(found)}"
    for reason in found["reasons"]:
        yield f"  {one_line(reason['what'])}"
    for step in dict.fromkeys(reason["step"] for reason in found["reasons"] if reason["step"] is not None):
        yield f"  → {one_line(step)}"
    for one in findings:
        place = "" if one.about == server else f"{one.about}: "
        yield f"{MARKS[one.severity.value]} {one_line(place + one.what)}"
        yield f"    → {one.mend}"
    if follows := found.get("policies"):
        yield f"its policies: {', '.join(_policy(one, {*places.values()}) for one in follows)}"
    if entry:
        yield f"its entry, from {', '.join(dict.fromkeys(places.values())) or 'the program'}:"
    shared = len(set(places.values())) < 2
    for key, value in entry.items():
        where = "" if shared or key not in places else f" ({places[key]})"
        yield f"  {one_line(f'{key}: {json.dumps(value, ensure_ascii=False)}{where}')}"


def _state(found: Mapping[str, Any]) -> str:
    """What it does now, in a word, and since when."""
    word, since = str(found["status"]["status"]).replace("-", " "), found.get("since")
    if since is not None:
        word = f"{word} {about(since)} ago" if word in ("failed", "lost") else f"{word} for {about(since)}"
    silence = silence_in_words(found["status"].get("silentFailures") or 0)
    return f"{word}, but it {silence}" if silence else word


def _policy(one: Mapping[str, str], of_entry: Collection[str]) -> str:
    """A policy, with its file if the entry, which stands below, is of others."""
    where = f" ({one['file']})" if one["file"] and one["file"] not in of_entry else ""
    return one_line(f"{one['key']} {one['value']}{where}")
