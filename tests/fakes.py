"""
Clients and caches on ``fakeredis``: a server inside the process.

With ``--fakeredis`` the tests of locks run on one; what it cannot do is listed here, and expected to fail.
"""

from __future__ import annotations

import uuid
from typing import Any

import fakeredis
import pytest

# What needs a server that can be hurt, shared with other processes, or looked at.
REAL = {"make_proxy", "proxy", "own_server", "restarted", "server"}

# Tests that fail on fakeredis, and why.
DIFFERS: dict[str, str] = {}

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


def expect(item: pytest.Item) -> None:
    """Skip a test that needs a real server; expect one to fail that differs."""
    if REAL & set(getattr(item, "fixturenames", ())):
        item.add_marker(pytest.mark.skip(reason="needs a real server"))
    reason = DIFFERS.get(getattr(item, "originalname", item.name))
    if reason:
        item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


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
