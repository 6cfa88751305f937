"""Issuers outside Redis: the lease is taken, a token is drawn, and the lease must still be there."""

import threading
from collections.abc import Callable

import pytest
import redis

from fenced_locks import FencedLock, IssuerError, LockNotAcquired, fenced_lock
from fenced_locks.issuers import ExternalIssuer, get_issuer
from fenced_locks.locks.steps import RELEASE
from tests.helpers import run_threads

KEY = "order:1"


class Numbers(ExternalIssuer):
    """Counts, and lets a test do something while a token is drawn."""

    name = "numbers"

    def __init__(self, *meanwhile: Callable[[], object]) -> None:
        self.last = 0
        self.resources = []
        self.meanwhile = list(meanwhile)
        self._lock = threading.Lock()

    def issue(self, resource):
        with self._lock:
            self.last = token = self.last + 1
            self.resources.append(resource)
        if self.meanwhile:
            self.meanwhile.pop(0)()
        return token


def lock_with(client, issuer, **options):
    return FencedLock(client, KEY, **{"timeout": 10, **options}, issuer=issuer)


def test_the_token_is_the_issuers_and_redis_keeps_no_counter(any_client, r):
    issuer = Numbers()
    for expected in (1, 2, 3):
        with lock_with(any_client, issuer) as lock:
            assert lock.fence_token == expected
            assert lock.owned()
            assert r.keys() == [KEY.encode()]
    assert issuer.resources == [KEY] * 3


def test_no_token_is_drawn_while_the_lock_is_busy(r):
    issuer = Numbers()
    r.set(KEY, "somebody", px=60_000)
    assert not lock_with(r, issuer, blocking=False).acquire()
    assert issuer.last == 0


def test_a_lease_that_another_holder_has_taken_meanwhile_is_left_alone(r):
    issuer = Numbers(lambda: r.set(KEY, "another", px=60_000))
    with pytest.raises(LockNotAcquired, match="was taken, but the lease ended before it was complete") as failure:
        lock_with(r, issuer, blocking=False).__enter__()
    assert failure.value.owner_id == "another"
    assert r.get(KEY) == b"another"
    assert issuer.last == 1


def test_a_lease_that_ended_meanwhile_is_taken_again_while_the_wait_lasts(r):
    owners = []
    issuer = Numbers(*[lambda: (owners.append(r.get(KEY)), r.delete(KEY))] * 2)
    lock = lock_with(r, issuer, blocking_timeout=5, sleep=0.001)
    assert lock.acquire()
    assert lock.fence_token == 3
    assert lock.owned()
    assert len({*owners, r.get(KEY)}) == 3


def test_the_greatest_token_is_with_the_holder_not_with_the_one_that_slept(r):
    asleep, go, issuer = threading.Event(), threading.Event(), Numbers()
    tokens = []

    def sleeper():
        issuer.meanwhile = [lambda: (asleep.set(), go.wait(10))]
        return lock_with(r, issuer, blocking=False).acquire()

    def holder():
        asleep.wait(10)
        r.delete(KEY)
        lock = lock_with(r, issuer)
        lock.acquire()
        tokens.append(lock.fence_token)
        go.set()

    assert run_threads(sleeper, holder) == [False, None]
    assert tokens == [2]


def test_a_lease_that_is_over_by_local_time_is_not_handed_out(r):
    issuer = Numbers(lambda: (r.persist(KEY), threading.Event().wait(0.06)))
    assert not lock_with(r, issuer, timeout=0.05, blocking=False).acquire()
    assert r.keys() == []


def test_a_release_that_comes_late_does_not_meet_the_next_try(r, proxy, client_factory):
    go, late = threading.Event(), []

    def oversleep():
        late.append(proxy.delay_request(go, lambda command: RELEASE.sha in command))
        r.persist(KEY)
        threading.Event().wait(0.61)

    client = client_factory(proxy.url, socket_timeout=0.2)
    issuer = Numbers(oversleep)
    lock = lock_with(client, issuer, timeout=0.6, blocking_timeout=2.5, sleep=0.001)
    assert lock.acquire()
    r.persist(KEY)
    go.set()
    late[0].wait()
    assert lock.owned()


class Failure(Exception):
    pass


def fail(error):
    raise error


@pytest.mark.parametrize("error", [Failure("the source is dry"), redis.ConnectionError("of another server")])
def test_an_issuer_that_fails_gives_the_lease_back_and_is_the_cause(r, error):
    lock = lock_with(r, Numbers(lambda: fail(error)), timeout=None)
    with pytest.raises(IssuerError, match=r"no fence token for 'order:1': the issuer 'numbers' failed: ") as seen:
        lock.acquire()
    assert seen.value.__cause__ is error
    assert str(error) in str(seen.value)
    assert seen.value.resource == KEY
    assert r.keys() == []
    assert lock.fence_token is None
    assert lock.acquire(blocking=False)


def test_an_issuers_own_error_and_an_interrupt_pass_as_they_are(r):
    for error in (IssuerError("dry"), KeyboardInterrupt()):
        with pytest.raises(type(error)) as seen:
            lock_with(r, Numbers(lambda error=error: fail(error)), timeout=None).acquire()
        assert seen.value is error
        assert r.keys() == []


@pytest.mark.parametrize("token", [None, 0, -1, True, 1.0, "1", 2**63, pytest.param(10**5000, id="long")])
def test_what_is_no_token_is_refused(r, token):
    class Strange(ExternalIssuer):
        name = "strange"

        def issue(self, resource):
            return token

    with pytest.raises(IssuerError, match="is no token"):
        lock_with(r, Strange(), timeout=None).acquire()
    assert r.keys() == []


def test_an_owner_id_of_the_callers_choice(r):
    lock = lock_with(r, Numbers())
    assert lock.acquire(token="mine")
    assert (r.get(KEY), lock.fence_token, lock.owned()) == (b"mine", 1, True)
    issuer = Numbers(lambda: r.delete(KEY))
    lock.release()
    assert not lock_with(r, issuer, blocking=False).acquire(token="mine")
    assert r.keys() == []


def test_a_lost_reply_to_the_second_look_is_asked_for_again(r, proxy, client_factory):
    issuer = Numbers(lambda: proxy.drop_reply("EVALSHA"))
    lock = lock_with(client_factory(proxy.url), issuer)
    assert lock.acquire()
    assert (lock.fence_token, lock.owned()) == (1, True)


def test_a_server_that_is_gone_after_the_token_is_an_error_of_the_server(own_server, client_factory):
    server = own_server()
    lock = lock_with(client_factory(server.url), Numbers(server.kill))
    with pytest.raises(redis.ConnectionError):
        lock.acquire()
    assert lock.fence_token is None


def test_an_override_of_do_acquire_is_honoured(r):
    class Careful(FencedLock):
        tries = 0

        def do_acquire(self, token):
            self.tries += 1
            return super().do_acquire(token)

    lock = Careful(r, KEY, timeout=10, issuer=Numbers())
    assert lock.acquire()
    assert (lock.tries, lock.fence_token) == (1, 1)


def test_re_entry_draws_no_token(r):
    issuer = Numbers()
    with fenced_lock(KEY, issuer=issuer) as outer, fenced_lock(KEY, issuer=issuer) as inner:
        assert (outer.fence_token, inner.fence_token) == (1, 1)
    assert r.keys() == []


def test_it_is_chosen_like_any_other(r):
    issuer = Numbers()
    assert get_issuer(issuer) is issuer
    assert get_issuer(Numbers).name == "numbers"
    with FencedLock(r, KEY, timeout=10, issuer=Numbers) as lock:
        assert lock.fence_token == 1
