"""Measure contenders in turns, and compare two of them by median ratios of wall and CPU time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

Batch = Callable[[int], None]
C = TypeVar("C")
T = TypeVar("T")


class PerCycle(NamedTuple):
    """What one cycle took, in microseconds."""

    wall: float
    cpu: float


def in_turns(rounds: int, contenders: Mapping[str, C], measure: Callable[[C], T]) -> dict[str, list[T]]:
    """Measure the contenders right after each other, in every round another one first."""
    results: dict[str, list[T]] = {name: [] for name in contenders}
    names = list(contenders)
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            results[name].append(measure(contenders[name]))
    return results


def per_cycle(contenders: Mapping[str, Batch], *, batches: int, size: int) -> dict[str, list[PerCycle]]:
    """Run batches of this many cycles in turns, after one of each to warm up."""
    for batch in contenders.values():
        batch(size)
    return in_turns(batches, contenders, lambda batch: _timed(batch, size))


def median_cycle(measured: Sequence[PerCycle]) -> PerCycle:
    """Return the medians."""
    return PerCycle(*(statistics.median(one[clock] for one in measured) for clock in (0, 1)))


def compare(names: tuple[str, str], baseline: Batch, contender: Batch, *, batches: int, size: int) -> float:
    """Print microseconds of each and the ratios; return the median ratio of wall time."""
    measured = per_cycle(dict(zip(names, (baseline, contender), strict=True)), batches=batches, size=size)
    for name in names:
        took = median_cycle(measured[name])
        print(f"  {name:<34} {took.wall:8.1f} us wall {took.cpu:8.1f} us CPU")
    pairs = list(zip(*(measured[name] for name in names), strict=True))
    wall, cpu = (statistics.median(pair[1][clock] / pair[0][clock] for pair in pairs) for clock in (0, 1))
    print(f"  ratio, median of {batches} pairs {'':<10} {wall:8.2f}    wall {cpu:8.2f}    CPU")
    return wall


def _timed(batch: Batch, size: int) -> PerCycle:
    wall, cpu = time.perf_counter(), time.process_time()
    batch(size)
    return PerCycle((time.perf_counter() - wall) / size * 1e6, (time.process_time() - cpu) / size * 1e6)
