"""``AsyncFencedLock``: redis-py's asyncio lock, with a fence token issued in the call that takes it."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from types import SimpleNamespace, TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn
from weakref import ref

from redis.asyncio.lock import Lock
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import LockError, LockNotOwnedError
from redis.exceptions import TimeoutError as RedisTimeoutError

from .. import clock
from ..durations import Duration, to_seconds, to_seconds_or_none
from ..exceptions import IssuerError, LeaseLost, LockNotAcquired
from ..logs import about
from ..wire import async_wire_for
from . import core, steps
from .actions import Call, Steps, T
from .advancing import advance, checked_at_least
from .async_pipelines import AwaitingSession
from .async_renewal import renewer_of_loop
from .awaiting import arun
from .core import Lease
from .gate import TaskPlace, gate
from .holding import Holding, IssuerArgument
from .loss import AsyncLoss
from .transaction import TRANSACTION_SECONDS, connections_of, order, transact
from .waiting import Turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis.asyncio import Redis
    from redis.asyncio.client import Pipeline
    from redis.typing import KeyT
    from typing_extensions import Self

    from ..signals import LeaseSignal

_log = logging.getLogger(__name__)


class AsyncFencedLock(Holding, Lock):
    """
    A distributed lock with a fence token, for asyncio. A drop-in for ``redis.asyncio.lock.Lock``.

    What ``FencedLock`` promises holds here too. The object holds one lease, which belongs to the task that acquired
    it: it alone may use and release it until it is done, and then anybody may. Cancelled, ``acquire`` leaves neither a
    lease nor a waiter behind, and ``release`` still releases.

    Args:
        redis: A client of ``redis.asyncio``; the lock may be used in any event loop that the client may be used in.
        name: Name of the lock, and its key; a string, or bytes.
        timeout: Length of a lease in seconds (or a ``timedelta``), at least a millisecond; None for without end.
        sleep: Seconds between two looks while the lock is busy; a release wakes the next waiter at once.
        blocking: Whether ``acquire`` waits.
        blocking_timeout: How long it waits, in seconds; None for without end. The last try is at the deadline.
        thread_local: Whether the lease belongs to the task; if False, any task may use it.
        raise_on_release_error: Whether leaving the context manager raises where the lease was lost.
        issuer: As for ``FencedLock``; one outside Redis is asked in a worker thread.
        renew: As for ``FencedLock``; by a task of the event loop.
        max_hold: As for ``FencedLock``.

    Raises:
        TypeError, ValueError: A bad argument; the message names it. Nothing was sent.
    """

    # redis-py types the local as a thread's.
    local: Any
    _owner_kind = "task"
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
        self._wire = async_wire_for(redis)
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
        # All tasks of a loop share a thread, so what is local to it would be everybody's.
        self.local = SimpleNamespace(token=None)
        self._calls: dict[Any, Call] = {}
        self._busy = core.Busy()
        self._unsaid: list[Any] = []
        # By which tasks blocks were entered, and with which leases.
        self._entered: list[tuple[asyncio.Task[Any] | None, Lease]] = []

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

    async def acquire(
        self,
        blocking: bool | None = None,
        blocking_timeout: Duration | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """
        Take the lock; return True, or False if it stayed busy until the wait was over.

        Args:
            blocking: Whether to wait; by default the lock's own.
            blocking_timeout: How long to wait, in seconds; by default the lock's own.
            token: redis-py's name for the owner id; random by default.

        Raises:
            As ``FencedLock.acquire``; and ``asyncio.CancelledError``, with no lease left behind.
        """
        waiting = self._waiting(None, blocking, blocking_timeout, clock.monotonic())
        minted = core.new_owner_id() if token is None else None
        owner = minted or self._encoded(token)
        task = asyncio.current_task()
        call = self._calls[task] = Call(waiting.deadline, minted, polls=not waiting.blocking)
        try:
            if not await self._acquire_in_turn(owner, call, waiting):
                self._busy = call.busy
                self._refuse(call.busy, waiting)
                await self._say()
                return False
        finally:
            del self._calls[task]
        if call.lease is None:
            await self._refuse_lease_without_token(owner)
        call.lease.asked_at = waiting.started
        try:
            self._begin(call.lease)
            await self._say()
        except BaseException:
            await self._give_back(call.lease)
            raise
        return True

    async def _acquire_in_turn(self, owner: bytes, call: Call, waiting: core.Waiting) -> bool:
        key = (self._wire.server, self._target.lock)
        if not (waiting.blocking and gate.is_crowded(key)):
            if await self.do_acquire(owner):
                return True
            if waiting.is_over(clock.monotonic()):
                return False
        place = TaskPlace()
        try:
            gate.join(key, place)
            turns = Turns(self._target, call, waiting, self.timeout)
            is_last = False
            while not is_last:
                in_front = await place.wait(waiting.left(clock.monotonic()))
                is_last = await arun(self._wire, turns.next()) if in_front else True
                if await self.do_acquire(owner):
                    return True
                if call.ticket is not None:
                    # An override did not use it.
                    await arun(self._wire, steps.give_up(self._target, call), to_the_end=True)
            return False
        except (RedisConnectionError, RedisTimeoutError):
            gate.call_all(key)
            raise
        finally:
            gate.leave(key, place)
            if call.ticket is not None or call.waiter:
                await arun(self._wire, steps.give_up(self._target, call), to_the_end=True)

    async def _refuse_lease_without_token(self, owner: bytes) -> NoReturn:
        await self._give_back(Lease(owner))
        raise IssuerError(
            f"{type(self).__qualname__}.do_acquire took {self._target.resource!r} without a fence token, so it was "
            "released; an override must call super().do_acquire(token)"
        )

    async def _give_back(self, lease: Lease) -> None:
        """Release a lease that nobody is to have."""
        self._stop_renewal(lease)
        self._keep(None)
        await arun(self._wire, steps.release(self._target, lease), to_the_end=True)

    async def do_acquire(self, token: bytes) -> bool:  # type: ignore[override]
        """Try once to take the lock under the owner id ``token``; redis-py's extension point."""
        call = self._calls.get(asyncio.current_task()) or Call()
        taken = await arun(self._wire, steps.acquire(self._target, call, token, self.timeout))
        if taken:
            self._keep(call.lease)
        return taken

    async def release(self) -> None:
        """
        Give the lease back; cancelled, it does so all the same before it raises.

        Raises:
            As ``FencedLock.release``; ``NotHeld`` also for another task than the one that acquired it.
        """
        lease = self._held("release")
        self._stop_renewal(lease)
        try:
            await self.do_release(lease.owner)
        except LockNotOwnedError as error:
            self._forget(lease)
            self._lose(lease, str(error), raised=True)
            await self._say()
            raise
        except asyncio.CancelledError:
            if lease.released:
                self._forget(lease)
                self._end(lease)
                await self._say()
            raise
        self._forget(lease)
        self._end(lease)
        await self._say()

    async def do_release(self, expected_token: bytes) -> None:
        """Delete the lock key if its owner is ``expected_token``; redis-py's extension point."""
        lease = self._lease
        if lease is None or lease.owner != expected_token:
            lease = Lease(expected_token)
        await arun(self._wire, _noting(steps.release(self._target, lease), lease), to_the_end=True)

    async def extend(self, additional_time: Duration, replace_ttl: bool = False) -> Literal[True]:
        """
        Move the end of the lease.

        Args:
            additional_time: Seconds to add to the end as this lock knows it.
            replace_ttl: Make it that many seconds from now instead.

        Raises:
            As ``FencedLock.extend``.
        """
        self._with_end("extend")
        return await self.do_extend(additional_time, replace_ttl)

    async def do_extend(self, additional_time: Duration, replace_ttl: bool) -> Literal[True]:
        """Move the end of the lease that is held; redis-py's extension point."""
        seconds = to_seconds("additional_time", additional_time)
        return await self._extend(self._held("extend"), seconds, from_now=replace_ttl)

    async def reacquire(self) -> Literal[True]:
        """
        Make the lease as long from now as it was when it was acquired.

        Raises:
            As ``FencedLock.reacquire``.
        """
        self._with_end("reacquire")
        return await self.do_reacquire()

    async def do_reacquire(self) -> Literal[True]:
        """Move the end of the lease to ``timeout`` from now; redis-py's extension point."""
        lease = self._held("reacquire")
        return await self._extend(lease, to_seconds("timeout", self._length(lease)), from_now=True)

    async def _extend(self, lease: Lease, seconds: float, *, from_now: bool) -> Literal[True]:
        await self._use(lease, steps.extend(self._target, lease, seconds, from_now=from_now))
        self._renew_anew(lease)
        return True

    async def ensure_held(self) -> int:
        """
        Return the token if the lease is still ours; one round trip.

        Raises:
            As ``FencedLock.ensure_held``.
        """
        lease = self._held("rely on")
        return await self._use(lease, steps.ensure(self._target, lease))

    async def advance(self, at_least: int | None = None) -> int:
        """
        Draw another, greater token for the lease that is held, and return it.

        Cancelled, it leaves the lease with the token that it had; one that nobody has may have been drawn.

        Args:
            at_least: The new token is this one or greater; positive, below 2**53.

        Raises:
            As ``FencedLock.advance``; ``NotHeld`` also for another task than the one that acquired it.
        """
        least = checked_at_least(at_least)
        lease = self._held("advance")
        return await self._use(lease, advance(self._target, lease, least))

    async def _use(self, lease: Lease, plan: Steps[T]) -> T:
        try:
            return await arun(self._wire, plan)
        except LeaseLost as error:
            self._lose(lease, str(error), raised=True)
            await self._say()
            raise

    async def transaction(
        self,
        func: Callable[[Pipeline], Any],
        *watches: KeyT,
        timeout: Duration | None = TRANSACTION_SECONDS,
        value_from_callable: bool = False,
        watch_delay: Duration | None = None,
        shard_hint: str | None = None,
    ) -> Any:
        """
        Apply what ``func`` queues, all or nothing, and only while the lease is ours.

        ``func`` may be a coroutine function. Cancelled, the transaction was applied or not, as when a reply is lost.

        Args:
            func, watches, timeout, value_from_callable, watch_delay, shard_hint: As for ``FencedLock.transaction``.

        Raises:
            As ``FencedLock.transaction``.
        """
        connections = connections_of(self._wire, self.redis)
        what = order(self.redis, func, watches, timeout, value_from_callable, watch_delay)
        lease = self._held("write under")
        session = AwaitingSession(self.redis, connections, shard_hint)
        try:
            return await arun(self._wire, transact(self._target, lease, what, session))
        except LeaseLost as error:
            self._lose_if_ours(lease, error)
            await self._say()
            raise

    async def locked(self) -> bool:
        """Return whether anybody holds the lock."""
        return await arun(self._wire, steps.locked(self._target))

    async def owned(self) -> bool:
        """Return whether the lock is held by the lease that this task acquired."""
        lease = self._lease
        return lease is not None and await arun(self._wire, steps.owned(self._target, lease))

    async def __aenter__(self) -> Self:
        if await self.acquire():
            self._note_entry()
            return self
        raise self._not_acquired("the wait is over")

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        put_aside = self._take_over(self._lease_to_leave())
        try:
            await self.release()
        except Exception as error:
            lost = isinstance(error, LockError) and not self.raise_on_release_error
            if exc_value is None and not lost:
                raise
            resource = self._target.resource
            _log.warning(
                "release of %r failed on leaving its block: %s", resource, error, extra=about(resource, error=error)
            )
        finally:
            if put_aside is not None:
                self.local.lease, self.local.token, self.local.task = put_aside

    @property
    def lost(self) -> AsyncLoss:  # type: ignore[override]
        """
        What is set, like an ``asyncio.Event``, once the lease that is held here is lost.

        Raises:
            NotHeld: None is held.
        """
        return AsyncLoss(self._held("watch"))

    @property
    def _lease(self) -> Lease | None:
        lease = super()._lease
        if lease is None or not self.thread_local:
            return lease
        task = self.local.task()
        mine = task is None or task.done() or task is _current_task()
        return lease if mine else None

    def _keep(self, lease: Lease | None) -> None:
        super()._keep(lease)
        task = None if lease is None else _current_task()
        self.local.task = (lambda: None) if task is None else ref(task)

    def _not_acquired(self, waited: str) -> LockNotAcquired:
        return core.not_acquired(self._target.resource, self._busy, waited)

    def _note_entry(self) -> None:
        """A block was entered with the lease that is held."""
        self._entered.append((_current_task(), self._held("enter")))

    def _lease_to_leave(self) -> Lease | None:
        """Return the lease with which the block was entered; a generator may be closed by another task."""
        task = _current_task()
        at = next((at for at, (entered, _) in enumerate(self._entered) if entered is task), -1)
        return self._entered.pop(at)[1] if self._entered else None

    def _take_over(self, lease: Lease | None) -> tuple[Any, ...] | None:
        """Let the present task leave with this lease; return what belongs to another one, to be put back then."""
        local, task = self.local, _current_task()
        if lease is None or lease.released or getattr(local, "lease", None) is None:
            return None
        kept = (local.lease, local.token, local.task)
        local.lease, local.token = lease, lease.owner
        local.task = (lambda: None) if task is None else ref(task)
        return None if kept[0] is lease else kept

    def _add_renewal(self, renewal: Any) -> None:
        renewer_of_loop().add(renewal)

    def _stop_renewal(self, lease: Lease) -> None:
        super()._stop_renewal(lease)
        if lease.renewal is not None:
            renewer_of_loop().look()

    def _send(self, signal: LeaseSignal, message: dict[str, Any]) -> None:
        # Receivers may be coroutines, which have to be awaited.
        self._unsaid.append(partial(signal.asend_robust, type(self), **message))

    async def _say(self) -> None:
        while self._unsaid:
            try:
                await self._unsaid.pop(0)()
            except Exception:  # noqa: BLE001 - nothing that listens breaks a lock
                # No thread is to be had any more for a receiver that does not await.
                _log.exception("could not send a signal", extra=about(self._target.resource))


def _noting(plan: Steps[None], lease: Lease) -> Steps[None]:
    """Note in the lease that it was given back, for whoever is cancelled and does not learn it otherwise."""
    yield from plan
    lease.released = True


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
