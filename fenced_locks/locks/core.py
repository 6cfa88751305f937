"""Pure decisions of a lock: arguments, owner ids, replies, deadlines. Nothing here waits or talks to a server."""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ..durations import to_ms
from ..exceptions import IssuerError, LeaseLost, LockNotAcquired, OutcomeUnknown
from ..issuers import AnyIssuer

# How long an operation without a deadline of its own goes on trying to reach the server, in seconds.
RETRY_SECONDS = 3.0
# What a server gets for the reply to a try at the deadline itself, in seconds.
GRACE_SECONDS = 0.5
# After how many seconds a waiter says whom it waits for.
NOTICE_SECONDS = 2.0
_LEAST_PROBE_SECONDS = 0.1
_MOST_PROBE_SECONDS = 10.0
_TICKET = b"ticket:"
# What is said in place of an owner while a ticket stands in the lock key.
HANDED_OVER = "about to be taken by a waiter"
# What stands for the owner while a lock is kept free for those that poll.
_TURN = "turn:"
# Longer than this, in seconds, nobody waits for a reply: sockets do not take any number.
_MOST_REPLY_SECONDS = 86_400.0
# What PTTL says of a key that does not exist.
_NO_KEY = -2
_OWNER_ID = re.compile(rb"[^\0\n]*:\d+:[0-9a-f]{24}")
_PAUSES = (0.0, 0.02, 0.05, 0.1, 0.2)


@dataclass(eq=False)
class Lease:
    """
    One grant. Only in the process that it was granted to: a forked child holds nothing.

    Attributes:
        owner: The owner id.
        fence_token: The token; ``carry`` raises it.
        timeout: Its length in seconds as it was asked for; None for without end.
        ends_at: Its end in local monotonic time, counted from before the request; None for without end.
        server_end_ms: Its end by the server's clock, in milliseconds.
        began_at: When it was asked for, in local monotonic time.
        lost: Whether it was found to be lost.
        released: Whether it was given back.
        process: Which process holds it; see ``is_inherited``.
        renewal: What renews it; None if nothing does.
        asked_at: When the call that took it began to wait, in local monotonic time.
        issuer: Who drew its token, and draws the next one; None where that is the lock's.
        followers: Called with the token when it carries another one.
        transactions: One entry for each that is under way.
    """

    owner: bytes
    fence_token: int = 0
    timeout: float | None = None
    ends_at: float | None = None
    server_end_ms: int = 0
    began_at: float = 0.0
    lost: bool = False
    released: bool = False
    process: int = field(default_factory=lambda: _this_process())
    renewal: Any = None
    asked_at: float = 0.0
    issuer: AnyIssuer | None = None
    followers: list[Callable[[int], object]] = field(default_factory=list)
    transactions: list[None] = field(default_factory=list)

    def is_inherited(self) -> bool:
        """Return whether it belongs to the process of which this one was forked."""
        return self.process != _process.number

    def carry(self, token: int) -> None:
        """Carry this token from now on; of several threads that have drawn one, the greatest stays."""
        # Made for this lease, since a lock of the module's could be found taken by a forked child.
        with vars(self).setdefault("_carrying", threading.Lock()):
            self.fence_token = max(self.fence_token, token)
            for follow in list(self.followers):
                follow(self.fence_token)


@dataclass(slots=True)
class Busy:
    """
    Who had the lock when it was last refused, and for how many seconds; None where that is not known.

    ``expired`` if it was taken, and the lease ended before it was complete; ``free`` if it is nobody's at the moment.
    """

    owner_id: str | None = None
    remaining: float | None = None
    expired: bool = False
    free: bool = False


@dataclass(slots=True)
class Patience:
    """
    When to stop trying to reach the server, for one operation.

    Attributes:
        deadline: Monotonic time at which it must be over.
        reply_limit: Longest wait for one reply in seconds, the client's ``socket_timeout``; None for without.
        failures: How many attempts have failed.
    """

    deadline: float
    reply_limit: float | None
    failures: int = 0

    def reply_timeout(self, now: float) -> float:
        """Return how long to wait for the reply of an attempt that starts now."""
        left = min(max(self.deadline - now, GRACE_SECONDS), _MOST_REPLY_SECONDS)
        return left if self.reply_limit is None else min(left, self.reply_limit)

    def pause(self, now: float) -> float | None:
        """Return how long to wait before the next attempt, or None if the time is over."""
        pause = _PAUSES[min(self.failures, len(_PAUSES) - 1)]
        self.failures += 1
        return pause if now + pause < self.deadline else None


def patience(now: float, deadline: float | None, reply_limit: float | None) -> Patience:
    """Return the patience of an operation with this deadline, or with the usual one for None."""
    if deadline is None:
        deadline = now + max(RETRY_SECONDS, reply_limit or 0.0)
    return Patience(deadline, reply_limit)


@dataclass(slots=True)
class Waiting:
    """
    How an acquire waits.

    Attributes:
        blocking: Whether it does.
        sleep: Seconds between two tries of a waiter that has to poll.
        started: Monotonic time at which it began.
        deadline: Monotonic time at which it gives up; None for never.
    """

    blocking: bool
    sleep: float
    started: float
    deadline: float | None

    def is_over(self, now: float) -> bool:
        """Return whether there is nothing to wait for any more."""
        return not self.blocking or (self.deadline is not None and now >= self.deadline)

    def left(self, now: float) -> float | None:
        """Return how many seconds are left; None for without end."""
        return None if self.deadline is None else self.deadline - now

    @property
    def probe_seconds(self) -> float:
        """How long a waiter that blocks goes without looking: not everything that frees a lock wakes it."""
        return min(max(self.sleep, _LEAST_PROBE_SECONDS), _MOST_PROBE_SECONDS)

    @property
    def registration_ms(self) -> int:
        """How long a waiter that has died may stay registered, in milliseconds."""
        return to_ms(3 * self.probe_seconds + 5)


def new_owner_id() -> bytes:
    """Return an owner id, ``host:pid:random``, never used before; 32 random bits of the process and 64 of its own."""
    return f"{_process.prefix}{os.urandom(8).hex()}".encode()


def ticket_of(owner: bytes) -> bytes:
    """Return the ticket that the acquire script makes where it hands over instead of taking."""
    return _TICKET + owner


def new_ticket() -> bytes:
    """Return a ticket, under which the lock is kept for the waiter whose turn it is; as unguessable as an owner id."""
    return _TICKET + new_owner_id()


def is_ticket(stored: bytes) -> bool:
    """Return whether the value of a lock key is a ticket, and nobody holds the lock."""
    return stored.startswith(_TICKET)


def is_owner_id(stored: bytes) -> bool:
    """Return whether the value of a lock key was made by ``new_owner_id``."""
    return _OWNER_ID.fullmatch(stored) is not None


def is_this_process(owner_id: str | None) -> bool:
    """Return whether an owner id was made by this process; the same pid on a like-named host is another one."""
    return owner_id is not None and owner_id.startswith(_process.prefix)


class _Process:
    prefix: str
    number = 0

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self.number += 1
        self.prefix = f"{socket.gethostname()}:{os.getpid()}:{os.urandom(4).hex()}"


_process = _Process()


def _this_process() -> int:
    return _process.number


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_process.renew)


def lease_ms(timeout: float | None) -> int:
    """Return the lease as the scripts take it: milliseconds, 0 for without end."""
    return 0 if timeout is None else to_ms(timeout)


def granted(reply: bytes, owner: bytes, started: float, timeout: float | None, issuer: AnyIssuer) -> Lease:
    """Return the lease that a granting reply of the acquire script describes."""
    token, _, end_ms = reply.partition(b" ")
    ends_at = None if timeout is None else started + timeout
    return Lease(owner, int(token), timeout, ends_at, int(end_ms), started, issuer=issuer)


def refused(reply: list[Any]) -> Busy:
    """Return what a refusing reply says about the present owner."""
    remaining_ms = int(reply[0])
    owner = bytes(reply[1]).decode("utf-8", "backslashreplace")
    return Busy(owner or None, remaining_ms / 1000 if remaining_ms >= 0 else None, free=remaining_ms == _NO_KEY)


def check_end(seconds: float, lease: Lease) -> None:
    """Refuse an end that Redis could not keep as an exact number."""
    if lease.server_end_ms + to_ms(seconds) > 2**53:
        raise ValueError(f"additional_time is too long: the lease would end in {seconds:.0f} s from its present end")


def earliest(now: float, *times: float | None) -> float | None:
    """Return how many seconds are left until the first of these times; None if none of them ever comes."""
    known = [time for time in times if time is not None]
    return max(0.0, min(known) - now) if known else None


def is_over(lease: Lease, now: float) -> bool:
    """Return whether the lease has ended by local time."""
    return lease.ends_at is not None and now >= lease.ends_at


def not_acquired(resource: str, busy: Busy, waited: str) -> LockNotAcquired:
    """Return the error for a resource that is busy, saying who holds it and for how long."""
    error = LockNotAcquired(f"{resource!r} {state(busy)}; {waited}", resource)
    error.owner_id, error.remaining = busy.owner_id, busy.remaining
    return error


def state(busy: Busy) -> str:
    """Return in words who has the lock, and for how long."""
    if busy.expired:
        return "was taken, but the lease ended before it was complete"
    if busy.owner_id == _TURN:
        return "is kept free for a moment, for locks that poll"
    if busy.owner_id is None:
        holder = "held by an unknown owner"
    elif busy.owner_id.startswith(_TICKET.decode()):
        holder = HANDED_OVER
    elif is_this_process(busy.owner_id):
        holder = f"held by {busy.owner_id} (this very process)"
    else:
        holder = f"held by {busy.owner_id}"
    lease = "without end" if busy.remaining is None else f"with {busy.remaining:.3f} s left"
    return f"is busy: {holder}, {lease}"


def found(present: Busy) -> str:
    """Return in words what was found in place of a lease that ended."""
    return f"held by {present.owner_id}" if present.owner_id else "free"


def lost(resource: str, lease: Lease, action: str, what: str) -> LeaseLost:
    """Return the error for a lease that was found gone or taken."""
    owner = lease.owner.decode("utf-8", "backslashreplace")
    known = f"owner {owner}, fence token {lease.fence_token}" if lease.fence_token else f"owner {owner}"
    error = LeaseLost(f"cannot {action} the lease of {resource!r} ({known}): {what}", resource)
    error.fence_token, error.owner_id = lease.fence_token or None, owner
    return error


def outcome_unknown(action: str, resource: str, cause: BaseException) -> OutcomeUnknown:
    """Return the error for an operation whose last reply was lost."""
    unknown = OutcomeUnknown(
        f"{action} of {resource!r} was sent and its reply was lost ({cause}): it may or may not have happened"
    )
    unknown.resource = resource
    return unknown


def unreachable(action: str, resource: str, cause: BaseException) -> Exception:
    """Return redis-py's error for a server that cannot be reached, saying what was not sent."""
    kind = RedisTimeoutError if isinstance(cause, RedisTimeoutError) else RedisConnectionError
    return kind(f"{action} of {resource!r} was not sent: {cause}")


def issuer_error(error: ResponseError, resource: str, counter: bytes, held: Lease | None = None) -> IssuerError | None:
    """
    Return the error for a script that refused to mint, or None if it failed for another reason.

    ``held`` is the lease that goes on without the token; none does where the token was to be its first.
    """
    text = str(error)
    if not text.startswith("FENCE counter "):
        return None
    reason = text.removeprefix("FENCE counter ")
    key = counter.decode(errors="backslashreplace")
    return _no_token(resource, f"its counter {key!r} {reason}", held)


def not_issued(resource: str, issuer: str, what: str, held: Lease | None = None) -> IssuerError:
    """Return the error for an issuer outside Redis that had no token; ``held`` as for ``issuer_error``."""
    return _no_token(resource, f"the issuer {issuer!r} {what}", held)


def _no_token(resource: str, reason: str, held: Lease | None) -> IssuerError:
    rest = "no lease was left behind" if held is None else f"the lease goes on with {held.fence_token}"
    refused = IssuerError(f"no fence token for {resource!r}: {reason}; {rest}")
    refused.resource = resource
    return refused
