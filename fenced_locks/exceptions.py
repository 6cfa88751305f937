"""
The errors of this package. Bases in brackets are redis-py's own, so handlers written for redis-py keep working.

    FencedLockError
    ├── LockNotAcquired      [redis.exceptions.LockError]          busy: somebody else holds the lease
    ├── NotHeld              [redis.exceptions.LockError]          this thread or task holds no lease of that lock
    ├── LeaseHasNoEnd        [redis.exceptions.LockError]          a lease without end cannot be extended
    ├── LeaseLost            [redis.exceptions.LockNotOwnedError]  the lease ended, or another owner has the resource
    ├── OutcomeUnknown       [redis.exceptions.ConnectionError]    a request was sent and its reply never came
    ├── TransactionConflict  [redis.exceptions.WatchError]         what it watches changed each time it was tried
    ├── InvalidTransaction   [redis.exceptions.RedisError]         its function does what could never be applied
    ├── StaleToken                                                 a write carried a token that is not the newest
    └── IssuerError                                                no fence token could be issued

Bad arguments raise ``ValueError`` or ``TypeError``, bad settings ``django.core.exceptions.ImproperlyConfigured``.
A server that cannot be reached raises redis-py's ``ConnectionError`` or ``TimeoutError``: nothing was sent.
"""

from __future__ import annotations

from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import LockError, LockNotOwnedError, RedisError, WatchError


class FencedLockError(Exception):
    """Root of every error that this package defines."""

    # redis-py 8 represents its errors without their message.
    __repr__ = Exception.__repr__


class _LockErrorMixin(FencedLockError):
    """Keep the resource under redis-py's name for it (``lock_name``) and under ours."""

    message: Any
    lock_name: Any

    def __init__(self, message: str = "", resource: str | None = None) -> None:
        super().__init__(message)
        # What is shown and what pickling passes to this method; redis-py 5 leaves both arguments in it.
        self.args = (message,)
        self.message = message
        self.resource = self.lock_name = resource


class LockNotAcquired(_LockErrorMixin, LockError):
    """
    The resource is busy and the wait is over.

    Attributes:
        resource: Name of the lock.
        owner_id: Who holds the lease, as last seen; None where that is not known.
        remaining: Seconds until that lease ends, as last seen; None for a lease without end or not known.
    """

    owner_id: str | None = None
    remaining: float | None = None


class NotHeld(_LockErrorMixin, LockError):
    """Nothing was acquired by this thread or task, or it was released already."""


class LeaseHasNoEnd(_LockErrorMixin, LockError):
    """A lease without end cannot be extended or reacquired."""


class LeaseLost(_LockErrorMixin, LockNotOwnedError):
    """
    The lease ended, or another owner has the resource.

    Attributes:
        resource: Name of the lock.
        fence_token: The token of the lease that was lost, where one is known.
        owner_id: The owner of the lease that was lost, where one is known.
    """

    fence_token: int | None = None
    owner_id: str | None = None


class OutcomeUnknown(FencedLockError, RedisConnectionError):
    """
    A request was sent and its reply never came: the server may or may not have carried it out.

    Attributes:
        resource: Name of the lock, where it is known.
    """

    resource: str | None = None


class TransactionConflict(FencedLockError, WatchError):
    """
    What a transaction watches was changed by others each time, until its time was over; it wrote nothing.

    Attributes:
        resource: Name of the lock, where it is known.
        attempts: How often its function was called.
    """

    resource: str | None = None
    attempts: int = 0


class InvalidTransaction(FencedLockError, RedisError):
    """
    The function of a transaction does what could never be applied under the lease; it queued nothing that was.

    Attributes:
        resource: Name of the lock, where it is known.
    """

    resource: str | None = None


class StaleToken(FencedLockError):
    """
    A write carried a token that is smaller than the one its row already has.

    Attributes:
        token: The token of the refused write.
        current: The token that the row carries, where it was looked up.
        resource: Name of the lock, where it is known.
    """

    def __init__(
        self,
        message: str = "",
        *,
        token: int | None = None,
        current: int | None = None,
        resource: str | None = None,
    ) -> None:
        super().__init__(message or _stale_message(token, current, resource))
        self.token = token
        self.current = current
        self.resource = resource


def _stale_message(token: int | None, current: int | None, resource: str | None) -> str:
    subject = f"fence token {token}" if token is not None else "the fence token"
    row = f"the row carries {current}" if current is not None else "the row was written under a newer token"
    return f"{subject} is stale: {row}" + (f" (resource {resource!r})" if resource else "")


class IssuerError(FencedLockError):
    """
    No fence token could be issued.

    Where it was to be the first of a lease, no lease was left behind; from ``advance``, the lease goes on with the
    token that it had.

    Attributes:
        resource: Name of the lock, where it is known.
    """

    resource: str | None = None
