"""
How the front waiter of a process waits: registered and blocked until a ticket comes, with a look now and then.

One block lasts as long as the wait, since a waiter that blocks anew goes to the end of the server's queue. The looks
are for what frees a lock without a ticket: a plain lock's release, DEL, FLUSHDB, the end of a lease.
"""

from __future__ import annotations

import logging
from typing import Any

from redis.exceptions import ResponseError

from .. import clock
from ..logs import about
from ..scripts import load, source
from ..wire import Listener, NotSent, ReplyLost
from . import core
from .actions import Call, Claimed, HangUp, Hear, Listen, Pause, Request, Steps, Target
from .steps import claim_of, give_up, pause_or_fail

_log = logging.getLogger(__name__)

JOIN = load("join", source("owner_of"), source("hand_over"))
# How much longer than the wait the server remembers that we block, should it not see us go.
_FORGET_SECONDS = 5.0
# Longer than this, in seconds, is for ever to the server, which does not take any number.
_MOST_BLOCK_SECONDS = 1e6
_LEAST_POLL_SECONDS = 0.01


class Turns:
    """The turns of one call of ``acquire``."""

    def __init__(self, target: Target, call: Call, waiting: core.Waiting, timeout: float | None) -> None:
        self._target, self._call, self._waiting = target, call, waiting
        self._lease_ms = b"%d" % core.lease_ms(timeout)
        self._keys = (target.lock, target.queue, target.wake)
        self._look_at = 0.0
        # Of the looks that have failed since the last that did not.
        self._patience: core.Patience | None = None
        self._may_block = True
        self._said = self._warned = False

    def next(self) -> Steps[bool]:
        """
        Wait until there is reason to try again; return whether that is the last try.

        Where we were handed the lock, the ticket is in the call then.
        """
        listener = None
        self._call.polls = False
        try:
            listener = (yield from self._join()) if self._may_block else None
            if listener is not None:
                return (yield from self._listen(listener))
        except BaseException:
            if listener is not None:
                self._call.ticket = yield HangUp(listener)
            yield from give_up(self._target, self._call)
            raise
        return (yield from self._poll())

    def _join(self) -> Steps[Listener | None]:
        """Register and block; None if no connection is to be had for that."""
        self._call.waiter = core.new_owner_id()
        patience = core.patience(clock.monotonic(), self._waiting.deadline, self._target.reply_limit)
        while True:
            timeout = patience.reply_timeout(clock.monotonic())
            try:
                found = yield Listen(JOIN, self._keys, self._args(), timeout, self._target.wake, self._block_seconds())
            except NotSent as error:
                # A server that has no connection left for us may still answer on those that we have.
                self._log(logging.DEBUG, "no connection to block on: %s", error.__cause__)
                found = None
                break
            except ReplyLost as error:
                yield Pause(pause_or_fail(error, patience, "acquire", self._target, maybe_applied=False))
            else:
                break
        if found is None:
            self._call.waiter = b""
            return None
        listener: Listener = found[0]
        if found[1] is None:
            self._look_at = 0.0
        else:
            self._note(found[1])
        return listener

    def _listen(self, listener: Listener) -> Steps[bool]:
        looked = False
        while True:
            now = clock.monotonic()
            is_over = self._waiting.is_over(now)
            if is_over or self._call.busy.free:
                self._call.ticket = yield HangUp(listener)
                return is_over
            self._say_whom_we_wait_for(now)
            if now >= self._look_at:
                yield from self._look()
                looked = True
                continue
            try:
                yield from self._hear(listener, min(self._look_at, self._waiting.deadline or self._look_at) - now)
            except ReplyLost as error:
                self._log(logging.WARNING, "joining again after %s", error.__cause__)
                return False
            except ResponseError as error:
                self._log(logging.WARNING, "polling, since the server refuses BLPOP: %s", error)
                self._may_block = False
                return False
            if self._call.ticket is not None:
                if not looked and self._call.ticket.endswith(self._call.waiter):
                    # Our own registration was consumed; a look after that would have renewed it.
                    self._call.waiter = b""
                return False

    def _hear(self, listener: Listener, seconds: float) -> Steps[None]:
        """Wait for a ticket, and keep it together with the claim that was sent when it came."""
        call = self._call
        # What is taken under an id that the caller chose needs a second step.
        claim = None if call.minted is None else claim_of(self._target, call, self._lease_ms)
        call.ticket = yield Hear(listener, seconds, claim)
        if claim is not None and listener.claimed_at is not None:
            call.claimed = Claimed(listener, listener.claimed_at, claim.args[0], self._lease_ms)

    def _look(self) -> Steps[None]:
        """Stay registered, and hand over a lock that is free; a look that fails is repeated a moment later."""
        now = clock.monotonic()
        patience = self._patience or core.patience(now, self._waiting.deadline, self._target.reply_limit)
        timeout = min(patience.reply_timeout(now), core.RETRY_SECONDS)
        try:
            reply = yield Request(JOIN, self._keys, self._args(), timeout)
        except (NotSent, ReplyLost) as error:
            self._patience = patience
            pause = pause_or_fail(error, patience, "acquire", self._target, maybe_applied=False)
            self._look_at = clock.monotonic() + pause
        else:
            self._patience = None
            self._note(reply)

    def _poll(self) -> Steps[bool]:
        self._call.polls = True
        self._say_whom_we_wait_for(clock.monotonic())
        left = self._waiting.left(clock.monotonic())
        sleep = max(self._waiting.sleep, _LEAST_POLL_SECONDS)
        yield Pause(sleep if left is None else max(0.0, min(sleep, left)))
        return self._waiting.is_over(clock.monotonic())

    def _note(self, reply: list[Any]) -> None:
        if len(reply) > 2 and not self._warned:
            self._warned = True
            self._log(logging.WARNING, "without a place in the queue: %s", reply[2].decode())
        busy = self._call.busy = core.refused(reply)
        seconds = self._waiting.probe_seconds
        if busy.remaining is not None:
            # A millisecond, since the server rounds what is left.
            seconds = min(seconds, max(0.0, busy.remaining) + 0.001)
        self._look_at = clock.monotonic() + seconds

    def _args(self) -> tuple[bytes, bytes, bytes]:
        return self._call.waiter, core.new_ticket(), b"%d" % self._waiting.registration_ms

    def _block_seconds(self) -> float:
        left = self._waiting.left(clock.monotonic())
        return 0.0 if left is None or left > _MOST_BLOCK_SECONDS else max(0.0, left) + _FORGET_SECONDS

    def _say_whom_we_wait_for(self, now: float) -> None:
        waited = now - self._waiting.started
        if waited >= core.NOTICE_SECONDS and not self._said:
            self._said = True
            resource, busy = self._target.resource, self._call.busy
            known = about(resource, waited=waited, owner_id=busy.owner_id, remaining=busy.remaining)
            _log.info("waited %.1f s for %r so far: it %s", waited, resource, core.state(busy), extra=known)

    def _log(self, level: int, what: str, error: object) -> None:
        resource = self._target.resource
        _log.log(level, f"waiting for %r: {what}", resource, error, extra=about(resource, error=error))
