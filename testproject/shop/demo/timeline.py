"""Print what happens as it happens: one column for each party, not wider than 100 characters."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import zip_longest

from django.core.management.color import Style

HEADINGS = ("second", "worker A", "Redis", "worker B", "row in the database")
WIDTHS = (6, 23, 12, 23, 22)
GAP = "  "
STANDS_STILL = "   :"


class Timeline:
    """
    A table that grows downwards, with the seconds since it was begun; cells may have several lines.

    Attributes:
        frozen: Whether worker A is frozen: its column then shows that time passes it by.
    """

    def __init__(self, write: Callable[[str], object], style: Style) -> None:
        self.frozen = False
        self._write = write
        self._style = style
        self._start = time.monotonic()
        self._add(HEADINGS, style.MIGRATE_HEADING)
        self._add(tuple("-" * width for width in WIDTHS))

    def show(
        self, A: str = "", redis: str = "", B: str = "", row: str = "", *, good: bool = False, bad: bool = False
    ) -> None:
        """Add what happened at this moment."""
        paint = self._style.SUCCESS if good else self._style.ERROR if bad else str
        self._add((f"{time.monotonic() - self._start:6.2f}", A, redis, B, row), paint)

    def _add(self, cells: tuple[str, ...], paint: Callable[[str], str] = str) -> None:
        for parts in zip_longest(*(cell.split("\n") for cell in cells), fillvalue=""):
            if self.frozen:
                parts = (parts[0], parts[1] or STANDS_STILL, *parts[2:])
            padded = (part.ljust(width) for part, width in zip(parts, WIDTHS, strict=True))
            self._write(paint(GAP.join(padded).rstrip()))
