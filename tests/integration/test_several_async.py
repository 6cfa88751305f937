"""Several resources for tasks: what the locks that block promise, and cancellations that leave nothing behind."""

import asyncio
import contextlib
import threading
import time

import pytest
from asgiref.sync import sync_to_async

from fenced_locks import (
    FencedLock,
    IssuerError,
    LeaseLost,
    LockNotAcquired,
    NotHeld,
    OutcomeUnknown,
    afenced_lock,
    fenced_lock,
    signals,
)
from fenced_locks.reentrant import AsyncReentrantLock
from fenced_locks.several import AsyncReentrantLocks
from tests.helpers import wait_until
from tests.several import NAMES, Failing, Later, confirmed, held, is_release, is_renewal, keys_of, nothing_is_left
from tests.waiters import registered

FIRST, SECOND, THIRD = NAMES


def run(function, *args):
    async def main():
        return await asyncio.wait_for(function(*args), 30)

    return asyncio.run(main())


@pytest.fixture(autouse=True)
def _empty(r):
    yield
    # Also what was undone behind a cancelled task.
    wait_until(lambda: not registered(r, "queue:{zone:9}"), 2)


@pytest.fixture
def through(settings, proxy):
    """The proxy through which the cache alias ``cut`` reaches the server."""
    settings.CACHES = {**settings.CACHES, "cut": {**settings.CACHES["plain"], "LOCATION": proxy.url}}
    return proxy


@pytest.fixture
def other(r):
    """``other(name)`` has a resource taken by somebody else, in any thread."""

    def take(name, timeout=60):
        lock = FencedLock(r, name, timeout=timeout, thread_local=False)
        assert lock.acquire(blocking=False)
        return lock

    return take


async def cancelled_after(turns, coroutine, *, again=False):
    """Cancel after so many turns of the loop; and once more in every turn after that."""
    task = asyncio.ensure_future(coroutine)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    while again and not task.done():
        await asyncio.sleep(0)
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        return await task
    return "cancelled"


def cancel_everywhere(work, outcome):
    """Run ``work(turns)``, which is cancelled after so many turns, until that is too late; return how often it was."""
    outcomes = []
    while outcomes.count(outcome) < 3:
        outcomes.append(run(work, len(outcomes)))
        assert len(outcomes) < 1000
    return outcomes.count("cancelled")


def test_every_resource_has_its_token_and_its_whole_lease(r):
    async def work():
        assert isinstance(afenced_lock(FIRST), AsyncReentrantLock)
        async with afenced_lock(SECOND, FIRST, SECOND, timeout=7) as locks:
            assert isinstance(locks, AsyncReentrantLocks)
            assert list(locks.fence_tokens) == [SECOND, FIRST]
            assert locks.fence_tokens[FIRST] == int(r.get(f"fence:{{{FIRST}}}"))
            assert await locks.ensure_held() == locks.fence_tokens
            assert 6 < locks.remaining() <= 7
            assert held(r) == 2
            with pytest.raises(TypeError, match=r"use fence_tokens\['stock:x'\]"):
                _ = locks.fence_token
            # In a worker thread the lease is nobody's, and the tokens can still be read.
            tokens = locks.fence_tokens
            assert await sync_to_async(lambda: tokens[FIRST])() == tokens[FIRST]

    run(work)
    assert nothing_is_left(r)


def test_they_are_taken_in_order_renewed_in_one_round_trip_and_given_back_in_reverse(through):
    async def work():
        async with afenced_lock("warm-up", using="cut"):
            pass
        async with afenced_lock(*NAMES, using="cut"):
            pass
        through.forget()
        answer = threading.Event()
        through.delay_reply(answer, is_renewal)
        task = asyncio.ensure_future(afenced_lock(*reversed(NAMES), using="cut").acquire())
        await asyncio.to_thread(through.wait_for_request, is_renewal, 10, count=3)
        assert not task.done()
        answer.set()
        assert await task
        assert keys_of(through.calls("EVALSHA")) == [*NAMES, *NAMES]
        through.forget()

        locks = afenced_lock(*NAMES, using="plain")
        assert not await locks.acquire(blocking=False)

    run(work)
    assert not through.calls(is_release)


def test_they_are_given_back_in_reverse(through, r):
    async def work():
        async with afenced_lock(*NAMES, using="cut"):
            through.forget()
        assert keys_of(through.calls("EVALSHA")) == list(reversed(NAMES))

    run(work)
    assert nothing_is_left(r)


@pytest.mark.parametrize("at", NAMES)
def test_all_or_none_when_one_is_busy(at, other, r):
    holder = other(at)

    async def work():
        with pytest.raises(LockNotAcquired, match=f"'{at}' is busy: held by {holder.owner_id}") as failure:
            await afenced_lock(*NAMES, blocking_timeout=0.05).__aenter__()
        assert (failure.value.resource, failure.value.owner_id) == (at, holder.owner_id)
        assert not await afenced_lock(*NAMES).acquire(blocking=False)
        assert not await afenced_lock(*NAMES).acquire(blocking_timeout=0)
        assert held(r) == 1

    run(work)
    holder.release()
    assert nothing_is_left(r)


@pytest.mark.parametrize("at", NAMES)
@pytest.mark.parametrize("error", [ValueError, ZeroDivisionError])
def test_all_or_none_when_an_issuer_fails(at, error, r):
    def fail():
        assert held(r) == NAMES.index(at) + 1
        raise error

    async def work():
        with pytest.raises(IssuerError, match=error.__name__):
            await afenced_lock(*NAMES, issuer=Failing(at, fail)).acquire()
        assert nothing_is_left(r)

    run(work)


def test_a_lost_reply_to_the_renewal(through, r):
    async def work():
        through.drop_reply(is_renewal)
        async with afenced_lock(*NAMES, using="cut", timeout=5) as locks:
            assert held(r) == len(locks.fence_tokens) == 3
        through.drop_reply(is_renewal, times=100)
        with pytest.raises(OutcomeUnknown, match="acquire of 'order:1' was sent"):
            await afenced_lock(*NAMES, using="cut", blocking_timeout=0.6).acquire()
        assert nothing_is_left(r)

    run(work)


@pytest.mark.parametrize("again", [False, True])
def test_cancelled_at_any_point_nothing_is_left(again, r):
    async def work(turns):
        locks = afenced_lock(*NAMES)
        outcome = await cancelled_after(turns, locks.acquire(), again=again)
        if outcome is True:
            await locks.release()
        # At once, not when the leases end.
        wait_until(lambda: nothing_is_left(r), 1)
        return outcome

    assert cancel_everywhere(work, True) > 10


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("at", NAMES)
def test_cancelled_at_any_point_while_one_is_awaited(at, again, other, r):
    holder = other(at)

    async def work(turns):
        outcome = await cancelled_after(turns, afenced_lock(*NAMES, timeout=0.5).acquire(), again=again)
        assert outcome == "cancelled"
        wait_until(lambda: held(r) == 1 and not registered(r, f"queue:{{{at}}}"), 1)

    for turns in range(60):
        run(work, turns)
    holder.release()
    assert nothing_is_left(r)


@pytest.mark.parametrize("again", [False, True])
def test_a_release_that_is_cancelled_at_any_point_releases_all(again, r):
    async def work(turns):
        locks = afenced_lock(*NAMES)
        # By a task that is done, so that any task may release.
        assert await asyncio.create_task(locks.acquire())
        outcome = await cancelled_after(turns, locks.release(), again=again)
        if turns:
            assert nothing_is_left(r)
        else:
            await locks.release()
        return outcome

    assert cancel_everywhere(work, None) > 5


@pytest.mark.parametrize("again", [False, True])
def test_a_block_that_is_cancelled_at_any_point_gives_all_back(again, r):
    async def block():
        async with afenced_lock(FIRST):
            async with afenced_lock(*NAMES) as locks:
                await locks.ensure_held()

    async def work(turns):
        outcome = await cancelled_after(turns, block(), again=again)
        wait_until(lambda: nothing_is_left(r), 1)
        return outcome

    assert cancel_everywhere(work, None) > 20


def test_wait_for_leaves_nothing_behind(other, r):
    other(THIRD)

    async def work():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(afenced_lock(*NAMES).acquire(), 0.1)
        assert held(r) == 1

    run(work)


def test_a_loop_that_ends_gives_all_back(r):
    async def work():
        async def hang():
            async with afenced_lock(*NAMES):
                started.set()
                await asyncio.Event().wait()

        started = asyncio.Event()
        task = asyncio.ensure_future(hang())
        await started.wait()
        return task

    run(work)
    assert nothing_is_left(r)


@pytest.mark.parametrize("renew", [False, True])
def test_a_lease_of_one_second_outlasts_the_wait_and_is_whole_at_entry(renew, other, through, r):
    last = other(THIRD)

    async def work():
        async with afenced_lock(*NAMES, timeout=1, renew=renew, using="cut") as locks:
            assert held(r) == 3
            assert 0 < locks.remaining() <= 1
            assert confirmed(through.calls()) == [(name, 1000) for name in NAMES]
            taken = [command for command in through.calls(("EVALSHA", "EVAL")) if command[2] == b"4"]
            assert len({command[4] for command in taken}) == 3
            # Not renewed any more, unless that was asked for.
            assert await locks.ensure_held()
            if not renew:
                await asyncio.wait_for(locks.lost.wait(), 5)
                await asyncio.to_thread(wait_until, lambda: not held(r), 1)

    with Later(1.5, last.release), contextlib.nullcontext() if renew else pytest.raises(LeaseLost):
        run(work)
    assert nothing_is_left(r)


def test_what_ended_meanwhile_is_taken_anew(other, r):
    last = other(SECOND)

    def lose():
        r.set(FIRST, "somebody", px=200)
        last.release()

    async def work():
        async with afenced_lock(FIRST, SECOND, blocking_timeout=5) as locks:
            assert await locks.ensure_held() == locks.fence_tokens

    with Later(0.2, lose):
        run(work)
    assert nothing_is_left(r)


def test_it_has_one_deadline(other):
    first, _ = other(FIRST), other(SECOND)

    async def work():
        started = time.monotonic()
        with pytest.raises(LockNotAcquired, match="'stock:x' is busy"):
            await afenced_lock(*NAMES, blocking_timeout=1.8).__aenter__()
        assert 1.8 <= time.monotonic() - started < 2.5

    with Later(0.8, first.release):
        run(work)


def test_what_is_held_is_entered_and_stays_with_the_outer_lock(r):
    async def child():
        return await afenced_lock(*NAMES).acquire(blocking=False)

    async def work():
        async with afenced_lock(SECOND) as outer:
            async with afenced_lock(*NAMES) as locks:
                assert locks.fence_tokens[SECOND] == outer.fence_token
                async with afenced_lock(*NAMES) as inner:
                    assert inner.fence_tokens == locks.fence_tokens
                assert held(r) == 3
                assert await asyncio.create_task(child()) is False
            assert await outer.ensure_held() == outer.fence_token
            assert held(r) == 1

    run(work)
    assert nothing_is_left(r)


def test_one_that_is_entered_again_and_lost_while_others_are_awaited(other, r):
    last, lost = other(THIRD), []

    async def note(sender, resource, **details):
        lost.append(resource)

    def lose():
        r.delete(FIRST)
        last.release()

    async def work():
        async with afenced_lock(FIRST, raise_on_release_error=False):
            with pytest.raises(LeaseLost, match=r"cannot re-enter .*while others were awaited"):
                await afenced_lock(*NAMES).acquire()
            # Said when the error is raised, and not some time later.
            assert lost == [FIRST]
            assert not held(r)

    signals.lease_lost.connect(note)
    with Later(0.2, lose):
        run(work)
    signals.lease_lost.disconnect(note)


@pytest.mark.parametrize("at", NAMES)
def test_all_are_given_back_also_if_one_was_lost(at, r):
    async def work():
        with pytest.raises(LeaseLost, match=at):
            async with afenced_lock(*NAMES) as locks:
                lost = asyncio.ensure_future(locks.lost.wait())
                await asyncio.sleep(0)
                r.delete(at)
                with pytest.raises(LeaseLost, match="rely on"):
                    await locks.ensure_held()
                assert await lost
        with pytest.raises(NotHeld):
            await locks.release()

    run(work)
    assert nothing_is_left(r)


def test_another_task_has_no_say_until_the_first_is_done(r):
    async def work():
        locks = afenced_lock(*NAMES)

        async def misuse():
            for use in (locks.release, locks.ensure_held):
                with pytest.raises(NotHeld):
                    await use()
            with pytest.raises(NotHeld):
                _ = locks.fence_tokens

        async with locks:
            await asyncio.create_task(misuse())
        await asyncio.create_task(locks.acquire())
        assert len(locks.fence_tokens) == 3
        await locks.release()

    run(work)
    assert nothing_is_left(r)


def test_a_generator_that_another_task_closes_gives_all_back(r):
    async def numbers():
        async with afenced_lock(*NAMES):
            yield 1

    async def work():
        generator = numbers()
        await generator.__anext__()
        await asyncio.create_task(generator.aclose())
        assert nothing_is_left(r)

    run(work)


def test_tasks_and_threads_exclude_each_other(r):
    async def work():
        async with afenced_lock(*NAMES):
            blocking = sync_to_async(lambda: fenced_lock(*NAMES).acquire(blocking=False), thread_sensitive=False)
            assert await blocking() is False

    run(work)
    assert nothing_is_left(r)
