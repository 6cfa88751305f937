"""Questions to a Redis server, for the checks: each has a short deadline, and whatever goes wrong has one name."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, NoReturn, TypeVar

import redis

from ..texts import one_line
from ..wire.base import ReplyLost
from ..wire.connecting import connect, exchange_all, maker, pack

_CLOCK_READINGS = 5

Returned = TypeVar("Returned")


class CannotAsk(Exception):
    """The server cannot be asked, or not any more; the message says why."""


class Line:
    """
    A connection of our own for questions.

    Args:
        connection: A connection of redis-py that is not connected yet; its own time-outs do not count.
        seconds: How long to wait for the connection, and for the replies to each question.

    Raises:
        CannotAsk: No connection can be had.
    """

    def __init__(self, connection: Any, seconds: float) -> None:
        self._connection = connection
        self._seconds = seconds
        connection.socket_timeout = connection.socket_connect_timeout = None
        try:
            connect(connection, seconds)
        except Exception as error:  # names, certificates, passwords and what sentinels say can be wrong, too
            raise CannotAsk(_reason(error)) from error

    def ask(self, *commands: tuple[bytes, ...]) -> list[Any]:
        """
        Return the replies, undecoded; where the server refuses, the error is in their place.

        Raises:
            CannotAsk: They did not come in time.
        """
        ends = time.monotonic() + self._seconds
        try:
            return exchange_all(self._connection, [pack(*command) for command in commands], ends)
        except Exception as error:  # what listens there need not be Redis
            raise CannotAsk(_reason(error)) from error

    def close(self) -> None:
        self._connection.disconnect()


@contextmanager
def line_to(connection: Any, seconds: float) -> Iterator[Line]:
    """Yield a line over this connection; see ``Line``."""
    line = Line(connection, seconds)
    try:
        yield line
    finally:
        line.close()


def within(seconds: float, work: Callable[[], Returned]) -> Returned:
    """
    Return what ``work`` returns, or raise what it raises.

    Raises:
        CannotAsk: It takes longer. It goes on in a thread that nobody waits for: nothing can interrupt the search for
            a host name, or a server whose reply comes byte by byte.
    """
    ended: list[Callable[[], Returned]] = []

    def run() -> None:
        try:
            returned = work()
        except BaseException as error:  # noqa: BLE001 - raised again, by who waits
            ended.append(partial(_raise, error))
        else:
            ended.append(lambda: returned)

    thread = threading.Thread(target=run, name="fenced_locks.checks", daemon=True)
    thread.start()
    thread.join(seconds)
    if not ended:
        raise CannotAsk(f"there was no answer within {seconds:g} seconds")
    return ended[0]()


def _raise(error: BaseException) -> NoReturn:
    raise error


def connection_like(client: Any) -> Any:
    """
    Return a new connection, not connected yet, such as those of the client.

    Raises:
        CannotAsk: Its options are refused.
    """
    try:
        return maker(client.connection_pool)()
    except Exception as error:  # redis-py looks at options no sooner
        raise CannotAsk(_reason(error)) from error


def connection_to(client: Any, host: str, port: int) -> Any:
    """Return a new connection to another server, not connected yet, with the credentials and the TLS of the client."""
    pool = client.connection_pool
    kind = redis.SSLConnection if issubclass(pool.connection_class, redis.SSLConnection) else redis.Connection
    names = ("username", "password", "credential_provider", "protocol")
    kept = {key: value for key, value in pool.connection_kwargs.items() if key in names or key.startswith("ssl_")}
    connection = kind(host=host, port=port, **kept)
    connection.retry = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
    return connection


def read_info(line: Line) -> dict[str, str] | Exception:
    """Return what ``INFO`` says, or why the server refuses to say it."""
    (reply,) = line.ask((b"INFO",))
    if isinstance(reply, Exception):
        return reply
    pairs = [row.partition(":") for row in reply.decode("utf-8", "replace").splitlines()]
    return {key: value for key, colon, value in pairs if colon}


class Reading(NamedTuple):
    """
    What a server's clock said.

    Attributes:
        ahead: By how many seconds it is ahead of this machine's.
        doubt: How many seconds that may be wrong: half of the time that the answer took.
        latency: How long an answer took, usually.
    """

    ahead: float
    doubt: float
    latency: float


def read_clock(line: Line) -> Reading | Exception:
    """Return the most exact of a few readings, or why the server refuses."""
    readings, times = [], []
    for _ in range(_CLOCK_READINGS):
        asked, began = time.time(), time.monotonic()
        (reply,) = line.ask((b"TIME",))
        took = time.monotonic() - began
        if isinstance(reply, Exception):
            return reply
        times.append(took)
        readings.append((took / 2, int(reply[0]) + int(reply[1]) / 1_000_000 - asked - took / 2))
    doubt, ahead = min(readings)
    return Reading(ahead, doubt, sorted(times)[len(times) // 2])


def _reason(error: BaseException) -> str:
    if isinstance(error, ReplyLost) and error.__cause__:
        error = error.__cause__
    text = one_line(error).rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
