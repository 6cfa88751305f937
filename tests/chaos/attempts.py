"""One attempt of a worker, and the records of it; the write to the row is here, the locks are not."""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.db import OperationalError
from redis.exceptions import LockError, RedisError

from fenced_locks.exceptions import FencedLockError, LeaseLost, LockNotAcquired, NotHeld, StaleToken

from .history import SECOND
from .journal import Journal
from .models import Row
from .plans import Plan

# What the documentation names, and what a database may always say.
DOCUMENTED = (FencedLockError, RedisError, OperationalError)


@dataclass
class Sent:
    """A write that was sent; ``changed`` is how many rows it changed."""

    id: str
    changed: int = 0


class Attempt:
    """Says to the journal what is about to happen and what has happened."""

    def __init__(self, journal: Journal, worker: int, name: str, plan: Plan) -> None:
        self.name, self.plan = name, plan
        self._journal = journal
        self._writes = 0
        lease = int(plan.lease * SECOND)
        self.began = journal.write(
            "began",
            op=name,
            worker=worker,
            resource=plan.resource,
            lease=lease,
            style=plan.style,
            keeps=plan.keeps,
        )

    def granted(self, lock: Any) -> None:
        """The lock was acquired."""
        until = _until(lock)
        self._journal.write("granted", op=self.name, token=lock.fence_token, owner=lock.owner_id, until=until)

    def granted_plain(self, owner: str) -> None:
        """A lock of redis-py's was acquired; its lease began no earlier than it was asked for."""
        until = self.began + int(self.plan.lease * SECOND)
        self._journal.write("granted", op=self.name, token=None, owner=owner, until=until)
        self._until = until

    @contextmanager
    def keeping(self, lock: Any) -> Iterator[None]:
        """Ask for a longer lease, or whether it is ours, in the block; an error is one of the attempt."""
        since = time.monotonic_ns()
        yield
        self._journal.write("held", op=self.name, since=since, until=_until(lock))

    def releasing(self, lock: Any = None) -> None:
        """The lock is about to be given back."""
        until = self._until if lock is None else _until(lock)
        self._journal.write("releasing", op=self.name, until=until)

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Run the attempt in the block; note how it ended, whatever the error."""
        how, error = "released", ""
        try:
            yield
        except Exception as failure:  # noqa: BLE001 - it is in the journal, and the checker judges it
            how, error = _kind(failure)
        self._journal.write("closed", op=self.name, how=how, error=error)

    def claim(self, token: int) -> bool:
        """Give the row the token before it is read, so that no older holder can write it any more."""
        with self._sending("claim", None) as sent:
            sent.changed = self._row().fenced_update(token, write_id=sent.id)
        return sent.changed > 0

    def read(self) -> Row:
        """Read the row."""
        return Row.objects.get(pk=self.plan.row)

    def write(self, token: int | None, row: Row) -> None:
        """Write what was made of the row that was read."""
        kind = "claimed" if self.plan.claims else "unclaimed"
        with self._sending(kind, row.write_id) as sent:
            fields = {"value": row.value + 1, "write_id": sent.id}
            if token is None:
                sent.changed = self._row().update(**fields)
            else:
                sent.changed = self._row().fenced_update(token, repeatable=self.plan.claims, **fields)

    def _row(self) -> Any:
        return Row.objects.filter(pk=self.plan.row)

    @contextmanager
    def _sending(self, kind: str, base: str | None) -> Iterator[Sent]:
        self._writes += 1
        sent = Sent(f"{self.name}/{self._writes}")
        self._journal.write("writing", op=self.name, write=sent.id, kind=kind, base=base)
        if self.plan.dies_after is not None:
            # Nobody else can hit the moment in which a write is on its way.
            threading.Timer(self.plan.dies_after, os.kill, (os.getpid(), signal.SIGKILL)).start()
        try:
            yield sent
        except StaleToken:
            self._journal.write("wrote", op=self.name, write=sent.id, result="refused")
            raise
        self._journal.write("wrote", op=self.name, write=sent.id, result="ok" if sent.changed else "refused")


def _until(lock: Any) -> int:
    """Return up to when the lock says that it is held; 0 if it says that it is not."""
    now = time.monotonic_ns()
    try:
        left = lock.remaining()
    except NotHeld:
        return 0
    return now + int(left * SECOND) if left else 0


def _kind(failure: Exception) -> tuple[str, str]:
    text = f"{type(failure).__name__}: {failure}"
    if isinstance(failure, LeaseLost):
        return "lost", text
    if isinstance(failure, LockNotAcquired):
        return "busy", text
    if isinstance(failure, LockError) and not isinstance(failure, FencedLockError):
        return "lost", text
    if isinstance(failure, DOCUMENTED):
        return "failed", text
    return "broke", "".join(traceback.format_exception(failure))
