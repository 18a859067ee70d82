"""Values that are the output of a command: `"!gh auth token"`. Real commands, real servers."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path

import anyio
import pytest
from tests.support import in_real_time, run
from tests.support.gateway import PATIENCE, alive, gone_within
from tests.support.raw_http import raw_http
from tests.support.teller import room_of, teller

from greenroom.actors.transports._guard_program import children_of
from greenroom.actors.transports.orphans import strays
from greenroom.config.asked_values import command_in
from greenroom.config.credentials import SecretValue
from greenroom.config.known_secrets import KnownSecrets
from greenroom.config.masking import redacted
from greenroom.config.parse import ConfigLayer, merge, parse_config
from greenroom.config.references import expand_definition, without_asked
from greenroom.config.secret_sources import LARGEST_OUTPUT as LARGEST
from greenroom.config.secret_sources import CommandRun, NoOutput, SecretCommand, answers, failure_of
from greenroom.errors import ConnectFailed


@in_real_time
async def test_a_command_gives_the_value_at_each_start_and_nobody_else_sees_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_OURS", "hand-over")
    count = tmp_path / "count"
    entry = teller(
        env={"TOKEN": f"!echo x >> {count}; echo $OF_OURS-$(wc -l < {count})-planted", "PLAIN": "!!text"}
    )
    entry["args"] += ["!echo 'of an argument'"]
    async with room_of(t=entry) as room:
        assert not count.exists()
        for start in ("1", "2"):
            said = json.loads((await room.call("t_tell")).text)
            assert [said[0].replace(" ", ""), *said[1:]] == [
                f"hand-over-{start}-planted",
                "!text",
                ["of an argument"],
            ]
            await room.restart("t")
        with pytest.raises(Exception, match="fatal") as lost:
            await room.call("t_die")
        assert "planted" not in str(lost.value)
        assert "planted" not in str(room.status())
        assert "planted" not in json.dumps(redacted(room.config))


@in_real_time
async def test_a_header_that_cannot_be_sent_says_which_and_nothing_of_what_the_command_gave() -> None:
    with raw_http() as server:
        entry = {"url": server.url, "headers": {"X-Key": "!printf 'planted\\nsecret'"}}
        async with room_of(raw=entry) as room:
            with pytest.raises(ConnectFailed, match=r"headers\.X-Key, which a command gives: ") as failed:
                await room.connect("raw")
    assert "planted" not in str(failed.value)
    assert server.requests == []


@in_real_time
async def test_a_bearer_token_from_a_command_is_sent_as_one() -> None:
    with raw_http() as server:
        entry = {
            "url": server.url,
            "bearerToken": "!echo from-a-command",
            "headers": {"X-Two": "!echo two words"},
        }
        async with room_of(h=entry) as room:
            assert (await room.call("h_ok")).text == "ok"
        seen = {(each.headers["authorization"], each.headers["x-two"]) for each in server.requests}
        assert seen == {("Bearer from-a-command", "two words")}


@pytest.mark.parametrize(
    ("command", "what"),
    [
        ("echo planted-secret; echo planted-secret >&2; exit 4", "failed with exit code 4"),
        ("kill -9 $$", "was killed by signal 9"),
        ("true planted-secret", "wrote nothing"),
        (r"printf '\377'", "not UTF-8"),
        (f"yes planted-secret | head -c {LARGEST + 100_000}", "wrote more than"),
        ("a\0b", "a NUL in it"),
    ],
)
@in_real_time
async def test_a_failure_names_the_place_and_shows_nothing_that_was_said(command: str, what: str) -> None:
    with pytest.raises(ConnectFailed) as failed:
        await answers("s", [SecretCommand(command, "env.TOKEN")], 60)
    assert 'The command for env.TOKEN of server "s"' in str(failed.value)
    assert what in str(failed.value)
    assert "planted" not in str(failed.value)


SHELL = ("/bin/sh", "-c")
SETTING = "the setting"


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (CommandRun((*SHELL, "sleep 0.3; echo ' late '"), 60, SETTING), "late"),
        (CommandRun((*SHELL, "printf 0123456789"), 60, SETTING, most=10), "0123456789"),
        (CommandRun((*SHELL, "printf 0123456789"), 60, SETTING, most=9), NoOutput("wrote more than 9 bytes")),
        (CommandRun((*SHELL, "echo $OURS-$GIVEN"), 60, SETTING, environ={"GIVEN": "given"}), "-given"),
        (CommandRun((*SHELL, "echo $OURS-$GIVEN"), 60, SETTING), "ours-"),
        (CommandRun(("/bin/cat",), 60, SETTING, given=lambda: b"an input"), "an input"),
        (CommandRun(("/bin/cat",), 60, SETTING), NoOutput("wrote nothing to its standard output")),
        (CommandRun(("/no/such/program",), 60, SETTING), NoOutput("could not be started (No such file or directory)")),
        (CommandRun((*SHELL, "exec sleep 1000"), 0.2, SETTING), NoOutput("has not ended in 0.2 s (the setting)")),
        (
            CommandRun((*SHELL, "echo planted; exec >&-; exec sleep 1000"), 0.2, SETTING),
            NoOutput("has not ended in 0.2 s (the setting)"),
        ),
        (CommandRun((*SHELL, "echo planted; exec >&-; sleep 0.2"), 60, SETTING), "planted"),
    ],
)  # fmt: skip
@in_real_time
async def test_a_run_of_a_program_gives_what_it_wrote_or_says_why_not(
    job: CommandRun, said: str | NoOutput, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OURS", "ours")
    assert await job.output() == said
    assert failure_of(said) == (said.what if isinstance(said, NoOutput) else None)
    assert "planted" not in repr(job)


def test_each_different_command_is_run_once_and_a_failure_ends_the_others(
    backend: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    one, two, fails = (
        f"echo {name} >> {tmp_path}/runs; echo {name}-planted; echo {name}-planted >&2; {end}"
        for name, end in (("one", "true"), ("two", "true"), ("three", "exit 3"))
    )

    async def main() -> None:
        asked = [SecretCommand(one, "env.A"), SecretCommand(two, "args[0]"), SecretCommand(one, "env.B")]
        assert await answers("s", asked, 60) == {one: "one-planted", two: "two-planted"}
        with pytest.raises(ConnectFailed, match=r"The command for env\.C of server") as failed:
            await answers("s", [SecretCommand(fails, "env.C"), SecretCommand(one, "env.D")], 60)
        assert failed.value.server == "s"

    run(backend, main)
    assert (tmp_path / "runs").read_text().split() == ["one", "two", "three"]
    assert "planted" not in "".join(capfd.readouterr())


def test_a_command_that_takes_too_long_fails_the_start_and_its_processes_are_gone(
    backend: str, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    entry = teller(env={"TOKEN": f"!echo $$ > {pids}; sleep 1000 & echo $! >> {pids}; wait"})

    async def main() -> None:
        async with room_of({"secretTimeoutMs": 300}, t=entry) as room:
            with pytest.raises(
                ConnectFailed, match=r'has not ended in 0\.3 s \(the setting "secretTimeoutMs"\)'
            ):
                await room.connect("t")

    run(backend, main)
    said = pids.read_text().split() if pids.exists() else []  # it may have been killed before it could write
    assert gone_within({int(pid) for pid in said}) == set()


@pytest.mark.parametrize("command", ["echo $$; exec sleep 1000", "echo $$; exec >&-; exec sleep 1000"])
@in_real_time
async def test_a_command_that_nobody_waits_for_any_more_is_killed_first(tmp_path: Path, command: str) -> None:
    place = tmp_path / "pid"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(
            answers,
            "s",
            [SecretCommand(f"echo $$ > {place}.new; mv {place}.new {place}; {command}", "x")],
            600,
        )
        while not place.exists():
            await anyio.sleep(0.01)
        assert alive({int(place.read_text())})
        tasks.cancel_scope.cancel()
    assert not alive({int(place.read_text())})


@in_real_time
async def test_a_running_command_is_nobodys_orphan(tmp_path: Path) -> None:
    """A gateway ends and reaps children that it did not start and that are in another session."""
    pid, go = tmp_path / "pid", tmp_path / "go"
    command = f"echo $$ > {pid}.new; mv {pid}.new {pid}; until [ -e {go} ]; do sleep 0.02; done; echo planted"
    found: dict[str, str] = {}

    async def ask() -> None:
        found.update(await answers("t", [SecretCommand(command, "env.TOKEN")], PATIENCE))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        while not pid.exists():
            await anyio.sleep(0.02)
        assert int(pid.read_text()) in children_of(os.getpid())
        assert int(pid.read_text()) not in [stray.pid for stray in strays(())]
        go.touch()
    assert found == {command: "planted"}


def test_a_command_is_read_where_a_thousand_descriptors_are_open(backend: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(2048, hard)), hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]

    async def main() -> None:
        assert await answers("t", [SecretCommand("echo planted", "env.TOKEN")], PATIENCE) == {
            "echo planted": "planted"
        }

    try:
        assert max(held) > 1023
        run(backend, main)
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_only_what_stands_in_the_file_is_a_command() -> None:
    environ = {"EVIL": "!touch /tmp/x", "BANG": "!!"}
    entry = {"command": "x", "args": ["${EVIL}", "!!a", "!", "!echo ${NOPE}"], "env": {"A": "${BANG}"}}
    config = parse_config({"mcpServers": {"s": entry}}, environ=environ)
    assert config.problems == ()
    expanded = expand_definition(config.servers["s"], environ).definition
    assert expanded.args == ("!touch /tmp/x", "!a", "!", "!echo ${NOPE}")
    assert expanded.env == {"A": "!!"}
    assert [command_in(text) for text in ("!a", "Bearer !a", "!!a", "!", "! ", "Bearer x")] == [
        *("a", "a"),
        *[None] * 4,
    ]


def test_who_runs_no_commands_sends_none_of_them() -> None:
    headers = {"A": "!a", "Authorization": "Bearer !b", "C": "c"}
    config = parse_config({"mcpServers": {"s": {"url": "http://x.example", "headers": headers}}})
    assert [*without_asked(config.servers["s"]).headers] == ["Authorization", "C"]


def test_another_file_does_not_get_what_a_command_gives() -> None:
    own = {"command": "node", "args": ["s.js", "!pass show x"], "env": {"T": "!pass show y"}}
    project = {"cwd": "."}
    config = merge(
        [
            ConfigLayer("project", {"mcpServers": {"s": project}}),
            ConfigLayer("own", {"mcpServers": {"s": own}}),
        ]
    )
    assert (config.servers["s"].args, dict(config.servers["s"].env)) == ((), {})


def test_the_answers_of_the_last_starts_are_known_and_older_ones_are_forgotten() -> None:
    known = KnownSecrets()
    known.learn("s", "definition", lambda: [SecretValue("token", "of-the-definition")])
    for number in range(20):
        known.answered("s", (SecretValue("the secret", f"answer-{number:03}"),))
        known.answered("s", (SecretValue("the secret", f"answer-{number:03}"),))
    from greenroom.protocol.address import Address

    said = known.of(Address("s")).without("answer-003 answer-004 answer-019 of-the-definition")
    assert said == "answer-003 *** *** ***"
