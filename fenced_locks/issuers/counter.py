"""Small consecutive numbers, for those who own the persistence of their Redis."""

from __future__ import annotations

from ..scripts import source
from .base import RedisIssuer


class CounterIssuer(RedisIssuer):
    """
    Tokens are 1, 2, 3 and so on, on a key without expiry.

    The law holds as long as Redis keeps the key. Where it is lost (eviction, ``FLUSHDB``, a restart without
    persistence, promotion of a lagging replica), tokens restart at 1, and rows that carry greater ones refuse every
    holder until the counter is raised above them.
    """

    name = "counter"

    @property
    def mint(self) -> str:
        return source("mint_counter")
