"""The locks of several resources at once: what ``fenced_lock`` and ``afenced_lock`` return for two and more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeAlias, TypeVar

from . import clock
from .durations import Duration
from .exceptions import LockNotAcquired
from .locks import core, together
from .locks.actions import Steps
from .locks.awaiting import arun
from .locks.blocking import run
from .locks.loss import AsyncLoss, Loss
from .locks.together import Part
from .plans import Calls, amake, leave, make
from .reentrant import AsyncReentrantLock, ReentrantLock
from .taking import Taking
from .tokens import FenceTokens, why_not_one

if TYPE_CHECKING:
    from typing_extensions import Self

L = TypeVar("L", ReentrantLock, AsyncReentrantLock)


class _Several(Generic[L]):
    """
    What needs no waiting, and what is decided alike for locks that block and for locks that await.

    Attributes:
        resources: What is protected, as the user named it and in that order, each once.
    """

    def __init__(self, locks: Sequence[L]) -> None:
        self.resources = tuple(lock.resource for lock in locks)
        self._locks: tuple[L, ...] = tuple(sorted(locks, key=lambda lock: lock._rank))

    @property
    def fence_tokens(self) -> FenceTokens:
        """
        The token of each resource, by its name: ``locks.fence_tokens["order:1"]``.

        What it returns may be passed to other threads and tasks.

        Raises:
            NotHeld: Not all of them are held here.
        """
        leases = {lock.resource: lock._held("tell the tokens of") for lock in self._locks}
        return FenceTokens({resource: leases[resource] for resource in self.resources})

    @property
    def fence_token(self) -> NoReturn:
        """
        None of several: tokens of different resources do not compare.

        Raises:
            TypeError: Always; it says so and names ``fence_tokens``.
        """
        raise TypeError(f"no single fence token: {why_not_one(self.resources, 'fence_tokens')}")

    def remaining(self) -> float | None:
        """
        Return how long the first of the leases to end still lasts, in seconds; None if none has an end.

        Raises:
            NotHeld: Not all of them are held here.
        """
        known = [left for lock in self._locks if (left := lock.remaining()) is not None]
        return min(known, default=None)

    def _held_leases(self, action: str) -> list[core.Lease]:
        return [lock._held(action) for lock in self._locks]

    def _taking(self, blocking: bool | None, limit: Duration | None, ask: Callable[[Steps[Any]], Any]) -> Taking:
        waiting = self._locks[0]._waiting(None, blocking, limit, clock.monotonic())
        return Taking(self._locks, waiting, ask)

    def _to_release(self) -> list[L]:
        """Return the locks that have something to give back, the last taken first; one of them if none has."""
        held = [lock for lock in reversed(self._locks) if lock._lease is not None]
        return held or [self._locks[-1]]

    def _ensure(self, ask: Callable[[Steps[Any]], Any]) -> Calls[FenceTokens]:
        leases = self._held_leases("rely on")
        now = clock.monotonic()
        ended = ["it has ended" if lease.lost or core.is_over(lease, now) else "" for lease in leases]
        if not any(ended):
            parts = [Part(lock._target, lease) for lock, lease in zip(self._locks, leases, strict=True)]
            found = yield partial(ask, together.ensure(parts))
            ended = [f"it ended, the resource is {core.found(busy)}" if busy else "" for busy in found]
        errors = []
        for lock, lease, what in zip(self._locks, leases, ended, strict=True):
            if what:
                errors.append(core.lost(lock._target.resource, lease, "rely on", what))
                lock._lose(lease, str(errors[-1]), raised=True)
        if errors:
            raise errors[0]
        return self.fence_tokens


class ReentrantLocks(_Several[ReentrantLock]):
    """
    What ``fenced_lock`` returns for several resources: all of them or none, taken in the order of all.

    Resources that this thread holds already are entered again. An object may be used by several threads.
    """

    def acquire(self, *, blocking: bool | None = None, blocking_timeout: Duration | None = None) -> bool:
        """
        Take all resources; return True, or False if they were not to be had until the wait was over.

        What was taken is given back where another one is not to be had, for whatever reason. When the last one is
        held, every lease is given its whole length again and seen to be ours, in one round trip; if one has ended
        while others were awaited, all are given back, and taken anew if time is left.

        Args:
            blocking: Whether to wait; by default as the lock was built.
            blocking_timeout: How long to wait for all of them together, in seconds; by default as the lock was built.

        Raises:
            LeaseLost: A lease that is entered again has ended.
            Others: As ``FencedLock.acquire``, for any of the resources.
        """
        return self._acquire(blocking, blocking_timeout) is None

    def _acquire(self, blocking: bool | None = None, limit: Duration | None = None) -> LockNotAcquired | None:
        taking = self._taking(blocking, limit, partial(run, self._locks[0]._wire))
        try:
            return make(taking.take())
        except BaseException:
            make(taking.give_back())
            raise
        finally:
            taking.stop_keeping()

    def release(self) -> None:
        """
        Give all leases back, the last taken first, each also where another could not be given back.

        Inside open transactions they are given back after all of them have ended, as for one resource.

        Raises:
            NotHeld: None is held by this thread.
            Others: As ``FencedLock.release``: the first error, after all were tried. It can be repeated for those
                that the server did not answer for.
        """
        make(leave([lock.release for lock in self._to_release()]))

    def ensure_held(self) -> FenceTokens:
        """
        Return the tokens if all leases are still ours; one round trip.

        Raises:
            NotHeld: Not all are held by this thread.
            LeaseLost: One ended, by local time or at the server, or another owner has the resource.
            OutcomeUnknown, redis.exceptions.ConnectionError, TimeoutError: The server cannot be asked.
        """
        return make(self._ensure(partial(run, self._locks[0]._wire)))

    @property
    def lost(self) -> Loss:
        """
        What is set, like an event, once one of the leases that are held here is lost.

        Raises:
            NotHeld: Not all are held by this thread.
        """
        return Loss(*self._held_leases("watch"))

    def __enter__(self) -> Self:
        if refusal := self._acquire():
            raise refusal
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        make(leave([partial(lock.__exit__, exc_type, exc_value, traceback) for lock in reversed(self._locks)]))


class AsyncReentrantLocks(_Several[AsyncReentrantLock]):
    """
    What ``afenced_lock`` returns for several resources: all of them or none, taken in the order of all.

    Resources that this task holds already are entered again. As an ``AsyncFencedLock``, it is for one task at a time.
    """

    async def acquire(self, *, blocking: bool | None = None, blocking_timeout: Duration | None = None) -> bool:
        """
        Take all resources; return True, or False if they were not to be had until the wait was over.

        Args:
            blocking: Whether to wait; by default as the lock was built.
            blocking_timeout: How long to wait for all of them together, in seconds; by default as the lock was built.

        Raises:
            As ``ReentrantLocks.acquire``; and ``asyncio.CancelledError``, with no lease left behind.
        """
        return await self._acquire(blocking, blocking_timeout) is None

    async def _acquire(self, blocking: bool | None = None, limit: Duration | None = None) -> LockNotAcquired | None:
        taking = self._taking(blocking, limit, partial(arun, self._locks[0]._wire))
        try:
            return await amake(taking.take())
        except GeneratorExit:
            # Thrown away: nothing can be awaited any more.
            raise
        except BaseException:
            await amake(taking.give_back())
            await self._say()
            raise
        finally:
            taking.stop_keeping()

    async def release(self) -> None:
        """
        Give all leases back, the last taken first; cancelled, it does so all the same before it raises.

        Raises:
            As ``ReentrantLocks.release``; ``NotHeld`` also for another task than the one that acquired.
        """
        await amake(leave([lock.release for lock in self._to_release()]))

    async def ensure_held(self) -> FenceTokens:
        """
        Return the tokens if all leases are still ours; one round trip.

        Raises:
            As ``ReentrantLocks.ensure_held``.
        """
        try:
            return await amake(self._ensure(partial(arun, self._locks[0]._wire)))
        finally:
            await self._say()

    @property
    def lost(self) -> AsyncLoss:
        """
        What is set, like an ``asyncio.Event``, once one of the leases that are held here is lost.

        Raises:
            NotHeld: Not all are held by this task.
        """
        return AsyncLoss(*self._held_leases("watch"))

    async def __aenter__(self) -> Self:
        if refusal := await self._acquire():
            raise refusal
        for lock in self._locks:
            lock._note_entry()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await amake(leave([partial(lock.__aexit__, exc_type, exc_value, traceback) for lock in reversed(self._locks)]))

    async def _say(self) -> None:
        for lock in self._locks:
            await lock._say()


AnyLock: TypeAlias = ReentrantLock | ReentrantLocks
AnyAsyncLock: TypeAlias = AsyncReentrantLock | AsyncReentrantLocks
