"""``lock.lost``: whether a lease is lost, for whoever wants to know while it is held."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from .. import clock
from . import core
from .core import Lease

E = TypeVar("E")


class _Loss:
    """
    An event that is set once a lease is lost: found gone or taken, or past its end by local time.

    It belongs to one lease, and stays unset for one that was given back in time.
    """

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    def is_set(self) -> bool:
        """Return whether the lease is lost, without asking the server."""
        lease = self._lease
        return lease.lost or (not lease.released and core.is_over(lease, clock.monotonic()))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'set' if self.is_set() else 'unset'}>"


class Loss(_Loss):
    """What ``FencedLock.lost`` returns; like a ``threading.Event``, it may be passed to other threads."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the lease is lost or given back, for so many seconds or for ever; return ``is_set()``."""
        deadline = None if timeout is None else clock.monotonic() + timeout
        while not self.is_set() and not self._lease.released:
            now = clock.monotonic()
            if deadline is not None and now >= deadline:
                return False
            # The end may have moved when this is over.
            _event(self._lease, threading.Event).wait(core.earliest(now, self._lease.ends_at, deadline))
        return self.is_set()


class AsyncLoss(_Loss):
    """What ``AsyncFencedLock.lost`` returns; like an ``asyncio.Event``, for the tasks of its event loop."""

    async def wait(self) -> bool:
        """Wait until the lease is lost or given back; return ``is_set()``."""
        while not self.is_set() and not self._lease.released:
            ended = _event(self._lease, asyncio.Event)
            left = core.earliest(clock.monotonic(), self._lease.ends_at)
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(ended.wait(), left)
        return self.is_set()


def tell_who_waits(lease: Lease) -> None:
    """Wake whoever waits for the loss of this lease, or for its release."""
    event = vars(lease).get("_event")
    if event is not None:
        event.set()


def _event(lease: Lease, make: Callable[[], E]) -> E:
    # Made when somebody waits, since few do; setdefault lets one of several threads win without a lock, which a forked
    # child could find taken.
    event: E = vars(lease).setdefault("_event", make())
    return event
