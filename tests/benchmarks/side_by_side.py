"""Run two contenders in alternating batches and print median ratios of wall and CPU time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

Batch = Callable[[int], None]


def _timed(batch: Batch, size: int) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    batch(size)
    return (time.perf_counter() - wall) / size * 1e6, (time.process_time() - cpu) / size * 1e6


def compare(names: tuple[str, str], baseline: Batch, contender: Batch, *, batches: int, size: int) -> float:
    """Print microseconds of each and the ratios; return the median ratio of wall time."""
    for batch in (baseline, contender):
        batch(size)
    pairs = [(_timed(baseline, size), _timed(contender, size)) for _ in range(batches)]
    for at, name in enumerate(names):
        wall, cpu = (statistics.median(pair[at][clock] for pair in pairs) for clock in (0, 1))
        print(f"  {name:<34} {wall:8.1f} us wall {cpu:8.1f} us CPU")
    wall, cpu = (statistics.median(pair[1][clock] / pair[0][clock] for pair in pairs) for clock in (0, 1))
    print(f"  ratio, median of {batches} pairs {'':<10} {wall:8.2f}    wall {cpu:8.2f}    CPU")
    return wall
