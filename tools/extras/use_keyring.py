"""A server's variable is read from the keyring when it starts; here the keyring has nothing, and says so."""

import os
import sys

os.environ["PYTHON_KEYRING_BACKEND"] = "keyring.backends.null.Keyring"

import anyio

from greenroom import CallError, Greenroom

SERVER = {"command": sys.executable, "env": {"TOKEN": {"keyring": "tried/here"}}}


async def main():
    async with Greenroom.open({"mcpServers": {"a": SERVER}}, cache_path=":memory:", bootstrap=False) as room:
        said = "it has started without its value"
        try:
            await room.connect("a")
        except CallError as error:
            said = str(error)
        assert "keyring set tried here" in said, said


anyio.run(main)
