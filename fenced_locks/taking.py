"""How several resources are taken: in the order of all, all or none, before one deadline."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from . import clock
from .durations import to_ms
from .exceptions import LeaseLost, LockNotAcquired
from .locks import core, together
from .locks.actions import Steps
from .locks.core import Busy, Lease
from .locks.renewal import Renewal, begin
from .locks.together import Part
from .logs import about
from .plans import Calls, try_all
from .reentrant import AsyncReentrantLock, ReentrantLock

_log = logging.getLogger(__name__)

Lock: TypeAlias = ReentrantLock | AsyncReentrantLock


class Taking:
    """
    One call of ``acquire`` for several resources.

    Args:
        locks: Their locks, in the order in which they are taken.
        waiting: How long all of it may take.
        ask: What drives the steps of these locks.
    """

    def __init__(self, locks: Sequence[Lock], waiting: core.Waiting, ask: Callable[[Steps[Any]], Any]) -> None:
        self._locks, self._waiting, self._ask = locks, waiting, ask
        self._entries_before = [lock._entries for lock in locks]
        # Those whose leases are not re-entered.
        self._fresh: list[Lock] = []
        self._kept: list[tuple[Lease, Renewal]] = []

    def take(self) -> Calls[LockNotAcquired | None]:
        """
        Take all; return None, or why that could not be, with all given back.

        After an exception it is for the caller to give back.
        """
        while True:
            refusal = yield from self._take_all()
            if refusal is None:
                return None
            yield from self.give_back()
            if self._waiting.is_over(clock.monotonic()):
                return refusal

    def _take_all(self) -> Calls[LockNotAcquired | None]:
        self._fresh = [lock for lock in self._locks if not lock._enter_again()]
        if not self._fresh:
            return None
        for lock in self._locks:
            if lock not in self._fresh:
                self._keep_alive(lock)
        for lock in self._fresh:
            if refusal := (yield from self._take_one(lock)):
                return refusal
            if lock is not self._fresh[-1]:
                self._keep_alive(lock)
        return (yield from self._confirm()) if len(self._locks) > 1 else None

    def _take_one(self, lock: Lock) -> Calls[LockNotAcquired | None]:
        left = self._waiting.left(clock.monotonic())
        limit = None if left is None else max(0.0, left)
        if (yield partial(lock.acquire, blocking=self._waiting.blocking, blocking_timeout=limit)):
            return None
        taken = _they_were(self._fresh[: self._fresh.index(lock)])
        return lock._not_acquired("the wait is over" + (f", and {taken} given back" if taken else ""))

    def _keep_alive(self, lock: Lock) -> None:
        """Renew a lease while others are awaited, if its turn to be renewed would come before that is over."""
        lease = lock._held("keep")
        if lock in self._fresh:
            # What it may be renewed for is counted from when all are held.
            lock._stop_renewal(lease)
        elif lease.renewal is not None and not lease.renewal.cancelled:
            return
        renewal = begin(lock, lease, lock._target, lock._wire, None)
        if renewal is not None and (self._waiting.deadline is None or renewal.due < self._waiting.deadline):
            lease.renewal = renewal
            self._kept.append((lease, renewal))
            lock._add_renewal(renewal)

    def stop_keeping(self) -> None:
        """Leave the leases to their locks."""
        for lease, renewal in self._kept:
            renewal.cancelled = True
            if lease.renewal is renewal:
                lease.renewal = None
        self._kept.clear()

    def _confirm(self) -> Calls[LockNotAcquired | None]:
        """Give every lease its whole length, and see that none has ended while the others were awaited."""
        now = clock.monotonic()
        leases = [lock._held("renew") for lock in self._locks]
        parts = [
            Part(lock._target, lease, _lasting_ms(lease, now)) for lock, lease in zip(self._locks, leases, strict=True)
        ]
        found = yield partial(self._ask, together.renew(parts, self._waiting.deadline))
        done = clock.monotonic()
        for lock, lease, busy in zip(self._locks, leases, found, strict=True):
            if busy is not None or lease.lost or core.is_over(lease, done):
                return self._lost(lock, lease, busy)
        self.stop_keeping()
        for lock, lease in zip(self._locks, leases, strict=True):
            if lock in self._fresh and lock.renew:
                lock._renew_from(lease, now)
        return None

    def _lost(self, lock: Lock, lease: Lease, busy: Busy | None) -> LockNotAcquired:
        resource = lock._target.resource
        if lock not in self._fresh:
            error = core.lost(resource, lease, "re-enter", "it ended while others were awaited")
            lock._lose(lease, str(error), raised=True)
            raise error
        busy = busy or Busy()
        busy.expired = True
        others = _they_were([other for other in self._fresh if other is not lock])
        return core.not_acquired(
            resource, busy, (f"{others} awaited meanwhile, and " if others else "") + "the wait is over"
        )

    def give_back(self) -> Calls[None]:
        """Give back what was taken, the last one first; what fails is logged, since it is not why that is done."""
        self.stop_keeping()
        entered = zip(self._locks, self._entries_before, strict=True)
        taken = [lock for lock, before in entered if lock._entries > before]
        errors = yield from try_all([lock._release_now for lock in reversed(taken)])
        for error in errors:
            if not isinstance(error, Exception):
                raise error
            if not isinstance(error, LeaseLost):
                known = about(getattr(error, "resource", None), error=error)
                _log.warning("what was taken of several resources could not be given back: %s", error, extra=known)


def _they_were(locks: Sequence[Lock]) -> str:
    names = ", ".join(repr(lock._target.resource) for lock in locks)
    return names and f"{names} {'was' if len(locks) == 1 else 'were'}"


def _lasting_ms(lease: Lease, now: float) -> int:
    """Return how long a lease shall last from now on; one that is renewed no more keeps its end."""
    if lease.timeout is None:
        return 1
    if lease.renewal is not None and not lease.renewal.cancelled:
        return lease.renewal.milliseconds(now) or 1
    return to_ms(lease.timeout)
