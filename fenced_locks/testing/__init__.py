"""
For tests of your own code: locks that are busy, leases that end, writes without a token, keys of each test's own.

It needs no test runner: works with Django's test cases, pytest, or neither.
"""

from .cases import FencedLocksTestMixin
from .clock import move_clock
from .isolation import isolated_locks, lock_name
from .leases import assert_held, expire, hold
from .writes import assert_fenced

__all__ = [
    "FencedLocksTestMixin",
    "assert_fenced",
    "assert_held",
    "expire",
    "hold",
    "isolated_locks",
    "lock_name",
    "move_clock",
]
