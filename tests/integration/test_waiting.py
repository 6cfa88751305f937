"""A waiter keeps its place, costs few connections, and outlives what happens to the server meanwhile."""

from __future__ import annotations

import gc
import logging
import re
import threading
import time
import warnings
import weakref
from contextlib import ExitStack

import pytest
import redis

from fenced_locks import FencedLock, IssuerError, OutcomeUnknown, fenced_lock
from fenced_locks.issuers import DatabaseIssuer, ExternalIssuer
from fenced_locks.wire.budget import budget
from tests.helpers import run_threads, wait_until
from tests.waiters import LOCK, QUEUE, WAKE, at_the_gate, blocked, wait_for_waiters

COUNTER = "fence:{order:1}"
# Looks are that rare then that whoever is soon granted the lock was woken.
RARELY = 10


def crowd_of(client, name):
    return [entry for entry in client.client_list() if entry["name"] == name]


def take(lock):
    """Take the lock, and return its token and when that was; the lease is given back."""
    with lock:
        return lock.fence_token, time.monotonic()


def held(client, name=LOCK, **options):
    """Return a lock that is held, and that any thread may release."""
    lock = FencedLock(client, name, timeout=60, thread_local=False, **options)
    assert lock.acquire(blocking=False)
    return lock


def wait_for_looks(r, count):
    """Return when whoever waits has asked the server so often again."""

    def calls():
        return sum(r.info("commandstats").get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha", "eval"))

    seen = calls()
    wait_until(lambda: calls() >= seen + count)


def wait_once(client, r):
    """Have one waiter of this client wait, and be woken by a release."""
    holder = held(r)

    def release():
        wait_for_waiters(r, 1)
        holder.release()

    waiter = FencedLock(client, LOCK, timeout=60, blocking_timeout=20, sleep=RARELY)
    started = time.monotonic()
    (_, granted_at), _ = run_threads(lambda: take(waiter), release)
    assert granted_at - started < RARELY / 2


@pytest.fixture
def no_idle_listeners():
    """Connections for waiting that tests before this one have left idle would be closed in place of this one's."""
    gc.collect()
    while any(sharer.close_one() for sharer in list(budget._sharers)):
        budget.free()


@pytest.fixture
def only_polling(no_idle_listeners, monkeypatch):
    """No connection for waiting is to be had."""
    monkeypatch.setattr("fenced_locks.wire.budget.LIMIT", 0)


@pytest.fixture(params=["ConnectionPool", "BlockingConnectionPool", "django-redis", "plain"])
def lock_of_small_pool(request, client_factory, redis_url, r, settings):
    """`lock_of_small_pool(name)` makes locks of a pool with two connections; Django's own backend, one per thread."""
    url = f"{redis_url}?max_connections=2"
    options = {"timeout": 60, "blocking_timeout": 20, "sleep": RARELY}
    if request.param.endswith("Pool"):
        client = client_factory(url, pool=getattr(redis, request.param))
        return lambda name: FencedLock(client, name, **options)
    alias = "default" if request.param == "django-redis" else "plain"
    settings.CACHES = {**settings.CACHES, "small": {**settings.CACHES[alias], "LOCATION": url}}
    return lambda name: fenced_lock(name, using="small", **options)


def test_ten_threads_and_two_connections_all_get_the_lock(lock_of_small_pool):
    tokens, inside = [], []

    def cycles():
        for _ in range(5):
            with lock_of_small_pool(LOCK) as lock:
                inside.append(lock)
                assert inside == [lock]
                tokens.append(lock.fence_token)
                inside.pop()

    run_threads(*[cycles] * 10)
    assert len(tokens) == 50
    assert tokens == sorted(set(tokens))


def test_ten_blocked_threads_and_two_connections_do_not_keep_the_holder_from_releasing(lock_of_small_pool, r):
    names = [f"order:{number}" for number in range(10)]
    all_held = threading.Event()

    def hold_all_and_release():
        with ExitStack() as leases:
            for name in names:
                leases.enter_context(lock_of_small_pool(name))
            all_held.set()
            wait_until(lambda: blocked(r) == 10)

    def wait(name):
        assert all_held.wait(20)
        return take(lock_of_small_pool(name))

    started = time.monotonic()
    run_threads(hold_all_and_release, *[lambda name=name: wait(name) for name in names])
    assert time.monotonic() - started < RARELY


def test_an_emptied_pool_keeps_nobody_from_waiting(client_factory, r):
    for pool in (redis.ConnectionPool, redis.BlockingConnectionPool):
        client = client_factory(pool=pool, max_connections=1)
        with client.pubsub() as listener:
            listener.subscribe("takes the only connection of the pool")
            wait_once(client, r)


def test_who_finds_no_connection_free_says_so_at_the_deadline_and_not_before(proxy, client_factory):
    client = client_factory(proxy.url, max_connections=1)
    with FencedLock(client, "warm-up", timeout=10):
        pass
    go = threading.Event()
    proxy.delay_reply(go, "EVALSHA")

    def with_the_only_connection():
        return FencedLock(client, LOCK, timeout=10, blocking_timeout=20).acquire()

    def without():
        proxy.wait_for_request(lambda command: LOCK.encode() in command)
        started = time.monotonic()
        try:
            with pytest.raises(redis.ConnectionError, match="every connection of this client is in use"):
                FencedLock(client, "order:2", timeout=10, blocking_timeout=0.6).acquire()
            return time.monotonic() - started
        finally:
            go.set()

    granted, seconds = run_threads(with_the_only_connection, without)
    assert granted
    assert 0.6 <= seconds < 2


def test_two_hundred_contended_resources_stay_within_the_cap_and_all_are_granted(client_factory, r, no_idle_listeners):
    client = client_factory(client_name="crowd", max_connections=4)
    names = [f"order:{number}" for number in range(200)]
    holders = [held(r, name) for name in names]
    waiters = [FencedLock(client, name, timeout=60, blocking_timeout=60, sleep=0.5) for name in names]
    most_blocked, most = [0], [0]

    def look():
        most_blocked.append(blocked(r))
        most.append(len(crowd_of(r, "crowd")))

    def watch_and_release():
        wait_until(lambda: at_the_gate() == 200, 20)
        wait_until(lambda: blocked(r) >= 32)
        for _ in range(20):
            look()
            time.sleep(0.02)
        for number, holder in enumerate(holders):
            holder.release()
            if number % 10 == 0:
                look()

    tokens = run_threads(*[lambda waiter=waiter: take(waiter) for waiter in waiters], watch_and_release)[:-1]
    assert all(tokens)
    assert max(most_blocked) == 32
    assert max(most) <= 32 + 4


def test_a_connection_for_waiting_is_used_again(client_factory, r):
    client = client_factory(client_name="again")
    wait_once(client, r)
    before = {entry["id"] for entry in crowd_of(r, "again")}
    assert len(before) == 2
    for _ in range(3):
        wait_once(client, r)
    assert {entry["id"] for entry in crowd_of(r, "again")} == before


def test_an_idle_connection_for_waiting_makes_room_for_one_to_another_server(
    client_factory, own_server, r, no_idle_listeners, monkeypatch
):
    monkeypatch.setattr("fenced_locks.wire.budget.LIMIT", budget._open + 1)
    here, there = client_factory(client_name="here"), client_factory(own_server().url)
    wait_once(here, r)
    assert len(crowd_of(r, "here")) == 2
    wait_once(there, there)
    wait_until(lambda: len(crowd_of(r, "here")) == 1)
    wait_once(here, r)


def test_connections_for_waiting_are_closed_with_the_last_pool_and_without_a_warning(
    redis_url, r, no_idle_listeners, monkeypatch
):
    monkeypatch.setattr("fenced_locks.wire.budget.LIMIT", budget._open + 1)

    def use_and_forget():
        client = redis.Redis.from_url(redis_url, client_name="forgotten")
        wait_once(client, r)
        client.close()
        return client.connection_pool

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # Twice: they count no longer, either.
        for _ in range(2):
            first, second = use_and_forget(), use_and_forget()
            gone = weakref.ref(first)
            assert len(crowd_of(r, "forgotten")) == 3
            del first
            gc.collect()
            assert gone() is None
            # The one for waiting is the other pool's, too.
            wait_until(lambda: len(crowd_of(r, "forgotten")) == 2)
            del second
            gc.collect()
            wait_until(lambda: not crowd_of(r, "forgotten"))
    assert [str(warning.message) for warning in caught] == []


def test_a_wait_longer_than_the_socket_timeout_is_one_block(proxy, client_factory, r):
    client = client_factory(proxy.url, socket_timeout=1)
    holder = held(r)

    def release():
        proxy.wait_for_request("BLPOP")
        time.sleep(1.6)
        holder.release()

    waiter = FencedLock(client, LOCK, timeout=10, blocking_timeout=10, sleep=RARELY)
    started = time.monotonic()
    (_, granted_at), _ = run_threads(lambda: take(waiter), release)
    assert 1.6 <= granted_at - started < RARELY / 2
    assert len(proxy.calls("BLPOP")) == 1


def test_a_look_does_not_give_up_the_block(proxy, client_factory, r):
    client = client_factory(proxy.url, socket_timeout=1)
    holder = held(r)

    def release():
        proxy.wait_for_request("EVALSHA", count=14)
        holder.release()

    waiter = FencedLock(client, LOCK, timeout=10, blocking_timeout=20)
    run_threads(lambda: take(waiter), release)
    assert len(proxy.calls("BLPOP")) == 1


def test_who_waits_behind_another_gives_up_at_its_own_deadline(client_factory, r):
    client = client_factory()
    holder, in_front, behind = held(r), FencedLock(client, LOCK, timeout=10), FencedLock(client, LOCK, timeout=10)

    def give_up():
        wait_for_waiters(r, 1)
        started = time.monotonic()
        assert behind.acquire(blocking_timeout=0.3) is False
        seconds = time.monotonic() - started
        assert at_the_gate() == 1
        holder.release()
        return seconds

    _, seconds = run_threads(lambda: take(in_front), give_up)
    assert 0.3 <= seconds < 2


@pytest.mark.parametrize("options", [{}, {"socket_timeout": 0.5}, {"max_connections": 1}])
def test_a_server_that_falls_mute_ends_every_wait_at_its_deadline(proxy, client_factory, r, options):
    """The waiter that blocks, and the one behind it, which does not talk to the server at all."""
    client = client_factory(proxy.url, **options)
    held(r)

    def wait(seconds):
        started = time.monotonic()
        with pytest.raises((OutcomeUnknown, redis.ConnectionError, redis.TimeoutError)):
            FencedLock(client, LOCK, timeout=10).acquire(blocking_timeout=seconds)
        return time.monotonic() - started

    def wait_behind():
        proxy.wait_for_request("BLPOP")
        return wait(1.5)

    def mute():
        wait_until(lambda: at_the_gate() == 2)
        proxy.mute()

    in_front, behind, _ = run_threads(lambda: wait(2), wait_behind, mute)
    # What the deadlines leave for the last reply and for the undo.
    assert 2 <= in_front < 5
    assert 1.5 <= behind < 4.5
    assert at_the_gate() == 0


def test_a_waiter_joins_again_after_a_restart_of_the_server(own_server, client_factory):
    server = own_server("--appendonly", "yes")
    client = client_factory(server.url)
    holder = held(client)
    before = holder.fence_token

    def restart_and_release():
        wait_for_waiters(client, 1)
        server.restart()
        assert holder.owned()
        wait_for_waiters(client, 1)
        holder.release()
        return time.monotonic()

    waiter = FencedLock(client, LOCK, timeout=10, blocking_timeout=20, sleep=RARELY)
    (token, granted_at), released_at = run_threads(lambda: take(waiter), restart_and_release)
    assert token > before
    assert granted_at - released_at < RARELY / 2


@pytest.mark.parametrize("blocking_timeout", [None, 20])
def test_a_waiter_outlives_a_crash_of_the_server(own_server, client_factory, blocking_timeout):
    server = own_server()
    client = client_factory(server.url)
    held(client)

    def crash():
        wait_for_waiters(client, 1)
        server.kill()
        time.sleep(0.3)
        server.start()

    waiter = FencedLock(client, LOCK, timeout=10, blocking_timeout=blocking_timeout)
    (token, _), _ = run_threads(lambda: take(waiter), crash)
    assert token


def test_two_thousand_contended_cycles_leave_only_the_counter(client_factory, proxy, r):
    """Threads of two gates, as of two processes: the proxy is another server to its clients."""
    inside, tokens = [], []

    def cycles(client):
        for _ in range(250):
            with FencedLock(client, LOCK, timeout=10) as lock:
                inside.append(lock)
                assert inside == [lock]
                tokens.append(lock.fence_token)
                inside.pop()

    clients = [r, client_factory(proxy.url)] * 4
    run_threads(*[lambda client=client: cycles(client) for client in clients], timeout=60)
    assert len(tokens) == 2_000
    assert tokens == sorted(set(tokens))
    assert len(proxy.calls("BLPOP")) > 500
    wait_until(lambda: r.keys() == [COUNTER.encode()], 2)


def test_a_full_server_still_takes_the_release_that_has_a_waiter(own_server, client_factory):
    server = own_server()
    admin = client_factory(server.url)
    holder = held(admin)

    def fill_and_release():
        wait_for_waiters(admin, 1)
        admin.config_set("maxmemory", 1)
        holder.release()
        assert admin.get(LOCK) != holder_id
        freed.set()

    holder_id, freed = holder.owner_id.encode(), threading.Event()
    waiter = FencedLock(client_factory(server.url), LOCK, timeout=10, blocking_timeout=5)

    def wait():
        try:
            return take(waiter)
        except redis.exceptions.OutOfMemoryError:
            assert freed.is_set()
            admin.config_set("maxmemory", 0)
            return take(waiter)

    (token, _), _ = run_threads(wait, fill_and_release)
    assert token
    admin.config_set("maxmemory", 0)
    wait_until(lambda: admin.keys() == [COUNTER.encode()], 8)


def test_a_release_on_a_full_server_deletes_the_key(own_server, client_factory):
    """The waiter registered is one that will not take it."""
    admin = client_factory(own_server().url)
    holder = held(admin)
    admin.zadd(QUEUE, {"": 1, "a waiter that has died": 2})
    admin.config_set("maxmemory", 1)
    holder.release()
    assert not admin.exists(LOCK)
    admin.config_set("maxmemory", 0)
    assert FencedLock(admin, LOCK, timeout=10, blocking_timeout=5).acquire()


@pytest.mark.parametrize("key", [QUEUE, WAKE])
def test_somebody_elses_key_in_place_of_ours_makes_waiters_poll_and_is_left_alone(client_factory, r, caplog, key):
    r.set(key, "somebody else's")
    holder = held(r)

    def release():
        wait_until(lambda: caplog.records)
        wait_for_looks(r, 4)
        holder.release()
        return time.monotonic()

    waiter = FencedLock(client_factory(), LOCK, timeout=10, blocking_timeout=10)
    (token, granted_at), released_at = run_threads(lambda: take(waiter), release)
    assert token
    assert granted_at - released_at < 2
    assert (r.get(key), r.pttl(key)) == (b"somebody else's", -1)
    warned = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warned) == 1, warned
    assert "WRONGTYPE" in warned[0]


@pytest.mark.parametrize("free", [lambda r, holder: holder.release(), lambda r, holder: r.delete(LOCK)])
def test_a_key_that_becomes_somebody_elses_while_a_waiter_blocks_is_left_alone(client_factory, r, free):
    holder, answers = held(r), []

    class Counting(FencedLock):
        def do_acquire(self, token):
            answers.append(taken := super().do_acquire(token))
            return taken

    def release():
        wait_for_waiters(r, 1)
        r.set(WAKE, "somebody else's")
        free(r, holder)

    waiter = Counting(client_factory(), LOCK, timeout=10, blocking_timeout=10)
    run_threads(lambda: take(waiter), release)
    # Kept for a ticket that cannot be handed to anybody, it would not be had by the second try.
    assert answers == [False, True]
    assert (r.get(WAKE), r.pttl(WAKE)) == (b"somebody else's", -1)
    assert not r.exists(LOCK)


def test_a_user_who_may_not_block_polls_and_is_warned_once(own_server, client_factory, caplog):
    server = own_server()
    admin = client_factory(server.url)
    admin.acl_setuser("polling", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-blpop"])
    client = client_factory(server.url, username="polling", password="any")
    holder = held(admin)
    tries = []

    class Counting(FencedLock):
        def do_acquire(self, token):
            tries.append(token)
            return super().do_acquire(token)

    def release():
        wait_until(lambda: len(tries) >= 6)
        holder.release()

    waiter = Counting(client, LOCK, timeout=10, blocking_timeout=10, sleep=0.02)
    run_threads(lambda: take(waiter), release)
    warned = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warned) == 1, warned
    assert re.search(r"waiting for 'order:1': polling, since the server refuses BLPOP: .*blpop", warned[0])
    wait_until(lambda: admin.keys() == [COUNTER.encode()], 8)


def notices_of_a_wait(client, r, monkeypatch, caplog):
    monkeypatch.setattr("fenced_locks.locks.core.NOTICE_SECONDS", 0.2)
    caplog.set_level(logging.INFO, "fenced_locks")
    holder = held(r)

    def release():
        wait_until(lambda: caplog.records)
        # It looks on, and says nothing more.
        wait_for_looks(r, 10)
        holder.release()

    waiter = FencedLock(client, LOCK, timeout=10, blocking_timeout=10, sleep=0.05)
    owner_id = holder.owner_id
    run_threads(lambda: take(waiter), release)
    return owner_id, [(record.levelname, record.getMessage()) for record in caplog.records]


def assert_one_notice(owner_id, notices):
    [(level, message)] = notices
    assert level == "INFO"
    seconds = re.fullmatch(
        rf"waited (\d\.\d) s for 'order:1' so far: it is busy: held by {re.escape(owner_id)} \(this very process\), "
        r"with (5\d\.\d\d\d) s left",
        message,
    )
    assert seconds, message
    assert float(seconds[1]) >= 0.2


def test_a_waiter_that_has_waited_a_while_says_once_for_whom_and_how_long_yet(client_factory, r, monkeypatch, caplog):
    assert_one_notice(*notices_of_a_wait(client_factory(), r, monkeypatch, caplog))


def test_one_that_polls_does_too(client_factory, r, monkeypatch, caplog, only_polling):
    assert_one_notice(*notices_of_a_wait(client_factory(), r, monkeypatch, caplog))
    assert not blocked(r)


class Numbers(ExternalIssuer):
    """Counts; raises the errors that are given first."""

    name = "numbers"

    def __init__(self, *errors):
        self.last = 0
        self.errors = list(errors)

    def issue(self, resource):
        if self.errors:
            raise self.errors.pop(0)
        self.last += 1
        return self.last


def first_fails_second_is_woken(r, proxy, client_factory, issuer, before_release=lambda: None):
    """Two waiters as of two processes; the one who is woken first cannot have a token. Return its error."""
    holder = held(r)
    first = FencedLock(client_factory(proxy.url), LOCK, timeout=10, blocking_timeout=20, sleep=RARELY, issuer=issuer)
    second = FencedLock(client_factory(), LOCK, timeout=10, blocking_timeout=20, sleep=RARELY, issuer=Numbers())

    def refused():
        with pytest.raises(IssuerError) as caught:
            first.acquire()
        return caught.value

    def woken():
        wait_for_waiters(r, 1)
        return take(second)

    def release():
        wait_for_waiters(r, 2)
        before_release()
        holder.release()
        return time.monotonic()

    error, (token, granted_at), released_at = run_threads(refused, woken, release)
    assert token == 1
    assert granted_at - released_at < RARELY / 2
    return error


def test_an_issuer_that_refuses_whose_turn_it_is_passes_the_turn_on(r, proxy, client_factory):
    error = first_fails_second_is_woken(
        r, proxy, client_factory, "clock", lambda: (r.delete(COUNTER), r.rpush(COUNTER, "no counter"))
    )
    assert "no lease was left behind" in str(error)
    wait_until(lambda: r.keys() == [COUNTER.encode()], 8)


def test_an_issuer_outside_redis_that_fails_in_its_turn_passes_the_turn_on(r, proxy, client_factory):
    error = first_fails_second_is_woken(r, proxy, client_factory, Numbers(RuntimeError("the source is dry")))
    assert "the source is dry" in str(error)


def test_an_issuer_outside_redis_serves_waiters(r, client_factory):
    issuer, inside, tokens = Numbers(), [], []
    client = client_factory(max_connections=2)

    def cycles():
        for _ in range(10):
            with FencedLock(client, LOCK, timeout=10, blocking_timeout=20, issuer=issuer) as lock:
                inside.append(lock)
                assert inside == [lock]
                tokens.append(lock.fence_token)
                inside.pop()

    run_threads(*[cycles] * 6)
    assert tokens == list(range(1, 61))
    assert r.keys() == []


@pytest.mark.django_db(transaction=True)
def test_the_database_issuer_serves_waiters(r, client_factory):
    holder = held(r, issuer=DatabaseIssuer())
    waiter = FencedLock(client_factory(), LOCK, timeout=10, blocking_timeout=20, sleep=RARELY, issuer=DatabaseIssuer())
    before = holder.fence_token

    def release():
        wait_for_waiters(r, 1)
        holder.release()

    started = time.monotonic()
    (token, granted_at), _ = run_threads(lambda: take(waiter), release)
    assert token > before
    assert granted_at - started < RARELY / 2
    assert r.keys() == []


@pytest.mark.parametrize("issuer", ["clock", Numbers])
def test_an_owner_id_of_the_callers_choice_is_stored_after_a_wait(r, client_factory, issuer):
    holder = held(r)
    waiter = FencedLock(client_factory(), LOCK, timeout=10, blocking_timeout=20, sleep=RARELY, issuer=issuer)

    def wait():
        assert waiter.acquire(token="mine")
        assert (r.get(LOCK), waiter.owned()) == (b"mine", True)
        assert waiter.fence_token
        waiter.release()
        return time.monotonic()

    def release():
        wait_for_waiters(r, 1)
        holder.release()

    started = time.monotonic()
    granted_at, _ = run_threads(wait, release)
    assert granted_at - started < RARELY / 2
    assert not r.exists(LOCK, QUEUE, WAKE)


def test_an_override_of_do_acquire_makes_the_first_try_and_the_claim(r, client_factory):
    seen = []

    class Counting(FencedLock):
        def do_acquire(self, token):
            seen.append((token, taken := super().do_acquire(token)))
            return taken

    holder = held(r)
    waiter = Counting(client_factory(), LOCK, timeout=10, blocking_timeout=20, sleep=RARELY)

    def wait():
        with waiter:
            return waiter.owner_id.encode()

    def release():
        wait_for_waiters(r, 1)
        holder.release()

    owner, _ = run_threads(wait, release)
    assert seen == [(owner, False), (owner, True)]


def test_an_override_of_do_acquire_may_refuse_its_turn(r, proxy, client_factory):
    """It costs the next waiter no more than the time that a ticket is good for."""
    answers = iter([False, False])

    class Reluctant(FencedLock):
        def do_acquire(self, token):
            return next(answers, None) is None and super().do_acquire(token)

    holder = held(r)
    reluctant = Reluctant(client_factory(proxy.url), LOCK, timeout=10, blocking_timeout=20)
    other = FencedLock(client_factory(), LOCK, timeout=10, blocking_timeout=20)

    def release():
        wait_for_waiters(r, 2)
        holder.release()
        return time.monotonic()

    (_, first), (_, second), released_at = run_threads(lambda: take(reluctant), lambda: take(other), release)
    assert max(first, second) - released_at < 3
    assert list(answers) == []
    wait_until(lambda: r.keys() == [COUNTER.encode()], 8)
