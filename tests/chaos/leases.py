"""Laws 3 and 4: leases end, exclude each other, and belong to their owner."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from .history import SECOND, Attempt, History, Sighting
from .losses import Losses
from .verdicts import Finding, grants

EXCLUSION = "mutual exclusion outside faults"
ORPHANS = "no lease outlives its end"
OWNER = "only the owner"
ERRORS = "errors are of the documented kinds"
GOES_ON = "it goes on after the faults"
EXCUSE = "two holders after Redis lost the key of the first"
RESTORED = "a released lease came back with old data"
# The server counts in milliseconds, and by another clock.
CLOCKS = SECOND // 200
ALLOWANCE = SECOND // 10
CLAIM_WINDOW = SECOND // 2


def mutual_exclusion(history: History, losses: Losses) -> Iterator[Finding]:
    """Two workers believe at one moment that they hold a resource only if Redis lost the key of the first."""
    for resource, entries in grants(history).items():
        holders: list[Attempt] = []
        for at, attempt in entries:
            holders = [holder for holder in holders if holder.held_until - CLOCKS > at]
            if attempt.held_until - CLOCKS > at:
                for holder in holders:
                    yield _overlap(resource, holder, attempt, losses.between(holder.began, at))
                holders.append(attempt)


def _overlap(resource: str, holder: Attempt, attempt: Attempt, excused: bool) -> Finding:
    text = f"{attempt.id} was granted while {holder.id} held it"
    return Finding(EXCLUSION, resource, text, (holder.id, attempt.id), EXCUSE if excused else "")


def no_orphans(history: History, losses: Losses) -> Iterator[Finding]:
    """No lock key is there after its lease; one of a lease that was given back is gone at once."""
    owners = {(attempt.resource, attempt.owner): attempt for attempt in history.attempts if attempt.owner}
    longest = max((attempt.lease for attempt in history.attempts), default=0)
    for seen in history.sightings:
        attempt = owners.get((seen.resource, seen.owner))
        about = (attempt.id,) if attempt else ()
        if seen.endless:
            yield Finding(ORPHANS, seen.resource, f"the lease of {seen.owner} had no end", about)
        elif attempt is not None:
            yield from _known(seen, attempt, losses)
        elif seen.last - seen.first > _length(seen.owner, longest) + ALLOWANCE:
            text = f"{seen.owner}, of which nobody knows, was there for {_ms(seen.last - seen.first)}"
            yield Finding(ORPHANS, seen.resource, text)


def _known(seen: Sighting, attempt: Attempt, losses: Losses) -> Iterator[Finding]:
    assert attempt.granted is not None
    if attempt.how == "released" and attempt.closed is not None and seen.last > attempt.closed:
        excused = losses.between(attempt.began, seen.last)
        text = f"{seen.owner} was there {_ms(seen.last - attempt.closed)} after it was released"
        yield Finding(ORPHANS, seen.resource, text, (attempt.id,), RESTORED if excused else "")
    end = _end(attempt)
    if end is not None and seen.last > end + ALLOWANCE:
        text = f"{seen.owner} was there {_ms(seen.last - end)} after the end of its lease"
        yield Finding(ORPHANS, seen.resource, text, (attempt.id,))


def _end(attempt: Attempt) -> int | None:
    """Return when the lease must be over; None for one that is still kept alive."""
    assert attempt.granted is not None
    if not attempt.keeps:
        return attempt.granted + attempt.lease
    last = attempt.closed if attempt.closed is not None else attempt.died
    return None if last is None else last + attempt.lease


def _length(owner: str, longest: int) -> int:
    return CLAIM_WINDOW if owner.startswith("ticket:") else longest


def only_the_owner(history: History, losses: Losses) -> Iterator[Finding]:
    """No release and no extension succeeds once somebody else was granted it; nobody loses a lease before its end."""
    yield from _robbed(history, losses)
    for resource, entries in grants(history).items():
        by_start = sorted(entries, key=lambda entry: entry[1].began)
        starts = [attempt.began for _, attempt in by_start]
        # The earliest grant among those that began at this place of the order or later.
        soonest = [at for at, _ in by_start]
        for index in range(len(soonest) - 2, -1, -1):
            soonest[index] = min(soonest[index], soonest[index + 1])
        for at, attempt in entries:
            index = bisect_right(starts, at)
            for moment, what in _acts(attempt):
                if index < len(soonest) and soonest[index] < moment and not losses.between(attempt.began, moment):
                    text = f"{attempt.id} {what} although another had been granted it"
                    yield Finding(OWNER, resource, text, (attempt.id,))


def _robbed(history: History, losses: Losses) -> Iterator[Finding]:
    for attempt in history.attempts:
        lost_at = attempt.closed if attempt.how == "lost" else None
        if lost_at is not None and lost_at < attempt.until and not losses.between(attempt.began, lost_at):
            text = f"{attempt.id} lost its lease {_ms(attempt.until - lost_at)} before its end"
            yield Finding(OWNER, attempt.resource, text, (attempt.id,))


def _acts(attempt: Attempt) -> Iterator[tuple[int, str]]:
    for moment in attempt.extended:
        yield moment, "kept its lease"
    if attempt.how == "released" and attempt.releasing is not None:
        yield attempt.releasing, "released"


def documented_errors(history: History, _losses: Losses) -> Iterator[Finding]:
    """An attempt ends well, or with an error that the documentation names."""
    for attempt in history.attempts:
        if attempt.how == "broke":
            yield Finding(ERRORS, attempt.resource, attempt.error, (attempt.id,))


def goes_on(history: History, _losses: Losses) -> Iterator[Finding]:
    """After the last fault each resource is granted again."""
    if history.healed is None:
        return
    again = {resource for resource, entries in grants(history).items() if entries[-1][0] > history.healed}
    for resource in history.resources:
        if resource not in again:
            yield Finding(GOES_ON, resource, "nobody was granted it after the last fault")


def _ms(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e6:.0f} ms"
