"""The ways in which a worker takes its lock: each reads the row, thinks, and writes it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from asgiref.sync import sync_to_async

from fenced_locks import FencedLock, afenced_lock, fenced_lock, with_fenced_lock
from fenced_locks.connections import get_client
from fenced_locks.exceptions import LockNotAcquired
from fenced_locks.shortcuts import configured_issuer

from .attempts import Attempt


def block(attempt: Attempt) -> None:
    """``with fenced_lock(…)``, renewed or not."""
    plan = attempt.plan
    renew = plan.style == "renewed"
    with fenced_lock(plan.resource, timeout=plan.lease, blocking_timeout=plan.wait, renew=renew) as lock:
        attempt.granted(lock)
        _work(attempt, lock.fence_token)
        attempt.releasing(lock)


def decorated(attempt: Attempt) -> None:
    """``@with_fenced_lock(…)``; the function enters the lease once more."""
    plan = attempt.plan

    @with_fenced_lock("<name>", timeout=plan.lease, blocking_timeout=plan.wait)
    def run(name: str, fence_token: int) -> None:
        with fenced_lock(name) as lock:
            attempt.granted(lock)
            _work(attempt, fence_token)
            attempt.releasing(lock)

    run(plan.resource)


def extended(attempt: Attempt) -> None:
    """A ``FencedLock`` that is asked for a longer lease while it is held."""
    plan = attempt.plan
    lock = FencedLock(
        get_client(), plan.resource, timeout=plan.lease, blocking_timeout=plan.wait, issuer=configured_issuer()
    )
    with lock:
        attempt.granted(lock)
        with attempt.keeping(lock):
            lock.extend(plan.lease, replace_ttl=True)
        _work(attempt, lock.fence_token)
        with attempt.keeping(lock):
            lock.ensure_held()
        attempt.releasing(lock)


def plain(attempt: Attempt) -> None:
    """redis-py's lock, and a write without a fence."""
    plan = attempt.plan
    lock: Any = get_client().lock(plan.resource, timeout=plan.lease, blocking_timeout=plan.wait, sleep=0.02)
    if not lock.acquire():
        raise LockNotAcquired("busy", plan.resource)
    try:
        attempt.granted_plain(lock.local.token.decode())
        _work(attempt, None)
        attempt.releasing()
    finally:
        lock.release()


async def awaiting(attempt: Attempt) -> None:
    """``async with afenced_lock(…)``."""
    plan = attempt.plan
    async with afenced_lock(plan.resource, timeout=plan.lease, blocking_timeout=plan.wait) as lock:
        attempt.granted(lock)
        token = lock.fence_token
        if not plan.claims or await sync_to_async(attempt.claim)(token):
            row = await sync_to_async(attempt.read)()
            await asyncio.sleep(plan.think)
            await sync_to_async(attempt.write)(token, row)
        attempt.releasing(lock)


def _work(attempt: Attempt, token: int | None) -> None:
    if attempt.plan.claims and not attempt.claim(token):
        return
    row = attempt.read()
    time.sleep(attempt.plan.think)
    attempt.write(token, row)


STYLES: dict[str, Callable[[Attempt], None]] = {
    "block": block,
    "renewed": block,
    "decorated": decorated,
    "extended": extended,
    "plain": plain,
}
