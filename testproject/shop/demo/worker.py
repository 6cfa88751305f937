"""
One worker of the demo: the code that a shop would run, with the lock of redis-py and with the fenced one.

It tells its parent what it did in lines of JSON, and the parent tells it when to begin and when to go on.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from django_redis import get_redis_connection
from redis.exceptions import LockNotOwnedError
from redis.lock import Lock

from fenced_locks import fenced_lock
from shop.models import Order


def plain(number: int, status: str, lease: float) -> None:
    """Write under redis-py's own lock: nothing ties the write to the lease."""
    with Lock(get_redis_connection("default"), f"order:{number}", timeout=lease) as lock:
        tell("holds", owner=lock.local.token.decode())
        work()
        changed = Order.objects.filter(pk=number).update(status=status)
        tell("wrote", changed=changed)


def fenced(number: int, status: str, lease: float) -> None:
    """Write under a fenced lock: the token goes with the write."""
    with fenced_lock(f"order:{number}", timeout=lease) as lock:
        tell("holds", owner=lock.owner_id, token=lock.fence_token)
        work()
        changed = Order.objects.filter(pk=number).fenced_update(lock.fence_token, status=status)
        tell("wrote", changed=changed)


def run(status: str, lease: float) -> None:
    """Take part in every act that the parent names, in lines like "plain 1001"."""
    tell("ready")
    for line in iter(sys.stdin.readline, ""):
        kind, number = line.split()
        try:
            {"plain": plain, "fenced": fenced}[kind](int(number), status, lease)
        except LockNotOwnedError:
            tell("released", held=False)
        else:
            tell("released", held=True)


def work() -> None:
    """Stand in for the work of a real worker: it lasts until the parent says so."""
    if not sys.stdin.readline():
        raise SystemExit("The demo has ended.")


def tell(event: str, **facts: Any) -> None:
    """Report to the parent."""
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()
