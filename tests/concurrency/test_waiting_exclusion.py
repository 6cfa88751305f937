"""One at a time, whoever takes part: plain locks among those that queue, short leases, impatient waiters, and DEL."""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise

import pytest
from redis.exceptions import LockError
from redis.lock import Lock

from fenced_locks import FencedLock
from tests.helpers import run_threads, wait_until
from tests.waiters import GIVE_UP, LOCK, QUEUE, WAKE, age_the_run, blocked


def test_plain_locks_exclude_fenced_ones_and_the_other_way_round(client_factory):
    client = client_factory()
    inside, most = [], []

    def worker(kind):
        lock = kind(client, LOCK, timeout=30, sleep=0.01, blocking_timeout=GIVE_UP)
        for _ in range(10):
            with lock:
                inside.append(kind)
                most.append(len(inside))
                time.sleep(0.001)
                inside.pop()

    run_threads(*[lambda kind=kind: worker(kind) for kind in [Lock, FencedLock] * 4])
    assert most == [1] * 80


@pytest.fixture
def relay(r, client_factory):
    """Two threads that hand the lock to each other for ever, each not before the other one waits; yields the count."""
    client = client_factory()
    count = []
    over = threading.Event()

    def worker():
        lock = FencedLock(client, LOCK, timeout=30, blocking_timeout=GIVE_UP)
        while not over.is_set():
            with lock:
                count.append(lock.fence_token)
                wait_until(lambda: over.is_set() or blocked(r))

    with ThreadPoolExecutor(2) as pool:
        workers = [pool.submit(worker) for _ in range(2)]
        try:
            wait_until(lambda: blocked(r))
            yield count
        finally:
            over.set()
    for worker in workers:
        worker.result()


def test_a_lock_that_goes_from_waiter_to_waiter_is_never_free(r, relay):
    plain = Lock(r, LOCK, timeout=30)
    first = len(relay)
    tries = 0
    while len(relay) < first + 50:
        assert not plain.acquire(blocking=False)
        tries += 1
    assert tries > 50


def try_plainly(client):
    lock = Lock(client, LOCK, timeout=30, sleep=0.01)
    return lock if lock.acquire(blocking_timeout=0.5) else None


def try_without_waiting(client):
    lock = FencedLock(client, LOCK, timeout=30)
    return lock if any(lock.acquire(blocking=False) or time.sleep(0.01) for _ in range(50)) else None


@pytest.mark.parametrize("take", [try_plainly, try_without_waiting])
def test_a_lock_that_polls_gets_its_turn_and_then_the_queue_goes_on(r, relay, take):
    def take_after_a_long_run():
        age_the_run(r)
        return take(r)

    lock = wait_until(take_after_a_long_run)
    before = len(relay)
    lock.release()
    wait_until(lambda: len(relay) > before + 10)
    assert r.zscore(QUEUE, "") > 1


class Schedule:
    """What happened when, by the server's clock in seconds: a token is the moment of its grant."""

    def __init__(self):
        self.holds, self.deletions = [], []

    def overlaps(self):
        ends = [(start, min(end, self._deleted(start, end))) for start, end in sorted(self.holds)]
        return [(one, two) for one, two in pairwise(ends) if two[0] < one[1]]

    def _deleted(self, start, end):
        """Return when the lease may have been deleted at the earliest."""
        return min(
            (max(start, before) for before, after in self.deletions if before < end and start < after), default=end
        )


def test_whatever_times_out_is_late_or_deleted_no_two_hold_at_once_and_nothing_is_left(
    r, client_factory, make_proxy, redis_url
):
    """Three servers, to all appearances, so that the threads queue at three gates."""
    proxies = [make_proxy(redis_url) for _ in range(3)]
    schedule = Schedule()
    until = time.monotonic() + 3

    def goes_on():
        return time.monotonic() < until or len(schedule.holds) <= 100

    def worker(client):
        while goes_on():
            lease = random.choice([0.02, 0.1, 1])
            lock = FencedLock(client, LOCK, timeout=lease, sleep=random.choice([0.02, 0.1, 10]))
            patience = random.choice([0.01, 0.1, 0.3, 1])
            if not lock.acquire(blocking=random.random() < 0.9, blocking_timeout=patience):
                continue
            granted = lock.fence_token / 1e6
            time.sleep(random.choice([0, 0.001, 0.001, 0.001, 0.03]))
            # The server counts whole milliseconds.
            schedule.holds.append((granted, min(time.time(), granted + lease - 0.002)))
            if random.random() < 0.95:
                with suppress(LockError):
                    lock.release()

    def vandal():
        while goes_on():
            time.sleep(random.uniform(0, 0.1))
            if random.random() < 0.2:
                # A ticket that comes after its time.
                random.choice(proxies).delay_reply(0.6, "BLPOP")
            before = time.time()
            r.delete(LOCK)
            schedule.deletions.append((before, time.time()))

    clients = [client_factory(proxy.url) for proxy in proxies * 3]
    run_threads(vandal, *[lambda client=client: worker(client) for client in clients])
    assert schedule.overlaps() == []
    with FencedLock(r, LOCK, timeout=30, blocking_timeout=GIVE_UP):
        pass
    wait_until(lambda: not blocked(r) and not r.exists(LOCK, QUEUE, WAKE), 2)
