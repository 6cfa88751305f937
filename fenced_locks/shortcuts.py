"""``fenced_lock`` and ``afenced_lock``: locks built from the settings, which re-enter in one thread or task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar, overload

from django.core.exceptions import ImproperlyConfigured

from . import keys
from .arguments import checked_flag
from .conf import conf
from .connections import get_async_client, get_client
from .durations import Duration, to_seconds_or_none
from .issuers import AnyIssuer, ClockIssuer, get_issuer
from .reentrant import AsyncReentrantLock, ReentrantLock
from .several import AsyncReentrantLocks, ReentrantLocks

L = TypeVar("L", ReentrantLock, AsyncReentrantLock)


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


# Editors show the signature of an overload, so each has the defaults; its docstring they take from the function.
@overload
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
) -> ReentrantLock: ...


@overload
def fenced_lock(
    resource: str,
    second: str,
    /,
    *others: str,
    using: str | None = None,
    timeout: Duration | FromSettings | None = FROM_SETTINGS,
    blocking: bool = True,
    blocking_timeout: Duration | FromSettings | None = FROM_SETTINGS,
    sleep: Duration = 0.1,
    raise_on_release_error: bool = True,
    issuer: str | AnyIssuer | type[AnyIssuer] | None = None,
    renew: bool | FromSettings = FROM_SETTINGS,
    max_hold: Duration | FromSettings | None = FROM_SETTINGS,
) -> ReentrantLocks: ...


def fenced_lock(
    resource: str,
    *others: str,
    using: str | None = None,
    timeout: Duration | FromSettings | None = FROM_SETTINGS,
    blocking: bool = True,
    blocking_timeout: Duration | FromSettings | None = FROM_SETTINGS,
    sleep: Duration = 0.1,
    raise_on_release_error: bool = True,
    issuer: str | AnyIssuer | type[AnyIssuer] | None = None,
    renew: bool | FromSettings = FROM_SETTINGS,
    max_hold: Duration | FromSettings | None = FROM_SETTINGS,
) -> ReentrantLock | ReentrantLocks:
    """
    Return the lock of a resource, built from the settings, for use as a context manager.

    Used again for the same resource in the same thread or task, it re-enters: same lease, same token, released at
    the outermost exit; the inner arguments do not count then.

    For several resources, ``fenced_lock("order:1", "stock:9")``, it takes all of them or none, in an order that is
    the same for all callers, and its tokens are in ``fence_tokens``; see ``ReentrantLocks``. All arguments hold for
    each of them, and ``blocking_timeout`` for all together.

    Args:
        resource: What is protected, like ``"order:1001"``.
        *others: More resources; one that is named twice counts once.
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
            ``FENCED_LOCKS["MAX_HOLD"]``. For several it is counted from when all are held.

    Raises:
        TypeError, ValueError: A bad argument; the message names it.
        ImproperlyConfigured: A bad setting, or a cache alias that cannot keep locks.

    Entering the block raises ``LockNotAcquired`` where the resource stays busy, ``LeaseLost`` where the lease that
    it would re-enter has ended, ``IssuerError``, ``OutcomeUnknown``, or redis-py's ``ConnectionError``; see
    ``FencedLock.acquire``. Left inside an open transaction, the lease is given back after the transaction has ended,
    committed or not; with autocommit turned off by hand, Django's ``TransactionManagementError`` is raised.
    """
    options = _options(timeout, blocking_timeout, issuer, renew, max_hold)
    options |= _checked(blocking, sleep, raise_on_release_error)
    locks = _locks(ReentrantLock, get_client(using), (resource, *others), options)
    return ReentrantLocks(locks) if others else locks[0]


@overload
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
) -> AsyncReentrantLock: ...


@overload
def afenced_lock(
    resource: str,
    second: str,
    /,
    *others: str,
    using: str | None = None,
    timeout: Duration | FromSettings | None = FROM_SETTINGS,
    blocking: bool = True,
    blocking_timeout: Duration | FromSettings | None = FROM_SETTINGS,
    sleep: Duration = 0.1,
    raise_on_release_error: bool = True,
    issuer: str | AnyIssuer | type[AnyIssuer] | None = None,
    renew: bool | FromSettings = FROM_SETTINGS,
    max_hold: Duration | FromSettings | None = FROM_SETTINGS,
) -> AsyncReentrantLocks: ...


def afenced_lock(
    resource: str,
    *others: str,
    using: str | None = None,
    timeout: Duration | FromSettings | None = FROM_SETTINGS,
    blocking: bool = True,
    blocking_timeout: Duration | FromSettings | None = FROM_SETTINGS,
    sleep: Duration = 0.1,
    raise_on_release_error: bool = True,
    issuer: str | AnyIssuer | type[AnyIssuer] | None = None,
    renew: bool | FromSettings = FROM_SETTINGS,
    max_hold: Duration | FromSettings | None = FROM_SETTINGS,
) -> AsyncReentrantLock | AsyncReentrantLocks:
    """
    Return the lock of a resource, built from the settings, for use with ``async with``; or that of several resources.

    Used again for the same resource in the same task, it re-enters. The arguments, and what entering the block
    raises, are those of ``fenced_lock``; transactions of Django are sync only and are not waited for.

    Raises:
        TypeError, ValueError: A bad argument; the message names it.
        ImproperlyConfigured: A bad setting, or a cache alias that cannot keep locks.
        RuntimeError: No event loop is running.
    """
    options = _options(timeout, blocking_timeout, issuer, renew, max_hold)
    options |= _checked(blocking, sleep, raise_on_release_error)
    locks = _locks(AsyncReentrantLock, get_async_client(using), (resource, *others), options)
    return AsyncReentrantLocks(locks) if others else locks[0]


def check_overrides(
    timeout: Duration | FromSettings | None,
    blocking_timeout: Duration | FromSettings | None,
    renew: bool | FromSettings,
    max_hold: Duration | FromSettings | None,
) -> None:
    """
    See that each argument is one that a lock can have, before there is a lock.

    Raises:
        TypeError, ValueError: One is not; the message names it.
    """
    for name, value in (("timeout", timeout), ("blocking_timeout", blocking_timeout), ("max_hold", max_hold)):
        if not isinstance(value, FromSettings):
            to_seconds_or_none(name, value, zero=name == "blocking_timeout")
    if not isinstance(renew, FromSettings):
        checked_flag("renew", renew)


def _locks(kind: type[L], client: Any, resources: Sequence[str], options: dict[str, Any]) -> list[L]:
    """Return a lock for each resource, in that order; one for those that are named more than once."""
    locks = {}
    for resource in resources:
        name = keys.lock_key(conf.KEY_PREFIX, resource)
        if name not in locks:
            locks[name] = kind(client, name, **options)
            locks[name].resource = resource
    return list(locks.values())


def _checked(blocking: bool, sleep: Duration, raise_on_release_error: bool) -> dict[str, Any]:
    return {
        "blocking": checked_flag("blocking", blocking),
        "sleep": sleep,
        "raise_on_release_error": checked_flag("raise_on_release_error", raise_on_release_error),
    }


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
