"""
What a lock knows of the lease that it holds, and how it reads its arguments; nothing here waits for a server.

Shared by the lock that blocks and the one that awaits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .. import clock, keys, signals
from ..arguments import checked_flag
from ..durations import Duration, to_seconds, to_seconds_or_none
from ..exceptions import LeaseHasNoEnd, LeaseLost, NotHeld
from ..issuers import AnyIssuer, get_issuer
from ..logs import about
from . import core
from .actions import Target
from .core import Lease
from .loss import Loss, tell_who_waits
from .renewal import begin, renewer

if TYPE_CHECKING:
    from ..signals import LeaseSignal

_log = logging.getLogger(__name__)


class Holding:
    """The lease of a lock, kept in ``self.local``: one for each thread, or one for everybody."""

    redis: Any
    local: Any
    thread_local: bool
    timeout: float | None
    sleep: float
    blocking: bool
    blocking_timeout: float | None
    renew: bool
    max_hold: float | None
    _target: Target
    _wire: Any
    _owner_kind = "thread"

    def _aim(self, name: str, issuer: object, client: Any, *, hides_retries: bool) -> None:
        """Set what this lock is about."""
        settings = client.get_connection_kwargs()
        lock_keys = keys.keys_of(name, settings.get("encoding", "utf-8"))
        self._target = Target(*lock_keys, get_issuer(issuer), settings.get("socket_timeout"), hides_retries)

    def _keep_alive(self, renew: bool, max_hold: Duration | None, timeout: float | None) -> None:
        """Set whether leases are renewed."""
        checked_flag("renew", renew)
        if renew and timeout is None:
            raise ValueError("renew needs a timeout: a lease without end has nothing to renew")
        if max_hold is not None and not renew:
            raise ValueError("max_hold is the limit of renewal, so it needs renew=True")
        self.renew, self.max_hold = renew, to_seconds_or_none("max_hold", max_hold)

    @property
    def fence_token(self) -> int | None:
        """The token of the lease that is held here; None when none is, also after release."""
        lease = self._lease
        return None if lease is None else lease.fence_token

    @property
    def owner_id(self) -> str | None:
        """The owner id of the lease that is held here, ``host:pid:random``; None when none is."""
        lease = self._lease
        return None if lease is None else lease.owner.decode("utf-8", "backslashreplace")

    @property
    def lost(self) -> Loss:
        """
        What is set, like an event, once the lease that is held here is lost.

        Raises:
            NotHeld: None is held.
        """
        return Loss(self._held("watch"))

    def remaining(self) -> float | None:
        """
        Return how long the lease still lasts, in seconds, by local time; None for without end.

        It is counted from before the request for it was sent, so it ends here no later than at the server.

        Raises:
            NotHeld: None is held.
        """
        lease = self._held("tell the rest of")
        if lease.ends_at is None:
            return None
        return 0.0 if lease.lost else max(0.0, lease.ends_at - clock.monotonic())

    @contextmanager
    def _following(self, follow: Callable[[int], object]) -> Iterator[None]:
        """Inside the block, call this with the token of the lease held here: now, and whenever it carries another."""
        lease = self._held("follow")
        lease.followers.append(follow)
        follow(lease.fence_token)
        try:
            yield
        finally:
            lease.followers.remove(follow)

    @property
    def _lease(self) -> Lease | None:
        lease: Lease | None = getattr(self.local, "lease", None)
        return None if lease is None or lease.is_inherited() else lease

    def _keep(self, lease: Lease | None) -> None:
        former: Lease | None = getattr(self.local, "lease", None)
        self.local.lease = lease
        self.local.token = None if lease is None else lease.owner
        if lease is not None and former is not None and former is not lease and core.is_over(former, clock.monotonic()):
            self._lose(former, "its lock was acquired again")

    def _forget(self, lease: Lease) -> None:
        # Somebody else may have acquired through this object meanwhile.
        if self.local.lease is lease:
            self._keep(None)

    def _held(self, action: str) -> Lease:
        lease = self._lease
        if lease is None:
            raise self._not_held(action)
        return lease

    def _not_held(self, action: str) -> NotHeld:
        where = f"in this {self._owner_kind} " if self.thread_local else ""
        resource = self._target.resource
        return NotHeld(f"cannot {action} {resource!r}: nothing was acquired {where}or it was released", resource)

    def _begin(self, lease: Lease) -> None:
        """A lease was taken."""
        if self.renew:
            self._renew_from(lease, lease.began_at)
        if signals.lease_acquired.is_heard() or _log.isEnabledFor(logging.DEBUG):
            waited = clock.monotonic() - lease.asked_at
            _log.debug("took %r after %.3f s", self._target.resource, waited, extra=self._about(lease, waited=waited))
            self._announce(signals.lease_acquired, lease, {**self._message(lease), "waited": waited})

    def _renew_from(self, lease: Lease, since: float) -> None:
        """Renew the lease from now on; ``max_hold`` is counted from ``since``."""
        self._renew_until(lease, None if self.max_hold is None else since + self.max_hold)

    def _renew_until(self, lease: Lease, until: float | None) -> None:
        self._stop_renewal(lease)
        lease.renewal = begin(self, lease, self._target, self._wire, until)
        self._add_renewal(lease.renewal)

    def _add_renewal(self, renewal: Any) -> None:
        renewer.add(renewal)

    def _stop_renewal(self, lease: Lease) -> None:
        if lease.renewal is not None:
            lease.renewal.cancelled = True

    def _renew_anew(self, lease: Lease) -> None:
        """The end was moved by hand, so the next renewal is due at another time."""
        if lease.renewal is not None and not lease.renewal.cancelled:
            self._renew_until(lease, lease.renewal.until)

    def _end(self, lease: Lease) -> None:
        """A lease was given back."""
        lease.released = True
        tell_who_waits(lease)
        if signals.lease_released.is_heard() or _log.isEnabledFor(logging.DEBUG):
            held = clock.monotonic() - lease.began_at
            _log.debug("gave back %r after %.3f s", self._target.resource, held, extra=self._about(lease, held=held))
            self._announce(signals.lease_released, lease, {**self._message(lease), "held": held})

    def _was_renewed(self, lease: Lease) -> None:
        if signals.lease_renewed.is_heard() or _log.isEnabledFor(logging.DEBUG):
            left = (lease.ends_at or 0.0) - clock.monotonic()
            _log.debug("renewed %r for %.3f s", self._target.resource, left, extra=self._about(lease, remaining=left))
            self._announce(signals.lease_renewed, lease, {**self._message(lease), "remaining": left})

    def _refuse(self, busy: core.Busy, waiting: core.Waiting) -> None:
        """A lock stayed busy until the wait was over."""
        if signals.lease_refused.is_heard() or _log.isEnabledFor(logging.DEBUG):
            resource, waited = self._target.resource, clock.monotonic() - waiting.started
            known = {"waited": waited, "owner_id": busy.owner_id, "remaining": busy.remaining}
            _log.debug("%r %s, after %.3f s", resource, core.state(busy), waited, extra=about(resource, **known))
            self._announce(signals.lease_refused, None, {"lock": self, "resource": resource, **known})

    def _lose(self, lease: Lease, found: str, *, raised: bool = False) -> None:
        """A lease was found lost; said once. Logged with less weight where the caller is about to hear of it."""
        # Of several threads that find it at once, one says so.
        if lease.released or vars(lease).setdefault("_found_by", mine := object()) is not mine:
            return
        lease.lost = True
        self._stop_renewal(lease)
        tell_who_waits(lease)
        held = clock.monotonic() - lease.began_at
        level = logging.INFO if raised else logging.WARNING
        about_it = self._about(lease, held=held, error=found)
        _log.log(level, "lost the lease of %r after %.3f s: %s", self._target.resource, held, found, extra=about_it)
        if signals.lease_lost.is_heard():
            self._announce(signals.lease_lost, lease, {**self._message(lease), "held": held})

    def _lose_if_ours(self, lease: Lease, error: LeaseLost) -> None:
        """A lease was found lost by a call in which others may be lost as well."""
        if error.owner_id == lease.owner.decode("utf-8", "backslashreplace"):
            self._lose(lease, str(error), raised=True)

    def _announce(self, signal: LeaseSignal, lease: Lease | None, message: dict[str, Any]) -> None:
        signal.observe(lease, message)
        if signal.receivers:
            self._send(signal, message)

    def _send(self, signal: LeaseSignal, message: dict[str, Any]) -> None:
        signals.send(signal, type(self), message)

    def _about(self, lease: Lease, **known: Any) -> dict[str, Any]:
        owner = lease.owner.decode("utf-8", "backslashreplace")
        return about(self._target.resource, token=lease.fence_token, owner_id=owner, **known)

    def _message(self, lease: Lease) -> dict[str, Any]:
        owner = lease.owner.decode("utf-8", "backslashreplace")
        resource, token = self._target.resource, lease.fence_token
        return {"lock": self, "resource": resource, "fence_token": token, "owner_id": owner}

    def _length(self, lease: Lease) -> float | None:
        """Return how long the lease was meant to be, in seconds; redis-py asks the lock and not the lease."""
        return None if lease.ends_at is None else self.timeout

    def _with_end(self, action: str) -> None:
        if self._length(self._held(action)) is None:
            resource = self._target.resource
            raise LeaseHasNoEnd(f"cannot {action} {resource!r}: its lease has no end (timeout=None)", resource)

    def _encoded(self, token: object) -> bytes:
        encoded: bytes = bytes(self.redis.get_encoder().encode(token))
        if not encoded:
            raise ValueError("token must not be empty: it is the owner id of the lease")
        return encoded

    def _waiting(
        self, sleep: Duration | None, blocking: bool | None, limit: Duration | None, now: float
    ) -> core.Waiting:
        pause = self.sleep if sleep is None else to_seconds("sleep", sleep, zero=True)
        blocking = self.blocking if blocking is None else blocking
        if limit is None:
            limit = self.blocking_timeout
        seconds = to_seconds_or_none("blocking_timeout", limit, zero=True)
        return core.Waiting(blocking, pause, now, now + seconds if blocking and seconds is not None else None)


IssuerArgument = str | AnyIssuer | type[AnyIssuer]
