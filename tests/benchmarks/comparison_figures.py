"""What the comparison measured, and how its numbers are written."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from tests.benchmarks.asyncio_rounds import OneLock
from tests.benchmarks.contended_figures import Figures
from tests.benchmarks.side_by_side import PerCycle

OURS = "fenced"
NONE = "none"


class Measured(NamedTuple):
    """All that the page shows: what it was measured on, and figures by case and by contender."""

    about: Mapping[str, str]
    cycles: Mapping[str, Mapping[str, PerCycle]]
    contended: Mapping[str, Mapping[str, Figures]]
    tasks: Mapping[str, Mapping[str, OneLock]]


def shown(name: str) -> str:
    """Return the name of a contender as readers know it: the others are named for their packages."""
    return "fenced_locks" if name == OURS else name


def digits(value: float, places: int = 0) -> str:
    """Write a number; what was not there to measure is "none"."""
    return f"{value:.{places}f}" if math.isfinite(value) else NONE


def evenness(one: Figures) -> float:
    """Return the grants of the worker that got the fewest, in percent of those of the one that got the most."""
    return 100 * one.fewest / one.most if one.most else math.nan
