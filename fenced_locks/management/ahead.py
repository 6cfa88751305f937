"""How ``fence_status --model`` writes what it found: a table, JSON or CSV, as it comes."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from ..comparison import Ahead
from ..texts import printable


class Format(Protocol):
    """
    How rows that are ahead become text.

    Attributes:
        head: What stands before the first of them, whether one comes or not.
    """

    head: str

    def lines(self, found: Sequence[Ahead]) -> str:
        """Return the lines of a page that is not empty."""

    @property
    def foot(self) -> str:
        """What stands after the last."""


class Table:
    """One sentence per row, for people; what cannot be printed is escaped."""

    head = foot = ""

    def lines(self, found: Sequence[Ahead]) -> str:
        return "".join(f"{_sentence(each)}\n" for each in found)


def _sentence(each: Ahead) -> str:
    counter = "no counter" if each.counter is None else f"counter {each.counter}"
    done = "raised" if each.raised else each.note and f"not raised: {each.note}"
    text = f"{each.resource}: row {each.pk} carries {each.row}, {counter}" + (f"; {done}" if done else "")
    return printable(text)


class Json:
    """An array with one object per line, in ASCII."""

    head = "["

    def __init__(self) -> None:
        self._before = "\n"

    def lines(self, found: Sequence[Ahead]) -> str:
        lines = self._before + ",\n".join(json.dumps(each._asdict(), default=str) for each in found)
        self._before = ",\n"
        return lines

    @property
    def foot(self) -> str:
        return "]\n" if self._before == "\n" else "\n]\n"


class Csv:
    """One line per row, with a title line."""

    head = ",".join(Ahead._fields) + "\n"
    foot = ""

    def lines(self, found: Sequence[Ahead]) -> str:
        return _csv([*each[:4], "true" if each.raised else "false", each.note] for each in found)


def _csv(rows: Iterable[Sequence[object]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


FORMATS: dict[str, Callable[[], Format]] = {"table": Table, "json": Json, "csv": Csv}
