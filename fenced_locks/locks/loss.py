"""``lock.lost``: whether a lease is lost, for whoever wants to know while it is held; or any of several."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .. import clock
from ..awaits import Moment
from . import core
from .core import Lease


class _Loss:
    """
    An event that is set once a lease is lost: found gone or taken, or past its end by local time.

    It belongs to one lease, or to those of several resources, of which it is enough that one is lost. It stays unset
    for leases that were given back in time.
    """

    def __init__(self, *leases: Lease) -> None:
        self._leases = leases

    def is_set(self) -> bool:
        """Return whether the lease is lost, without asking the server."""
        now = clock.monotonic()
        return any(lease.lost or (not lease.released and core.is_over(lease, now)) for lease in self._leases)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'set' if self.is_set() else 'unset'}>"

    def _is_decided(self) -> bool:
        return self.is_set() or all(lease.released for lease in self._leases)

    def _seconds(self, now: float, deadline: float | None = None) -> float | None:
        """Return how long nothing can change unless somebody says so."""
        return core.earliest(now, deadline, *[lease.ends_at for lease in self._leases if not lease.released])

    @contextmanager
    def _telling(self, tell: Callable[[], None]) -> Iterator[None]:
        """Have this called when one of the leases is found lost, or is given back."""
        lists: list[list[Callable[[], None]]] = [vars(lease).setdefault("_told", []) for lease in self._leases]
        for told in lists:
            told.append(tell)
        try:
            yield
        finally:
            for told in lists:
                told.remove(tell)


class Loss(_Loss):
    """What ``FencedLock.lost`` returns; like a ``threading.Event``, it may be passed to other threads."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the lease is lost or given back, for so many seconds or for ever; return ``is_set()``."""
        deadline = None if timeout is None else clock.monotonic() + timeout
        event = threading.Event()
        with self._telling(event.set):
            while not self._is_decided():
                now = clock.monotonic()
                if deadline is not None and now >= deadline:
                    return False
                # The end may have moved when this is over.
                if event.wait(self._seconds(now, deadline)):
                    event.clear()
        return self.is_set()


class AsyncLoss(_Loss):
    """What ``AsyncFencedLock.lost`` returns; like an ``asyncio.Event``, for the tasks of its event loop."""

    async def wait(self) -> bool:
        """Wait until the lease is lost or given back; return ``is_set()``."""
        while not self._is_decided():
            moment = Moment()
            with self._telling(moment.happen):
                await moment.wait(self._seconds(clock.monotonic()))
        return self.is_set()


def tell_who_waits(lease: Lease) -> None:
    """Wake whoever waits for the loss of this lease, or for its release."""
    for tell in tuple(vars(lease).get("_told", ())):
        tell()
