"""What a lock says to the server when it is taken, kept and given back; see ``actions`` for how these are driven."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from .. import clock
from ..durations import to_ms
from ..exceptions import LeaseLost
from ..issuers import ExternalIssuer
from ..logs import about
from ..scripts import Script, load, source
from ..wire import Claim, NotSent, ReplyLost, Undo
from . import core
from .actions import Answer, Call, Claimed, HangUp, Pause, Request, Steps, Target
from .core import Lease, Patience
from .issuing import issue

_log = logging.getLogger(__name__)

_OWNER_OF = source("owner_of")
RELEASE = load("release", _OWNER_OF, source("hand_over"))
_EXTEND = load("extend", _OWNER_OF)
ADOPT = load("adopt", _OWNER_OF)
_OWNED = load("owned", _OWNER_OF)
_LOCKED = load("locked")


def acquire(target: Target, call: Call, owner: bytes, timeout: float | None) -> Steps[bool]:
    """
    Try once to take the lock under this owner id, and keep the lease in ``call``; False if it is busy.

    Whatever goes wrong, what may have been taken is released again, if the server can be reached.
    """
    chosen = owner != call.minted
    mine = core.new_owner_id() if chosen else owner
    try:
        lease = yield from _take(target, call, mine, timeout)
        if lease is not None and (chosen or isinstance(target.issuer, ExternalIssuer)):
            lease = yield from _complete(target, call, lease, owner if chosen else lease.owner)
    except BaseException:
        yield from give_up(target, call)
        raise
    call.lease = lease
    return lease is not None


def _complete(target: Target, call: Call, lease: Lease, owner: bytes) -> Steps[Lease | None]:
    """Do what the script that took the lock could not; None if the lease ended meanwhile."""
    call.lost.append(lease.owner)
    if isinstance(target.issuer, ExternalIssuer):
        lease.fence_token = yield from issue(target, target.issuer)
    if owner != lease.owner:
        call.lost.append(owner)
    return (yield from _adopt(target, call, lease, owner))


def _take(target: Target, call: Call, owner: bytes, timeout: float | None) -> Steps[Lease | None]:
    """
    Attempts whose replies are lost are repeated until the deadline.

    Each has an owner id of its own, so that undoing a late one never touches a later one.
    """
    lease_ms = b"%d" % core.lease_ms(timeout)
    patience = core.patience(clock.monotonic(), call.deadline, target.reply_limit)
    while True:
        attempt = yield from _attempt(target, call, owner, lease_ms, patience)
        owner = attempt.owner
        try:
            reply = yield attempt.action
        except (NotSent, ReplyLost) as error:
            if isinstance(error, ReplyLost):
                call.lost.append(owner)
            yield Pause(pause_or_fail(error, patience, "acquire", target, maybe_applied=bool(call.lost)))
        except ResponseError as error:
            raise core.issuer_error(error, target.resource, target.counter) or error from None
        except BaseException:
            call.lost.append(owner)
            if isinstance(attempt.action, Answer):
                # The interruption may have come before anybody waited for the answer.
                yield HangUp(attempt.action.listener)
            raise
        else:
            if reply is None:
                # The server does not know the script of the claim.
                continue
            # Whatever the reply: a ticket is good for one try, and who tries is no waiter any more.
            call.ticket, call.waiter = None, b""
            if not isinstance(reply, list):
                return core.granted(reply, owner, attempt.started, timeout, target.issuer)
            call.busy = core.refused(reply)
            if not reply[1].startswith(core.ticket_of(owner)):
                return None
            # It was free, but somebody is registered: if none of them is alive, the lock is ours now.
            owner = core.new_owner_id()


class _Attempt(NamedTuple):
    owner: bytes
    started: float
    action: Request | Answer


def _attempt(target: Target, call: Call, owner: bytes, lease_ms: bytes, patience: Patience) -> Steps[_Attempt]:
    """Return what is asked for next, and when that began: the claim that was sent already, if there is one."""
    claimed, call.claimed = call.claimed, None
    now = clock.monotonic()
    limit = patience.reply_timeout(now)
    if claimed is not None and (owner, lease_ms) == (call.minted, claimed.lease_ms):
        return _Attempt(claimed.owner, claimed.at, Answer(claimed.listener, limit))
    if claimed is not None:
        # An override asks for something else.
        yield from _undo_claim(call, claimed)
    if owner in call.lost:
        owner = core.new_owner_id()
    return _Attempt(owner, now, _acquire_request(target, call, owner, lease_ms, limit))


def _undo_claim(call: Call, claimed: Claimed) -> Steps[None]:
    call.lost.append(claimed.owner)
    yield HangUp(claimed.listener)


def claim_of(target: Target, call: Call, lease_ms: bytes) -> Claim:
    """Return the request for a lock that is handed to us; the ticket completes it."""
    owner = call.minted if call.minted and call.minted not in call.lost else core.new_owner_id()
    args = (owner, lease_ms, target.issuer.argument, call.waiter, *call.lost)
    keys = (target.lock, target.counter, target.queue, target.wake)
    return Claim(target.issuer.acquire_script, keys, args, _undo_of(target, owner))


def _acquire_request(target: Target, call: Call, owner: bytes, lease_ms: bytes, timeout: float) -> Request:
    ours = call.lost if call.ticket is None else [*call.lost, call.ticket]
    if target.hides_retries:
        ours = [*ours, owner]
    args = (owner, lease_ms, target.issuer.argument, b"polls" if call.polls else call.waiter, *ours)
    keys = (target.lock, target.counter, target.queue, target.wake)
    return Request(target.issuer.acquire_script, keys, args, timeout, _undo_of(target, owner))


def _undo_of(target: Target, owner: bytes) -> Undo:
    return RELEASE, _release_keys(target), (core.ticket_of(owner), b"", owner)


def _release_keys(target: Target) -> tuple[bytes, ...]:
    return target.lock, target.queue, target.wake


def give_up(target: Target, call: Call) -> Steps[None]:
    """
    Release what attempts of this call may have taken, hand on its ticket, and leave the queue.

    Once, since the attempts' own undo was sent behind them, and the others cost no more than a moment.
    """
    if call.claimed is not None:
        claimed, call.claimed = call.claimed, None
        yield from _undo_claim(call, claimed)
    ours = call.lost if call.ticket is None else [*call.lost, call.ticket]
    if ours or call.waiter:
        args = (core.new_ticket(), call.waiter, *ours)
        try:
            yield Request(RELEASE, _release_keys(target), args, core.GRACE_SECONDS)
        except Exception as error:  # noqa: BLE001 - the error that led here is the one to raise
            cause = error.__cause__ or error
            known = about(target.resource, error=cause)
            _log.debug("could not undo an acquire of %r: %r", target.resource, cause, extra=known)
        call.ticket, call.waiter = None, b""


def _adopt(target: Target, call: Call, lease: Lease, owner: bytes) -> Steps[Lease | None]:
    """
    Store the owner id that the caller chose, or only look whether the lease is still there; None if it is not.

    Taken under the chosen id at once, a lease of another holder with the same id could not be told from our own.
    """
    patience = core.patience(clock.monotonic(), call.deadline, target.reply_limit)
    # maybe_applied: the server has a lease of ours, whatever becomes of this request.
    repeated = b"1" if target.hides_retries else b"0"
    while True:
        try:
            timeout = patience.reply_timeout(clock.monotonic())
            reply = yield Request(ADOPT, (target.lock,), (lease.owner, owner, repeated), timeout)
        except (NotSent, ReplyLost) as error:
            repeated = b"1" if isinstance(error, ReplyLost) else repeated
            yield Pause(pause_or_fail(error, patience, "acquire", target, maybe_applied=True))
        else:
            break
    if isinstance(reply, list):
        call.busy = core.refused(reply)
    elif core.is_over(lease, clock.monotonic()):
        # Under an id that the caller chose it may be another's by now, who chose the same.
        if owner != lease.owner:
            call.lost.remove(owner)
        call.busy = core.Busy(expired=True)
        yield from give_up(target, call)
        return None
    else:
        call.lost.clear()
        lease.owner = owner
        return lease
    call.busy.expired = True
    # The lease's own id stays there: the next try takes another one, which a late release of this cannot meet.
    if owner != lease.owner:
        call.lost.remove(owner)
    return None


def release(target: Target, lease: Lease) -> Steps[None]:
    """Give the lease back. A repeated attempt that finds it gone before its end finds its own work."""
    args = (core.new_ticket(), b"", lease.owner)
    reply, maybe_applied = yield from repeat(target, "release", RELEASE, _release_keys(target), lambda: args)
    if not isinstance(reply, list) or (maybe_applied and not core.is_over(lease, clock.monotonic())):
        return
    raise lost(target, lease, "release", reply)


def extend(target: Target, lease: Lease, seconds: float, *, from_now: bool) -> Steps[None]:
    """
    Move the end of the lease by ``seconds``, or to that many seconds from now.

    Every attempt asks for the same end: an addition would be made twice when a reply is lost.
    """
    core.check_end(seconds, lease)
    started = clock.monotonic()
    ends_at = started + seconds if from_now else (lease.ends_at or started) + seconds
    server_end = b"%d" % (lease.server_end_ms + to_ms(seconds))

    def args() -> tuple[bytes, ...]:
        if from_now:
            return lease.owner, b"%d" % to_ms(max(0.0, ends_at - clock.monotonic())), b"0"
        return lease.owner, b"0", server_end

    reply, _ = yield from repeat(target, "extend", _EXTEND, (target.lock,), args)
    if isinstance(reply, list):
        raise lost(target, lease, "extend", reply)
    lease.ends_at, lease.server_end_ms = ends_at, reply


def ensure(target: Target, lease: Lease, action: str = "rely on") -> Steps[int]:
    """Return the token if the lease is still ours, by local time and at the server."""
    refuse_ended(target, lease, action)
    args = (lease.owner, lease.owner, b"0")
    reply, _ = yield from repeat(target, "check", ADOPT, (target.lock,), lambda: args)
    if isinstance(reply, list):
        raise lost(target, lease, action, reply)
    return lease.fence_token


def refuse_ended(target: Target, lease: Lease, action: str) -> None:
    """Refuse to go on with a lease that has ended, as far as is known without asking the server."""
    if lease.lost or core.is_over(lease, clock.monotonic()):
        raise core.lost(target.resource, lease, action, "it has ended")


def locked(target: Target) -> Steps[bool]:
    """Return whether anybody holds the lock."""
    reply, _ = yield from repeat(target, "check", _LOCKED, (target.lock,), tuple)
    return bool(reply)


def owned(target: Target, lease: Lease) -> Steps[bool]:
    """Return whether the stored owner is the lease's; compared by the server, so encodings do not matter."""
    args = (lease.owner,)
    reply, _ = yield from repeat(target, "check", _OWNED, (target.lock,), lambda: args)
    return bool(reply)


def lost(target: Target, lease: Lease, action: str, reply: list[Any]) -> LeaseLost:
    """Return the error for a lease that the server says is not ours."""
    what = f"it ended, the resource is {core.found(core.refused(reply))}"
    return core.lost(target.resource, lease, action, what)


def repeat(
    target: Target, action: str, script: Script, keys: Sequence[bytes], args: Callable[[], Sequence[bytes]]
) -> Steps[tuple[Any, bool]]:
    """Send until there is a reply; return it, and whether an earlier attempt may have been carried out."""
    patience = core.patience(clock.monotonic(), None, target.reply_limit)
    maybe_applied = target.hides_retries
    while True:
        try:
            timeout = patience.reply_timeout(clock.monotonic())
            reply = yield Request(script, keys, args(), timeout)
        except (NotSent, ReplyLost) as error:
            maybe_applied = maybe_applied or isinstance(error, ReplyLost)
            yield Pause(pause_or_fail(error, patience, action, target, maybe_applied=maybe_applied))
        else:
            return reply, maybe_applied


def pause_or_fail(error: Exception, patience: Patience, action: str, target: Target, *, maybe_applied: bool) -> float:
    """Return how long to wait before the next attempt; raise if the time is over."""
    cause = error.__cause__ or error
    if patience.failures == 0:
        kind, known = type(cause).__name__, about(target.resource, action=action, error=cause)
        _log.warning("%s of %r: trying again after %s: %s", action, target.resource, kind, cause, extra=known)
    pause = patience.pause(clock.monotonic())
    if pause is not None:
        return pause
    if maybe_applied:
        raise core.outcome_unknown(action, target.resource, cause) from cause
    raise core.unreachable(action, target.resource, cause) from cause
