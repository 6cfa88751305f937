"""What the page "Fenced locks" of the admin says of a resource."""

from __future__ import annotations

from typing import NamedTuple

import redis

from .admin_paths import quote, unquote
from .conf import conf
from .exceptions import FencedLockError
from .freeing import Freed
from .resources import Resource
from .texts import one_line, printable


class Shown(NamedTuple):
    """A resource as the templates have it: everything printable, with the texts that come back in addresses."""

    path: str
    lease: str
    resource: str
    state: str
    owner: str
    can_free: bool
    at: Resource


class RowsOf(NamedTuple):
    """What a page shows of a registered model."""

    label: str
    rows: list[tuple[str, str, int, str]]
    more: bool
    problem: str


def show(resource: Resource) -> Shown:
    """Return a resource as the templates have it."""
    status = resource.status
    name = resource.name[len(conf.KEY_PREFIX.encode()) :]
    owner = "" if resource.owner is None else resource.owner.decode("utf-8", "backslashreplace")
    return Shown(
        path=quote(name),
        lease="" if resource.owner is None else f"{quote(name)}.{quote(resource.owner)}",
        resource=printable(status.resource),
        state="held" if status.held else "free",
        owner=printable(owner),
        can_free=resource.owner is not None,
        at=resource,
    )


def resource_text(shown: Shown) -> str:
    """Return the name as the user chose it, without the prefix of the settings."""
    return unquote(shown.path).decode()


def left(resource: Resource) -> str:
    """Return in words how long the lease still lasts."""
    seconds = resource.status.remaining
    return "no end" if seconds is None else f"{seconds:.1f} s left"


def agreement(shown: Shown, token: int) -> str:
    """Return in words how the token of a row stands to the last one of its resource."""
    last = shown.at.status.token
    if token == 0:
        return "never written under a lock"
    if last is None or token < last:
        return "older than the last token"
    return "the last token" if token == last else "ahead of the counter"


def promise(freed: Freed) -> str:
    """Return what refuses the former holder from now on."""
    told = ""
    if freed.rows:
        told = f" {freed.rows} {'rows carry' if freed.rows > 1 else 'row carries'} the newer token {freed.token}."
    return told + (f" But {printable(freed.problem)}." if freed.problem else "")


def explained(error: Exception, verb: str = "cannot be read") -> str:
    """Return what went wrong, for a page."""
    text = printable(one_line(error))
    if isinstance(error, redis.RedisError) and not isinstance(error, FencedLockError):
        return f"Redis behind cache alias {conf.USING!r} {verb}: {text}"
    return text
