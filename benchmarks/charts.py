"""Bar charts as SVG, for the documentation: figures of both brokers side by side."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

WIDTH: Final = 760
LABEL_WIDTH: Final = 240
VALUE_WIDTH: Final = 150
BAR: Final = 14
GAP: Final = 12
TOP: Final = 58
COLOURS: Final = ("#2563eb", "#94a3b8", "#f59e0b")
FONT: Final = "font-family='system-ui, sans-serif'"


def bars(title: str, series: Sequence[str], rows: Sequence[tuple[str, Sequence[float | None]]], *, unit: str) -> str:
    """One group of bars per row, one bar per series; `None` leaves its place empty."""
    largest = max((value for _, values in rows for value in values if value is not None), default=1.0) or 1.0
    group = len(series) * BAR + GAP
    height = TOP + len(rows) * group
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' width='{WIDTH}' role='img'>",
        f"<title>{escape(title)}</title>",
        f"<rect width='{WIDTH}' height='{height}' fill='#ffffff'/>",
        _text(12, 22, title, size=15, weight="600"),
        *_legend(series),
    ]
    for number, (label, values) in enumerate(rows):
        top = TOP + number * group
        parts.append(_text(LABEL_WIDTH - 8, top + len(series) * BAR / 2 + 4, label, anchor="end"))
        for place, value in enumerate(values):
            if value is None:
                continue
            length = (WIDTH - LABEL_WIDTH - VALUE_WIDTH) * value / largest
            y = top + place * BAR
            parts.append(
                f"<rect x='{LABEL_WIDTH}' y='{y}' width='{max(length, 1):.1f}' height='{BAR - 2}' rx='2' "
                f"fill='{COLOURS[place % len(COLOURS)]}'/>"
            )
            parts.append(_text(LABEL_WIDTH + max(length, 1) + 6, y + BAR - 4, f"{_short(value)} {unit}", size=11))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend(series: Sequence[str]) -> list[str]:
    parts = []
    for place, name in enumerate(series):
        x = LABEL_WIDTH + place * 150
        parts.append(f"<rect x='{x}' y='34' width='10' height='10' rx='2' fill='{COLOURS[place % len(COLOURS)]}'/>")
        parts.append(_text(x + 16, 43, name, size=12))
    return parts


def _text(x: float, y: float, text: str, *, size: int = 12, anchor: str = "start", weight: str = "400") -> str:
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' {FONT} font-size='{size}' font-weight='{weight}' text-anchor='{anchor}' "
        f"fill='#0f172a'>{escape(text)}</text>"
    )


def _short(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:.2f} M"
    if value >= 10_000:
        return f"{value / 1e3:.0f} k"
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
