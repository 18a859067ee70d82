"""A tools/call that says only a name and arguments goes a shorter way, and arrives as it would by the long one."""

from __future__ import annotations

import json

import msgspec
from tests.support.rows import for_each

from greenroom.protocol import jsonrpc as rpc


@for_each(
    "params",
    [
        '{"name": "x"}',
        '{"name": "x", "arguments": {}}',
        '{"arguments": {"n": 1e400, "big": 123456789012345678901234567890, "é": "\\u2028"}, "name": "x"}',
        '{"name": "x", "arguments": null}',
        '{"name": "x", "arguments": [1, {"a": 1, "a": 2}]}',
        '{"name": "y", "name": "x", "arguments": {"a": 1}, "arguments": {"a":  2}}',
    ],
)
def test_what_is_plain_arrives_as_by_the_long_way(params: str) -> None:
    raw = msgspec.Raw(params.encode())
    plain = rpc.read_plain_call(raw)
    assert plain is not None
    assert plain.name == "x"
    short, long = rpc.encode(plain.renamed("own")), rpc.encode({**rpc.read_parts(raw), "name": "own"})
    assert json.loads(short) == json.loads(long)
    assert sorted(short) == sorted(long)  # the values byte for byte; their order is nobody's


@for_each(
    "params",
    [
        '{"name": "x", "_meta": null}',
        '{"name": "x", "_meta": {"progressToken": 1}}',
        '{"name": "x", "arguments": {}, "task": {"ttl": 1}}',
        '{"arguments": {}}',
        '{"name": 7}',
        '{"name": null}',
        "[]",
        "null",
        "",
        '{"name": "\\ud800"}',
    ],
)
def test_everything_else_goes_the_long_way(params: str) -> None:
    assert rpc.read_plain_call(msgspec.Raw(params.encode())) is None
