"""What is said to the server about several leases at once, in one round trip; see ``actions`` for how it is driven."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from .. import clock
from ..scripts import Script
from ..wire import NotSent, ReplyLost
from . import core
from .actions import Pause, RequestAll, Steps, Target
from .core import Busy, Lease
from .renewal import RENEW
from .steps import ADOPT, pause_or_fail


class Part(NamedTuple):
    """
    One of the leases.

    Attributes:
        target: What its lock is about.
        lease: The lease.
        lasting_ms: How long it shall last from now on, in milliseconds; 1 to leave its end as it is.
    """

    target: Target
    lease: Lease
    lasting_ms: int = 1


def renew(parts: Sequence[Part], deadline: float | None) -> Steps[list[Busy | None]]:
    """
    Let each lease last so long from now on; return who has those that are not ours any more, None for the others.

    Their local ends are counted from before the request.

    Args:
        parts: The leases, all of one server.
        deadline: Monotonic time until which to repeat what is not answered; None for the usual time.
    """
    calls = [((part.target.lock,), (part.lease.owner, b"%d" % part.lasting_ms)) for part in parts]
    # The server has leases of ours, whatever becomes of this.
    asked_at, replies = yield from _repeat(parts, "acquire", RENEW, calls, deadline, maybe_applied=True)
    for part, reply in zip(parts, replies, strict=True):
        lease = part.lease
        if lease.ends_at is not None and not isinstance(reply, list):
            lease.ends_at = max(lease.ends_at, asked_at + part.lasting_ms / 1000)
            lease.server_end_ms = reply
    return _found(replies)


def ensure(parts: Sequence[Part]) -> Steps[list[Busy | None]]:
    """Look whose the leases are; return who has those that are not ours any more, None for the others."""
    calls = [((part.target.lock,), (part.lease.owner, part.lease.owner, b"0")) for part in parts]
    hides_retries = parts[0].target.hides_retries
    _, replies = yield from _repeat(parts, "check", ADOPT, calls, None, maybe_applied=hides_retries)
    return _found(replies)


def _repeat(
    parts: Sequence[Part],
    action: str,
    script: Script,
    calls: Sequence[tuple[Sequence[bytes], Sequence[bytes]]],
    deadline: float | None,
    *,
    maybe_applied: bool,
) -> Steps[tuple[float, list[Any]]]:
    """Send until there are replies; return when they were asked for, and the replies."""
    target = parts[0].target
    patience = core.patience(clock.monotonic(), deadline, target.reply_limit)
    while True:
        asked_at = clock.monotonic()
        try:
            replies = yield RequestAll(script, calls, patience.reply_timeout(asked_at))
        except (NotSent, ReplyLost) as error:
            maybe_applied = maybe_applied or isinstance(error, ReplyLost)
            yield Pause(pause_or_fail(error, patience, action, target, maybe_applied=maybe_applied))
        else:
            break
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return asked_at, replies


def _found(replies: Sequence[Any]) -> list[Busy | None]:
    return [core.refused(reply) if isinstance(reply, list) else None for reply in replies]
