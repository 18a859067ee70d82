"""A child process leads a session of its own, and no signal hits another that has got its number."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from tests.support.patience import PATIENCE

from greenroom.actors.transports.child_process import group_lives, signal_name, start_child
from greenroom.config.model import ServerDefinition


def test_a_child_leads_its_own_session_where_and_with_what_it_was_told(tmp_path: Path) -> None:
    script = 'pwd; printf "%s" "$ONLY"; exec sleep 600'
    definition = ServerDefinition("s", command="/bin/sh", args=("-c", script), cwd=os.fspath(tmp_path))
    before = len(os.listdir("/proc/self/fd"))
    child = start_child(definition, {"ONLY": "this", "PATH": os.defpath})
    try:
        assert os.getsid(child.pid) == os.getpgid(child.pid) == child.pid
        assert [os.get_blocking(pipe.fileno()) for pipe in (child.stdin, child.stdout, child.stderr)] == [
            False
        ] * 3
        found, deadline = b"", time.monotonic() + PATIENCE
        while not found.endswith(b"this") and time.monotonic() < deadline:
            found += child.stdout.read() or b""
        assert found.decode() == f"{os.path.realpath(tmp_path)}\nthis"
        assert (child.exit_code, child.is_dead, group_lives(child.pid)) == (None, False, True)
        child.signal_group(signal.SIGTERM)
        child.block_until_dead(60)
        assert (child.exit_code, child.is_dead, child.is_reaped) == (-signal.SIGTERM, True, False)
        assert not group_lives(child.pid), "only a zombie is left of it"
        child.reap()
        assert (child.exit_code, child.is_dead, child.is_reaped) == (-signal.SIGTERM, True, True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "killpg", lambda *_: pytest.fail("its number may be anybody's"))
            child.signal_group(signal.SIGKILL)
    finally:
        child.signal_group(signal.SIGKILL)
        child.block_until_dead(60)
        child.reap()
        child.close()
        child.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_signal_is_named_as_far_as_it_has_a_name() -> None:
    assert (signal_name(9), signal_name(15), signal_name(1000)) == ("SIGKILL", "SIGTERM", "signal 1000")
