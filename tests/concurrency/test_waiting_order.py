"""First come, first served: who waits for a lock gets it in the order of arrival, and nobody more often than others."""

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from fenced_locks import FencedLock
from tests.helpers import wait_until
from tests.waiters import (
    GIVE_UP,
    LOCK,
    QUEUE,
    at_the_gate,
    blocked,
    compete,
    cycle,
    hold,
    in_order,
    looks,
    registered,
    wait_for_waiters,
)


@pytest.fixture
def holder(r):
    lock = FencedLock(r, LOCK, timeout=30, thread_local=False)
    lock.acquire()
    return lock


@pytest.fixture
def pool():
    with ThreadPoolExecutor(64) as pool:
        yield pool


@pytest.fixture
def queue_up_threads(client_factory, pool):
    """`queue_up_threads(count)` starts that many; each waits for the lock before the next one begins to."""
    client = client_factory()

    def start(count, **options):
        grants = []
        for _ in range(count):
            before = at_the_gate()
            lock = FencedLock(client, LOCK, timeout=30, **{"blocking_timeout": GIVE_UP, **options})
            grants.append(pool.submit(cycle, lock))
            wait_until(lambda before=before: at_the_gate() > before)
        return grants

    return start


@contextlib.contextmanager
def keeping_a_short_lease(r, pool, waiters):
    """Hold the lock, extend and reacquire it many times, and release it after each waiter has looked three times."""

    def keep():
        while not stop.wait(0.02):
            lock.reacquire()
            lock.extend(0.05)

    stop = threading.Event()
    lock = FencedLock(r, LOCK, timeout=0.8, thread_local=False)
    with lock:
        keeping = pool.submit(keep)
        try:
            yield
            seen = looks(r)
            wait_until(lambda: looks(r) >= seen + 3 * waiters, 20)
        finally:
            stop.set()
        keeping.result(5)


def test_processes_get_the_lock_in_the_order_of_their_arrival_and_at_once(holder, queue_up):
    # They would not look by themselves before the test is over.
    waiters = queue_up(8, sleep=10)
    holder.release()
    released = time.monotonic()
    grants = [waiter.answer() for waiter in waiters]
    assert in_order(grants)
    assert grants[-1].at - released < 5


@pytest.mark.parametrize("sleep", [0.1, 10])
def test_the_order_of_processes_outlives_many_leases(r, pool, queue_up, sleep):
    """However long the pause, a waiter looks again when the lease should end, all of them at the same moment."""
    with keeping_a_short_lease(r, pool, waiters=8):
        waiters = queue_up(8, sleep=sleep)
    assert in_order([waiter.answer() for waiter in waiters])


def test_threads_get_the_lock_in_the_order_of_their_arrival_and_at_once(holder, queue_up_threads):
    grants = queue_up_threads(64, sleep=10)
    holder.release()
    released = time.monotonic()
    grants = [grant.result(GIVE_UP) for grant in grants]
    assert in_order(grants)
    assert grants[-1].at - released < 5


def test_the_order_of_threads_outlives_many_leases(r, pool, queue_up_threads):
    with keeping_a_short_lease(r, pool, waiters=1):
        grants = queue_up_threads(63)
    assert in_order([grant.result(GIVE_UP) for grant in grants])


def test_threads_that_give_up_leave_the_order_of_the_others(holder, queue_up_threads):
    impatient, patient = [], []
    for _ in range(4):
        impatient += queue_up_threads(2, blocking_timeout=1.5)
        patient += queue_up_threads(2)
    assert [grant.result(GIVE_UP) for grant in impatient] == [None] * 8
    assert at_the_gate() == 8
    holder.release()
    assert in_order([grant.result(GIVE_UP) for grant in patient])


def test_a_process_queues_once_however_many_of_its_threads_wait(r, holder, queue_up_threads):
    grants = queue_up_threads(8)
    wait_for_waiters(r, 1)
    assert registered(r) == 1
    holder.release()
    assert in_order([grant.result(GIVE_UP) for grant in grants])
    wait_until(lambda: not blocked(r))
    assert not r.exists(LOCK, QUEUE)


def test_a_newcomer_who_finds_the_lock_free_waits_behind_the_others(r, holder, queue_up, client_factory):
    waiters = queue_up(2, sleep=10)
    r.delete(LOCK)
    newcomer = cycle(FencedLock(client_factory(), LOCK, timeout=30))
    assert in_order([*(waiter.answer(5) for waiter in waiters), newcomer])


def test_a_newcomer_who_does_not_wait_leaves_a_free_lock_to_who_does(r, holder, queue_up, client_factory):
    # The first one keeps it: the newcomer asks twice, and two who release at once may be through by then.
    (waiter,) = queue_up(1, hold, sleep=10)
    r.delete(LOCK)
    assert not FencedLock(client_factory(), LOCK, timeout=30).acquire(blocking=False)
    assert waiter.answer(5)


def test_threads_get_equal_shares(holder, client_factory, pool):
    client = client_factory()
    grants = [0] * 64

    def worker(number):
        lock = FencedLock(client, LOCK, timeout=30, blocking_timeout=GIVE_UP)
        while True:
            with lock:
                if sum(grants) >= 20 * len(grants):
                    return
                grants[number] += 1
                # As in `compete`.
                wait_until(lambda: at_the_gate() == len(grants) - 1, interval=0.0005)

    workers = [pool.submit(worker, number) for number in range(len(grants))]
    wait_until(lambda: at_the_gate() == len(grants))
    holder.release()
    for worker in workers:
        worker.result(GIVE_UP)
    assert max(grants) - min(grants) <= 2


def test_processes_get_equal_shares(r, holder, make_waiter):
    waiters = [make_waiter(blocking_timeout=GIVE_UP) for _ in range(8)]
    for waiter in waiters:
        waiter.ask(compete, others=len(waiters) - 1, limit=25 * len(waiters))
    wait_for_waiters(r, len(waiters))
    holder.release()
    shares = [waiter.answer() for waiter in waiters]
    assert sum(shares) == 25 * len(waiters)
    assert max(shares) - min(shares) <= 2
