"""The chain of an audit file: every change is found at its line; and the file that a room writes."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.rows import for_each

from greenroom.cli.main import run as command_line
from greenroom.protocol.errors import UsageError
from greenroom.safety import audit
from greenroom.safety import audit_file as module
from greenroom.safety.audit_file import AuditFile

A_CALL = {"kind": "call", "tool": "a_echo", "outcome": "result"}
NOWHERE = "f" * 64


def chain(*records: Mapping[str, Any], seq: int = 0, prev: str = audit.GENESIS) -> list[bytes]:
    """The lines of a file with these records."""
    lines: list[bytes] = []
    for record in records:
        seq += 1
        line, prev = audit.line_of({"time": f"t{seq}", **record}, seq, prev)
        lines.append(line)
    return lines


def last_hash(lines: list[bytes]) -> str:
    return audit.read_line(lines[-1][:-1]).hash


def whole(count: int = 5) -> list[bytes]:
    return chain({"kind": "opened"}, *({**A_CALL, "n": n} for n in range(count - 2)), {"kind": "closed"})


def bad_line(lines: list[bytes], **how: Any) -> int | None:
    found = audit.check(io.BytesIO(b"".join(lines)), **how).bad
    return None if found is None else found.line


# ---- the chain -------------------------------------------------------------------------------------------------------


def test_a_line_is_one_json_object_that_stands_on_the_one_before() -> None:
    first, second = chain({"kind": "call", "tool": "a\nb\u202e\u200bü"}, {"kind": "closed"})
    assert first.count(b"\n") == 1
    assert "ü".encode() in first
    assert rb"\u202e\u200b" in first
    record = json.loads(first)
    assert (record["v"], record["seq"], record["tool"]) == (1, 1, "a\nb\u202e\u200bü")
    assert record["prev"] == "0" * 64
    body = first[: -len(b',"hash":""}\n') - 64] + b"}"
    assert json.loads(second)["prev"] == record["hash"] == hashlib.sha256(body).hexdigest()


def test_a_whole_file_is_counted() -> None:
    lines = whole()
    report = audit.check(lines, expect=last_hash(lines[:3]))
    assert (report.lines, report.calls, report.missing, report.bad) == (5, 3, 0, None)
    assert (report.first_time, report.last_time, report.last_hash) == ("t1", "t5", last_hash(lines))
    assert (report.expected_at, report.ended, report.remarks) == (3, True, [])
    assert audit.check(lines[:4]).ended is False
    empty = audit.check([])
    assert empty.bad is not None
    assert empty.bad.line == 1
    assert "the file is empty" in empty.bad.why


FILES = st.integers(2, 8).map(whole)


@given(FILES, st.data())
def test_any_byte_that_is_changed_added_or_taken_out_is_found_at_its_line(
    lines: list[bytes], data: st.DataObject
) -> None:
    text = b"".join(lines)
    at = data.draw(st.integers(0, len(text)))
    number = text[:at].count(b"\n") + 1
    new = bytes([data.draw(st.integers(0, 255))])
    if at == len(text) or data.draw(st.booleans(), label="added"):
        changed = text[:at] + new + text[at:]
        # The same byte again moves nothing until the run of it ends.
        number = next(
            (changed[:i].count(b"\n") + 1 for i in range(len(text)) if text[i] != changed[i]), number
        )
    elif data.draw(st.booleans(), label="taken out"):
        changed = text[:at] + text[at + 1 :]
        number = next(
            (text[:i].count(b"\n") + 1 for i in range(len(changed)) if text[i] != changed[i]), number
        )
    elif new == text[at : at + 1]:
        return
    else:
        changed = text[:at] + new + text[at + 1 :]
    assert bad_line([changed]) == number


@given(FILES, st.data())
def test_a_line_that_is_taken_out_moved_or_doubled_is_found_there(
    lines: list[bytes], data: st.DataObject
) -> None:
    count = len(lines)
    at = data.draw(st.integers(0, count - 2))
    assert bad_line(lines[:at] + lines[at + 1 :]) == at + 1
    assert bad_line([*lines[: at + 1], *lines[at:]]) == at + 2
    other = data.draw(st.integers(at + 1, count - 1))
    swapped = list(lines)
    swapped[at], swapped[other] = lines[other], lines[at]
    assert bad_line(swapped) == at + 1


@given(FILES, st.data())
def test_a_file_that_lost_its_end_is_told_by_a_noted_hash(lines: list[bytes], data: st.DataObject) -> None:
    kept = data.draw(st.integers(1, len(lines) - 1))
    assert bad_line(lines[:kept]) is None, "what is left is a chain"
    assert bad_line(lines[:kept], expect=last_hash(lines)) == kept + 1
    assert bad_line(lines, expect=last_hash(lines[:kept])) is None
    again = chain({"kind": "opened"}, {**A_CALL, "tool": "b"}, {"kind": "closed"})
    assert bad_line(again) is None, "and so is one that was made anew"
    assert bad_line(again, expect=last_hash(lines)) == 4


@given(FILES, st.data())
def test_a_torn_line_is_told_and_the_next_start_goes_on_after_it(
    lines: list[bytes], data: st.DataObject
) -> None:
    text = b"".join(lines)
    left = text[: data.draw(st.integers(0, len(text)))]
    report = audit.check(io.BytesIO(left))
    part = left.rpartition(b"\n")[2]
    if part:
        assert report.bad is not None
        assert (report.bad.line, report.bad.torn) == (left.count(b"\n") + 1, True)
    end = audit.end_of(left, is_all=True)
    record: dict[str, Any] = {"kind": "opened", "time": "t"}
    if end.part:
        record["torn"] = audit.torn_as(end.part)
    line, _ = audit.line_of(record, end.seq + 1, end.hash)
    resumed = left + (b"\n" if part else b"") + line
    report = audit.check(io.BytesIO(resumed))
    assert report.bad is None
    torn = [remark for remark in report.remarks if "torn" in remark]
    assert len(torn) == bool(end.part)
    if end.part:
        assert torn[0].startswith(f"Line {left.count(10) + 1} is torn: the gateway was killed while it wrote")
        at = len(left) - 1  # the part cannot be changed either
        changed = resumed[:at] + bytes([resumed[at] ^ 1]) + resumed[at + 1 :]
        assert bad_line([changed]) == left.count(b"\n") + 1


@for_each(
    ("lines", "how", "line", "why"),
    [
        (whole()[1:], {}, 1, "it has the number 2. If this file goes on from another"),
        (whole()[1:], {"after": NOWHERE}, 1, "does not go on from the hash"),
        ([b'{"seq":1}\n', *whole()], {}, 1, "does not end with a hash"),
        ([b"x" * 20_000 + b"\n"], {}, 1, "too long"),
        ([b"x" * 20_000], {}, 1, "too long"),
        ([*whole(), b"\n"], {}, 6, "does not end with a hash"),
        ([*whole(), *chain({"kind": "opened", "torn": audit.torn_as(b"x")}, seq=5)], {}, 6, "does not follow"),
        ([*chain(A_CALL), *chain(A_CALL, seq=2, prev=last_hash(chain(A_CALL)))], {}, 2, "does not follow"),
        (chain(A_CALL, prev=NOWHERE), {}, 1, "what was before it is missing"),
        ([b'[1],"hash":"%b"}\n' % hashlib.sha256(b"[1]}").hexdigest().encode()], {}, 1, "not a line of an audit"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(lines: list[bytes], how: dict[str, Any], line: int, why: str) -> None:
    bad = audit.check(lines, **how).bad
    assert bad is not None
    assert (bad.line, bad.torn) == (line, False)
    assert why in bad.why


def test_the_end_of_a_file_is_read_only_where_it_is_one() -> None:
    lines = whole()
    end = audit.end_of(b"".join(lines)[50:], is_all=False)
    assert (end.seq, end.hash, end.part, end.lacks_end) == (5, last_hash(lines), b"", False)
    for tail, is_all in (
        (lines[0][:20], False),
        (lines[0][20:], False),
        (lines[0][20:], True),
        (b"\n", True),
    ):
        with pytest.raises(audit.BadAuditLine):
            audit.end_of(tail, is_all=is_all)
    assert audit.end_of(b"", is_all=True) == audit.AuditEnd()


def test_a_file_that_goes_on_from_another_is_whole_after_its_last_hash() -> None:
    lines = whole()
    assert bad_line(lines[3:], after=last_hash(lines[:3])) is None
    assert bad_line([lines[3], lines[3]], after=last_hash(lines[:3])) == 2


def test_remarks_say_what_is_no_fault() -> None:
    lines = chain(
        {"kind": "opened"}, A_CALL, {"kind": "opened"}, {"kind": "gap", "missed": 7}, {"kind": "closed"}
    )
    report = audit.check(lines)
    assert report.bad is None
    assert report.missing == 7
    assert report.remarks == [
        "Before line 3 the gateway did not end in order.",
        "Line 4 says that 7 calls could not be written.",
    ]


@for_each(
    ("given_", "same"),
    [
        (b'{"b": 1, "a": [1.5, "\\u00fc"]}', '{"a":[1.5,"ü"],"b":1}'),
        (b"", "{}"),
        (b"null", "{}"),
        (b"{}", "{}"),
    ],
)
def test_the_digest_of_arguments_is_that_of_their_canonical_form(given_: bytes, same: str) -> None:
    assert audit.digest_of(given_)[0] == f"sha256:{hashlib.sha256(same.encode()).hexdigest()}"


def test_arguments_that_are_long_or_odd_are_digested_as_they_are() -> None:
    long = b'{ "a":"%b"}' % (b"x" * audit.CANONICAL)
    for text in (long, b'{"a": 1', b'{"a": 1, "a": 2}', b"9" * 5000, b"[" * 30_000):
        assert audit.digest_of(text) == (f"sha256-raw:{hashlib.sha256(text).hexdigest()}", len(text))
    assert audit.digest_of(b"x" * (audit.DIGESTED + 1)) == (None, audit.DIGESTED + 1)


def test_what_a_client_says_about_itself_is_bounded() -> None:
    hide: Callable[[str], str] = lambda text: text.replace("s3cret", "***")  # noqa: E731
    said = {"name": "a s3cret\nname", "version": "1" * 9999, "title": "no"}
    client = audit.client_of(said, hide)
    assert client["name"] == "a *** name"
    assert len(client["version"]) == audit.LONGEST_TEXT
    assert set(client) == {"name", "version"}
    assert audit.client_of(["x"]) == audit.client_of({"name": 1}) == {}


# ---- the file --------------------------------------------------------------------------------------------------------


class Opened:
    """An audit file that is open, with a clock of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.told: list[str] = []
        self.now = 0.0
        self.file = AuditFile(path, clock=lambda: 1_700_000_000.25)

    def __enter__(self) -> Opened:
        self.file.open(self.told.append, lambda: self.now)
        return self

    def __exit__(self, *_error: object) -> None:
        self.file.close()

    def write(self, *numbers: int) -> None:
        for number in numbers:
            self.file.write({"n": number})

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_bytes().splitlines()]

    def written(self) -> list[Any]:
        return [record.get("n", record["kind"]) for record in self.records()]


def check(path: Path, **how: Any) -> audit.AuditReport:
    with path.open("rb") as lines:
        return audit.check(lines, **how)


def test_the_file_is_ours_alone_and_goes_on_with_each_start(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    opened = Opened(path)
    for n in range(3):
        opened = Opened(path)
        with opened:
            opened.write(n)
            assert opened.records()[-1]["time"] == "2023-11-14T22:13:20.250Z"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    report = check(path)
    assert (report.bad, report.lines, report.calls, report.remarks) == (None, 9, 3, [])
    assert opened.file.last_hash == report.last_hash
    opened.write(9)  # it is closed: nothing happens
    assert check(path).lines == 9


def test_two_gateways_do_not_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with Opened(path) as first:
        for _ in range(2):
            with pytest.raises(UsageError, match=r"is written by another gateway now.*name another one"):
                Opened(path).__enter__()
        first.write(1)
    with Opened(path):
        pass
    assert check(path).bad is None


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"export PATH=/bin\n", "does not end with a hash"),
        (b"export PATH=/bin", "does not end with a hash"),
        (b"".join(whole()).replace(b'"closed"', b'"Closed"'), "its hash is not that of its text"),
        (b"".join(whole()) + b"\n", "does not end with a hash"),
        (b"".join(whole()) + b"x" * 20_000, "does not end with a hash"),
    ],
)
def test_a_file_of_another_kind_is_left_alone(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=f"{why}.*greenroom audit verify"):
        Opened(path).__enter__()
    assert path.read_bytes() == content
    path.unlink()
    with Opened(path):
        pass  # and the lock is free again


def test_what_cannot_be_written_at_all_is_said_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "folder").mkdir()
    for name in ("no/such/file", "link", "folder"):
        with pytest.raises(UsageError, match=r"The audit file .*Name a file of yours that can be written\."):
            Opened(tmp_path / name).__enter__()
    assert not (tmp_path / "elsewhere").exists()


def test_a_torn_line_of_a_killed_gateway_stays_and_is_vouched_for(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with Opened(path) as opened:
        opened.write(1, 2)
    text = path.read_bytes()
    for left in (text[:-30], text[:30], text[:-1]):
        path.write_bytes(left)
        torn = check(path).bad
        assert torn is not None
        assert torn.torn
        with Opened(path) as again:
            again.write(3)
        report = check(path)
        assert report.bad is None
        assert path.read_bytes().startswith(left)
        assert (
            [remark for remark in report.remarks if "torn" in remark]
            if left != text[:-1]
            else not report.remarks
        )


def test_a_torn_part_that_is_taken_out_is_missed(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with Opened(path) as opened:
        opened.write(1)
    path.write_bytes(path.read_bytes()[:-30])
    with Opened(path):
        pass
    lines = path.read_bytes().splitlines(keepends=True)
    torn = next(number for number, line in enumerate(lines, 1) if b'"torn"' in line)
    found = audit.check([*lines[: torn - 2], *lines[torn - 1 :]], expect=last_hash(lines)).bad
    assert found is not None
    assert (found.line, "a torn part stands before it" in found.why) == (torn - 1, True)


def test_a_relative_path_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Opened(Path("audit.jsonl")) as opened:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        opened.write(1)
    assert check(tmp_path / "audit.jsonl").calls == 1
    assert [*(tmp_path / "elsewhere").iterdir()] == []


def test_a_file_that_others_may_write_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    for mode in (0o620, 0o602):
        path.touch()
        path.chmod(mode)
        with pytest.raises(UsageError, match=r"may be written by others\. Run: chmod go-w /"):
            Opened(path).__enter__()
    path.chmod(0o640)
    with Opened(path):
        pass


def test_nobody_else_writes_it_under_another_name_or_without_the_lock_beside_it(tmp_path: Path) -> None:
    path, other = tmp_path / "audit.jsonl", tmp_path / "other.jsonl"
    with Opened(path) as opened:
        os.link(path, other)
        (tmp_path / "audit.jsonl.lock").unlink()
        for name in (path, other):
            with pytest.raises(UsageError, match="is written by another gateway now"):
                Opened(name).__enter__()
        opened.write(1)
        path.unlink()
        opened.write(2)  # in a new file
        with pytest.raises(UsageError, match="is written by another gateway now"):
            Opened(path).__enter__()
    assert check(other).calls == 1


def test_an_error_at_the_end_is_no_error_of_the_room_and_keeps_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.jsonl"
    close = os.close

    def closes(fd: int) -> None:
        close(fd)
        if fd == ours:
            raise OSError(errno.EIO, "Input/output error")

    ours = -1
    with Opened(path) as opened:
        assert opened.file._fd is not None
        ours = opened.file._fd
        monkeypatch.setattr(module.os, "close", closes)
    monkeypatch.undo()
    with Opened(path):
        pass
    assert check(path).bad is None


def test_what_is_lost_at_the_end_is_told_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "audit.jsonl"

    def refuse(_fd: int, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with Opened(path) as opened:
        monkeypatch.setattr(module, "KEPT", 2)
        monkeypatch.setattr(module.os, "write", refuse)
        opened.write(1, 2, 3)
    assert opened.told[1:] == [
        f"3 lines of the audit file {path} are lost: it could not be written until the end"
    ]


def test_one_call_writes_so_many_of_the_lines_that_waited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.jsonl"
    monkeypatch.setattr(module, "AT_ONCE", 4)
    with Opened(path) as opened:
        with monkeypatch.context() as patch:
            patch.setattr(module.os, "write", lambda _fd, _data: 0)
            opened.write(*range(10))
        opened.now = 1.0
        opened.write(10)
        assert opened.written() == ["opened", 0, 1, 2, 3]
        opened.write(11)
        assert opened.written() == ["opened", *range(8)]
    assert check(path).calls == 12, "at the end, all of them"


def test_a_line_that_cannot_be_made_is_counted_and_told_and_stands_in_nobodys_way(tmp_path: Path) -> None:
    with Opened(tmp_path / "audit.jsonl") as opened:
        opened.file.write({"n": object()})
        assert opened.file.missed == 1
        assert len(opened.told) == 1
        opened.now = 1.0
        opened.write(1)
        assert opened.written() == ["opened", 1, "gap"]


def test_a_full_disk_ends_no_call_and_is_told_once_and_made_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = [10**6]
    write = os.write

    def limited(fd: int, data: bytes) -> int:
        if not space[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = write(fd, data[: space[0]])
        space[0] -= written
        return written

    monkeypatch.setattr(module.os, "write", limited)
    monkeypatch.setattr(module, "KEPT", 3)
    path = tmp_path / "audit.jsonl"
    with Opened(path) as opened:
        opened.write(1)
        space[0] = 40  # a part of the next line
        opened.write(2)
        assert opened.written() == ["opened", 1], "nothing of the line is left"
        assert opened.file.failing
        opened.write(3, 4, 5, 6)
        assert opened.told == [
            f"the audit file {path}: No space left on device. Calls go on without it. It is tried again."
        ]
        assert opened.file.missed == 2
        space[0] = 10**6
        opened.write(7)
        assert opened.written() == ["opened", 1], "it is not tried at each call"
        opened.now = 1.0
        opened.write(8)
        assert opened.written() == ["opened", 1, 2, 3, 4, "gap"]
        assert not opened.file.failing
        assert opened.told[1:] == [f"the audit file {path}: works again"]
        opened.write(9)
    report = check(path)
    assert (report.bad, report.missing, report.calls) == (None, 4, 5)
    assert report.ended


def test_a_part_that_cannot_be_taken_back_at_once_is_taken_back_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.jsonl"
    write, truncate = os.write, os.ftruncate

    def refuse(_fd: int, _size: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with Opened(path) as opened:
        monkeypatch.setattr(module.os, "write", lambda fd, data: write(fd, data[:9]))
        monkeypatch.setattr(module.os, "ftruncate", refuse)
        opened.write(1)
        monkeypatch.setattr(module.os, "write", write)
        opened.now = 1.0
        opened.write(2)
        monkeypatch.setattr(module.os, "ftruncate", truncate)
    assert opened.written() == ["opened", 1, 2, "closed"]
    assert check(path).bad is None


def test_the_chain_goes_on_in_a_new_file_when_the_old_one_is_moved_away(tmp_path: Path) -> None:
    path, old = tmp_path / "audit.jsonl", tmp_path / "audit.1"
    with Opened(path) as opened:
        opened.write(1)
        path.rename(old)
        opened.write(2)
        assert opened.written() == ["opened", 2]
        path.unlink()
        path.write_text("mine")  # somebody else's file is not touched
        opened.write(3)
        assert path.read_text() == "mine"
        assert "another file was put in its place" in opened.told[0]
        path.unlink()
        opened.now = 1.0
        opened.write(4)
        assert opened.written() == ["opened", 3, 4]
    first = check(old)
    assert (first.bad, first.calls, first.ended) == (None, 1, False)
    bad = check(path).bad
    assert bad is not None
    assert bad.line == 1, "what was deleted is missed"


# ---- the command -----------------------------------------------------------------------------------------------------


def test_the_command_says_whether_a_file_is_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "audit.jsonl"
    with Opened(path) as opened:
        opened.write(1, 2)
    verify = ("audit", "verify", os.fspath(path))
    assert command_line([*verify]) == 0
    time = "2023-11-14T22:13:20.250Z"
    last = opened.file.last_hash
    assert capsys.readouterr().out == (
        f"{path} is whole: 2 calls in 4 lines, {time} to {time}.\nLast hash: {last}\n"
    )
    assert command_line([*verify, "--expect", last]) == 0
    assert "The expected hash is that of line 4 of 4." in capsys.readouterr().out
    assert command_line([*verify, "--expect", NOWHERE, "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["whole"], said["bad"]["line"], said["lastHash"]) == (False, 5, last)
    assert command_line([*verify, "--expect", "abc"]) == 2
    assert "--expect abc is not a hash" in capsys.readouterr().err
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], *lines[2:]]))
    assert command_line([*verify]) == 1
    out = capsys.readouterr().out
    assert f"{path} is broken. Line 2: it does not follow the line before it" in out
    assert f"The last hash there: {audit.read_line(lines[0][:-1]).hash}" in out
    path.write_bytes(b"".join(lines)[:-5])
    assert command_line([*verify]) == 1
    assert "its next start goes on after this line" in capsys.readouterr().out
    path.write_bytes(lines[0])
    assert command_line([*verify]) == 0
    assert "Only a noted hash tells (--expect)." in capsys.readouterr().out


@pytest.mark.parametrize(
    "foreign",
    [
        b'{"at": 1.5, "kind": "call", "seq": 1}\n{"at": 2, "kind": "call", "seq": 2}\n',
        b'{"mcpServers": {}}',
        b"some words\n",
        b"\x00\xff" * 20_000,
    ],
)
def test_a_file_of_another_kind_is_no_audit_file_and_not_a_broken_one(
    foreign: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(foreign)
    for words in (["verify"], ["verify", "--json"], ["verify", "--expect", NOWHERE]):
        assert command_line(["audit", *words, os.fspath(path)]) == 2
        said = capsys.readouterr()
        assert "is not an audit file" in said.err
        assert "broken" not in said.out + said.err


def test_an_audit_file_whose_beginning_was_changed_is_a_broken_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "audit.jsonl"
    first, *more = whole()
    changed = first.replace(b'"opened"', b'"closed"')
    for content in (b"x\n" + b"".join(more), b"x\ny\n" + b"".join(more), changed, first[:9], first[:30], b""):
        path.write_bytes(content)
        assert command_line(["audit", "verify", os.fspath(path)]) == 1
        assert "is broken" in capsys.readouterr().out


def test_the_command_prints_nothing_that_a_terminal_obeys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a\x1b[31m.jsonl"
    path.write_bytes(
        b"".join(chain({"kind": "opened", "time": "\x1b]0;PWNED\x07"}, {"kind": "closed", "time": "\x1b[2J"}))
    )
    for words in (["verify"], ["show"]):
        assert command_line(["audit", *words, os.fspath(path)]) == 0
        said = capsys.readouterr()
        assert "\x1b" not in said.out + said.err
        assert "\x07" not in said.out


def test_the_command_reads_files_alone_and_shows_so_many_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    for words in (["verify", "/dev/null"], ["show", "/dev/zero"], ["verify", os.fspath(tmp_path / "pipe")]):
        assert command_line(["audit", *words]) == 2
        assert "is not a regular file" in capsys.readouterr().err
    path = tmp_path / "audit.jsonl"
    path.write_bytes(b"".join(whole()))
    assert command_line(["audit", "show", "-n", "99999999999999999999", os.fspath(path)]) == 2
    assert "is not in the range 1<=x<=100000" in capsys.readouterr().err
    path.write_bytes(b"".join(chain(*[{"kind": "opened"}] * 14)))
    assert command_line(["audit", "verify", os.fspath(path)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "3 remarks more; --json has all."
    assert sum("did not end in order" in line for line in said) == 10
    noted = last_hash(whole())
    path.write_bytes(b"".join(chain({"kind": "opened"}, seq=5, prev=noted)))
    assert command_line(["audit", "verify", "--after", noted, "--expect", noted, os.fspath(path)]) == 0
    assert "that of the last line of the file before" in capsys.readouterr().out


def test_the_command_shows_the_last_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "audit.jsonl"
    call = {"subject": "ann", "tool": "a_\x1b[31mecho", "outcome": "result", "ms": 1.5}
    with Opened(path) as opened:
        opened.file.write({**call, "isError": True, "approval": "allowed"})
        opened.file.write({"door": "stdio", "tool": "b", "outcome": "busy", "ms": 0.0})
    assert command_line(["audit", "show", os.fspath(path), "-n", "3"]) == 0
    time = "2023-11-14T22:13:20.250Z"
    assert capsys.readouterr().out.splitlines() == [
        f"{time}  ann    a_echo    tool error, allowed, 1.5 ms",
        f"{time}  stdio  b         busy, 0.0 ms",
        f"{time}         (closed)",
    ]
    assert command_line(["audit", "show", os.fspath(path), "--json", "-n", "1"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["kind"] == "closed"
    (tmp_path / "odd").write_bytes(b'[]\n\xff\n{"kind": "call", "event": "CallEnded"}\n')
    assert command_line(["audit", "show", os.fspath(tmp_path / "odd")]) == 2
    said = capsys.readouterr()
    assert not said.out
    assert "none of an audit file" in said.err
