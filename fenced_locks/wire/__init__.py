"""How scripts reach the server. Retries are ours: see ``connecting``, ``lines``, ``listening``; ``aio`` for tasks."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoScriptError, ResponseError

from .aio import async_wire_for
from .base import (
    REFUSED_FOR_GOOD,
    UNREACHABLE,
    AsyncListener,
    AsyncWire,
    Claim,
    Listener,
    NotSent,
    ReplyLost,
    Undo,
    Wire,
)
from .lines import Lines

if TYPE_CHECKING:
    from redis import Redis

    from ..scripts import Script

__all__ = [
    "AsyncListener",
    "AsyncWire",
    "Claim",
    "ClientWire",
    "Lines",
    "Listener",
    "NotSent",
    "ReplyLost",
    "Undo",
    "Wire",
    "async_wire_for",
    "wire_for",
]


class ClientWire:
    """Through ``execute_command``, for clients without one pool, such as a cluster's; their waiters only probe."""

    hides_retries = True
    connections = None

    def __init__(self, client: Any) -> None:
        self.server: tuple[object, ...] = (id(client),)
        self._client = client

    def call(
        self, script: Script, keys: Sequence[bytes], args: Sequence[bytes], timeout: float, undo: Undo | None = None
    ) -> Any:
        try:
            try:
                return self._run(b"EVALSHA", script.sha, keys, args)
            except NoScriptError:
                return self._run(b"EVAL", script.text, keys, args)
        except REFUSED_FOR_GOOD:
            raise
        except UNREACHABLE as error:
            raise ReplyLost from error

    def call_all(
        self, script: Script, calls: Sequence[tuple[Sequence[bytes], Sequence[bytes]]], timeout: float
    ) -> list[Any]:
        return [self._call_or_error(script, keys, args, timeout) for keys, args in calls]

    def _call_or_error(self, script: Script, keys: Sequence[bytes], args: Sequence[bytes], timeout: float) -> Any:
        try:
            return self.call(script, keys, args, timeout)
        except (ResponseError, *REFUSED_FOR_GOOD) as error:
            return error

    def listen(
        self, script: Script, keys: Sequence[bytes], args: Sequence[bytes], timeout: float, wake: bytes, seconds: float
    ) -> None:
        return None

    def _run(self, command: bytes, script: bytes, keys: Sequence[bytes], args: Sequence[bytes]) -> Any:
        return self._client.execute_command(command.decode(), script, len(keys), *keys, *args, NEVER_DECODE=True)


def wire_for(client: Redis) -> Wire:
    """
    Return how scripts of this client reach its server; one set of connections per pool.

    Raises:
        TypeError: An asyncio client.
    """
    pool: Any = getattr(client, "connection_pool", None)
    if not hasattr(pool, "connection_class"):
        return ClientWire(client)
    # Kept on the pool, to be collected with it: its arguments may refer to the pool itself.
    lines: Lines | None = vars(pool).get("_fenced_locks_lines")
    return lines or vars(pool).setdefault("_fenced_locks_lines", _lines_of(client, pool))


def _lines_of(client: Redis, pool: Any) -> Lines:
    if iscoroutinefunction(client.execute_command):
        raise TypeError(f"a lock that blocks needs a client that blocks, not {client!r}")
    return Lines(pool)
