"""Law 1: tokens grow."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from .history import Attempt, History
from .losses import Losses
from .verdicts import Finding, grants

LAW = "tokens grow"
EXCUSE = "token of the issuer counter after its key was lost"


def tokens_grow(history: History, losses: Losses) -> Iterator[Finding]:
    """A grant that was asked for after another was reported has a greater token; no two are equal."""
    if not history.fenced:
        return
    loses_counters = history.issuer == "counter"
    for resource, entries in grants(history).items():
        granted = [(at, attempt) for at, attempt in entries if attempt.token is not None]
        yield from _equal(resource, granted, losses, loses_counters)
        yield from _smaller(resource, granted, losses, loses_counters)


def _equal(
    resource: str, granted: list[tuple[int, Attempt]], losses: Losses, loses_counters: bool
) -> Iterator[Finding]:
    holders: dict[int | None, Attempt] = {}
    for at, attempt in granted:
        other = holders.setdefault(attempt.token, attempt)
        if other is not attempt:
            holders[attempt.token] = attempt
            excused = loses_counters and losses.between(other.began, at)
            text = f"token {attempt.token} was granted twice"
            yield Finding(LAW, resource, text, (other.id, attempt.id), EXCUSE if excused else "")


def _smaller(
    resource: str, granted: list[tuple[int, Attempt]], losses: Losses, loses_counters: bool
) -> Iterator[Finding]:
    # The greatest token so far: of all, and of those since the last loss, which alone bind an issuer that forgets.
    epochs: dict[int, tuple[list[int], list[Attempt]]] = {}
    everything: tuple[list[int], list[Attempt]] = ([], [])
    for at, attempt in granted:
        _append(everything, at, attempt)
        _append(epochs.setdefault(losses.over_before(attempt.began), ([], [])), at, attempt)
    for at, attempt in granted:
        earlier = _greatest(epochs.get(losses.begun_by(at)) if loses_counters else everything, attempt.began)
        if _is_above(earlier, attempt):
            yield _finding(resource, earlier, attempt)
        elif loses_counters and _is_above(forgotten := _greatest(everything, attempt.began), attempt):
            yield _finding(resource, forgotten, attempt, EXCUSE)


def _append(maxima: tuple[list[int], list[Attempt]], at: int, attempt: Attempt) -> None:
    times, greatest = maxima
    times.append(at)
    greatest.append(max(attempt, greatest[-1], key=_token) if greatest else attempt)


def _greatest(maxima: tuple[list[int], list[Attempt]] | None, moment: int) -> Attempt | None:
    if maxima is None:
        return None
    index = bisect_right(maxima[0], moment)
    return maxima[1][index - 1] if index else None


def _is_above(earlier: Attempt | None, attempt: Attempt) -> bool:
    return earlier is not None and _token(earlier) > _token(attempt)


def _token(attempt: Attempt) -> int:
    return attempt.token or 0


def _finding(resource: str, earlier: Attempt | None, attempt: Attempt, excuse: str = "") -> Finding:
    assert earlier is not None
    text = f"token {attempt.token} was granted after {earlier.token}"
    return Finding(LAW, resource, text, (earlier.id, attempt.id), excuse)
