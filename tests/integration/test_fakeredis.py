"""Locks without any server: what reads its replies in a way of its own is asked for one reply at a time."""

import asyncio
import gc
import os
import weakref

import fakeredis
import pytest
import redis
import redis.asyncio

from fenced_locks import AsyncFencedLock, FencedLock, IssuerError, LeaseLost, LockNotAcquired, afenced_lock, fenced_lock
from fenced_locks.connections import get_client
from fenced_locks.wire import Lines, wire_for
from fenced_locks.wire.own_reader import OwnReaderWire
from tests.fakes import fake_caches
from tests.helpers import run_threads, wait_until


@pytest.fixture
def server():
    return fakeredis.FakeServer()


@pytest.fixture(params=[fakeredis.FakeRedis, fakeredis.FakeStrictRedis])
def client(request, server):
    return request.param(server=server)


@pytest.fixture
def on_fakes(settings):
    settings.CACHES = fake_caches()


class OwnReader(redis.Connection):
    """A connection to a real server, which reads in a way of its own."""

    def read_response(self, *args, **kwargs):
        return super().read_response(*args, **kwargs)


@pytest.mark.parametrize("decode", [False, True])
def test_a_lease_is_taken_kept_and_given_back(server, decode):
    client = fakeredis.FakeRedis(server=server, decode_responses=decode)
    with FencedLock(client, "order:1", timeout=10) as lock:
        first = lock.fence_token
        assert lock.owned()
        assert lock.ensure_held() == first
        assert FencedLock(client, "order:1").acquire(blocking=False) is False
        lock.extend(20, replace_ttl=True)
        assert client.pttl("order:1") > 15_000
    assert client.keys("*") in ([b"fence:{order:1}"], ["fence:{order:1}"])
    with lock:
        assert lock.fence_token > first


def test_a_lease_that_is_gone_is_lost_and_not_taken_for_released(client):
    with pytest.raises(LeaseLost, match="free"), FencedLock(client, "order:1", timeout=10):
        client.delete("order:1")


def test_waiters_get_their_turns(client):
    def use():
        with FencedLock(client, "order:1", timeout=10, blocking_timeout=20, sleep=0.01) as lock:
            return lock.fence_token

    assert len(set(run_threads(*[use] * 8))) == 8


def test_errors_of_the_server_are_told_apart(client):
    client.lpush("order:1", 1)
    with pytest.raises(LockNotAcquired, match="unknown owner"):
        FencedLock(client, "order:1", blocking=False).__enter__()
    client.set("fence:{order:2}", "abc")
    with pytest.raises(IssuerError, match="not a number"):
        FencedLock(client, "order:2").acquire()


def test_a_server_that_is_down_is_said_to_be(server, client):
    lock = FencedLock(client, "order:1", timeout=10)
    server.connected = False
    with pytest.raises(redis.exceptions.ConnectionError, match="acquire of 'order:1' was not sent"):
        lock.acquire(blocking_timeout=0)
    server.connected = True
    assert lock.acquire(blocking_timeout=0)


@pytest.mark.usefixtures("on_fakes")
@pytest.mark.parametrize("using", ["default", "plain"])
def test_locks_from_the_settings_re_enter(using):
    with fenced_lock("order:1", using=using) as outer, fenced_lock("order:1", using="default") as inner:
        assert inner.fence_token == outer.fence_token
        assert isinstance(outer._wire, OwnReaderWire)


@pytest.mark.usefixtures("on_fakes")
@pytest.mark.parametrize("using", ["default", "plain"])
def test_tasks_and_threads_meet_at_one_fake_server(using):
    async def main():
        async with afenced_lock("order:1", using=using, renew=True, timeout=1) as lock:
            assert await asyncio.create_task(afenced_lock("order:1", blocking=False).acquire()) is False
            assert fenced_lock("order:1", blocking=False).acquire() is False
            await asyncio.sleep(1.5)
            assert lock.remaining() > 0
            return await lock.ensure_held()

    token = asyncio.run(main())
    with fenced_lock("order:1") as lock:
        assert lock.fence_token > token


def test_an_async_client_of_its_own_keeps_locks():
    async def main():
        client = fakeredis.FakeAsyncRedis()

        async def use():
            async with AsyncFencedLock(client, "order:1", timeout=10, sleep=0.01) as lock:
                return lock.fence_token

        tokens = await asyncio.gather(*[use() for _ in range(8)])
        assert len(set(tokens)) == 8
        await client.aclose()

    asyncio.run(main())


def test_any_connection_that_reads_in_its_own_way_is_let_read(r, client_factory):
    client = client_factory(connection_class=OwnReader)
    with FencedLock(client, "order:1", timeout=10) as lock:
        assert isinstance(lock._wire, OwnReaderWire)
        assert r.get("order:1") == lock.owner_id.encode()
        child = os.fork()
        if child == 0:
            # On a connection of its own: the replies would get mixed up.
            os._exit(0 if FencedLock(client, "order:2", timeout=10).acquire() else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert lock.owned()


@pytest.mark.parametrize("kind", [redis.Connection, redis.UnixDomainSocketConnection, redis.SSLConnection])
def test_connections_of_redis_py_are_read_from_the_socket(kind):
    pool = redis.ConnectionPool(connection_class=kind)
    assert isinstance(wire_for(redis.Redis(connection_pool=pool)), Lines)


def test_a_subclass_that_reads_as_redis_py_does_is_read_from_the_socket(r, client_factory):
    client = client_factory(connection_class=type("Named", (redis.Connection,), {}))
    assert isinstance(wire_for(client), Lines)


def test_the_connections_go_with_the_pool(r, redis_url):
    def connected():
        return [one["name"] for one in r.client_list()].count("own-reader")

    options = {"connection_class": OwnReader, "client_name": "own-reader"}
    client = redis.Redis(connection_pool=redis.ConnectionPool.from_url(redis_url, **options))
    FencedLock(client, "order:1", timeout=1).acquire()
    gone = weakref.ref(wire_for(client))
    assert connected() == 1
    del client
    gc.collect()
    assert gone() is None
    wait_until(lambda: connected() == 0)


def test_two_fake_servers_are_two(server):
    one, other = fakeredis.FakeRedis(server=server), fakeredis.FakeRedis(server=fakeredis.FakeServer())
    assert wire_for(one).server != wire_for(other).server
    assert (
        wire_for(one).server
        == wire_for(fakeredis.FakeRedis(server=server, host=one.get_connection_kwargs()["host"])).server
    )


@pytest.mark.usefixtures("on_fakes")
def test_the_cache_of_the_settings_is_the_fake_one():
    assert get_client().ping() is True
    assert get_client("plain").connection_pool.connection_class is fakeredis.FakeRedisConnection
