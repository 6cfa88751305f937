"""Transactions when replies are lost: what may have been applied is not done again, and all else is."""

import asyncio
import threading
import time
from contextlib import suppress

import pytest
import redis
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import RedisError

from fenced_locks import AsyncFencedLock, FencedLock, LeaseLost, OutcomeUnknown
from tests.helpers import wait_until
from tests.transactions import Awaiting, counted, sell

# The messages of a sale, in order, and which of several of that name.
BEFORE = [("WATCH", 1), ("GET", 1), ("GET", 2)]
WRITES = ["MULTI", "SET", "RPUSH", "EXEC"]


@pytest.fixture
def lock(kind, proxy, r):
    r.set("stock", 10)
    lock = kind.lock(kind.client(proxy.url))
    # Connected: the faults are meant for what follows.
    kind.transact(lock, lambda pipe: None, "stock")
    proxy.forget()
    return lock


def stock(r):
    """Return what is left, and what was sold, as they are at one moment."""
    left, ledger = r.pipeline().get("stock").lrange("ledger", 0, -1).execute()
    return int(left), [int(sold) for sold in ledger]


def nth(name, number):
    """Match the n-th command of a name."""
    seen = []

    def match(command):
        if command[0].upper() == name.encode():
            seen.append(command)
            return len(seen) == number
        return False

    return match


FAULTS = {
    "request": lambda proxy, match: proxy.drop_request(match),
    "reply": lambda proxy, match: proxy.drop_reply(match),
    "part of the reply": lambda proxy, match: proxy.cut_reply(match, after=1),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(("name", "number"), BEFORE)
def test_what_is_lost_before_the_writes_is_done_again(kind, lock, proxy, r, fault, name, number):
    calls = []
    FAULTS[fault](proxy, nth(name, number))
    assert kind.transact(lock, counted(sell, calls), "stock") == [True, 1]
    assert len(calls) == (2 if number == 2 else 1)
    assert stock(r) == (9, [10])
    assert len(proxy.calls("EXEC")) == 1


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", WRITES)
def test_what_is_lost_after_the_writes_were_sent_is_not_done_again(kind, lock, proxy, r, fault, name):
    calls = []
    FAULTS[fault](proxy, name)
    with pytest.raises(OutcomeUnknown, match="transaction of 'order:1' was sent and its reply was lost") as caught:
        kind.transact(lock, counted(sell, calls), "stock")
    assert caught.value.resource == "order:1"
    assert len(calls) == 1
    # The lease is as it was, and so are transactions.
    assert kind.wait(lock.ensure_held()) == lock.fence_token
    assert kind.transact(lock, sell, "stock") in ([True, 1], [True, 2])
    left, sold = stock(r)
    assert sold == [10, 9][: 10 - left]
    if fault == "request" or name == "EXEC":
        assert left == (9 if fault == "request" else 8)


@pytest.mark.parametrize("fault", FAULTS)
def test_where_nothing_was_queued_there_is_nothing_unknown(kind, lock, proxy, r, fault):
    calls = []
    FAULTS[fault](proxy, "EXEC")
    steps = counted(lambda pipe: pipe.get("stock"), calls)
    assert kind.transact(lock, steps, "stock", value_from_callable=True) == b"10"
    assert len(calls) == 2


def test_a_lost_reply_to_unwatch_harms_nobody(kind, lock, proxy, r):
    def fails(pipe):
        raise LookupError

    proxy.drop_reply("UNWATCH")
    with pytest.raises(LookupError):
        kind.transact(lock, fails, "stock")
    assert kind.transact(lock, sell, "stock") == [True, 1]


def test_a_func_that_swallows_the_loss_of_its_connection_writes_nothing_unwatched(kind, lock, proxy, r):
    calls = []

    def steps(pipe):
        try:
            left = int((yield pipe.get("stock")))
        except RedisError:
            left = 100
        pipe.multi()
        pipe.set("stock", left - 1)

    proxy.drop_reply(nth("GET", 2))
    assert kind.transact(lock, counted(steps, calls), "stock") == [True]
    assert len(calls) == 2
    assert stock(r)[0] == 9


def test_a_lost_answer_about_a_command_is_asked_for_again(kind, lock, proxy, r):
    def steps(pipe):
        yield pipe.object("ENCODING", "stock")
        pipe.multi()
        pipe.decr("stock")

    proxy.drop_reply("COMMAND")
    assert kind.transact(lock, steps, "stock") == [9]


@pytest.mark.parametrize("fault", ["request", "reply"])
def test_losses_without_end_are_given_up_at_the_deadline_and_say_what_is_known(kind, lock, proxy, r, fault):
    calls = []
    FAULTS[fault](proxy, nth("GET", 2))
    for number in range(3, 60):
        FAULTS[fault](proxy, nth("GET", number))
    started = time.monotonic()
    with pytest.raises(redis.ConnectionError, match="transaction of 'order:1' was not sent") as caught:
        kind.transact(lock, counted(sell, calls), "stock", timeout=1)
    assert time.monotonic() - started < 5
    assert not isinstance(caught.value, OutcomeUnknown)
    assert len(calls) > 1
    assert stock(r) == (10, [])


@pytest.mark.parametrize("new", [False, True])
def test_the_deadline_holds_when_the_server_is_mute(kind, lock, proxy, r, new):
    if new:
        lock = kind.lock(kind.client(proxy.url), "order:2")
    proxy.mute()
    started = time.monotonic()
    with pytest.raises((redis.ConnectionError, redis.TimeoutError), match="was not sent"):
        kind.transact(lock, sell, "stock", timeout=0.5)
    assert time.monotonic() - started < 3
    proxy.unmute()
    assert kind.transact(lock, sell, "stock") == [True, 1]


def test_a_server_that_is_away_is_waited_for(kind, lock, proxy, r):
    proxy.refuse()
    proxy.disconnect()
    back = threading.Timer(0.3, proxy.admit)
    back.start()
    assert kind.transact(lock, sell, "stock") == [True, 1]
    back.join()


def test_writes_that_arrive_late_are_not_applied_once_the_lock_is_anothers(kind, lock, proxy, r):
    arrive = threading.Event()
    late = proxy.delay_request(arrive, "EXEC")
    with pytest.raises(OutcomeUnknown):
        kind.transact(lock, sell, "stock", timeout=0.8)
    kind.wait(lock.release())
    with FencedLock(r, "order:1", timeout=20) as other:
        assert other.transaction(lambda pipe: (pipe.multi(), pipe.decr("stock")), "stock") == [9]
        arrive.set()
        late.wait()
        assert stock(r) == (9, [])


def test_writes_whose_reply_is_late_are_unknown_and_the_reply_is_nobody_elses(kind, lock, proxy, r):
    arrive = threading.Event()
    proxy.delay_reply(arrive, "EXEC")
    with pytest.raises(OutcomeUnknown, match=r"\(.*(imeout|no reply)"):
        kind.transact(lock, sell, "stock", timeout=0.8)
    arrive.set()
    assert kind.transact(lock, sell, "stock") == [True, 2]
    assert stock(r) == (8, [10, 9])


def test_a_lease_lost_while_the_connection_was_is_found_lost(kind, lock, proxy, r):
    r.set("order:1", "somebody else")
    proxy.drop_reply("WATCH")
    with pytest.raises(LeaseLost, match="held by somebody else"):
        kind.transact(lock, sell, "stock")


def test_an_interruption_closes_the_connection_in_the_middle_of_a_reply(proxy, client_factory, r):
    r.set("stock", 10)
    client = client_factory(proxy.url)

    def interrupted(pipe):
        # As if by a signal, while the reply is due.
        pipe.connection.send_command("GET", "stock")
        raise KeyboardInterrupt

    with FencedLock(client, "order:1", timeout=20) as lock:
        with pytest.raises(KeyboardInterrupt):
            lock.transaction(interrupted, "stock")
        assert lock.transaction(lambda pipe: pipe.get("ledger"), value_from_callable=True) is None


# --- cancellation --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("message", ["WATCH", "GET", "COMMAND", "MULTI", "EXEC", "UNWATCH"])
def test_a_cancellation_while_a_reply_is_due_is_raised_and_harms_no_other(proxy, r, message):
    r.set("stock", 10)
    kind = Awaiting()
    lock = kind.lock(kind.client(proxy.url), thread_local=False)

    async def func(pipe):
        left = int(await pipe.get("stock"))
        await pipe.object("ENCODING", "stock")
        if message == "UNWATCH":
            raise LookupError
        pipe.multi()
        pipe.set("stock", left - 1)
        pipe.rpush("ledger", left)

    async def work():
        release = threading.Event()
        fault = proxy.delay_reply(release, message)
        task = asyncio.ensure_future(lock.transaction(func, "stock"))
        await asyncio.to_thread(fault.wait)
        task.cancel()
        await asyncio.wait({task}, timeout=5)
        release.set()
        assert task.cancelled()
        assert await lock.ensure_held() == lock.fence_token
        assert await lock.transaction(kind.function(sell), "stock") in ([True, 1], [True, 2])
        left, sold = stock(r)
        assert sold == [10, 9][: 10 - left]
        if message not in ("MULTI", "EXEC"):
            assert left == 9
        await lock.release()

    kind.wait(work())
    kind.close()


def test_a_cancellation_while_func_thinks_leaves_nothing_watched(r, redis_url):
    r.mset({"stock": 10, "price": 1})
    kind, calls = Awaiting(), []
    lock = kind.lock(kind.client(redis_url), thread_local=False)

    async def work():
        thinking = asyncio.Event()

        async def func(pipe):
            thinking.set()
            await asyncio.sleep(60)

        task = asyncio.ensure_future(lock.transaction(func, "price"))
        await thinking.wait()
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        # A key that was watched then is of no interest now.
        r.incr("price")
        assert await lock.transaction(kind.function(counted(sell, calls)), "stock") == [True, 1]

    kind.wait(work())
    kind.close()
    assert len(calls) == 1


def test_a_cancellation_at_any_moment_leaves_everything_in_order(r, redis_url):
    """Cancelled after each number of turns of the loop, until the transaction is through before it is."""

    async def func(pipe):
        left = int(await pipe.get("stock"))
        await pipe.object("ENCODING", "stock")
        pipe.multi()
        pipe.set("stock", left - 1)
        pipe.rpush("ledger", left)
        return left

    async def cancelled_after(turns, lock):
        task = asyncio.ensure_future(lock.transaction(func, "stock"))
        for _ in range(turns):
            await asyncio.sleep(0)
        was_done = not task.cancel()
        await asyncio.wait({task}, timeout=10)
        assert task.cancelled() or was_done, (turns, task)
        return was_done

    r.set("stock", 10)

    async def main():
        client = AsyncRedis.from_url(redis_url, client_name="swept")
        turns, through = 0, 0
        async with AsyncFencedLock(client, "order:1", timeout=60, thread_local=False) as lock:
            await lock.transaction(func, "stock")
            while through < 5:
                r.mset({"stock": 10})
                r.delete("ledger")
                through += await cancelled_after(turns, lock)
                turns += 1
                # It may still be on its way.
                assert await lock.transaction(func, "stock", value_from_callable=True) in (10, 9)
                left, sold = stock(r)
                assert sold == list(range(10, left, -1)), turns
                assert await lock.ensure_held() == lock.fence_token
            assert turns > 10
            # The client's own, the one for scripts, and one for transactions; the loop has to run to close the others.
            await asyncio.to_thread(wait_until, lambda: sum(one["name"] == "swept" for one in r.client_list()) <= 3)
        await client.aclose()

    asyncio.run(main())


def test_a_cancellation_within_func_that_is_swallowed_begins_again(proxy, r):
    r.set("stock", 10)
    kind, calls = Awaiting(), []
    lock = kind.lock(kind.client(proxy.url))

    async def func(pipe):
        calls.append(pipe)
        left = 100
        with suppress(asyncio.TimeoutError):
            left = int(await asyncio.wait_for(pipe.get("stock"), 0.1))
        pipe.multi()
        pipe.set("stock", left - 1)

    proxy.delay_reply(0.5, nth("GET", 2))
    assert kind.wait(lock.transaction(func, "stock")) == [True]
    assert len(calls) == 2
    assert stock(r)[0] == 9
    kind.close()


def test_a_loop_that_ends_closes_what_transactions_used(r, redis_url):
    r.set("stock", 10)

    def open_ones():
        return [one for one in r.client_list() if one["name"] == "ended"]

    async def main():
        client = AsyncRedis.from_url(redis_url, client_name="ended")
        locks = [AsyncFencedLock(client, f"order:{number}", timeout=60) for number in range(5)]

        async def one(lock):
            async with lock:
                await lock.transaction(Awaiting.function(None, sell), "stock", timeout=20)

        await asyncio.gather(*map(one, locks))
        assert open_ones()
        await client.aclose()

    asyncio.run(main())
    assert stock(r)[0] == 5
    wait_until(lambda: not open_ones())


def test_many_tasks_share_as_many_connections_as_the_pool_may_have(r, redis_url):
    r.set("stock", 60)

    async def main():
        client = AsyncRedis.from_url(redis_url, max_connections=3, client_name="many")
        most = []

        async def one(number):
            async with AsyncFencedLock(client, f"order:{number}", timeout=60) as lock:
                if number % 4 == 3:
                    task = asyncio.ensure_future(lock.transaction(Awaiting.function(None, sell), "stock"))
                    await asyncio.sleep(0)
                    task.cancel()
                else:
                    await lock.transaction(Awaiting.function(None, sell), "stock", timeout=30)
                most.append(sum(one["name"] == "many" for one in r.client_list()))

        await asyncio.gather(*map(one, range(40)))
        await client.aclose()
        # Three, the one for scripts, and what the server has not noticed to be closed; without a limit it would be 40.
        assert max(most) <= 3 + 1 + 4

    asyncio.run(main())
    left, sold = stock(r)
    assert 60 - left == len(sold) >= 30
    assert sold == sorted(sold, reverse=True)
