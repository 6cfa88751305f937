"""``advance`` with issuers outside Redis: who is no holder draws nothing, and who slept while drawing gets nothing."""

import threading

import pytest
import redis

from fenced_locks import FencedLock, IssuerError, LeaseLost
from fenced_locks.issuers import ExternalIssuer
from fenced_locks.locks import core
from tests.awaited import Loop

KEY = "order:1"


class Numbers(ExternalIssuer):
    """Counts, and lets a test do something while a token is drawn; it cannot be raised."""

    name = "numbers"

    def __init__(self):
        self.last, self.issued, self.meanwhile = 0, 0, []

    def issue(self, resource):
        self.issued += 1
        self.last = token = self.last + 1
        if self.meanwhile:
            self.meanwhile.pop(0)()
        return token


class Raised(Numbers):
    """Can be raised, and says what it was asked."""

    name = "raised"

    def __init__(self):
        super().__init__()
        self.raised = []

    def raise_tokens(self, tokens):
        self.raised.append(dict(tokens))
        self.last = max(self.last, *tokens.values())


@pytest.fixture(params=["blocking", "awaiting"])
def held(request, client_factory, redis_url):
    """`held(issuer, **options)` returns a lock with a lease; what awaits is made to block."""
    loop = Loop()

    def acquired(issuer, url=redis_url, **options):
        options = {"timeout": 60, **options, "issuer": issuer}
        if request.param == "blocking":
            lock = FencedLock(client_factory(url), KEY, **options)
        else:
            lock = loop.lock(loop.client(url), KEY, **options)
        assert lock.acquire()
        return lock

    yield acquired
    loop.close()


def test_the_token_is_the_issuers_and_redis_keeps_no_counter(held, r):
    lock = held(Numbers())
    assert [lock.advance() for _ in range(3)] == [2, 3, 4]
    assert lock.fence_token == 4
    assert r.keys() == [KEY.encode()]


def test_the_lease_is_looked_at_before_and_after(held, proxy):
    issuer = Numbers()
    lock = held(issuer, url=proxy.url)
    proxy.forget()
    issuer.meanwhile = [lambda: looks.append(len(proxy.calls()))]
    looks = []
    lock.advance()
    assert (looks, len(proxy.calls())) == ([1], 2)


@pytest.mark.parametrize("now", [None, "somebody"])
def test_who_is_no_holder_any_more_draws_nothing_and_raises_nothing(held, r, now):
    issuer = Raised()
    lock = held(issuer)
    r.set(KEY, now) if now else r.delete(KEY)
    with pytest.raises(LeaseLost, match=f"cannot advance .*{now or 'free'}"):
        lock.advance(at_least=100)
    assert (issuer.last, issuer.raised, lock.fence_token) == (1, [], 1)


@pytest.mark.parametrize("now", [None, "somebody"])
def test_who_lost_the_lease_while_drawing_does_not_get_the_token(held, r, now):
    issuer = Numbers()
    lock = held(issuer)
    issuer.meanwhile = [lambda: r.set(KEY, now) if now else r.delete(KEY)]
    lost = lock.lost
    with pytest.raises(LeaseLost, match=f"cannot advance .*{now or 'free'}") as error:
        lock.advance()
    assert (issuer.last, lock.fence_token, error.value.fence_token) == (2, 1, 1)
    assert lost.is_set()


def test_a_lease_that_is_over_by_local_time_meanwhile_does_not_get_the_token(held, r):
    issuer = Numbers()
    lock = held(issuer, timeout=0.7)
    issuer.meanwhile = [lambda: (r.persist(KEY), threading.Event().wait(0.71))]
    with pytest.raises(LeaseLost, match=r"cannot advance .*it has ended"):
        lock.advance()
    assert (issuer.last, lock.fence_token) == (2, 1)


def test_the_issuer_is_raised_only_where_more_than_the_next_token_is_asked_for(held):
    issuer = Raised()
    lock = held(issuer)
    assert lock.advance(at_least=2) == 2
    assert issuer.raised == []
    assert lock.advance(at_least=100) == 100
    assert issuer.raised == [{KEY: 99}]
    assert lock.advance(at_least=50) == 101
    assert issuer.raised == [{KEY: 99}]
    assert issuer.issued == 4


def test_an_issuer_that_has_lost_its_counter_is_raised_above_the_lease(held):
    issuer = Raised()
    lock = held(issuer)
    lock.advance(at_least=41)
    issuer.last = 3
    assert lock.advance() == 42
    assert issuer.raised[1:] == [{KEY: 41}]


def test_an_issuer_that_cannot_be_raised_says_so_before_anything_is_sent(held, proxy):
    issuer = Numbers()
    lock = held(issuer, url=proxy.url)
    proxy.forget()
    message = "no fence token for 'order:1': the issuer 'numbers' cannot be raised to 99; the lease goes on with 1"
    with pytest.raises(IssuerError, match=message):
        lock.advance(at_least=100)
    assert (issuer.last, proxy.calls()) == (1, [])
    assert lock.advance(at_least=2) == 2


def test_an_issuer_that_goes_back_is_refused(held):
    class Obstinate(Raised):
        def issue(self, resource):
            return 5

    lock = held(Obstinate())
    with pytest.raises(IssuerError, match="returned 5, which is not greater than 5; the lease goes on with 5"):
        lock.advance()
    assert lock.ensure_held() == 5


def fail(error):
    raise error


@pytest.mark.parametrize("error", [ValueError("the source is dry"), redis.ConnectionError("of another server")])
def test_an_issuer_that_fails_is_the_cause_and_the_lease_goes_on(held, r, error):
    issuer = Raised()
    lock = held(issuer)
    issuer.meanwhile = [lambda: fail(error)]
    with pytest.raises(IssuerError, match=r"the issuer 'raised' failed: .*; the lease goes on with 1") as seen:
        lock.advance()
    assert seen.value.__cause__ is error
    issuer.raise_tokens = lambda tokens: fail(error)
    with pytest.raises(IssuerError, match=r"the issuer 'raised' failed: .*; the lease goes on with 1"):
        lock.advance(at_least=100)
    assert lock.ensure_held() == 1
    assert r.pttl(KEY) > 50_000


@pytest.mark.parametrize("token", [None, 0, -1, True, 3.0, "3"])
def test_what_is_no_token_is_refused(held, token):
    issuer = Numbers()
    lock = held(issuer)
    issuer.issue = lambda resource: token
    with pytest.raises(IssuerError, match="is no token; the lease goes on with 1"):
        lock.advance()
    assert lock.ensure_held() == 1


def test_lost_replies_to_both_looks_are_asked_for_again(held, proxy):
    issuer = Numbers()
    lock = held(issuer, url=proxy.url)
    proxy.drop_reply(("EVALSHA", "EVAL"))
    issuer.meanwhile = [lambda: proxy.drop_reply(("EVALSHA", "EVAL"))]
    assert lock.advance() == lock.fence_token == 2


def test_a_server_that_is_gone_after_the_token_was_drawn_leaves_the_lease_with_the_old_one(
    held, own_server, monkeypatch
):
    monkeypatch.setattr(core, "RETRY_SECONDS", 0.3)
    server, issuer = own_server(), Numbers()
    lock = held(issuer, url=server.url + "?socket_timeout=0.2")
    issuer.meanwhile = [server.kill]
    with pytest.raises(redis.ConnectionError):
        lock.advance()
    assert (issuer.last, lock.fence_token) == (2, 1)
