"""Draws the diagrams of the docs from what they show, into `docs/diagrams`.

    python -m tools.diagrams           draw them all; `tools.docs` says when one is not what the code says

* `lifecycle.svg`: the table of `greenroom.protocol.lifecycle`.
* `call.svg`: the way of a call. The places of a start are those of `greenroom.protocol.events`; each module and each
  error that it names exists.

They stand upright and are narrow, so that a phone shows them without scrolling. Light and dark are one file: a picture
in a page is drawn with that page's colour scheme. Rejected: Mermaid, whose program of three megabytes a reader's
browser would load, and which a page of the repository shows differently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Final

import attrs

from greenroom import errors
from greenroom.protocol.errors import Reach
from greenroom.protocol.events import Place
from greenroom.protocol.lifecycle import TABLE, State, Trigger

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = "docs/diagrams"
STYLE: Final = """\
text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; fill: #1d2a22 }
.dim { fill: #55645b } .small { font-size: 12px } .strong { font-weight: 600 } .error { fill: #a2361f }
.box { fill: #edf6f0; stroke: #2e7d4f } .outside { fill: #f3f3f0; stroke: #8a8a80 } .mark { fill: #2e7d4f }
.line { fill: none; stroke: #55645b; stroke-width: 1.4 } .grid { stroke: #d5ddd8 } .tip { fill: #55645b }
.not_sent { fill: #3b6ea5 } .sent { fill: #b8741a } .answered { fill: #2e7d4f }
@media (prefers-color-scheme: dark) {
  text { fill: #e3ece6 } .dim { fill: #a3b3a9 } .error { fill: #f0907c }
  .box { fill: #1d3327; stroke: #58b583 } .outside { fill: #2b2e2c; stroke: #8d948f } .mark { fill: #58b583 }
  .line { stroke: #a3b3a9 } .grid { stroke: #3a4740 } .tip { fill: #a3b3a9 }
  .not_sent { fill: #7fb0e6 } .sent { fill: #e5a850 } .answered { fill: #58b583 }
}"""
TIP: Final = (
    '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path class="tip" d="M0 0L8 4L0 8z"/></marker>'
)


def main() -> None:
    for path, text in pictures().items():
        (ROOT / path).parent.mkdir(exist_ok=True)
        (ROOT / path).write_text(text, encoding="utf-8")


def pictures() -> Mapping[str, str]:
    return {
        f"{FOLDER}/lifecycle.svg": lifecycle(TABLE),
        f"{FOLDER}/call.svg": way_of_a_call(),
    }


# ---- the life of a server -------------------------------------------------------------------------------------------


def lifecycle(table: Mapping[State, Mapping[Trigger, State]]) -> str:
    """The states of the table, one below the other; what leads over several of them runs beside."""
    left, wide, high, step = 130, 140, 38, 92
    top = {state: 48 + step * place for place, state in enumerate(table)}
    shapes = [f'<circle class="mark" cx="{left + wide / 2}" cy="14" r="7"/>']
    shapes.append(_arrow(f"M{left + wide / 2} 21V46"))
    lane = left + wide + 52
    for state, row in table.items():
        for target in dict.fromkeys(row.values()):
            words = [trigger.value for trigger, to in row.items() if to is target]
            here, there = top[state], top[target]
            if target is state:
                at = here + high / 2
                shapes.append(_arrow(f"M{left} {at - 9}h-14q-10 0-10 9t10 9h12"))
                for number, part in enumerate((", ".join(words[:2]) + ",", ", ".join(words[2:]))):
                    shapes.append(_text(left - 32, at - 4 + 17 * number, part, "small dim", "end"))
            elif there - here == step:
                shapes.append(_arrow(f"M{left + wide / 2} {here + high}V{there - 2}"))
                shapes.append(_text(left + wide / 2 + 10, here + high + 31, ", ".join(words), "small dim"))
            else:
                begin, end = here + high / 2 + 6, there + high / 2 - 6
                far = lane + (there - here) / step * 46 - 92
                right = left + wide
                shapes.append(
                    _arrow(f"M{right} {begin}H{far - 10}q10 0 10 10V{end - 10}q0 10-10 10H{right + 2}")
                )
                shapes.append(_text(far + 8, begin + 28, ", ".join(words), "small dim"))
    for state in table:
        shapes.append(_box(left, top[state], wide, high))
        shapes.append(_text(left + wide / 2, top[state] + 24, state.value, "strong", "middle"))
    last = max(top.values()) + high
    shapes.append(_arrow(f"M{left + wide / 2} {last}v24"))
    shapes.append(f'<circle class="line" cx="{left + wide / 2}" cy="{last + 35}" r="8"/>')
    shapes.append(f'<circle class="mark" cx="{left + wide / 2}" cy="{last + 35}" r="5"/>')
    told = "The states of a server: " + "; ".join(
        f"{state.value} to {', '.join(dict.fromkeys(to.value for to in row.values())) or 'the end'}"
        for state, row in table.items()
    )
    return _svg(480, last + 52, "The life of a server", told, shapes)


# ---- the way of a call ----------------------------------------------------------------------------------------------


@attrs.frozen
class Stop:
    """One stop on the way: what is asked or done there, in which module, and what may end the call."""

    words: str
    module: str
    ends: tuple[str, ...] = ()
    reach: Reach = Reach.NOT_SENT
    while_starting: bool = False


def stops() -> list[Stop]:
    """The way, from the door to the result. A start's places are in the order of their enumeration."""
    at_places = {
        Place.BREAKER: Stop("circuit breaker", "supervisor.policy.breaker", ("Unavailable",)),
        Place.SLOT: Stop("slot of the pool", "supervisor.policy.pool", ("CallTimeout",)),
        Place.PERMIT: Stop("start permit", "supervisor.starts", ("CallTimeout",)),
        Place.STARTING: Stop("connect", "actors.connection", ("ConnectFailed", "NeedsAuth")),
    }
    return [
        Stop("a client or a program calls", "gateway.doors"),
        Stop("which tool is meant?", "catalogue.index", ("UnknownTool", "AmbiguousTool")),
        Stop("is it as it was first shown?", "safety.pinning", ("ToolChanged",)),
        Stop("must a person allow it?", "safety.approval_desk", ("ApprovalNeeded", "ApprovalDenied")),
        Stop("may the server have it?", "actors.call_queue", ("Busy", "ServerDown")),
        *(attrs.evolve(at_places[place], while_starting=True) for place in Place if place in at_places),
        Stop("the request is written", "actors.exchanges", ("ServerLost",), Reach.SENT),
        Stop("the server works", "actors.transports", ("ServerLost", "CallTimeout"), Reach.SENT),
        Stop("the answer is read", "actors.peer", ("RemoteError", "ProtocolFault"), Reach.ANSWERED),
        Stop("credentials are removed", "safety.scrubber", (), Reach.ANSWERED),
        Stop("the caller has its result", "protocol.result", (), Reach.ANSWERED),
    ]


def way_of_a_call() -> str:
    way = stops()
    for stop in way:
        assert find_spec(f"greenroom.{stop.module}"), f"there is no {stop.module}"
        for name in stop.ends:
            assert hasattr(errors, name), f"there is no error {name}"
    top, step, high, left, wide = 34, 58, 40, 74, 228
    shapes = [
        _text(left, 18, "where it is", "small strong dim"),
        _text(left + wide + 26, 18, "what may end it", "small strong dim"),
    ]
    for reach in Reach:
        own = [place for place, stop in enumerate(way) if stop.reach is reach]
        y, bottom = top + step * own[0], top + step * own[-1] + high
        shapes.append(
            f'<rect class="{reach.value}" x="22" y="{y}" width="5" height="{bottom - y}" rx="2.500"/>'
        )
        middle = (y + bottom) / 2
        shapes.append(
            f'<text class="small strong {reach.value}" text-anchor="middle"'
            f' transform="translate(15 {middle})rotate(-90)">{reach.value}</text>'
        )
    starting = [place for place, stop in enumerate(way) if stop.while_starting]
    before, after = starting[0] - 1, starting[-1] + 1
    y, end = top + step * before + high / 2, top + step * after + high / 2
    shapes.append(_arrow(f"M{left} {y}H{left - 12}q-10 0-10 10V{end - 10}q0 10 10 10H{left - 2}"))
    shapes.append(
        f'<text class="small dim" text-anchor="middle"'
        f' transform="translate({left - 28} {(y + end) / 2})rotate(-90)">already connected</text>'
    )
    for place, stop in enumerate(way):
        y = top + step * place
        shapes.append(_box(left, y, wide, high, "outside" if stop.while_starting else "box"))
        shapes.append(_text(left + 12, y + 18, stop.words, "strong"))
        shapes.append(_text(left + 12, y + 33, stop.module, "small dim"))
        for number, name in enumerate(stop.ends):
            line = y + (25 if len(stop.ends) == 1 else 17 + 17 * number)
            shapes.append(_text(left + wide + 26, line, name, "small error"))
        if stop.ends:
            shapes.append(f'<path class="grid" d="M{left + wide} {y + high / 2}h20"/>')
    for first, _ in pairwise(range(len(way))):
        y = top + step * first + high
        shapes.append(_arrow(f"M{left + wide / 2} {y}v{step - high - 2}"))
    told = "; ".join(
        f"{stop.words}{f' (may end in {chr(44).join(stop.ends)})' if stop.ends else ''}" for stop in way
    )
    return _svg(460, top + step * len(way) - 10, "The way of a call", told, shapes)


# ---- shapes ---------------------------------------------------------------------------------------------------------


def _svg(width: float, height: float, title: str, told: str, shapes: Sequence[str]) -> str:
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    lines = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        f"<title>{escape(title)}</title>",
        f"<desc>{escape(told)}</desc>",
        f"<style>{STYLE}</style>",
        f"<defs>{TIP}</defs>",
        *shapes,
        "</svg>",
        "",
    )
    return "\n".join(lines)


def _box(x: float, y: float, width: float, height: float, kind: str = "box") -> str:
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="7"/>'


def _text(x: float, y: float, words: str, kind: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'


def _arrow(path: str) -> str:
    return f'<path class="line" marker-end="url(#tip)" d="{path}"/>'


if __name__ == "__main__":
    main()
