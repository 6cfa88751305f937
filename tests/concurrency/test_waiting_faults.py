"""
What goes wrong while others wait: waiters who die, freeze, give up or are interrupted; locks that become free silently.

A ticket that nobody claims is good for half a second, the claim window; no fault may cost the others more than that.
"""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from redis.lock import Lock

from fenced_locks import FencedLock
from fenced_locks.locks.waiting import JOIN
from fenced_locks.wire import wire_for
from fenced_locks.wire.budget import LIMIT
from fenced_locks.wire.listening import BlockedListener
from tests.helpers import run_threads, wait_until
from tests.waiters import (
    GIVE_UP,
    LOCK,
    QUEUE,
    WAKE,
    age_the_run,
    at_the_gate,
    blocked,
    cycle,
    hold,
    in_order,
    line_up,
    registered,
    wait_for_waiters,
)

CLAIM_WINDOW = 0.5
# How late a waiter may notice what nobody tells it; promised are 0.2 s, on a machine that has nothing else to do.
SOON = 1.0
# How rarely those look by themselves that are to be woken, and how late they are, at most, when they are.
RARELY, WOKEN = 10, 5
MINUTE_MS = 60_000


@pytest.fixture
def holder(r):
    lock = FencedLock(r, LOCK, timeout=30, thread_local=False)
    lock.acquire()
    return lock


@pytest.fixture
def newcomer(client_factory):
    return FencedLock(client_factory(), LOCK, timeout=30, blocking_timeout=GIVE_UP)


def register_the_dead(r, count=1, sleep=0.1):
    """Leave registrations behind whose waiters do not exist."""
    for number in range(count):
        args = (b"dead:%d" % number, b"ticket:%d" % number, b"%d" % (3000 * sleep + 5000))
        wire_for(r).call(JOIN, (LOCK.encode(), QUEUE.encode(), WAKE.encode()), args, 5)


def running(waiter):
    """Return a waiter whose process has started: that takes a while, and the leases of these tests are short."""
    waiter.do(at_the_gate)
    return waiter


def delete(lock):
    lock.redis.delete(LOCK)


def flush(lock):
    lock.redis.flushdb()


class TestWhoIsKilled:
    def test_costs_the_others_nothing_and_leaves_nothing(self, r, holder, queue_up):
        first, second, third, fourth = queue_up(4, sleep=RARELY)
        first.send(signal.SIGKILL)
        third.send(signal.SIGKILL)
        wait_until(lambda: blocked(r) == 2)
        assert registered(r) == 4
        holder.release()
        released = time.monotonic()
        grants = second.answer(), fourth.answer()
        assert in_order(grants)
        assert grants[-1].at - released < WOKEN
        assert not r.exists(LOCK, QUEUE, WAKE)

    def test_while_holding_delays_the_next_until_the_end_of_the_lease_and_no_longer(self, r, make_waiter):
        holder, waiter = make_waiter(timeout=1.5), running(make_waiter(sleep=RARELY))
        started = time.monotonic()
        granted = holder.do(hold)
        # It looks at the end of the lease, and not again for 10 s.
        line_up(r, [waiter])
        holder.send(signal.SIGKILL)
        grant = waiter.answer()
        assert grant.at - started > 1.5 - 0.1
        assert grant.at - granted.at < 1.5 + WOKEN


class TestAThousandDeadWaiters:
    @pytest.fixture
    def crowd(self, r, holder, queue_up):
        for waiter in queue_up(3):
            waiter.send(signal.SIGKILL)
        wait_until(lambda: not blocked(r))
        register_the_dead(r, 1000)
        assert registered(r) == 1003

    @pytest.mark.parametrize("free", [FencedLock.release, delete])
    def test_do_not_keep_newcomers_waiting(self, r, holder, crowd, newcomer, free):
        free(holder)
        started = time.monotonic()
        # Those that do not wait would not have it for a claim window.
        for number in range(20):
            assert cycle(newcomer, blocking=number % 2)
        assert time.monotonic() - started < WOKEN
        assert registered(r) < 1000

    def test_do_not_keep_a_living_one_waiting(self, r, holder, crowd, make_waiter):
        waiter = make_waiter(sleep=RARELY)
        waiter.ask(cycle)
        wait_until(lambda: blocked(r) == 1)
        holder.release()
        released = time.monotonic()
        assert waiter.answer().at - released < WOKEN

    def test_leave_no_keys_after_a_minute(self, r, holder, crowd, newcomer):
        register_the_dead(r, sleep=10)
        assert 0 < r.pttl(QUEUE) <= MINUTE_MS
        holder.release()
        assert 0 < r.pttl(WAKE) <= MINUTE_MS
        cycle(newcomer)
        assert 0 < r.pttl(QUEUE) <= MINUTE_MS
        assert r.pttl(LOCK) <= MINUTE_MS


class TestWhoIsFrozen:
    @pytest.fixture
    def frozen(self, holder, queue_up):
        (waiter,) = queue_up(1)
        waiter.send(signal.SIGSTOP)
        return waiter

    def test_costs_the_others_one_claim_window(self, r, holder, frozen, make_waiter):
        other = make_waiter()
        other.ask(hold)
        wait_for_waiters(r, 2)
        holder.release()
        released = time.monotonic()
        grant = other.answer()
        assert grant.at - released < CLAIM_WINDOW + SOON
        # And it does not believe its ticket when it awakes.
        frozen.send(signal.SIGCONT)
        wait_for_waiters(r, 1)
        other.do(FencedLock.release)
        assert in_order([grant, frozen.answer()])

    def test_keeps_its_ticket_for_that_long(self, r, holder, frozen, newcomer):
        holder.release()
        assert r.get(LOCK).startswith(b"ticket:")
        assert not newcomer.acquire(blocking=False)
        frozen.send(signal.SIGCONT)
        assert frozen.answer()


class TestWhoGivesUp:
    def test_leaves_the_queue(self, r, holder, make_waiter):
        impatient, patient = make_waiter(), running(make_waiter(sleep=RARELY))
        impatient.ask(cycle, blocking_timeout=1.5)
        wait_for_waiters(r, 1)
        line_up(r, [patient])
        assert impatient.answer() is None
        assert (blocked(r), registered(r)) == (1, 1)
        holder.release()
        released = time.monotonic()
        assert patient.answer().at - released < WOKEN

    def test_uses_a_ticket_that_comes_in_that_moment(self, holder, newcomer, monkeypatch):
        hang_up = BlockedListener.hang_up

        def too_late(listener):
            holder.release()
            return hang_up(listener)

        monkeypatch.setattr(BlockedListener, "hang_up", too_late)
        assert newcomer.acquire(blocking_timeout=1)
        newcomer.release()

    def test_costs_the_others_one_claim_window_if_its_ticket_is_lost(
        self, r, holder, proxy, client_factory, make_waiter
    ):
        unlucky = FencedLock(client_factory(proxy.url), LOCK, timeout=30, blocking_timeout=GIVE_UP)
        lost = proxy.drop_reply("BLPOP")

        def others():
            wait_for_waiters(r, 1)
            lucky = make_waiter()
            lucky.ask(cycle)
            wait_for_waiters(r, 2)
            holder.release()
            released = time.monotonic()
            lost.wait()
            grant = lucky.answer()
            assert grant.at - released < CLAIM_WINDOW + SOON
            return grant

        assert in_order(run_threads(others, lambda: cycle(unlucky)))


class TestAnUndeliveredTicket:
    def test_is_taken_by_one_newcomer_alone(self, r, client_factory):
        locks = [FencedLock(client_factory(), LOCK, timeout=30, thread_local=False) for _ in range(8)]
        for _ in range(20):
            register_the_dead(r)
            assert r.get(LOCK) == r.lindex(WAKE, 0) == b"ticket:0:dead:0"
            granted = run_threads(*[lambda lock=lock: lock.acquire(blocking=False) for lock in locks])
            assert sum(granted) == 1
            assert not r.exists(WAKE)
            locks[granted.index(True)].release()
            assert not r.exists(LOCK)


class TestALockThatBecomesFreeSilently:
    @pytest.mark.parametrize("free", [Lock.release, delete, flush])
    def test_is_noticed_soon_and_in_order(self, r, queue_up, free):
        """Of a lease of a minute; FLUSHDB wipes the queue as well."""
        plain = Lock(r, LOCK, timeout=60)
        plain.acquire()
        waiters = queue_up(3)
        free(plain)
        freed = time.monotonic()
        grants = [waiter.answer() for waiter in waiters]
        assert in_order(grants)
        assert grants[0].at - freed < SOON
        assert grants[-1].at - freed < 3 * SOON

    def test_is_noticed_when_its_lease_ends(self, r, make_waiter):
        """Without a look at that moment the next one would come after 10 s."""
        waiters = [running(make_waiter(sleep=RARELY)) for _ in range(3)]
        plain = Lock(r, LOCK, timeout=1.5)
        started = time.monotonic()
        plain.acquire()
        line_up(r, waiters)
        grants = [waiter.answer() for waiter in waiters]
        assert in_order(grants)
        assert 1.5 - 0.1 < grants[0].at - started < 1.5 + WOKEN
        assert grants[-1].at - started < 1.5 + WOKEN


@pytest.fixture
def aside():
    with ThreadPoolExecutor(4) as pool:
        yield pool


class Interruption(BaseException):
    pass


@pytest.fixture
def interrupt():
    """`interrupt(before)` is for other threads: it interrupts the main thread, which calls `before` at that point."""
    actions = []

    def handler(*_):
        actions.pop()()
        raise Interruption

    def interrupt(before=lambda: None):
        actions.append(before)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    usual = signal.signal(signal.SIGUSR1, handler)
    yield interrupt
    signal.signal(signal.SIGUSR1, usual)


class TestWhoIsInterrupted:
    def test_by_the_keyboard_leaves_the_gate_and_the_queue(self, r, holder, make_waiter, queue_up):
        unlucky = make_waiter()
        unlucky.ask(cycle)
        wait_for_waiters(r, 1)
        (other,) = queue_up(1, sleep=RARELY)
        unlucky.send(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            unlucky.answer()
        assert unlucky.do(at_the_gate) == 0
        assert (blocked(r), registered(r)) == (1, 1)
        holder.release()
        released = time.monotonic()
        assert other.answer().at - released < WOKEN
        assert unlucky.do(cycle)

    def test_hands_on_a_ticket_that_it_got_in_that_moment(self, r, holder, newcomer, queue_up, interrupt, aside):
        released = []

        def release():
            holder.release()
            released.append(time.monotonic())

        def meanwhile():
            wait_for_waiters(r, 1)
            (other,) = queue_up(1, sleep=RARELY)
            interrupt(release)
            return other.answer()

        grant = aside.submit(meanwhile)
        with pytest.raises(Interruption):
            newcomer.acquire()
        assert grant.result(GIVE_UP).at - released[0] < WOKEN
        assert not r.exists(LOCK, QUEUE, WAKE)

    def test_further_back_leaves_the_order_of_the_others(self, r, holder, newcomer, interrupt, aside):
        def queue_up_thread():
            before = at_the_gate()
            grant = aside.submit(cycle, newcomer)
            wait_until(lambda: at_the_gate() > before)
            return grant

        def meanwhile():
            wait_until(lambda: at_the_gate() == 2)
            last = queue_up_thread()
            interrupt()
            return last

        first = queue_up_thread()
        last = aside.submit(meanwhile)
        with pytest.raises(Interruption):
            newcomer.acquire()
        last = last.result(GIVE_UP)
        assert at_the_gate() == 2
        holder.release()
        assert in_order([first.result(GIVE_UP), last.result(GIVE_UP)])
        assert not r.exists(LOCK, QUEUE, WAKE)

    def test_while_its_connection_is_made_takes_no_place_from_others(
        self, r, holder, client_factory, aside, monkeypatch
    ):
        def interrupted():
            raise Interruption

        # Of a name of its own, so that it shares no connection that is there already.
        newcomer = FencedLock(client_factory(client_name="interrupted"), LOCK, timeout=30)
        monkeypatch.setattr(newcomer._wire._listeners, "make", interrupted)
        for _ in range(2 * LIMIT):
            with pytest.raises(Interruption):
                newcomer.acquire()
        monkeypatch.undo()
        grant = aside.submit(cycle, newcomer)
        wait_for_waiters(r, 1)
        holder.release()
        assert grant.result(GIVE_UP)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_queues_at_a_gate_of_its_own(r, holder, newcomer, aside):
    parents = aside.submit(cycle, newcomer)
    wait_for_waiters(r, 1)
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if at_the_gate() == 0 and cycle(newcomer, blocking_timeout=10) else 1)
        finally:
            os._exit(2)
    try:
        wait_for_waiters(r, 2)
        holder.release()
        assert parents.result(GIVE_UP)
    finally:
        assert os.waitpid(child, 0)[1] == 0


def test_a_waiter_is_woken_at_once_however_long_the_lease_was(r, holder, queue_up):
    """A long wait is no run of hand-overs; in a turn of the locks that poll this one would not look before 10 s."""
    (waiter,) = queue_up(1, sleep=RARELY)
    age_the_run(r)
    holder.release()
    released = time.monotonic()
    assert waiter.answer().at - released < WOKEN


@pytest.mark.parametrize("blocking", [True, False])
def test_the_dead_of_a_long_run_do_not_have_a_newcomer_refused(r, holder, newcomer, blocking):
    """It begins a turn of the locks that poll, and is one of them if it does not wait."""
    register_the_dead(r, 10)
    holder.release()
    newcomer.acquire()
    assert r.zscore(QUEUE, "") > 1
    age_the_run(r)
    newcomer.release()
    assert cycle(newcomer, blocking=blocking)
