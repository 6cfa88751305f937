"""
How ``fence_status`` writes: a table, JSON or CSV.

Pages are turned into columns, and columns into text: a million rows must not take much longer than to read them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Protocol

from django.core.management.color import Style

from ..inspection import Page, ResourceStatus
from ..texts import printable

_OWNER_WIDTH = 80
_ISO_8601 = "%sT%s+00:00"
_FIELDS = [field.name for field in dataclasses.fields(ResourceStatus)]


class Format(Protocol):
    """
    How pages become text. They come one by one, and none is empty.

    Attributes:
        head: What stands before the first page, whether one comes or not.
    """

    head: str

    def lines(self, page: Page) -> str:
        """Return the lines of a page."""

    @property
    def foot(self) -> str:
        """What stands after the last page."""


class Table:
    """
    For people; what cannot be printed is escaped.

    A column is as wide as its widest cell so far, so that later pages align as well as they can.

    Args:
        style: Colours for the titles, for what is held, and for what is wrong; None for none.
        dated: Whether there is a column for the time of issue.
    """

    head = foot = ""
    _TITLES = ("resource", "last token", "issued (UTC)", "state", "lease left", "owner")

    def __init__(self, style: Style | None, *, dated: bool) -> None:
        self._style = style
        self._dated = dated
        self._widths = [len(title) for title in self._TITLES]
        self._titled = False

    def lines(self, page: Page) -> str:
        columns = _printable(_cells(page))
        self._widths = [max(width, *map(len, cells)) for width, cells in zip(self._widths, columns, strict=True)]
        layout = self._layout()
        lines = [(layout % row).rstrip() for row in zip(*columns, strict=True)]
        if self._style:
            lines = [_painted(self._style, *row) for row in zip(lines, page.held, page.notes, strict=True)]
        if not self._titled:
            self._titled = True
            lines.insert(0, self._title(layout))
        return "\n".join(lines) + "\n"

    def _layout(self) -> str:
        resource, token, issued, state, left, _ = self._widths
        date = f"  %-{issued}s" if self._dated else "%.0s"
        return f"%-{resource}s  %{token}s{date}  %-{state}s  %{left}s  %s"

    def _title(self, layout: str) -> str:
        title = layout % self._TITLES
        return self._style.MIGRATE_LABEL(title) if self._style else title


def _cells(page: Page) -> list[list[str]]:
    return [
        page.resources,
        ["?" if token is None else str(token) for token in page.tokens],
        _issued(page, "%s %s", "milliseconds"),
        ["held" if held else "free" for held in page.held],
        [_left(seconds) if held else "" for held, seconds in zip(page.held, page.remaining, strict=True)],
        [_who(owner, note) if owner or note else "" for owner, note in zip(page.owners, page.notes, strict=True)],
    ]


def _left(seconds: float | None) -> str:
    return "no end" if seconds is None else f"{seconds:.1f} s"


def _who(owner: str | None, note: str) -> str:
    name = owner or ""
    if len(name) > _OWNER_WIDTH:
        name = name[: _OWNER_WIDTH - 3] + "..."
    return f"{name} ({note})".lstrip() if note else name


def _painted(style: Style, line: str, held: bool, note: str) -> str:
    if note:
        return style.NOTICE(line)
    return style.WARNING(line) if held else line


class Json:
    """An array with one object per line, in ASCII; names and owners as they are."""

    head = "["
    _ROW = "{" + ", ".join(f'"{name}": %s' for name in _FIELDS) + "}"

    def __init__(self) -> None:
        self._before = "\n"

    def lines(self, page: Page) -> str:
        dates = _issued(page, f'"{_ISO_8601}"', missing="null")
        values: list[Sequence[object]] = [page.resources, page.tokens, page.held, page.remaining, page.owners]
        columns = [*map(_json_column, values), dates, _json_column(page.notes)]
        before, self._before = self._before, ",\n"
        return before + ",\n".join([self._ROW % row for row in zip(*columns, strict=True)])

    @property
    def foot(self) -> str:
        return "]\n" if self._before == "\n" else "\n]\n"


def _json_column(values: Sequence[object]) -> list[str]:
    # One call per column takes a fraction of one per row. The JSON text of a value has no raw line break.
    return json.dumps(values, separators=("\n", ":"))[1:-1].split("\n")


class Csv:
    """One line per resource, for spreadsheets and line tools; what cannot be printed is escaped."""

    head = ",".join(_FIELDS) + "\n"
    foot = ""
    _ROW = ",".join(["%s"] * len(_FIELDS)) + "\n"

    def lines(self, page: Page) -> str:
        held = ["true" if held else "false" for held in page.held]
        values = page.resources, page.tokens, held, page.remaining, page.owners, _issued(page, _ISO_8601), page.notes
        texts = [["" if value is None else str(value) for value in column] for column in values]
        columns = map(_quoted, _printable(texts))
        return "".join([self._ROW % row for row in zip(*columns, strict=True)])


def _quoted(cells: list[str]) -> list[str]:
    # The csv module takes four times as long. There are no line breaks: they are escaped by now.
    together = "".join(cells)
    if '"' not in together and "," not in together:
        return cells
    return ['"' + cell.replace('"', '""') + '"' for cell in cells]


def _issued(page: Page, layout: str, precision: str = "microseconds", missing: str = "") -> list[str]:
    # They are in UTC. The isoformat() of the whole takes half as long again.
    return [
        layout % (at.date().isoformat(), at.time().isoformat(precision)) if at else missing for at in page.issued_at
    ]


def _printable(columns: list[list[str]]) -> list[list[str]]:
    return [cells if "".join(cells).isprintable() else list(map(printable, cells)) for cells in columns]
