"""
Renewal: what keeps leases alive until they are given back. The decisions here, and the thread that carries them out.

Each lease is renewed when a third of it has passed; what is due soon goes along in the same batch. During a
transaction, which begins again when its lease is renewed, the second third passes as well. A lease is *held*,
*renewed*, *unknown* (the server could not be reached, and its end has not come), or *lost*. Renewing never acquires.
"""

from __future__ import annotations

import heapq
import logging
import os
import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from typing import Any, Protocol
from weakref import ReferenceType

from .. import clock
from ..durations import to_ms
from ..logs import about
from ..scripts import load, source
from ..wire import NotSent, ReplyLost, Wire
from . import core
from .actions import Target
from .core import Lease

_log = logging.getLogger(__name__)

RENEW = load("renew", source("owner_of"))
# How many leases travel in one piece.
_BATCH = 500
# How much sooner than it is due a renewal may go along with others, in lengths of its lease.
_EARLY = 0.1
# How long the thread stays when there is nothing to renew, in seconds.
_IDLE_SECONDS = 10.0
_numbers = count()


class State(Enum):
    """What is known of a lease under renewal."""

    HELD = "held"
    RENEWED = "renewed"
    UNKNOWN = "unknown"
    LOST = "lost"


class Holder(Protocol):
    """A lock, as renewal sees it."""

    def _was_renewed(self, lease: Lease) -> None:
        """Tell whoever wants to know that the end of the lease was moved."""

    def _lose(self, lease: Lease, found: str) -> None:
        """Tell whoever wants to know that the lease is lost."""


@dataclass(eq=False)
class Renewal:
    """
    The renewal of one lease; it ends with the lock object, with the lease object, and when it is cancelled.

    Attributes:
        holder: The lock.
        lease: The lease.
        target: The lock's target.
        wire: How to reach the server.
        seconds: Length of the lease.
        until: Monotonic time beyond which the lease is not kept; None for no limit.
    """

    holder: ReferenceType[Holder]
    lease: ReferenceType[Lease]
    target: Target
    wire: Any
    seconds: float
    until: float | None
    state: State = State.HELD
    due: float = 0.0
    cancelled: bool = False
    number: int = field(default_factory=lambda: next(_numbers))

    def __lt__(self, other: Renewal) -> bool:
        return (self.due, self.number) < (other.due, other.number)

    def living(self) -> tuple[Holder, Lease] | None:
        """Return the lock and its lease, or None if there is nothing to renew any more."""
        holder, lease = self.holder(), self.lease()
        if self.cancelled or holder is None or lease is None or lease.released or self.state is State.LOST:
            return None
        if lease.is_inherited():
            return None
        return holder, lease

    def schedule(self, now: float) -> None:
        """Set when to look at this lease next."""
        lease = self.lease()
        if lease is None or lease.ends_at is None:
            self.cancelled = True
            return
        if self.state is State.UNKNOWN:
            self.due = min(now + max(0.02, min(self.seconds / 10, (lease.ends_at - now) / 3)), lease.ends_at)
        elif self.until is not None and self.until <= lease.ends_at:
            self.due = lease.ends_at
        else:
            self.due = self._due(lease, lease.ends_at)

    def milliseconds(self, now: float) -> int:
        """Return how long the lease shall last from now on; 0 if it is to be left to its end."""
        lease = self.lease()
        if lease is None or lease.ends_at is None or self._is_put_off(lease, lease.ends_at, now):
            return 0
        ends = self._end(now + self.seconds)
        return to_ms(ends - now) if ends > max(now, lease.ends_at) else 0

    def _due(self, lease: Lease, ends_at: float) -> float:
        return ends_at - self.seconds * (1 if lease.transactions else 2) / 3

    def _is_put_off(self, lease: Lease, ends_at: float, now: float) -> bool:
        """Return whether it has become due later, since a transaction began."""
        waits = bool(lease.transactions) and self.state is not State.UNKNOWN
        return waits and now < self._due(lease, ends_at) - self.seconds * _EARLY

    def settle(self, reply: Any, asked_at: float, now: float) -> None:
        """
        Act on the reply to a request, or on the exception in its place; None if nothing was asked.

        What is lost keeps its place: it may be on an agenda, which would lose its order.
        """
        living = self.living()
        if living is None:
            return
        try:
            self._act(*living, reply, asked_at, now)
        finally:
            # Also where a receiver or a log filter raises, or it would be due at once again, and for ever.
            if self.state is not State.LOST:
                self.schedule(now)

    def _act(self, holder: Holder, lease: Lease, reply: Any, asked_at: float, now: float) -> None:
        if isinstance(reply, list):
            self._lost(holder, lease, core.found(core.refused(reply)))
        elif isinstance(reply, int):
            self.state = State.RENEWED
            lease.server_end_ms = reply
            lease.ends_at = max(lease.ends_at or 0.0, self._end(asked_at + self.seconds))
            holder._was_renewed(lease)
        elif core.is_over(lease, now):
            self._lost(holder, lease, "its end has passed")
        elif reply is not None:
            self._unknown(lease, reply, now)

    def _end(self, wanted: float) -> float:
        return wanted if self.until is None else min(wanted, self.until)

    def _unknown(self, lease: Lease, error: Exception, now: float) -> None:
        level = logging.DEBUG if self.state is State.UNKNOWN else logging.WARNING
        self.state = State.UNKNOWN
        left = (lease.ends_at or now) - now
        known = about(self.target.resource, token=lease.fence_token, remaining=left, error=error)
        _log.log(level, "renewal of %r failed, %.3f s are left: %r", self.target.resource, left, error, extra=known)

    def _lost(self, holder: Holder, lease: Lease, found: str) -> None:
        self.state = State.LOST
        holder._lose(lease, found)


def begin(holder: Any, lease: Lease, target: Target, wire: Any, until: float | None) -> Renewal | None:
    """Return the renewal of a lease, which is kept until then, or for ever; None if it has no end."""
    if lease.timeout is None:
        return None
    reference: ReferenceType[Any] = ReferenceType(holder)
    renewal = Renewal(reference, ReferenceType(lease), target, wire, lease.timeout, until)
    renewal.schedule(clock.monotonic())
    return renewal


class Agenda:
    """What is to be renewed, and when; not safe for threads by itself."""

    def __init__(self) -> None:
        self._heap: list[Renewal] = []
        self._tidy_at = 64

    def __bool__(self) -> bool:
        return bool(self._heap)

    def add(self, renewal: Renewal) -> bool:
        """Note a renewal; return whether it is the next one now."""
        heapq.heappush(self._heap, renewal)
        if len(self._heap) >= self._tidy_at:
            # What was released long before it was due.
            self._heap = [one for one in self._heap if one.living() is not None]
            heapq.heapify(self._heap)
            self._tidy_at = 2 * len(self._heap) + 64
        return self._heap[0] is renewal

    def seconds(self, now: float) -> float | None:
        """Return how long there is nothing to do; None if there is nothing at all."""
        while self._heap and self._heap[0].living() is None:
            heapq.heappop(self._heap)
        return max(0.0, self._heap[0].due - now) if self._heap else None

    def take(self, now: float) -> list[Renewal]:
        """Return what is due, and what is due so soon that it had better go along."""
        taken = []
        while self._heap and self._heap[0].due - self._heap[0].seconds * _EARLY <= now:
            renewal = heapq.heappop(self._heap)
            if renewal.living() is not None:
                taken.append(renewal)
        return taken

    def patience(self, batch: Sequence[Renewal], now: float) -> float:
        """Return how long to wait for the replies to a batch: others must not lose their leases meanwhile."""
        ends = [lease.ends_at for r in (*batch, *self._heap) if (lease := r.lease()) is not None and lease.ends_at]
        own = min(renewal.seconds for renewal in batch) / 6
        limit = batch[0].target.reply_limit or own
        return max(0.01, min(own, limit, (min(ends, default=now) - now) / 3))


def batches(renewals: Iterable[Renewal]) -> list[list[Renewal]]:
    """Return the renewals in groups that can be sent in one piece."""
    by_wire: dict[int, list[Renewal]] = defaultdict(list)
    for renewal in renewals:
        by_wire[id(renewal.wire)].append(renewal)
    return [group[at : at + _BATCH] for group in by_wire.values() for at in range(0, len(group), _BATCH)]


def calls_of(batch: Sequence[Renewal], now: float) -> dict[Renewal, tuple[tuple[bytes], tuple[bytes, bytes]]]:
    """Return keys and arguments for those of a batch that are to be renewed; the others are left to their end."""
    calls = {}
    for renewal in batch:
        lease, lasting_ms = renewal.lease(), renewal.milliseconds(now)
        if lease is not None and lasting_ms:
            calls[renewal] = ((renewal.target.lock,), (lease.owner, b"%d" % lasting_ms))
    return calls


class Renewer:
    """One daemon thread for all leases of the process; it starts with the first and ends when there are none."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything: a forked child has neither the thread nor the leases."""
        self._changed = threading.Condition()
        self._agenda = Agenda()
        self._thread: threading.Thread | None = None

    def add(self, renewal: Renewal) -> None:
        """Renew this lease from now on."""
        with self._changed:
            if self._agenda.add(renewal):
                self._changed.notify()
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="fenced-locks-renewal", daemon=True)
                thread.start()
                self._thread = thread

    def look(self) -> None:
        """See what is due: the time has jumped."""
        with self._changed:
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                now = clock.monotonic()
                seconds = self._agenda.seconds(now)
                if seconds is None and not self._changed.wait(_IDLE_SECONDS) and not self._agenda:
                    self._thread = None
                    return
                if seconds:
                    self._changed.wait(seconds)
                due = self._agenda.take(clock.monotonic())
            for batch in batches(due):
                self._renew(batch)
            with self._changed:
                for renewal in due:
                    if renewal.living() is not None:
                        self._agenda.add(renewal)

    def _renew(self, batch: Sequence[Renewal]) -> None:
        asked_at = clock.monotonic()
        calls = calls_of(batch, asked_at)
        wire: Wire = batch[0].wire
        replies: dict[Renewal, Any] = {}
        if calls:
            with self._changed:
                timeout = self._agenda.patience(batch, asked_at)
            replies = _replies(wire, calls, timeout)
        for renewal in batch:
            try:
                renewal.settle(replies.get(renewal), asked_at, clock.monotonic())
            except BaseException:  # noqa: BLE001 - one lease must not keep the others from being renewed
                _log.exception("renewal of %r", renewal.target.resource, extra=about(renewal.target.resource))


def _replies(wire: Wire, calls: dict[Renewal, Any], timeout: float) -> dict[Renewal, Any]:
    try:
        replies = wire.call_all(RENEW, list(calls.values()), timeout)
    except (NotSent, ReplyLost) as error:
        replies = [error.__cause__ or error] * len(calls)
    except Exception as error:  # noqa: BLE001 - the thread must survive whatever a client raises
        replies = [error] * len(calls)
    return dict(zip(calls, replies, strict=True))


renewer = Renewer()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=renewer.reset)
