"""``AsyncFencedLock`` and ``afenced_lock``: what the lock that blocks promises holds for tasks too."""

import asyncio
import gc
import threading
import time
import weakref
from contextlib import asynccontextmanager

import pytest
import redis
from asgiref.sync import async_to_sync, sync_to_async
from redis.asyncio import Redis as AsyncRedis

from fenced_locks import (
    AsyncFencedLock,
    FencedLock,
    IssuerError,
    LeaseHasNoEnd,
    LeaseLost,
    LockNotAcquired,
    NotHeld,
    OutcomeUnknown,
    afenced_lock,
    fenced_lock,
    signals,
)
from fenced_locks.locks.gate import gate
from tests.conftest import CLIENTS
from tests.fakes import connecting_async
from tests.helpers import run_threads, until, wait_until

KEYS = ("order:1", "queue:{order:1}", "wake:{order:1}")
SCRIPT = ("EVALSHA", "EVAL")


@asynccontextmanager
async def connected(url, **options):
    client = AsyncRedis.from_url(url, **{**connecting_async(), **options})
    try:
        yield client
    finally:
        await client.aclose()


@pytest.fixture
def in_loop(r, redis_url):
    """`in_loop(function, **options)` runs `await function(client)` in an event loop of its own."""

    def run(function, url=None, **options):
        async def main():
            async with connected(url or redis_url, **options) as client:
                return await asyncio.wait_for(function(client), 30)

        return asyncio.run(main())

    return run


def waiting():
    return sum(len(queue) for queue in gate._queues.values())


@pytest.mark.parametrize("options", CLIENTS)
def test_a_cycle_with_a_client_of_any_kind(in_loop, r, options):
    async def work(client):
        lock = AsyncFencedLock(client, "order:1", timeout=10)
        tokens = []
        for _ in range(3):
            async with lock:
                tokens.append(lock.fence_token)
                assert r.get("order:1") == lock.owner_id.encode()
                assert await lock.owned()
                assert await lock.locked()
                assert await lock.ensure_held() == lock.fence_token
                assert await lock.extend(5)
                assert 10 < lock.remaining() <= 15
                assert await lock.reacquire()
                assert 5 < lock.remaining() <= 10
        assert tokens == sorted(set(tokens))
        assert int(r.get("fence:{order:1}")) == tokens[-1]
        assert not await lock.locked()

    # The asyncio parsers are others.
    in_loop(work, **{key: value for key, value in options.items() if key != "parser_class"})
    assert not r.exists(*KEYS)


def test_tasks_exclude_each_other_in_the_order_of_their_arrival(in_loop, r):
    async def work(client):
        inside, order = [], []

        async def worker(number):
            async with AsyncFencedLock(client, "order:1", timeout=10) as lock:
                inside.append(number)
                assert len(inside) == 1
                order.append((lock.fence_token, number))
                await asyncio.sleep(0.001)
                inside.remove(number)

        async with AsyncFencedLock(client, "order:1", timeout=10):
            tasks = []
            for number in range(50):
                tasks.append(asyncio.create_task(worker(number)))
                await until(lambda: waiting() == number + 1)  # noqa: B023 - awaited at once
        await asyncio.gather(*tasks)
        assert [number for _, number in sorted(order)] == list(range(50))

    in_loop(work)
    assert not r.exists(*KEYS)


def test_threads_and_tasks_wait_in_one_order(in_loop, redis_url, client_factory, r):
    grants = []

    def thread(number):
        with FencedLock(r, "order:1", timeout=10):
            grants.append(number)

    async def task(client, number):
        async with AsyncFencedLock(client, "order:1", timeout=10):
            grants.append(number)

    async def work(client):
        threads, tasks = [], []
        async with AsyncFencedLock(client, "order:1", timeout=10):
            for number in range(8):
                if number % 2:
                    threads.append(threading.Thread(target=thread, args=(number,)))
                    threads[-1].start()
                else:
                    tasks.append(asyncio.create_task(task(client, number)))
                await until(lambda: waiting() == number + 1)  # noqa: B023 - awaited at once
        await asyncio.gather(*tasks)
        for one in threads:
            await asyncio.to_thread(one.join)

    in_loop(work)
    assert grants == list(range(8))
    assert not r.exists(*KEYS)


def test_a_thousand_tasks_on_one_lock_use_two_connections(in_loop, r):
    async def work(client):
        async def worker():
            async with AsyncFencedLock(client, "order:1", timeout=30) as lock:
                return lock.fence_token

        tokens = await asyncio.gather(*[worker() for _ in range(1000)])
        assert len(set(tokens)) == 1000
        return len([entry for entry in r.client_list() if entry["name"] == "crowd"])

    assert in_loop(work, client_name="crowd") <= 2


def test_a_thousand_locks_at_once_use_one_connection(in_loop, r):
    async def work(client):
        async def worker(number):
            async with AsyncFencedLock(client, f"order:{number}", timeout=30) as lock:
                return lock.fence_token

        assert all(await asyncio.gather(*[worker(number) for number in range(1000)]))
        return len([entry for entry in r.client_list() if entry["name"] == "crowd"])

    assert in_loop(work, client_name="crowd", max_connections=2) == 1


def test_the_lease_belongs_to_the_task_that_acquired_it(in_loop):
    async def work(client):
        lock = AsyncFencedLock(client, "order:1", timeout=10)
        await lock.acquire()

        async def stranger():
            assert lock.fence_token is None
            assert not await lock.owned()
            for use in (lock.release, lock.reacquire, lock.ensure_held):
                with pytest.raises(NotHeld):
                    await use()

        await asyncio.create_task(stranger())
        await lock.ensure_held()
        await lock.release()
        shared = AsyncFencedLock(client, "order:1", timeout=10, thread_local=False)
        await shared.acquire()
        await asyncio.create_task(shared.release())

    in_loop(work)


def test_once_its_task_is_done_anybody_may_release(in_loop, r):
    async def work(client):
        lock = AsyncFencedLock(client, "order:1", timeout=10)
        # In a task of its own on Python 3.10 and 3.11.
        await asyncio.wait_for(lock.acquire(), 5)
        assert lock.fence_token
        await lock.release()
        await asyncio.create_task(lock.acquire())
        await lock.release()

    in_loop(work)
    assert not r.exists("order:1")


@pytest.mark.parametrize("other", [AsyncFencedLock, FencedLock])
def test_a_busy_lock_is_refused_and_waited_for_as_long_as_said(in_loop, r, other):
    plain = redis.lock.Lock(r, "order:1", timeout=60)
    plain.acquire()

    async def work(client):
        assert not await AsyncFencedLock(client, "order:1").acquire(blocking=False)
        started = time.monotonic()
        assert not await AsyncFencedLock(client, "order:1").acquire(blocking_timeout=0.3)
        assert 0.3 <= time.monotonic() - started < 2
        with pytest.raises(LockNotAcquired, match="is busy"):
            async with AsyncFencedLock(client, "order:1", blocking_timeout=0.05):
                pytest.fail("must not run")

    in_loop(work)
    assert not r.exists("queue:{order:1}")


def test_a_lease_that_is_gone_is_a_loss_and_told_once(in_loop, r):
    heard = []

    async def receive(sender, **details):
        heard.append((details["signal"], details["lock"]))

    async def work(client):
        lock = AsyncFencedLock(client, "order:1", timeout=10)
        await lock.acquire()
        lost = lock.lost
        watcher = asyncio.create_task(lost.wait())
        r.set("order:1", "somebody")
        for use in (lock.ensure_held, lambda: lock.extend(1), lock.release):
            with pytest.raises(LeaseLost, match="somebody"):
                await use()
        assert await watcher
        assert lost.is_set()
        return lock

    names = ("lease_acquired", "lease_released", "lease_lost")
    for name in names:
        getattr(signals, name).connect(receive)
    try:
        lock = in_loop(work)
    finally:
        for name in names:
            getattr(signals, name).disconnect(receive)
    assert heard == [(signals.lease_acquired, lock), (signals.lease_lost, lock)]


def test_a_lock_that_stayed_busy_is_told_of_and_a_receiver_that_fails_breaks_nothing(in_loop, r):
    heard = []

    async def receive(sender, **details):
        heard.append((details["resource"], details["owner_id"]))

    def fail(sender, **details):
        raise ZeroDivisionError

    async def work(client):
        return await AsyncFencedLock(client, "order:1", timeout=10, blocking=False).acquire()

    r.set("order:1", "somebody")
    signals.lease_refused.connect(receive)
    signals.lease_refused.connect(fail)
    try:
        assert in_loop(work) is False
    finally:
        signals.lease_refused.disconnect(receive)
        signals.lease_refused.disconnect(fail)
    assert heard == [("order:1", "somebody")]


def test_signals_that_cannot_be_sent_break_nothing(in_loop, monkeypatch, caplog):
    async def no_thread(sender, **details):
        raise RuntimeError("cannot schedule new futures after shutdown")

    def receive(sender, **details):
        raise AssertionError("not to be called")

    async def work(client):
        async with AsyncFencedLock(client, "order:1", timeout=10):
            return True

    monkeypatch.setattr(signals.lease_acquired, "asend_robust", no_thread)
    signals.lease_acquired.connect(receive)
    try:
        assert in_loop(work)
    finally:
        signals.lease_acquired.disconnect(receive)
    assert "could not send a signal" in caplog.text


def test_a_lease_without_end_cannot_be_extended(in_loop):
    async def work(client):
        async with AsyncFencedLock(client, "order:1") as lock:
            assert lock.remaining() is None
            with pytest.raises(LeaseHasNoEnd):
                await lock.extend(1)
            with pytest.raises(LeaseHasNoEnd):
                await lock.reacquire()

    in_loop(work)


def test_an_error_of_the_body_wins_over_a_lost_lease(in_loop, r, caplog):
    async def work(client):
        with pytest.raises(KeyError):
            async with AsyncFencedLock(client, "order:1", timeout=10):
                r.delete("order:1")
                raise KeyError
        async with AsyncFencedLock(client, "order:1", timeout=10, raise_on_release_error=False):
            r.delete("order:1")
        with pytest.raises(LeaseLost):
            async with AsyncFencedLock(client, "order:1", timeout=10):
                r.delete("order:1")

    in_loop(work)


def test_leases_are_renewed_by_one_task_that_ends_with_them(in_loop, r):
    async def work(client):
        before = asyncio.all_tasks()
        locks = [AsyncFencedLock(client, f"order:{number}", timeout=1, renew=True) for number in range(20)]
        for lock in locks:
            await lock.acquire()
        assert len([task for task in asyncio.all_tasks() if task.get_name() == "fenced-locks-renewal"]) == 1
        await asyncio.sleep(1.5)
        for lock in locks:
            await lock.ensure_held()
            assert not lock.lost.is_set()
            await lock.release()
        await until(lambda: not [task for task in asyncio.all_tasks() - before if "renewal" in task.get_name()])

    in_loop(work)
    assert r.keys("order:*") == []


def test_a_renewed_lease_that_is_taken_away_is_lost_and_never_acquired_again(in_loop, r):
    async def work(client):
        lock = AsyncFencedLock(client, "order:1", timeout=0.3, renew=True)
        await lock.acquire()
        r.delete("order:1")
        assert await asyncio.wait_for(lock.lost.wait(), 5)
        assert not r.exists("order:1")

    in_loop(work)


def test_a_lock_that_was_forgotten_is_renewed_no_more(in_loop, r):
    async def work(client):
        lock = AsyncFencedLock(client, "order:1", timeout=0.3, renew=True)
        await lock.acquire()
        gone = weakref.ref(lock)
        del lock
        gc.collect()
        assert gone() is None
        await until(lambda: not r.exists("order:1"), 5)

    in_loop(work)


def test_lost_replies_are_ours_to_repeat(in_loop, proxy, r):
    async def work(client):
        lock = AsyncFencedLock(client, "order:1", timeout=10, blocking_timeout=5)
        async with lock:
            pass
        for fault in (proxy.drop_reply, proxy.drop_request):
            fault(SCRIPT)
            assert await lock.acquire()
            assert r.get("order:1") == lock.owner_id.encode()
            assert int(r.get("fence:{order:1}")) == lock.fence_token
            fault(SCRIPT)
            await lock.release()
            assert not r.exists("order:1")

    in_loop(work, url=proxy.url)


def test_a_mute_server_ends_an_acquire_at_its_deadline(in_loop, proxy, r):
    async def work(client):
        lock = AsyncFencedLock(client, "order:1", timeout=10)
        async with lock:
            pass
        proxy.mute()
        started = time.monotonic()
        with pytest.raises(OutcomeUnknown):
            await lock.acquire(blocking_timeout=1)
        assert time.monotonic() - started < 3
        proxy.unmute()
        await until(lambda: not r.exists("order:1"), 5)

    in_loop(work, url=proxy.url)


class At:
    """Cancels a task when it waits for the `number`-th time."""

    def __init__(self, number):
        self.left, self.happened = number, False

    async def run(self, coroutine):
        """Drive the coroutine as a task would, and cancel it at that await."""
        task = asyncio.ensure_future(coroutine)
        for _ in range(self.left):
            if task.done():
                break
            await asyncio.sleep(0)
        if not task.done():
            self.happened = True
            task.cancel()
        return await task


def test_cancelled_at_any_turn_of_the_loop_an_acquire_leaves_nothing(in_loop, r):
    async def work(client):
        async with AsyncFencedLock(client, "warm-up"):
            pass
        reached = 0
        for number in range(400):
            lock = AsyncFencedLock(client, "order:1", timeout=60)
            at = At(number)
            try:
                await at.run(lock.acquire())
            except asyncio.CancelledError:
                reached += 1
                assert not r.exists(*KEYS), number
                assert lock.fence_token is None
            else:
                await lock.release()
                break
        assert reached > 3

    in_loop(work)


def test_cancelled_while_it_waits_a_waiter_leaves_no_trace_and_passes_its_turn_on(in_loop, r):
    async def work(client):
        for number in (0, 1, 2, 3, 5, 8, 13, 40):
            holder = AsyncFencedLock(client, "order:1", timeout=60)
            await holder.acquire()
            unlucky = asyncio.create_task(AsyncFencedLock(client, "order:1", timeout=60).acquire())
            other = AsyncFencedLock(client, "order:1", timeout=60, thread_local=False)
            for _ in range(number):
                await asyncio.sleep(0)
            lucky = asyncio.create_task(other.acquire(blocking_timeout=10))
            await until(lambda: r.zcard("queue:{order:1}"))
            release = asyncio.create_task(holder.release()) if number % 2 else None
            unlucky.cancel()
            if release is None:
                await holder.release()
            else:
                with pytest.raises(NotHeld):
                    await release
                await holder.release()
            with pytest.raises(asyncio.CancelledError):
                await unlucky
            assert await lucky
            await other.release()
            assert not r.exists(*KEYS)
            assert waiting() == 0

    in_loop(work)


def test_cancelled_at_any_turn_of_the_loop_a_release_still_releases(in_loop, r):
    async def work(client):
        for number in range(40):
            lock = AsyncFencedLock(client, "order:1", timeout=60, thread_local=False)
            await lock.acquire()
            at = At(number)
            try:
                await at.run(lock.release())
            except asyncio.CancelledError:
                # Before its first step a task does nothing at all.
                if number == 0:
                    await lock.release()
            assert not r.exists(*KEYS), number
            assert lock.fence_token is None
            if not at.happened:
                break

    in_loop(work)


def test_a_time_out_around_an_acquire_leaves_nothing(in_loop, r):
    plain = redis.lock.Lock(r, "order:1", timeout=60)
    plain.acquire()

    async def work(client):
        lock = AsyncFencedLock(client, "order:1", timeout=60)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(lock.acquire(), 0.2)
        if hasattr(asyncio, "timeout"):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await lock.acquire()
        assert waiting() == 0
        assert not r.exists("queue:{order:1}")
        plain.release()
        await lock.acquire(blocking=False)
        await lock.release()

    in_loop(work)
    assert not r.exists(*KEYS)


def test_an_issuer_that_refuses_leaves_no_lease(in_loop, r):
    r.set("fence:{order:1}", "no number")

    async def work(client):
        with pytest.raises(IssuerError, match="is not a number"):
            await AsyncFencedLock(client, "order:1", timeout=10).acquire()

    in_loop(work)
    assert not r.exists("order:1")


def test_an_override_of_do_acquire_is_asked_for_every_try(in_loop, r):
    seen = []

    class Watched(AsyncFencedLock):
        async def do_acquire(self, token):
            seen.append(token)
            return await super().do_acquire(token)

    async def work(client):
        async with AsyncFencedLock(client, "order:1", timeout=10):
            waiter = asyncio.create_task(Watched(client, "order:1", timeout=10).acquire())
            await until(lambda: r.zcard("queue:{order:1}"))
        assert await waiter

    in_loop(work)
    assert len(seen) == 2


def test_a_client_that_blocks_is_refused(r):
    with pytest.raises(TypeError, match="needs a client"):
        AsyncFencedLock(r, "order:1")


class TestFromTheSettings:
    def test_it_re_enters_in_its_task_only(self, r):
        async def work():
            async with afenced_lock("order:1") as outer:
                async with afenced_lock("order:1") as inner:
                    assert inner.fence_token == outer.fence_token
                assert r.exists("order:1")

                async def child():
                    with pytest.raises(LockNotAcquired, match="this very process"):
                        async with afenced_lock("order:1", blocking_timeout=0.05):
                            pytest.fail("must not run")

                await asyncio.create_task(child())
            assert not r.exists("order:1")

        asyncio.run(work())

    def test_it_works_in_every_loop_one_after_the_other_and_at_once(self, r):
        async def work():
            async with afenced_lock("order:1") as lock:
                return lock.fence_token

        tokens = [asyncio.run(work()), async_to_sync(work)(), asyncio.run(work())]
        tokens += sorted(run_threads(*[lambda: asyncio.run(work()) for _ in range(4)]))
        assert tokens == sorted(set(tokens))
        assert not r.exists(*KEYS)

    def test_a_hold_is_not_re_entered_through_another_sync_to_async_call(self, r):
        """In the same worker thread, a child task with a copy of the context would look like the holder."""

        def enter():
            lock = fenced_lock("order:1")
            lock.__enter__()
            with fenced_lock("order:1") as nested:
                assert nested.fence_token == lock.fence_token
            return lock

        def try_again():
            with pytest.raises(LockNotAcquired, match="this very process"), fenced_lock("order:1", blocking_timeout=0):
                pytest.fail("must not run")

        async def work():
            lock = await sync_to_async(enter)()
            await asyncio.create_task(sync_to_async(try_again)())
            await sync_to_async(lock.release)()

        asyncio.run(work())
        assert not r.exists("order:1")

    def test_the_database_issuer_serves_tasks(self, r, transactional_db):
        async def work():
            tokens = []
            for _ in range(3):
                async with afenced_lock("order:1", issuer="database") as lock:
                    tokens.append(lock.fence_token)
            return tokens

        assert async_to_sync(work)() == [1, 2, 3]
        wait_until(lambda: not r.exists("order:1"))
