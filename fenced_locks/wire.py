"""
Script calls: one send and one read on a connection of our own, so that retries are ours.

redis-py repeats a command inside ``execute_command`` and hides it; a lock must know whether an earlier attempt may
have been carried out. The connections here are made by the client's own pool settings (class, address, credentials,
TLS) but without redis-py's retries, and stand beside the pool: a pool that the application has emptied cannot keep
a holder from releasing, and a deadline holds even while a connection is being made. No more of them exist than the
pool's ``max_connections``.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Sequence
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias
from weakref import WeakSet, finalize

from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, AuthorizationError, NoScriptError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

if TYPE_CHECKING:
    from redis import Redis

    from .scripts import Script

_log = logging.getLogger(__name__)

_UNREACHABLE = (RedisConnectionError, RedisTimeoutError, OSError)
# How long after a reply a connection is taken to be alive.
_FRESH_SECONDS = 0.5
# Arguments of a pool's connections that refer to the pool, which would keep it from being collected.
_REFERRING = ("maint_notifications_config", "maint_notifications_pool_handler")
_REFUSED_FOR_GOOD = (AuthenticationError, AuthorizationError)


class NotSent(Exception):
    """The request never left; ``__cause__`` says why."""


class ReplyLost(Exception):
    """The request may have been carried out; ``__cause__`` says what happened to the reply."""


# Script, keys and arguments.
Undo: TypeAlias = "tuple[Script, Sequence[bytes], Sequence[bytes]]"


class Wire(Protocol):
    """
    How scripts reach the server.

    Attributes:
        hides_retries: Whether a call may have been carried out more than once behind our back.
    """

    hides_retries: bool

    def call(
        self, script: Script, keys: Sequence[bytes], args: Sequence[bytes], timeout: float, undo: Undo | None = None
    ) -> Any:
        """
        Run ``script`` once and return its reply, undecoded.

        Args:
            script: The script; sent by SHA1, and whole where the server does not know it.
            keys: The keys.
            args: The arguments.
            timeout: Seconds until the reply must be there, connecting included.
            undo: A script call that is sent behind a request whose reply did not come in time.

        Raises:
            NotSent: No connection could be made.
            ReplyLost: The request was sent, at least in part, and no reply came.
            redis.exceptions.ResponseError: The script failed.
        """


def pack(*parts: bytes) -> bytes:
    """Return a command in the form in which Redis reads it (RESP)."""
    return b"".join([b"*%d\r\n" % len(parts), *[b"$%d\r\n%b\r\n" % (len(part), part) for part in parts]])


def pack_eval(script: Script, keys: Sequence[bytes], args: Sequence[bytes]) -> bytes:
    """Return the command that runs ``script`` on any server, whether it knows the script or not."""
    return pack(b"EVAL", script.text, b"%d" % len(keys), *keys, *args)


def _close_all(connections: deque[Any]) -> None:
    while connections:
        connections.pop().disconnect()


class Lines:
    """
    The connections for the scripts of one pool; used by any number of threads, empty after a fork.

    They are closed with the pool object, not by the client's ``close()``.
    """

    hides_retries = False

    def __init__(self, pool: Any) -> None:
        self._make = pool.connection_class
        self._kwargs = pool.connection_kwargs
        self._limit = int(pool.max_connections)
        self._idle: deque[Any] = deque()
        self.reset()
        _all_lines.add(self)
        # By a finalizer, which holds them until then: collected in a cycle with the pool, they would be warned about.
        finalize(pool, _close_all, self._idle).atexit = False

    def reset(self) -> None:
        """Forget every connection; a forked child must not touch those of its parent."""
        self._idle.clear()
        self._open = 0
        self._waiting = 0
        self._returned = threading.Condition()

    def call(
        self, script: Script, keys: Sequence[bytes], args: Sequence[bytes], timeout: float, undo: Undo | None = None
    ) -> Any:
        ends = time.monotonic() + timeout
        connection = None
        try:
            # Inside the try: an exception from a signal handler must not lose the connection's slot.
            connection = self._borrow(ends)
            _ready(connection, ends)
            command = pack(b"EVALSHA", script.sha, b"%d" % len(keys), *keys, *args)
            reply = _exchange(connection, command, ends, undo)
            if isinstance(reply, NoScriptError):
                reply = _exchange(connection, pack_eval(script, keys, args), ends, undo)
        finally:
            if connection is not None:
                self._give_back(connection)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def _borrow(self, ends: float) -> Any:
        try:
            return self._idle.pop()
        except IndexError:
            pass
        with self._returned:
            # Counted before looking again: who gives back after that look sees somebody waiting.
            self._waiting += 1
            try:
                while not self._idle and self._open >= self._limit:
                    if not self._returned.wait(ends - time.monotonic()):
                        raise NotSent from RedisConnectionError("every connection of this client is in use")
                return self._idle.pop() if self._idle else self._new()
            finally:
                self._waiting -= 1

    def _new(self) -> Any:
        connection = self._make(**{key: value for key, value in self._kwargs.items() if key not in _REFERRING})
        connection.retry = Retry(NoBackoff(), 0)
        connection.fenced_locks_used = 0.0
        self._open += 1
        return connection

    def _give_back(self, connection: Any) -> None:
        self._idle.append(connection)
        if self._waiting:
            with self._returned:
                self._returned.notify()


def _ready(connection: Any, ends: float) -> None:
    """Connect if need be; a connection that the server has closed, or that has data, cannot be trusted."""
    if connection._sock is not None:
        # One that was in use a moment ago is not looked at: should it be dead, the request is tried again.
        if time.monotonic() - connection.fenced_locks_used < _FRESH_SECONDS or not _readable(connection._sock):
            return
        connection.disconnect()
    try:
        _connect(connection, ends - time.monotonic())
    except _REFUSED_FOR_GOOD:
        raise
    except _UNREACHABLE as error:
        raise NotSent from error


def _readable(sock: Any) -> bool:
    if not hasattr(select, "poll"):
        return bool(select.select([sock], [], [], 0)[0])
    # Without the limit on file numbers that select() has.
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def _connect(connection: Any, seconds: float) -> None:
    usual = connection.socket_timeout, connection.socket_connect_timeout
    connection.socket_timeout = _shorter(seconds, usual[0])
    connection.socket_connect_timeout = _shorter(seconds, usual[1])
    try:
        connection.connect()
    except BaseException:
        # Half made, it might not have selected its database yet.
        connection.disconnect()
        raise
    finally:
        connection.socket_timeout, connection.socket_connect_timeout = usual


def _shorter(seconds: float, other: float | None) -> float:
    return max(0.001, seconds if other is None else min(seconds, other))


def _exchange(connection: Any, command: bytes, ends: float, undo: Undo | None) -> Any:
    try:
        # The socket itself: redis-py 5.2 has no time-out per read, and its send closes the socket on every exception,
        # when the undo still has to follow.
        connection._sock.settimeout(max(0.001, ends - time.monotonic()))
        connection._sock.sendall(command)
        reply = connection.read_response(disable_decoding=True, disconnect_on_error=False)
        connection.fenced_locks_used = time.monotonic()
        return reply
    except (ResponseError, *_REFUSED_FOR_GOOD) as error:
        return error
    except _UNREACHABLE as error:
        _abandon(connection, undo)
        raise ReplyLost from _named(error)
    except BaseException:
        _abandon(connection, undo)
        raise


def _named(error: Exception) -> Exception:
    """Return the error by redis-py's name for it."""
    if isinstance(error, (RedisConnectionError, RedisTimeoutError)):
        return error
    kind = RedisTimeoutError if isinstance(error, TimeoutError) else RedisConnectionError
    return kind(f"{type(error).__name__}: {error}")


def _abandon(connection: Any, undo: Undo | None) -> None:
    """Close a connection whose reply is outstanding, and have the server undo that request right after it."""
    try:
        if undo is not None and connection._sock is not None:
            connection._sock.settimeout(0.1)
            connection._sock.sendall(pack_eval(*undo))
    except OSError:
        _log.debug("could not send an undo behind a request without reply", exc_info=True)
    finally:
        connection.disconnect()


class ClientWire:
    """The same through ``execute_command``, for clients without one pool, such as a cluster's."""

    hides_retries = True

    def __init__(self, client: Any) -> None:
        self._client = client

    def call(
        self, script: Script, keys: Sequence[bytes], args: Sequence[bytes], timeout: float, undo: Undo | None = None
    ) -> Any:
        try:
            try:
                return self._run(b"EVALSHA", script.sha, keys, args)
            except NoScriptError:
                return self._run(b"EVAL", script.text, keys, args)
        except _REFUSED_FOR_GOOD:
            raise
        except _UNREACHABLE as error:
            raise ReplyLost from error

    def _run(self, command: bytes, script: bytes, keys: Sequence[bytes], args: Sequence[bytes]) -> Any:
        return self._client.execute_command(command.decode(), script, len(keys), *keys, *args, NEVER_DECODE=True)


_all_lines: WeakSet[Lines] = WeakSet()


def _reset_after_fork() -> None:
    for lines in _all_lines:
        lines.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


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
