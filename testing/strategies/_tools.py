"""Names of tools, and results, as servers may send them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from ._parts import SAYABLE


def tool_names() -> st.SearchStrategy[str]:
    """Names a server may give its tools, which is anything at all: close to each other, too long, of any script."""
    tricky = ["get-user", "get_user", "mcp", "a" * 64, "b" * 200, "a.b/c", "Ünïcode", "🎭", " ", "__proto__"]
    return (
        st.text("ab-_", min_size=1, max_size=6)
        | st.sampled_from(tricky)
        | st.text(SAYABLE, min_size=1, max_size=80)
    )


def tool_results() -> st.SearchStrategy[dict[str, Any]]:
    """Results of `tools/call`, as a server says them: any blocks, perhaps structured, perhaps an error."""
    return st.fixed_dictionaries(
        {"content": st.lists(_blocks(), max_size=4)},
        optional={
            "structuredContent": st.dictionaries(st.text(SAYABLE, max_size=6), _json(), max_size=3),
            "isError": st.booleans(),
            "x-vendor": _json(),
        },
    )


def _blocks() -> st.SearchStrategy[dict[str, Any]]:
    text, data = st.text(SAYABLE, max_size=40), st.sampled_from(["", "aGVsbG8="])
    uri, name = st.sampled_from(["note://one", "file:///a%20b"]), st.text(SAYABLE, min_size=1, max_size=10)
    return st.one_of(
        _block("text", text=text),
        _block("image", data=data, mimeType=st.just("image/png")),
        _block("audio", data=data, mimeType=st.just("audio/wav")),
        _block("resource_link", uri=uri, name=name),
        _block("resource", resource=st.fixed_dictionaries({"uri": uri, "text": text})),
        _block("resource", resource=st.fixed_dictionaries({"uri": uri, "blob": data})),
    )


def _block(kind: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"type": st.just(kind), **fields})


def _json() -> st.SearchStrategy[Any]:
    plain = (
        st.none()
        | st.booleans()
        | st.integers(-(2**53), 2**53)
        | st.floats(allow_nan=False, allow_infinity=False)
    )
    return st.recursive(
        plain | st.text(SAYABLE, max_size=10),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(SAYABLE, max_size=5), inner, max_size=3)
        ),
        max_leaves=5,
    )
