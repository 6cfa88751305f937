"""
Clients and caches on ``fakeredis``: a server inside the process.

With ``--fakeredis`` the tests of locks run on one; those of what it cannot do are listed here, and left out.
"""

from __future__ import annotations

import uuid
from typing import Any

import fakeredis
import pytest

# What needs a server that can be hurt, shared with other processes, or looked at.
REAL = {"make_proxy", "proxy", "own_server"}

# Tests of what differs: waiters are not registered with the server, and nothing wakes them.
OF_WAITING = {
    "test_an_override_of_do_acquire_is_asked_for_every_try",
    "test_cancelled_while_it_waits_a_waiter_leaves_no_trace_and_passes_its_turn_on",
    "test_a_thousand_tasks_on_one_lock_use_two_connections",
    "test_a_thousand_locks_at_once_use_one_connection",
    # Fifty that wait in no order do not all get their turn in time where the database takes long for each.
    "test_tokens_grow_under_fifty_threads[database-mariadb]",
}
# Tests with processes of their own, each of which would have a server of its own.
OF_PROCESSES = {
    "test_tokens_grow_over_a_process_that_is_killed_with_its_token",
    "test_tokens_grow_over_a_process_that_is_killed_anywhere",
}

_used = False


def use() -> None:
    """Use fakes from now on."""
    global _used
    _used = True


def are_used() -> bool:
    """Return whether the tests run on fakes."""
    return _used


def connecting() -> dict[str, Any]:
    """Return options for the pool of a blocking client of the tests."""
    return {"connection_class": fakeredis.FakeRedisConnection} if _used else {}


def connecting_async() -> dict[str, Any]:
    """Return options for the pool of an asyncio client of the tests."""
    return {"connection_class": fakeredis.FakeAsyncRedisConnection} if _used else {}


def is_possible(item: pytest.Item) -> bool:
    """Return whether a test of locks can pass on a fake server."""
    names = {item.name, getattr(item, "originalname", item.name)}
    return not (OF_WAITING | OF_PROCESSES) & names and not REAL & set(getattr(item, "fixturenames", ()))


class FakeRedisServer:
    """
    One fake server.

    Attributes:
        url: Its address, which nobody else has.
    """

    def __init__(self) -> None:
        self.url = f"redis://{uuid.uuid4().hex}:6379/0"


def fake_caches(url: str | None = None) -> dict[str, dict[str, Any]]:
    """Return both cache aliases of the tests, on the fake server with this address or on a new one."""
    location = url or FakeRedisServer().url
    connection = fakeredis.FakeRedisConnection
    return {
        "default": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": location,
            "OPTIONS": {"CONNECTION_POOL_KWARGS": {"connection_class": connection}},
        },
        "plain": {
            "BACKEND": "django.core.cache.backends.redis.RedisCache",
            "LOCATION": location,
            "OPTIONS": {"connection_class": connection},
        },
    }
