"""``lock.transaction``: what redis-py's ``transaction`` does, while the lease is ours, and nothing once it is not."""

import asyncio
import time

import pytest
from redis.exceptions import WatchError

from fenced_locks import (
    AsyncFencedLock,
    FencedLock,
    LeaseLost,
    TransactionConflict,
    fenced_lock,
    signals,
)
from tests.conftest import CLIENTS
from tests.helpers import wait_until
from tests.transactions import counted, fails_inside, fails_when_queued, gives_up, nothing, raises, sell


@pytest.fixture
def client(kind, r, redis_url):
    return kind.client(redis_url)


@pytest.fixture
def lock(kind, client):
    return kind.lock(client)


@pytest.fixture
def stock(r):
    """Set the stock; return how to see it, and the ledger."""
    r.set("stock", 10)
    return lambda: (int(r.get("stock")), [int(sold) for sold in r.lrange("ledger", 0, -1)])


def think(kind, seconds):
    """Let time pass; that of the event loop, where there is one."""
    if kind.lock_class is AsyncFencedLock:
        yield asyncio.sleep(seconds)
    else:
        time.sleep(seconds)


# --- what it returns -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", CLIENTS)
def test_with_a_client_of_any_kind(kind, r, redis_url, stock, options):
    lock = kind.lock(kind.client(redis_url, **options))
    assert kind.transact(lock, sell, "stock") == [True, 1]
    assert kind.transact(lock, sell, "stock", value_from_callable=True) == 9
    assert stock() == (8, [10, 9])
    kind.wait(lock.release())


def reads(pipe):
    return pipe.get("stock")


def reads_all(pipe):
    left = yield pipe.get("stock")
    pipe.multi()
    pipe.hgetall("missing")
    pipe.get("stock")
    return left


def fails_before(pipe):
    yield pipe.lrange("stock", 0, -1)


def twice_multi(pipe):
    yield pipe.get("stock")
    pipe.multi()
    pipe.multi()


def watches_after_multi(pipe):
    yield pipe.get("stock")
    pipe.multi()
    yield pipe.watch("other")


def only_queue_without_multi(pipe):
    yield pipe.incr("another")


@pytest.mark.parametrize("value_from_callable", [False, True])
@pytest.mark.parametrize(
    "steps",
    [
        *(sell, nothing, reads, reads_all, fails_inside, fails_when_queued, fails_before, twice_multi),
        *(watches_after_multi, gives_up, raises, only_queue_without_multi),
    ],
)
def test_it_ends_as_that_of_redis_py_does(kind, client, lock, r, stock, steps, value_from_callable):
    def outcome(of):
        r.mset({"stock": 10, "another": 1})
        r.delete("ledger")
        try:
            result = kind.transact(of, steps, "stock", value_from_callable=value_from_callable)
        except Exception as error:  # noqa: BLE001 - compared
            result = type(error), str(error)
        return result, stock()[0], r.get("another")

    assert outcome(lock) == outcome(client)
    assert kind.transact(lock, sell, "stock")


def test_a_script_may_be_queued_and_is_loaded(kind, client, lock, r, stock):
    script = client.register_script("return redis.call('INCRBY', KEYS[1], ARGV[1])")

    def steps(pipe):
        yield pipe.get("stock")
        pipe.multi()
        yield script(keys=["stock"], args=[5], client=pipe)

    r.script_flush()
    assert kind.transact(lock, steps, "stock") == [15]


def test_a_callback_of_the_client_is_used(kind, client, lock, stock):
    client.set_response_callback("GET", lambda reply, **_: f"<{int(reply)}>")
    assert kind.transact(lock, reads, "stock", value_from_callable=True) == "<10>"


def test_func_may_watch_more(kind, lock, r, stock):
    calls = []

    def steps(pipe):
        yield pipe.watch("price")
        price = int((yield pipe.get("price")))
        if len(calls) == 1:
            r.set("price", 3)
        pipe.multi()
        pipe.decrby("stock", price)

    r.set("price", 2)
    assert kind.transact(lock, counted(steps, calls)) == [7]
    assert len(calls) == 2


def test_without_keys_of_its_own_it_watches_the_lock(kind, lock, r, stock):
    def steps(pipe):
        r.delete("order:1")
        pipe.multi()
        pipe.incr("stock")

    with pytest.raises(LeaseLost):
        kind.transact(lock, steps)
    assert stock() == (10, [])


def test_a_re_entered_lease_and_the_outer_one_serve_alike(r, stock):
    def func(pipe):
        pipe.multi()
        pipe.decr("stock")

    with (
        fenced_lock("order:1", raise_on_release_error=False) as outer,
        fenced_lock("order:1", raise_on_release_error=False) as inner,
    ):
        assert inner.transaction(func, "stock") == [9]
        assert outer.transaction(func, "stock") == [8]
        r.delete("order:1")
        with pytest.raises(LeaseLost):
            inner.transaction(func, "stock")
        assert outer.lost.is_set()
    assert stock() == (8, [])


def test_transactions_may_be_nested_and_each_has_its_own_lease(kind, client, stock):
    if kind.lock_class is AsyncFencedLock:
        pytest.skip("the inner one would be a task of its own here")
    outer, inner = kind.lock(client, "order:1"), kind.lock(client, "order:2")

    def func(pipe):
        pipe.multi()
        pipe.incr("outer")
        inner.transaction(lambda pipe: (pipe.multi(), pipe.decr("stock")), "stock")

    assert outer.transaction(func, "outer") == [1]
    assert stock() == (9, [])


# --- conflicts -----------------------------------------------------------------------------------------------------


def test_a_conflict_is_tried_again_with_what_is_there_then(kind, lock, r, stock):
    calls = []

    def steps(pipe):
        left = int((yield pipe.get("stock")))
        if len(calls) < 4:
            r.decr("stock")
        pipe.multi()
        pipe.set("stock", left - 1)

    assert kind.transact(lock, counted(steps, calls), "stock") == [True]
    assert (len(calls), stock()[0]) == (4, 6)


def test_conflicts_without_end_are_given_up_at_the_deadline(kind, lock, r, stock):
    calls = []

    def steps(pipe):
        yield pipe.get("stock")
        r.incr("stock")
        pipe.multi()
        pipe.set("stock", 0)

    started = time.monotonic()
    with pytest.raises(TransactionConflict, match=r"'order:1' was given up after \d+ attempts") as caught:
        kind.transact(lock, counted(steps, calls), "stock", timeout=1)
    assert 0.9 < time.monotonic() - started < 5
    assert isinstance(caught.value, WatchError)
    assert (caught.value.resource, caught.value.attempts) == ("order:1", len(calls))
    assert stock()[0] == 10 + len(calls)
    # With a pause that grows, there are not many.
    assert 3 <= len(calls) < 100
    assert kind.wait(lock.ensure_held())


def test_watch_delay_is_the_pause(kind, lock, r, stock):
    calls = []

    def steps(pipe):
        r.incr("stock")
        pipe.multi()

    with pytest.raises(TransactionConflict):
        kind.transact(lock, counted(steps, calls), "stock", timeout=1, watch_delay=0.2)
    assert 2 <= len(calls) <= 6


def test_a_watch_error_of_funcs_own_means_once_more(kind, lock, stock):
    calls = []

    def steps(pipe):
        if len(calls) < 3:
            raise WatchError("not yet")
        pipe.multi()
        pipe.decr("stock")
        yield None

    assert kind.transact(lock, counted(steps, calls), "stock") == [9]
    assert len(calls) == 3


def test_the_end_of_a_lease_that_is_renewed_is_not_the_deadline(kind, client, stock):
    lock, calls = kind.lock(client, timeout=1, renew=True), []

    def steps(pipe):
        if len(calls) == 1:
            yield from think(kind, 1.5)
            raise WatchError("once more")
        pipe.multi()
        pipe.decr("stock")

    assert kind.transact(lock, counted(steps, calls), "stock") == [9]
    kind.wait(lock.release())


def test_it_is_not_tried_beyond_the_end_of_the_lease(kind, client, r, stock):
    lock = kind.lock(client, timeout=0.4)

    def steps(pipe):
        r.incr("stock")
        pipe.multi()

    started = time.monotonic()
    with pytest.raises(LeaseLost):
        kind.transact(lock, steps, "stock", timeout=None)
    assert time.monotonic() - started < 3


def test_a_lease_without_end_has_transactions_too(kind, client, stock):
    lock = kind.lock(client, timeout=None)
    assert kind.transact(lock, sell, "stock", timeout=None) == [True, 1]


# --- the lease -----------------------------------------------------------------------------------------------------


def steal(r):
    r.set("order:1", "somebody else")


def take_over(r):
    r.delete("order:1")
    assert FencedLock(r, "order:1", timeout=20).acquire(blocking=False)


def another_type(r):
    r.delete("order:1")
    r.rpush("order:1", 1)


def expire(r):
    r.pexpire("order:1", 1)
    wait_until(lambda: not r.exists("order:1"))


def swap(r):
    r.rename("order:1", "away")
    r.rename("away", "order:1")


LOSSES = [lambda r: r.delete("order:1"), lambda r: r.flushdb(), steal, take_over, another_type, expire]


@pytest.mark.parametrize("lose", LOSSES)
@pytest.mark.parametrize("before", [True, False])
def test_a_lease_that_is_lost_writes_nothing(kind, lock, r, stock, lose, before):
    seen, calls = [], []

    def receive(sender, **details):
        seen.append(details["owner_id"])

    def steps(pipe):
        yield pipe.get("stock")
        lose(r)
        pipe.multi()
        pipe.set("stock", 5)

    lost, owner = lock.lost, lock.owner_id
    if before:
        lose(r)
    signals.lease_lost.connect(receive)
    try:
        with pytest.raises(LeaseLost, match="cannot write under the lease of 'order:1'") as caught:
            kind.transact(lock, counted(steps, calls), "stock")
    finally:
        signals.lease_lost.disconnect(receive)
    assert len(calls) == (0 if before else 1)
    assert r.get("stock") in (b"10", None)
    assert caught.value.owner_id == owner
    assert lost.is_set()
    assert seen == [owner]


def test_a_lease_that_has_ended_here_sends_nothing(kind, proxy, stock):
    lock = kind.lock(kind.client(proxy.url), timeout=0.2)
    wait_until(lock.lost.is_set)
    proxy.forget()
    with pytest.raises(LeaseLost, match="it has ended"):
        kind.transact(lock, sell, "stock")
    assert proxy.calls() == []
    assert stock() == (10, [])


def test_a_lease_that_ends_while_func_thinks_sends_no_write(kind, proxy, stock):
    lock = kind.lock(kind.client(proxy.url), timeout=0.3)

    def steps(pipe):
        wait_until(lock.lost.is_set)
        pipe.multi()
        pipe.set("stock", 5)

    with pytest.raises(LeaseLost, match="it has ended"):
        kind.transact(lock, steps, "stock")
    assert proxy.calls("EXEC") == []
    assert stock() == (10, [])


def test_the_loss_of_another_lease_in_func_is_not_the_loss_of_this_one(kind, client, r, stock):
    if kind.lock_class is AsyncFencedLock:
        pytest.skip("the other one would be a task of its own here")
    lock, other = kind.lock(client), kind.lock(client, "order:2")
    r.delete("order:2")
    with pytest.raises(LeaseLost, match="order:2"):
        lock.transaction(lambda pipe: other.ensure_held(), "stock")
    assert not lock.lost.is_set()
    assert other.lost.is_set()


def test_an_extension_meanwhile_is_not_a_loss(kind, lock, r, stock):
    calls = []

    def steps(pipe):
        if len(calls) < 3:
            r.pexpire("order:1", 19000)
        pipe.multi()
        pipe.decr("stock")

    assert kind.transact(lock, counted(steps, calls), "stock") == [9]
    assert len(calls) == 3


def test_a_key_that_is_ours_again_is_a_conflict_and_no_loss(kind, lock, r, stock):
    calls = []

    def steps(pipe):
        if len(calls) < 2:
            swap(r)
        pipe.multi()
        pipe.decr("stock")

    assert kind.transact(lock, counted(steps, calls), "stock") == [9]
    assert len(calls) == 2


def test_it_works_while_the_lease_is_renewed_all_the_time(kind, client, stock):
    lock = kind.lock(client, timeout=1.5, renew=True)

    def steps(pipe):
        left = int((yield pipe.get("stock")))
        # Renewed about twice in that time.
        yield from think(kind, 0.06)
        pipe.multi()
        pipe.set("stock", left - 1)

    for _ in range(20):
        kind.transact(lock, steps, "stock")
    assert stock()[0] == -10
    kind.wait(lock.release())


@pytest.mark.parametrize("share", [0.3, 0.45])
def test_a_func_that_takes_longer_than_the_time_between_two_renewals_comes_through(kind, client, stock, share):
    lock, calls = kind.lock(client, timeout=1.5, renew=True), []

    def steps(pipe):
        yield from think(kind, 1.5 * share)
        pipe.multi()
        pipe.decr("stock")

    for _ in range(2):
        kind.transact(lock, counted(steps, calls), "stock", timeout=10)
    # Each may meet some renewals, since it does not begin with a lease that is whole.
    assert stock()[0] == 8
    assert kind.wait(lock.ensure_held())
    kind.wait(lock.release())
