"""
What one resource must be like, whatever its holders do: a model to compare the locks and the server with.

Each operation says what the real one must come to: a value, a range of tokens, or the kind of its error. `lost` are
the attempts of the operation that fail, in order: "reply" was carried out and its reply lost, "request" never came.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fenced_locks import IssuerError, LeaseHasNoEnd, LeaseLost, NotHeld

END_OF_TOKENS = 2**53

Error = type[Exception]
# Two readings of a clock, one from before an operation and one from after it.
Span = tuple[float, float]


@dataclass
class Lease:
    """
    What a lock knows of its lease.

    Attributes:
        owner_id: Its owner id.
        token: The token that it carries.
        ends: The span, in local time, in which it ends as the lock knows it; None for without end.
        kept: The same for its end at the server.
        lost: Whether it was found lost.
    """

    owner_id: str
    token: int
    ends: Span | None
    kept: Span | None
    lost: bool = False

    def is_over(self, now: float) -> bool:
        """Return whether it has ended by local time; no end lies so near that this depends on the moment."""
        return self.ends is not None and self.ends[1] <= now


@dataclass
class Model:
    """
    One resource.

    Attributes:
        issuer: `"clock"` or `"counter"`.
        stored: The owner id in the lock key; None if the lock is free.
        holder: Whose lease that is; None if the key is somebody else's, or was touched under the same id.
        counter: The last token that the server remembers; None if it does not.
        damaged: Whether the counter's key is of a wrong type.
        leases: By lock, what it holds or believes to hold, in the order in which they were taken.
        greatest: The greatest token that anybody was given.
        forgotten: Whether the server has lost the counter since.
    """

    issuer: str
    stored: str | None = None
    holder: str | None = None
    counter: int | None = None
    damaged: bool = False
    leases: dict[str, Lease] = field(default_factory=dict)
    greatest: int = 0
    forgotten: bool = False

    def is_ours(self, lease: Lease) -> bool:
        """Return whether the lock is held under the lease's owner id."""
        return self.stored == lease.owner_id

    def is_usable(self, lease: Lease, now: float) -> bool:
        """Return whether it is held, and not over or lost as far as its lock knows."""
        return self.is_ours(lease) and not lease.lost and not lease.is_over(now)

    def acquire(self, lost: Sequence[str], server_us: Span) -> range | Error | None:
        """Return which tokens a new lease may get; None if the lock is busy, also for who holds it already."""
        return None if self.stored is not None else self._mint(0, lost, server_us)

    def acquired(self, who: str, owner_id: str, token: int, ends: Span | None) -> None:
        """Note what was granted."""
        self._grow(token)
        # The last one is the last in the dict.
        self.leases.pop(who, None)
        self.leases[who] = Lease(owner_id, token, ends, ends)
        self.stored, self.holder = owner_id, who

    def release(self, who: str, lost: Sequence[str], now: float) -> Error | None:
        """Give the lease back. Repeated before its local end, a release that finds nothing finds its own work."""
        lease = self.leases.pop(who, None)
        if lease is None:
            return NotHeld
        ours = self.is_ours(lease)
        if ours:
            self.free()
        done = (ours and "reply" not in lost) or (bool(lost) and not lease.is_over(now))
        return None if done else LeaseLost

    def extend(self, who: str, ends: Span, *, from_now: bool) -> Error | bool:
        """Move the end, also of a lease that was over by local time only. What was found lost stays lost."""
        lease = self.leases.get(who)
        if lease is None:
            return NotHeld
        if lease.ends is None or lease.kept is None:
            return LeaseHasNoEnd
        if not self.is_ours(lease):
            return self._lost(lease)
        lease.ends = ends if from_now else _sum(lease.ends, ends)
        lease.kept = ends if from_now else _sum(lease.kept, ends)
        if self.holder != who:
            # Who chose the same id moves the end of the other's lease.
            self.holder = None
        return True

    def ensure(self, who: str, now: float) -> Error | int:
        """Return the token of a lease that is held."""
        lease = self.leases.get(who)
        if lease is None:
            return NotHeld
        return lease.token if self.is_usable(lease, now) else self._lost(lease)

    def advance(self, who: str, at_least: int, lost: Sequence[str], server_us: Span, now: float) -> range | Error:
        """Return which tokens the lease may get: greater than its own, whatever has become of the counter."""
        lease = self.leases.get(who)
        if lease is None:
            return NotHeld
        if not self.is_usable(lease, now):
            return self._lost(lease)
        return self._mint(max(lease.token, at_least - 1), lost, server_us)

    def advanced(self, who: str, token: int) -> None:
        """Note the token that was drawn."""
        assert token > self.leases[who].token
        self._grow(token)
        self.leases[who].token = token

    def free(self, stored: str | None = None) -> None:
        """The lock key was deleted, or is somebody else's now."""
        self.stored, self.holder = stored, None

    def forget(self, counter: int | None = None, *, damaged: bool = False) -> None:
        """The server has lost the counter, or has an old or unusable one."""
        self.counter, self.damaged, self.forgotten = counter, damaged, True

    def _lost(self, lease: Lease) -> Error:
        lease.lost = True
        return LeaseLost

    def _mint(self, floor: int, lost: Sequence[str], server_us: Span) -> range | Error:
        """Draw once for each attempt that the server carries out: the last one, and those whose replies were lost."""
        last, times = max(self.counter or 0, floor), 1 + list(lost).count("reply")
        if self.damaged:
            return IssuerError
        if last + times >= END_OF_TOKENS:
            if last + 1 < END_OF_TOKENS:
                self.counter = END_OF_TOKENS - 1
            return IssuerError
        if self.issuer == "counter":
            tokens = range(last + times, last + times + 1)
        else:
            before, after = map(int, server_us)
            tokens = range(max(last + times, before), max(last, after) + times + 1)
            if self.forgotten and self.greatest < before:
                # The clock is beyond all that was issued, so nothing that was lost matters.
                self.forgotten = False
        if self.forgotten:
            # No issuer inside Redis promises more: law 1 begins anew.
            self.greatest, self.forgotten = 0, False
        return tokens

    def _grow(self, token: int) -> None:
        """Law 1."""
        assert token > self.greatest
        self.greatest = self.counter = token


def _sum(one: Span, other: Span) -> Span:
    return one[0] + other[0], one[1] + other[1]
