"""The locks that re-enter: what ``fenced_lock`` and ``afenced_lock`` return for one resource."""

from __future__ import annotations

from functools import partial

from .durations import Duration
from .locks.aio import AsyncFencedLock
from .locks.sync import FencedLock
from .reentry import Hold, Reentry
from .transactions import after_transactions, open_transactions, refuse_manual_transaction


class ReentrantLock(Reentry, FencedLock):
    """What ``fenced_lock`` returns: a ``FencedLock`` that re-enters the lease its context holds already."""

    def acquire(
        self,
        sleep: Duration | None = None,
        blocking: bool | None = None,
        blocking_timeout: Duration | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Take the lock, or enter the lease that this thread or task holds; see ``FencedLock.acquire``."""
        if self._enter_again():
            return True
        refuse_manual_transaction(self._target.resource)
        self._report_disorder(blocking, blocking_timeout)
        if not super().acquire(sleep, blocking, blocking_timeout, token):
            return False
        self._enter_first()
        return True

    def release(self) -> None:
        """
        Leave the lease; the outermost release gives it back. See ``FencedLock.release``.

        Inside open transactions it is given back after all of them have ended; until then it can be re-entered.
        An error is logged then, not raised.
        """
        self._held("release")
        hold = self._hold
        if hold is not None and (aliases := open_transactions()):
            after_transactions(aliases, partial(self._leave, hold), self._target.resource)
            self._leave_one()
        else:
            self._release_now()

    def _release_now(self) -> None:
        """Leave the lease, whatever transactions are open."""
        hold = self._hold
        if hold is None:
            super().release()
        elif hold.entries > 1:
            hold.entries -= 1
            self._leave_one()
        else:
            self._leave(hold)

    def _leave(self, hold: Hold) -> None:
        """Take one entry from the lease; the last one gives it back."""
        if self._is_outermost(hold):
            super().release()


class AsyncReentrantLock(Reentry, AsyncFencedLock):
    """What ``afenced_lock`` returns: an ``AsyncFencedLock`` that re-enters the lease its task holds already."""

    async def acquire(
        self,
        blocking: bool | None = None,
        blocking_timeout: Duration | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Take the lock, or enter the lease that this task holds; see ``AsyncFencedLock.acquire``."""
        if self._enter_again():
            return True
        self._report_disorder(blocking, blocking_timeout)
        if not await super().acquire(blocking, blocking_timeout, token):
            return False
        self._enter_first()
        return True

    async def release(self) -> None:
        """Leave the lease; the outermost release gives it back. See ``AsyncFencedLock.release``."""
        self._held("release")
        hold = self._hold
        if hold is None:
            await super().release()
        elif hold.entries > 1:
            hold.entries -= 1
            self._leave_one()
        elif self._is_outermost(hold):
            await super().release()

    _release_now = release
