"""The page that compares locks: the figures as tables, the charts that belong to them, and their place in the page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from tests.benchmarks.asyncio_rounds import OneLock
from tests.benchmarks.charts import svg
from tests.benchmarks.comparison_charts import charts
from tests.benchmarks.comparison_figures import Measured, digits, shown
from tests.benchmarks.contended_figures import Figures
from tests.benchmarks.side_by_side import PerCycle

T = TypeVar("T")
PAGES = Path(__file__).resolve().parents[2] / "docs" / "pages"
PAGE = PAGES / "explanation" / "comparison.md"
ASSETS = PAGES / "assets"
BEGIN, END = "<!-- figures -->\n", "<!-- end of figures -->\n"

CYCLE: dict[str, Callable[[PerCycle], str]] = {
    "Cycle, µs": lambda one: digits(one.wall),
    "of it CPU, µs": lambda one: digits(one.cpu),
}
CONTENDED: dict[str, Callable[[Figures], str]] = {
    "Grants/s": lambda one: digits(one.rate),
    "Hand-off, ms": lambda one: digits(one.p50, 2),
    "99 %, ms": lambda one: digits(one.p99, 2),
    "Worst wait, ms": lambda one: digits(one.worst_wait),
    "Fewest": lambda one: str(one.fewest),
    "Most": lambda one: str(one.most),
    "Connections": lambda one: str(one.connections),
    "Trips/grant": lambda one: digits(one.round_trips, 1),
}
TASKS: dict[str, Callable[[OneLock], str]] = {
    "Grants/s": lambda one: digits(one.rate),
    "Tasks served": lambda one: digits(one.served),
    "Connections": lambda one: str(one.connections),
}


def figures(measured: Measured) -> str:
    """Return what stands between the marks of the page."""
    cycle_chart, *contended_charts = (f'--8<-- "{chart.name}.svg"' for chart in charts(measured))
    parts = [
        _rows(("Measured", "with"), measured.about.items()),
        "### Without competition",
        cycle_chart,
        *_tables(measured.cycles, CYCLE),
        "### One lock, many workers",
        *contended_charts,
        *_tables(measured.contended, CONTENDED),
        "### One lock, many tasks of an event loop",
        *_tables(measured.tasks, TASKS),
    ]
    return "\n\n".join(parts) + "\n"


def write(measured: Measured, page: Path = PAGE, assets: Path = ASSETS) -> None:
    """
    Put the figures into the page, and the charts beside the other drawings.

    Raises:
        ValueError: The page does not have each mark once, the first in front of the other. Nothing was written.
    """
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in before + after:
        raise ValueError(f"page must have {BEGIN.strip()} and then {END.strip()}, each once; got {page}.")
    for chart in charts(measured):
        (assets / f"{chart.name}.svg").write_text(svg(chart), encoding="utf-8")
    page.write_text(f"{before}{BEGIN}\n{figures(measured)}\n{END}{after}", encoding="utf-8")


def _tables(cases: Mapping[str, Mapping[str, T]], columns: Mapping[str, Callable[[T], str]]) -> list[str]:
    def table(own: Mapping[str, T]) -> str:
        rows = [(shown(name), *(cell(one) for cell in columns.values())) for name, one in own.items()]
        return _rows(("Lock", *columns), rows)

    return [f"**{case}**\n\n{table(own)}" for case, own in cases.items()]


def _rows(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [heads, ["---"] * len(heads), *rows])
