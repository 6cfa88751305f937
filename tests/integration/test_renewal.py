"""Renewal keeps a lease, reports its loss on time, and never does anything else."""

import gc
import os
import threading
import weakref

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from fenced_locks import FencedLock, LeaseLost, NotHeld, fenced_lock, signals, with_fenced_lock
from fenced_locks.locks.renewal import RENEW, renewer
from tests.helpers import run_threads, wait_until

# Of what must be kept, in seconds: a busy machine may stop a process for half of it, when it is due at its third.
LEASE = 1.0


def is_renewal(command):
    return RENEW.sha in command or RENEW.text in command


def renewals(proxy, count=1, timeout=10):
    return proxy.wait_for_request(is_renewal, timeout, count=count)


def renewal_threads():
    return [thread for thread in threading.enumerate() if thread.name == "fenced-locks-renewal"]


def test_a_lease_is_kept_beyond_its_length(any_client):
    with FencedLock(any_client, "order:1", timeout=LEASE, renew=True) as lock:
        assert not lock.lost.wait(1.4 * LEASE)
        assert lock.ensure_held() == lock.fence_token
    assert not any_client.exists("order:1")


def test_renewal_survives_a_server_that_forgot_the_script(r):
    with FencedLock(r, "order:1", timeout=LEASE, renew=True) as lock:
        for _ in range(4):
            r.script_flush()
            assert not lock.lost.wait(LEASE / 2)
        lock.ensure_held()


def test_one_thread_and_few_batches_for_five_hundred_leases(proxy, client_factory, r):
    client = client_factory(proxy.url)
    locks = [FencedLock(client, f"order:{number}", timeout=3, renew=True) for number in range(500)]
    for lock in locks:
        lock.acquire()
    connections = proxy.connections
    renewals(proxy, count=1000)
    assert len(renewal_threads()) == 1
    # One, and another one in its place whenever the machine was too slow for a reply.
    assert proxy.connections <= connections + 5
    for lock in locks:
        lock.ensure_held()
        lock.release()
    assert r.keys("order:*") == []


def test_an_outage_shorter_than_the_lease_is_survived(proxy, client_factory, caplog):
    with FencedLock(client_factory(proxy.url), "order:1", timeout=2, renew=True) as lock:
        proxy.refuse()
        proxy.disconnect()
        wait_until(lambda: proxy.refused >= 2)
        proxy.admit()
        seen = len(proxy.calls(is_renewal))
        renewals(proxy, count=seen + 2)
        assert lock.ensure_held() == lock.fence_token
    assert [record.message for record in caplog.records if "renewal of 'order:1' failed" in record.message]


@pytest.mark.parametrize("fault", ["refuse", "mute"])
def test_a_longer_outage_is_reported_as_a_loss_on_time(proxy, client_factory, fault):
    lock = FencedLock(client_factory(proxy.url), "order:1", timeout=LEASE, renew=True)
    lock.acquire()
    renewals(proxy)
    lost = threading.Event()

    def receive(**details):
        lost.set()

    signals.lease_lost.connect(receive)
    try:
        getattr(proxy, fault)()
        if fault == "refuse":
            proxy.disconnect()
        assert lost.wait(3 * LEASE)
        assert lock.lost.is_set()
    finally:
        signals.lease_lost.disconnect(receive)
        proxy.unmute()
        proxy.admit()
    with pytest.raises(LeaseLost):
        lock.ensure_held()


@pytest.mark.parametrize("fault", ["drop_reply", "drop_request"])
def test_one_lost_reply_is_no_loss(proxy, client_factory, fault):
    with FencedLock(client_factory(proxy.url), "order:1", timeout=1, renew=True) as lock:
        happened = getattr(proxy, fault)(is_renewal)
        happened.wait()
        seen = len(proxy.calls(is_renewal))
        renewals(proxy, count=seen + 2)
        lock.ensure_held()


def test_renewal_never_acquires_and_never_touches_the_lease_of_another(r):
    lock = FencedLock(r, "order:1", timeout=0.3, renew=True)
    lock.acquire()
    r.delete("order:1")
    assert lock.lost.wait(5)
    assert not r.exists("order:1")
    other = FencedLock(r, "order:2", timeout=0.3, renew=True)
    other.acquire()
    r.set("order:2", "somebody", px=60_000)
    assert other.lost.wait(5)
    assert r.get("order:2") == b"somebody"
    assert 50_000 < r.pttl("order:2") <= 60_000


def test_renewal_does_not_shorten_a_lease_that_was_made_longer(proxy, client_factory, r):
    with FencedLock(client_factory(proxy.url), "order:1", timeout=LEASE, renew=True) as lock:
        r.pexpire("order:1", 60_000)
        renewals(proxy, count=2)
        assert r.pttl("order:1") > 50_000
        lock.extend(60)
        assert not lock.lost.wait(0.5)
        assert r.pttl("order:1") > 50_000
        assert lock.remaining() > 50


def test_nothing_is_renewed_once_the_release_is_sent(proxy, client_factory, r):
    lock = FencedLock(client_factory(proxy.url), "order:1", timeout=LEASE, renew=True, thread_local=False)
    lock.acquire()
    owner, go_on = lock.owner_id.encode(), threading.Event()
    renewals(proxy)

    def is_release(command):
        return command[0] in (b"EVALSHA", b"EVAL") and owner in command and not is_renewal(command)

    def release():
        # The lease ends while the release is on its way.
        with pytest.raises(LeaseLost):
            lock.release()

    def look():
        proxy.wait_for_request(is_release)
        seen = len(proxy.calls(is_renewal))
        wait_until(lambda: not r.exists("order:1"))
        go_on.set()
        return len(proxy.calls(is_renewal)) - seen

    proxy.delay_request(go_on, is_release)
    assert run_threads(look, release)[0] <= 1


def test_a_lock_that_was_forgotten_is_renewed_no_more(r):
    lock = FencedLock(r, "order:1", timeout=0.3, renew=True)
    lock.acquire()
    gone = weakref.ref(lock)
    del lock
    gc.collect()
    # Unless it is being renewed in this moment.
    wait_until(lambda: gone() is None)
    wait_until(lambda: not r.exists("order:1"), 5)


def test_the_lease_of_a_thread_that_has_ended_is_renewed_no_more(r):
    lock = FencedLock(r, "order:1", timeout=0.3, renew=True)
    run_threads(lock.acquire)
    gc.collect()
    wait_until(lambda: not r.exists("order:1"), 5)


def test_work_that_hangs_does_not_hold_the_lock_for_ever(r):
    lock = FencedLock(r, "order:1", timeout=LEASE, renew=True, max_hold=3.4 * LEASE)
    lock.acquire()
    assert not lock.lost.wait(2 * LEASE)
    assert lock.lost.wait(5)
    # The server's clock may be a moment behind.
    assert r.pttl("order:1") < 200


def test_max_hold_does_not_end_a_lease_that_was_asked_for_longer(r):
    with FencedLock(r, "order:1", timeout=30, renew=True, max_hold=0.1) as lock:
        assert not lock.lost.wait(0.3)
        assert r.pttl("order:1") > 25_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"renew": True}, "renew needs a timeout"),
        ({"timeout": 1, "max_hold": 10}, "needs renew=True"),
        ({"timeout": 1, "renew": True, "max_hold": 0}, "max_hold"),
    ],
)
def test_what_makes_no_sense_is_refused_when_the_lock_is_made(r, options, message):
    with pytest.raises(ValueError, match=message):
        FencedLock(r, "order:1", **options)


def test_the_settings_and_the_decorator_turn_it_on(r):
    @with_fenced_lock("order:2", renew=True, timeout=LEASE)
    def work():
        threading.Event().wait(2 * LEASE)
        return r.exists("order:2")

    assert work() == 1
    with override_settings(FENCED_LOCKS={"RENEW": True, "TIMEOUT": LEASE, "MAX_HOLD": 60}):
        with fenced_lock("order:1") as lock:
            assert (lock.renew, lock.max_hold) == (True, 60)
            assert not lock.lost.wait(2 * LEASE)
        # Without an end there is nothing to renew.
        assert fenced_lock("order:1", timeout=None).renew is False
    with override_settings(FENCED_LOCKS={"RENEW": "yes"}), pytest.raises(ImproperlyConfigured, match="RENEW"):
        fenced_lock("order:1")


def test_the_thread_ends_when_there_is_nothing_to_renew(r, monkeypatch):
    monkeypatch.setattr("fenced_locks.locks.renewal._IDLE_SECONDS", 0.05)
    with FencedLock(r, "order:1", timeout=LEASE, renew=True):
        assert renewal_threads()
    # One that was idle before would stay as long as it meant to then.
    renewer.look()
    wait_until(lambda: not renewal_threads(), 15)
    with FencedLock(r, "order:1", timeout=LEASE, renew=True) as lock:
        assert not lock.lost.wait(2 * LEASE)


def in_a_child(work):
    """Return what `work()` returned or raised in a forked child, as text."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, repr(work()).encode())
        except BaseException as error:  # noqa: BLE001 - it is shown by the parent
            os.write(writing, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    return said


# Python warns of forks while threads run, which is just what is tried here.
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_holds_nothing_and_renews_only_its_own(redis_url, client_factory, r):
    client = client_factory(redis_url)
    lock = FencedLock(client, "order:1", timeout=LEASE, renew=True)
    lock.acquire()
    owner = lock.owner_id

    def child():
        seen = [lock.fence_token, lock.owner_id, bool(renewer._agenda), len(renewal_threads())]
        for use in (lock.release, lock.reacquire, lock.ensure_held):
            try:
                use()
            except NotHeld:
                seen.append("NotHeld")
        own = FencedLock(client, "order:2", timeout=LEASE, renew=True)
        own.acquire()
        lost = own.lost.wait(2 * LEASE)
        own.release()
        return [*seen, lost, len(renewal_threads())]

    assert in_a_child(child) == repr([None, None, False, 0, "NotHeld", "NotHeld", "NotHeld", False, 1])
    assert lock.owner_id == owner
    assert lock.ensure_held() == lock.fence_token
    assert not lock.lost.wait(2 * LEASE)
    lock.release()
    assert not r.exists("order:1")
