"""The claim that a waiter sends the moment that it hears its ticket: what becomes of it when things go another way."""

import threading

import pytest

from fenced_locks import FencedLock
from fenced_locks.issuers import ClockIssuer
from fenced_locks.locks.steps import RELEASE
from fenced_locks.wire.listening import BlockedListener
from tests.helpers import run_threads, wait_until
from tests.waiters import is_claim

KEY, COUNTER, QUEUE, WAKE = "order:1", "fence:{order:1}", "queue:{order:1}", "wake:{order:1}"


@pytest.fixture
def holder(r):
    lock = FencedLock(r, KEY, timeout=60, thread_local=False)
    lock.acquire()
    return lock


def is_waiting(r):
    return any(entry["cmd"] == "blpop" and "b" in entry["flags"] for entry in r.client_list())


def hand_over(holder, r, before=lambda: None):
    def release():
        wait_until(lambda: is_waiting(r))
        before()
        holder.release()

    return release


class Patient(FencedLock):
    """Tries again only once the server has carried out the claim."""

    tries = 0

    def do_acquire(self, token):
        self.tries += 1
        if self.tries > 1:
            wait_until(lambda: self.redis.get(KEY) == token)
            self.then()
        return super().do_acquire(token)

    def then(self):
        """Go on."""


def test_it_is_on_its_way_before_the_caller_learns_of_the_ticket(r, holder):
    waiter = Patient(r, KEY, timeout=60, blocking_timeout=5, thread_local=False)
    got, _ = run_threads(waiter.acquire, hand_over(holder, r))
    assert got
    assert waiter.owned()


def test_a_server_that_has_forgotten_its_script_is_asked_anew(r, holder):
    waiter = FencedLock(r, KEY, timeout=60, blocking_timeout=5, thread_local=False)
    got, _ = run_threads(waiter.acquire, hand_over(holder, r, r.script_flush))
    assert got
    assert waiter.fence_token > 0
    assert waiter.owned()
    waiter.release()
    assert not r.exists(KEY, QUEUE, WAKE)


@pytest.mark.parametrize("fault", ["drop_request", "drop_reply"])
def test_it_is_lost_on_its_way_and_nothing_stays_behind(proxy, client_factory, r, holder, fault):
    r.script_load(RELEASE.text)
    waiter = FencedLock(client_factory(proxy.url), KEY, timeout=60, blocking_timeout=5, thread_local=False)
    getattr(proxy, fault)(is_claim)
    got, _ = run_threads(waiter.acquire, hand_over(holder, r))
    assert got
    assert waiter.owned()
    waiter.release()
    assert not r.exists(KEY, QUEUE, WAKE)


def test_what_an_override_asks_for_instead_is_what_it_gets(r, holder):
    class Hasty(Patient):
        def then(self):
            self.timeout = 5

    class Named(FencedLock):
        def do_acquire(self, token):
            return super().do_acquire(b"another:" + token)

    for kind, ends in ((Hasty, 5), (Named, 60)):
        waiter = kind(r, KEY, timeout=60, blocking_timeout=5, thread_local=False)
        got, _ = run_threads(waiter.acquire, hand_over(holder, r))
        assert got
        assert waiter.owned()
        assert ends - 1 < r.pttl(KEY) / 1000 <= ends
        holder = waiter
    assert holder.owner_id.startswith("another:")


@pytest.mark.parametrize("late", [False, True])
def test_an_interruption_before_the_answer_undoes_it(proxy, client_factory, r, holder, monkeypatch, late):
    """Also when the claim comes to the server after everything else that is sent then."""

    def interrupted(self, timeout):
        raise KeyboardInterrupt

    r.script_load(RELEASE.text)
    r.script_load(ClockIssuer().acquire_script.text)
    monkeypatch.setattr(BlockedListener, "answer", interrupted)
    waiter = FencedLock(client_factory(proxy.url), KEY, timeout=60, blocking_timeout=5, thread_local=False)
    go_on = threading.Event()
    if late:
        proxy.delay_request(go_on, is_claim)

    def acquire():
        with pytest.raises(KeyboardInterrupt):
            waiter.acquire()

    run_threads(acquire, hand_over(holder, r))
    granted = int(r.get(COUNTER))
    go_on.set()
    # It takes the lock, which is free by then, and the undo is right behind it.
    wait_until(lambda: int(r.get(COUNTER)) > granted or not late)
    wait_until(lambda: not r.exists(KEY, QUEUE, WAKE))


def test_an_interruption_before_the_try_undoes_it(r, holder):
    class Interrupted(Patient):
        def then(self):
            raise KeyboardInterrupt

    waiter = Interrupted(r, KEY, timeout=60, blocking_timeout=5, thread_local=False)

    def acquire():
        with pytest.raises(KeyboardInterrupt):
            waiter.acquire()

    run_threads(acquire, hand_over(holder, r))
    wait_until(lambda: not r.exists(KEY, QUEUE, WAKE))


def test_the_lease_counts_from_before_it_was_sent(r, holder):
    """Not from when the caller found out."""

    class Late(Patient):
        def then(self):
            wait_until(lambda: r.pttl(KEY) < 59_900)

    waiter = Late(r, KEY, timeout=60, blocking_timeout=5, thread_local=False)
    got, _ = run_threads(waiter.acquire, hand_over(holder, r))
    assert got
    assert waiter.remaining() < 59.9
