"""Renewal, loss and re-entry at the edges: what an attack on them found."""

import asyncio
import gc
import logging
import os
import threading

import pytest
from asgiref.sync import sync_to_async
from redis.asyncio import Redis as AsyncRedis

from fenced_locks import AsyncFencedLock, FencedLock, LeaseLost, NotHeld, fenced_lock, signals
from fenced_locks.locks.async_renewal import renewer_of_loop
from fenced_locks.locks.renewal import Agenda, Renewal, renewer
from tests.helpers import run_threads, until, wait_until


def run(work, url, **options):
    async def main():
        client = AsyncRedis.from_url(url, **options)
        try:
            return await asyncio.wait_for(work(client), 30)
        finally:
            await client.aclose()

    return asyncio.run(main())


def test_extending_a_renewed_lease_adds_to_its_present_end(r):
    with FencedLock(r, "order:1", timeout=1, renew=True) as lock:
        assert not lock.lost.wait(1.5)
        # As far as it is known here: the reply to a renewal may be on its way.
        ended = lock._lease.server_end_ms
        lock.extend(5)
        extended = r.pexpiretime("order:1")
        assert extended >= ended + 5_000
        before, left, after = lock.remaining(), r.pttl("order:1") / 1000, lock.remaining()
        assert after - 0.05 < left < before + 0.05
        lock.extend(0.1)
        assert r.pexpiretime("order:1") > extended


def test_extending_never_shortens_a_lease_that_was_made_longer_meanwhile(r):
    with FencedLock(r, "order:1", timeout=10) as lock:
        r.pexpire("order:1", 60_000)
        lock.extend(1)
        assert r.pttl("order:1") > 50_000


def test_a_renewed_lease_that_was_shortened_by_hand_is_renewed_in_time(r):
    with FencedLock(r, "order:1", timeout=30, renew=True) as lock:
        lock.extend(1, replace_ttl=True)
        assert not lock.lost.wait(2)
        lock.ensure_held()


def test_a_thread_that_cannot_be_started_leaves_no_lease_and_is_tried_again(r, monkeypatch):
    gc.collect()
    monkeypatch.setattr("fenced_locks.locks.renewal._IDLE_SECONDS", 0.01)
    # Also one that has nothing to do any more; forgotten, it would be a second one for the tests that follow.
    renewer.look()
    wait_until(lambda: renewer._thread is None)
    start = threading.Thread.start
    failing = iter([True])

    def fail_once(thread):
        if thread.name == "fenced-locks-renewal" and next(failing, False):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fail_once)
    lock = FencedLock(r, "order:1", timeout=1, renew=True)
    with pytest.raises(RuntimeError, match="can't start"):
        lock.acquire()
    assert not r.exists("order:1")
    assert lock.fence_token is None
    with lock:
        assert not lock.lost.wait(1.5)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_receiver_that_wants_to_exit_neither_ends_renewal_nor_has_it_renew_all_the_time(r):
    called, calls = threading.Event(), []

    def leave(sender, **details):
        calls.append(details)
        called.set()
        raise SystemExit

    signals.lease_renewed.connect(leave)
    try:
        with FencedLock(r, "order:1", timeout=1, renew=True) as lock:
            assert called.wait(5)
            assert not lock.lost.wait(1.5)
        # At a third of the lease: five or six.
        assert len(calls) < 20
    finally:
        signals.lease_renewed.disconnect(leave)


def test_a_log_filter_that_raises_does_not_have_a_loop_renew_all_the_time(r, redis_url):
    renewed = []

    def refuse(record):
        if record.getMessage().startswith("renewed"):
            renewed.append(record)
            raise ValueError("a filter of a user")
        return True

    async def work(client):
        async with AsyncFencedLock(client, "order:1", timeout=1, renew=True) as lock:
            await asyncio.sleep(1.5)
            return await lock.ensure_held()

    logger = logging.getLogger("fenced_locks.locks.holding")
    before = logger.level
    logger.addFilter(refuse)
    logger.setLevel(logging.DEBUG)
    try:
        assert run(work, redis_url)
    finally:
        logger.setLevel(before)
        logger.removeFilter(refuse)
    assert 0 < len(renewed) < 20


def test_a_lease_known_to_be_lost_is_not_re_entered(r):
    with fenced_lock("order:1", timeout=30, raise_on_release_error=False) as lock:
        r.delete("order:1")
        with pytest.raises(LeaseLost):
            lock.ensure_held()
        with pytest.raises(LeaseLost, match="re-enter"), fenced_lock("order:1"):
            pytest.fail("must not run")


def test_a_shared_lock_keeps_the_lease_that_another_thread_took_while_we_released(r):
    release = FencedLock.do_release

    class Slow(FencedLock):
        def do_release(self, expected_token):
            release(self, expected_token)
            run_threads(self.acquire)

    lock = Slow(r, "order:1", timeout=10, thread_local=False)
    lock.acquire()
    lock.release()
    assert lock.fence_token
    assert r.get("order:1") == lock.owner_id.encode()


def test_an_async_receiver_does_not_break_a_lock_that_blocks_inside_a_loop(r, caplog):
    async def receive(sender, **details):
        """Cannot be awaited from there."""

    async def work():
        with FencedLock(r, "order:1", timeout=10):
            pass

    signals.lease_acquired.connect(receive)
    try:
        asyncio.run(work())
    finally:
        signals.lease_acquired.disconnect(receive)
        gc.collect()
    assert not r.exists("order:1")


def test_leases_that_were_given_back_do_not_pile_up_on_the_agenda(r, monkeypatch):
    # As in a process that has never had many at once.
    monkeypatch.setattr(renewer._agenda, "_tidy_at", 64)
    lock = FencedLock(r, "order:1", timeout=3600, renew=True)
    for _ in range(300):
        with lock:
            pass
    assert len(renewer._agenda._heap) < 200
    assert isinstance(renewer._agenda, Agenda)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_nothing_of_a_lease_is_renewed_by_a_forked_child(r):
    lock = FencedLock(r, "order:1", timeout=10, renew=True)
    with lock:
        renewal: Renewal = lock._lease.renewal
        assert renewal.living()
        child = os.fork()
        if child == 0:
            os._exit(0 if renewal.living() is None else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_a_slow_receiver_does_not_hold_up_renewal_in_a_loop(r, redis_url):
    def receive(sender, **details):
        """Runs in the thread that the work below keeps busy."""

    async def work(client):
        async with AsyncFencedLock(client, "order:1", timeout=1, renew=True) as lock:
            await sync_to_async(threading.Event().wait)(2.5)
            return await lock.ensure_held()

    signals.lease_renewed.connect(receive)
    try:
        assert run(work, redis_url)
    finally:
        signals.lease_renewed.disconnect(receive)


async def cancelled_after(turns, task):
    """Cancel a task so many turns of the loop later; return whether it is, or was done before."""
    for _ in range(turns):
        await asyncio.sleep(0)
    if not task.cancel():
        return True
    await asyncio.wait({task}, timeout=1)
    return task.cancelled()


def test_a_cancellation_in_the_moment_in_which_a_loss_becomes_known_is_not_lost(r, redis_url):
    """Before Python 3.12 ``wait_for`` loses it."""

    async def work(client):
        lost = []
        for turns in range(8):
            lock = AsyncFencedLock(client, "order:1", timeout=60)
            await lock.acquire()
            waiting = asyncio.ensure_future(lock.lost.wait())
            await asyncio.sleep(0.01)
            r.delete("order:1")
            with pytest.raises(LeaseLost):
                await lock.ensure_held()
            if not await cancelled_after(turns, waiting):
                lost.append(turns)
        assert lost == []

    run(work, redis_url)


def test_a_cancellation_in_the_moment_in_which_the_agenda_changes_is_not_lost(r, redis_url):
    """Where a loop ends, it would wait for the task that renews for ever."""

    async def work(client):
        lost = []
        for turns in range(8):
            async with AsyncFencedLock(client, f"order:{turns}", timeout=60, renew=True):
                await asyncio.sleep(0.01)
                (renewing,) = [task for task in asyncio.all_tasks() if task.get_name() == "fenced-locks-renewal"]
                renewer_of_loop().look()
                if not await cancelled_after(turns, renewing):
                    lost.append(turns)
        assert lost == []

    run(work, redis_url)


def test_a_generator_that_another_task_closes_gives_its_lease_back(r, redis_url):
    async def work(client):
        lock = AsyncFencedLock(client, "order:1", timeout=60)

        async def generator():
            async with lock:
                yield 1

        running = generator()
        await running.__anext__()
        assert r.exists("order:1")
        await asyncio.create_task(running.aclose())
        assert not r.exists("order:1")
        async with lock:
            await lock.release()
            with pytest.raises(NotHeld):
                await lock.release()
            await lock.acquire()

    run(work, redis_url)
    assert not r.exists("order:1")


def test_a_block_whose_lease_was_lost_leaves_the_lease_of_the_next_alone(r, redis_url):
    async def work(client):
        lock = AsyncFencedLock(client, "order:1", timeout=60)
        taken, leave = asyncio.Event(), asyncio.Event()

        async def second():
            await lock.acquire()
            taken.set()
            await leave.wait()
            await lock.ensure_held()
            await lock.release()

        with pytest.raises(LeaseLost):
            async with lock:
                r.delete("order:1")
                task = asyncio.create_task(second())
                await taken.wait()
        assert r.exists("order:1")
        leave.set()
        await task

    run(work, redis_url)
    assert not r.exists("order:1")


def test_a_cancelled_release_that_the_server_never_saw_can_be_repeated(proxy, r):
    heard = []

    def receive(sender, **details):
        heard.append(details["resource"])

    async def work(client):
        lock = AsyncFencedLock(client, "order:1", timeout=60, thread_local=False)
        await lock.acquire()
        proxy.refuse()
        proxy.disconnect()
        release = asyncio.create_task(lock.release())
        await until(lambda: proxy.refused)
        release.cancel()
        with pytest.raises(asyncio.CancelledError):
            await release
        assert heard == []
        proxy.admit()
        await lock.release()

    signals.lease_released.connect(receive)
    try:
        run(work, proxy.url)
    finally:
        signals.lease_released.disconnect(receive)
    assert heard == ["order:1"]
    assert not r.exists("order:1")
