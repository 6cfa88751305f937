"""``lock.advance``: the next token for a lease that is held; see ``actions`` for how these steps are driven."""

from __future__ import annotations

from functools import partial

from redis.exceptions import ResponseError

from ..arguments import shown
from ..issuers import ExternalIssuer, RedisIssuer
from . import core, steps
from .actions import Steps, Target
from .core import Lease
from .issuing import ask, issue

# Redis keeps tokens as exact numbers below this.
_MAX_TOKEN = 2**53


def checked_at_least(at_least: object) -> int:
    """Return what the next token shall be at least; 1 for None."""
    if at_least is None:
        return 1
    if not isinstance(at_least, int) or isinstance(at_least, bool):
        raise TypeError(f"at_least must be a fence token, an int; got {at_least!r}")
    if not 0 < at_least < _MAX_TOKEN:
        raise ValueError(f"at_least must be between 1 and 2**53 - 1; got {shown(at_least)}")
    return int(at_least)


def advance(target: Target, lease: Lease, at_least: int) -> Steps[int]:
    """
    Draw a greater token for a lease that is still ours, and let the lease carry it.

    A repeated attempt draws another one. Nobody has seen the one whose reply was lost, and nobody misses it.
    """
    # Of the lease, since a lock that re-entered may have another issuer.
    issuer = lease.issuer or target.issuer
    floor = max(lease.fence_token, at_least - 1)
    if isinstance(issuer, ExternalIssuer):
        token = yield from _draw_elsewhere(target, lease, issuer, floor)
    else:
        token = yield from _draw(target, lease, issuer, floor)
    lease.carry(token)
    return token


def _draw(target: Target, lease: Lease, issuer: RedisIssuer, floor: int) -> Steps[int]:
    steps.refuse_ended(target, lease, "advance")
    args = (lease.owner, b"%d" % floor, issuer.argument)
    keys = (target.lock, target.counter)
    try:
        reply, _ = yield from steps.repeat(target, "advance", issuer.advance_script, keys, lambda: args)
    except ResponseError as error:
        raise core.issuer_error(error, target.resource, target.counter, lease) or error from None
    if isinstance(reply, list):
        raise steps.lost(target, lease, "advance", reply)
    return int(reply)


def _draw_elsewhere(target: Target, lease: Lease, issuer: ExternalIssuer, floor: int) -> Steps[int]:
    """Who is no holder draws nothing, and who has slept while drawing must not carry the greatest token."""
    raise_first = floor > lease.fence_token
    if raise_first and type(issuer).raise_tokens is ExternalIssuer.raise_tokens:
        raise core.not_issued(target.resource, issuer.name, f"cannot be raised to {floor}", lease)
    yield from steps.ensure(target, lease, "advance")
    token = 0 if raise_first else (yield from issue(target, issuer, lease))
    if token <= floor:
        # Or its counter was lost while the lease stands.
        question = partial(issuer.raise_tokens, {target.resource: floor})
        yield from ask(target, issuer, question, lease)
        token = yield from issue(target, issuer, lease)
    if token <= floor:
        raise core.not_issued(
            target.resource, issuer.name, f"returned {token}, which is not greater than {floor}", lease
        )
    yield from steps.ensure(target, lease, "advance")
    return token
