"""
Free a lease that somebody else has, and let nothing that he writes come through any more.

The lease is taken over, by a script that compares its owner with the one that was named, and so gets a token of its
own: greater than the former holder's, smaller than those of all later ones. The rows of the models in the setting
``MODELS`` are given that token, and the lock goes to the next waiter, or is free.

What refuses the former holder from then on: every operation on the lock, at once, since the lease is not his; a
fenced write to a row that was given the token, since it is newer; a fenced write to any other row once a later holder
has written it. A write that he has sent before, in a transaction that is still open, is not touched.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

import redis
from django.core.exceptions import ImproperlyConfigured
from django.db import Error as DatabaseError

from .exceptions import FencedLockError, IssuerError, LeaseLost
from .issuers import AnyIssuer
from .keys import keys_of
from .locks import steps
from .locks.actions import Target
from .locks.blocking import run
from .locks.core import Lease, is_ticket
from .locks.taking_over import complete, take_over
from .logs import about
from .registered import registered_models
from .texts import one_line
from .wire import Wire, wire_for

_log = logging.getLogger(__name__)

# How long the lock stays ours, in seconds, if we die while the rows are written.
_TIMEOUT = 10.0


class Freed(NamedTuple):
    """
    What became of the attempt to free a lease.

    Attributes:
        freed: Whether the named owner has lost it.
        token: The newer token; None if there is none.
        rows: How many rows carry that token now.
        problem: Why it was not freed, or what was left undone; empty if all is well.
    """

    freed: bool
    token: int | None = None
    rows: int = 0
    problem: str = ""


def free(client: redis.Redis, name: bytes, owner: bytes, issuer: AnyIssuer, prefix: str = "") -> Freed:
    """
    Take a lease away from its owner, and give the lock to the next waiter; see the module.

    Args:
        client: The client of the server that keeps the lock.
        name: Name of the lock, with the key prefix.
        owner: Who has the lease, as it was shown to whoever decides; nobody else loses anything.
        issuer: Who issues the tokens of the lock.
        prefix: The setting ``KEY_PREFIX``.

    Raises:
        ValueError: No lock has such a name, or the owner is none.
        redis.exceptions.ConnectionError: The server could not be reached, and nothing was done.
        OutcomeUnknown: It may have been freed or not: look again.
    """
    if not owner or is_ticket(owner):
        raise ValueError("only a lease can be freed, and there is no owner")
    wire = wire_for(client)
    settings = client.get_connection_kwargs()
    target = Target(*keys_of(name, "utf-8"), issuer, settings.get("socket_timeout"), wire.hides_retries)
    try:
        freed = _take_away(wire, target, owner, name[len(prefix.encode()) :])
    except LeaseLost as error:
        return Freed(False, problem=str(error))
    shown = owner.decode("utf-8", "backslashreplace")
    known = about(target.resource, owner_id=shown, token=freed.token)
    _log.info("lease of %r was taken from %s; its newer token is %s", target.resource, shown, freed.token, extra=known)
    return freed


def _take_away(wire: Wire, target: Target, owner: bytes, resource: bytes) -> Freed:
    try:
        lease = run(wire, take_over(target, owner, _TIMEOUT))
    except IssuerError as error:
        # Nobody can have such a lock any more, but whoever has it can lose it.
        run(wire, steps.release(target, Lease(owner)))
        return Freed(True, problem=one_line(error))
    try:
        freed = _outdate(wire, target, lease, resource)
    except BaseException:
        # Ctrl-C, for one: the lock would be ours until the lease ends.
        _give_back(wire, target, lease)
        raise
    return freed._replace(problem="; ".join(filter(None, (freed.problem, _give_back(wire, target, lease)))))


def _outdate(wire: Wire, target: Target, lease: Lease, resource: bytes) -> Freed:
    try:
        run(wire, complete(target, lease))
    except (FencedLockError, redis.RedisError) as error:
        return Freed(True, problem=f"there is no newer token: {one_line(error)}")
    rows, problems = 0, []
    try:
        text = resource.decode()
        for each in registered_models():
            try:
                rows += each.outdate(text, lease.fence_token)
            except DatabaseError as error:
                label = each.model._meta.label
                problems.append(f"rows of {label} could not be given the newer token: {one_line(error)}")
    except UnicodeDecodeError:
        # No row names such a resource.
        pass
    except ImproperlyConfigured as error:
        problems.append(f"no row was given the newer token: {one_line(error)}")
    return Freed(True, lease.fence_token, rows, "; ".join(problems))


def _give_back(wire: Wire, target: Target, lease: Lease) -> str:
    try:
        run(wire, steps.release(target, lease))
    except LeaseLost:
        # It took so long that the next holder has it by now.
        pass
    except redis.RedisError as error:
        return f"it will be free within {_TIMEOUT:.0f} seconds: {one_line(error)}"
    return ""
