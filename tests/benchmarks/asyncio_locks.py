"""
Asyncio: ``AsyncFencedLock`` against redis-py's ``redis.asyncio.lock.Lock``, and what it costs to renew leases.

    python -m tests.benchmarks.asyncio_locks [--tasks 1000] [--rounds 3] [--seconds 3] [--work-ms 1] [--again]
        [--max-connections 100] [--batches 40] [--size 200] [--locks 500] [--lease 30] [--renew-seconds 20]
        [--parts one-lock many-locks uncontended renewal]

- one-lock: that many tasks want one lock, each of them once, for so long at most. With ``--again`` each comes back
  right after its release; redis-py's lock then goes back to the same few tasks, which shows in the column "served".
- many-locks: each task acquires and releases a lock of its own, all at once, on new connections and then on the same
  ones; and how many fail where a pool has no more than ``--max-connections``.
- uncontended: one task acquires and releases, over and over.
- renewal: CPU time while that many leases are renewed and nothing else happens, without what an idle process takes.

Each contender has a new client in every round. Within a round they run right after each other, and the next round
begins with the other one. A lock object is used for one cycle. The figures are medians over the rounds, and so are the
ratios, which are taken within a round; connections are the most of any round.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Any

import servers
from redis.asyncio.lock import Lock

from fenced_locks import AsyncFencedLock
from tests.benchmarks import asyncio_rounds as rounds
from tests.benchmarks.contended_figures import median_ratio
from tests.benchmarks.side_by_side import Batch, compare, in_turns

THEIRS, OURS = "redis-py", "fenced"
CONTENDERS: dict[str, type[Lock]] = {OURS: AsyncFencedLock, THEIRS: Lock}


def part_one_lock(url: str, observer: rounds.Observer, options: argparse.Namespace) -> None:
    """Many tasks on one lock."""
    print(f"\none lock: {options.tasks} tasks, {options.work_ms:g} ms of work, {options.seconds:g} s at most")
    limits = {"seconds": options.seconds, "work": options.work_ms / 1e3, "again": options.again}
    results = measure_one_lock(url, observer, options.rounds, tasks=options.tasks, **limits)
    print(f"  {'':<10}{'grants/s':>10}{'served':>8}{'conns':>7}")
    for name, own in results.items():
        row = rounds.median_of_one_lock(own)
        print(f"  {name:<10}{row.rate:>10.1f}{row.served:>8.0f}{row.connections:>7}")
    ratio = median_ratio(results[OURS], results[THEIRS], lambda one: one.rate)
    print(f"  {OURS} / {THEIRS}: {ratio:.1f} times the grants (target: at least 20, and at most 2 connections)")


def part_many_locks(url: str, observer: rounds.Observer, options: argparse.Namespace) -> None:
    """Many tasks, each with a lock of its own."""
    print(f"\nmany locks: {options.tasks} tasks, each with its own")

    def measure(lock_class: type[Lock]) -> rounds.ManyLocks:
        observer.clear()
        return asyncio.run(rounds.many_locks(url, lock_class, tasks=options.tasks))

    results = in_turns(options.rounds, CONTENDERS, measure)
    limit = options.max_connections
    print(f"  {'':<10}{'first ms':>10}{'again ms':>10}   failed, of a pool of {limit}")
    for name, lock_class in CONTENDERS.items():
        first, again = (statistics.median(getattr(one, of) for one in results[name]) for of in ("first", "again"))
        failed = asyncio.run(rounds.failures(url, lock_class, tasks=options.tasks, max_connections=limit))
        print(f"  {name:<10}{first:>10.1f}{again:>10.1f}   {failed}")
    first, again = (_times_as_fast(results, of) for of in ("first", "again"))
    print(f"  {OURS} / {THEIRS}: {first:.1f} times as fast at first (target: at least 5), {again:.1f} times again")


def part_uncontended(url: str, observer: rounds.Observer, options: argparse.Namespace) -> None:
    """One task."""
    print("\nuncontended: one task, per cycle")
    with batches_of_cycles(url) as batches:
        names = ("redis.asyncio.lock.Lock", "AsyncFencedLock")
        compare(names, batches[THEIRS], batches[OURS], batches=options.batches, size=options.size)
        print("  (target: at most 0.90 of the wall time)")


def part_renewal(url: str, observer: rounds.Observer, options: argparse.Namespace) -> None:
    """The cost of keeping leases."""
    print(f"\nrenewal: {options.locks} leases of {options.lease:g} s, watched for {options.renew_seconds:g} s")
    wanted = {"locks": options.locks, "lease": options.lease, "seconds": options.renew_seconds}
    observer.clear()
    before, idle_seconds = observer.cost(), min(3.0, options.renew_seconds)
    time.sleep(idle_seconds)
    idle = observer.cost_since(before)
    costs = {
        "AsyncFencedLock": asyncio.run(rounds.renewal_by_task(url, observer, **wanted)),
        "FencedLock": rounds.renewal_by_thread(url, observer, **wanted),
    }
    print(f"  {'':<18}{'% of one core':>15}{'renewals':>10}")
    for name, cost in costs.items():
        percent = 100 * (cost.cpu / options.renew_seconds - idle.cpu / idle_seconds)
        print(f"  {name:<18}{percent:>15.2f}{cost.scripts:>10}")
    expected = options.locks * int(options.renew_seconds / (options.lease / 3))
    print(f"  (target: below 2 % of one core; {expected} renewals are due)")


PARTS = {
    "one-lock": part_one_lock,
    "many-locks": part_many_locks,
    "uncontended": part_uncontended,
    "renewal": part_renewal,
}


def main() -> None:
    """Print figures and ratios of each part."""
    options = parse_arguments()
    with servers.redis_server() as server, contextlib.closing(rounds.Observer(server.url)) as observer:
        print(f"redis-py {version('redis')}, Python {sys.version.split()[0]}, {observer.server_version()}")
        for part in options.parts:
            PARTS[part](server.url, observer, options)


def measure_one_lock(url: str, observer: rounds.Observer, times: int, **limits: Any) -> dict[str, list[rounds.OneLock]]:
    """Let the tasks of each contender compete for one lock, in each round with a new client."""

    def measure(lock_class: type[Lock]) -> rounds.OneLock:
        observer.clear()
        return asyncio.run(rounds.one_lock(url, lock_class, observer, **limits))

    return in_turns(times, CONTENDERS, measure)


@contextlib.contextmanager
def batches_of_cycles(url: str) -> Iterator[dict[str, Batch]]:
    """Yield what acquires and releases in an event loop, a given number of times, by contender."""
    loop = asyncio.new_event_loop()
    client = rounds.client_of(url)

    def batch(lock_class: type[Lock]) -> Batch:
        return lambda size: loop.run_until_complete(rounds.cycles(client, lock_class, size))

    try:
        yield {name: batch(lock_class) for name, lock_class in CONTENDERS.items()}
    finally:
        loop.run_until_complete(client.aclose())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def parse_arguments() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--work-ms", type=float, default=1)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--max-connections", type=int, default=100)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--size", type=int, default=200)
    parser.add_argument("--locks", type=int, default=500)
    parser.add_argument("--lease", type=float, default=30)
    parser.add_argument("--renew-seconds", type=float, default=20)
    parser.add_argument("--parts", choices=PARTS, nargs="+", default=list(PARTS))
    return parser.parse_args()


def _times_as_fast(results: dict[str, Sequence[rounds.ManyLocks]], of: str) -> float:
    return median_ratio(results[THEIRS], results[OURS], lambda one: getattr(one, of))


if __name__ == "__main__":
    main()
