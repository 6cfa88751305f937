"""Waiting of tasks: a connection of its own for each that blocks, few of them, and no ticket that gets lost."""

import asyncio
import contextlib
import gc
import os
import threading

import pytest
from redis import asyncio as aioredis
from redis.exceptions import ResponseError

from fenced_locks.scripts import Script
from fenced_locks.wire import Claim, JoinedAndCancelled, NotSent, ReplyLost, async_wire_for, wire_for
from fenced_locks.wire.budget import LIMIT
from tests.helpers import run_threads, until, wait_until

JOIN = Script("join", "redis.call('SADD', KEYS[1], ARGV[1]) return 7")


@pytest.fixture
def client(redis_url, r):
    r.script_load(JOIN.text)
    return aioredis.Redis.from_url(redis_url, client_name="tasks")


async def listen(client, text=b"me", timeout=3.0, seconds=30.0):
    return await async_wire_for(client).listen(JOIN, (b"joined",), (text,), timeout, b"wake", seconds)


def named(r, name="tasks"):
    return [entry for entry in r.client_list() if entry["name"] == name]


def blocked(r):
    return [entry for entry in named(r) if "b" in entry["flags"]]


def test_a_ticket_is_heard_and_the_connection_used_again(client, r):
    async def main():
        listener, reply = await listen(client)
        assert reply == 7
        assert r.smembers("joined") == {b"me"}
        assert await listener.hear(0.05) is None
        r.rpush("wake", "ticket:1")
        assert await listener.hear(3) == b"ticket:1"
        assert await listener.hang_up() is None
        (first,) = named(r)
        listener, _ = await listen(client)
        r.rpush("wake", "ticket:2")
        assert await listener.hear(3) == b"ticket:2"
        assert [entry["id"] for entry in named(r)] == [first["id"]]

    asyncio.run(main())
    wait_until(lambda: not named(r))


def test_who_hangs_up_is_blocked_no_longer(client, r):
    async def main():
        listener, _ = await listen(client)
        await until(lambda: blocked(r))
        assert await listener.hang_up() is None
        assert not blocked(r)
        r.rpush("wake", "for nobody")
        assert r.lrange("wake", 0, -1) == [b"for nobody"]

    asyncio.run(main())


def test_a_ticket_that_came_in_the_last_moment_is_found(client, r):
    async def main():
        for n in range(50):
            listener, _ = await listen(client)
            r.rpush("wake", f"ticket:{n}")
            # Delivered to the connection; nobody has read it.
            assert await listener.hang_up() == b"ticket:%d" % n
            # Whoever is cancelled at this may ask again.
            assert await listener.hang_up() == b"ticket:%d" % n

    asyncio.run(main())


def test_a_cancelled_wait_loses_no_ticket(client, r):
    async def main():
        listener, _ = await listen(client)
        task = asyncio.ensure_future(listener.hear(5))
        await until(lambda: listener._popped._waiter)
        r.rpush("wake", "ticket:1")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        hanging_up = asyncio.ensure_future(listener.hang_up())
        await asyncio.sleep(0)
        hanging_up.cancel()
        assert await listener.hang_up() == b"ticket:1"

    asyncio.run(main())


def test_a_ticket_that_was_there_before_anybody_listened_is_claimed_at_once_too(client, r):
    count = Script("count", "return {redis.call('INCR', KEYS[1]), ARGV[1], ARGV[2]}")
    r.script_load(count.text)

    async def main():
        r.rpush("wake", "ticket:1")
        listener, _ = await listen(client)
        await until(lambda: listener._popped.happened)
        claim = Claim(count, (b"n",), (b"mine",), (count, (b"undone",), (b"", b"")))
        assert await listener.hear(3, claim) == b"ticket:1"
        assert listener.claimed_at is not None
        assert await listener.answer(3) == [1, b"mine", b"ticket:1"]
        assert not r.exists("undone")

    asyncio.run(main())


def test_a_server_that_does_not_know_the_script_blocks_all_the_same(client, r):
    r.script_flush()

    async def main():
        listener, reply = await listen(client)
        assert reply is None
        r.rpush("wake", "ticket:1")
        assert await listener.hear(3) == b"ticket:1"

    asyncio.run(main())


def test_a_server_that_stops_to_wait_or_closes_is_a_lost_reply(client, r):
    async def main():
        listener, _ = await listen(client, seconds=0.05)
        with pytest.raises(ReplyLost):
            await listener.hear(3)
        listener, _ = await listen(client)
        (entry,) = await asyncio.to_thread(blocked, r)
        r.client_kill_filter(_id=entry["id"])
        with pytest.raises(ReplyLost):
            await listener.hear(3)
        assert await listener.hang_up() is None

    asyncio.run(main())


def test_an_idle_connection_that_the_server_closed_is_not_used(client, r):
    async def main():
        listener, _ = await listen(client)
        r.rpush("wake", "ticket")
        assert await listener.hear(3) == b"ticket"
        (entry,) = named(r)
        r.client_kill_filter(_id=entry["id"])
        await until(lambda: not listener._channel.is_open)
        listener, _ = await listen(client)
        await listener.hang_up()

    asyncio.run(main())


def test_what_goes_wrong_while_joining(client, r, proxy, redis_url):
    through_proxy = aioredis.Redis.from_url(proxy.url)

    async def main():
        r.set("joined", "not a set")
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            await listen(client)
        r.delete("joined")
        r.set("wake", "not a list")
        listener, _ = await listen(client)
        with pytest.raises(ResponseError):
            await listener.hear(3)
        proxy.drop_reply("EVALSHA")
        with pytest.raises(ReplyLost):
            await listen(through_proxy)
        proxy.delay_reply(1.0, "EVALSHA")
        with pytest.raises(ReplyLost):
            await listen(through_proxy, timeout=0.1)
        proxy.refuse()
        proxy.disconnect()
        with pytest.raises(NotSent):
            await listen(through_proxy)

    asyncio.run(main())
    assert take_all(client, r) == LIMIT


def take_all(client, r):
    """Return how many tasks can block at once."""

    async def main():
        found = [await listen(client, b"%d" % n) for n in range(LIMIT + 2)]
        listeners = [each[0] for each in found if each is not None]
        for listener in listeners:
            await listener.hang_up()
        return len(listeners)

    return asyncio.run(main())


def test_threads_and_tasks_share_what_one_process_may_have(client, client_factory, r):
    threads = wire_for(client_factory())
    assert take_all(client, r) == LIMIT

    def blocks():
        return threads.listen(JOIN, (b"joined",), (b"thread",), 3.0, b"wake", 30.0)

    async def main():
        listeners = [await listen(client) for _ in range(LIMIT)]
        assert blocks() is None
        assert await listen(client) is None
        # One that is idle gives way, to a thread as well.
        r.rpush("wake", "ticket")
        assert await listeners[0][0].hear(3) == b"ticket"
        listener, _ = blocks()
        await until(lambda: len(named(r)) == LIMIT - 1)
        assert await listen(client) is None
        r.rpush("wake", "ticket")
        for other, _ in listeners[1:]:
            assert await other.hang_up() in (None, b"ticket")
        return listener

    listener = asyncio.run(main())
    listener.hang_up()
    assert take_all(client, r) == LIMIT


def test_a_loop_that_was_closed_without_a_word_holds_none_for_ever(client, r):
    loop = asyncio.new_event_loop()
    for _ in range(3):
        loop.run_until_complete(listen(client))
    threads = [entry["id"] for entry in named(r)]
    assert len(threads) == 3
    loop.close()
    del loop

    def sweep():
        free = take_all(client, r)
        gc.collect()
        return free

    with pytest.warns(ResourceWarning):
        assert sweep() == LIMIT


def test_tasks_of_several_loops_wait_at_once(client, r):
    barrier = threading.Barrier(3)

    def one():
        async def main():
            listener, _ = await listen(client)
            await asyncio.to_thread(barrier.wait)
            return await listener.hear(5)

        return asyncio.run(main())

    def serve():
        barrier.wait()
        r.rpush("wake", "a", "b")

    assert sorted(run_threads(one, one, serve)[:2]) == [b"a", b"b"]


def test_a_forked_child_has_all_of_them_and_leaves_its_parents_alone(client, r):
    async def main():
        listeners = [(await listen(client))[0] for _ in range(3)]
        r.rpush("wake", "ticket")
        assert await listeners[0].hear(3) == b"ticket"
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = take_all(client, r)
            finally:
                os._exit(code)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == LIMIT
        listeners[0], _ = await listen(client)
        assert len(named(r)) == 3
        r.rpush("wake", "1", "2", "3")
        assert sorted([await listener.hear(3) for listener in listeners]) == [b"1", b"2", b"3"]

    asyncio.run(main())


def test_a_cancelled_join_leaves_no_connection_behind(client, r, proxy, monkeypatch):
    monkeypatch.setattr("fenced_locks.wire.aio_listening._JOINING_SECONDS", 10.0)
    through_proxy, answer = aioredis.Redis.from_url(proxy.url, client_name="tasks"), threading.Event()

    async def main():
        proxy.delay_reply(answer, "EVALSHA")
        task = asyncio.ensure_future(listen(through_proxy))
        await until(lambda: blocked(r))
        task.cancel()
        await asyncio.sleep(0)
        answer.set()
        with pytest.raises(JoinedAndCancelled) as late:
            await task
        listener, reply = late.value.found
        assert reply is not None
        assert await listener.hang_up() is None
        await until(lambda: not blocked(r))

    asyncio.run(main())


def test_a_cancellation_while_it_connects_is_never_lost(client, r):
    """redis-py sends by ``wait_for``, which before Python 3.12 loses one that comes in the moment when it is done."""

    async def main(turns):
        task = asyncio.ensure_future(listen(client))
        for _ in range(turns):
            await asyncio.sleep(0)
        cancelled = task.cancel()
        # One that comes later finds it registered.
        with pytest.raises((asyncio.CancelledError, JoinedAndCancelled)) if cancelled else contextlib.nullcontext():
            await task

    for turns in range(60):
        asyncio.run(main(turns))
    wait_until(lambda: not named(r))


def test_a_client_without_a_pool_only_probes(redis_url, r):
    class Cluster:
        """As a cluster's client: it has no one pool."""

        def __init__(self):
            self.inner = aioredis.Redis.from_url(redis_url)

        async def execute_command(self, *args, **options):
            return await self.inner.execute_command(*args, **options)

    async def main():
        client = Cluster()
        wire = async_wire_for(client)
        assert wire.hides_retries
        r.script_flush()
        assert await wire.call(JOIN, (b"joined",), (b"\xff",), 3.0) == 7
        assert await wire.call(JOIN, (b"joined",), (b"\xff",), 3.0) == 7
        assert await wire.listen(JOIN, (b"joined",), (b"a",), 3.0, b"wake", 1.0) is None
        await client.inner.aclose()

    asyncio.run(main())


def test_a_cancelled_call_of_such_a_client_is_not_overtaken(redis_url, r, proxy):
    class Cluster:
        def __init__(self):
            self.inner = aioredis.Redis.from_url(proxy.url)

        async def execute_command(self, *args, **options):
            return await self.inner.execute_command(*args, **options)

    async def main():
        client = Cluster()
        wire = async_wire_for(client)
        await wire.call(JOIN, (b"joined",), (b"0",), 3.0)
        arrive, sent = threading.Event(), len(proxy.calls("EVALSHA"))
        proxy.delay_request(arrive, "EVALSHA")
        task = asyncio.ensure_future(wire.call(JOIN, (b"joined",), (b"1",), 3.0))
        await until(lambda: len(proxy.calls("EVALSHA")) > sent)
        task.cancel()
        await asyncio.sleep(0)
        arrive.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert r.sismember("joined", "1")
        await client.inner.aclose()

    asyncio.run(main())
