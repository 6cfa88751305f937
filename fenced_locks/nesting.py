"""
The order in which resources are taken, and the report of code that takes them in another one.

Two callers that each hold what the other waits for wait in vain. Where everybody takes resources in one order that
cannot happen, so what is nested against the order is logged; it is not refused, since no other caller may nest them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import NamedTuple

from .logs import about

_log = logging.getLogger(__name__)

# So many pairs of names are reported in one process.
_MOST_REPORTS = 100
_ID = re.compile(r"[0-9a-fA-F]*[0-9][0-9a-fA-F]*")


class Rank(NamedTuple):
    """
    The place of a resource in the order: of its server, then of its lock key, byte by byte.

    Attributes:
        server: The server and database, in words.
        key: The lock key.
        resource: The name that the user gave it, for messages.
    """

    server: str
    key: bytes
    resource: str


def rank_of(server: tuple[object, ...], key: bytes, resource: str) -> Rank:
    """Return the place of a resource on a server, which is the same in every process."""
    # Clients without an address, such as a cluster's, are told apart by their id, which means nothing elsewhere.
    return Rank(repr(server) if len(server) > 1 else "", key, resource)


def report(asked: Rank, held: Sequence[Rank]) -> None:
    """Log that ``asked`` is waited for by one who holds what comes later; once for each pair of kinds of names."""
    for other in held:
        if asked < other and _is_news((_kind(asked), _kind(other))):
            _log.warning(
                "%r is asked for by one who holds %r: who takes both in their order, %r first, can meet this one so "
                "that each waits for the other; take them together, or in that order (held, in this order: %s)",
                asked.resource,
                other.resource,
                asked.resource,
                ", ".join(repr(rank.resource) for rank in held),
                extra=about(asked.resource),
            )


_reported: set[tuple[str, str]] = set()


def _is_news(pair: tuple[str, str]) -> bool:
    if pair in _reported or len(_reported) >= _MOST_REPORTS:
        return False
    _reported.add(pair)
    return True


def _kind(rank: Rank) -> str:
    """Return a name without what tells ``order:1`` from ``order:2``: numbers, and what follows the last colon."""
    head, colon, tail = rank.resource.rpartition(":")
    return _ID.sub("#", head + colon if colon else tail)
