"""
Acquire and release without competition, a new object per cycle: ``FencedLock`` against redis-py's ``Lock``.

    python -m tests.benchmarks.uncontended [--batches 60] [--size 300]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any

import redis
import servers
from redis.lock import Lock

from fenced_locks import FencedLock
from tests.benchmarks.contended_workers import LEASE
from tests.benchmarks.side_by_side import compare


def cycles(make: Callable[[redis.Redis, str], Any], client: redis.Redis, size: int) -> None:
    """Acquire and release ``size`` times."""
    for _ in range(size):
        lock = make(client, "benchmark")
        lock.acquire()
        lock.release()


def main() -> None:
    """Print the ratios for both issuers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--size", type=int, default=300)
    options = parser.parse_args()
    with servers.redis_server() as server:
        client = redis.Redis.from_url(server.url)
        print(f"redis-py {version('redis')}, {servers.redis_version(client)}, one thread, loopback")
        for issuer in ("clock", "counter"):
            client.flushdb()
            compare(
                ("redis.lock.Lock", f"FencedLock, issuer {issuer}"),
                partial(cycles, partial(Lock, timeout=LEASE), client),
                partial(cycles, partial(FencedLock, timeout=LEASE, issuer=issuer), client),
                batches=options.batches,
                size=options.size,
            )
        client.close()


if __name__ == "__main__":
    main()
