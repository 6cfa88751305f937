"""Fixtures for tests with processes that wait for a lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from tests.waiters import LOCK, Waiter, cycle, line_up


@pytest.fixture
def make_waiter(r: redis.Redis, redis_url: str) -> Iterator[Callable[..., Waiter]]:
    """`make_waiter(**options)` starts a process with a lock, which is killed after the test."""
    waiters: list[Waiter] = []

    def make(**options: Any) -> Waiter:
        waiters.append(Waiter(redis_url, LOCK, **{"timeout": 30, **options}))
        return waiters[-1]

    yield make
    for waiter in waiters:
        waiter.end()


@pytest.fixture
def queue_up(r: redis.Redis, make_waiter: Callable[..., Waiter]) -> Callable[..., list[Waiter]]:
    """
    `queue_up(count, **options)` starts that many; each waits for the lock before the next one is asked to.

    They release what they get at once, or whatever else `action` does.
    """

    def start(count: int, action: Callable[..., Any] = cycle, **options: Any) -> list[Waiter]:
        waiters = [make_waiter(**options) for _ in range(count)]
        line_up(r, waiters, action)
        return waiters

    return start
