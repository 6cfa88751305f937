"""How scripts reach the server. Retries are ours: see ``connecting``, ``lines``, ``listening``; ``aio`` for tasks."""

from __future__ import annotations

from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from .aio import async_wire_for
from .base import (
    AsyncListener,
    AsyncWire,
    Claim,
    JoinedAndCancelled,
    Listener,
    NotSent,
    ReplyLost,
    Undo,
    Wire,
)
from .clients import ClientWire
from .lines import Lines
from .own_reader import OwnReaderWire, has_own_reader

if TYPE_CHECKING:
    from redis import Redis

__all__ = [
    "AsyncListener",
    "AsyncWire",
    "Claim",
    "ClientWire",
    "JoinedAndCancelled",
    "Lines",
    "Listener",
    "NotSent",
    "ReplyLost",
    "Undo",
    "Wire",
    "async_wire_for",
    "wire_for",
]


def wire_for(client: Redis) -> Wire:
    """
    Return how scripts of this client reach its server; one set of connections per pool.

    Raises:
        TypeError: An asyncio client, or no client.
    """
    pool: Any = getattr(client, "connection_pool", None)
    if not hasattr(pool, "connection_class"):
        _refuse_what_does_not_block(client)
        return ClientWire(client)
    # Kept on the pool, to be collected with it: its arguments may refer to the pool itself.
    wire: Wire | None = vars(pool).get("_fenced_locks_wire")
    return wire or vars(pool).setdefault("_fenced_locks_wire", _wire_of(client, pool))


def _refuse_what_does_not_block(client: Redis) -> None:
    send = getattr(client, "execute_command", None)
    if send is None or iscoroutinefunction(send):
        raise TypeError(f"a lock that blocks needs a client that blocks, of redis-py, not {client!r}")


def _wire_of(client: Redis, pool: Any) -> Wire:
    _refuse_what_does_not_block(client)
    return OwnReaderWire(pool) if has_own_reader(pool) else Lines(pool)
