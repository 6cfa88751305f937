"""The figures of the benchmark ``contended``: from what the workers recorded to rates, delays, shares and ratios."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from tests.benchmarks.contended_workers import Hold, Record

MILLISECONDS = 1e3


class Watch(NamedTuple):
    """What was seen on the server between two moments: its reads, and the most connections, without our own."""

    opened: float
    closed: float
    reads: int
    connections: int


class Figures(NamedTuple):
    """One contender in one round, or over all of them; times in milliseconds, the rate per second."""

    rate: float
    p50: float
    p99: float
    worst_wait: float
    round_trips: float
    connections: int
    fewest: int
    most: int
    refusals: int


def figures(records: Sequence[Record], watch: Watch) -> Figures:
    """Reduce what the workers recorded to the figures of the time that was watched."""

    def watched(hold: Hold) -> bool:
        return watch.opened <= hold.granted < watch.closed

    grants = [sum(map(watched, record.holds)) for record in records]
    waits = [hold.granted - hold.asked for record in records for hold in record.holds if hold.granted >= watch.opened]
    refusals = [wait for record in records for wait in record.refusals]
    delays = sorted(_hand_offs(records, watched))
    return Figures(
        rate=sum(grants) / (watch.closed - watch.opened),
        p50=_percentile(delays, 0.50) * MILLISECONDS,
        p99=_percentile(delays, 0.99) * MILLISECONDS,
        worst_wait=max(waits + refusals, default=math.nan) * MILLISECONDS,
        round_trips=_ratio(watch.reads, sum(grants)),
        connections=watch.connections,
        fewest=min(grants),
        most=max(grants),
        refusals=len(refusals),
    )


def median(rounds: Sequence[Figures]) -> Figures:
    """Return the medians over the rounds; the shares are those of the least fair one, connections the most."""
    unfair = max(rounds, key=lambda one: one.most - one.fewest)
    return Figures(
        rate=statistics.median(one.rate for one in rounds),
        p50=statistics.median(one.p50 for one in rounds),
        p99=statistics.median(one.p99 for one in rounds),
        worst_wait=statistics.median(one.worst_wait for one in rounds),
        round_trips=statistics.median(one.round_trips for one in rounds),
        connections=max(one.connections for one in rounds),
        fewest=unfair.fewest,
        most=unfair.most,
        refusals=sum(one.refusals for one in rounds),
    )


def median_ratio(ours: Sequence[Figures], theirs: Sequence[Figures], of: Callable[[Figures], float]) -> float:
    """Return the median of the ratios of one figure within each round."""
    return statistics.median(_ratio(of(one), of(other)) for one, other in zip(ours, theirs, strict=True))


def _hand_offs(records: Sequence[Record], watched: Callable[[Hold], bool]) -> list[float]:
    """Return the times between a holder's call of release and the grant of another worker that was waiting by then."""
    by_worker = [(hold, worker) for worker, record in enumerate(records) for hold in record.holds]
    pairs = list(pairwise(sorted(by_worker, key=lambda held: held[0].granted)))
    if any(after.granted < before.releasing for (before, _), (after, _) in pairs):
        raise RuntimeError("Two workers held the lock at once.")
    return [
        after.granted - before.releasing
        for (before, former), (after, latter) in pairs
        if former != latter and after.asked <= before.releasing and watched(after)
    ]


def _percentile(ordered: Sequence[float], share: float) -> float:
    """Return the nearest rank."""
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else math.nan


def _ratio(one: float, other: float) -> float:
    return one / other if other else math.nan
