"""JSON for servers that are started by the hundred: `loads` and `dumps` as `json` has them, for what is valid JSON.

Importing `json` takes longer than starting the interpreter, because it imports `re`. This uses the parts of it that are
written in C, and `json` itself where they are not as expected.
"""

TYPE_CHECKING = False  # `typing` would take as long
if TYPE_CHECKING:
    from json import dumps, loads
else:
    try:
        from _json import encode_basestring_ascii, make_encoder, make_scanner

        class Plain:
            """The settings that the scanner reads from a decoder. With these it converts no value."""

            strict = True
            object_hook = object_pairs_hook = None
            parse_float, parse_int, parse_constant = float, int, float
            memo = None

        scan = make_scanner(Plain)
        encode = make_encoder(None, None, encode_basestring_ascii, None, ": ", ", ", False, False, True)

        def loads(text):
            if not isinstance(text, str):
                text = text.decode("utf-8", "surrogatepass")
            text = text.strip(" \t\r\n")
            try:
                found, end = scan(text, 0)
            except StopIteration:
                raise ValueError("no JSON") from None
            if end != len(text):
                raise ValueError("more than one value")
            return found

        def dumps(value):
            return "".join(encode(value, 0))

        assert loads(dumps({"a": [1, "é", None]})) == {"a": [1, "é", None]}
    except Exception:  # another Python
        from json import dumps, loads

__all__ = ["dumps", "loads"]
