"""``fenced_lock``: built from the settings, re-entered in one thread or task, refused inside transactions."""

import asyncio
import contextvars
import os
import threading
from datetime import timedelta

import pytest
import redis
from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import ImproperlyConfigured

from fenced_locks import FencedLock, LeaseLost, LockNotAcquired, NotHeld, afenced_lock, fenced_lock
from tests.helpers import run_threads

pytestmark = pytest.mark.usefixtures("r")


def test_the_settings_make_the_lock(settings, r):
    settings.FENCED_LOCKS = {
        "KEY_PREFIX": "shop:",
        "TIMEOUT": timedelta(seconds=7),
        "BLOCKING_TIMEOUT": 1.5,
        "ISSUER": "counter",
    }
    with fenced_lock("order:1") as lock:
        assert isinstance(lock, FencedLock)
        assert (lock.timeout, lock.blocking_timeout, lock.fence_token) == (7, 1.5, 1)
        assert sorted(r.keys("*")) == [b"fence:{shop:order:1}", b"shop:order:1"]
        assert 6_000 < r.pttl("shop:order:1") <= 7_000


def test_the_default_has_an_end_and_a_bounded_wait(r):
    with fenced_lock("order:1") as lock:
        assert (lock.timeout, lock.blocking_timeout) == (30, 5)
    with fenced_lock("order:1", timeout=None, blocking_timeout=None) as lock:
        assert (lock.timeout, lock.blocking_timeout) == (None, None)
        assert r.pttl("order:1") == -1


def test_the_retention_of_the_settings_reaches_the_counter(settings, r):
    settings.FENCED_LOCKS = {"COUNTER_RETENTION": 60, "TIMEOUT": 5}
    with fenced_lock("order:1"):
        assert 59_000 < r.pttl("fence:{order:1}") <= 61_000


@pytest.mark.parametrize("using", ["default", "plain"])
def test_both_redis_backends_of_django_keep_locks(using, r):
    with fenced_lock("order:1", using=using) as lock:
        assert r.get("order:1") == lock.owner_id.encode()


def test_an_alias_that_cannot_keep_locks_is_a_clear_error(settings):
    settings.CACHES = {**settings.CACHES, "memory": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
    with pytest.raises(ImproperlyConfigured, match=r"'memory' cannot keep locks: .*LocMemCache has no Redis client"):
        fenced_lock("order:1", using="memory")
    with pytest.raises(ImproperlyConfigured, match="'elsewhere'"):
        fenced_lock("order:1", using="elsewhere")


@pytest.mark.parametrize("resource", ["", "a}b", "fence:x", "a\ud800", None, 7])
def test_a_bad_resource_is_refused_before_anything_is_sent(resource, r):
    with pytest.raises((ValueError, TypeError), match=r"resource|name of the lock"):
        fenced_lock(resource)
    assert r.keys("*") == []


@pytest.mark.parametrize("name", ["blocking", "raise_on_release_error", "renew"])
@pytest.mark.parametrize("value", ["no", 0, None])
def test_what_is_true_or_false_is_no_text_that_counts_as_true(name, value, r):
    async def awaiting():
        afenced_lock("order:1", **{name: value})

    with pytest.raises(TypeError, match=rf"^{name} must be True or False, not {value!r}$"):
        fenced_lock("order:1", **{name: value})
    with pytest.raises(TypeError, match=rf"^{name} must be True or False, not {value!r}$"):
        asyncio.run(awaiting())


def test_nested_use_re_enters_and_the_outermost_exit_releases(r):
    with fenced_lock("order:1") as outer:
        with fenced_lock("order:1", using="plain") as inner:
            assert (inner.fence_token, inner.owner_id) == (outer.fence_token, outer.owner_id)
        assert inner.fence_token is None
        assert outer.owned()
        with pytest.raises(NotHeld):
            inner.release()
    assert not r.exists("order:1")
    assert outer.fence_token is None


def test_one_object_may_be_entered_twice(r):
    lock = fenced_lock("order:1")
    with lock, lock:
        token = lock.fence_token
    assert not r.exists("order:1")
    with lock:
        assert lock.fence_token > token


def test_other_resources_and_prefixes_are_other_leases(r, settings):
    with fenced_lock("order:1") as first, fenced_lock("order:2") as second:
        assert first.owner_id != second.owner_id
    with fenced_lock("order:1"):
        settings.FENCED_LOCKS = {"KEY_PREFIX": "other:"}
        with fenced_lock("order:1"):
            assert r.exists("order:1", "other:order:1") == 2


def test_a_lease_that_ended_is_not_re_entered(r):
    with pytest.raises(LeaseLost, match="cannot re-enter"):
        with fenced_lock("order:1", timeout=0.001, raise_on_release_error=False) as lock:
            while lock.owned():
                pass
            fenced_lock("order:1").acquire()
            pytest.fail("re-entered a lease that has ended")


def test_after_a_lost_lease_the_next_use_takes_a_new_one(r):
    with pytest.raises(LeaseLost), fenced_lock("order:1"):
        r.delete("order:1")
    with fenced_lock("order:1"):
        assert r.exists("order:1")


def test_a_lease_that_somebody_forgot_to_release_is_not_re_entered_for_ever(r):
    fenced_lock("order:1", timeout=0.001).acquire()
    with fenced_lock("order:1") as lock:
        assert lock.owned()


def test_a_release_that_fails_can_be_repeated_and_is_not_re_entered(settings, proxy, r):
    settings.CACHES = {**settings.CACHES, "cut": {**settings.CACHES["plain"], "LOCATION": proxy.url}}
    lock = fenced_lock("order:1", using="cut")
    lock.acquire()
    proxy.refuse()
    proxy.disconnect()
    with pytest.raises(redis.exceptions.ConnectionError):
        lock.release()
    proxy.admit()
    assert fenced_lock("order:1", using="cut", blocking=False).acquire() is False
    lock.release()
    assert not r.exists("order:1")


def test_a_lease_that_was_taken_in_another_context_is_not_re_entered_once_released(r):
    lock = fenced_lock("order:1")
    context = contextvars.copy_context()
    assert context.run(lock.acquire)
    lock.release()
    with FencedLock(r, "order:1", timeout=10):
        assert context.run(fenced_lock("order:1", blocking=False).acquire) is False


def test_an_object_that_lost_its_lease_has_no_say_in_the_next_one(r):
    lost, outer = fenced_lock("order:1"), fenced_lock("order:1")
    with pytest.raises(LeaseLost), lost:
        r.delete("order:1")
    with outer:
        with lost:
            assert lost.fence_token == outer.fence_token
        assert lost.fence_token is None
        with pytest.raises(NotHeld):
            lost.release()
        assert outer.owned()


@pytest.mark.parametrize("timeout", [1, None])
def test_the_length_of_the_lease_is_that_of_the_outer_lock(r, timeout):
    with fenced_lock("order:1", timeout=30), fenced_lock("order:1", timeout=timeout) as inner:
        inner.reacquire()
        assert 29_000 < r.pttl("order:1") <= 30_000
        inner.extend(5)
        assert 34_000 < r.pttl("order:1") <= 35_000


def test_an_issuer_named_by_its_path_gets_the_retention_of_the_settings(settings, r):
    settings.FENCED_LOCKS = {"ISSUER": "fenced_locks.issuers.ClockIssuer", "COUNTER_RETENTION": 60, "TIMEOUT": 5}
    with fenced_lock("order:1"):
        assert 59_000 < r.pttl("fence:{order:1}") <= 61_000


def test_the_class_itself_does_not_re_enter(r):
    with FencedLock(r, "order:1", timeout=10):
        assert FencedLock(r, "order:1", timeout=10).acquire(blocking=False) is False
        assert fenced_lock("order:1", blocking=False).acquire() is False


def test_another_thread_is_another_holder_and_the_error_says_so(r):
    def other():
        with pytest.raises(LockNotAcquired, match="this very process"):
            fenced_lock("order:1", blocking=False).__enter__()

    with fenced_lock("order:1"):
        run_threads(other)
        # Even with the context of the holder, as a copied context in a thread pool has it.
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=[run_threads, other])
        thread.start()
        thread.join()


def test_a_child_task_and_a_thread_of_a_task_are_other_holders(r):
    async def child():
        return fenced_lock("order:1", blocking=False).acquire()

    async def main():
        with fenced_lock("order:1"):
            assert fenced_lock("order:1", blocking=False).acquire() is True
            fenced_lock("order:1")
            assert await asyncio.create_task(child()) is False
            assert await sync_to_async(lambda: fenced_lock("order:1", blocking=False).acquire())() is False

    async_to_sync(main)()


def test_a_forked_child_re_enters_nothing_and_leaves_the_parent_its_lease(r):
    with fenced_lock("order:1") as lock:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                taken = fenced_lock("order:1", blocking=False).acquire()
                other = fenced_lock("order:2", blocking=False).acquire()
                os.write(writing, f"{taken} {other}".encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert os.read(reading, 100) == b"False True"
        assert lock.owned()
        lock.extend(1)
