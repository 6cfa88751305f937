"""How many connections for waiting one process has open, to all servers together, for threads and for tasks."""

from __future__ import annotations

import os
import threading
from typing import Protocol
from weakref import WeakSet

LIMIT = 32


class Sharer(Protocol):
    """Who keeps connections that nobody uses at the moment."""

    def close_one(self) -> bool:
        """Close the connection that has been idle longest; whether there was one. By any thread."""

    def forget(self) -> None:
        """Forget every connection, as a forked child must."""


class _Budget:
    def __init__(self) -> None:
        self._sharers: WeakSet[Sharer] = WeakSet()
        self._renew()

    def _renew(self) -> None:
        # Reentrant: what the garbage collector closes meanwhile is given back by this very thread.
        self._lock = threading.RLock()
        self._open = 0

    def reset(self) -> None:
        """Start anew in a forked child."""
        self._renew()
        for sharer in list(self._sharers):
            sharer.forget()

    def share(self, sharer: Sharer) -> None:
        """Have ``sharer`` give up what is idle when others need it."""
        with self._lock:
            self._sharers.add(sharer)

    def take(self) -> bool:
        """Count one more, in place of one that is idle if there are as many as there may be; whether that can be."""
        with self._lock:
            if self._open < LIMIT:
                self._open += 1
                return True
            return any(sharer.close_one() for sharer in self._sharers)

    def free(self) -> None:
        """Count one less."""
        with self._lock:
            self._open -= 1


budget = _Budget()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=budget.reset)
