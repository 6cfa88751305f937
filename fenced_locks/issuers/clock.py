"""The default issuer: the server's clock, kept growing by a counter."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from ..durations import Duration, to_ms, to_seconds
from ..scripts import source
from .base import RedisIssuer

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class ClockIssuer(RedisIssuer):
    """
    Tokens are max(last + 1, server time in microseconds): 16 digits until the year 2286.

    A counter that vanished (expiry, eviction, ``FLUSHDB``, restart without persistence, promotion of a lagging
    replica) restarts above every token issued before. So idle counters may expire.

    The law breaks only if the counter is lost and, at the same time, the clock stands behind the last token: the
    new primary's clock is behind by more than the failover took, or the server's clock was set back.

    Args:
        retention: How long an idle counter is kept, in seconds. A counter that runs ahead of the clock is kept
            until the clock has passed it, and one of a longer lease for that lease.

    Raises:
        TypeError, ValueError: The retention is not a positive duration.
    """

    name = "clock"
    starts_at_clock = True

    def __init__(self, retention: Duration = timedelta(days=7)) -> None:
        self._retention_ms = to_ms(to_seconds("retention", retention))
        self._argument = b"%d" % self._retention_ms

    @property
    def retention_ms(self) -> int:
        return self._retention_ms

    @property
    def mint(self) -> str:
        return source("mint_clock")

    @property
    def argument(self) -> bytes:
        return self._argument

    def issued_at(self, token: int) -> datetime | None:
        try:
            return _EPOCH + timedelta(microseconds=token)
        except OverflowError:
            return None
