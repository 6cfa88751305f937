"""
The checker: reads a history and says where a law was broken. It asks no server and trusts no lock.

What it takes from the history is sound in one direction: "granted" is a time at which the worker had the lease
already, "began" one at which it had not asked yet; so "B began after A was granted" means that B's grant is the
later one, and a worker that is frozen between an event and its record makes the check weaker and never wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from . import leases, rows, tokens
from .history import History
from .losses import Losses
from .verdicts import Finding

LAWS = (
    "tokens grow",
    "no row goes back",
    "no stale write accepted",
    "no accepted write lost",
    "mutual exclusion outside faults",
    "no lease outlives its end",
    "only the owner",
    "errors are of the documented kinds",
    "it goes on after the faults",
)
Check = Callable[[History, Losses], Iterator[Finding]]
CHECKS: tuple[Check, ...] = (
    tokens.tokens_grow,
    rows.no_row_goes_back,
    rows.no_stale_write,
    rows.nothing_lost,
    leases.mutual_exclusion,
    leases.no_orphans,
    leases.only_the_owner,
    leases.documented_errors,
    leases.goes_on,
)


@dataclass
class Verdict:
    """What was found: violations, and how often a fault excused what would have been one."""

    violations: list[Finding] = field(default_factory=list)
    excused: Counter[str] = field(default_factory=Counter)

    def by_law(self) -> dict[str, int]:
        """Return the number of violations of each law."""
        counts = Counter(finding.law for finding in self.violations)
        return {law: counts[law] for law in LAWS}


def check(history: History) -> Verdict:
    """Return the verdict on a history."""
    verdict, losses = Verdict(), Losses(history.faults)
    for run in CHECKS:
        for finding in run(history, losses):
            if finding.excuse:
                verdict.excused[finding.excuse] += 1
            else:
                verdict.violations.append(finding)
    return verdict
