"""
Acquire and release without competition, a new object per cycle: ``FencedLock`` against redis-py's ``Lock``.

    python -m tests.benchmarks.uncontended [--batches 60] [--size 300]
"""

from __future__ import annotations

import argparse
from functools import partial
from importlib.metadata import version

import redis
import servers
from redis.lock import Lock

from fenced_locks import FencedLock
from tests.benchmarks.side_by_side import compare


def cycles(client: redis.Redis, lock_class: type[Lock], size: int, **options: str) -> None:
    """Acquire and release ``size`` times."""
    for _ in range(size):
        lock = lock_class(client, "benchmark", timeout=10, **options)
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
        print(f"redis-py {version('redis')}, server {client.info('server')['redis_version']}, one thread, loopback")
        for issuer in ("clock", "counter"):
            client.flushdb()
            compare(
                ("redis.lock.Lock", f"FencedLock, issuer {issuer}"),
                partial(cycles, client, Lock),
                partial(cycles, client, FencedLock, issuer=issuer),
                batches=options.batches,
                size=options.size,
            )
        client.close()


if __name__ == "__main__":
    main()
