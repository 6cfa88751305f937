"""Types of the requests that a view under ``with_fenced_lock`` gets; for annotations, Django makes the requests."""

from __future__ import annotations

from django.http import HttpRequest

from .reentrant import AsyncReentrantLock, ReentrantLock
from .tokens import FenceTokens


class FencedRequest(HttpRequest):
    """
    The type of ``request`` in a view under ``with_fenced_lock``, for annotations only.

    Attributes:
        fence_token: The token of the lease; under a lock of several resources any use of it raises.
        fence_tokens: The token of each resource, by its name.
        fenced_lock: The lock; that of several resources is of another type.
    """

    fence_token: int
    fence_tokens: FenceTokens
    fenced_lock: ReentrantLock


class AsyncFencedRequest(HttpRequest):
    """
    The type of ``request`` in an async view under ``with_fenced_lock``, for annotations only.

    Attributes:
        fence_token: As for ``FencedRequest``.
        fence_tokens: As for ``FencedRequest``.
        fenced_lock: The lock, which awaits.
    """

    fence_token: int
    fence_tokens: FenceTokens
    fenced_lock: AsyncReentrantLock
