"""How a lease is taken away from its owner: by one who becomes the holder himself, with the newer token."""

from __future__ import annotations

from redis.exceptions import ResponseError

from .. import clock
from ..issuers import ExternalIssuer
from ..scripts import load, source
from . import core, steps
from .actions import Steps, Target
from .core import Lease
from .issuing import issue


def take_over(target: Target, owner: bytes, timeout: float) -> Steps[Lease]:
    """
    Take the lease of ``owner``, for ``timeout`` seconds, with a token greater than his.

    From the moment that the server does so nobody else can have one in between: the token is smaller than those of
    all later holders.

    Raises:
        LeaseLost: It is not his.
        IssuerError: The counter in Redis cannot be used; nothing was taken.
    """
    lease = Lease(core.new_owner_id(), timeout=timeout, began_at=clock.monotonic())
    issuer = target.issuer
    mint = source("mint_elsewhere") if isinstance(issuer, ExternalIssuer) else issuer.mint
    script = load("take_over", source("read_counter"), mint, source("owner_of"))
    args = (lease.owner, b"%d" % core.lease_ms(timeout), issuer.argument, owner)
    try:
        reply, _ = yield from steps.repeat(target, "free", script, (target.lock, target.counter), lambda: args)
    except ResponseError as error:
        raise core.issuer_error(error, target.resource, target.counter) or error from None
    if isinstance(reply, list):
        raise steps.lost(target, Lease(owner), "free", reply)
    return core.granted(reply, lease.owner, lease.began_at, timeout, issuer)


def complete(target: Target, lease: Lease) -> Steps[None]:
    """
    Draw the token of a lease that was taken over, where the script could not, and see that the lease is still ours.

    Raises:
        IssuerError: There is none.
        LeaseLost: The lease ended meanwhile.
    """
    if isinstance(target.issuer, ExternalIssuer):
        lease.fence_token = yield from issue(target, target.issuer)
        yield from steps.ensure(target, lease)
