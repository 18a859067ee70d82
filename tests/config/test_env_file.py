"""What an `envFile` may say and why one cannot be read; and what the keyring has. Whole rooms with such values are in
`test_asked_values`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.support import run

from greenroom.config.secret_sources import Entry, kept, variables_in
from greenroom.errors import ConnectFailed


class Ring:
    """A keyring in memory. It is no `KeyringBackend`: those are chosen wherever somebody looks for a keyring."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, str], str] = {}

    def get_password(self, service: str, username: str) -> str | None:
        return self.entries.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.entries[service, username] = password


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> Ring:
    ours = Ring()
    monkeypatch.setattr("keyring.core._keyring_backend", ours)
    return ours


def test_each_entry_has_its_own_value(backend: str, ring: Ring) -> None:
    for service, name, value in (("mail", "me", " "), ("me", "mail", "swapped"), ("mail", "x", "one")):
        ring.set_password(service, name, value)

    async def main() -> None:
        asked = [Entry("mail", "me", "env.A"), Entry("me", "mail", "env.B"), Entry("mail", "x", "env.C")]
        found = await kept("s", asked, 60)
        assert found == {("mail", "me"): " ", ("me", "mail"): "swapped", ("mail", "x"): "one"}
        with pytest.raises(ConnectFailed, match=r"The value of env\.D of") as failed:
            await kept("s", [Entry("mail", "x", "env.C"), Entry("none", "n", "env.D")], 60)
        assert failed.value.server == "s"

    run(backend, main)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A=\n", {"A": ""}),
        ("A=1\nA=2\n", {"A": "2"}),
        ("A\nB=2\n", {"B": "2"}),
        ("\n# x\nexport A='1\n2' # y\n", {"A": "1\n2"}),
        ("A=$B ${C}\n", {"A": "$B ${C}"}),
        ("A=" + "x" * 65_534, {"A": "x" * 65_534}),
        ("", {}),
        ("'A=B'=1\n", None),
        ("''=1\n", 1),
        ("A=1\n# x\nnot this\n", 3),
        ("A=1\n\nnot this\n", 3),
        ("\r\nA=1\r\n\r\n# x\r\n  \r\n nor this\r\n", 6),
        ("\n\nA=1\n\nB='\n\n", 5),
    ],
)
def test_what_an_env_file_says(tmp_path: Path, text: str, found: Any) -> None:
    file = tmp_path / ".env"
    file.write_bytes(text.encode())
    if isinstance(found, dict):
        assert variables_in(os.fspath(file), "s") == found
        return
    with pytest.raises(ConnectFailed) as failed:
        variables_in(os.fspath(file), "s")
    assert failed.value.server == "s"
    assert ("no process can be given" if found is None else f"in line {found}: ") in failed.value.message


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (FileNotFoundError(2, "x"), "does not exist: create it, or correct the path"),
        (IsADirectoryError(21, "x"), "is not a regular file: name the file itself"),
        (PermissionError(13, "Permission denied"), "cannot be read (Permission denied)"),
        (OSError(5, None), "cannot be read (Input/output error)"),
        (OverflowError(), "has more than 65,536 bytes: name another file"),
        (ValueError("embedded null byte"), "cannot be read (it is no path)"),
    ],
)
def test_why_an_env_file_cannot_be_read(error: Exception, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(file: str, most: int) -> bytes:
        assert (file, most) == ("/x/.env", 65_536)
        raise error

    monkeypatch.setattr("greenroom.config.secret_sources.read_regular", read)
    with pytest.raises(ConnectFailed) as failed:
        variables_in("/x/.env", "s")
    assert failed.value.message.endswith(f'The envFile of server "s", /x/.env, {why}.')
    assert failed.value.server == "s"
