"""Leases as a test wants them: held by somebody else, over, or held by the code that asks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from redis.exceptions import LockError

from ..connections import get_client
from ..durations import Duration
from ..locks import core
from ..locks.sync import FencedLock
from ..reentry import lease_of_context
from ..shortcuts import configured_issuer
from ..signals import LeaseSignal
from ..wire import wire_for
from .held import end, leases_of
from .isolation import lock_name, owner_of


@contextmanager
def hold(resource: str, *, timeout: Duration | None = 60, using: str | None = None) -> Iterator[int]:
    """
    Let somebody else have the resource during the block; yield the fence token of that lease.

    The owner is none of this process, so that the resource is busy for all code in the block, whichever thread or task
    runs it, and no signal tells of that lease. The token is older than all that are issued later: what is written under
    it once the code under test has written is a stale write. Ended by ``expire()`` or ``move_clock()``, the lease may
    be taken by others in the block.

    It blocks for a moment; that does no harm in async tests, except with the issuer ``database``.

    Args:
        resource: The resource as your code names it, without prefixes.
        timeout: Length of the lease in seconds; None for without end.
        using: Cache alias; by default ``FENCED_LOCKS["USING"]``.

    Raises:
        LockNotAcquired: Somebody has it already.
        TypeError, ValueError: A bad argument; the message names it.
        ImproperlyConfigured, IssuerError, redis.exceptions.ConnectionError: As for ``fenced_lock``.
    """
    lock = _SomebodysLock(
        get_client(using), lock_name(resource), timeout, blocking=False, thread_local=False, issuer=configured_issuer()
    )
    if not lock.acquire(token=f"somebody-else:1:{os.urandom(8).hex()}"):
        raise core.not_acquired(lock_name(resource), lock._calls.busy, "the test cannot hold it")
    token = lock.fence_token
    assert token is not None
    try:
        yield token
    finally:
        # It may be over, by the will of the test.
        with suppress(LockError):
            lock.release()


class _SomebodysLock(FencedLock):
    """The lock of somebody who is elsewhere: no signal tells of it here."""

    def _announce(self, signal: LeaseSignal, lease: core.Lease | None, message: dict[str, Any]) -> None: ...


def expire(resource: str, *, using: str | None = None) -> None:
    """
    End the lease of a resource now, at the server and for whoever holds it in this process.

    The holder finds what it finds after a pause that was longer than its lease: ``remaining()`` is 0, ``lost`` is set,
    a renewal ends, and extending or releasing raises ``LeaseLost``. Its fenced writes are refused once somebody else
    has written. The resource is free; whoever waits for it gets it within a tenth of a second.

    Args:
        resource: The resource as your code names it, without prefixes.
        using: Cache alias; by default ``FENCED_LOCKS["USING"]``.

    Raises:
        AssertionError: Nobody holds it.
        TypeError, ValueError: The resource is refused as a name.
    """
    client, name = get_client(using), lock_name(resource)
    owner = owner_of(client, name)
    if owner is None:
        raise AssertionError(f"the lease of {resource!r} cannot be ended: nobody holds it")
    client.delete(name)
    for lease in leases_of([owner]):
        end(lease)


def assert_held(resource: str, *, using: str | None = None) -> int:
    """
    Return the fence token of the lease that this thread or task holds through ``fenced_lock`` or the decorator.

    A guard for code that must run under a lock. It asks nobody: it is true as far as this process knows, and writes
    still need the token. What ``sync_to_async`` runs holds nothing of its caller's; pass the token there.

    Args:
        resource: The resource as your code names it, without prefixes.
        using: Cache alias; by default ``FENCED_LOCKS["USING"]``.

    Raises:
        AssertionError: It does not hold it, or not any more. Raised by hand, so also under ``python -O``.
        TypeError, ValueError: The resource is refused as a name.
    """
    name = lock_name(resource)
    lease = lease_of_context(wire_for(get_client(using)).server, name.encode())
    if lease is None:
        raise AssertionError(f"{resource!r} is not held by this thread or task: enter fenced_lock({resource!r}) first")
    return lease.fence_token
