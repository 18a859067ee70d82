"""The picture of a trace in the docs (`tools/trace_picture.py`)."""

from __future__ import annotations

from xml.etree import ElementTree

from tests.support.otlp import Received
from tools.trace_picture import PICTURE, picture

_SVG = "{http://www.w3.org/2000/svg}"


def _span(service: str, name: str, start: float, end: float, kind: str = "INTERNAL") -> Received:
    return Received(service, name, kind, b"", b"", b"", round(start * 1e9), round(end * 1e9), {}, False)


def test_a_bar_stands_where_its_span_was_in_time() -> None:
    outer, inner = _span("client", "agent", 10.0, 14.0), _span("server", "work", 12.0, 13.0, "SERVER")
    drawn = ElementTree.fromstring(picture([(0, outer), (1, inner)]))
    bars = [bar for bar in drawn.iter(f"{_SVG}rect") if bar.get("rx")]
    (left, width), (start, length) = ((float(bar.get("x", "")), float(bar.get("width", ""))) for bar in bars)
    assert (start - left) / width == 0.5
    assert length / width == 0.25
    texts = ["".join(text.itertext()) for text in drawn.iter(f"{_SVG}text")]
    assert texts[-4:] == ["agent", "4.00 s", "work SERVER", "1.00 s"]


def test_the_picture_of_the_docs_shows_what_they_tell_of() -> None:
    drawn = ElementTree.fromstring(PICTURE.read_text(encoding="utf-8"))
    texts = ["".join(text.itertext()) for text in drawn.iter(f"{_SVG}text")]
    for name in ("agent", "tools/call own_add SERVER", "slot", "connect", "tools/call add CLIENT", "work"):
        assert name in texts
