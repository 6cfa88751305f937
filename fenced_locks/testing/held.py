"""The leases of this process, found when a test asks for them: locks keep no list of what is held."""

from __future__ import annotations

import gc
from collections.abc import Collection
from contextlib import suppress

from .. import clock
from ..locks import core
from ..locks.core import Lease
from ..locks.loss import tell_who_waits


def all_leases() -> list[Lease]:
    """Return the leases that were not given back, of all threads and tasks."""
    # Not isinstance(): it would evaluate every lazy object.
    found = [thing for thing in gc.get_objects() if type(thing) is Lease]
    return [lease for lease in found if not (lease.released or lease.is_inherited())]


def leases_of(owners: Collection[bytes]) -> list[Lease]:
    """Return the leases that these owners hold here."""
    return [lease for lease in all_leases() if lease.owner in owners] if owners else []


def end(lease: Lease) -> None:
    """Let the lease be over by local time, and whoever waits for that know."""
    now = clock.monotonic()
    lease.ends_at = now if lease.ends_at is None else min(now, lease.ends_at)
    if lease.renewal is not None:
        # A task's can be told in its event loop only; elsewhere it is just renewed no more.
        with suppress(RuntimeError):
            lease.renewal.settle(None, now, now)
        lease.renewal.cancelled = True
    tell_who_waits(lease)


def forget(lease: Lease) -> None:
    """Let nobody hear of the lease any more: its test is over."""
    lease.released = True
    if lease.renewal is not None:
        lease.renewal.cancelled = True
    tell_who_waits(lease)


def tell_of_ends() -> None:
    """Let those who wait for the end of a lease know, where the time has jumped beyond it."""
    for lease in all_leases():
        if core.is_over(lease, clock.monotonic()):
            tell_who_waits(lease)
