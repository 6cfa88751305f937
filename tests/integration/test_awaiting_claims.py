"""The claim that goes out the moment that a task's ticket comes; for threads see ``test_waiting_claims``."""

import asyncio
import threading

import pytest
from redis import asyncio as aioredis

from fenced_locks import AsyncFencedLock, FencedLock
from fenced_locks.issuers import ClockIssuer
from fenced_locks.locks.steps import RELEASE
from tests.helpers import until, wait_until
from tests.waiters import is_claim, registered

KEY, COUNTER, QUEUE, WAKE = "order:1", "fence:{order:1}", "queue:{order:1}", "wake:{order:1}"


@pytest.fixture
def holder(r):
    lock = FencedLock(r, KEY, timeout=60, thread_local=False)
    lock.acquire()
    return lock


def acquiring(url, r, holder, work, *, lock_class=AsyncFencedLock):
    """Wait for the lock in a task, have the holder release it, and do the rest."""

    async def main():
        async with aioredis.Redis.from_url(url) as client:
            lock = lock_class(client, KEY, timeout=60, blocking_timeout=5)
            task = asyncio.ensure_future(lock.acquire())
            await until(lambda: registered(r))
            await work(lock, task)

    asyncio.run(main())


def test_it_is_on_its_way_before_the_task_learns_of_the_ticket(redis_url, r, holder):
    """And the lease counts from then, not from when the task found out."""

    class Late(AsyncFencedLock):
        tries = 0

        async def do_acquire(self, token):
            self.tries += 1
            if self.tries > 1:
                await until(lambda: r.get(KEY) == token and r.pttl(KEY) < 59_900)
            return await super().do_acquire(token)

    async def work(lock, task):
        holder.release()
        assert await task
        assert lock.remaining() < 59.9
        assert await lock.owned()
        await lock.release()

    acquiring(redis_url, r, holder, work, lock_class=Late)
    assert not r.exists(KEY, QUEUE, WAKE)


def test_a_server_that_has_forgotten_its_script_is_asked_anew(redis_url, r, holder):
    async def work(lock, task):
        r.script_flush()
        holder.release()
        assert await task
        assert lock.fence_token > 0
        assert await lock.owned()
        await lock.release()

    acquiring(redis_url, r, holder, work)
    assert not r.exists(KEY, QUEUE, WAKE)


@pytest.mark.parametrize("fault", ["drop_request", "drop_reply"])
def test_it_is_lost_on_its_way_and_nothing_stays_behind(proxy, r, holder, fault):
    r.script_load(RELEASE.text)
    r.script_load(ClockIssuer().acquire_script.text)

    async def work(lock, task):
        happened = getattr(proxy, fault)(is_claim)
        holder.release()
        assert await task
        happened.wait()
        assert await lock.owned()
        await lock.release()

    acquiring(proxy.url, r, holder, work)
    assert not r.exists(KEY, QUEUE, WAKE)


def test_what_an_override_asks_for_instead_is_what_it_gets(redis_url, r, holder):
    class Named(AsyncFencedLock):
        async def do_acquire(self, token):
            return await super().do_acquire(b"another:" + token)

    async def work(lock, task):
        holder.release()
        assert await task
        assert lock.owner_id.startswith("another:")
        assert await lock.owned()
        await lock.release()

    acquiring(redis_url, r, holder, work, lock_class=Named)
    assert not r.exists(KEY, QUEUE, WAKE)


@pytest.mark.parametrize("late", [False, True])
def test_a_cancellation_before_the_answer_undoes_it(proxy, r, holder, late):
    """Also when the claim comes to the server after everything else that is sent then."""
    r.script_load(RELEASE.text)
    r.script_load(ClockIssuer().acquire_script.text)
    go_on = threading.Event()

    async def work(lock, task):
        if late:
            proxy.delay_request(go_on, is_claim)
        else:
            proxy.delay_reply(go_on, is_claim)
        holder.release()
        await asyncio.to_thread(proxy.wait_for_request, is_claim)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        assert lock.fence_token is None
        await until(lambda: not r.exists(KEY, QUEUE, WAKE))

    acquiring(proxy.url, r, holder, work)
    wait_until(lambda: not r.exists(KEY, QUEUE, WAKE))
