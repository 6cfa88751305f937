"""The page that compares locks: the command that writes it, and whether its words still fit its figures."""

from __future__ import annotations

import math
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.benchmarks.asyncio_rounds import OneLock
from tests.benchmarks.comparison_charts import charts
from tests.benchmarks.comparison_figures import Measured
from tests.benchmarks.comparison_page import ASSETS, BEGIN, END, PAGE, figures, write
from tests.benchmarks.contended_figures import Figures
from tests.benchmarks.side_by_side import PerCycle

Table = dict[str, dict[str, str]]

MEASURED = Measured(
    about={"on": "2030-01-31", "server": "Valkey 8.1"},
    cycles={"One thread": {"fenced": PerCycle(151.4, 99.6), "redis-py": PerCycle(301, 200)}},
    contended={
        "8 processes": {
            "fenced": Figures(651.2, 0.613, 1.25, 14.6, 3.98, 24, 148, 149, 0),
            "pottery": Figures(512, math.nan, math.nan, 2000, 2.04, 8, 0, 0, 0),
        }
    },
    tasks={"1000 tasks": {"fenced": OneLock(560.4, 1000, 2), "redis-py": OneLock(9.3, 27.5, 999)}},
)


def tables(text: str) -> dict[str, Table]:
    """Return the tables of a text by the case in front, or their first head: rows by first cell, cells by head."""
    found: dict[str, Table] = {}
    for case, table in re.findall(r"(?:^\*\*(.*)\*\*\n\n)?((?:^\|.*\n)+)", text, re.MULTILINE):
        heads, _, *rows = ([cell.strip() for cell in line.strip("|\n").split("|")] for line in table.splitlines())
        assert all(len(row) == len(heads) for row in rows), table
        found[case or heads[0]] = {row[0]: dict(zip(heads[1:], row[1:], strict=True)) for row in rows}
    return found


def block(text: str) -> str:
    """Return what stands between the marks."""
    return text.partition(BEGIN)[2].partition(END)[0]


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "comparison.md"
    path.write_text(f"# Words\n\n{BEGIN}old\n{END}\nMore words.\n")
    return path


def test_tables_have_the_figures() -> None:
    assert tables(figures(MEASURED)) == {
        "Measured": {"on": {"with": "2030-01-31"}, "server": {"with": "Valkey 8.1"}},
        "One thread": {
            "fenced_locks": {"Cycle, µs": "151", "of it CPU, µs": "100"},
            "redis-py": {"Cycle, µs": "301", "of it CPU, µs": "200"},
        },
        "8 processes": {
            "fenced_locks": {
                "Grants/s": "651", "Hand-off, ms": "0.61", "99 %, ms": "1.25", "Worst wait, ms": "15",
                "Fewest": "148", "Most": "149", "Connections": "24", "Trips/grant": "4.0",
            },
            "pottery": {
                "Grants/s": "512", "Hand-off, ms": "none", "99 %, ms": "none", "Worst wait, ms": "2000",
                "Fewest": "0", "Most": "0", "Connections": "8", "Trips/grant": "2.0",
            },
        },
        "1000 tasks": {
            "fenced_locks": {"Grants/s": "560", "Tasks served": "1000", "Connections": "2"},
            "redis-py": {"Grants/s": "9", "Tasks served": "28", "Connections": "999"},
        },
    }  # fmt: skip


def test_charts_have_the_same_figures() -> None:
    bars = {
        (chart.name, case, bar.label): (bar.value, bar.further, bar.ours, bar.text)
        for chart in charts(MEASURED)
        for case, own in chart.groups.items()
        for bar in own
    }
    assert bars["comparison-cycle", "One thread", "redis-py"] == (200, 301, False, "301, CPU 200")
    assert bars["comparison-hand-off", "8 processes", "fenced_locks"] == (0.613, 1.25, True, "0.61, 99 %: 1.25")
    assert bars["comparison-wait", "8 processes", "pottery"] == (2000, 0, False, "2000")
    assert bars["comparison-shares", "8 processes", "fenced_locks"][3] == "99 % (148 of 149)"
    assert bars["comparison-shares", "8 processes", "pottery"][3] == "none % (0 of 0)"


def test_writing_replaces_the_figures_and_nothing_else_and_twice_is_once(page: Path, tmp_path: Path) -> None:
    write(MEASURED, page, tmp_path)
    once = {path: path.read_text() for path in tmp_path.iterdir()}
    assert once[page] == f"# Words\n\n{BEGIN}\n{figures(MEASURED)}\n{END}\nMore words.\n"
    write(MEASURED, page, tmp_path)
    assert {path: path.read_text() for path in tmp_path.iterdir()} == once
    assert {f"{name}.svg" for name in included(once[page])} == {path.name for path in once if path != page}


@pytest.mark.parametrize("text", ["", BEGIN, END, END + BEGIN, BEGIN + BEGIN + END, BEGIN + END + END])
def test_a_page_without_its_marks_stays_as_it_is(text: str, page: Path, tmp_path: Path) -> None:
    page.write_text(text)
    with pytest.raises(ValueError, match=r"^page must have .*figures.*; got .*comparison\.md"):
        write(MEASURED, page, tmp_path)
    assert page.read_text() == text
    assert list(tmp_path.iterdir()) == [page]


def included(text: str) -> list[str]:
    return re.findall(r'^--8<-- "([\w-]+)\.svg"$', text, re.MULTILINE)


@pytest.fixture(scope="module")
def published() -> dict[str, Table]:
    """The tables of the page as it is in the repository."""
    return tables(block(PAGE.read_text()))


def test_the_page_has_what_the_command_writes(published: dict[str, Table]) -> None:
    text = block(PAGE.read_text())
    as_written = figures(MEASURED)
    assert included(text) == included(as_written) == [chart.name for chart in charts(MEASURED)]
    headings = [re.findall(r"^###.*", one, re.MULTILINE) for one in (text, as_written)]
    assert headings[0] == headings[1]
    heads = {tuple(row) for table in tables(as_written).values() for row in table.values()}
    assert {tuple(row) for table in published.values() for row in table.values()} == heads
    assert set(published["Measured"]) == {"on", "machine", "server", "Python", "packages", "rounds"}


def test_the_page_shows_all_contenders_in_all_cases(published: dict[str, Table]) -> None:
    four, two = ["fenced_locks", "redis-py", "python-redis-lock", "pottery"], ["fenced_locks", "redis-py"]
    loads = [
        f"{workers}, 1 ms of work, {pause} ms between holds"
        for workers in ("64 threads", "8 processes")
        for pause in (0, 6)
    ]
    assert {case: list(rows) for case, rows in published.items() if case != "Measured"} == {
        "One thread": four,
        "One task, asyncio": two,
        **dict.fromkeys(loads, four),
        "1000 tasks, 1 ms of work": two,
    }


@pytest.mark.parametrize("name", [chart.name for chart in charts(MEASURED)])
def test_each_chart_of_the_page_is_there_and_has_the_figures_of_its_tables(
    name: str, published: dict[str, Table]
) -> None:
    root = ElementTree.parse(ASSETS / f"{name}.svg").getroot()
    texts = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
    columns = {
        "comparison-cycle": "{Cycle, µs}, CPU {of it CPU, µs}",
        "comparison-hand-off": "{Hand-off, ms}, 99 %: {99 %, ms}",
        "comparison-wait": "{Worst wait, ms}",
        "comparison-shares": "({Fewest} of {Most})",
    }
    column = re.findall(r"{(.*?)}", columns[name])
    rows = [row for table in published.values() for row in table.values() if column[0] in row]
    assert rows
    for row in rows:
        value = re.sub(r"{(.*?)}", lambda match, row=row: row[match[1]], columns[name])
        assert any(text and text.endswith(value) for text in texts), value


class TestWhatThePageSaysFitsItsFigures:
    """If one of these fails after the figures were written anew, the words of the page have to change."""

    @pytest.fixture(autouse=True)
    def _of_enough_rounds(self, published):
        rounds = published["Measured"]["rounds"]["with"]
        if int(rounds.split()[0]) < 3:
            pytest.skip(f"the figures of the page are preliminary: rounds {rounds}")

    @pytest.fixture
    def contended(self, published: dict[str, Table]) -> dict[str, dict[str, dict[str, float]]]:
        return {
            case: {
                name: {head: float(cell.replace("none", "nan")) for head, cell in row.items()}
                for name, row in rows.items()
            }
            for case, rows in published.items()
            if "between holds" in case
        }

    def test_nobody_is_left_out(self, contended):
        for case, rows in contended.items():
            assert rows["fenced_locks"]["Fewest"] >= 0.8 * rows["fenced_locks"]["Most"], case
            for other in ("redis-py", "pottery"):
                assert rows[other]["Fewest"] < 0.6 * rows[other]["Most"], case
                assert rows["fenced_locks"]["Worst wait, ms"] < 0.5 * rows[other]["Worst wait, ms"], case

    def test_redis_py_makes_more_grants_where_its_holder_does_not_pause_and_fewer_where_it_does(self, contended):
        for case, rows in contended.items():
            more = "processes" in case and " 0 ms between" in case
            if more or " 6 ms between" in case:
                assert (rows["redis-py"]["Grants/s"] > rows["fenced_locks"]["Grants/s"]) is more, case

    def test_python_redis_lock_comes_close(self, contended):
        for case, rows in contended.items():
            assert 0.7 < rows["fenced_locks"]["Grants/s"] / rows["python-redis-lock"]["Grants/s"] < 1.5, case

    def test_we_need_more_of_the_server(self, contended):
        for case, rows in contended.items():
            ours, theirs = rows["fenced_locks"], rows["redis-py"]
            assert ours["Trips/grant"] < min(4.5, rows["python-redis-lock"]["Trips/grant"]), case
            if "processes" in case:
                assert theirs["Trips/grant"] < 0.8 * ours["Trips/grant"], case
                assert theirs["Connections"] < ours["Connections"] <= 3 * theirs["Connections"], case
            else:
                assert ours["Connections"] < theirs["Connections"], case

    def test_ours_is_the_fastest_without_competition(self, published):
        for case in ("One thread", "One task, asyncio"):
            took = {name: float(row["Cycle, µs"]) for name, row in published[case].items()}
            assert min(took, key=took.__getitem__) == "fenced_locks", took
