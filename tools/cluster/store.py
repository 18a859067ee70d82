"""Where a head's store keeps what it knows so that another head can go on: in Redis, or in files."""

from __future__ import annotations

import enum
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


class Store(enum.Enum):
    REDIS = "redis"
    ROCKSDB = "rocksdb"


@contextmanager
def kept_in(store: Store | None, folder: Path) -> Generator[None]:
    """Ray's settings for a store that outlives the head. Ends with what to do where there is no Redis."""
    if store is not None:
        os.environ.update(RAY_gcs_rpc_server_reconnect_timeout_s="600")
    if store is Store.ROCKSDB:
        os.environ.update(RAY_gcs_storage="rocksdb", RAY_gcs_storage_path=str(folder / "store"))
    if store is not Store.REDIS:
        yield
        return
    program = os.environ.get("REDIS_SERVER") or shutil.which("redis-server")
    if program is None:
        sys.exit(
            "There is no redis-server here. Install it (Debian: apt install redis-server), or name it in REDIS_SERVER."
        )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ("--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", str(folder))
    redis = subprocess.Popen((program, *words), stdout=subprocess.DEVNULL)
    os.environ["RAY_REDIS_ADDRESS"] = f"127.0.0.1:{port}"
    try:
        yield
    finally:
        redis.kill()
        redis.wait()
