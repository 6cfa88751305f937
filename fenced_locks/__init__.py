"""Distributed locks on Redis with fencing tokens, for Django. The models are in ``fenced_locks.models``."""

from .decorators import with_fenced_lock
from .exceptions import (
    FencedLockError,
    InvalidTransaction,
    IssuerError,
    LeaseHasNoEnd,
    LeaseLost,
    LockNotAcquired,
    NotHeld,
    OutcomeUnknown,
    StaleToken,
    TransactionConflict,
)
from .locks.aio import AsyncFencedLock
from .locks.sync import FencedLock
from .requests import AsyncFencedRequest, FencedRequest
from .shortcuts import afenced_lock, fenced_lock

__all__ = [
    "AsyncFencedLock",
    "AsyncFencedRequest",
    "FencedLock",
    "FencedLockError",
    "FencedRequest",
    "InvalidTransaction",
    "IssuerError",
    "LeaseHasNoEnd",
    "LeaseLost",
    "LockNotAcquired",
    "NotHeld",
    "OutcomeUnknown",
    "StaleToken",
    "TransactionConflict",
    "afenced_lock",
    "fenced_lock",
    "with_fenced_lock",
]
