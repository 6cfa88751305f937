"""The figures of a run, as text and as JSON."""

from __future__ import annotations

from collections import Counter
from typing import Any

from .checker import Verdict
from .world import Options, Outcome

_RESTARTS = "restart, "
_MOST_MISSED = 0.02


def figures(options: Options, outcome: Outcome, verdict: Verdict) -> dict[str, Any]:
    """Return what is printed, and written by ``--json``."""
    history = outcome.history
    faults = Counter(fault.kind for fault in history.faults)
    ends = Counter(attempt.how for attempt in history.attempts)
    writes = [write for attempt in history.attempts for write in attempt.writes]
    results = Counter(write.result for write in writes)
    return {
        "lock": options.lock,
        "issuer": options.issuer,
        "database": options.database,
        "seed": options.seed,
        "seconds": options.seconds,
        "attempts": len(history.attempts),
        "grants": sum(attempt.granted is not None for attempt in history.attempts),
        "writes accepted": len(history.accepted),
        "writes refused": results["refused"],
        "writes of unknown outcome": results["unknown"],
        "attempts that found it busy": ends["busy"],
        "leases lost": ends["lost"],
        "attempts that failed": ends["failed"],
        "attempts cut off by a kill": ends["open"],
        "freezes": faults["freeze"],
        "kills": faults["kill"],
        "flushes": faults["flush"],
        "failovers": faults["failover"],
        "times full": faults["fill"],
        "repairs of counters": outcome.repairs,
        **{kind: count for kind, count in sorted(faults.items()) if kind.startswith(_RESTARTS)},
        **{f"network, {kind}": count for kind, count in sorted(outcome.network.items())},
        "faults that could not be made": len(outcome.missed),
        "excused": dict(verdict.excused),
        "violations": verdict.by_law(),
    }


def vacuous(outcome: Outcome, numbers: dict[str, Any]) -> list[str]:
    """Return why the run proves nothing; empty if it does."""
    needed = ["grants", "writes accepted", "freezes", "kills"]
    if outcome.history.fenced:
        needed.append("writes refused")
    reasons = [f"there were no {name}" for name in needed if not numbers[name]] + outcome.broken
    if len(outcome.missed) > len(outcome.history.faults) * _MOST_MISSED:
        reasons += outcome.missed
    return reasons


def text(numbers: dict[str, Any]) -> str:
    """Return the figures as lines."""
    lines = []
    for name, value in numbers.items():
        if isinstance(value, dict):
            lines.append(f"{name}: {sum(value.values())}")
            lines += [f"    {value[key]:>8}  {key}" for key in value]
        else:
            lines.append(f"{value!s:>12}  {name}")
    return "\n".join(lines)
