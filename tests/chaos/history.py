"""What happened, as the checker reads it: attempts of workers, faults, writes that the database accepted, keys seen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import journal

SECOND = 1_000_000_000


@dataclass(slots=True)
class Write:
    """One fenced (or plain) UPDATE of a worker. ``base`` is the write that the worker had read; ``result`` may be
    ok, refused or unknown."""

    id: str
    kind: str
    base: str | None = None
    result: str = "unknown"


@dataclass(slots=True)
class Attempt:
    """
    One attempt to lock, read, think and write; times in nanoseconds of the common clock.

    Attributes:
        began: When the lock was asked for.
        granted: When the worker knew that it has the lease; None if it never did.
        until: Up to when the worker believes that it holds it, as far as it has said.
        releasing: When it began to give it back.
        closed: When the attempt was over; None for a worker that was killed in it.
        how: released, lost, busy, failed, broke; or open.
        keeps: Whether the lease may have been made longer than it was granted.
        extended: When an extend, reacquire or ensure_held that succeeded was begun.
    """

    id: str
    worker: int
    resource: str
    lease: int
    began: int
    style: str = "block"
    keeps: bool = False
    granted: int | None = None
    token: int | None = None
    owner: str | None = None
    until: int = 0
    releasing: int | None = None
    closed: int | None = None
    how: str = "open"
    error: str = ""
    died: int | None = None
    extended: list[int] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)

    @property
    def held_until(self) -> int:
        """The end of the time in which the worker believed to hold the lease."""
        return self.until if self.releasing is None else min(self.until, self.releasing)


@dataclass(slots=True)
class Fault:
    """What was done to the world, from when to when; ``loses`` if Redis may have lost keys that it had in that time."""

    kind: str
    began: int
    ended: int
    loses: bool = False
    worker: int = -1


@dataclass(slots=True)
class Accepted:
    """A write that the database accepted, as its trigger noted it."""

    number: int
    row: int
    old_token: int
    new_token: int
    old_write: str
    new_write: str


@dataclass(slots=True)
class Sighting:
    """A value that the lock key had: seen first before, and last after these times."""

    resource: str
    owner: str
    first: int
    last: int
    endless: bool = False


@dataclass(slots=True)
class History:
    """All that is known of a run."""

    issuer: str = "clock"
    fenced: bool = True
    attempts: list[Attempt] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    accepted: list[Accepted] = field(default_factory=list)
    sightings: list[Sighting] = field(default_factory=list)
    healed: int | None = None
    resources: tuple[str, ...] = ()


def load(directory: Path, history: History) -> History:
    """Add what the workers and the world have written into a directory."""
    deaths: dict[str, int] = {}
    for record in journal.read(directory / "world.jsonl"):
        match record.pop("event"):
            case "died":
                deaths[record["incarnation"]] = record["at"]
            case "fault":
                record.pop("at")
                history.faults.append(Fault(**record))
            case "seen":
                record.pop("at")
                history.sightings.append(Sighting(**record))
            case "healed":
                history.healed = record["at"]
    for path in sorted(directory.glob("worker-*.jsonl")):
        attempts = attempts_of(journal.read(path))
        for attempt in attempts:
            attempt.died = deaths.get(path.stem)
        history.attempts += attempts
    return history


def attempts_of(records: Iterable[dict[str, Any]]) -> list[Attempt]:
    """Put the records of one worker's file together."""
    attempts: dict[str, Attempt] = {}
    for record in records:
        event = record["event"]
        if event == "began":
            attempts[record["op"]] = _begun(record)
        else:
            _FOLD[event](attempts[record["op"]], record)
    return list(attempts.values())


def _begun(record: dict[str, Any]) -> Attempt:
    facts = {name: record[name] for name in ("worker", "resource", "lease", "style", "keeps")}
    return Attempt(id=record["op"], began=record["at"], **facts)


def _granted(attempt: Attempt, record: dict[str, Any]) -> None:
    attempt.granted, attempt.token, attempt.owner = record["at"], record["token"], record["owner"]
    attempt.until = record["until"]


def _held(attempt: Attempt, record: dict[str, Any]) -> None:
    attempt.until = max(attempt.until, record["until"])
    if record.get("since"):
        attempt.extended.append(record["since"])


def _writing(attempt: Attempt, record: dict[str, Any]) -> None:
    attempt.writes.append(Write(record["write"], record["kind"], record["base"]))


def _wrote(attempt: Attempt, record: dict[str, Any]) -> None:
    attempt.writes[-1].result = record["result"]


def _releasing(attempt: Attempt, record: dict[str, Any]) -> None:
    attempt.releasing = record["at"]
    attempt.until = max(attempt.until, record["until"])


def _closed(attempt: Attempt, record: dict[str, Any]) -> None:
    attempt.closed, attempt.how, attempt.error = record["at"], record["how"], record.get("error", "")


_FOLD = {
    "granted": _granted,
    "held": _held,
    "writing": _writing,
    "wrote": _wrote,
    "releasing": _releasing,
    "closed": _closed,
}
