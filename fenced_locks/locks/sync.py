"""``FencedLock``: redis-py's lock, with a fence token issued in the call that takes it."""

from __future__ import annotations

import logging
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import LockError, LockNotOwnedError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.lock import Lock

from .. import clock
from ..durations import Duration, to_seconds, to_seconds_or_none
from ..exceptions import IssuerError, LeaseLost, LockNotAcquired
from ..logs import about
from ..wire import wire_for
from . import core, steps
from .actions import Call, Steps, T
from .advancing import advance, checked_at_least
from .blocking import run
from .core import Lease
from .gate import ThreadPlace, gate
from .holding import Holding, IssuerArgument
from .pipelines import BlockingSession
from .transaction import TRANSACTION_SECONDS, connections_of, order, refuse_coroutine_function, transact
from .waiting import Turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis import Redis
    from redis.client import Pipeline
    from redis.typing import KeyT
    from typing_extensions import Self

_log = logging.getLogger(__name__)


class FencedLock(Holding, Lock):
    """
    A distributed lock with a fence token. A drop-in for ``redis.lock.Lock``; it knows nothing of Django.

    One Lua call takes the lock and issues the token, which is greater than every token granted for that name
    before. A lease belongs to the thread that acquired it, unless ``thread_local`` is False.

    Args:
        redis: A redis-py client; decoded or raw replies, RESP2 or RESP3, with or without hiredis.
        name: Name of the lock, and its key; a string, or bytes.
        timeout: Length of a lease in seconds (or a ``timedelta``), at least a millisecond; None for without end.
        sleep: Seconds between two looks while the lock is busy; a release wakes the next waiter at once.
        blocking: Whether ``acquire`` waits.
        blocking_timeout: How long it waits, in seconds; None for without end. The last try is at the deadline.
        thread_local: Whether each thread has its own lease.
        raise_on_release_error: Whether leaving the context manager raises where the lease was lost.
        issuer: ``"clock"``, ``"counter"``, ``"database"``, a dotted path, or an issuer; see ``fenced_locks.issuers``.
        renew: Whether a lease is renewed, each time a third of it has passed, until it is given back, lost, or
            forgotten together with this object.
        max_hold: After how many seconds it is renewed no more, so that work that hangs does not hold it for ever.

    Raises:
        TypeError, ValueError: A bad argument; the message names it. Nothing was sent.
    """

    name: str
    timeout: float | None
    sleep: float
    blocking_timeout: float | None

    def __init__(
        self,
        redis: Redis,
        name: str,
        timeout: Duration | None = None,
        sleep: Duration = 0.1,
        blocking: bool = True,
        blocking_timeout: Duration | None = None,
        thread_local: bool = True,
        raise_on_release_error: bool = True,
        *,
        issuer: IssuerArgument = "clock",
        renew: bool = False,
        max_hold: Duration | None = None,
    ) -> None:
        self._wire = wire_for(redis)
        self._aim(name, issuer, redis, hides_retries=self._wire.hides_retries)
        seconds = to_seconds_or_none("timeout", timeout)
        self._keep_alive(renew, max_hold, seconds)
        super().__init__(
            redis,
            name,
            timeout=seconds,
            sleep=to_seconds("sleep", sleep, zero=True),
            blocking=blocking,
            blocking_timeout=to_seconds_or_none("blocking_timeout", blocking_timeout, zero=True),
            thread_local=thread_local,
        )
        # Not an argument of redis-py 5.2.
        self.raise_on_release_error = raise_on_release_error
        # What a thread is doing is its own affair, even where the lease is everybody's.
        self._calls = self.local if self.thread_local else threading.local()

    def register_scripts(self) -> None:
        """Keep redis-py from caching its scripts on the class: they hold the first client, and serve subclasses."""

    @property
    def lua_release(self) -> Any:  # type: ignore[override]
        """redis-py's script, for overrides of ``do_release`` that were written for its lock."""
        return self.redis.register_script(self.LUA_RELEASE_SCRIPT)

    @property
    def lua_extend(self) -> Any:  # type: ignore[override]
        """redis-py's script, for overrides of ``do_extend`` that were written for its lock."""
        return self.redis.register_script(self.LUA_EXTEND_SCRIPT)

    @property
    def lua_reacquire(self) -> Any:  # type: ignore[override]
        """redis-py's script, for overrides of ``do_reacquire`` that were written for its lock."""
        return self.redis.register_script(self.LUA_REACQUIRE_SCRIPT)

    def acquire(
        self,
        sleep: Duration | None = None,
        blocking: bool | None = None,
        blocking_timeout: Duration | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """
        Take the lock; return True, or False if it stayed busy until the wait was over.

        A reply that is lost does not leave an orphan: the attempt is repeated until the deadline, and recognises
        a lease that it took itself. Without a deadline that goes on for 3 seconds, or for the client's
        ``socket_timeout`` if that is longer.

        Args:
            sleep: Seconds between two tries; by default the lock's own.
            blocking: Whether to wait; by default the lock's own.
            blocking_timeout: How long to wait, in seconds; by default the lock's own.
            token: redis-py's name for the owner id; random by default. One that is passed is stored by a second
                call, and a lock that carries it already is busy.

        Raises:
            TypeError, ValueError: A bad argument; nothing was sent.
            IssuerError: No fence token could be issued; no lease was left behind.
            OutcomeUnknown: The last attempt was sent and its reply lost; what it took is undone if the server can
                be reached, and ends with the lease otherwise.
            redis.exceptions.ConnectionError, TimeoutError: The server cannot be reached; nothing was sent.
            redis.exceptions.ResponseError: The server refused, as one that is full or read-only does.
        """
        waiting = self._waiting(sleep, blocking, blocking_timeout, clock.monotonic())
        minted = core.new_owner_id() if token is None else None
        owner = minted or self._encoded(token)
        call = self._calls.current = Call(waiting.deadline, minted, polls=not waiting.blocking)
        try:
            if not self._acquire_in_turn(owner, call, waiting):
                self._calls.busy = call.busy
                self._refuse(call.busy, waiting)
                return False
        finally:
            self._calls.current = None
        if call.lease is None:
            self._refuse_lease_without_token(owner)
        call.lease.asked_at = waiting.started
        try:
            self._begin(call.lease)
        except BaseException:
            # A thread that cannot be started, or an interruption.
            run(self._wire, steps.release(self._target, call.lease))
            self._keep(None)
            raise
        return True

    def _acquire_in_turn(self, owner: bytes, call: Call, waiting: core.Waiting) -> bool:
        key = (self._wire.server, self._target.lock)
        if not (waiting.blocking and gate.is_crowded(key)):
            if self.do_acquire(owner):
                return True
            if waiting.is_over(clock.monotonic()):
                return False
        place = ThreadPlace()
        try:
            gate.join(key, place)
            turns = Turns(self._target, call, waiting, self.timeout)
            is_last = False
            while not is_last:
                in_front = place.wait(waiting.left(clock.monotonic()))
                is_last = run(self._wire, turns.next()) if in_front else True
                if self.do_acquire(owner):
                    return True
                if call.ticket is not None:
                    # An override did not use it.
                    run(self._wire, steps.give_up(self._target, call))
            return False
        except (RedisConnectionError, RedisTimeoutError):
            gate.call_all(key)
            raise
        finally:
            gate.leave(key, place)
            if call.ticket is not None or call.waiter:
                run(self._wire, steps.give_up(self._target, call))

    def _refuse_lease_without_token(self, owner: bytes) -> NoReturn:
        run(self._wire, steps.release(self._target, Lease(owner)))
        raise IssuerError(
            f"{type(self).__qualname__}.do_acquire took {self._target.resource!r} without a fence token, so it was "
            "released; an override must call super().do_acquire(token)"
        )

    def do_acquire(self, token: bytes) -> bool:  # type: ignore[override]
        """Try once to take the lock under the owner id ``token``; redis-py's extension point."""
        call = getattr(self._calls, "current", None) or Call()
        taken = run(self._wire, steps.acquire(self._target, call, token, self.timeout))
        if taken:
            self._keep(call.lease)
        return taken

    def release(self) -> None:
        """
        Give the lease back.

        A release that fails for want of a server can be repeated: the lease is forgotten only once the server has
        answered.

        Raises:
            NotHeld: This thread holds no lease.
            LeaseLost: The lease ended before; another owner may have the resource. Not with a cluster's client,
                which repeats requests behind our back: there a lease that is gone before its end counts as released.
            OutcomeUnknown: The request was sent and its reply lost, for 3 seconds or the client's
                ``socket_timeout``.
            redis.exceptions.ConnectionError, TimeoutError: The server cannot be reached; nothing was sent.
        """
        lease = self._held("release")
        self._stop_renewal(lease)
        try:
            self.do_release(lease.owner)
        except LockNotOwnedError as error:
            self._forget(lease)
            self._lose(lease, str(error), raised=True)
            raise
        self._forget(lease)
        self._end(lease)

    def do_release(self, expected_token: bytes) -> None:  # type: ignore[override]
        """Delete the lock key if its owner is ``expected_token``; redis-py's extension point."""
        lease = self._lease
        if lease is None or lease.owner != expected_token:
            lease = Lease(expected_token)
        run(self._wire, steps.release(self._target, lease))

    def extend(self, additional_time: Duration, replace_ttl: bool = False) -> Literal[True]:
        """
        Move the end of the lease.

        The end is asked for absolutely, so a repeated attempt adds nothing.

        Args:
            additional_time: Seconds to add to the end as this lock knows it.
            replace_ttl: Make it that many seconds from now instead.

        Raises:
            TypeError, ValueError: ``additional_time`` is not a positive duration.
            NotHeld: This thread holds no lease.
            LeaseHasNoEnd: There is nothing to extend.
            LeaseLost: The lease ended, or another owner has the resource.
            OutcomeUnknown: The request was sent and its reply lost.
            redis.exceptions.ConnectionError, TimeoutError: The server cannot be reached; nothing was sent.
        """
        self._with_end("extend")
        return self.do_extend(additional_time, replace_ttl)

    def do_extend(self, additional_time: Duration, replace_ttl: bool) -> Literal[True]:
        """Move the end of the lease that this thread holds; redis-py's extension point."""
        seconds = to_seconds("additional_time", additional_time)
        return self._extend(self._held("extend"), seconds, from_now=replace_ttl)

    def reacquire(self) -> Literal[True]:
        """
        Make the lease as long from now as it was when it was acquired.

        Raises:
            NotHeld, LeaseHasNoEnd, LeaseLost, OutcomeUnknown, redis.exceptions.ConnectionError: As ``extend``.
        """
        self._with_end("reacquire")
        return self.do_reacquire()

    def do_reacquire(self) -> Literal[True]:
        """Move the end of the lease to ``timeout`` from now; redis-py's extension point."""
        lease = self._held("reacquire")
        return self._extend(lease, to_seconds("timeout", self._length(lease)), from_now=True)

    def _extend(self, lease: Lease, seconds: float, *, from_now: bool) -> Literal[True]:
        self._use(lease, steps.extend(self._target, lease, seconds, from_now=from_now))
        self._renew_anew(lease)
        return True

    def ensure_held(self) -> int:
        """
        Return the token if the lease is still ours; one round trip.

        Raises:
            NotHeld: This thread holds no lease.
            LeaseLost: It ended, by local time or at the server, or another owner has the resource.
            OutcomeUnknown, redis.exceptions.ConnectionError, TimeoutError: The server cannot be asked.
        """
        lease = self._held("rely on")
        return self._use(lease, steps.ensure(self._target, lease))

    def advance(self, at_least: int | None = None) -> int:
        """
        Draw another, greater token for the lease that is held, and return it; one round trip, more outside Redis.

        For a row that is written several times, or one that is ahead of a counter that was lost. The lease stays the
        same, its end too; ``fence_token`` is the new one, in every frame that re-entered. An attempt whose reply is
        lost is repeated and draws another token: nobody has seen the first, and tokens need only grow.

        Args:
            at_least: The new token is this one or greater; positive, below 2**53.

        Raises:
            TypeError, ValueError: ``at_least`` is no such number; nothing was sent.
            NotHeld: This thread holds no lease.
            LeaseLost: It ended, by local time or at the server, or another owner has the resource.
            IssuerError: No token could be issued, or the issuer cannot go to ``at_least``.
            OutcomeUnknown: The request was sent and its reply lost; a token that nobody has may have been drawn.
            redis.exceptions.ConnectionError, TimeoutError: The server cannot be reached; nothing was sent.
            redis.exceptions.ResponseError: The server refused, as one that is full or read-only does.

        Except after ``LeaseLost`` the lease goes on with the token that it had.
        """
        least = checked_at_least(at_least)
        lease = self._held("advance")
        return self._use(lease, advance(self._target, lease, least))

    def _use(self, lease: Lease, plan: Steps[T]) -> T:
        try:
            return run(self._wire, plan)
        except LeaseLost as error:
            self._lose(lease, str(error), raised=True)
            raise

    def transaction(
        self,
        func: Callable[[Pipeline], Any],
        *watches: KeyT,
        timeout: Duration | None = TRANSACTION_SECONDS,
        value_from_callable: bool = False,
        watch_delay: Duration | None = None,
        shard_hint: str | None = None,
    ) -> Any:
        """
        Apply what ``func`` queues, all or nothing, and only while the lease is ours; redis-py's ``transaction``.

        ``func`` is given a pipeline that watches the lock key and ``watches``. It reads, calls ``multi()``, and queues
        its writes, which are applied together if nothing that is watched has changed. It is called again where
        something has, where the lease was renewed meanwhile, and where the connection was lost before the writes were
        sent; so it must have no other effects. It is not called again once they may have been applied.

        Args:
            func: A function of the pipeline; its commands before ``multi()`` are sent at once and must only read
                what is watched.
            watches: Keys, in the same cluster slot as the lock key where that matters.
            timeout: For how long to try, in seconds, and no longer than the lease lasts; None for as long as that.
                ``func`` is not interrupted, and what it has queued is still applied.
            value_from_callable: Whether to return what ``func`` returns.
            watch_delay: Seconds between two attempts; by default a random pause of up to 4 ms at first and 0.2 s
                at last.
            shard_hint: Handed to the pipeline, as redis-py does.

        Returns:
            The replies to what was queued, or what ``func`` returned.

        Raises:
            TypeError, ValueError: A bad argument, or a client without one pool, such as a cluster's; nothing was sent.
            NotHeld: This thread holds no lease.
            LeaseLost: The lease ended, or another owner has the resource; nothing was applied.
            TransactionConflict: What is watched changed each time until ``timeout``; nothing was applied.
            InvalidTransaction: ``func`` would write before ``multi()`` what it watches, or calls ``execute()``, or
                queues writes after ``unwatch()``; nothing that it queued was applied.
            OutcomeUnknown: The writes were sent and the reply lost; all of them were applied, or none.
            redis.exceptions.ConnectionError, TimeoutError: The server cannot be reached; nothing was applied.
            redis.exceptions.ResponseError: A command failed; others may have been applied, as Redis does it.
            Exception: Whatever ``func`` raises; nothing was applied.
        """
        refuse_coroutine_function(func)
        connections = connections_of(self._wire, self.redis)
        what = order(self.redis, func, watches, timeout, value_from_callable, watch_delay)
        lease = self._held("write under")
        session = BlockingSession(self.redis, connections, shard_hint)
        try:
            return run(self._wire, transact(self._target, lease, what, session))
        except LeaseLost as error:
            self._lose_if_ours(lease, error)
            raise

    def locked(self) -> bool:
        """Return whether anybody holds the lock."""
        return run(self._wire, steps.locked(self._target))

    def owned(self) -> bool:
        """
        Return whether the lock is held by the lease that this thread acquired.

        Raises:
            NotHeld: The lock keeps one lease per thread, and this thread never acquired one.
        """
        if not hasattr(self.local, "token"):
            raise self._not_held("own")
        lease = self._lease
        return lease is not None and run(self._wire, steps.owned(self._target, lease))

    def __enter__(self) -> Self:
        if self.acquire():
            return self
        raise self._not_acquired("the wait is over")

    def _not_acquired(self, waited: str) -> LockNotAcquired:
        return core.not_acquired(self._target.resource, getattr(self._calls, "busy", core.Busy()), waited)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.release()
        except Exception as error:
            lost = isinstance(error, LockError) and not self.raise_on_release_error
            if exc_value is None and not lost:
                raise
            resource = self._target.resource
            _log.warning(
                "release of %r failed on leaving its block: %s", resource, error, extra=about(resource, error=error)
            )
