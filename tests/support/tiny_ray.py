"""A Ray of a few lines, for the child through which a front asks. The directory lives in that child, with these
`HOSTS`. Its nodes are theirs, those of `LATE` hosts, which join when it has been asked for the nodes twice, and `LOST`
ones."""

from __future__ import annotations

from pathlib import Path

import pytest

# The part of Ray that a driver uses; the directory lives in the driver.
RAY = """
import os, time
from greenroom.cluster.leases import JoinRequest, LeaseTimes, Register
from greenroom.cluster.ray_directory import ClusterAbout
from greenroom.protocol.version import VERSION

class exceptions:
    class RayError(Exception): pass
    class GetTimeoutError(RayError): pass

def init(address, **more):
    if address == "refuses:1":
        raise ConnectionError("no cluster is there.\\nIt was looked for.")
    if address == "other:1":
        raise RuntimeError("Version mismatch: The cluster was started with:\\n    Ray: 2.1\\n    Python: 3.9\\n")
    if address == "exits:1":
        raise SystemExit("Ray has ended it")
    if address == "dies:1":
        os.abort()

class Method:
    def __init__(self, call):
        self.remote = lambda *args: lambda: call(*args)

class Handle:
    looks = 0

    def __init__(self):
        self.register = Register(7, LeaseTimes(), time.monotonic())
        about = ClusterAbout(VERSION, os.environ.get("SECRET", "secret"), LeaseTimes(), 7)
        self.hello = Method(lambda version: os.environ.get("OTHER") or about)
        self.ask = Method(self.do)

    def do(self, verb, args):
        if os.environ.get("DEAF") and str(os.getpid()) in open(os.environ["DEAF"]).read():
            raise exceptions.RayError("the actor is at another address now")
        if verb == "config" and os.environ.get("DEAD"):
            raise exceptions.RayError("the head is dead")
        if verb == "leave":
            raise exceptions.RayError("the actor has died")
        if verb == "post_config":
            return False, "KeyError: 'x'"
        if verb == "nodes":
            self.looks += 1
            if self.looks == 2:
                join("LATE")
            return True, frozenset(" ".join(map(named, ("HOSTS", "LATE", "LOST"))).split())
        return True, getattr(self.register, verb)(*args, time.monotonic())

handle = Handle()

def named(kind):
    return os.environ.get(kind, "")

def join(kind):
    for name in named(kind).split():
        about = JoinRequest(name, f"http://{name}:1", 1, "", "run", {"zone": name[0]}, {"CPU": 2.0})
        handle.register.join(about, time.monotonic())

join("HOSTS")

def get_actor(name, namespace):
    if os.environ.get("NONE"):
        raise ValueError("no such actor")
    return handle

class remote:  # the decorator of an actor's class
    def __init__(self, cls):
        assert cls.__name__ == "DirectoryActor"

    def options(self, **options):
        assert options["get_if_exists"] and options["lifetime"] == "detached"
        return self

    def remote(self, times, token):
        return handle

def get(ref, timeout):
    return ref()
"""


@pytest.fixture
def ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Ray for the children of this process."""
    package = tmp_path / "ray"
    package.mkdir()
    (package / "__init__.py").write_text(RAY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return package / "__init__.py"
