"""``fenced_lock`` and ``afenced_lock``: locks built from the settings, which re-enter in one thread or task."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured

from . import keys
from .conf import conf
from .connections import get_async_client, get_client
from .durations import Duration
from .issuers import AnyIssuer, ClockIssuer, get_issuer
from .locks.aio import AsyncFencedLock
from .locks.sync import FencedLock
from .reentry import Hold, Reentry
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
    options = _options(timeout, blocking_timeout, issuer, renew, max_hold)
    return ReentrantLock(
        get_client(using),
        keys.lock_key(conf.KEY_PREFIX, resource),
        sleep=sleep,
        blocking=blocking,
        raise_on_release_error=raise_on_release_error,
        **options,
    )


def afenced_lock(
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
) -> AsyncReentrantLock:
    """
    Return the lock of a resource, built from the settings, for use with ``async with``.

    Used again for the same resource in the same task, it re-enters. The arguments, and what entering the block
    raises, are those of ``fenced_lock``; transactions of Django are sync only and are not waited for.

    Raises:
        TypeError, ValueError: A bad argument; the message names it.
        ImproperlyConfigured: A bad setting, or a cache alias that cannot keep locks.
        RuntimeError: No event loop is running.
    """
    options = _options(timeout, blocking_timeout, issuer, renew, max_hold)
    return AsyncReentrantLock(
        get_async_client(using),
        keys.lock_key(conf.KEY_PREFIX, resource),
        sleep=sleep,
        blocking=blocking,
        raise_on_release_error=raise_on_release_error,
        **options,
    )


def _options(
    timeout: Duration | FromSettings | None,
    blocking_timeout: Duration | FromSettings | None,
    issuer: str | AnyIssuer | type[AnyIssuer] | None,
    renew: bool | FromSettings,
    max_hold: Duration | FromSettings | None,
) -> dict[str, Any]:
    if isinstance(timeout, FromSettings):
        timeout = conf.TIMEOUT
    if isinstance(blocking_timeout, FromSettings):
        blocking_timeout = conf.BLOCKING_TIMEOUT
    if isinstance(renew, FromSettings):
        renew = conf.RENEW and timeout is not None
    if isinstance(max_hold, FromSettings):
        max_hold = conf.MAX_HOLD if renew else None
    chosen = configured_issuer() if issuer is None else issuer
    values = timeout, blocking_timeout, chosen, renew, max_hold
    return dict(zip(("timeout", "blocking_timeout", "issuer", "renew", "max_hold"), values, strict=True))


class ReentrantLock(Reentry, FencedLock):
    """What ``fenced_lock`` returns: a ``FencedLock`` that re-enters the lease its context holds already."""

    def acquire(self, *args: Any, **kwargs: Any) -> bool:
        """Take the lock, or enter the lease that this thread or task holds; see ``FencedLock.acquire``."""
        if self._enter_again():
            return True
        refuse_manual_transaction(self._target.resource)
        if not super().acquire(*args, **kwargs):
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
        if hold is None:
            super().release()
            return
        if aliases := open_transactions():
            after_transactions(aliases, partial(self._leave, hold), self._target.resource)
            self._leave_one()
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

    async def acquire(self, *args: Any, **kwargs: Any) -> bool:
        """Take the lock, or enter the lease that this task holds; see ``AsyncFencedLock.acquire``."""
        if self._enter_again():
            return True
        if not await super().acquire(*args, **kwargs):
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
