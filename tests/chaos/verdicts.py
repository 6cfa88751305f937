"""What a check finds, and the look-ups that several checks share."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from .history import Attempt, History


@dataclass(frozen=True)
class Finding:
    """
    A law that does not hold somewhere.

    Attributes:
        law: Its name, one of ``checker.LAWS``.
        subject: The resource or row.
        text: What is wrong.
        attempts: The attempts concerned.
        excuse: Why this is to be expected; empty for a violation.
    """

    law: str
    subject: str
    text: str
    attempts: tuple[str, ...] = ()
    excuse: str = ""


def grants(history: History) -> dict[str, list[tuple[int, Attempt]]]:
    """Return (granted, attempt) by resource, in the order in which they were granted."""
    found: dict[str, list[tuple[int, Attempt]]] = defaultdict(list)
    for attempt in history.attempts:
        if attempt.granted is not None:
            found[attempt.resource].append((attempt.granted, attempt))
    for entries in found.values():
        entries.sort(key=lambda entry: entry[0])
    return found
