"""Law 2: a row never goes back; and what was accepted is there, once, and was not stale."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from .history import Accepted, Attempt, History, Write
from .losses import Losses
from .verdicts import Finding

BACK = "no row goes back"
STALE = "no stale write accepted"
LOST = "no accepted write lost"
EXCUSE = "stale write admitted by a token from before the counter was lost"
UNSEEN = "a late write came between reading and writing (the row was not claimed)"


def no_row_goes_back(history: History, _losses: Losses) -> Iterator[Finding]:
    """Each accepted write raises the token of its row, or repeats the one of its own attempt."""
    if not history.fenced:
        return
    for row, entries in _by_row(history).items():
        token, writer = 0, ""
        for entry in entries:
            again = entry.new_token == entry.old_token and _attempt_of(entry.new_write) == writer
            if entry.old_token != token:
                text = f"write {entry.new_write} found token {entry.old_token}, the write before left {token}"
                yield Finding(BACK, row, text, (_attempt_of(entry.new_write),))
            if entry.new_token <= entry.old_token and not again:
                text = f"write {entry.new_write} put token {entry.new_token} over {entry.old_token}"
                yield Finding(BACK, row, text, (_attempt_of(entry.new_write), writer))
            token, writer = entry.new_token, _attempt_of(entry.new_write)


def no_stale_write(history: History, losses: Losses) -> Iterator[Finding]:
    """No write is accepted after one of a holder whose grant is later; looks at times and not at tokens."""
    attempts = {attempt.id: attempt for attempt in history.attempts}
    forgets = history.fenced and history.issuer == "counter"
    for row, entries in _by_row(history).items():
        # By epoch, as what is excused by a loss must not hide what is not.
        newest: dict[int, Attempt] = {}
        for entry in entries:
            writer = attempts.get(_attempt_of(entry.new_write))
            if writer is None or writer.granted is None:
                continue
            epoch = losses.over_before(writer.began)
            binding = [other for begun, other in newest.items() if not forgets or begun <= epoch]
            later = max(binding, key=lambda other: other.began, default=None)
            if later is not None and later.began >= writer.granted:
                yield _stale(row, entry, later)
            elif any(other.began >= writer.granted for other in newest.values()):
                yield Finding(STALE, row, "", (writer.id,), EXCUSE)
            key = losses.begun_by(writer.granted)
            if key not in newest or newest[key].began < writer.began:
                newest[key] = writer


def _stale(row: str, entry: Accepted, later: Attempt) -> Finding:
    text = f"write {entry.new_write} was accepted after one of {later.id}, whose grant is later"
    return Finding(STALE, row, text, (_attempt_of(entry.new_write), later.id))


def nothing_lost(history: History, _losses: Losses) -> Iterator[Finding]:
    """What a worker was told is what the database has; a write builds on the one that its worker has read."""
    entries = {entry.new_write: entry for entry in history.accepted}
    counts = Counter(entry.new_write for entry in history.accepted)
    known: set[str] = set()
    for attempt in history.attempts:
        for write in attempt.writes:
            known.add(write.id)
            yield from _told(attempt, write, counts[write.id])
            yield from _builds_on(history, attempt, write, entries.get(write.id))
    for entry in history.accepted:
        if entry.new_write not in known:
            yield Finding(LOST, f"row {entry.row}", f"nobody sent write {entry.new_write}")


def _told(attempt: Attempt, write: Write, times: int) -> Iterator[Finding]:
    allowed = {"ok": (1,), "refused": (0,)}.get(write.result, (0, 1))
    if times not in allowed:
        text = f"write {write.id} ended as {write.result} and was accepted {times} times"
        yield Finding(LOST, attempt.resource, text, (attempt.id,))


def _builds_on(history: History, attempt: Attempt, write: Write, entry: Accepted | None) -> Iterator[Finding]:
    if entry is None or write.base is None or write.base == entry.old_write:
        return
    text = f"write {write.id} was made from {write.base} and replaced {entry.old_write}, which its worker never saw"
    excused = history.fenced and write.kind == "unclaimed"
    yield Finding(LOST, attempt.resource, text, (attempt.id, _attempt_of(entry.old_write)), UNSEEN if excused else "")


def _by_row(history: History) -> dict[str, list[Accepted]]:
    found: dict[str, list[Accepted]] = defaultdict(list)
    for entry in sorted(history.accepted, key=lambda entry: entry.number):
        found[f"row {entry.row}"].append(entry)
    return found


def _attempt_of(write: str) -> str:
    return write.rpartition("/")[0]
