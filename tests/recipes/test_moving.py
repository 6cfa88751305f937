"""Old locks and fenced ones on one key exclude each other, both ways, for as long as both are in use."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import redis
from django.core.cache import caches
from django.core.cache.backends.base import BaseCache

from fenced_locks import fenced_lock
from fenced_locks.signals import lease_released
from tests import docs_runner
from tests.conftest import ClientFactory
from tests.helpers import run_threads, wait_until

PAGE = docs_runner.PAGES / "how-to" / "recipes" / "from-other-locks.md"
ROUNDS = 25
Lock = Callable[[], AbstractContextManager[Any]]


@pytest.fixture
def client(client_factory: ClientFactory) -> redis.Redis:
    """A client whose replies may take as long as a lock of python-redis-lock waits."""
    return client_factory(socket_timeout=60)


@pytest.fixture
def cache(r: redis.Redis, settings: Any) -> BaseCache:
    """A cache that puts something before every key."""
    settings.CACHES = {**settings.CACHES, "prefixed": {**settings.CACHES["default"], "KEY_PREFIX": "web", "VERSION": 3}}
    return caches["prefixed"]


@pytest.fixture
def wake_old_waiters() -> Iterator[None]:
    """The receiver of the page."""
    (block,) = [block for block in docs_runner.blocks(PAGE) if block.title == "shop/old_waiters.py"]
    names: dict[str, Any] = {"__name__": "old_waiters"}
    exec(block.text, names)
    yield
    lease_released.disconnect(names["wake_old_waiters"])


@pytest.fixture(params=["redis-py", "cache.lock", "python-redis-lock"])
def old_and_new(
    request: pytest.FixtureRequest, client: redis.Redis, cache: BaseCache, wake_old_waiters: None
) -> tuple[Lock, Lock]:
    """How old code takes the lock of an order, and how new code does."""
    redis_lock = pytest.importorskip("redis_lock")
    any_cache: Any = cache
    old, key = {
        "redis-py": (lambda: client.lock("order:1", timeout=30), "order:1"),
        "cache.lock": (lambda: any_cache.lock("order:1", timeout=30), "web:3:order:1"),
        "python-redis-lock": (lambda: redis_lock.Lock(client, "order:1", expire=30), "lock:order:1"),
    }[request.param]
    return old, lambda: fenced_lock(key, timeout=30, blocking_timeout=60)


def add_under(lock: Lock, client: redis.Redis) -> None:
    """Add one to a number, in a way that loses what another does meanwhile."""
    for _ in range(ROUNDS):
        with lock():
            seen = int(client.get("number") or 0)
            time.sleep(0.001)
            client.set("number", seen + 1)


def test_the_number_would_be_wrong_without_one_name(client: redis.Redis) -> None:
    locks: list[Lock] = [lambda: client.lock("order:1", timeout=30), lambda: fenced_lock("other:1", timeout=30)]
    run_threads(*[lambda lock=lock: add_under(lock, client) for lock in locks], timeout=60)
    assert int(client.get("number") or 0) < 2 * ROUNDS


def test_old_and_new_locks_exclude_each_other(old_and_new: tuple[Lock, Lock], client: redis.Redis) -> None:
    threads = [lambda lock=lock: add_under(lock, client) for lock in old_and_new * 2]
    run_threads(*threads, timeout=100)
    assert int(client.get("number") or 0) == 4 * ROUNDS


@pytest.mark.parametrize("deploys", ["before and between", "between and after"])
def test_neighbouring_deploys_of_another_name_exclude_each_other(deploys: str, client: redis.Redis) -> None:
    names = {"before": [":1:order:1"], "between": [":1:order:1", "order:1"], "after": ["order:1"]}

    def taking(deploy: str) -> Lock:
        return lambda: fenced_lock(*names[deploy], timeout=30, blocking_timeout=60)

    locks = [taking(name) for name in deploys.split(" and ")]
    run_threads(*[lambda lock=lock: add_under(lock, client) for lock in locks * 2], timeout=100)
    assert int(client.get("number") or 0) == 4 * ROUNDS


@pytest.mark.usefixtures("wake_old_waiters")
def test_a_waiter_of_python_redis_lock_is_woken_by_a_fenced_release(client: redis.Redis) -> None:
    redis_lock = pytest.importorskip("redis_lock")
    taken = threading.Event()

    def hold() -> float:
        with fenced_lock("lock:order:1", timeout=60):
            taken.set()
            wait_until(lambda: any(each["cmd"] == "blpop" for each in client.client_list()))
        return time.monotonic()

    def wait() -> float:
        assert taken.wait(30)
        assert redis_lock.Lock(client, "order:1", expire=30).acquire()
        return time.monotonic()

    released, woken = run_threads(hold, wait, timeout=60)
    # Its own patience would have ended after 30 s.
    assert woken - released < 10
