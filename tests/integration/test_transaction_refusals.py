"""What the function of a transaction must not do, arguments that make no sense, and the connections underneath."""

import asyncio
import select
import socket
import threading
from contextlib import suppress
from uuid import uuid4

import pytest
import redis
from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster
from redis.exceptions import RedisError, ResponseError

from fenced_locks import (
    FencedLock,
    InvalidTransaction,
    NotHeld,
)
from fenced_locks.locks.watching import READS
from tests.helpers import run_threads, wait_until
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


# --- what func must not do -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "key"),
    [
        (("SET", "stock", 5), "stock"),
        (("set", b"stock", 5), "stock"),
        (("SETNX", "stock", 5), "stock"),
        (("DECR", "stock"), "stock"),
        (("DEL", "other", "stock"), "stock"),
        (("EXPIRE", "stock", 100), "stock"),
        (("SUNIONSTORE", "stock", "other"), "stock"),
        (("PFCOUNT", "stock"), "stock"),
        (("EVAL", "return redis.call('INCR', KEYS[1])", 1, "stock"), "stock"),
        (("DEL", "order:1"), "order:1"),
        (("PEXPIRE", "order:1", 20000), "order:1"),
    ],
)
@pytest.mark.parametrize("swallows", [False, True])
def test_a_write_of_a_watched_key_before_multi_is_refused_at_once(kind, lock, r, stock, command, key, swallows):
    calls = []

    def steps(pipe):
        try:
            yield pipe.execute_command(*command)
        except RedisError:
            if not swallows:
                raise
        pipe.multi()
        pipe.rpush("ledger", 1)

    ttl = r.pttl("order:1")
    with pytest.raises(
        InvalidTransaction, match=rf"sends {command[0].upper()} before multi.*may write '{key}'"
    ) as caught:
        kind.transact(lock, counted(steps, calls), "stock")
    assert caught.value.resource == "order:1"
    assert len(calls) == 1
    assert stock() == (10, [])
    assert r.ttl("stock") == -1
    assert r.pttl("order:1") <= ttl
    assert kind.transact(lock, sell, "stock") == [True, 1]


@pytest.mark.parametrize(
    "command",
    [
        ("OBJECT", "ENCODING", "stock"),
        ("OBJECT ENCODING", "stock"),
        ("SORT", "list"),
        ("SUNIONSTORE", "other", "set"),
        ("BITFIELD", "stock", "GET", "u8", "0"),
        ("EVAL_RO", "return redis.call('GET', KEYS[1])", 1, "stock"),
        ("EVAL", "return 1", 0, "stock"),
        ("SADD", "other", "stock"),
        ("COPY", "stock", "other"),
        ("DUMP", "stock"),
        ("ECHO", "stock"),
    ],
)
def test_what_only_reads_a_watched_key_is_sent_and_so_is_what_writes_others(kind, lock, r, stock, command):
    calls = []

    def steps(pipe):
        yield pipe.execute_command(*command)
        pipe.multi()
        pipe.decr("stock")

    r.rpush("list", 1)
    r.sadd("set", 1)
    assert kind.transact(lock, counted(steps, calls), "stock", "list", "set") == [9]
    assert len(calls) == 1


@pytest.mark.parametrize("command", [("FLUSHDB",), ("FLUSHALL",), ("SWAPDB", 0, 1)])
def test_emptying_the_database_before_multi_is_refused(kind, lock, stock, command):
    with pytest.raises(InvalidTransaction, match="may write every key"):
        kind.transact(lock, lambda pipe: pipe.execute_command(*command), "stock")
    assert stock() == (10, [])


def test_a_command_that_is_wrong_is_told_by_the_server(kind, lock, stock):
    with pytest.raises(ResponseError, match="wrong number of arguments"):
        kind.transact(lock, lambda pipe: pipe.execute_command("SETEX", "stock"), "stock")
    with pytest.raises(redis.DataError):
        kind.transact(lock, lambda pipe: pipe.execute_command("SET", "stock", None), "stock")


def test_where_the_server_may_not_tell_what_a_command_does_the_arguments_decide(kind, r, redis_url, stock):
    r.acl_setuser("teller", enabled=True, nopass=True, keys="*", commands=["+@all", "-command"])
    try:
        lock = kind.lock(kind.client(redis_url, username="teller", password="any"))
        with pytest.raises(InvalidTransaction, match="sends INCRBY before multi"):
            kind.transact(lock, lambda pipe: pipe.incr("stock"), "stock")
        with pytest.raises(InvalidTransaction, match="sends OBJECT before multi"):
            kind.transact(lock, lambda pipe: pipe.object("ENCODING", "stock"), "stock")
        assert kind.transact(lock, lambda pipe: pipe.incr("other"), "stock") == []
        assert kind.transact(lock, sell, "stock") == [True, 1]
    finally:
        r.acl_deluser("teller")


def executes(pipe):
    pipe.multi()
    pipe.set("stock", 5)
    yield pipe.execute()


def discards(pipe):
    pipe.multi()
    pipe.set("stock", 5)
    yield pipe.discard()
    pipe.set("stock", 6)


def selects(pipe):
    yield pipe.select(1)


def selects_later(pipe):
    pipe.multi()
    pipe.set("stock", 5)
    pipe.select(1)


def runs_multi(pipe):
    yield pipe.execute_command("MULTI")


def unwatches(pipe):
    yield pipe.unwatch()
    pipe.set("stock", 5)


def resets(pipe):
    yield pipe.reset()
    pipe.set("stock", 5)


def watches_again(pipe):
    yield pipe.unwatch()
    yield pipe.watch("stock")


def executes_and_swallows(pipe):
    try:
        yield from executes(pipe)
    except InvalidTransaction:
        pipe.set("stock", 6)


@pytest.mark.parametrize(
    ("steps", "what"),
    [
        (executes, r"calls execute\(\)"),
        (executes_and_swallows, r"calls execute\(\)"),
        (discards, "queues DISCARD"),
        (selects, "sends SELECT"),
        (selects_later, "queues SELECT"),
        (runs_multi, "sends MULTI"),
        (unwatches, "queues writes after it has given up what is watched"),
        (resets, "queues writes after it has given up what is watched"),
        (watches_again, "sends WATCH after it has given up what is watched"),
    ],
)
def test_what_would_take_the_transaction_from_us_is_refused_and_writes_nothing(kind, lock, stock, steps, what):
    calls = []
    with pytest.raises(InvalidTransaction, match=f"^the function of a transaction under 'order:1' {what}"):
        kind.transact(lock, counted(steps, calls), "stock")
    assert len(calls) == 1
    assert stock() == (10, [])
    assert kind.transact(lock, sell, "stock") == [True, 1]


@pytest.mark.parametrize("steps", [sell, raises])
def test_a_pipeline_that_outlives_its_transaction_is_of_no_use(kind, lock, stock, steps):
    calls = []
    with suppress(LookupError):
        kind.transact(lock, counted(steps, calls), "stock")
    before = stock()
    # As redis-py does when nothing is watched, it queues.
    assert calls[0].incr("stock") is calls[0]
    with pytest.raises(InvalidTransaction):
        kind.wait(calls[0].execute())
    with pytest.raises(InvalidTransaction):
        kind.wait(calls[0].watch("stock"))
    assert stock() == before


def test_every_command_that_is_taken_to_read_does_so_for_the_server(r):
    for name in READS:
        (info,) = r.execute_command("COMMAND INFO", name)
        flags = {getattr(flag, "decode", lambda flag=flag: flag)() for flag in info[2]}
        assert "readonly" in flags, name
        # What such a command may do to its keys is said in the specifications of these.
        for spec in info[8]:
            assert {b"RO"} <= {flag if isinstance(flag, bytes) else str(flag).encode() for flag in dict_of(spec)}, name


def dict_of(spec):
    pairs = dict(zip(spec[::2], spec[1::2], strict=True)) if isinstance(spec, list) else spec
    return pairs.get(b"flags") or pairs.get("flags")


# --- bad arguments -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "options", "error", "message"),
    [
        ((None,), {}, TypeError, "func must be a function of a pipeline, not None"),
        (("stock",), {}, TypeError, "func must be a function"),
        ((nothing, None), {}, TypeError, r"watches must be keys.*\(None,\)"),
        ((nothing, ["a", "b"]), {}, TypeError, r"watches must be keys.*\['a', 'b'\]"),
        ((nothing,), {"timeout": 0}, ValueError, "timeout must be greater than 0"),
        ((nothing,), {"timeout": "1"}, TypeError, "timeout must be seconds"),
        ((nothing,), {"watch_delay": -1}, ValueError, "watch_delay must be 0 or more"),
    ],
)
def test_a_bad_argument_is_named_and_nothing_is_sent(kind, proxy, r, args, options, error, message):
    lock = kind.lock(kind.client(proxy.url))
    proxy.forget()
    with pytest.raises(error, match=message):
        kind.wait(lock.transaction(*args, **options))
    assert proxy.calls() == []


def test_a_lock_that_blocks_refuses_a_coroutine_function(r):
    async def func(pipe):
        pass

    with FencedLock(r, "order:1", timeout=10) as lock, pytest.raises(TypeError, match="must not be a coroutine"):
        lock.transaction(func)


def test_a_lock_that_blocks_refuses_what_it_would_have_to_await(r):
    async def func(pipe):
        pipe.multi()
        pipe.set("stock", 1)

    with FencedLock(r, "order:1", timeout=10) as lock:
        with pytest.raises(TypeError, match=r"^func must do its work when it is called; .* returned a coroutine$"):
            lock.transaction(lambda pipe: func(pipe))
        assert lock.transaction(queue_one) == [-1]


def test_a_generator_is_refused_rather_than_called_for_nothing(kind, lock):
    def generator(pipe):
        yield pipe.multi()

    async def async_generator(pipe):
        yield pipe.multi()

    for func in (generator, async_generator):
        with pytest.raises(TypeError, match=r"^func must not be a generator, which does nothing"):
            kind.wait(lock.transaction(func))


def queue_one(pipe):
    pipe.multi()
    pipe.decr("stock")


def test_an_async_lock_takes_any_function(kind, lock, stock):
    if kind.lock_class is FencedLock:
        pytest.skip("for async locks")
    assert kind.wait(lock.transaction(queue_one, "stock")) == [9]
    assert kind.wait(lock.transaction(lambda pipe: pipe.get("stock"), value_from_callable=True)) == b"9"


def test_without_a_lease_nothing_is_sent(kind, proxy, r):
    lock = kind.lock_class(kind.client(proxy.url), "order:1", timeout=10)
    with pytest.raises(NotHeld, match="cannot write under 'order:1'"):
        kind.transact(lock, sell, "stock")
    assert proxy.calls() == []


def test_the_shard_hint_of_redis_py_is_handed_on(kind, lock, stock):
    calls = []
    kind.transact(lock, counted(sell, calls), "stock", shard_hint="here")
    assert calls[0].shard_hint == "here"


def test_a_clusters_client_is_refused_at_once(kind, own_server):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = own_server("--cluster-enabled", "yes", "--cluster-port", str(port))
    with redis.Redis.from_url(server.url) as plain:
        plain.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
        wait_until(lambda: plain.execute_command("CLUSTER INFO")["cluster_state"] == "ok")
        make = redis.RedisCluster if kind.lock_class is FencedLock else AsyncRedisCluster
        client = make.from_url(server.url)
        try:
            lock = kind.lock(client)
            with pytest.raises(TypeError, match="needs a client with one pool of connections"):
                kind.transact(lock, sell, "stock")
            kind.wait(lock.release())
        finally:
            kind.wait(client.close() if kind.lock_class is FencedLock else client.aclose())


# --- connections ---------------------------------------------------------------------------------------------------


def test_one_connection_serves_transactions_that_end_in_whatever_way(kind, r, redis_url, stock):
    # Of this very test: the server may not have closed those of an earlier one yet.
    name = f"ours-{uuid4().hex}"

    def ours():
        return [client for client in r.client_list() if client["name"] == name]

    lock = kind.lock(kind.client(redis_url, client_name=name))
    kind.transact(lock, sell, "stock")
    before = {client["id"] for client in ours()}
    for steps in (raises, executes, unwatches, gives_up, fails_inside, fails_when_queued, nothing, sell):
        for _ in range(3):
            with suppress(InvalidTransaction, LookupError, ResponseError):
                kind.transact(lock, steps, "stock")
            assert all(client.get("watch", "0") == "0" for client in ours())
    assert {client["id"] for client in ours()} == before


def test_an_emptied_pool_keeps_nobody_from_writing(kind, r, redis_url, stock):
    client = kind.client(redis_url, max_connections=1)
    lock = kind.lock(client)
    pipe = client.pipeline()
    kind.wait(pipe.watch("stock"))
    assert kind.transact(lock, sell, "stock") == [True, 1]
    kind.wait(pipe.reset())


def test_threads_wait_for_connections_of_which_there_are_as_many_as_the_pool_may_have(r, client_factory, stock):
    client = client_factory(max_connections=2)

    def work(number):
        def func(pipe):
            int(pipe.get("stock"))
            pipe.multi()
            pipe.decr("stock")

        with FencedLock(client, f"order:{number}", timeout=20) as lock:
            for _ in range(5):
                lock.transaction(func, "stock", timeout=15)

    r.set("stock", 40)
    run_threads(*[lambda number=number: work(number) for number in range(8)])
    assert stock()[0] == 0


def test_who_finds_no_connection_in_time_says_so(client_factory, stock):
    client = client_factory(max_connections=1)
    inside, leave = threading.Event(), threading.Event()

    def holder():
        def func(pipe):
            inside.set()
            assert leave.wait(20)

        with FencedLock(client, "order:1", timeout=20) as lock:
            lock.transaction(func)

    def other():
        assert inside.wait(20)
        with FencedLock(client, "order:2", timeout=20) as lock:
            try:
                with pytest.raises(redis.ConnectionError, match="transaction of 'order:2' was not sent: every conn"):
                    lock.transaction(nothing, timeout=0.5)
            finally:
                leave.set()

    run_threads(holder, other)


def test_a_connection_that_the_server_has_closed_before_the_writes_is_no_loss(kind, lock, r, stock):
    calls = []

    def steps(pipe):
        left = int((yield pipe.get("stock")))
        if len(calls) < 3:
            r.client_kill_filter(_id=(yield pipe.client_id()))
            if kind.lock_class is FencedLock:
                select.select([pipe.connection._sock], [], [], 10)
            else:
                while not pipe.connection._reader.at_eof():
                    yield asyncio.sleep(0)
        pipe.multi()
        pipe.set("stock", left - 1)

    assert kind.transact(lock, counted(steps, calls), "stock") == [True]
    assert (len(calls), stock()[0]) == (3, 9)
