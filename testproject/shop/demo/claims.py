"""What the demo claims, checked against what the server and the database said."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

EARLIER = "confirmed"
NEWER = "cancelled"


@dataclass(frozen=True)
class Row:
    """The order as it stands in the database."""

    status: str
    fence_token: int


@dataclass(frozen=True)
class Outcome:
    """
    What was seen in one act.

    Attributes:
        owners: Who held the lease as the server says, None for nobody: after A took it, after its end, after B took it.
        tokens: The fence tokens of A and B; None for redis-py's lock, which has none.
        changed: How many rows each write changed, as the database told its worker: B's, then A's.
        after_b, after_a: The row after B's write, and after A's, which came last.
    """

    owners: tuple[str | None, str | None, str | None]
    tokens: tuple[int | None, int | None]
    changed: tuple[int, int]
    after_b: Row
    after_a: Row


def broken_plain_claims(outcome: Outcome) -> list[str]:
    """Return what did not come true of "a lock alone loses the newer write", in words."""
    return _untrue(_common(outcome), _plain(outcome))


def broken_fenced_claims(outcome: Outcome) -> list[str]:
    """Return what did not come true of "with fencing the stale write is refused", in words."""
    return _untrue(_common(outcome), _fenced(outcome))


def _common(outcome: Outcome) -> Iterator[tuple[bool, str]]:
    yield outcome.owners == ("A", None, "B"), "A, then nobody, then B held the lease"
    yield outcome.changed[0] == 1, "B changed one row"
    yield outcome.after_b.status == NEWER, f"after B's write the row is {NEWER}"


def _plain(outcome: Outcome) -> Iterator[tuple[bool, str]]:
    yield outcome.changed[1] == 1, "A's late write changed one row"
    yield outcome.after_a.status == EARLIER, f"after A's late write the row is {EARLIER}"


def _fenced(outcome: Outcome) -> Iterator[tuple[bool, str]]:
    a_token, b_token = outcome.tokens
    yield a_token is not None and b_token is not None and a_token < b_token, "B's token is greater than A's"
    yield outcome.after_b.fence_token == b_token, "after B's write the row carries B's token"
    yield outcome.changed[1] == 0, "A's late write changed no row"
    yield outcome.after_a == outcome.after_b, "A's late write left the row as it was"


def _untrue(*claims: Iterator[tuple[bool, str]]) -> list[str]:
    return [words for group in claims for true, words in group if not true]
