"""Many that want the same resources, each naming them in another order, sync and async: nobody waits in vain."""

import asyncio
import itertools
import multiprocessing
import threading
import time

from fenced_locks import afenced_lock, fenced_lock, with_fenced_lock
from tests.helpers import run_threads
from tests.several import NAMES, cross_in_process, nothing_is_left

# A deadlock would last until one of them gives up.
PATIENCE = 60
ROUNDS = 15
ORDERS = [*itertools.permutations(NAMES), *itertools.permutations(NAMES, 2)]


class Crossing:
    """Who is inside: one at a time for each resource, each with a greater token than the one before."""

    def __init__(self):
        self.inside, self.last = set(), dict.fromkeys(NAMES, 0)
        self.visits = 0

    def enter(self, tokens):
        assert self.inside.isdisjoint(tokens)
        self.inside.update(tokens)
        for name, token in tokens.items():
            assert token > self.last[name]
            self.last[name] = token

    def leave(self, tokens):
        self.inside.difference_update(tokens)
        self.visits += 1


def test_threads(r):
    crossing, barrier = Crossing(), threading.Barrier(len(ORDERS))

    def cross(names):
        for _ in range(ROUNDS):
            barrier.wait(PATIENCE)
            with fenced_lock(*names, blocking_timeout=PATIENCE) as locks:
                crossing.enter(locks.fence_tokens)
                time.sleep(0.001)
                crossing.leave(locks.fence_tokens)

    started = time.monotonic()
    run_threads(*[lambda names=names: cross(names) for names in ORDERS], timeout=PATIENCE)
    assert time.monotonic() - started < PATIENCE / 2
    assert crossing.visits == ROUNDS * len(ORDERS)
    assert nothing_is_left(r)


def test_tasks(r):
    crossing = Crossing()

    async def cross(names):
        for _ in range(ROUNDS):
            async with afenced_lock(*names, blocking_timeout=PATIENCE) as locks:
                crossing.enter(locks.fence_tokens)
                await asyncio.sleep(0.001)
                crossing.leave(locks.fence_tokens)

    async def work():
        await asyncio.wait_for(asyncio.gather(*[cross(names) for names in ORDERS]), PATIENCE / 2)

    asyncio.run(work())
    assert crossing.visits == ROUNDS * len(ORDERS)
    assert nothing_is_left(r)


def test_decorated_functions_with_names_in_another_order_than_the_blocks(r):
    crossing, barrier = Crossing(), threading.Barrier(4)

    @with_fenced_lock("zone:<zone>", "stock:<sku>", "order:<id>", blocking_timeout=PATIENCE)
    def decorated(id, sku, zone, fence_tokens):
        crossing.enter(fence_tokens)
        crossing.leave(fence_tokens)

    def block(*names):
        with fenced_lock(*names, blocking_timeout=PATIENCE) as locks:
            crossing.enter(locks.fence_tokens)
            crossing.leave(locks.fence_tokens)

    def cross(action, *args):
        for _ in range(ROUNDS):
            barrier.wait(PATIENCE)
            action(*args)

    run_threads(
        *[lambda: cross(decorated, 1, "x", 9)] * 2,
        lambda: cross(block, *NAMES),
        lambda: cross(block, NAMES[0], NAMES[2]),
        timeout=PATIENCE / 2,
    )
    assert crossing.visits == ROUNDS * 4


def test_processes(r, redis_url):
    context = multiprocessing.get_context("forkserver")
    barrier, children = context.Barrier(8), []
    for names in ORDERS[:8]:
        pipe, theirs = context.Pipe()
        args = (theirs, barrier, redis_url, names, ROUNDS, PATIENCE)
        children.append((pipe, context.Process(target=cross_in_process, args=args, daemon=True)))
    for _, process in children:
        process.start()
    for pipe, process in children:
        assert pipe.poll(PATIENCE)
        assert pipe.recv() == "done"
        process.join()
    for name in NAMES:
        tokens = [int(token) for token in r.lrange(f"tokens:{name}", 0, -1)]
        assert tokens == sorted(set(tokens))
        assert len(tokens) == 2 * ROUNDS * sum(name in names for names in ORDERS[:8])
    assert nothing_is_left(r)
