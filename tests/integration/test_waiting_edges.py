"""Waiters at the edges: chosen owner ids, overrides, signal handlers, clocks, servers without room, long deadlines."""

import gc
import signal
import threading
import time

import pytest
import redis

from fenced_locks import FencedLock, LockNotAcquired
from fenced_locks.locks.gate import gate
from fenced_locks.locks.steps import RELEASE
from fenced_locks.wire.budget import budget
from tests.helpers import run_threads, wait_until

KEY, QUEUE, WAKE = "order:1", "queue:{order:1}", "wake:{order:1}"
SCRIPT = ("EVALSHA", "EVAL")


@pytest.fixture
def holder(r):
    lock = FencedLock(r, KEY, timeout=60, thread_local=False)
    lock.acquire()
    return lock


def blocked(r):
    return [entry for entry in r.client_list() if entry["cmd"] == "blpop" and "b" in entry["flags"]]


def test_a_copy_that_took_the_same_chosen_id_meanwhile_is_another_holder(proxy, client_factory, r):
    """The reply to storing the id comes after the end of the lease, when the other copy has it under that id."""
    go_on = threading.Event()
    client = client_factory(proxy.url)
    # The scripts are known to the server: the reply that is lost says that the id was stored.
    warm_up = FencedLock(client, "warm-up", timeout=10)
    assert warm_up.acquire(token="warm-up")
    warm_up.release()
    first, second = FencedLock(client, KEY, timeout=0.8), FencedLock(r, KEY, timeout=60, thread_local=False)
    seen = iter(range(1, 100))
    proxy.drop_reply(lambda command: command[0] in (b"EVALSHA", b"EVAL") and b"task-1" in command and next(seen) == 1)
    proxy.delay_request(go_on, lambda command: command[0] in (b"EVALSHA", b"EVAL") and b"task-1" in command)

    def copy():
        wait_until(lambda: r.get(KEY) == b"task-1")
        assert second.acquire(token="task-1", blocking_timeout=5)
        go_on.set()

    got, _ = run_threads(lambda: first.acquire(token="task-1", blocking_timeout=2), copy)
    assert not got
    assert second.owned()


@pytest.mark.parametrize("outcome", ["declines", "raises"])
def test_a_ticket_that_an_override_lets_lie_is_handed_on_at_once(holder, r, outcome):
    class Picky(FencedLock):
        tries = 0

        def do_acquire(self, token):
            self.tries += 1
            if self.tries == 1:
                return super().do_acquire(token)
            if outcome == "raises":
                raise RuntimeError("not now")
            return False

    def picky():
        lock = Picky(r, KEY, timeout=60, blocking_timeout=1)
        if outcome == "raises":
            with pytest.raises(RuntimeError):
                lock.acquire()
        else:
            assert not lock.acquire()

    def release():
        wait_until(lambda: len(blocked(r)) == 1)
        holder.release()

    run_threads(picky, release)
    assert not r.exists(KEY, WAKE)
    assert not set(r.zrange(QUEUE, 0, -1)) - {b""}


def test_a_signal_handler_does_not_queue_behind_the_thread_that_it_interrupts(holder, r):
    got = []

    def handler(*_):
        got.append(FencedLock(r, KEY, timeout=60, blocking_timeout=0.2).acquire())
        holder.release()
        got.append(FencedLock(r, KEY, timeout=0.2).acquire())

    former = signal.signal(signal.SIGUSR1, handler)

    def interrupt():
        wait_until(lambda: len(blocked(r)) == 1)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        assert FencedLock(r, KEY, timeout=60, blocking_timeout=10).acquire()
    finally:
        signal.signal(signal.SIGUSR1, former)
        thread.join()
    assert got == [False, True]
    assert not gate._queues


def test_a_clock_that_was_set_back_does_not_keep_the_lock_from_waiters(holder, r):
    def release():
        wait_until(lambda: len(blocked(r)) == 1)
        # A turn that began in an hour from now.
        r.zadd(QUEUE, {"": -int((time.time() + 3600) * 1000)})
        holder.release()
        return time.monotonic()

    def wait():
        assert FencedLock(r, KEY, timeout=60, sleep=10).acquire()
        return time.monotonic()

    released, granted = run_threads(release, wait)
    # It would not look by itself before 10 s.
    assert granted - released < 5


def test_a_server_that_changes_its_role_costs_no_place_for_good(holder, r):
    def unblock():
        wait_until(lambda: len(blocked(r)) == 1)
        r.client_unblock(blocked(r)[0]["id"], error=True)
        wait_until(lambda: len(blocked(r)) == 1)
        holder.release()

    def wait():
        return FencedLock(r, KEY, timeout=60, sleep=10, blocking_timeout=15).acquire()

    started = time.monotonic()
    assert run_threads(unblock, wait)[1]
    assert time.monotonic() - started < 5


def test_a_server_with_no_room_for_another_connection_is_asked_on_the_one_there_is(own_server, client_factory):
    server = own_server()
    admin, client = client_factory(server.url), client_factory(server.url, client_name="waiter")
    holder = FencedLock(admin, KEY, timeout=60, thread_local=False)
    holder.acquire()
    waiter = FencedLock(client, KEY, timeout=60, sleep=0.02)
    assert not waiter.acquire(blocking=False)
    while budget._open and any(sharer.close_one() for sharer in list(budget._sharers)):
        budget.free()
    admin.config_set("maxclients", len(admin.client_list()))

    def release():
        wait_until(lambda: bool(gate._queues))
        holder.release()

    got, _ = run_threads(lambda: waiter.acquire(blocking_timeout=5), release)
    assert got


def test_a_place_that_an_interruption_has_lost_is_given_back_by_the_collector(r):
    gc.collect()
    before = budget._open
    lock = FencedLock(r, KEY, timeout=60)
    wire = lock._wire
    found = wire.listen(RELEASE, (b"a", b"b", b"c"), (b"t", b""), 5, WAKE.encode(), 5)
    assert budget._open >= before
    during = budget._open
    del found
    gc.collect()
    assert budget._open == during - 1


def test_an_outage_is_found_out_by_all_threads_at_once(own_server, client_factory):
    server = own_server()
    client = client_factory(server.url, max_connections=20)
    FencedLock(client, KEY, timeout=60).acquire()

    def wait():
        with pytest.raises(redis.exceptions.ConnectionError):
            FencedLock(client, KEY, timeout=60).acquire()

    def kill():
        wait_until(lambda: sum(map(len, gate._queues.values())) == 4)
        server.kill()

    started = time.monotonic()
    run_threads(kill, *[wait] * 4)
    assert time.monotonic() - started < 8


def test_a_deadline_in_the_far_future_is_one(holder, r):
    def release():
        wait_until(lambda: len(blocked(r)) == 1)
        holder.release()

    got, _ = run_threads(lambda: FencedLock(r, KEY, timeout=60).acquire(blocking_timeout=1e10), release)
    assert got


def test_the_turn_of_those_that_poll_is_named_in_the_error(r):
    seconds, microseconds = r.time()
    now_ms = seconds * 1000 + microseconds // 1000
    r.zadd(QUEUE, {"": now_ms - 20_000, "somebody": now_ms * 1000})
    with pytest.raises(LockNotAcquired, match="is kept free for a moment, for locks that poll"):
        FencedLock(r, KEY, timeout=60, blocking_timeout=0).__enter__()
