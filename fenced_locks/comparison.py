"""
Rows against counters: whose row carries a greater token than its counter would let anybody know.

Rows are read page by page in the order of their keys, so that a million of them stream on every database, and before
their counters: whatever is granted meanwhile only raises the counter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, cast

import redis
from django.db import models
from redis.exceptions import NoScriptError, ResponseError

from . import keys
from .exceptions import IssuerError
from .issuers import AnyIssuer, ExternalIssuer, RedisIssuer
from .scripts import load, source
from .templates import ResourceTemplate

# What every database takes as parameters of one statement, twice over.
PAGE_SIZE = 400
_RAISE = load("raise_counter", source("read_counter"))
_MAX_IN_REDIS = 2**53 - 1


class Row(NamedTuple):
    """A row that carries a token, and the resource that it belongs to."""

    pk: Any
    resource: str
    token: int


class Ahead(NamedTuple):
    """
    A row that is ahead of its counter.

    Attributes:
        resource: Name without the key prefix.
        pk: Primary key of the row.
        row: The token that the row carries.
        counter: The last token of the counter; None where there is none.
        raised: Whether the counter is no longer behind.
        note: Why it could not be raised; empty if nobody tried or it was.
    """

    resource: str
    pk: Any
    row: int
    counter: int | None
    raised: bool = False
    note: str = ""


class Page(NamedTuple):
    """How many rows were compared, and those that are ahead."""

    rows: int
    ahead: list[Ahead]


class Counters(Protocol):
    """The counters of one issuer, by lock name."""

    def read(self, names: Sequence[str]) -> Mapping[str, int]:
        """Return the last tokens of those that have one."""

    def missing(self) -> int:
        """Return what a counter that is missing counts as."""

    def raise_to(self, tokens: Mapping[str, int]) -> Mapping[str, str]:
        """Raise counters to at least these tokens; return those that could not be raised, with the reason."""


def compare(rows: Iterator[list[Row]], counters: Counters, *, prefix: str = "", repair: bool = False) -> Iterator[Page]:
    """
    Yield, page by page, the rows that are ahead of their counters.

    Args:
        rows: From ``read_rows``.
        counters: From ``counters_of``.
        prefix: The setting ``KEY_PREFIX``.
        repair: Raise those counters to the tokens of the rows.

    Raises:
        ValueError: The name of a resource is none that a lock may have.
        redis.exceptions.RedisError, IssuerError, django.db.Error: Something cannot be read.
    """
    for page in rows:
        names = {row.resource: keys.lock_key(prefix, row.resource) for row in page}
        known = counters.read(list(names.values()))
        missing = counters.missing()
        ahead = [
            Ahead(row.resource, row.pk, row.token, known.get(names[row.resource]))
            for row in page
            if row.token > known.get(names[row.resource], missing)
        ]
        if repair and ahead:
            wanted = {names[each.resource]: each.row for each in sorted(ahead, key=lambda each: each.row)}
            failed = counters.raise_to(wanted)
            notes = [failed.get(names[each.resource], "") for each in ahead]
            ahead = [each._replace(raised=not note, note=note) for each, note in zip(ahead, notes, strict=True)]
        yield Page(len(page), ahead)


def read_rows(
    model: type[models.Model], template: ResourceTemplate, using: str, page_size: int = PAGE_SIZE
) -> Iterator[list[Row]]:
    """
    Yield the rows of a model that were ever written under a token, in pages.

    Args:
        model: One with a ``fence_token``.
        template: Name of the resource of a row, with its fields as placeholders: ``"order:<pk>"``.
        using: Database alias.
        page_size: How many rows a page has.

    Raises:
        django.core.exceptions.FieldError: A placeholder is no field.
        ValueError: A row has no value for a placeholder.
    """
    fields = [name.replace(".", "__") for name in template.names]
    rows = model._base_manager.using(using).filter(fence_token__gt=0).order_by("pk")
    values = rows.values_list("pk", "fence_token", *fields)
    last: Any = None
    while page := list((values if last is None else values.filter(pk__gt=last))[:page_size]):
        last = page[-1][0]
        yield [Row(pk, template.fill(named), token) for pk, token, *named in page]


def counters_of(issuer: AnyIssuer, client: redis.Redis) -> Counters:
    """Return the counters that this issuer keeps."""
    return _External(issuer) if isinstance(issuer, ExternalIssuer) else _InRedis(issuer, client)


class _InRedis:
    def __init__(self, issuer: RedisIssuer, client: redis.Redis) -> None:
        self._issuer = issuer
        self._client = client

    def read(self, names: Sequence[str]) -> dict[str, int]:
        stored = cast("list[Any]", self._client.mget([keys.counter_key(name) for name in names]))
        return {name: int(value) for name, value in zip(names, stored, strict=True) if _is_token(value)}

    def missing(self) -> int:
        if not self._issuer.starts_at_clock:
            return 0
        seconds, microseconds = self._client.time()
        return seconds * 1_000_000 + microseconds

    def raise_to(self, tokens: Mapping[str, int]) -> dict[str, str]:
        failed = {name: f"{token} is beyond 2**53 - 1" for name, token in tokens.items() if token > _MAX_IN_REDIS}
        wanted = {name: token for name, token in tokens.items() if name not in failed}
        replies = self._send(wanted)
        if any(isinstance(reply, NoScriptError) for reply in replies):
            self._client.script_load(_RAISE.text)
            replies = self._send(wanted)
        for name, reply in zip(wanted, replies, strict=True):
            if isinstance(reply, ResponseError):
                failed[name] = str(reply).removeprefix("FENCE ")
            elif isinstance(reply, Exception):
                raise reply
        return failed

    def _send(self, tokens: Mapping[str, int]) -> list[Any]:
        pipe: Any = self._client.pipeline(transaction=False)
        for name, token in tokens.items():
            arguments = name, keys.counter_key(name), token, self._issuer.retention_ms
            pipe.execute_command("EVALSHA", _RAISE.sha, 2, *arguments)
        return list(pipe.execute(raise_on_error=False))


class _External:
    def __init__(self, issuer: ExternalIssuer) -> None:
        self._issuer = issuer

    def read(self, names: Sequence[str]) -> dict[str, int]:
        return self._issuer.last_tokens(names)

    def missing(self) -> int:
        return 0

    def raise_to(self, tokens: Mapping[str, int]) -> dict[str, str]:
        try:
            self._issuer.raise_tokens(tokens)
        except IssuerError as error:
            if len(tokens) == 1:
                return dict.fromkeys(tokens, str(error))
            # One that cannot be kept must not hold up the others.
            failures = [self.raise_to({name: token}) for name, token in tokens.items()]
            return {name: note for failure in failures for name, note in failure.items()}
        return {}


def _is_token(value: Any) -> bool:
    return value is not None and value.isdigit() and len(value) < 20
