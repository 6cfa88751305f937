"""
Law 2 as a table: each way to write a row, with a newer writer at each time, on each database and isolation level.

What happens is written down, held against the law, and is the table of a page in the docs. ``WRITE_MATRIX=1`` writes
the page instead of comparing it.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

import pytest
from django.db import connections

from tests.docs_runner import PAGES
from tests.write_matrix import StaleWriter, Timing, meet, outcome
from tests.write_paths import NEWER, NEWEST, PATHS, UNTOUCHED, Found, Law, Row, WritePath

PAGE = PAGES / "reference" / "write-paths.md"
HOW_TO_WRITE = "WRITE_MATRIX=1 pytest tests/concurrency/test_write_matrix.py writes the page anew"
MEETINGS = [timing for timing in Timing if timing is not Timing.NEVER]


@dataclass(frozen=True)
class Level:
    """An isolation level, or what is nearest to one; SQL before and inside the stale writer's transaction."""

    name: str
    before: list[str] = field(default_factory=list)
    inside: list[str] = field(default_factory=list)
    journal: str = ""

    @contextmanager
    def prepared(self, using: str) -> Iterator[None]:
        """Have the journal of an SQLite file as the level has it."""
        if self.journal:
            _set_journal(using, self.journal)
        try:
            yield
        finally:
            if self.journal:
                _set_journal(using, "delete")


def _set_journal(using: str, mode: str) -> None:
    with connections[using].cursor() as cursor:
        cursor.execute(f"PRAGMA journal_mode = {mode}")
        assert cursor.fetchone() == (mode,)


def _on_mariadb(name: str, *more: str) -> Level:
    level = name.partition(",")[0]
    return Level(name, [f"SET SESSION TRANSACTION ISOLATION LEVEL {level}", *more])


LEVELS = {
    "default": [Level("rollback journal", journal="delete"), Level("WAL", journal="wal")],
    "postgres": [
        Level(name, inside=[f"SET TRANSACTION ISOLATION LEVEL {name}"])
        for name in ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
    ],
    "mariadb": [
        _on_mariadb("READ COMMITTED"),
        # Its default differs between the versions of the server.
        _on_mariadb("REPEATABLE READ", "SET innodb_snapshot_isolation = OFF"),
        _on_mariadb("REPEATABLE READ, snapshot isolation", "SET innodb_snapshot_isolation = ON"),
    ],
}
DATABASES = [
    pytest.param(alias, marks=pytest.mark.django_db(databases=["default", alias], transaction=True)) for alias in LEVELS
]


@pytest.mark.parametrize("using", DATABASES)
def test_no_way_to_write_breaks_the_law_and_the_docs_show_what_each_does(using: str) -> None:
    if using == "mariadb" and not getattr(connections[using], "mysql_is_mariadb", False):
        pytest.skip("the table is that of MariaDB")
    table = _table(using)
    if os.environ.get("WRITE_MATRIX"):
        _change_page(lambda text: _replaced(text, using, table))
    shown = PAGE.read_text()
    assert shown == _replaced(shown, using, table), HOW_TO_WRITE


def test_the_page_explains_every_word_of_its_tables() -> None:
    legend, _, tables = PAGE.read_text().partition("## SQLite")
    explained = set(re.findall(r"^\| ([^|]+) \|", legend, re.MULTILINE))
    cells = {cell for line in re.findall(r"^\| [^|]+ \| (.+) \|$", tables, re.MULTILINE) for cell in line.split(" | ")}
    words = {cell for cell in cells if "<br>" not in cell} - {"---"}
    assert words
    assert words <= explained


def _table(using: str) -> str:
    """Let the writers meet in every cell; return the table, with one column for each level and time."""
    columns = [_cells(using, level) for level in LEVELS[using]]
    levels = [f"{level.name}<br>{timing.value}" for level in LEVELS[using] for timing in MEETINGS]
    lines = [["write", *levels], ["---"] * (1 + len(levels))]
    for number, path in enumerate(PATHS):
        lines.append([path.name, *itertools.chain.from_iterable(cells[number] for cells in columns)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cells(using: str, level: Level) -> list[list[str]]:
    """Return the outcomes at one level: for each path, those of the three times."""
    with level.prepared(using), closing(StaleWriter(using, level.before, level.inside)) as stale:
        return [_row_of_cells(path, using, level, stale) for path in PATHS]


def _row_of_cells(path: WritePath, using: str, level: Level, stale: StaleWriter) -> list[str]:
    with path.guarded(using):
        _check_alone(path, Row(using, path.make(using)), stale)
        return [_cell(path, Row(using, path.make(using)), level, stale, timing) for timing in MEETINGS]


def _check_alone(path: WritePath, row: Row, stale: StaleWriter) -> None:
    """Without a newer writer it writes, or its refusals would say nothing."""
    result = meet(path, row, stale, Timing.NEVER)
    is_written = not isinstance(result, Exception) and row.found() != UNTOUCHED
    assert is_written is (path.law is not Law.REFUSED), (path.name, result)


def _cell(path: WritePath, row: Row, level: Level, stale: StaleWriter, timing: Timing) -> str:
    result = meet(path, row, stale, timing, readers_delay_commits=level.journal == "delete")
    found = row.found()
    assert _is_lawful(path.law, found), (path.name, level.name, timing.value, found, result)
    return outcome(result, found)


def _is_lawful(law: Law, found: Found) -> bool:
    if law is Law.NONE:
        return True
    if law is Law.PLAIN:
        return found is None or found[0] == NEWER
    return found == NEWEST


def _replaced(text: str, using: str, table: str) -> str:
    """Return the page with this table between its two marks."""
    start, end = f"<!-- {using} -->\n", f"\n<!-- end of {using} -->"
    head, _, rest = text.partition(start)
    _, mark, tail = rest.partition(end)
    assert mark, f"{PAGE.name} has no marks for {using}"
    return f"{head}{start}\n{table}\n{mark}{tail}"


def _change_page(change: Callable[[str], str]) -> None:
    """The databases may be in processes of their own, and others may read."""
    with open(__file__) as own:
        fcntl.flock(own, fcntl.LOCK_EX)
        changed = PAGE.with_suffix(".new")
        changed.write_text(change(PAGE.read_text()))
        changed.replace(PAGE)
