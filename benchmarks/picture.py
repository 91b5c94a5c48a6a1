"""Charts with logarithmic axes, as SVG: a few lines each, and nothing to install."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape

Points = Sequence[tuple[float, float]]

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 460, 340, 70, 40, 50
COLOURS = ("#7f7f7f", "#d1495b", "#edae49", "#00798c")


def charts(panels: Mapping[str, Mapping[str, Points]], across: str) -> str:
    """Panels side by side: title -> name of a line -> its points. `across` names the x axis."""
    width = WIDTH * len(panels)
    space = "http://www.w3.org/2000/svg"
    parts = [
        f'<svg xmlns="{space}" viewBox="0 0 {width} {HEIGHT}" font-family="sans-serif">',
        "<style>text { font-size: 12px }</style>",
        f'<rect width="{width}" height="{HEIGHT}" fill="white"/>',
    ]
    for number, (title, lines) in enumerate(panels.items()):
        parts.append(f'<g transform="translate({number * WIDTH} 0)">')
        parts += _panel(title, lines, across)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


def _panel(title: str, lines: Mapping[str, Points], across: str) -> Iterable[str]:
    points = [point for line in lines.values() for point in line]
    columns = _Axis([x for x, _ in points], LEFT, WIDTH - 20, 2)
    rows = _Axis([y for _, y in points], HEIGHT - BOTTOM, TOP, 10)
    yield f'<text x="{LEFT}" y="20" font-weight="bold">{escape(title)}</text>'
    for tick in columns.ticks():
        at = columns.place(tick)
        yield f'<path d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#eee"/>'
        yield f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{tick:g}</text>'
    for tick in rows.ticks():
        at = rows.place(tick)
        yield f'<path d="M{LEFT} {at:.1f}H{WIDTH - 20}" stroke="#ddd"/>'
        yield f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{tick:g}</text>'
    yield f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 14}" text-anchor="middle">{across}</text>'
    for number, (name, line) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{columns.place(x):.1f},{rows.place(y):.1f}" for x, y in line)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        y = TOP + 14 + 16 * number
        yield f'<text x="{LEFT + 10}" y="{y}" fill="{colour}">{escape(name)}</text>'


class _Axis:
    """From values to places, by their logarithm."""

    def __init__(self, values: Sequence[float], start: float, end: float, base: int) -> None:
        self._start, self._end, self._base = start, end, base
        self._low = math.floor(math.log(min(values), base))
        self._high = max(self._low + 1, math.ceil(math.log(max(values), base)))

    def place(self, value: float) -> float:
        share = (math.log(value, self._base) - self._low) / (self._high - self._low)
        return self._start + share * (self._end - self._start)

    def ticks(self) -> list[float]:
        return [float(self._base) ** power for power in range(self._low, self._high + 1)]
