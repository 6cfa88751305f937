"""Distributed locks on Redis with fencing tokens, for Django. The models are in ``fenced_locks.models``."""

from .decorators import with_fenced_lock
from .exceptions import (
    FencedLockError,
    IssuerError,
    LeaseHasNoEnd,
    LeaseLost,
    LockNotAcquired,
    NotHeld,
    OutcomeUnknown,
    StaleToken,
)
from .locks.sync import FencedLock
from .shortcuts import fenced_lock

__all__ = [
    "FencedLock",
    "FencedLockError",
    "IssuerError",
    "LeaseHasNoEnd",
    "LeaseLost",
    "LockNotAcquired",
    "NotHeld",
    "OutcomeUnknown",
    "StaleToken",
    "fenced_lock",
    "with_fenced_lock",
]
