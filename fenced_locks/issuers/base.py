"""
The contract of an issuer.

Law: for one resource, every grant carries a token strictly greater than every token granted before it. An issuer
that cannot keep the law in some case says so in its docstring.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import ClassVar, TypeAlias

from ..scripts import Script, load, source


class Issuer(ABC):
    """
    Whoever mints fence tokens: a ``RedisIssuer`` or an ``ExternalIssuer``.

    Attributes:
        name: Short name, for settings, messages and ``fence_status``.
        argument: The third argument of ``mint``.
    """

    name: ClassVar[str]

    @property
    def argument(self) -> bytes:
        return b""

    def issued_at(self, token: int) -> datetime | None:
        """Return when ``token`` was issued, in UTC, or None where tokens do not tell."""
        return None


class RedisIssuer(Issuer):
    """
    An issuer inside Redis: it mints in the same Lua call that takes the lock.

    A subclass supplies ``mint``, the text of a local Lua function ``mint(counter, now_us, lease_ms, argument)`` that
    returns the token as a string of digits, or nil and the reason why there is none, in which case it has written
    nothing. ``read_counter(counter)`` and ``MAX_TOKEN`` are there for it to use; ``now_us`` is the server's time in
    microseconds, ``lease_ms`` the lease in milliseconds, or what is left of it where it gets another token (0 without
    end), ``argument`` the property below.

    Attributes:
        retention_ms: How long an idle counter is kept, in milliseconds; 0 without end.
        starts_at_clock: Whether a counter that is missing counts as the server's time in microseconds.
    """

    starts_at_clock: ClassVar[bool] = False

    @property
    def retention_ms(self) -> int:
        return 0

    @property
    @abstractmethod
    def mint(self) -> str:
        """The Lua text."""

    @cached_property
    def acquire_script(self) -> Script:
        """The script that takes the lock with a token of this issuer."""
        return _acquire_script(self.mint)

    @cached_property
    def advance_script(self) -> Script:
        """The script that draws another token of this issuer for a lease."""
        return load("advance", source("read_counter"), self.mint, source("owner_of"))


class ExternalIssuer(Issuer):
    """
    An issuer outside Redis.

    The lock is taken first, then ``issue`` is called, and the lease is looked at again: a holder that slept between
    the two, beyond the end of its lease, must not walk away with the greatest token. If ``issue`` raises, the lease
    is given back.
    """

    @cached_property
    def acquire_script(self) -> Script:
        """The script that takes the lock without a token."""
        return _acquire_script(source("mint_elsewhere"))

    @abstractmethod
    def issue(self, resource: str) -> int:
        """
        Return the next token of a resource: greater than every one returned before, to anybody; from 1 to 2**63 - 1.

        A token counts as returned from the moment somebody may have seen it: it must not be undone by a rollback.
        May be called by many threads at once.

        Args:
            resource: Name of the lock.

        Raises:
            IssuerError: There is none; the message says why. Any other exception is wrapped in one.
        """

    def last_tokens(self, resources: Sequence[str]) -> dict[str, int]:
        """
        Return the last tokens of those of these resources that have one; for ``fence_status --model``.

        Raises:
            NotImplementedError: The issuer leaves this out, as it may: no lock needs it.
        """
        raise NotImplementedError(f"the issuer {self.name!r} does not tell its last tokens")

    def counters_after(self, resource: str, number: int, start: str = "") -> list[tuple[str, int]]:
        """
        Return the next resources that have a token, each with its last one; for the listings of admin and commands.

        They come in an order of the issuer's that does not change. Fewer than ``number`` are the last ones.

        Args:
            resource: The one after which to go on; empty to begin.
            number: How many are wanted.
            start: What their names begin with; others may be among them, and are left out by the caller.

        Raises:
            NotImplementedError: The issuer leaves this out, as it may: then its resources are found by name alone.
        """
        raise NotImplementedError(f"the issuer {self.name!r} does not list its counters")

    def raise_tokens(self, tokens: Mapping[str, int]) -> None:
        """
        Let the next token of each of these resources be greater than the one given; never lowers anything.

        For ``fence_status --repair`` and ``lock.advance``. As with ``issue``, it must not be undone by a rollback.

        Raises:
            NotImplementedError: The issuer leaves this out, as it may; then no token can be asked to be greater than
                the next.
        """
        raise NotImplementedError(f"the issuer {self.name!r} cannot be raised")


def _acquire_script(mint: str) -> Script:
    return load("acquire", source("read_counter"), mint, source("owner_of"), source("hand_over"))


AnyIssuer: TypeAlias = RedisIssuer | ExternalIssuer
