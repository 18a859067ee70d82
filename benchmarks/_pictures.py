"""A curve as an SVG: both axes logarithmic, every point with its number. No library: it is twenty shapes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from ._figures import number

WIDTH, HEIGHT = 560, 280
LEFT, RIGHT, TOP, BOTTOM = 60, 30, 50, 40
BLUE = "#3b6ea5"
# White paper and dark ink, the other way round where the page around it is dark.
DARK = (
    '<style>@media (prefers-color-scheme: dark) { rect[fill="#fff"] { fill: #1b2420 } text { fill: #e3ece6 }'
    ' text[fill="#666"], tspan[fill="#888"] { fill: #a3b3a9 } line[stroke="#ddd"] { stroke: #3a4740 }'
    ' line[stroke="#bbb"] { stroke: #55645b } [stroke="#3b6ea5"] { stroke: #7fb0e6 } [fill="#3b6ea5"] { fill: #7fb0e6 }'
    " }</style>"
)


def curve(title: str, points: Mapping[int, float]) -> str:
    """The picture of `points`; the cost axis spans two decades at least, so that flat looks flat."""
    floor = 10 ** math.floor(math.log10(min(points.values())))
    ceiling = max(10 ** math.ceil(math.log10(max(points.values()))), floor * 100)
    places = {count: (_x(count, points), _y(cost, floor, ceiling)) for count, cost in points.items()}
    shapes = [*_frame(title, floor, ceiling), *_dots(points, places)]
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"',
        ' font-family="sans-serif" font-size="12">',
        DARK, f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>', *shapes, "</svg>", "",
    ])  # fmt: skip


def _frame(title: str, floor: float, ceiling: float) -> Iterator[str]:
    yield f'<text x="{LEFT}" y="24" font-size="14" font-weight="bold">{title}</text>'
    decades = round(math.log10(ceiling / floor))
    for decade in range(decades + 1):
        cost = floor * 10**decade
        y = _y(cost, floor, ceiling)
        yield f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#ddd"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#666">{number(cost)}</text>'


def _dots(points: Mapping[int, float], places: Mapping[int, tuple[float, float]]) -> Iterator[str]:
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places.values())
    yield f'<polyline points="{line}" fill="none" stroke="{BLUE}" stroke-width="2"/>'
    for count, (x, y) in places.items():
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{BLUE}"/>'
        yield f'<text x="{x:.1f}" y="{y - 10:.1f}" text-anchor="middle">{number(points[count])}</text>'
        yield f'<text x="{x:.1f}" y="{HEIGHT - 14}" text-anchor="middle" fill="#666">{count:,}</text>'


def _x(count: int, points: Mapping[int, float]) -> float:
    low, high = math.log(min(points)), math.log(max(points))
    return LEFT + 20 + (WIDTH - LEFT - RIGHT - 40) * (math.log(count) - low) / ((high - low) or 1)


def _y(cost: float, floor: float, ceiling: float) -> float:
    share = math.log(max(cost, floor) / floor) / math.log(ceiling / floor)
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share
