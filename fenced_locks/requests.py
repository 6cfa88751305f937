"""Types of the requests that a view under ``with_fenced_lock`` gets; for annotations, Django makes the requests."""

from __future__ import annotations

from django.http import HttpRequest

from .locks.aio import AsyncFencedLock
from .locks.sync import FencedLock


class FencedRequest(HttpRequest):
    """
    The type of ``request`` in a view under ``with_fenced_lock``, for annotations only.

    Attributes:
        fence_token: The token of the lease.
        fenced_lock: The lock.
    """

    fence_token: int
    fenced_lock: FencedLock


class AsyncFencedRequest(HttpRequest):
    """
    The type of ``request`` in an async view under ``with_fenced_lock``, for annotations only.

    Attributes:
        fence_token: The token of the lease.
        fenced_lock: The lock.
    """

    fence_token: int
    fenced_lock: AsyncFencedLock
