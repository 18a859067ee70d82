"""How a call ends for the client of the direct door.

* A result is passed on as the bytes the server sent, unless clients could not read it (`readable`).
* A JSON-RPC error of the server is passed on with its code, message and data. Message and data name the
  server.
* A refusal of ours, or a failure of the server, is no answer of the server. For a tool it becomes a result with
  `isError`: clients show that to a model, which can then do something else. `_meta` says the same to programs.
  Everything else was requested by a program, so it gets a JSON-RPC error with the same in `data`.
* A call of a tool that no server has, or more than one, is treated in the same way: a model can correct a wrong
  name. Rejected: -32602, the specification's example for it. It says itself that models recover from errors of the
  protocol less often, and here lists change while a model still has an older one. A prompt or resource that no server
  has is -32602.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast

import msgspec

from ...catalogue.namespace import Target
from ...catalogue.overrides import ToolOverride
from ...protocol import jsonrpc as rpc
from ...protocol.bounds import COMPLETIONS, LARGE_MESSAGE
from ...protocol.errors import CallError, GreenroomError, RemoteError, UnknownResource, UsageError
from ...protocol.jsonrpc.encoding import UNREADABLE
from ...protocol.jsonrpc.incoming import why
from ...protocol.jsonrpc.terms import RpcFault
from ...protocol.long_text import holds
from ...protocol.malformed_content import blocks_in, contents_in, messages_in
from ...protocol.upstream_error import details_of_error
from ..jobs import Job
from ..message_origin import error_data_of
from ..result_meta import ERROR

if TYPE_CHECKING:
    from ...actors.call import Call


T = TypeVar("T")


class ScrubbedEnd(msgspec.Struct, frozen=True):
    """The end of a call with a result that has been scrubbed."""

    result: bytes
    protocol_version: str | None
    error: None = None


def end(job: Job, call: Call | ScrubbedEnd, target: Target | None = None) -> None:
    """End `job` as its call ended; a job whose call was cancelled gets no answer. `target`: the tool that was called.
    If its parameters have other names here, errors use these names."""
    if call.result is not None:
        result = told(target, readable(job.method, job.params, call.result))
        job.answer_raw(result, modern=call.protocol_version in rpc.MODERN_VERSIONS)
    elif target is not None and target.override is not None and isinstance(call.error, RemoteError):
        error = call.error
        text = target.override.told(error.rpc_message, target.original)
        job.fail(error.rpc_code, f"[{error.server}] {text}", error_data_of(error.server, error.data))
    elif call.error is not None:
        fail(job, call.error)


def told(target: Target | None, result: bytes) -> bytes:
    """The result of a call of `target`. If it is an error, it uses the parameter names that the tool has here."""
    if target is None or target.override is None or not rpc.is_true(_read(rpc.read_members, result).is_error):
        return result
    said = rpc.decode_result(result)
    blocks = [_told(block, target.original, target.override) for block in said.get("content") or ()]
    return rpc.encode({**said, "content": blocks})


def _told(block: Any, original: str, override: ToolOverride) -> Any:
    if not isinstance(block, dict):
        return block
    said = cast("dict[str, Any]", block)
    text = said.get("text")
    return {**said, "text": override.told(text, original)} if isinstance(text, str) else said


def fail(job: Job, error: CallError) -> None:
    """End `job` with a call's error."""
    if isinstance(error, RemoteError):
        data = error_data_of(error.server, error.data)
        job.fail(error.rpc_code, f"[{error.server}] {error.rpc_message}", data)
    elif job.method == "tools/call":
        _fail_call(job, error.message, details_of_error(error))
    else:
        job.fail(rpc.INTERNAL_ERROR, job.commands.filled(error.message), details_of_error(error))


def refuse(job: Job, error: GreenroomError) -> None:
    """End `job` with the error that kept it from being sent."""
    if isinstance(error, CallError) and not isinstance(error, UsageError):
        fail(job, error)
    elif job.method == "tools/call":
        _fail_call(job, error.message, {"error": error.code})
    elif isinstance(error, UnknownResource) and not job.modern:
        job.fail(rpc.NO_RESOURCE, error.message, {"uri": error.uri})
    else:
        job.fail(rpc.INVALID_PARAMS, job.commands.filled(error.message), {"error": error.code})


def _fail_call(job: Job, text: str, details: Mapping[str, Any]) -> None:
    """End the job with a text of our own."""
    said = job.commands.filled(text)
    job.answer({"content": [{"type": "text", "text": said}], "isError": True, "_meta": {ERROR: details}})


def arguments_of(raw: msgspec.Raw | None) -> Mapping[str, Any]:
    """The arguments of a tools/call, each value still bytes. Raises `RpcFault`."""
    return {} if raw is None else rpc.read_parts(raw)


def text_of(job: Job, key: str) -> str:
    """A parameter that must be a string. Raises `RpcFault`."""
    value = rpc.read_value(job.params.get(key))
    if not isinstance(value, str):
        raise RpcFault(rpc.INVALID_PARAMS, f"Invalid params: {key} must be a string.")
    return value


# ---- Makes results readable that strict clients refuse, where nothing is lost by it ---------------------------------
#
# These are: a tool's result without `content` (from servers that answer with structured content only), or with one text
# or block where a list belongs; contents without the URI they were requested by, and contents and messages of another
# form; and more completions than the protocol allows. The SDKs raise on
# these, and the answer is lost. All other results pass as the bytes they are.

_NULL: Final = msgspec.Raw(b"null")
# How nearly every result of a tool shows that it has a list of blocks. Such a result passes.
_LISTS: Final = tuple(b'"content":' + begin for begin in (b"[{", b"[]", b" [{", b" []"))


class _UsualBlock(msgspec.Struct, gc=False):
    type: Literal["text", "image"]  # blocks of every version


class _UsualResult(msgspec.Struct, gc=False):
    content: list[_UsualBlock]
    structured: msgspec.Raw = msgspec.field(default=rpc.ABSENT, name="structuredContent")
    meta: msgspec.Raw = msgspec.field(default=rpc.ABSENT, name="_meta")
    result_type: msgspec.Raw = msgspec.field(default=rpc.ABSENT, name="resultType")


_usual_result = msgspec.json.Decoder(_UsualResult)


def is_for_all(result: bytes) -> bool:
    """Whether a tool's result is the same for clients of every version, points to no resource, and has no place for a
    word in our name: as nearly every one, it has texts and images, and perhaps a structured object. Without
    `resultType` it is in no newer form, whatever its server speaks."""
    try:
        said = _usual_result.decode(result)
    except rpc.NO_MESSAGE:
        return False
    if said.meta is not rpc.ABSENT or said.result_type is not rpc.ABSENT:
        return False
    return said.structured is rpc.ABSENT or bytes(said.structured)[:1] == b"{"


def readable_tool(result: bytes) -> bytes:
    if any(holds(result, begin) for begin in _LISTS):
        return result
    parts = _read(rpc.result_parts, result)
    if parts is None:
        return result
    kind = bytes(parts.get("resultType", _NULL))
    content = bytes(memoryview(parts.get("content", _NULL))[:4]).lstrip()
    if content[:1] == b"[" and rpc.nbytes(parts["content"]) < LARGE_MESSAGE:
        said = rpc.read_value(parts["content"])
        mended = blocks_in(said)
        return result if mended == said else rpc.encode({**parts, "content": mended})
    if content and content[:1] not in (b"[", b"n"):
        return rpc.encode({**parts, "content": blocks_in(rpc.read_value(parts["content"]))})
    has_content = content[:4] != b"null"
    if kind not in (b"null", b'"complete"') or "task" in parts or has_content:
        return result
    structured = parts.get("structuredContent")
    said = None if structured is None else bytes(structured)
    text = [] if said in (None, b"null") else [{"type": "text", "text": said.decode(errors="replace")}]
    kept = {key: value for key, value in parts.items() if bytes(value) != b"null"}
    return rpc.encode({**kept, "content": text})


def readable(method: str, params: Mapping[str, msgspec.Raw], result: bytes) -> bytes:
    """The result of `method` in a form that strict clients can read, for a request with these `params`."""
    if method == "tools/call":
        return readable_tool(result)
    if method == "resources/read":
        return _as_contents(rpc.read_value(params.get("uri")), result)
    if method == "prompts/get":
        return _as_messages(result)
    if method == "completion/complete":
        return _shortened(result)
    return result


def _read(read: Callable[[bytes], T], result: bytes) -> T:
    """What `read` finds in a result. Raises `RpcFault` when that is no object."""
    try:
        return read(result)
    except UNREADABLE as error:
        raise RpcFault(rpc.INVALID_PARAMS, f"Invalid params: {why(error)}") from None


def _as_contents(asked: Any, result: bytes) -> bytes:
    parts = _read(rpc.result_parts, result)
    if parts is None:
        return result
    said = {key: rpc.read_value(parts.get(key)) for key in ("contents", "content")}
    contents = contents_in(said, asked if isinstance(asked, str) else "")
    if contents == (said["contents"] or []):
        return result
    return rpc.encode({**parts, "contents": contents})


def _as_messages(result: bytes) -> bytes:
    parts = _read(rpc.result_parts, result) if len(result) < LARGE_MESSAGE else None
    if parts is None:
        return result
    said = rpc.read_value(parts.get("messages"))
    messages = messages_in(said)
    return result if messages == (said or []) else rpc.encode({**parts, "messages": messages})


def _shortened(result: bytes) -> bytes:
    parts = _read(rpc.result_parts, result)
    completion: Any = None if parts is None else rpc.read_value(parts.get("completion"))
    values: Any = cast("dict[str, Any]", completion).get("values") if isinstance(completion, dict) else None
    if parts is None or not isinstance(values, list) or len(cast("list[Any]", values)) <= COMPLETIONS:
        return result
    first = cast("list[Any]", values)[:COMPLETIONS]
    return rpc.encode({**parts, "completion": {**completion, "values": first, "hasMore": True}})
