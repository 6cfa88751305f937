"""The asyncio wire: one connection for all tasks of a loop, deadlines that hold, and nothing left to chance."""

import asyncio
import contextvars
import gc
import os
import threading
import time
import weakref

import pytest
import redis
from redis import asyncio as aioredis
from redis._parsers import _AsyncHiredisParser, _AsyncRESP2Parser
from redis.exceptions import AuthenticationError, ResponseError
from redis.utils import HIREDIS_AVAILABLE

from fenced_locks.loops import of_this_loop
from fenced_locks.scripts import Script
from fenced_locks.wire import NotSent, ReplyLost, async_wire_for, wire_for
from tests.helpers import run_threads, until, wait_until

ECHO = Script("echo", "return ARGV[1]")
COUNT = Script("count", "return redis.call('INCR', KEYS[1])")
UNDO = Script("undo", "redis.call('RPUSH', 'undone', redis.call('GET', KEYS[1]) or '-', ARGV[1]) return 1")
KINDS = Script("kinds", "return {ARGV[1], 7, false, {'a'}}")
SCRIPT = ("EVALSHA", "EVAL")
PARSERS = [_AsyncRESP2Parser, *([_AsyncHiredisParser] if HIREDIS_AVAILABLE else [])]


def echo(wire, text, timeout=3.0, undo=None):
    return wire.call(ECHO, (), (text,), timeout, undo)


def count(wire, timeout=3.0, undo=None):
    return wire.call(COUNT, (b"n",), (), timeout, undo)


async def refused(awaitable, kind):
    """Return the cause of the error that comes out."""
    with pytest.raises(kind) as caught:
        await awaitable
    return caught.value.__cause__


@pytest.fixture
def make(redis_url, r):
    """`make(url)` returns the wire of a new client; what it opens is closed with the loop."""
    clients = []

    def wire_of(url=None, **options):
        clients.append(aioredis.Redis.from_url(url or redis_url, **options))
        return async_wire_for(clients[-1])

    return wire_of


def warm(make, url, **options):
    """Return a wire whose scripts the server knows."""
    with redis.Redis.from_url(url) as client:
        for script in (ECHO, COUNT, UNDO):
            client.script_load(script.text)
    return make(url, **options)


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize("decode", [False, True])
def test_replies_are_raw_whatever_the_client(make, protocol, parser, decode):
    wire = make(protocol=protocol, parser_class=parser, decode_responses=decode)

    async def main():
        assert await wire.call(KINDS, (), (b"\xff",), 3.0) == [b"\xff", 7, None, [b"a"]]
        with pytest.raises(ResponseError, match="oh no"):
            await wire.call(Script("fails", "return redis.error_reply('oh no')"), (), (), 3.0)
        assert await echo(wire, b"still there") == b"still there"

    asyncio.run(main())


def test_a_script_that_the_server_forgot_is_sent_whole(make, r, proxy):
    wire = make(proxy.url)

    async def main():
        for _ in range(2):
            r.script_flush()
            assert await asyncio.gather(*[echo(wire, b"%d" % n) for n in range(10)]) == [b"%d" % n for n in range(10)]

    asyncio.run(main())
    assert len(proxy.calls("EVALSHA")) == len(proxy.calls("EVAL")) == 20


def test_a_thousand_tasks_share_one_connection_and_few_packets(make, r, redis_url):
    wire = warm(make, redis_url, client_name="thousand")

    def reads():
        return r.info("stats")["total_reads_processed"]

    async def main():
        await echo(wire, b"")
        before = reads()
        got = await asyncio.gather(*[echo(wire, b"%d" % n) for n in range(1000)])
        assert got == [b"%d" % n for n in range(1000)]
        return reads() - before, [entry["name"] for entry in r.client_list()].count("thousand")

    packets, connections = asyncio.run(main())
    assert connections == 1
    assert packets < 50


def test_every_request_has_its_own_deadline(make, proxy, redis_url):
    wire = warm(make, proxy.url)
    late = threading.Event()

    async def main():
        await echo(wire, b"")
        proxy.delay_reply(late, lambda command: command[-1] == b"late")
        patient = asyncio.ensure_future(echo(wire, b"patient", 5.0))
        await asyncio.sleep(0)
        started = time.monotonic()
        cause = await refused(echo(wire, b"late", 0.2), ReplyLost)
        assert isinstance(cause, redis.exceptions.TimeoutError)
        assert time.monotonic() - started < 3
        assert await patient == b"patient"
        late.set()
        # The reply that comes now belongs to nobody, and not to this one.
        assert await echo(wire, b"next") == b"next"

    asyncio.run(main())


@pytest.mark.parametrize("after", [0, 1, 4])
def test_a_reply_that_is_lost_is_lost_for_all_behind_it(make, proxy, after):
    wire = warm(make, proxy.url)

    async def main():
        await echo(wire, b"")
        proxy.cut_reply(lambda command: command[-1] == b"1", after=after)
        got = await asyncio.gather(*[echo(wire, b"%d" % n) for n in range(4)], return_exceptions=True)
        assert got[0] == b"0"
        assert [type(error) for error in got[1:]] == [ReplyLost] * 3
        assert isinstance(got[1].__cause__, redis.exceptions.ConnectionError)
        assert await echo(wire, b"again") == b"again"

    asyncio.run(main())


def test_without_a_connection_nothing_was_sent(make, proxy, own_server, r):
    wire = make(proxy.url)

    async def main():
        proxy.refuse()
        for error in await asyncio.gather(*[count(wire) for _ in range(3)], return_exceptions=True):
            assert isinstance(error, NotSent)
            assert isinstance(error.__cause__, redis.exceptions.ConnectionError)
        proxy.admit()
        assert await count(wire) == 1

    asyncio.run(main())


def test_a_server_that_is_mute_from_the_first_connection(make, proxy):
    wire = make(proxy.url)

    async def main():
        proxy.mute()
        started = time.monotonic()
        first = asyncio.ensure_future(count(wire, 0.3))
        await asyncio.sleep(0.05)
        patient = asyncio.ensure_future(count(wire, 5.0))
        cause = await refused(first, NotSent)
        assert isinstance(cause, redis.exceptions.TimeoutError)
        assert 0.2 < time.monotonic() - started < 3
        await asyncio.sleep(0.1)
        proxy.unmute()
        assert await patient == 1

    asyncio.run(main())


def test_who_cancels_every_task_keeps_nobody_from_asking(make, proxy):
    """As a loop that ends does, in which locks are still to be given back."""
    wire = make(proxy.url)

    async def main():
        proxy.delay_request(0.2, "CLIENT")
        mine = asyncio.ensure_future(count(wire))
        await until(lambda: proxy.connections)
        for task in asyncio.all_tasks() - {mine, asyncio.current_task()}:
            task.cancel()
        assert await mine == 1

    asyncio.run(main())


def test_a_server_that_refuses_us_says_why(make, own_server):
    server = own_server("--requirepass", "secret", "--databases", "2")
    wrong = make(f"redis://:wrong@127.0.0.1:{server.port}/0")
    missing = make(f"redis://:secret@127.0.0.1:{server.port}/7")

    async def main():
        for error in await asyncio.gather(count(wrong), count(wrong), return_exceptions=True):
            assert isinstance(error, AuthenticationError)
        with pytest.raises(ResponseError):
            await count(missing)

    asyncio.run(main())


def test_a_connection_that_is_half_made_is_never_used(redis_url, r):
    """Interrupted between connecting and SELECT it would still be in database 0."""
    interruptions = iter([True])

    class Interrupted(aioredis.Connection):
        async def send_command(self, *args, **kwargs):
            if args[0] == "SELECT" and next(interruptions, False):
                raise InterruptedError
            await super().send_command(*args, **kwargs)

    async def main():
        url = redis_url.rsplit("/", 1)[0] + "/5"
        client = aioredis.Redis.from_pool(aioredis.ConnectionPool.from_url(url, connection_class=Interrupted))
        wire = async_wire_for(client)
        await refused(count(wire), NotSent)
        await count(wire)
        assert r.get("n") is None
        assert await client.getdel("n") == b"1"
        await client.aclose()

    asyncio.run(main())


@pytest.fixture
def held_back(make, proxy):
    """A wire whose next COUNT waits at the proxy until the event is set."""
    wire = warm(make, proxy.url)
    go = threading.Event()
    return wire, go, lambda: proxy.delay_request(go, lambda command: command[1] == COUNT.sha)


def undo_of(text):
    return UNDO, (b"n",), (text,)


def test_what_is_undone_was_done_before(held_back, proxy, r):
    wire, go, hold = held_back

    async def main():
        await echo(wire, b"")
        hold()
        await refused(count(wire, 0.2, undo_of(b"late")), ReplyLost)
        go.set()
        await until(lambda: r.llen("undone") == 2)
        assert r.lrange("undone", 0, -1) == [b"1", b"late"]

    asyncio.run(main())


@pytest.mark.parametrize("how", ["cancel", "wait_for", "close"])
def test_a_call_that_is_cancelled_is_undone_behind_itself(held_back, proxy, r, how):
    wire, go, hold = held_back

    async def main():
        await echo(wire, b"")
        hold()
        if how == "wait_for":
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(count(wire, 5.0, undo_of(b"cancelled")), 0.1)
        elif how == "cancel":
            task = asyncio.ensure_future(count(wire, 5.0, undo_of(b"cancelled")))
            await until(lambda: any(command[1] == COUNT.sha for command in proxy.calls("EVALSHA")))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            call = count(wire, 5.0, undo_of(b"cancelled"))
            call.send(None)
            await until(lambda: any(command[1] == COUNT.sha for command in proxy.calls("EVALSHA")))
            call.close()
        other = asyncio.ensure_future(echo(wire, b"others"))
        go.set()
        assert await other == b"others"
        await until(lambda: r.llen("undone") == 2)
        assert r.lrange("undone", 0, -1) == [b"1", b"cancelled"]

    asyncio.run(main())


def test_a_call_that_is_cancelled_before_it_was_sent_never_is(make, redis_url, r):
    wire = warm(make, redis_url)

    async def main():
        await echo(wire, b"")
        first = asyncio.ensure_future(echo(wire, b"under way"))
        second = asyncio.ensure_future(count(wire, 3.0, undo_of(b"")))
        await asyncio.sleep(0)
        second.cancel()
        assert await first == b"under way"
        await echo(wire, b"")
        assert not r.exists("n", "undone")

    asyncio.run(main())


def test_a_reply_that_comes_with_the_cancellation_is_undone_too(make, redis_url, r):
    """The result is there, and the task is cancelled before it could take it."""
    wire = warm(make, redis_url)
    busy = Script("busy", "local n = 0 while n < 3000000 do n = n + 1 end return 1")

    async def cancel_first(task):
        await echo(wire, b"in the same packet")
        task[0].cancel()

    async def main():
        await echo(wire, b"")
        # While it runs, what follows piles up at the server, and is answered in one packet.
        await asyncio.gather(wire.call(busy, (), (), 5.0), wire.call(busy, (), (), 5.0))
        tasks = []
        others = [asyncio.ensure_future(wire.call(busy, (), (), 5.0)), asyncio.ensure_future(cancel_first(tasks))]
        tasks.append(asyncio.ensure_future(count(wire, 3.0, undo_of(b"too late"))))
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        await asyncio.gather(*others)
        await until(lambda: r.llen("undone") == 2)
        assert r.lrange("undone", 0, -1) == [b"1", b"too late"]

    asyncio.run(main())


def test_a_connection_that_is_silent_is_given_up_and_what_was_sent_on_it_undone(make, proxy, r):
    wire = warm(make, proxy.url)
    hanging = threading.Event()

    async def main():
        await echo(wire, b"")
        proxy.delay_request(hanging, lambda command: command[1] == COUNT.sha)
        first = asyncio.ensure_future(count(wire, 0.8, undo_of(b"first")))
        await until(lambda: any(command[1] == COUNT.sha for command in proxy.calls("EVALSHA")))
        second = asyncio.ensure_future(count(wire, 60.0, undo_of(b"second")))
        started = time.monotonic()
        await refused(first, ReplyLost)
        await refused(second, ReplyLost)
        assert time.monotonic() - started < 10
        assert await echo(wire, b"on a new one") == b"on a new one"
        hanging.set()
        await until(lambda: r.llen("undone") == 4)
        assert r.lrange("undone", 0, -1) == [b"2", b"first", b"2", b"second"]

    asyncio.run(main())
    assert proxy.connections == 3


def test_a_silent_connection_is_given_up_by_those_who_come_later(make, proxy, r):
    """Whoever waited for it has been cancelled."""
    wire = warm(make, proxy.url)
    hanging = threading.Event()

    async def main():
        await echo(wire, b"")
        proxy.delay_reply(hanging, lambda command: command[1] == COUNT.sha)
        task = asyncio.ensure_future(count(wire, 0.2))
        await until(lambda: r.get("n"))
        task.cancel()
        await asyncio.sleep(0.3)
        assert await asyncio.wait_for(echo(wire, b"at once", 10.0), 3) == b"at once"

    asyncio.run(main())
    hanging.set()


def test_a_server_that_takes_nothing_any_more_keeps_no_connection_open(make, own_server):
    server = own_server()
    wire = warm(make, server.url)

    async def main():
        await echo(wire, b"")
        server.pause()
        # More than the network holds; what is left has to be thrown away.
        await refused(echo(wire, b"x" * 30_000_000, 0.2), ReplyLost)
        await asyncio.sleep(0.3)

    asyncio.run(main())
    server.resume()
    gc.collect()


def test_the_patient_are_not_disturbed_by_one_who_is_not(make, proxy, r):
    wire = warm(make, proxy.url)
    hanging = threading.Event()

    async def main():
        await echo(wire, b"")
        before = proxy.connections
        proxy.delay_request(hanging, lambda command: command[-1] == b"patient")
        patient = asyncio.ensure_future(echo(wire, b"patient", 60.0))
        await asyncio.sleep(0)
        await refused(count(wire, 0.2, undo_of(b"impatient")), ReplyLost)
        hanging.set()
        assert await patient == b"patient"
        await until(lambda: r.llen("undone") == 2)
        assert r.lrange("undone", 0, -1) == [b"1", b"impatient"]
        assert proxy.connections == before

    asyncio.run(main())


def test_an_idle_connection_that_the_server_closed_costs_nobody_a_reply(make, redis_url, r):
    wire = warm(make, redis_url, client_name="idle")

    async def main():
        await echo(wire, b"")
        (entry,) = [entry for entry in r.client_list() if entry["name"] == "idle"]
        channel = of_this_loop(wire, None).line._channel
        r.client_kill_filter(_id=entry["id"])
        await until(lambda: not channel.is_open)
        assert await echo(wire, b"again") == b"again"

    asyncio.run(main())


def test_push_messages_are_taken_for_nobodys_reply(make, r):
    async def tracking(connection):
        await connection.on_connect()
        await connection.send_command("CLIENT", "TRACKING", "ON", "BCAST")
        await connection.read_response()

    wire = make(protocol=3, redis_connect_func=tracking)

    async def main():
        await echo(wire, b"")
        for n in range(20):
            r.set(f"key:{n}", n)
            assert await echo(wire, b"%d" % n) == b"%d" % n

    asyncio.run(main())


def test_a_client_that_blocks_is_refused_and_the_other_way_round(make, r):
    with pytest.raises(TypeError, match=r"redis\.asyncio"):
        async_wire_for(r)
    with pytest.raises(TypeError, match="blocks"):
        wire_for(aioredis.Redis())


def test_threads_and_tasks_mean_the_same_server(make, redis_url, client_factory):
    client = aioredis.Redis.from_url(redis_url)
    wire = async_wire_for(client)
    assert wire.server == wire_for(client_factory()).server
    assert async_wire_for(client) is wire


def test_every_loop_has_a_connection_of_its_own_and_closes_it(make, r, redis_url):
    wire = warm(make, redis_url, client_name="loops")
    barrier = threading.Barrier(2)

    def mine():
        return [entry["id"] for entry in r.client_list() if entry["name"] == "loops"]

    async def main(meet=None):
        assert await echo(wire, b"here") == b"here"
        if meet:
            await asyncio.to_thread(meet)
            assert len(mine()) == 2
            await asyncio.to_thread(meet)
        return mine()

    first, second = asyncio.run(main()), asyncio.run(main())
    assert len(first) == len(second) == 1
    assert first != second
    run_threads(lambda: asyncio.run(main(barrier.wait)), lambda: asyncio.run(main(barrier.wait)))
    wait_until(lambda: not mine())


def test_a_pool_is_collected_and_its_connection_closed_before_the_loop_ends(r, redis_url):
    async def main():
        client = aioredis.Redis.from_url(redis_url, client_name="forgotten")
        await echo(async_wire_for(client), b"")
        assert "forgotten" in [entry["name"] for entry in r.client_list()]
        pool = weakref.ref(client.connection_pool)
        await client.aclose()
        del client
        gc.collect()
        assert pool() is None
        await until(lambda: "forgotten" not in [entry["name"] for entry in r.client_list()])

    asyncio.run(main())


def test_a_pool_that_is_collected_as_the_loop_ends(r, redis_url):
    """The task that closes its connection is cancelled with all others."""

    async def main():
        client = aioredis.Redis.from_url(redis_url)
        await echo(async_wire_for(client), b"")
        await client.aclose()
        del client
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(main())
    gc.collect()


def test_a_forked_child_uses_nothing_of_its_parents_loop(make, proxy):
    wire = warm(make, proxy.url)

    async def main():
        assert await count(wire) == 1
        before = proxy.connections
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                gc.collect()
                os.write(writing, repr(asyncio.run(in_child())).encode())
            except BaseException as error:  # noqa: BLE001 - it is shown by the parent
                os.write(writing, repr(error).encode())
            finally:
                os._exit(0)
        pending = [asyncio.ensure_future(count(wire)) for _ in range(5)]
        numbers = await asyncio.gather(*pending)
        await asyncio.to_thread(os.waitpid, child, 0)
        numbers += eval(os.read(reading, 1000))
        assert sorted(numbers) == list(range(2, 12))
        # The parent's own is still good.
        await count(wire)
        assert proxy.connections == before + 1

    async def in_child():
        return await asyncio.gather(*[count(wire) for _ in range(5)])

    asyncio.run(main())


def test_a_loop_that_goes_on_in_a_forked_child_uses_a_new_connection(make, proxy):
    """Forked between two runs of one loop, as a process does that prepares something before it forks workers."""
    wire = warm(make, proxy.url)
    loop = asyncio.new_event_loop()
    assert loop.run_until_complete(count(wire)) == 1
    before = proxy.connections
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = loop.run_until_complete(count(wire))
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    assert proxy.connections == before + 1
    assert loop.run_until_complete(count(wire)) == 3
    assert proxy.connections == before + 1
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def test_a_connection_does_not_keep_what_its_first_user_had_in_its_context(make, redis_url):
    wire = warm(make, redis_url)
    request = contextvars.ContextVar("request")

    class Request:
        pass

    async def handle():
        request.set(Request())
        await echo(wire, b"")
        return weakref.ref(request.get())

    async def main():
        seen = await asyncio.ensure_future(handle())
        await asyncio.sleep(0)
        gc.collect()
        assert seen() is None

    asyncio.run(main())
