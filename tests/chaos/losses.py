"""When Redis may have lost keys, and what that excuses."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from .history import Fault


class Losses:
    """The faults in which keys may be lost. They do not overlap, so both their ends are in one order."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        losing = sorted((fault for fault in faults if fault.loses), key=lambda fault: fault.began)
        self._began = [fault.began for fault in losing]
        self._ended: list[int] = []
        for fault in losing:
            self._ended.append(max(fault.ended, self._ended[-1] if self._ended else fault.ended))

    def between(self, start: int, end: int) -> bool:
        """Return whether keys may have been lost at any time from start to end."""
        return self.begun_by(end) > self.over_before(start)

    def over_before(self, moment: int) -> int:
        """Return how many were over before a moment: what was done then is of that epoch."""
        return bisect_left(self._ended, moment)

    def begun_by(self, moment: int) -> int:
        """Return how many had begun at a moment."""
        return bisect_right(self._began, moment)
