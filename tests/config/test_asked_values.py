"""Values that are in no file of ours: those of an `envFile`, and of the keyring. Real servers, and a keyring of the
test's own in place of the system's."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support import in_real_time
from tests.support.patience import PATIENCE
from tests.support.raw_http import raw_http
from tests.support.rows import for_each
from tests.support.teller import room_of, teller

from greenroom import Greenroom
from greenroom.actors.timers import at_most
from greenroom.config.asked_values import command_in, is_asked, keyring_in, with_answer
from greenroom.config.files import load_config
from greenroom.config.masking import redacted
from greenroom.config.model import ServerDefinition
from greenroom.config.parse import ConfigLayer, merge, parse_config
from greenroom.config.references import asked_of, without_asked
from greenroom.config.secret_sources import LARGEST_ENV_FILE as LARGEST
from greenroom.config.secret_sources import KeyringEntry, kept, variables_in
from greenroom.errors import ConnectFailed


def load(folder: Path, **servers: Any) -> Any:
    (folder / "conf").mkdir(exist_ok=True)
    file = folder / "conf" / "mcp.json"
    file.write_text(json.dumps({"mcpServers": servers}))
    return load_config(file, cwd=folder, home=folder, environ={"HOME": os.fspath(folder)})


# ---- env files -----------------------------------------------------------------------------------------------------


@in_real_time
async def test_an_env_file_beside_its_configuration_is_read_at_each_start_and_env_is_stronger(
    tmp_path: Path,
) -> None:
    config = load(tmp_path, t=teller(envFile="of/it.env", env={"PLAIN": "from env"}))
    file = tmp_path / "conf" / "of" / "it.env"
    file.parent.mkdir()
    file.write_text("# planted-comment\nexport TOKEN='planted-1 ${HOME}'\nPLAIN=from the file\nnothing\n")
    async with Greenroom.open(config, cache_path=":memory:") as room:
        said = json.loads((await room.call("t_tell")).text)
        assert said[:2] == ["planted-1 ${HOME}", "from env"]
        file.write_text("TOKEN=planted-2")
        await room.restart("t")
        assert json.loads((await room.call("t_tell")).text)[0] == "planted-2"
        with pytest.raises(Exception, match="fatal") as lost:
            await room.call("t_die")
        for shown in (str(lost.value), str(room.status()), json.dumps(redacted(room.config))):
            assert "planted" not in shown


@in_real_time
async def test_a_reload_starts_a_server_again_whose_env_file_has_changed_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    entries = {"t": teller(envFile=".env"), "u": teller(envFile="~/other.env")}
    file, other = tmp_path / "conf" / ".env", tmp_path / "other.env"
    file.write_text("TOKEN=one")
    other.write_text("TOKEN=other")
    config = load(tmp_path, **entries)
    assert {os.fspath(file), os.fspath(other)} <= set(config.places), "they are watched"
    async with Greenroom.open(config, cache_path=":memory:") as room:
        for name in entries:
            await room.connect(name)
        file.write_text("TOKEN=another")
        await room.reload(load(tmp_path, **entries))
        assert json.loads((await room.call("t_tell")).text)[0] == "another"
        assert {row.server: row.incarnation for row in room.status()} == {"t": 2, "u": 1}
    before = load(tmp_path, **entries).servers["t"].env_file_state
    file.write_text("TOKEN=as-long")
    os.utime(file, (1, 1))
    later = load(tmp_path, **entries).servers["t"].env_file_state
    file.with_name("new").write_text("TOKEN=put-in")
    os.utime(file.with_name("new"), (1, 1))
    file.with_name("new").rename(file)
    assert len({before, later, load(tmp_path, **entries).servers["t"].env_file_state}) == 3


def test_an_env_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"\xef\xbb\xbfA=1\r\nB=2\n")
    assert variables_in(str(tmp_path / ".env"), "t") == {"A": "1", "B": "2"}


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda file: None, "does not exist: create it"),
        (lambda file: file.mkdir(), "is a directory"),
        (os.mkfifo, "is not a regular file"),
        (lambda file: file.symlink_to(file), "cannot be read"),
        (lambda file: file.write_bytes(b"A=planted\xff"), "is not UTF-8 (byte 9)"),
        (lambda file: file.write_bytes(b"A=planted" + b"x" * LARGEST), "has more than 65,536 bytes"),
        (lambda file: file.write_bytes(b"A=planted\0x"), "no process can be given"),
        (lambda file: file.write_bytes(b"A=1\nplanted secret\n"), "cannot be read in line 2"),
        (lambda file: file.write_bytes(b"A=1\nB='planted\n"), "cannot be read in line 2"),
        (lambda file: file.symlink_to("/dev/zero"), "is not a regular file"),
    ],
)
def test_an_env_file_that_cannot_be_used_is_named_and_nothing_of_it_shown(
    tmp_path: Path, make: Any, why: str
) -> None:
    file = tmp_path / ".env"
    make(file)
    with pytest.raises(ConnectFailed) as failed:
        variables_in(os.fspath(file), "s")
    assert f'The envFile of server "s", {file}, ' in str(failed.value)
    assert why in str(failed.value)
    assert failed.value.server == "s"
    assert "planted" not in str(failed.value)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", {}),
        (b"A=\nB=0\n", {"A": "", "B": "0"}),
        (b"A\nB = b \n", {"B": "b"}),
        (b"# A=1\n\nexport B='x # y'\nC=\"1\n2\" # z\n", {"B": "x # y", "C": "1\n2"}),
        (b"A=1\nA=2\n", {"A": "2"}),
        (b"A=b=c\nB=$C ${D}\n", {"A": "b=c", "B": "$C ${D}"}),
        (b"A=" + b"x" * (65_536 - 2), {"A": "x" * (65_536 - 2)}),
        ("Ä=ö\n".encode(), {"Ä": "ö"}),
        (b"'A=B'=x\n", "no process can be given"),
        (b"'A\0'=x\n", "no process can be given"),
        (b"''=1\n", "in line 1: "),
        (b"A=1\n# x\nnot this\n", "in line 3: "),
        (b"\r\nA=1\r\n\r\n# x\r\n  \r\n nor this\r\n", "in line 6: "),
        (b"\n\nA=1\n\nB='\n\n", "in line 5: "),
    ],
)
def test_an_env_file_is_read_as_other_tools_read_it(tmp_path: Path, content: bytes, found: Any) -> None:
    (tmp_path / ".env").write_bytes(content)
    if isinstance(found, dict):
        assert variables_in(os.fspath(tmp_path / ".env"), "s") == found
        return
    with pytest.raises(ConnectFailed, match=found) as failed:
        variables_in(os.fspath(tmp_path / ".env"), "s")
    assert failed.value.server == "s"


def test_an_env_file_whose_name_is_no_path_is_named() -> None:
    with pytest.raises(ConnectFailed, match=r"cannot be read \(it is not a path\)"):
        variables_in("/x/\0", "s")


def test_an_env_file_belongs_to_the_command_it_was_written_for() -> None:
    own = ConfigLayer("own", {"mcpServers": {"s": {"command": "mine", "envFile": "/own/.env"}}})
    for change in ({"args": ["theirs.py"]}, {"command": "theirs"}, {"cwd": "theirs"}):
        config = merge([ConfigLayer("project", {"mcpServers": {"s": {"command": "mine", **change}}}), own])
        assert config.servers["s"].env_file is None


# ---- the keyring ---------------------------------------------------------------------------------------------------


class Ring:
    """A keyring in memory. `slow`: it answers when this is set. It is no `KeyringBackend`: those are chosen wherever
    somebody looks for a keyring, in all later tests of this process."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, str], str] = {}
        self.slow: threading.Event | None = None

    def get_password(self, service: str, username: str) -> str | None:
        if self.slow is not None:
            self.slow.wait(PATIENCE)
        if service == "locked":
            raise RuntimeError("planted")
        return self.entries.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.entries[service, username] = password


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> Ring:
    ours = Ring()
    monkeypatch.setattr("keyring.core._keyring_backend", ours)
    return ours


@in_real_time
async def test_the_keyring_gives_values_and_nobody_else_sees_them(ring: Ring) -> None:
    ring.set_password("mail", "me@example.com/x", "planted-1")
    ring.set_password("mail", "a", "planted-2")  # the same service
    entry = teller(env={"TOKEN": {"keyring": "mail/me@example.com/x"}})
    entry["args"] += [{"keyring": "mail/a"}]
    with raw_http() as server:
        web = {
            "url": server.url,
            "bearerToken": {"keyring": "mail/a"},
            "headers": {"X-One": {"keyring": "mail/me@example.com/x"}},
        }
        async with room_of(t=entry, w=web) as room:
            said = json.loads((await room.call("t_tell")).text)
            assert (said[0], said[2]) == ("planted-1", ["planted-2"])
            assert (await room.call("w_ok")).text == "ok"
            with pytest.raises(Exception, match="fatal") as lost:
                await room.call("t_die")
            for shown in (str(lost.value), str(room.status()), json.dumps(redacted(room.config))):
                assert "planted" not in shown
        seen = {(each.headers["authorization"], each.headers["x-one"]) for each in server.requests}
        assert seen == {("Bearer planted-2", "planted-1")}


@pytest.mark.parametrize(
    ("service", "why"),
    [
        ("none", "is not there: add it with `keyring set none n`"),
        ("empty", "is empty: add it with `keyring set empty n`"),
        ("locked", "cannot be read (RuntimeError): unlock the keyring"),
        ("nul", "holds a NUL"),
    ],
)
@in_real_time
async def test_an_entry_that_cannot_be_had_fails_the_start_with_the_next_step(
    ring: Ring, service: str, why: str
) -> None:
    ring.set_password("nul", "n", "planted\0")
    ring.set_password("empty", "n", "")
    with pytest.raises(ConnectFailed) as failed:
        await kept("s", [KeyringEntry(service, "n", "env.TOKEN")], 60, at_most)
    assert 'The value of env.TOKEN of server "s", which the keyring keeps, ' in str(failed.value)
    assert why in str(failed.value)
    assert failed.value.server == "s"
    assert "planted" not in str(failed.value)


@in_real_time
async def test_each_entry_of_the_keyring_is_what_it_is(ring: Ring) -> None:
    entries = {("a", "b"): "one", ("b", "a"): "two", ("a", "c"): " "}
    ring.entries.update(entries)
    assert await kept("s", [KeyringEntry(*each, "env.TOKEN") for each in entries], 60, at_most) == entries
    assert await kept("s", [], 60, at_most) == {}
    with pytest.raises(ConnectFailed, match=r"The value of env\.D of") as failed:
        await kept("s", [KeyringEntry("a", "b", "env.C"), KeyringEntry("none", "n", "env.D")], 60, at_most)
    assert failed.value.server == "s"


@in_real_time
async def test_a_value_that_no_header_may_have_is_named_by_its_place(ring: Ring) -> None:
    ring.set_password("mail", "a", "planted\nSet-Cookie: x")
    with raw_http() as server:
        web = {"url": server.url, "headers": {"X-One": {"keyring": "mail/a"}}}
        async with room_of(w=web) as room:
            with pytest.raises(ConnectFailed, match=r"headers\.X-One, which the keyring keeps: ") as failed:
                await room.call("w_ok")
            assert "planted" not in str(failed.value)
        assert server.requests == []


@in_real_time
async def test_a_keyring_that_asks_its_owner_is_not_waited_for_without_end(ring: Ring) -> None:
    ring.slow = threading.Event()
    try:
        with pytest.raises(ConnectFailed, match=r"has not come in 0\.05 s"):
            await kept("s", [KeyringEntry("a", "n", "env.TOKEN")], 0.05, at_most)
        with anyio.move_on_after(0.05) as over:
            await kept("s", [KeyringEntry("a", "n", "env.TOKEN")], 60, at_most)
        assert over.cancelled_caught
    finally:
        ring.slow.set()  # pyright: ignore[reportOptionalMemberAccess]


@in_real_time
async def test_without_the_extra_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(ConnectFailed, match=r'pip install "greenroom\[keyring\]"'):
        await kept("s", [KeyringEntry("a", "n", "env.TOKEN")], 60, at_most)


@for_each(
    "value",
    [
        {"keyring": "no-name"},
        {"keyring": 3},
        {"keyring": "a/b", "more": 1},
        {},
        {"keyring": "a/}"},
        {"key": "a/b"},
    ],
)
@for_each("place", ["env", "args", "bearerToken"])
def test_another_object_is_no_value(value: Any, place: str) -> None:
    entry = {
        "env": {"command": "c", "env": {"A": value}},
        "args": {"command": "c", "args": [value]},
        "bearerToken": {"url": "http://127.0.0.1/mcp", "bearerToken": value},
    }[place]
    config = parse_config({"mcpServers": {"s": entry}}, strict=False)
    assert 'must be a string, or {"keyring": "service/name"}' in str(config.broken["s"])


def test_an_entry_in_words_is_one_and_nothing_else_is() -> None:
    config = parse_config(
        {"mcpServers": {"s": {"command": "c", "env": {"A": {"keyring": "a/b/c"}, "B": "x"}}}}
    )
    assert [*asked_of(config.servers["s"])] == [("env", "A", "${keyring:a/b/c}")]
    assert keyring_in("Bearer ${keyring:a/b}") == ("a", "b")
    assert [
        keyring_in(text) for text in ("${keyring:a}", "x${keyring:a/b}", "${keyring:a/b}y", "keyring:a/b")
    ] == ([None] * 4)


def test_another_file_does_not_get_what_the_keyring_keeps() -> None:
    own = {"command": "mine", "args": ["-x", {"keyring": "a/b"}], "env": {"T": {"keyring": "a/b"}}}
    layers = [
        ConfigLayer("project", {"mcpServers": {"s": {"cwd": "theirs"}}}),
        ConfigLayer("own", {"mcpServers": {"s": own}}),
    ]
    assert [*asked_of(merge(layers).servers["s"])] == []


@for_each(
    ("text", "command"),
    [
        ("!get it", "get it"),
        ("Bearer !get it", "get it"),
        ("!", None),
        ("!  ", None),
        ("!!get", None),
        ("Bearer !!get", None),
        ("Bearer", None),
        ("bearer !get", None),
        (" !get", None),
        ("a!get", None),
        ("", None),
    ],
)
def test_a_command_is_what_begins_with_one_mark(text: str, command: str | None) -> None:
    assert command_in(text) == command
    assert is_asked(text) is (command is not None)
    assert with_answer(text, "answer") == ("Bearer answer" if text.startswith("Bearer ") else "answer")


def test_what_is_asked_for_is_found_in_each_place_and_left_out_for_who_does_not_ask() -> None:
    definition = ServerDefinition(
        "s",
        command="x",
        args=("-v", "!a", "${keyring:s/n}"),
        env={"A": "!b", "B": "plain"},
        headers={"X": "!c", "AUTHORIZATION": "Bearer !d", "Y": "Bearer ${keyring:s/n}", "Z": "plain"},
    )
    assert [*asked_of(definition)] == [
        ("args", 1, "!a"),
        ("args", 2, "${keyring:s/n}"),
        ("env", "A", "!b"),
        ("headers", "X", "!c"),
        ("headers", "AUTHORIZATION", "Bearer !d"),
        ("headers", "Y", "Bearer ${keyring:s/n}"),
    ]
    assert without_asked(definition).headers == {"AUTHORIZATION": "Bearer !d", "Z": "plain"}
