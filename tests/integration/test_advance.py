"""``advance``: another, greater token for a lease that is held. Both locks, issuers inside Redis."""

import asyncio
import threading
import time

import pytest
import redis
import redis.asyncio

from fenced_locks import AsyncFencedLock, FencedLock, IssuerError, LeaseLost, NotHeld, OutcomeUnknown, fenced_lock
from fenced_locks.issuers import ClockIssuer, RedisIssuer
from fenced_locks.locks import core
from tests.awaited import Loop
from tests.conftest import CLIENTS
from tests.helpers import run_threads, wait_until

KEY, COUNTER = "order:1", "fence:{order:1}"
SCRIPT = ("EVALSHA", "EVAL")
GREATEST = 2**53 - 1


class ByTen(RedisIssuer):
    """Goes on by ten from what the counter says, as an issuer of a user's own may."""

    name = "by-ten"
    mint = """
        local function mint(counter, now_us, lease_ms, argument)
            local last, reason = read_counter(counter)
            if not last then return nil, reason end
            return string.format('%.0f', redis.call('INCRBY', counter, 10))
        end
    """


every_issuer = pytest.mark.parametrize("issuer", ["clock", "counter", ByTen])


@pytest.fixture(params=["blocking", "awaiting"])
def make(request, client_factory, redis_url):
    """`make(issuer="clock", url=None, **options)` returns a lock; what awaits is made to block."""
    loop = Loop()

    def lock(issuer="clock", url=None, client=None, **options):
        options = {"timeout": 60, "blocking_timeout": 5, **options, "issuer": issuer}
        if request.param == "blocking":
            return FencedLock(client_factory(url or redis_url, **client or {}), KEY, **options)
        # The parsers of asyncio are others.
        settings = {name: value for name, value in (client or {}).items() if name != "parser_class"}
        return loop.lock(loop.client(url or redis_url, **settings), KEY, **options)

    yield lock
    loop.close()


@pytest.fixture
def held(make):
    """`held(issuer="clock", **options)` returns such a lock with a lease."""

    def acquired(*args, **options):
        lock = make(*args, **options)
        assert lock.acquire()
        return lock

    return acquired


def state_of(lock, r):
    return lock.fence_token, lock.owner_id, r.get(KEY), r.dump(COUNTER)


@every_issuer
@pytest.mark.parametrize("client", CLIENTS)
def test_the_lease_gets_a_greater_token_and_nothing_else_changes(held, r, issuer, client):
    lock = held(issuer, client=client)
    tokens, owner = [lock.fence_token], lock.owner_id
    for _ in range(20):
        tokens.append(lock.advance())
        assert lock.fence_token == tokens[-1] == int(r.get(COUNTER))
        assert type(tokens[-1]) is int
    assert tokens == sorted(set(tokens))
    assert (lock.owner_id, r.get(KEY)) == (owner, owner.encode())
    assert 55_000 < r.pttl(KEY) <= 60_000
    assert 50 < lock.remaining() <= 60
    assert lock.ensure_held() == tokens[-1]
    lock.release()
    assert lock.fence_token is None
    lock.acquire()
    assert lock.fence_token > tokens[-1]


def test_it_is_one_call(held, proxy):
    lock = held(url=proxy.url)
    lock.advance()
    proxy.forget()
    lock.advance(at_least=5)
    assert len(proxy.calls()) == 1


@every_issuer
def test_the_token_is_at_least_what_was_asked_for(held, r, issuer):
    lock = held(issuer)
    far = 2**53 - 1000
    before = lock.fence_token
    assert lock.advance(at_least=1) > before
    if issuer == ByTen:
        assert lock.advance(at_least=far) == far + 9
    else:
        assert lock.advance(at_least=far) == far
    assert int(r.get(COUNTER)) == lock.fence_token
    assert lock.advance(at_least=far) > far
    assert lock.advance() > far + 1
    token = lock.fence_token
    lock.release()
    lock.acquire()
    assert lock.fence_token > token


@pytest.mark.parametrize("issuer", ["clock", "counter"])
def test_the_greatest_number_can_be_asked_for_and_none_comes_after(held, r, issuer):
    lock = held(issuer)
    assert lock.advance(at_least=GREATEST) == GREATEST
    # With the counter, and without it: then it is raised first, and put back.
    for lose in (lambda: None, lambda: r.delete(COUNTER), lambda: r.set(COUNTER, 7, px=60_000)):
        lose()
        before = state_of(lock, r)
        with pytest.raises(IssuerError, match="would leave the range of exact numbers"):
            lock.advance()
        assert state_of(lock, r) == before
    assert 0 < r.pttl(COUNTER) <= 60_000


BAD = [(value, TypeError) for value in ("5", 5.0, True, b"5")]
BAD += [(value, ValueError) for value in (0, -1, 2**53, 2**63)]


@pytest.mark.parametrize(("value", "error"), BAD)
def test_a_number_that_cannot_be_a_token_is_refused_before_anything_is_sent(held, proxy, value, error):
    lock = held(url=proxy.url)
    proxy.forget()
    token = lock.fence_token
    with pytest.raises(error, match=f"^at_least must be .*; got {value!r}$"):
        lock.advance(at_least=value)
    assert proxy.calls() == []
    assert lock.fence_token == token


def test_without_a_lease_there_is_nothing_to_advance(make, r):
    lock = make()
    with pytest.raises(NotHeld, match="cannot advance 'order:1'"):
        lock.advance()
    lock.acquire()
    lock.release()
    with pytest.raises(NotHeld):
        lock.advance()
    assert not r.exists(KEY)


@pytest.mark.parametrize("now", [None, "somebody"])
def test_a_lease_that_is_gone_or_taken_is_lost_and_no_token_drawn(held, r, now):
    lock = held("counter")
    r.set(KEY, now) if now else r.delete(KEY)
    before = state_of(lock, r)
    lost = lock.lost
    with pytest.raises(LeaseLost, match=f"cannot advance .*{now or 'free'}") as error:
        lock.advance(at_least=100)
    assert state_of(lock, r) == before
    assert error.value.fence_token == lock.fence_token == 1
    assert lost.is_set()
    assert lock.remaining() == 0


def test_a_lease_that_is_over_by_local_time_is_lost_and_nothing_is_sent(held, r, proxy):
    lock = held(url=proxy.url, timeout=0.05)
    r.persist(KEY)
    wait_until(lock.lost.is_set)
    proxy.forget()
    with pytest.raises(LeaseLost, match=r"cannot advance .*it has ended"):
        lock.advance()
    assert proxy.calls() == []


@every_issuer
@pytest.mark.parametrize("damage", [None, "3", "0"])
def test_a_counter_that_was_lost_or_set_back_does_not_hold_the_lease_back(held, r, issuer, damage):
    lock = held(issuer)
    token = lock.advance(at_least=1000)
    r.set(COUNTER, damage) if damage else r.delete(COUNTER)
    assert lock.advance() > token
    assert int(r.get(COUNTER)) == lock.fence_token


def test_a_counter_that_somebody_has_raised_is_gone_beyond(held, r):
    lock = held("counter")
    r.set(COUNTER, 41)
    assert lock.advance() == 42
    assert r.pttl(COUNTER) == -1


UNUSABLE = {
    "a list": (lambda r: r.rpush(COUNTER, 1), "wrong type: it is a list"),
    "text": (lambda r: r.set(COUNTER, "many"), "not a number: many"),
    "beyond": (lambda r: r.set(COUNTER, 2**53 + 1), "beyond the range of exact numbers"),
}


@every_issuer
@pytest.mark.parametrize("case", UNUSABLE)
def test_a_counter_that_cannot_be_used_is_an_error_and_the_lease_goes_on_as_it_was(held, r, issuer, case):
    lock = held(issuer)
    prepare, reason = UNUSABLE[case]
    r.delete(COUNTER)
    prepare(r)
    before = state_of(lock, r)
    reason = f"no fence token for 'order:1': its counter .*{reason}.*; the lease goes on with {lock.fence_token}$"
    for at_least in (None, lock.fence_token + 100):
        with pytest.raises(IssuerError, match=reason) as error:
            lock.advance(at_least)
        assert error.value.resource == KEY
    assert state_of(lock, r) == before
    assert not lock.lost.is_set()
    assert lock.ensure_held() == lock.fence_token
    r.delete(COUNTER)
    token = lock.fence_token
    assert lock.advance() > token


class Closed(ByTen):
    """Refuses beyond a hundred, having written nothing."""

    mint = ByTen.mint.replace("return string", "if last >= 100 then return nil, 'is closed' end return string")


class Still(RedisIssuer):
    """Draws the same number again and again."""

    name = "still"
    mint = "local function mint() return '7' end"


def test_an_issuer_of_ones_own_that_refuses_has_written_nothing(held, r):
    lock = held(Closed)
    for prepare in (lambda: r.delete(COUNTER), lambda: r.set(COUNTER, 5), lambda: r.set(COUNTER, 5, px=60_000)):
        prepare()
        before, lasting = state_of(lock, r), r.pttl(COUNTER)
        with pytest.raises(IssuerError, match=r"its counter 'fence:.order:1.' is closed; the lease goes on with 10"):
            lock.advance(at_least=500)
        assert state_of(lock, r) == before
        assert lasting - 5_000 < r.pttl(COUNTER) <= lasting


def test_an_issuer_of_ones_own_that_does_not_grow_is_refused(held, r):
    lock = held(Still)
    for at_least in (None, 8):
        with pytest.raises(IssuerError, match=r"gave 7, which is not greater than 7; the lease goes on with 7"):
            lock.advance(at_least)
    assert lock.ensure_held() == 7


def test_the_counter_is_kept_for_its_retention_the_lease_or_until_the_clock_has_passed_it(held, r):
    lock = held(ClockIssuer(retention=120))
    lock.advance()
    assert 115_000 < r.pttl(COUNTER) <= 121_000
    lock.extend(600, replace_ttl=True)
    lock.advance()
    assert 595_000 < r.pttl(COUNTER) <= 601_000
    day = 24 * 3600
    lock.advance(at_least=(int(time.time()) + 10 * day) * 10**6)
    assert 10 * day * 1000 - 60_000 < r.pttl(COUNTER) <= 10 * day * 1000 + 2_000


def test_a_lease_without_end_is_advanced_too(held, r):
    lock = held(timeout=None)
    token = lock.fence_token
    assert lock.advance() > token
    assert r.pttl(KEY) == -1


@pytest.mark.parametrize("fault", ["drop_reply", "drop_request"])
def test_an_attempt_that_was_lost_is_repeated(held, r, proxy, fault):
    lock = held("counter", url=proxy.url)
    # The server knows the script by now.
    assert lock.advance() == 2
    getattr(proxy, fault)(SCRIPT, times=2)
    # The two tokens whose replies were lost are nobody's.
    assert lock.advance() == (5 if fault == "drop_reply" else 3)
    assert lock.fence_token == int(r.get(COUNTER))


def test_a_reply_that_is_cut_short_is_no_token(held, r, proxy):
    lock = held(url=proxy.url)
    before = lock.advance()
    proxy.cut_reply(SCRIPT, after=9)
    assert lock.advance() > before
    assert lock.fence_token == int(r.get(COUNTER))


def test_when_the_outcome_stays_unknown_the_lease_goes_on_with_its_token(held, r, proxy, monkeypatch):
    monkeypatch.setattr(core, "RETRY_SECONDS", 0.3)
    lock = held("counter", url=proxy.url, client={"socket_timeout": 0.2})
    assert lock.advance() == 2
    cut = threading.Event()
    cut.set()
    proxy.drop_reply(lambda command: cut.is_set(), times=1000)
    with pytest.raises(OutcomeUnknown, match="advance of 'order:1' was sent and its reply was lost"):
        lock.advance()
    cut.clear()
    drawn = int(r.get(COUNTER))
    assert lock.fence_token == 2 < drawn
    assert not lock.lost.is_set()
    assert lock.advance() == drawn + 1


def test_a_server_that_cannot_be_reached_is_an_error_and_the_lease_goes_on(held, proxy, monkeypatch):
    monkeypatch.setattr(core, "RETRY_SECONDS", 0.3)
    lock = held(url=proxy.url, client={"socket_timeout": 0.2})
    token = lock.fence_token
    proxy.refuse()
    proxy.disconnect()
    with pytest.raises(redis.ConnectionError):
        lock.advance()
    assert lock.fence_token == token
    proxy.admit()
    assert lock.advance() > token


def test_a_script_that_the_server_forgot_is_sent_whole(held, r):
    lock = held()
    for _ in range(2):
        token = lock.fence_token
        r.script_flush()
        assert lock.advance() > token


@pytest.mark.parametrize("issuer", ["clock", "counter"])
def test_a_full_server_refuses_and_the_lease_goes_on_as_it_was(held, own_server, issuer):
    server = own_server()
    lock = held(issuer, url=server.url)
    with redis.Redis.from_url(server.url) as r:
        before = state_of(lock, r)
        r.config_set("maxmemory", 1)
        for at_least in (None, lock.fence_token + 100):
            with pytest.raises(redis.exceptions.OutOfMemoryError):
                lock.advance(at_least)
        assert state_of(lock, r) == before
        assert lock.ensure_held() == lock.fence_token
        lock.release()
        assert not r.exists(KEY)


def test_a_lease_under_renewal_is_advanced_meanwhile(r):
    with FencedLock(r, KEY, timeout=1, renew=True) as lock:
        tokens, ends_at = [lock.fence_token], time.monotonic() + 1.5
        while time.monotonic() < ends_at:
            tokens.append(lock.advance())
        assert tokens == sorted(set(tokens))
        assert lock.ensure_held() == tokens[-1]
        assert not lock.lost.is_set()


def test_threads_that_share_a_lease_never_lower_its_token(client_factory):
    lock = FencedLock(client_factory(), KEY, timeout=60, thread_local=False)
    lock.acquire()
    seen = []

    def work():
        mine = []
        for _ in range(50):
            mine.append(lock.advance())
            seen.append(lock.fence_token)
            assert lock.fence_token >= mine[-1]
        return mine

    drawn = [token for tokens in run_threads(*[work] * 8) for token in tokens]
    assert len(set(drawn)) == 8 * 50
    assert lock.fence_token == max(drawn)


def test_the_greatest_of_several_tokens_stays_whoever_comes_last():
    lease = core.Lease(b"owner", 5)
    seen = []
    lease.followers.append(seen.append)
    for token in (9, 7, 10, 10):
        lease.carry(token)
    assert lease.fence_token == 10
    assert seen == [9, 9, 10, 10]


def test_every_frame_that_re_entered_sees_the_new_token(r):
    with fenced_lock(KEY) as outer:
        with fenced_lock(KEY) as inner:
            first = inner.advance()
            assert outer.fence_token == inner.fence_token == first
        second = outer.advance()
        with fenced_lock(KEY) as again:
            assert again.fence_token == second > first
            outer.advance()
            assert again.fence_token > second


def test_the_issuer_is_that_of_the_lease_not_of_the_lock_that_re_entered(r):
    with fenced_lock(KEY, issuer="counter") as outer:
        with fenced_lock(KEY, issuer="clock") as inner:
            assert inner.advance() == 2
        assert outer.advance() == 3
    assert r.pttl(COUNTER) == -1


def test_a_cancelled_call_leaves_the_lease_with_its_token(r, proxy):
    async def work():
        async with redis.asyncio.Redis.from_url(proxy.url) as client:
            lock = AsyncFencedLock(client, KEY, timeout=60, thread_local=False, issuer="counter")
            await lock.acquire()
            await lock.advance()
            go = threading.Event()
            late = proxy.delay_reply(go, SCRIPT)
            task = asyncio.create_task(lock.advance())
            await asyncio.to_thread(late.wait)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            wait_until(lambda: r.get(COUNTER) == b"3")
            assert lock.fence_token == 2
            go.set()
            assert await lock.advance() == 4
            await lock.release()
            assert not r.exists(KEY)

    asyncio.run(work())
