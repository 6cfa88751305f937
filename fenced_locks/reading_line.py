"""A connection to read much from a server: beside the client's pool, sent to ahead of time, replies undecoded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

_REPLY_TIMEOUT = 10.0


class Line:
    """
    A connection that is made as the pool makes its own, but alone.

    Args:
        pool: The pool of the client.

    Raises:
        redis.exceptions.RedisError: No such connection can be made.
    """

    def __init__(self, pool: Any) -> None:
        with _redis_errors():
            self._connection = pool.connection_class(**pool.connection_kwargs)
        # A server that is down or mute is to be reported, not waited for.
        self._connection.retry = Retry(NoBackoff(), 0)
        for name in ("socket_timeout", "socket_connect_timeout"):
            setattr(self._connection, name, getattr(self._connection, name, None) or _REPLY_TIMEOUT)
        self._connected = False
        self._sent: tuple[bytes, ...] = ()

    def send(self, *commands: bytes) -> None:
        """Send packed commands that only read."""
        self._sent = commands
        try:
            self._transmit()
        except redis.ConnectionError:
            self._transmit_again()

    def replies(self) -> list[Any]:
        """Return the replies to what was sent last, undecoded: names and owners may be any bytes."""
        try:
            return self._receive()
        except redis.ConnectionError:
            self._transmit_again()
            return self._receive()

    def _transmit(self) -> None:
        with _redis_errors():
            if not self._connected:
                # Sending connects by itself, but does not ask a sentinel for the server before.
                self._connection.connect()
                self._connected = True
            self._connection.send_packed_command([b"".join(self._sent)])

    def _transmit_again(self) -> None:
        # A server may close what is idle while somebody studies the page before. All commands only read.
        self.close()
        self._transmit()

    def _receive(self) -> list[Any]:
        return [self._connection.read_response(disable_decoding=True) for _ in self._sent]

    def ask(self, name: bytes, keys: Sequence[bytes], *more: bytes) -> list[Any]:
        """Return the replies to one command per key, with the same arguments behind each."""
        if not keys:
            return []
        self.send(*[command(name, 1 + len(more), packed([key, *more])) for key in keys])
        return self.replies()

    def close(self) -> None:
        """Give the connection up."""
        self._connected = False
        self._connection.disconnect()


@contextmanager
def _redis_errors() -> Iterator[None]:
    """Give whatever goes wrong with a connection one name: host names, options and credentials can be wrong, too."""
    try:
        yield
    except redis.RedisError:
        raise
    except Exception as error:
        raise redis.ConnectionError(f"{type(error).__name__}: {error}") from error


def packed(arguments: Sequence[bytes]) -> bytes:
    """Return arguments in the form in which Redis reads them (RESP)."""
    # redis-py packs a command at two to six times the price, and lock keys go out twice.
    return b"".join([b"$%d\r\n%b\r\n" % (len(argument), argument) for argument in arguments])


def command(name: bytes, number: int, arguments: bytes) -> bytes:
    """Return a command of so many packed arguments, packed."""
    return b"*%d\r\n%b%b" % (number + 1, packed([name]), arguments)
