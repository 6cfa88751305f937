"""One act, step by step. Each step waits for the one before it; nothing is left to timing."""

from __future__ import annotations

from dataclasses import dataclass

from shop.demo.claims import EARLIER, NEWER, Outcome, Row
from shop.demo.stage import Stage
from shop.demo.timeline import Timeline
from shop.demo.workers import Worker

# A's must end while we watch; B's must not, however slow the machine is.
LEASES = {"A": 1, "B": 10}


@dataclass(frozen=True)
class Act:
    """One telling of the story: with which lock, and on which order."""

    kind: str
    number: int
    title: str


PLAIN = Act("plain", 1001, "1. A lock alone: redis-py's Lock and update()")
FENCED = Act("fenced", 1002, "2. With fencing: fenced_lock() and fenced_update()")


class Scene:
    """Two workers meet on one order. Every step is looked up on the server or in the database, then printed."""

    def __init__(self, act: Act, stage: Stage, a: Worker, b: Worker, timeline: Timeline) -> None:
        self._act = act
        self._stage = stage
        self._a, self._b = a, b
        self._timeline = timeline
        self._owners: dict[str, str] = {}

    def play(self) -> Outcome:
        """Play the act and return what was seen."""
        a_owner, a_token = self._takes(self._a)
        self._a_freezes()
        owner_between = self._lease_ends()
        b_owner, b_token = self._takes(self._b)
        b_changed, after_b = self._b_writes()
        a_changed, after_a = self._a_wakes_and_writes(after_b)
        owners = (a_owner, owner_between, b_owner)
        return Outcome(owners, (a_token, b_token), (b_changed, a_changed), after_b, after_a)

    def _takes(self, worker: Worker) -> tuple[str | None, int | None]:
        worker.say(f"{self._act.kind} {self._act.number}")
        lease = worker.hear("holds")
        self._owners[lease["owner"]] = worker.name
        owner, token = self._owner(), lease.get("token")
        words = f"takes a {LEASES[worker.name]} s lease" + (f"\ntoken {token}" if token else "")
        self._show(worker, words, redis=_held_by(owner), row=self._words(self._row()))
        return owner, token

    def _a_freezes(self) -> None:
        self._a.freeze()
        # Its next step is in the pipe already: A goes on the moment it wakes, as any program does after a pause.
        self._a.say("go on")
        self._show(self._a, "freezes (SIGSTOP)")
        self._timeline.frozen = True

    def _lease_ends(self) -> str | None:
        self._stage.await_free(self._act.number)
        owner = self._owner()
        self._timeline.show(redis=f"lease over:\n{_held_by(owner)}")
        return owner

    def _b_writes(self) -> tuple[int, Row]:
        self._b.say("go on")
        changed = self._b.hear("wrote")["changed"]
        row = self._row()
        self._show(self._b, _wrote(NEWER, changed), row=self._words(row))
        self._b.hear("released")
        self._show(self._b, "releases", redis=_held_by(self._owner()))
        return changed, row

    def _a_wakes_and_writes(self, before: Row) -> tuple[int, Row]:
        self._timeline.frozen = False
        self._show(self._a, "wakes up (SIGCONT)")
        self._a.wake()
        changed = self._a.hear("wrote")["changed"]
        row = self._row()
        lost = row != before
        remark = "<- B's write is LOST" if lost else "<- stale write REFUSED"
        self._timeline.show(A=_wrote(EARLIER, changed), row=f"{self._words(row)}\n{remark}", good=not lost, bad=lost)
        late = not self._a.hear("released")["held"]
        self._show(self._a, "learns on releasing\nthat its lease was lost" if late else "releases")
        return changed, row

    def _show(self, worker: Worker, words: str, redis: str = "", row: str = "") -> None:
        if worker is self._a:
            self._timeline.show(A=words, redis=redis, row=row)
        else:
            self._timeline.show(B=words, redis=redis, row=row)

    def _owner(self) -> str | None:
        owner = self._stage.owner(self._act.number)
        return None if owner is None else self._owners.get(owner, "?")

    def _row(self) -> Row:
        return self._stage.row(self._act.number)

    def _words(self, row: Row) -> str:
        return f"{row.status}\ntoken {row.fence_token}" if self._act is FENCED else row.status


def _held_by(owner: str | None) -> str:
    return "free" if owner is None else f"held by {owner}"


def _wrote(status: str, changed: int) -> str:
    return f"writes {status}:\n{changed} {'row' if changed == 1 else 'rows'} changed"
