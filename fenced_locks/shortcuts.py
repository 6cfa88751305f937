"""``fenced_lock``: a lock built from the settings, which re-enters in one thread or task."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from weakref import ReferenceType, ref

from django.core.exceptions import ImproperlyConfigured

from . import keys
from .conf import conf
from .connections import get_client
from .durations import Duration
from .issuers import AnyIssuer, ClockIssuer, get_issuer
from .locks import core
from .locks.core import Lease
from .locks.sync import FencedLock
from .transactions import after_transactions, open_transactions, refuse_manual_transaction


class FromSettings:
    """Stands for an argument that was not given: the value comes from the settings."""

    def __repr__(self) -> str:
        return "<from settings>"


FROM_SETTINGS: Final = FromSettings()


def configured_issuer() -> AnyIssuer:
    """
    Return the issuer that the settings name.

    Raises:
        ImproperlyConfigured: ``FENCED_LOCKS["ISSUER"]`` names none.
    """
    try:
        issuer = get_issuer(conf.ISSUER)
    except (TypeError, ValueError) as error:
        raise ImproperlyConfigured(f"FENCED_LOCKS['ISSUER']: {error}") from error
    if type(issuer) is ClockIssuer and issuer is not conf.ISSUER:
        return ClockIssuer(retention=conf.COUNTER_RETENTION)
    return issuer


def fenced_lock(
    resource: str,
    *,
    using: str | None = None,
    timeout: Duration | FromSettings | None = FROM_SETTINGS,
    blocking: bool = True,
    blocking_timeout: Duration | FromSettings | None = FROM_SETTINGS,
    sleep: Duration = 0.1,
    raise_on_release_error: bool = True,
    issuer: str | AnyIssuer | type[AnyIssuer] | None = None,
    renew: bool | FromSettings = FROM_SETTINGS,
    max_hold: Duration | FromSettings | None = FROM_SETTINGS,
) -> ReentrantLock:
    """
    Return the lock of a resource, built from the settings, for use as a context manager.

    Used again for the same resource in the same thread or task, it re-enters: same lease, same token, released at
    the outermost exit; the inner arguments do not count then.

    Args:
        resource: What is protected, like ``"order:1001"``.
        using: Cache alias of the Redis server; by default ``FENCED_LOCKS["USING"]``.
        timeout: Length of the lease in seconds; None for without end. By default ``FENCED_LOCKS["TIMEOUT"]``.
        blocking: Whether to wait while the resource is busy.
        blocking_timeout: How long to wait, in seconds; None for without end. By default
            ``FENCED_LOCKS["BLOCKING_TIMEOUT"]``.
        sleep: Seconds between two looks while it is busy; a release wakes the next waiter at once.
        raise_on_release_error: Whether leaving the block raises where the lease was lost.
        issuer: Who issues the fence token; by default ``FENCED_LOCKS["ISSUER"]``.
        renew: Whether the lease is renewed until it is given back; by default ``FENCED_LOCKS["RENEW"]``.
        max_hold: After how many seconds it is renewed no more; None for without limit. By default
            ``FENCED_LOCKS["MAX_HOLD"]``.

    Raises:
        TypeError, ValueError: A bad argument; the message names it.
        ImproperlyConfigured: A bad setting, or a cache alias that cannot keep locks.

    Entering the block raises ``LockNotAcquired`` where the resource stays busy, ``LeaseLost`` where the lease that
    it would re-enter has ended, ``IssuerError``, ``OutcomeUnknown``, or redis-py's ``ConnectionError``; see
    ``FencedLock.acquire``. Left inside an open transaction, the lease is given back after the transaction has ended,
    committed or not; with autocommit turned off by hand, Django's ``TransactionManagementError`` is raised.
    """
    if isinstance(timeout, FromSettings):
        timeout = conf.TIMEOUT
    if isinstance(blocking_timeout, FromSettings):
        blocking_timeout = conf.BLOCKING_TIMEOUT
    if isinstance(renew, FromSettings):
        renew = conf.RENEW and timeout is not None
    if isinstance(max_hold, FromSettings):
        max_hold = conf.MAX_HOLD if renew else None
    return ReentrantLock(
        get_client(using),
        keys.lock_key(conf.KEY_PREFIX, resource),
        timeout=timeout,
        sleep=sleep,
        blocking=blocking,
        blocking_timeout=blocking_timeout,
        raise_on_release_error=raise_on_release_error,
        issuer=configured_issuer() if issuer is None else issuer,
        renew=renew,
        max_hold=max_hold,
    )


@dataclass(slots=True)
class _Hold:
    """A lease of this context, how often it was entered, and by whom it may be re-entered."""

    lease: Lease
    lock: ReferenceType[ReentrantLock]
    entries: int
    pid: int
    thread: ReferenceType[threading.Thread]
    task: ReferenceType[asyncio.Task[Any]] | None

    def is_ours(self) -> bool:
        """
        Return whether this very process, thread and task entered; context variables outlive all three.

        They outlive the lock too, where somebody forgot to release it.
        """
        return (
            self.lock() is not None
            and self.pid == os.getpid()
            and self.thread() is threading.current_thread()
            and (self.task() if self.task else None) is _current_task()
        )


_holds: ContextVar[dict[tuple[object, ...], _Hold] | None] = ContextVar("fenced_locks_holds", default=None)


class ReentrantLock(FencedLock):
    """What ``fenced_lock`` returns: a ``FencedLock`` that re-enters the lease its context holds already."""

    def acquire(self, *args: Any, **kwargs: Any) -> bool:
        """Take the lock, or enter the lease that this thread or task holds; see ``FencedLock.acquire``."""
        hold = self._hold_of_context()
        if hold is None:
            refuse_manual_transaction(self._target.resource)
            if not super().acquire(*args, **kwargs):
                return False
            hold = self._remember(self._held("acquire"))
        elif core.is_over(hold.lease, time.monotonic()):
            raise core.lost(self._target.resource, hold.lease, "re-enter", "it has ended")
        if self._hold is not hold:
            self._enter(hold)
        hold.entries += 1
        self.local.entries += 1
        return True

    def release(self) -> None:
        """
        Leave the lease; the outermost release gives it back. See ``FencedLock.release``.

        Inside open transactions it is given back after all of them have ended; until then it can be re-entered.
        An error is logged then, not raised.
        """
        self._held("release")
        hold = self._hold
        if hold is None:
            super().release()
            return
        if aliases := open_transactions():
            after_transactions(aliases, partial(self._leave, hold))
        elif hold.entries > 1:
            hold.entries -= 1
        else:
            self._leave(hold)
            return
        self.local.entries -= 1
        if not self.local.entries:
            self._keep(None)

    def _leave(self, hold: _Hold) -> None:
        """Take one entry from the lease; the last one gives it back."""
        if hold.entries > 1:
            hold.entries -= 1
            return
        # Not to be re-entered any more even if the release fails; it can be repeated on this object.
        hold.entries = 0
        if self._hold is not hold:
            self._enter(hold)
        super().release()

    def _enter(self, hold: _Hold) -> None:
        self._keep(hold.lease)
        self.local.hold = hold

    def _keep(self, lease: Lease | None) -> None:
        super()._keep(lease)
        self.local.hold, self.local.entries = None, 0

    @property
    def _hold(self) -> _Hold | None:
        hold: _Hold | None = getattr(self.local, "hold", None)
        return hold

    def _length(self, lease: Lease) -> float | None:
        # The lease may come from another object, with another timeout.
        return lease.timeout

    @property
    def _key(self) -> tuple[object, ...]:
        return (*self._wire.server, self._target.lock)

    def _hold_of_context(self) -> _Hold | None:
        hold = (_holds.get() or {}).get(self._key)
        if hold is not None and hold.entries and core.is_over(hold.lease, time.monotonic()):
            # Whether somebody still has its lock is what decides now; a cycle may keep one that was forgotten.
            gc.collect()
        return hold if hold is not None and hold.entries and hold.is_ours() else None

    def _remember(self, lease: Lease) -> _Hold:
        task = _current_task()
        thread = ref(threading.current_thread())
        hold = _Hold(lease, ref(self), 0, os.getpid(), thread, None if task is None else ref(task))
        # A copy, since a context that was copied from this one must not see what happens here.
        _holds.set({**{k: h for k, h in (_holds.get() or {}).items() if h.entries}, self._key: hold})
        return hold


def _current_task() -> asyncio.Task[Any] | None:
    with suppress(RuntimeError):
        return asyncio.current_task()
    return None
