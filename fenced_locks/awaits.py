"""What asyncio's own ways to wait lose: a turn of the loop, or, before Python 3.12, a cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

from redis.exceptions import TimeoutError as RedisTimeoutError

T = TypeVar("T")


class Moment:
    """
    Something that happens once in an event loop, and that a task waits for.

    Made in its loop; one task at a time waits, as often as it likes. A wait costs one turn of the loop, where
    ``asyncio.wait`` takes two, and one that is cancelled or too short takes nothing away.

    Attributes:
        happened: Whether it has.
        loop: The event loop.
    """

    def __init__(self) -> None:
        self.happened = False
        self.loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None

    def happen(self) -> None:
        """Let it be now; called in its loop."""
        self.happened = True
        if self._waiter is not None:
            _wake(self._waiter)

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait for it, so many seconds or for ever; return whether it has happened."""
        if self.happened:
            return True
        waiter = self._waiter = self.loop.create_future()
        timer = None if seconds is None else self.loop.call_later(max(0.0, seconds), _wake, waiter)
        try:
            await waiter
        finally:
            if timer is not None:
                timer.cancel()
        return self.happened


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


async def within(seconds: float, exchange: Callable[[], Awaitable[T]]) -> T:
    """
    Return what comes of an exchange with the server, a function that awaits.

    In a task of its own: redis-py sends by ``wait_for``, which before Python 3.12 loses a cancellation that comes in
    the moment when it is done. Cancelled, this is so at once, whatever the exchange makes of it.

    Raises:
        redis.exceptions.TimeoutError: It took longer; it was cancelled.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()
    task = loop.create_task(_report(exchange, outcome))
    try:
        await asyncio.wait({outcome}, timeout=max(0.001, seconds))
        if outcome.done():
            return outcome.result()
        raise RedisTimeoutError(f"no reply within {seconds:.3f} s")
    finally:
        abandon(outcome)
        abandon(task)


async def _report(exchange: Callable[[], Awaitable[T]], outcome: asyncio.Future[T]) -> None:
    """Never raise: a loop that ends says so of the tasks that do."""
    try:
        reply = await exchange()
    except BaseException as error:  # noqa: BLE001 - it is raised where the outcome is awaited
        if not outcome.done():
            outcome.set_exception(error)
    else:
        if not outcome.done():
            outcome.set_result(reply)


def abandon(future: asyncio.Future[Any]) -> None:
    """Cancel a future or task until it is done, and take note of its exception, which interests nobody."""
    if future.done():
        _ = future.cancelled() or future.exception()
        return
    # Unless the loop is closed.
    with suppress(RuntimeError):
        future.cancel()
        if not future.done():
            future.get_loop().call_soon(abandon, future)
