"""What a worker does next and what hurts the world when: functions of the seed, and of nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

RESOURCES = ("row:1", "row:2", "row:3", "row:4", "row:5")
LONGEST_LEASE = 1.0
# How a worker takes its locks, by its number; the others use the context manager.
_STYLES = {
    **dict.fromkeys((1, 5, 9, 13), "renewed"),
    **dict.fromkeys((4, 12), "decorated"),
    **dict.fromkeys((6, 14), "extended"),
}
_ASYNC_WORKERS = (3, 7, 11)


@dataclass(frozen=True)
class Plan:
    """
    One attempt of a worker.

    Attributes:
        resource: What to lock; its number is the key of the row.
        style: How: block, renewed, decorated, extended, async, plain.
        lease: Length of the lease in seconds.
        wait: Longest wait in seconds.
        think: Seconds between reading and writing, longer than the lease for some.
        claims: Whether the row gets the token before it is read.
        pause: Seconds until the next attempt.
        dies_after: Seconds after the beginning of its first write at which the worker kills itself; None for never.
    """

    resource: str
    style: str
    lease: float
    wait: float
    think: float
    claims: bool
    pause: float
    dies_after: float | None = None

    @property
    def keeps(self) -> bool:
        """Whether the lease may become longer than it was when it was granted."""
        return self.style in ("renewed", "extended")

    @property
    def row(self) -> int:
        """The key of the row."""
        return int(self.resource.partition(":")[2])


def is_async(worker: int) -> bool:
    """Return whether a worker runs tasks of asyncio."""
    return worker in _ASYNC_WORKERS


def plans(seed: int, worker: int, generation: int, task: int = 0, *, plain: bool = False) -> Iterator[Plan]:
    """Yield what a worker does, attempt by attempt."""
    rng = random.Random(f"{seed}/{worker}/{generation}/{task}")
    style = "async" if is_async(worker) else _STYLES.get(worker, "block")
    while True:
        lease = rng.uniform(0.3, LONGEST_LEASE)
        # A lease that is renewed is for work that takes long.
        slow = rng.random() < (0.4 if style == "renewed" else 0.05)
        yield Plan(
            resource=rng.choice(RESOURCES),
            style="plain" if plain else style,
            lease=round(lease, 3),
            wait=round(rng.choice((0.3, 1.0, 3.0)), 3),
            think=round(lease * rng.uniform(1.0, 1.5) if slow else rng.uniform(0.01, 0.12), 3),
            claims=rng.random() < 0.5 and not plain,
            pause=round(rng.uniform(0.0, 0.1), 3),
            dies_after=rng.uniform(0.0, 0.004) if rng.random() < 0.004 else None,
        )


@dataclass(frozen=True)
class Step:
    """A fault to come: at how many seconds from the start, of which kind, and how."""

    at: float
    kind: str
    worker: int = -1
    seconds: float = 0.0
    match: str | None = None
    how: str = ""


def processes(seed: int, duration: float, workers: int) -> Iterator[Step]:
    """Yield what happens to the workers: freezes beyond the lease, and kills."""
    rng = random.Random(f"{seed}/processes")
    for at in _moments(rng, duration, 0.1, 0.9):
        kind = "kill" if rng.random() < 0.12 else "freeze"
        yield Step(at, kind, worker=rng.randrange(workers), seconds=round(rng.uniform(0.2, 2.5), 3))


def network(seed: int, duration: float) -> Iterator[Step]:
    """Yield what happens between the workers and Redis."""
    rng = random.Random(f"{seed}/network")
    kinds = ("drop_reply",) * 4 + ("drop_request", "cut_reply", "delay_reply", "delay_request", "disconnect", "mute")
    for at in _moments(rng, duration, 0.1, 1.0):
        match = rng.choice((None, "EVALSHA", "EVALSHA", "BLPOP"))
        yield Step(at, rng.choice(kinds), seconds=round(rng.uniform(0.05, 1.5), 3), match=match)


def server(seed: int, duration: float, *, repairs: bool) -> Iterator[Step]:
    """Yield what happens to Redis; ``repairs`` for counters that somebody must raise after they were lost."""
    rng = random.Random(f"{seed}/server")
    kinds = ("flush", "fill", "fail_over", "crash", "crash") + ("repair",) * 4 * repairs
    for at in _moments(rng, duration, 1.0, 5.0):
        kind = rng.choice(kinds)
        how = {"flush": ("FLUSHDB", "FLUSHALL"), "crash": ("always", "everysec", "none")}.get(kind, ("",))
        yield Step(at, kind, seconds=round(rng.uniform(0.1, 1.2), 3), how=rng.choice(how))


def _moments(rng: random.Random, duration: float, least: float, most: float) -> Iterator[float]:
    at = rng.uniform(least, most)
    while at < duration:
        yield round(at, 3)
        at += rng.uniform(least, most)
