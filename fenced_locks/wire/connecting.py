"""
Connections of our own, made by the client's pool settings (class, address, credentials, TLS).

They come without redis-py's retries: it repeats a command inside ``execute_command`` and hides it, and a lock must know
whether an earlier attempt may have been carried out.
"""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from ..logs import about
from .base import REFUSED_FOR_GOOD, UNREACHABLE, NotSent, ReplyLost, Undo
from .replies import Reader

if TYPE_CHECKING:
    from ..scripts import Script

_log = logging.getLogger(__name__)

# How long after a reply a connection is taken to be alive.
FRESH_SECONDS = 0.5
# Arguments of a pool's connections that refer to the pool, which would keep it from being collected.
REFERRING = ("maint_notifications_config", "maint_notifications_pool_handler")


def pack(*parts: bytes, missing: int = 0) -> bytes:
    """Return a command in the form in which Redis reads it (RESP), but for so many parts that are still missing."""
    filling: list[int | bytes] = []
    for part in parts:
        filling += (len(part), part)
    return _form(len(parts), missing) % tuple(filling)


def pack_rest(part: bytes) -> bytes:
    """Return one part that was missing."""
    return b"$%d\r\n%b\r\n" % (len(part), part)


@cache
def _form(length: int, missing: int) -> bytes:
    return b"*%d\r\n" % (length + missing) + b"$%d\r\n%b\r\n" * length


def pack_evalsha(script: Script, keys: Sequence[bytes], args: Sequence[bytes], missing: int = 0) -> bytes:
    """Return the command that runs ``script`` on a server that knows it, but for so many arguments."""
    return pack(b"EVALSHA", script.sha, b"%d" % len(keys), *keys, *args, missing=missing)


def pack_eval(script: Script, keys: Sequence[bytes], args: Sequence[bytes]) -> bytes:
    """Return the command that runs ``script`` on any server, whether it knows the script or not."""
    return pack(b"EVAL", script.text, b"%d" % len(keys), *keys, *args)


def maker(pool: Any) -> Callable[[], Any]:
    """Return what makes connections like those of ``pool``, without referring to it."""
    make = pool.connection_class
    kwargs = {key: value for key, value in pool.connection_kwargs.items() if key not in REFERRING}

    def new() -> Any:
        connection = make(**kwargs)
        connection.retry = Retry(NoBackoff(), 0)
        connection.fenced_locks_used = 0.0
        return connection

    return new


def ready(connection: Any, ends: float) -> None:
    """Connect if need be; a connection that the server has closed, or that has data, cannot be trusted."""
    if connection._sock is not None:
        # One that was in use a moment ago is not looked at: should it be dead, the request is tried again.
        if time.monotonic() - connection.fenced_locks_used < FRESH_SECONDS or not is_gone(connection):
            return
        connection.disconnect()
    try:
        connect(connection, ends - time.monotonic())
    except REFUSED_FOR_GOOD:
        raise
    except UNREACHABLE as error:
        raise NotSent from error


def is_gone(connection: Any) -> bool:
    """Return whether a connection on which nothing is due is closed, or has data and so cannot be trusted."""
    return connection._sock is None or _readable(connection._sock)


def _readable(sock: Any) -> bool:
    if not hasattr(select, "poll"):
        return bool(select.select([sock], [], [], 0)[0])
    # Without the limit on file numbers that select() has.
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def connect(connection: Any, seconds: float) -> None:
    """Connect within so many seconds, or in the time that the settings allow if that is shorter."""
    usual = connection.socket_timeout, connection.socket_connect_timeout
    connection.socket_timeout = _shorter(seconds, usual[0])
    connection.socket_connect_timeout = _shorter(seconds, usual[1])
    try:
        connection.connect()
        connection.fenced_locks_reader = Reader(connection._parser.parse_error)
    except BaseException:
        # Half made, it might not have selected its database yet.
        connection.disconnect()
        raise
    finally:
        connection.socket_timeout, connection.socket_connect_timeout = usual


def _shorter(seconds: float, other: float | None) -> float:
    return max(0.001, seconds if other is None else min(seconds, other))


def exchange_all(connection: Any, commands: Sequence[bytes], ends: float) -> list[Any]:
    """
    Send the commands in one piece and return their replies; an error of the server is returned, not raised.

    Raises:
        ReplyLost: They were sent, at least in part, and not all replies came; the connection is closed.
    """
    if not commands:
        return []
    replies = [exchange(connection, b"".join(commands), ends)]
    while len(replies) < len(commands):
        replies.append(exchange(connection, b"", ends))
    return replies


def exchange(connection: Any, command: bytes, ends: float, undo: Undo | None = None) -> Any:
    """
    Send ``command`` and return the reply to its first part; an error of the server is returned, not raised.

    Raises:
        ReplyLost: The command was sent, at least in part, and no reply came; the connection is closed.
    """
    try:
        # The socket itself: redis-py 5.2 has no time-out per read, and its send closes the socket on every exception,
        # when the undo still has to follow.
        connection._sock.settimeout(max(0.001, ends - time.monotonic()))
        if command:
            connection._sock.sendall(command)
        return read_reply(connection)
    except (ResponseError, *REFUSED_FOR_GOOD) as error:
        return error
    except UNREACHABLE as error:
        abandon(connection, undo)
        raise ReplyLost from named(error)
    except BaseException:
        abandon(connection, undo)
        raise


def read_reply(connection: Any) -> Any:
    """Return the next reply, within the socket's time-out; an error of the server is raised."""
    # Not by redis-py's parser: for replies as short as ours its generality is most of the time.
    reply = connection.fenced_locks_reader.read(connection._sock)
    connection.fenced_locks_used = time.monotonic()
    if isinstance(reply, Exception):
        raise reply
    return reply


def was_broken(error: Exception) -> bool:
    """Return whether this ended a wait for a ticket without a refusal; UNBLOCKED is a change of the server's role."""
    return not isinstance(error, ResponseError) or str(error).startswith("UNBLOCKED")


def named(error: Exception) -> Exception:
    """Return the error by redis-py's name for it."""
    if isinstance(error, (RedisConnectionError, RedisTimeoutError)):
        return error
    kind = RedisTimeoutError if isinstance(error, TimeoutError) else RedisConnectionError
    return kind(f"{type(error).__name__}: {error}")


def abandon(connection: Any, undo: Undo | None) -> None:
    """Close a connection whose reply is outstanding, and have the server undo that request right after it."""
    try:
        if undo is not None and connection._sock is not None:
            connection._sock.settimeout(0.1)
            connection._sock.sendall(pack_eval(*undo))
    except OSError:
        # Of each script that undoes something the first key is the lock's.
        resource = None if undo is None else undo[1][0].decode(errors="backslashreplace")
        what = "could not send an undo behind a request without reply"
        _log.debug(what, exc_info=True, extra=about(resource))
    finally:
        connection.disconnect()
