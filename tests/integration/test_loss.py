"""A holder learns that its lease is lost, and whoever listens hears of what becomes of leases."""

import logging
import threading
import time

import pytest
import redis

from fenced_locks import FencedLock, LeaseLost, NotHeld, clock, fenced_lock, signals
from tests.helpers import run_threads, wait_until
from tests.waiters import at_the_gate

SIGNALS = ("lease_acquired", "lease_renewed", "lease_released", "lease_lost", "lease_refused")


@pytest.fixture
def heard():
    """What the signals about leases said, in order: (name, details)."""
    said = []
    receivers = []
    for name in SIGNALS:

        def receive(sender, name=name, **details):
            said.append((name, details))

        getattr(signals, name).connect(receive)
        receivers.append((name, receive))
    yield said
    for name, receive in receivers:
        getattr(signals, name).disconnect(receive)


def test_ensure_held_asks_the_server_once_and_returns_the_token(proxy, client_factory):
    with FencedLock(client_factory(proxy.url), "order:1", timeout=10) as lock:
        lock.ensure_held()
        proxy.forget()
        assert lock.ensure_held() == lock.fence_token
        assert len(proxy.calls()) == 1


@pytest.mark.parametrize("now", [None, "somebody"])
def test_ensure_held_finds_a_lease_that_is_gone_or_taken(r, now):
    lock = FencedLock(r, "order:1", timeout=10)
    lock.acquire()
    token = lock.fence_token
    r.set("order:1", now) if now else r.delete("order:1")
    assert not lock.lost.is_set()
    with pytest.raises(LeaseLost, match=now or "free") as lost:
        lock.ensure_held()
    assert lost.value.fence_token == token
    assert lock.lost.is_set()
    assert lock.remaining() == 0


def test_ensure_held_does_not_rely_on_a_lease_that_is_over_by_local_time(r):
    lock = FencedLock(r, "order:1", timeout=0.05)
    lock.acquire()
    r.persist("order:1")
    assert lock.lost.wait(5)
    with pytest.raises(LeaseLost, match="rely on"):
        lock.ensure_held()


def test_the_rest_of_a_lease_is_counted_from_before_the_request(proxy, client_factory):
    client = client_factory(proxy.url)
    with FencedLock(client, "warm-up"):
        pass
    proxy.delay_reply(0.3, ("EVALSHA", "EVAL"))
    with FencedLock(client, "order:1", timeout=10) as lock:
        assert 9 < lock.remaining() <= 9.7


def test_a_lease_without_end_has_no_rest_and_is_not_lost(r):
    with FencedLock(r, "order:1") as lock:
        assert lock.remaining() is None
        assert lock.lost.wait(0.01) is False


def test_without_a_lease_there_is_nothing_to_watch(r):
    lock = FencedLock(r, "order:1", timeout=10)
    for ask in (lock.remaining, lock.ensure_held, lambda: lock.lost):
        with pytest.raises(NotHeld):
            ask()
    with lock:
        lost = lock.lost
    assert not lost.is_set()


def test_a_lease_that_was_given_back_in_time_is_never_lost(r, monkeypatch):
    with FencedLock(r, "order:1", timeout=10) as lock:
        lost = lock.lost
    now = clock.monotonic
    monkeypatch.setattr(clock, "monotonic", lambda: now() + 11)
    assert not lost.is_set()
    assert lost.wait() is False


def test_another_thread_can_wait_for_the_loss_or_the_release(r):
    lock = FencedLock(r, "order:1", timeout=30, thread_local=False)
    for end in (lock.release, lambda: r.delete("order:1")):
        lock.acquire()
        lost, waiting = lock.lost, threading.Event()

        def watch(lost=lost, waiting=waiting):
            waiting.set()
            return lost.wait(10)

        def lose(end=end, waiting=waiting):
            waiting.wait(10)
            end()
            if lock.fence_token:
                with pytest.raises(LeaseLost):
                    lock.ensure_held()
                return True
            return False

        found, lost_it = run_threads(watch, lose)
        assert found is lost_it


def test_signals_tell_of_a_lease_that_was_taken_and_given_back(r, heard):
    with FencedLock(r, "order:1", timeout=10) as lock:
        token, owner = lock.fence_token, lock.owner_id
    assert [name for name, _ in heard] == ["lease_acquired", "lease_released"]
    for _, details in heard:
        assert (details["resource"], details["fence_token"], details["owner_id"]) == ("order:1", token, owner)
        assert details["lock"] is lock
    assert 0 <= heard[0][1]["waited"] < 5
    assert 0 <= heard[1][1]["held"] < 5


def test_the_time_waited_for_a_lease_is_told(r, heard):
    plain = redis.lock.Lock(r, "order:1", timeout=60, thread_local=False)
    plain.acquire()

    def wait():
        with FencedLock(r, "order:1", timeout=10):
            pass

    def release():
        wait_until(at_the_gate)
        time.sleep(0.2)
        plain.release()

    run_threads(wait, release)
    assert 0.2 <= heard[0][1]["waited"] < 5


@pytest.mark.parametrize("wait", [{"blocking": False}, {"blocking_timeout": 0.2}])
def test_a_lock_that_stayed_busy_is_told_of_with_who_has_it(r, heard, wait):
    r.set("order:1", "somebody", px=60_000)
    lock = FencedLock(r, "order:1", timeout=10, **wait)
    assert not lock.acquire()
    ((name, details),) = heard
    assert (name, details["resource"], details["lock"]) == ("lease_refused", "order:1", lock)
    assert details["owner_id"] == "somebody"
    assert 50 < details["remaining"] <= 60
    assert wait.get("blocking_timeout", 0) <= details["waited"] < 5


def test_what_becomes_of_leases_is_logged_with_values(r, caplog):
    caplog.set_level(logging.DEBUG, "fenced_locks")
    with FencedLock(r, "order:1", timeout=10) as lock:
        token, owner = lock.fence_token, lock.owner_id
        assert not FencedLock(r, "order:1", blocking=False).acquire()
    lock.acquire()
    r.delete("order:1")
    with pytest.raises(LeaseLost):
        lock.release()
    taken, busy, given_back, again, lost = caplog.records
    assert {record.fence_resource for record in caplog.records} == {"order:1"}
    assert {(record.fence_token, record.fence_owner_id) for record in (taken, given_back)} == {(token, owner)}
    assert busy.fence_owner_id == owner
    assert 0 <= taken.fence_waited <= given_back.fence_held < 5
    assert (lost.levelname, lost.fence_token) == ("INFO", again.fence_token)
    assert {record.levelname for record in (taken, busy, given_back, again)} == {"DEBUG"}


def test_a_loss_is_told_once_however_often_it_is_found(r, heard):
    lock = FencedLock(r, "order:1", timeout=10)
    lock.acquire()
    r.delete("order:1")
    for use in (lock.ensure_held, lambda: lock.extend(1), lock.release):
        with pytest.raises(LeaseLost):
            use()
    assert [name for name, _ in heard] == ["lease_acquired", "lease_lost"]


def test_a_re_entered_lease_is_told_of_once(r, heard):
    with fenced_lock("order:1"), fenced_lock("order:1"):
        pass
    assert [name for name, _ in heard] == ["lease_acquired", "lease_released"]


@pytest.mark.parametrize("name", SIGNALS)
def test_a_receiver_that_fails_breaks_nothing(r, name, caplog):
    called = threading.Event()

    def fail(sender, **details):
        called.set()
        raise RuntimeError("a receiver's own fault")

    signal = getattr(signals, name)
    signal.connect(fail)
    try:
        lock = FencedLock(r, "order:1", timeout=1, renew=True)
        lock.acquire()
        if name == "lease_renewed":
            assert called.wait(5)
        if name == "lease_refused":
            assert not FencedLock(r, "order:1", blocking=False).acquire()
        if name == "lease_lost":
            r.delete("order:1")
            assert lock.lost.wait(5)
        else:
            lock.release()
            assert not r.exists("order:1")
        assert called.wait(5)
    finally:
        signal.disconnect(fail)
