"""
Redis transactions under a lock: WATCH, read, MULTI, write, EXEC, of which the server applies all or nothing.

The lock key is watched with the rest, so EXEC applies nothing once the lease has ended or was taken. redis-py's
``Redis.transaction`` is the pattern; see ``watching`` for what is refused in it, and ``pipelines`` for why a lost reply
to EXEC is not taken for a conflict, which it is in redis-py.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from inspect import isasyncgenfunction, isawaitable, iscoroutine, iscoroutinefunction, isgeneratorfunction
from math import inf
from typing import Any, Protocol

from redis.exceptions import DataError, ResponseError, WatchError

from .. import clock
from ..durations import Duration, to_seconds_or_none
from ..exceptions import LeaseLost, TransactionConflict
from ..wire import NotSent, ReplyLost
from . import core
from .actions import Pause, Steps, Target, Work
from .core import Lease, Patience
from .steps import pause_or_fail
from .watching import Watch

# For how long a transaction is tried again, in seconds.
TRANSACTION_SECONDS = 5.0
# Longest pauses after the first conflict and after any, in seconds.
_FIRST_PAUSE_SECONDS = 0.004
_MOST_PAUSE_SECONDS = 0.2


@dataclass(slots=True)
class Order:
    """
    What is to be done in a transaction; the arguments of ``FencedLock.transaction``.

    Attributes:
        func: The user's function.
        watches: The user's keys.
        encode: How the client turns arguments into bytes.
        seconds: For how long it is tried; None for as long as the lease lasts.
        value_from_callable: Whether to return what the function returns.
        watch_delay: Seconds between two attempts; None for a pause that grows.
    """

    func: Callable[[Any], Any]
    watches: list[bytes]
    encode: Callable[[Any], bytes]
    seconds: float | None
    value_from_callable: bool
    watch_delay: float | None


def order(
    client: Any,
    func: Callable[[Any], Any],
    watches: tuple[Any, ...],
    timeout: Duration | None,
    value_from_callable: bool,
    watch_delay: Duration | None,
) -> Order:
    """
    Return the order that these arguments are.

    Raises:
        TypeError, ValueError: One of them is bad.
    """
    if not callable(func):
        raise TypeError(f"func must be a function of a pipeline, not {func!r}")
    if isgeneratorfunction(func) or isasyncgenfunction(func):
        raise TypeError(f"func must not be a generator, which does nothing when it is called: {func!r}")
    encode = client.get_encoder().encode
    try:
        keys = [bytes(encode(key)) for key in watches]
    except DataError:
        raise TypeError(f"watches must be keys, each a string or bytes; got {watches!r}") from None
    seconds = to_seconds_or_none("timeout", timeout)
    delay = to_seconds_or_none("watch_delay", watch_delay, zero=True)
    return Order(func, keys, encode, seconds, value_from_callable, delay or None)


def refuse_coroutine_function(func: Callable[[Any], Any]) -> None:
    """
    See that a function does something when it is called by a lock that blocks.

    Raises:
        TypeError: It has to be awaited.
    """
    if iscoroutinefunction(func):
        raise TypeError(f"func must not be a coroutine function for a lock that blocks: {func!r}")


def connections_of(wire: Any, client: Any) -> Any:
    """
    Return where a client's transactions take their connections.

    Raises:
        TypeError: It has not one pool, as a cluster's.
    """
    if wire.connections is None:
        raise TypeError(f"a transaction needs a client with one pool of connections, and {client!r} has none")
    return wire.connections


class Session(Protocol):
    """One connection, and the pipeline of the present attempt; what waits for the server is awaited, or not."""

    pipe: Any

    def watch(self, watch: Watch) -> Any:
        """
        Begin an attempt: watch its keys; return what the lock key holds, undecoded, or the server's error.

        Raises:
            NotSent, ReplyLost: The server cannot be reached.
            redis.exceptions.ResponseError: It refuses to watch.
        """

    def apply(self) -> Any:
        """
        Have the server apply what was queued, all or nothing; return the replies.

        Raises:
            NotSent: The connection was lost before.
            ReplyLost: It was lost after; what was queued may have been applied.
            redis.exceptions.WatchError: Nothing was applied, since what is watched has changed.
            redis.exceptions.ResponseError: A command failed.
            InvalidTransaction: The function did what it must not.
        """

    def unwatch(self) -> Any:
        """End the attempt, if it has not ended yet."""

    def close(self) -> None:
        """Give the connection back, or close it if it is in the middle of something."""


def transact(target: Target, lease: Lease, order: Order, session: Session) -> Steps[Any]:
    """Try until what the function queues is applied; return what redis-py returns."""
    tries = _Tries(target, lease, order)
    lease.transactions.append(None)
    try:
        while True:
            try:
                result = yield from _attempt(tries, order, session)
                yield Work(session.unwatch)
                return result
            except (NotSent, ReplyLost, WatchError) as error:
                yield Work(session.unwatch)
                pause = tries.pause(error)
            except Exception:
                yield Work(session.unwatch)
                raise
            yield Pause(pause)
    finally:
        lease.transactions.pop()
        session.close()


def _attempt(tries: _Tries, order: Order, session: Session) -> Steps[Any]:
    watch = tries.begin()
    stored = yield Work(partial(session.watch, watch))
    tries.look(stored)
    try:
        value = yield Work(partial(order.func, session.pipe))
    except WatchError:
        watch.raise_if_broken()
        raise
    _refuse_what_was_not_awaited(order.func, value)
    tries.refuse_if_over()
    try:
        replies = yield Work(session.apply)
    except ReplyLost as lost:
        cause = lost.__cause__ or lost
        raise core.outcome_unknown("transaction", tries.target.resource, cause) from cause
    return value if order.value_from_callable else replies


def _refuse_what_was_not_awaited(func: Callable[[Any], Any], value: object) -> None:
    if iscoroutine(value):
        value.close()
    if isawaitable(value):
        raise TypeError(f"func must do its work when it is called; {func!r} returned a {type(value).__name__}")


@dataclass
class _Tries:
    """The attempts at one transaction: how many there were, and whether there may be another."""

    target: Target
    lease: Lease
    order: Order
    attempts: int = 0
    conflicts: int = 0
    is_over: bool = False
    started: float = field(default_factory=lambda: clock.monotonic())

    def __post_init__(self) -> None:
        self._deadline = inf if self.order.seconds is None else self.started + self.order.seconds
        self._patience = Patience(self._deadline, self.target.reply_limit)

    def reply_timeout(self) -> float:
        """Return how long to wait for a reply that is asked for now."""
        self._look_at_lease()
        return self._patience.reply_timeout(clock.monotonic())

    def _look_at_lease(self) -> None:
        """Note the end of the lease, which may have been renewed."""
        ends = self.lease.ends_at
        self._patience.deadline = self._deadline if ends is None else min(self._deadline, ends)

    def begin(self) -> Watch:
        """Return what the next attempt watches; nothing is sent any more for a lease that has ended."""
        self.refuse_if_over()
        keys = [self.target.lock, *self.order.watches]
        return Watch(self.target.resource, keys, self.order.encode, self.reply_timeout)

    def refuse_if_over(self) -> None:
        if self.lease.lost or core.is_over(self.lease, clock.monotonic()):
            raise self._lost("it has ended")

    def look(self, stored: Any) -> None:
        """See that the lock is ours, and that there is time to go on."""
        if isinstance(stored, ResponseError):
            if not str(stored).startswith("WRONGTYPE"):
                raise stored
            raise self._lost("it ended, something else has its key")
        if stored != self.lease.owner:
            owner = None if stored is None else stored.decode("utf-8", "backslashreplace")
            raise self._lost(f"it ended, the resource is {core.found(core.Busy(owner))}")
        if self.is_over:
            # It is not lost, so it was a conflict.
            raise WatchError
        self.attempts += 1

    def pause(self, error: Exception) -> float:
        """Return how long to wait after an attempt that applied nothing; raise if the time is over."""
        self._look_at_lease()
        if not isinstance(error, WatchError):
            return pause_or_fail(error, self._patience, "transaction", self.target, maybe_applied=False)
        if self.is_over:
            raise self._conflict() from None
        longest = min(_FIRST_PAUSE_SECONDS * 2**self.conflicts, _MOST_PAUSE_SECONDS)
        pause = self.order.watch_delay or random.uniform(0.0, longest)
        self.conflicts = min(self.conflicts + 1, 10)
        left = self._patience.deadline - clock.monotonic()
        # Then it is only looked whether the lease is lost, or is not and there was a conflict.
        self.is_over = left <= 0
        return max(0.0, min(pause, left))

    def _lost(self, what: str) -> LeaseLost:
        return core.lost(self.target.resource, self.lease, "write under", what)

    def _conflict(self) -> TransactionConflict:
        seconds = clock.monotonic() - self.started
        error = TransactionConflict(
            f"the transaction under {self.target.resource!r} was given up after {self.attempts} attempts in "
            f"{seconds:.3f} s: what it watches was changed each time, and nothing was written"
        )
        error.resource, error.attempts = self.target.resource, self.attempts
        return error
