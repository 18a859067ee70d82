"""`greenroom outputs`, and files that cannot be written."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from greenroom.catalogue.store import CatalogueFile
from greenroom.cli import query_commands
from greenroom.cli.file_edits import replace
from greenroom.cli.main import run as run_command
from greenroom.gateway.exposures.output_files import OutputFile, Spill, id_of


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _age(file: Path, seconds: float) -> None:
    then = os.stat(file).st_mtime - seconds
    os.utime(file, (then, then))


def test_the_command_lists_and_clears(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["outputs"]) == 0
    assert "no long output is kept" in capsys.readouterr().err
    spill = Spill()
    first = spill.write("x" * 1_234)
    _age(first, 7_300)
    second = spill.write_base64(encoded(b"sound"), "audio/mpeg")
    (spill.directory / "other.txt").write_text("not ours")
    assert run_command(["outputs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert str(second) in lines[0]
    assert "1,234 bytes     2 h" in lines[1]
    assert lines[-1] == "2 in all, 1,239 bytes"
    assert run_command(["outputs", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [row["id"] for row in said["outputs"]] == [id_of(second), id_of(first)]
    assert run_command(["outputs", "--clear"]) == 0
    assert capsys.readouterr().out == "2 files were removed.\n"
    assert [path.name for path in spill.directory.iterdir()] == ["other.txt"]


def _fails(*_: object, **__: object) -> Any:
    raise OSError("no room")


@pytest.mark.parametrize("step", ["os.replace", "os.fsync"])
@pytest.mark.parametrize("writer", ["setup", "catalogue"])
def test_a_file_that_cannot_be_put_in_its_place_leaves_nothing_beside_it(
    writer: str, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.json"
    write: dict[str, Callable[[], object]] = {
        "setup": lambda: replace(file, None, b"x"),
        "catalogue": lambda: CatalogueFile(file).replace(b"x"),
    }
    with monkeypatch.context() as patch, suppress(OSError):
        patch.setattr(step, _fails)
        write[writer]()
    assert list(tmp_path.iterdir()) in ([], [file])


@pytest.mark.parametrize(("strerror", "said"), [("Not allowed", "Not allowed"), (None, "odd")])
def test_outputs_that_cannot_be_cleared_say_why(
    strerror: str | None,
    said: str,
    home: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def clear(_self: Spill) -> int:
        raise OSError(1, strerror) if strerror else OSError("odd")

    monkeypatch.setattr(Spill, "clear", clear)
    assert run_command(["outputs", "--clear"]) == 2
    assert f"cannot be cleared: {said}" in capsys.readouterr().err


def test_the_list_tells_size_and_age_of_each_file_as_text_and_as_json(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_command(["outputs", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["outputs"], said["bytes"]) == ([], 0)
    assert said["directory"]
    ages = {
        "a clock was set back": (-50.0, 0.0, "0 s"),
        "59.4 s": (59.4, 59.4, "59 s"),
        "a minute": (60.0, 60.0, "1 min"),
        "59.6 min": (3_576.0, 3_576.0, "60 min"),
        "an hour": (3_600.0, 3_600.0, "1 h"),
        "a day": (86_400.0, 86_400.0, "1 d"),
        "two\x1b[2J days": (172_800.0, 172_800.0, "2 d"),
    }
    now = 1_800_000_000.0
    files = [
        OutputFile(str(number), Path(name), now - age, number + 1_000)
        for number, (name, (age, _, _)) in enumerate(ages.items())
    ]
    monkeypatch.setattr(Spill, "kept", lambda _: files)  # pyright: ignore[reportUnknownLambdaType]
    monkeypatch.setattr(query_commands.time, "time", lambda: now)
    assert run_command(["outputs", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [(row["path"], row["bytes"], round(row["ageSeconds"], 3)) for row in said["outputs"]] == [
        (name, number + 1_000, age) for number, (name, (_, age, _)) in enumerate(ages.items())
    ]
    assert said["bytes"] == 7_021
    assert run_command(["outputs"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert "\x1b" not in out
    for line, (number, (_, _, shown)) in zip(lines, enumerate(ages.values()), strict=False):
        assert line.startswith(f"{number + 1_000:>12,} bytes  {shown:>6}  ")
    assert lines[-2:] == ["", "7 in all, 7,021 bytes"]
