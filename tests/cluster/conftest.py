"""What all tests of the cluster have in common."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A front looks for hosts ten times as often: it waits for one when it begins, and nearly every test begins one."""
    monkeypatch.setattr("greenroom.cluster.membership._LOOK_EVERY", 0.1)
