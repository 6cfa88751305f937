"""The driver of the steps for tasks: the same decisions, and cancellations that leave nothing behind."""

import asyncio
import contextlib
import gc
import sys
import threading
import time

import pytest
from asgiref.sync import async_to_sync
from redis import asyncio as aioredis

from fenced_locks import FencedLock, OutcomeUnknown, keys
from fenced_locks.issuers import ExternalIssuer, get_issuer
from fenced_locks.locks import core, steps, waiting
from fenced_locks.locks.actions import Call, Target
from fenced_locks.locks.awaiting import arun
from fenced_locks.locks.gate import Gate, TaskPlace, ThreadPlace
from fenced_locks.loops import of_this_loop
from fenced_locks.wire import async_wire_for
from tests.helpers import run_threads, until, wait_until
from tests.waiters import registered

NAME = "order:1"


class Attempt:
    """One acquire by steps, as a lock makes it, without the gate."""

    def __init__(self, url, limit=3.0, timeout=60.0, issuer="clock", sleep=0.1, **options):
        self.client = aioredis.Redis.from_url(url, **options)
        self.wire = async_wire_for(self.client)
        self.target = Target(*keys.keys_of(NAME, "utf-8"), get_issuer(issuer), options.get("socket_timeout"), False)
        self.limit, self.timeout, self.sleep, self.call = limit, timeout, sleep, None

    async def acquire(self):
        now = time.monotonic()
        patience = core.Waiting(True, self.sleep, now, now + self.limit)
        owner = core.new_owner_id()
        self.call = Call(patience.deadline, owner)
        turns, is_last = waiting.Turns(self.target, self.call, patience, self.timeout), False
        while not await arun(self.wire, steps.acquire(self.target, self.call, owner, self.timeout)):
            if is_last:
                return False
            is_last = await arun(self.wire, turns.next())
        return True

    async def release(self):
        await arun(self.wire, steps.release(self.target, self.call.lease), to_the_end=True)


def nothing_is_left(r):
    """Say whether neither a lease nor a waiter is there."""
    return not r.exists(NAME, "wake:{order:1}") and not registered(r)


def still_held(r, owner):
    return r.get(NAME) == owner.encode() and not registered(r)


@pytest.fixture
def url(redis_url, r):
    with FencedLock(r, "warm-up", timeout=10):
        pass
    return redis_url


def test_it_acquires_waits_and_releases(url, r):
    other = FencedLock(r, NAME, timeout=10)
    other.acquire()

    async def main():
        attempt = Attempt(url)
        task = asyncio.ensure_future(attempt.acquire())
        await until(lambda: r.zcard("queue:{order:1}") == 1)
        other.release()
        assert await task
        assert r.get(NAME) == attempt.call.lease.owner
        await attempt.release()
        assert nothing_is_left(r)

    asyncio.run(main())


async def cancelled_after(turns, coroutine, *, again=False):
    """Cancel after so many turns of the loop; and once more in every turn after that."""
    task = asyncio.ensure_future(coroutine)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    while again and not task.done():
        await asyncio.sleep(0)
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        return await task
    return "cancelled"


@pytest.mark.parametrize("again", [False, True])
def test_an_acquire_that_is_cancelled_at_any_point_leaves_no_lease(url, r, again):
    async def main(turns):
        attempt = Attempt(url)
        outcome = await cancelled_after(turns, attempt.acquire(), again=again)
        if outcome is True:
            await attempt.release()
        await until(lambda: nothing_is_left(r), 1)
        return outcome

    outcomes = [asyncio.run(main(turns)) for turns in range(60)]
    assert outcomes.count("cancelled") > 3


@pytest.mark.parametrize("again", [False, True])
def test_a_waiter_that_is_cancelled_at_any_point_leaves_the_queue(url, r, again):
    holder = FencedLock(r, NAME, timeout=60)
    holder.acquire()

    async def main(turns):
        assert await cancelled_after(turns, Attempt(url).acquire(), again=again) == "cancelled"
        await until(lambda: still_held(r, holder.owner_id) and not blocked(r), 1)

    for turns in range(40):
        asyncio.run(main(turns))


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("delay", [0.0, 0.002, 0.005])
def test_a_waiter_that_is_cancelled_while_its_turn_comes_keeps_no_ticket(url, r, again, delay):
    holder = FencedLock(r, NAME, timeout=60, thread_local=False)

    def release():
        time.sleep(delay)
        holder.release()

    async def main(turns):
        attempt = Attempt(url)
        releasing = asyncio.ensure_future(asyncio.to_thread(release))
        outcome = await cancelled_after(turns, attempt.acquire(), again=again)
        await releasing
        if outcome is True:
            await attempt.release()

    late = 0
    for turns in range(40):
        # At once, also where the ticket came when nobody blocked any more and lies in its list.
        if not holder.acquire(blocking=False):
            late += 1
            assert holder.acquire(blocking_timeout=1)
        asyncio.run(main(turns))
    # A server that sees in one go that the ticket is ours and that we have hung up sends it to nobody.
    assert late <= 2


def test_wait_for_and_timeout_say_what_they_always_do(url, r):
    FencedLock(r, NAME, timeout=60).acquire()
    owner = r.get(NAME).decode()

    async def main():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(Attempt(url).acquire(), 0.1)
        assert still_held(r, owner)
        if sys.version_info >= (3, 11):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await Attempt(url).acquire()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1), asyncio.timeout(0.1001):
                    await Attempt(url).acquire()
            assert asyncio.current_task().cancelling() == 0
        assert still_held(r, owner)

    asyncio.run(main())


def test_a_cancelled_waiter_hands_on_the_ticket_that_it_got(url, r):
    holder = FencedLock(r, NAME, timeout=60)
    holder.acquire()

    async def main():
        # They would not look by themselves before the test is over.
        first, second = (Attempt(url, limit=15.0, sleep=10.0) for _ in range(2))
        one = asyncio.ensure_future(first.acquire())
        await until(lambda: r.zcard("queue:{order:1}") == 1)
        two = asyncio.ensure_future(second.acquire())
        await until(lambda: r.zcard("queue:{order:1}") == 2)
        # The ticket is with the first, and nobody has read it, when the first is cancelled.
        holder.release()
        one.cancel()
        with pytest.raises(asyncio.CancelledError):
            await one
        started = time.monotonic()
        assert await two
        assert time.monotonic() - started < 5
        await second.release()

    asyncio.run(main())
    assert nothing_is_left(r)


def test_undoing_on_a_mute_server_ends_soon(proxy, url, r):
    async def main():
        attempt = Attempt(proxy.url, limit=60.0)
        assert await attempt.acquire()
        await attempt.release()
        proxy.mute()
        attempt.call = None
        task = asyncio.ensure_future(attempt.acquire())
        # The request goes out in the same turn of the loop.
        await until(lambda: attempt.call)
        started = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - started < 3
        proxy.unmute()
        await until(lambda: nothing_is_left(r))

    asyncio.run(main())


def is_join(command):
    return len(command) > 1 and command[1] == waiting.JOIN.sha


def blocked(r):
    return [entry for entry in r.client_list() if "b" in entry["flags"]]


def test_a_waiter_that_is_cancelled_while_it_joins_is_taken_back_after_it_has_joined(proxy, url, r, monkeypatch):
    monkeypatch.setattr("fenced_locks.wire.aio_listening._JOINING_SECONDS", 10.0)
    holder = FencedLock(r, NAME, timeout=60)
    holder.acquire()

    async def main():
        attempt = Attempt(proxy.url, limit=60.0)
        arrive = threading.Event()
        late = proxy.delay_request(arrive, is_join)
        task = asyncio.ensure_future(attempt.acquire())
        await until(lambda: any(is_join(command) for command in proxy.calls("EVALSHA")))
        task.cancel()
        await asyncio.sleep(0)
        arrive.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert late.happened.is_set()
        assert still_held(r, holder.owner_id)

    asyncio.run(main())


def test_a_waiter_that_joins_a_mute_server_can_be_cancelled(proxy, url, r):
    FencedLock(r, NAME, timeout=60).acquire()

    async def main():
        attempt = Attempt(proxy.url, limit=60.0)
        proxy.delay_reply(10.0, is_join)
        task = asyncio.ensure_future(attempt.acquire())
        await until(lambda: blocked(r))
        started = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - started < 4
        await until(lambda: not blocked(r))

    asyncio.run(main())


@pytest.mark.parametrize("again", [False, True])
def test_a_release_that_is_cancelled_at_any_point_releases(url, r, again):
    async def one(turns):
        attempt = Attempt(url)
        assert await attempt.acquire()
        outcome = await cancelled_after(turns, attempt.release(), again=again)
        if turns:
            assert not r.exists(NAME)
        r.delete(NAME)
        return outcome

    outcomes = [asyncio.run(one(turns)) for turns in range(30)]
    assert outcomes.count("cancelled") > 2


def test_a_cancelled_release_whose_reply_is_lost_is_repeated(proxy, url, r):
    async def main():
        attempt = Attempt(proxy.url)
        assert await attempt.acquire()
        dropped = proxy.drop_request("EVALSHA")
        assert await cancelled_after(1, attempt.release()) == "cancelled"
        assert dropped.happened.is_set()
        assert not r.exists(NAME)

    asyncio.run(main())


async def awaited(coroutine):
    return await coroutine


@pytest.mark.parametrize("end", [asyncio.run, async_to_sync(awaited)], ids=["run", "async_to_sync"])
def test_a_loop_that_ends_has_its_tasks_undo_what_they_began(url, r, end):
    holder = FencedLock(r, NAME, timeout=60)
    holder.acquire()

    async def main():
        tasks = [asyncio.ensure_future(Attempt(url, limit=60.0).acquire()) for _ in range(3)]
        await until(lambda: r.zcard("queue:{order:1}") == 3)
        return tasks

    tasks = end(main())
    assert all(task.cancelled() for task in tasks)
    assert still_held(r, holder.owner_id)


def test_a_loop_that_ends_lets_a_release_through(url, r):
    async def main():
        attempt = Attempt(url)
        assert await attempt.acquire()
        task = asyncio.ensure_future(attempt.release())
        await asyncio.sleep(0)
        # Cancelled by us, and while it goes on by the loop that ends.
        task.cancel()
        await asyncio.sleep(0)

    asyncio.run(main())
    assert not r.exists(NAME)


def cut_off(proxy, seconds):
    """Have no server for so long; return the thread that waits for its return."""
    proxy.refuse()
    proxy.disconnect()
    back = threading.Timer(seconds, proxy.admit)
    back.start()
    return back


def test_a_loop_that_ends_lets_a_release_go_on_until_the_server_is_back(proxy, url, r):
    async def main():
        attempt = Attempt(proxy.url)
        assert await attempt.acquire()
        back = cut_off(proxy, 0.5)
        task = asyncio.ensure_future(attempt.release())
        await until(lambda: proxy.refused)
        task.cancel()
        refused = proxy.refused
        await until(lambda: proxy.refused > refused)
        return back

    asyncio.run(main()).join()
    assert not r.exists(NAME)


def test_a_loop_that_ends_lets_a_waiter_leave_that_has_to_connect_first(proxy, url, r):
    holder = FencedLock(r, NAME, timeout=60)
    holder.acquire()

    async def main():
        attempt = Attempt(proxy.url, limit=60.0, client_name="waiting")
        task = asyncio.ensure_future(attempt.acquire())
        await until(lambda: blocked(r))
        channel = of_this_loop(attempt.wire, None).line._channel
        for entry in r.client_list():
            if entry["name"] == "waiting" and "b" not in entry["flags"]:
                r.client_kill_filter(_id=entry["id"])
        await until(lambda: not channel.is_open)
        before = proxy.connections
        proxy.delay_request(0.2, "CLIENT")
        task.cancel()
        await until(lambda: proxy.connections > before)

    asyncio.run(main())
    assert still_held(r, holder.owner_id)


def test_a_loop_that_ends_lets_a_waiter_leave_that_has_not_yet_joined(proxy, url, r):
    holder = FencedLock(r, NAME, timeout=60)
    holder.acquire()

    async def main():
        attempt = Attempt(proxy.url, limit=60.0)
        late = proxy.delay_request(0.1, is_join)
        task = asyncio.ensure_future(attempt.acquire())
        await until(lambda: any(is_join(command) for command in proxy.calls("EVALSHA")))
        return task, late

    asyncio.run(main())[1].wait()
    assert still_held(r, holder.owner_id)


@pytest.mark.parametrize("to_the_end", [False, True])
def test_a_loop_that_ends_before_undoing_has_begun(url, r, to_the_end):
    """Its task is made in the very last turn of the loop, and cancelled before it takes its first step."""

    async def main(turns):
        attempt = Attempt(url)
        if to_the_end:
            assert await attempt.acquire()
        task = asyncio.ensure_future(attempt.release() if to_the_end else attempt.acquire())
        await asyncio.sleep(0)
        task.cancel()
        for _ in range(turns):
            await asyncio.sleep(0)

    for turns in range(4):
        asyncio.run(main(turns))
        assert nothing_is_left(r)


def test_an_asynchronous_generator_releases_when_the_loop_closes_it(url, r):
    async def holding():
        attempt = Attempt(url)
        assert await attempt.acquire()
        try:
            yield attempt
        finally:
            await attempt.release()

    kept = []

    async def main():
        kept.append(holding())
        await kept[0].__anext__()
        assert r.exists(NAME)

    asyncio.run(main())
    assert not r.exists(NAME)


@pytest.mark.parametrize("where", ["joining", "hearing"])
def test_one_that_is_thrown_away_is_quiet_and_frees_its_connection(url, r, where):
    FencedLock(r, NAME, timeout=60).acquire()

    async def main():
        attempt = Attempt(url)
        coroutine = attempt.acquire()
        # By hand, as a task would.
        future = coroutine.send(None)
        while not blocked(r):
            future._asyncio_future_blocking = False
            await until(lambda future=future: future.done() or blocked(r))
            if not blocked(r):
                future = coroutine.send(None)
        if where == "hearing":
            await until(future.done)
            coroutine.send(None)
        coroutine.close()
        await until(lambda: not blocked(r))
        # Until here it is the client that keeps the connection.
        assert attempt.client

    asyncio.run(main())
    gc.collect()


class SlowIssuer(ExternalIssuer):
    """Draws a token when it is told to go on."""

    name = "slow"

    def __init__(self):
        self.threads, self.go_on = [], threading.Event()

    def issue(self, resource):
        self.threads.append(threading.get_ident())
        assert self.go_on.wait(10)
        return 7


def test_a_token_from_outside_is_drawn_in_the_callers_thread_and_blocks_no_task(url, r):
    issuer = SlowIssuer()

    @async_to_sync
    async def main():
        attempt = Attempt(url, issuer=issuer)
        beats = 0

        async def beat():
            nonlocal beats
            while True:
                beats += 1
                if issuer.threads and beats > 3:
                    issuer.go_on.set()
                await asyncio.sleep(0.005)

        beating = asyncio.ensure_future(beat())
        assert await attempt.acquire()
        beating.cancel()
        assert attempt.call.lease.fence_token == 7
        await attempt.release()

    main()
    assert issuer.threads == [threading.get_ident()]


def test_cancelled_while_a_token_is_drawn(url, r):
    async def main():
        issuer = SlowIssuer()
        attempt = Attempt(url, issuer=issuer)
        task = asyncio.ensure_future(attempt.acquire())
        await until(lambda: issuer.threads)
        task.cancel()
        await asyncio.sleep(0)
        issuer.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert nothing_is_left(r)

    asyncio.run(main())


def test_lost_replies_are_the_same_for_tasks(proxy, url, r):
    async def main():
        attempt = Attempt(proxy.url, limit=2.0)
        proxy.drop_reply("EVALSHA", times=3)
        assert await attempt.acquire()
        assert r.get(NAME) == attempt.call.lease.owner
        proxy.drop_reply("EVALSHA")
        await attempt.release()
        proxy.drop_reply("EVALSHA", times=1000)
        with pytest.raises(OutcomeUnknown):
            await Attempt(proxy.url, limit=0.4).acquire()
        assert nothing_is_left(r)

    asyncio.run(main())


def test_threads_and_tasks_stand_in_one_queue():
    gate, order = Gate(), []
    front = ThreadPlace()
    gate.join("key", front)
    joined = threading.Semaphore(0)

    def a_thread(name):
        place = ThreadPlace()
        gate.join("key", place)
        joined.release()
        assert place.wait(10)
        order.append(name)
        gate.leave("key", place)

    def a_loop(*names):
        async def one(name):
            place = TaskPlace()
            gate.join("key", place)
            assert await place.wait(0.001) is False
            joined.release()
            assert await place.wait(10)
            assert await place.wait(0)
            order.append(name)
            gate.leave("key", place)

        async def main():
            await asyncio.gather(*[one(name) for name in names])

        asyncio.run(main())

    def wait_for(count):
        for _ in range(count):
            assert joined.acquire(timeout=10)

    steps_in = [
        (a_thread, ("thread 1",)),
        (a_loop, ("task 1", "task 2")),
        (a_thread, ("thread 2",)),
        (a_loop, ("task 3",)),
    ]
    threads = []
    for function, names in steps_in:
        threads.append(threading.Thread(target=function, args=names))
        threads[-1].start()
        wait_for(len(names))
    assert order == []
    gate.leave("key", front)
    for thread in threads:
        thread.join(10)
    assert order == ["thread 1", "task 1", "task 2", "thread 2", "task 3"]
    assert not gate.is_crowded("key")


def test_a_place_in_a_loop_that_is_closed_is_passed_over():
    gate, front, last = Gate(), ThreadPlace(), ThreadPlace()
    gate.join("key", front)

    async def main():
        for _ in range(2):
            gate.join("key", TaskPlace())

    asyncio.run(main())
    gate.join("key", last)
    gate.leave("key", front)
    assert last.wait(10)
    gate.leave("key", last)
    assert not gate.is_crowded("key")


def test_a_task_that_is_cancelled_in_the_queue_leaves_it():
    gate, front = Gate(), ThreadPlace()
    gate.join("key", front)

    async def main():
        async def one():
            place = TaskPlace()
            try:
                gate.join("key", place)
                await place.wait(None)
            finally:
                gate.leave("key", place)

        tasks = [asyncio.ensure_future(one()) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        gate.leave("key", front)
        await tasks[0]
        await tasks[2]

    asyncio.run(main())
    assert not gate.is_crowded("key")


def test_run_threads_of_loops_hand_over_among_each_other(url, r):
    def cycles():
        async def main():
            attempt = Attempt(url, limit=20.0)
            for _ in range(10):
                assert await attempt.acquire()
                await attempt.release()

        asyncio.run(main())

    run_threads(cycles, cycles, cycles)
    wait_until(lambda: nothing_is_left(r))
