"""What is done around the body of a decorated function, once its lock is held, and when it is left."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager, nullcontext
from typing import Any

from django.db import connections, transaction
from redis.exceptions import RedisError

from .exceptions import FencedLockError, StaleToken
from .logs import about
from .responses import stale_response
from .several import AnyAsyncLock, AnyLock, AsyncReentrantLocks, ReentrantLocks
from .tokens import NoSingleToken
from .transactions import open_transactions

_log = logging.getLogger(__name__)
_SHOWN = ("fence_token", "fence_tokens", "fenced_lock")
_SEVERAL = (ReentrantLocks, AsyncReentrantLocks)


def run_view(run: Callable[[], Any], lock: AnyLock, request: Any, databases: list[str]) -> Any:
    """Run a view under its lock, in transactions on these databases, and leave the lock; answer a stale write."""
    try:
        with _shown(request, lock), leaving(lock, quietly=True), ExitStack() as transactions:
            for alias in databases:
                transactions.enter_context(transaction.atomic(using=alias))
            return run()
    except StaleToken as stale:
        return stale_response(request, stale)


async def arun_view(run: Callable[[], Any], lock: AnyAsyncLock, request: Any) -> Any:
    """Do the same for a coroutine function, without transactions."""
    try:
        with _shown(request, lock):
            async with aleaving(lock, quietly=True):
                return await run()
    except StaleToken as stale:
        return stale_response(request, stale)


@contextmanager
def _shown(request: Any, lock: AnyLock | AnyAsyncLock) -> Iterator[None]:
    """Let the request show this lock and the tokens that its leases carry, and the outer one afterwards."""
    outer = {name: getattr(request, name) for name in _SHOWN if hasattr(request, name)}
    request.fence_token, request.fence_tokens, request.fenced_lock = _token(lock), lock.fence_tokens, lock
    try:
        with _followed(request, lock):
            yield
    finally:
        for name, value in outer.items():
            setattr(request, name, value)
        if outer and not isinstance(outer["fenced_lock"], _SEVERAL):
            # Its lease may carry another token by now.
            request.fence_token = outer["fenced_lock"].fence_token or outer["fence_token"]


def _followed(request: Any, lock: AnyLock | AnyAsyncLock) -> AbstractContextManager[None]:
    """Let the request show the token of the one lease also when it gets another one."""

    def show(token: int) -> None:
        # Not while a view within shows another lock.
        if request.fenced_lock is lock:
            request.fence_token = token

    return nullcontext() if isinstance(lock, _SEVERAL) else lock._following(show)


def _token(lock: AnyLock | AnyAsyncLock) -> int | NoSingleToken | None:
    if isinstance(lock, _SEVERAL):
        return NoSingleToken(lock.resources, "request.fence_tokens")
    return lock.fence_token


@contextmanager
def leaving(lock: AnyLock, *, quietly: bool = False) -> Iterator[None]:
    """Leave the lock after the block; a lease found lost after work that succeeded is logged if ``quietly``."""
    try:
        yield
    except BaseException as error:
        lock.__exit__(type(error), error, error.__traceback__)
        raise
    try:
        lock.__exit__(None, None, None)
    except (FencedLockError, RedisError) as error:
        if not quietly:
            raise
        _log_failed_release(lock, error)


@asynccontextmanager
async def aleaving(lock: AnyAsyncLock, *, quietly: bool = False) -> AsyncIterator[None]:
    """Do the same for a lock that awaits."""
    try:
        yield
    except BaseException as error:
        await lock.__aexit__(type(error), error, error.__traceback__)
        raise
    try:
        await lock.__aexit__(None, None, None)
    except (FencedLockError, RedisError) as error:
        if not quietly:
            raise
        _log_failed_release(lock, error)


def _log_failed_release(lock: AnyLock | AnyAsyncLock, error: Exception) -> None:
    name = ", ".join(lock.resources) if isinstance(lock, _SEVERAL) else lock.resource
    known = about(name, error=error)
    _log.warning("the work under the lock of %r is done, but its release failed: %s", name, error, extra=known)


def refuse_transaction_of_request(resources: Sequence[str]) -> None:
    """Say so where the mark did not reach Django: what the view reads may be older than its lease."""
    for alias in open_transactions():
        if connections.settings[alias]["ATOMIC_REQUESTS"]:
            raise transaction.TransactionManagementError(
                f"cannot lock {', '.join(map(repr, resources))} inside the transaction that ATOMIC_REQUESTS opened on "
                f"database {alias!r}: decorate the view function or the dispatch method with with_fenced_lock"
            )
