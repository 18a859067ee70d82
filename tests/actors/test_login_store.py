"""Where logins are kept, ours and pi's: a file for each server and URL, whole or not at all, one change at a time."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.actors.sample_login import OURS, put
from tests.support.rows import for_each

from greenroom.actors.login.login_record import LoginFailed
from greenroom.actors.login.login_store import LoginStore, pi_agent, pi_folder, pi_login


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LoginStore:
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.fail.Keyring")
    return LoginStore(tmp_path / "logins")


def test_a_login_has_its_own_file_for_each_server_and_url(store: LoginStore) -> None:
    assert store.path("ab", "c") != store.path("a", "bc")
    assert store.path("a\n", "b") == store.path("a\n", "b")
    assert store.path("a", "b").parent == store.folder


def test_a_file_of_another_server_is_no_login_of_this_one(store: LoginStore) -> None:
    put(store, OURS)
    store.path("s", "http://h/mcp").rename(store.path("s", "http://h/other"))
    assert store.load("s", "http://h/other") is None
    store.path("s", "http://h/other").rename(store.path("other", "http://h/mcp"))
    assert store.load("other", "http://h/mcp") is None


def test_what_is_kept_has_a_stamp_that_changes_with_it_and_a_lock_that_is_ours(store: LoginStore) -> None:
    assert (store.stamp("s", "http://h/mcp"), store.may_have("s", "http://h/mcp")) == (None, False)
    put(store, OURS)
    stamps = {store.stamp("s", "http://h/mcp")}
    assert store.may_have("s", "http://h/mcp")
    put(store, attrs.evolve(OURS, access_token="ACCESS"))
    stamps.add(store.stamp("s", "http://h/mcp"))
    assert len(stamps) == 2, "of the same size"
    modes = {file.suffix: stat.S_IMODE(file.stat().st_mode) for file in store.folder.iterdir()}
    assert modes == {".json": 0o600, ".lock": 0o600}, "and nothing else is left there"


def test_a_login_that_cannot_be_written_leaves_the_older_one_and_no_half_of_it(
    store: LoginStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = put(store, OURS)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("greenroom.actors.login.login_store.os.fsync", full)
    with pytest.raises(LoginFailed, match=r"logins cannot be kept in .*: No space left on device"):
        put(store, attrs.evolve(OURS, access_token="never"))
    monkeypatch.undo()
    assert store.load("s", "http://h/mcp") == old
    assert {file.suffix for file in store.folder.iterdir()} == {".json", ".lock"}


def test_who_waits_too_long_for_another_process_is_told(
    store: LoginStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("greenroom.actors.login.login_store.LOCK_WITHIN", 0.01)
    with (
        store.locked("s", "u"),
        pytest.raises(LoginFailed, match="another process has been changing the login for a minute"),
        store.locked("s", "u"),
    ):
        raise AssertionError("both have it")


@for_each(
    ("environ", "named", "folder"),
    [
        ({}, None, "~/.pi/agent/mcp-oauth"),
        ({}, " ", "~/.pi/agent/mcp-oauth"),
        ({}, " /named ", "/named"),
        ({"MCP_OAUTH_DIR": " /said "}, "/named", "/said"),
        ({"MCP_OAUTH_DIR": " "}, "~/named", "~/named"),
        ({"PI_CODING_AGENT_DIR": "/agent"}, None, "/agent/mcp-oauth"),
    ],
)
def test_where_pi_keeps_its_logins(environ: dict[str, str], named: str | None, folder: str) -> None:
    assert pi_folder(environ, named) == Path(folder).expanduser()
    assert pi_agent(environ) == Path(environ.get("PI_CODING_AGENT_DIR", "~/.pi/agent")).expanduser()


def test_a_login_of_pi_is_its_token_with_what_pi_knows_of_it() -> None:
    tokens = {"accessToken": "t", "issuer": "https://i", "scope": "a", "expiresAt": 5, "refreshToken": "no"}
    entry = {"serverUrl": "http://h", "tokens": tokens}
    found = pi_login(json.dumps(entry), "s", "http://h")
    again = pi_login(json.dumps(entry).encode(), "s", "http://h")
    assert found is not None
    assert again == found, "the same login has the same id whenever it is read"
    kept = attrs.asdict(found)
    assert kept["made"] == kept["id"] != "t"
    assert {name: value for name, value in kept.items() if value and name not in ("made", "id")} == {
        "server": "s",
        "url": "http://h",
        "access_token": "t",
        "issuer": "https://i",
        "grant": "pi",
        "scope": "a",
        "expires_at": 5,
    }
    other = pi_login(json.dumps({**entry, "tokens": {"accessToken": "t2"}}), "s", "http://h")
    assert other is not None
    assert (other.issuer, other.scope, other.made == found.made) == ("", None, False)
    for wrong in (
        {"tokens": tokens},
        {**entry, "serverUrl": None},
        {**entry, "tokens": {"accessToken": "a b"}},
    ):
        assert pi_login(json.dumps(wrong), "s", "http://h") is None
