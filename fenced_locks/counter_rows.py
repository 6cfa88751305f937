"""Walk over resources whose counters an issuer keeps outside Redis, with the leases that Redis knows of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import TypeGuard, TypeVar

import redis

from . import counter_scan
from .counter_scan import Query, RawPage
from .exceptions import IssuerError
from .issuers import ExternalIssuer, Issuer
from .reading_line import Line

Returned = TypeVar("Returned")


def are_listed(issuer: Issuer) -> TypeGuard[ExternalIssuer]:
    """Return whether the counters are outside Redis, and the issuer can name them."""
    return isinstance(issuer, ExternalIssuer) and type(issuer).counters_after is not ExternalIssuer.counters_after


def scan(client: redis.Redis, issuer: ExternalIssuer, query: Query) -> Iterator[RawPage]:
    """Yield the pages that are not empty, on a connection of its own beside the client's pool."""
    after = ""
    with closing(Line(client.connection_pool)) as line:
        while True:
            page, after = follow(line, issuer, query, after)
            if page.names:
                yield page
            if not after:
                break


def follow(line: Line, issuer: ExternalIssuer, query: Query, after: str) -> tuple[RawPage, str]:
    """Return the next page, and the name to go on behind; empty at the end."""
    if query.literal is not None:
        name = query.prefix + query.literal
        tokens = last_tokens(issuer, [name])
        return _page(line, query, tokens), ""
    found = _asked(issuer, lambda: issuer.counters_after(after, query.page_size, query.beginning))
    following = found[-1][0] if len(found) >= query.page_size else ""
    return _page(line, query, dict(found)), following


def last_tokens(issuer: ExternalIssuer, names: Sequence[str]) -> dict[str, int]:
    """
    Return the last tokens of those of these locks that have one, as far as the issuer tells.

    Raises:
        IssuerError: It cannot be asked.
    """
    try:
        return _asked(issuer, lambda: issuer.last_tokens(names))
    except NotImplementedError:
        return {}


def _page(line: Line, query: Query, tokens: dict[str, int]) -> RawPage:
    stored = {counter_scan.encode(name): b"%d" % token for name, token in tokens.items()}
    names = [name for name in stored if query.wants(name)]
    raw = counter_scan.read(line, counter_scan.keys_of(names, query.prefix))
    return raw._replace(stored=[stored[name] for name in names], kinds={})


def _asked(issuer: ExternalIssuer, ask: Callable[[], Returned]) -> Returned:
    try:
        return ask()
    except (IssuerError, NotImplementedError):
        raise
    except Exception as error:  # what it is made of is its own affair
        raise IssuerError(f"the issuer {issuer.name!r} cannot be asked: {type(error).__name__}: {error}") from error
