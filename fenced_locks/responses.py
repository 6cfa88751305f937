"""What a view answers when it cannot have the lock, or when its write came too late."""

from __future__ import annotations

import math

from django.http import HttpRequest, HttpResponse, JsonResponse

from .exceptions import LockNotAcquired, StaleToken

# Seconds after which to ask again where nothing is known about the end of the lease.
_RETRY_AFTER = 5


def busy_response(request: HttpRequest, busy: LockNotAcquired) -> HttpResponse:
    """
    Return 423 Locked with ``Retry-After``, in whole seconds until the lease ends.

    JSON where the client prefers it. Neither owner nor resource is told: both are internal names.
    """
    seconds = _RETRY_AFTER if busy.remaining is None else max(1, math.ceil(busy.remaining))
    detail = f"Somebody else is working on this. Try again in {seconds} s."
    response = _response(request, 423, {"error": "locked", "detail": detail, "retry_after": seconds})
    response["Retry-After"] = str(seconds)
    return response


def stale_response(request: HttpRequest, stale: StaleToken) -> HttpResponse:
    """Return 409 Conflict; JSON where the client prefers it."""
    detail = "This was changed by somebody else in the meantime. Nothing was saved."
    return _response(request, 409, {"error": "stale", "detail": detail})


def _response(request: HttpRequest, status: int, body: dict[str, object]) -> HttpResponse:
    if request.get_preferred_type(["text/plain", "application/json"]) == "application/json":
        return JsonResponse(body, status=status)
    return HttpResponse(f"{body['detail']}\n", status=status, content_type="text/plain; charset=utf-8")
