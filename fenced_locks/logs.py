"""
What log records carry beside their message, for whoever filters, counts or formats them.

Each has ``fence_resource``, None where it is about no single one; the others where they are known. No name is one of
``logging``'s own. They are part of what users rely on: add to them, and rename none.
"""

from __future__ import annotations

from typing import Any, Final

KEYS: Final = {
    "fence_resource": "the name of the lock, or None",
    "fence_token": "the token of the lease, or of the write",
    "fence_owner_id": "the owner id of the lease",
    "fence_waited": "seconds waited for the lease",
    "fence_held": "seconds since the lease was asked for",
    "fence_remaining": "seconds until the lease ends",
    "fence_error": "the error that led to the message",
    "fence_action": "what was asked of the server",
    "fence_model": "the label of the model that was written",
    "fence_current": "the token that the row carries",
    "fence_using": "the alias of the database",
}


def about(resource: str | None, **known: Any) -> dict[str, Any]:
    """Return the ``extra`` of a log record; names without their prefix."""
    return {"fence_resource": resource, **{f"fence_{name}": value for name, value in known.items()}}
