"""
Bar charts as SVG, which the pages include as they do the other drawings: in the page's own colours, light or dark.

A bar has a full part and may have a pale one behind it, which reaches further: a median and the 99th percentile.
"""

from __future__ import annotations

import math
from html import escape
from typing import NamedTuple

WIDTH = 720
# Where bars begin, and how long the longest is: what is left is for the values beside them.
LEFT, LONGEST = 140, 400
BAR, ROW, HEADING, GAP = 14, 20, 24, 10
TEXT = "var(--md-default-fg-color, #808080)"
QUIET = "var(--md-default-fg-color--light, #808080)"
OURS = "#26a69a"


class Bar(NamedTuple):
    """How far the full part reaches, the text beside the bar, how far the pale part reaches, and whose bar it is."""

    value: float
    text: str
    further: float = 0
    label: str = ""
    ours: bool = False


class Chart(NamedTuple):
    """A name for the file and its ids, a title with the unit, and the bars by the heading of their group."""

    name: str
    title: str
    groups: dict[str, list[Bar]]


def svg(chart: Chart) -> str:
    """Draw a chart. All lengths are proportional to their values; what is no number has no bar."""
    longest = max((_number(value) for bar in _bars(chart) for value in (bar.value, bar.further)), default=0) or 1
    parts, y = [_text(0, 16, chart.title, QUIET)], HEADING
    for heading, bars in chart.groups.items():
        parts.append(_text(0, y + GAP + 13, heading, TEXT, ' font-weight="600"'))
        y += GAP + HEADING
        for bar in bars:
            parts += _row(bar, y, LONGEST / longest)
            y += ROW
    return "\n".join([*_head(chart, y), *parts, "</svg>\n"])


def _bars(chart: Chart) -> list[Bar]:
    return [bar for bars in chart.groups.values() for bar in bars]


def _head(chart: Chart, height: int) -> list[str]:
    title, about = f"{chart.name}-title", f"{chart.name}-about"
    values = "; ".join(
        f"{heading}: {', '.join(f'{bar.label} {bar.text}' for bar in bars)}" for heading, bars in chart.groups.items()
    )
    return [
        f'<svg class="comparison-chart" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-labelledby="{title} {about}" font-family="system-ui, sans-serif" font-size="13">',
        f'<title id="{title}">{escape(chart.title)}</title>',
        f'<desc id="{about}">{escape(values)}.</desc>',
    ]


def _row(bar: Bar, y: int, scale: float) -> list[str]:
    full, pale = (_number(value) * scale for value in (bar.value, bar.further))
    fill = OURS if bar.ours else QUIET
    rects = [_rect(y, pale, fill, ' fill-opacity=".3"')] if pale > full else []
    middle = y + BAR - 3
    return [
        _text(LEFT - 8, middle, bar.label, TEXT, ' text-anchor="end"'),
        *rects,
        _rect(y, full, fill),
        _text(LEFT + max(full, pale) + 6, middle, bar.text, TEXT),
    ]


def _rect(y: int, width: float, fill: str, more: str = "") -> str:
    return f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{fill}"{more}/>'


def _text(x: float, y: int, text: str, fill: str, more: str = "") -> str:
    return f'<text x="{x:.0f}" y="{y}" fill="{fill}"{more}>{escape(text)}</text>'


def _number(value: float) -> float:
    return value if math.isfinite(value) else 0
