"""
Re-entry: what a context (a thread or a task) holds already, it may enter again.

A context variable remembers it, and since context variables outlive processes, threads and tasks, the hold remembers
whose it is. Work that ``sync_to_async`` runs is told apart by the call: nothing else in a worker thread tells the
caller's own chain from that of a child task with a copy of its context.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from types import FrameType
from typing import Any
from weakref import ReferenceType, ref

from asgiref.sync import SyncToAsync

from . import clock, nesting
from .durations import Duration
from .locks import core
from .locks.core import Lease
from .locks.holding import Holding
from .tokens import FenceTokens

_SYNC_TO_ASYNC = SyncToAsync.thread_handler.__code__


@dataclass(slots=True)
class Hold:
    """
    A lease of this context, how often it was entered, and by whom it may be re-entered.

    Attributes:
        call: The frame of the ``sync_to_async`` call in which it was taken; None outside.
    """

    lease: Lease
    lock: ReferenceType[Reentry]
    entries: int
    pid: int
    thread: ReferenceType[threading.Thread]
    task: ReferenceType[asyncio.Task[Any]] | None
    call: FrameType | None

    def is_held(self) -> bool:
        """Return whether it is held still, as far as is known here; also until the end of a transaction."""
        return self.entries > 0 and not self.lease.released and not core.is_over(self.lease, clock.monotonic())

    def is_ours(self) -> bool:
        """
        Return whether this very process, thread, task and call entered; context variables outlive all of them.

        They outlive the lock too, where somebody forgot to release it.
        """
        return (
            self.lock() is not None
            and self.pid == os.getpid()
            and self.thread() is threading.current_thread()
            and (self.task() if self.task else None) is _current_task()
            and self.call is _current_call()
        )


_holds: ContextVar[dict[tuple[object, ...], Hold] | None] = ContextVar("fenced_locks_holds", default=None)


class Reentry(Holding):
    """
    The part of a lock that re-enters which does not wait.

    Attributes:
        resource: What is protected; for ``fenced_lock`` without the prefix of the settings, as the user named it.
    """

    resource: str

    def _aim(self, name: str, issuer: object, client: Any, *, hides_retries: bool) -> None:
        super()._aim(name, issuer, client, hides_retries=hides_retries)
        self.resource = self._target.resource

    @property
    def fence_tokens(self) -> FenceTokens:
        """
        The token of the lease that is held here, by resource; for code that may have several.

        Raises:
            NotHeld: None is held.
        """
        return FenceTokens({self.resource: self._held("tell the tokens of")})

    @property
    def _rank(self) -> nesting.Rank:
        """The place of the resource in the order in which resources are taken."""
        return nesting.rank_of(self._wire.server, self._target.lock, self.resource)

    def _report_disorder(self, blocking: bool | None, limit: Duration | None) -> None:
        """Log it if we are about to wait for a resource while we hold one that comes later in the order."""
        held = [hold for hold in (_holds.get() or {}).values() if hold.is_held() and hold.is_ours()]
        limit = self.blocking_timeout if limit is None else limit
        may_wait = (self.blocking if blocking is None else blocking) and (limit is None or bool(limit))
        if held and may_wait:
            nesting.report(self._rank, [lock._rank for hold in held if (lock := hold.lock()) is not None])

    @property
    def _entries(self) -> int:
        """How often this thread or task has entered by this object."""
        return 0 if self._lease is None else max(1, self.local.entries)

    def _enter_again(self) -> bool:
        """
        Enter the lease that this context holds; return whether there is one.

        Raises:
            LeaseLost: It has ended.
        """
        hold = self._hold_of_context()
        if hold is None:
            return False
        if hold.lease.lost or core.is_over(hold.lease, clock.monotonic()):
            raise core.lost(self._target.resource, hold.lease, "re-enter", "it has ended")
        self._count(hold)
        return True

    def _enter_first(self) -> None:
        """Remember the lease that was just taken."""
        self._count(self._remember(self._held("acquire")))

    def _count(self, hold: Hold) -> None:
        if self._hold is not hold:
            self._enter(hold)
        hold.entries += 1
        self.local.entries += 1

    def _leave_one(self) -> None:
        """Count one exit of this object."""
        self.local.entries -= 1
        if not self.local.entries:
            self._keep(None)

    def _is_outermost(self, hold: Hold) -> bool:
        """Count one exit from the lease; return whether it is to be given back now."""
        if hold.entries > 1:
            hold.entries -= 1
            return False
        # Not to be re-entered any more even if the release fails; it can be repeated on this object.
        hold.entries, hold.call = 0, None
        if self._hold is not hold:
            self._enter(hold)
        return True

    def _enter(self, hold: Hold) -> None:
        self._keep(hold.lease)
        self.local.hold = hold

    def _keep(self, lease: Lease | None) -> None:
        super()._keep(lease)
        self.local.hold, self.local.entries = None, 0

    @property
    def _hold(self) -> Hold | None:
        hold: Hold | None = getattr(self.local, "hold", None)
        return hold

    def _length(self, lease: Lease) -> float | None:
        # The lease may come from another object, with another timeout.
        return lease.timeout

    @property
    def _key(self) -> tuple[object, ...]:
        return (type(self), *self._wire.server, self._target.lock)

    def _hold_of_context(self) -> Hold | None:
        hold = (_holds.get() or {}).get(self._key)
        if hold is not None and hold.entries and core.is_over(hold.lease, clock.monotonic()):
            # Whether somebody still has its lock is what decides now; a cycle may keep one that was forgotten.
            gc.collect()
        return hold if hold is not None and hold.entries and not hold.lease.released and hold.is_ours() else None

    def _remember(self, lease: Lease) -> Hold:
        task = _current_task()
        thread = ref(threading.current_thread())
        task_ref = None if task is None else ref(task)
        hold = Hold(lease, ref(self), 0, os.getpid(), thread, task_ref, _current_call())
        # A copy, since a context that was copied from this one must not see what happens here.
        others = {key: h for key, h in (_holds.get() or {}).items() if h.entries and key != self._key}
        _holds.set({**others, self._key: hold})
        return hold


def lease_of_context(server: tuple[object, ...], lock: bytes) -> Lease | None:
    """Return the lease of a lock that this thread or task may re-enter, as far as is known here; None for none."""
    for key, hold in (_holds.get() or {}).items():
        if key[1:] == (*server, lock) and hold.is_held() and hold.is_ours():
            return None if hold.lease.lost else hold.lease
    return None


def _current_task() -> asyncio.Task[Any] | None:
    with suppress(RuntimeError):
        return asyncio.current_task()
    return None


def _current_call() -> FrameType | None:
    """Return the frame in which ``sync_to_async`` runs the present work; None if it does not."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not _SYNC_TO_ASYNC:
        frame = frame.f_back
    return frame
