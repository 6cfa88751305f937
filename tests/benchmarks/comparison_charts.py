"""The charts of the page that compares locks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from tests.benchmarks.charts import Bar, Chart
from tests.benchmarks.comparison_figures import OURS, Measured, digits, evenness, shown
from tests.benchmarks.contended_figures import Figures
from tests.benchmarks.side_by_side import PerCycle

T = TypeVar("T")


def charts(measured: Measured) -> list[Chart]:
    """Return the charts, in the order of the page."""
    return [
        Chart(
            "comparison-cycle",
            "Acquire and release without competition: µs, and how many of them are CPU time (full bar)",
            _groups(measured.cycles, _cycle),
        ),
        Chart(
            "comparison-hand-off",
            "From a release to the next grant, in ms: median (full bar) and 99th percentile",
            _groups(measured.contended, _hand_off),
        ),
        Chart("comparison-wait", "The longest wait of any worker, in ms", _groups(measured.contended, _wait)),
        Chart(
            "comparison-shares",
            "The fewest grants of a worker, in % of the most; 100 % is an even share",
            _groups(measured.contended, _shares),
        ),
    ]


def _groups(cases: Mapping[str, Mapping[str, T]], bar: Callable[[T], Bar]) -> dict[str, list[Bar]]:
    return {
        case: [bar(one)._replace(label=shown(name), ours=name == OURS) for name, one in rows.items()]
        for case, rows in cases.items()
    }


def _cycle(one: PerCycle) -> Bar:
    return Bar(one.cpu, f"{digits(one.wall)}, CPU {digits(one.cpu)}", further=one.wall)


def _hand_off(one: Figures) -> Bar:
    return Bar(one.p50, f"{digits(one.p50, 2)}, 99 %: {digits(one.p99, 2)}", further=one.p99)


def _wait(one: Figures) -> Bar:
    return Bar(one.worst_wait, digits(one.worst_wait))


def _shares(one: Figures) -> Bar:
    return Bar(evenness(one), f"{digits(evenness(one))} % ({one.fewest} of {one.most})")
