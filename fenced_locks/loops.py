"""
What belongs to one event loop: made on first use, closed with the loop, shared with no other, not used after a fork.

Nothing tells when a loop ends but its asynchronous generators: ``asyncio.run``, ``async_to_sync`` and servers close
those while the loop still runs, after they have cancelled its tasks.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable, Hashable
from contextlib import suppress
from typing import Protocol, TypeVar

from .logs import about

_log = logging.getLogger(__name__)


class Resident(Protocol):
    """What lives in one loop."""

    async def close(self) -> None:
        """Go with the loop; what is used afterwards, by tasks that end still later, must close itself."""

    def abandon(self) -> None:
        """Give back what is counted in the process: the loop was closed without a word."""


T = TypeVar("T", bound=Resident)


class _Home:
    def __init__(self) -> None:
        self.residents: dict[Hashable, Resident] = {}
        self.leaving: set[Resident] = set()
        self._tasks: dict[Resident, asyncio.Task[None]] = {}
        self.lifetime = _lifetime(self)
        with suppress(StopIteration):
            # Begins it, which is when the loop takes note of it; up to its yield it awaits nothing.
            self.lifetime.__anext__().send(None)

    def see_off(self, loop: asyncio.AbstractEventLoop, resident: Resident) -> None:
        """Close one that is leaving before the loop is closed."""
        task = self._tasks[resident] = loop.create_task(resident.close())
        task.add_done_callback(lambda _: self._gone(resident))

    def _gone(self, resident: Resident) -> None:
        # Cancelled, it may not even have begun; then it is closed at the end.
        if not self._tasks.pop(resident).cancelled():
            self.leaving.discard(resident)


async def _lifetime(home: _Home) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        # The last one first, as it may need the others.
        for resident in (*home.leaving, *reversed(list(home.residents.values()))):
            try:
                await resident.close()
            except Exception:  # noqa: BLE001 - the others are to be closed, too
                _log.exception("closing %r with its event loop failed", resident, extra=about(None))


_homes: dict[asyncio.AbstractEventLoop, _Home] = {}
_of_the_parent: list[object] = []


def of_this_loop(key: Hashable, make: Callable[[asyncio.AbstractEventLoop], T]) -> T:
    """Return what the running loop keeps under ``key``; ``make`` it if there is nothing yet."""
    loop = asyncio.get_running_loop()
    try:
        found = _homes[loop].residents[key]
    except KeyError:
        home = _homes.get(loop) or _move_in(loop)
        found = home.residents[key] = make(loop)
    return found  # type: ignore[return-value]


def close_everywhere(key: Hashable) -> None:
    """Have every loop close what it keeps under ``key``; from any thread."""
    for loop, home in list(_homes.items()):
        resident = home.residents.pop(key, None)
        if resident is not None:
            home.leaving.add(resident)
            # Unless the loop is closed.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(home.see_off, loop, resident)


def _move_in(loop: asyncio.AbstractEventLoop) -> _Home:
    for other in list(_homes):
        if other.is_closed() and (home := _homes.pop(other, None)):
            for resident in (*home.leaving, *home.residents.values()):
                resident.abandon()
    home = _homes[loop] = _Home()
    return home


def _reset_after_fork() -> None:
    global _homes
    # Kept: collected here, connections of the parent would be taken off its loop's selector, which is shared.
    _of_the_parent.append(_homes)
    _homes = {}


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
