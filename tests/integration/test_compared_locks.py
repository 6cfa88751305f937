"""What the page that compares locks says that each of them does, tried on the versions that are here."""

from __future__ import annotations

import inspect
import json
from importlib import import_module
from typing import Any

import pytest
import redis

from fenced_locks import fenced_lock
from tests.benchmarks.comparison_page import PAGE
from tests.benchmarks.contended_workers import CONTENDERS, Contender

RESOURCE = "order:1"
COLUMNS = dict(zip(CONTENDERS, range(2, 6), strict=True))
CLASSES = {"pottery": "pottery.Redlock"}
ASYNC_MODULES = {"redis-py": "redis.asyncio.lock"}
LOSSES = "LeaseLost", "LockNotOwnedError", "NotAcquired", "ReleaseUnlockedLock"
NOT_TRIED = {"How a waiter waits", "First come, first served", "Several resources, all or none"}


class Tried:
    """A contender, and what came of trying it."""

    def __init__(self, name: str, client: redis.Redis) -> None:
        self.name, self._client = name, client
        self._contender: Contender = CONTENDERS[name]
        module, _, of = CLASSES.get(name, f"{self._contender.module}.{self._contender.factory}").rpartition(".")
        self._class = getattr(import_module(module), of)

    def token(self) -> bool:
        return isinstance(getattr(self._acquired(), "fence_token", None), int)

    def asyncio(self) -> bool:
        module = import_module(ASYNC_MODULES.get(self.name, self._contender.package))
        return any(inspect.iscoroutinefunction(getattr(value, "acquire", None)) for value in vars(module).values())

    def renewal(self) -> bool:
        return any("renew" in argument for argument in inspect.signature(self._class).parameters)

    def release_tells(self) -> bool:
        lock = self._acquired()
        self._client.flushdb()
        try:
            lock.release()
        except Exception as error:  # noqa: BLE001
            return type(error).__name__ in LOSSES
        return False

    def tells_meanwhile(self) -> bool:
        return hasattr(self._acquired(), "lost")

    def reentrant(self) -> bool:
        if self.name != "fenced":
            return self._acquired() and self._lock().acquire(blocking=False)
        with fenced_lock(RESOURCE) as outer, fenced_lock(RESOURCE, blocking=False) as inner:
            return outer.fence_token == inner.fence_token

    def masters(self) -> bool:
        return "masters" in inspect.signature(self._class).parameters

    def half_a_second(self) -> bool:
        try:
            self._acquired(**{self._contender.lease: 0.5})
        except redis.ResponseError:
            return False
        return 0 < self._left() <= 500

    def ends_by_default(self) -> bool:
        if self.name == "fenced":
            lock = fenced_lock(RESOURCE)
        elif self.name == "pottery":
            lock = self._class(key=RESOURCE, masters={self._client})
        else:
            lock = self._class(self._client, RESOURCE)
        assert lock.acquire()
        return self._left() > 0

    def excludes_plain_locks(self) -> bool:
        return bool(self._acquired()) and not self._client.lock(RESOURCE).acquire(blocking=False)

    def _lock(self, **options: Any) -> Any:
        return self._contender.make()(self._client, RESOURCE, **options)

    def _acquired(self, **options: Any) -> Any:
        lock = self._lock(**options)
        assert lock.acquire()
        return lock

    def _left(self) -> int:
        # Ours has a counter, too.
        (key,) = (key for key in self._client.scan_iter() if not key.startswith(b"fence:"))
        return self._client.pttl(key)


ROWS = {
    "Fence token with each lease": Tried.token,
    "`asyncio`": Tried.asyncio,
    "Renewal in the background": Tried.renewal,
    "The release says that the lease was lost": Tried.release_tells,
    "A loss is told while one works": Tried.tells_meanwhile,
    "Re-entrant": Tried.reentrant,
    "One lock on several masters (Redlock)": Tried.masters,
    "Leases of half a second": Tried.half_a_second,
    "A lease ends if nobody says when": Tried.ends_by_default,
    "Excludes redis-py's lock of the same name": Tried.excludes_plain_locks,
}


@pytest.fixture(scope="module")
def page() -> dict[str, list[str]]:
    """The rows of the page's first table by their first cell."""
    table = PAGE.read_text().partition("\n| |")[2].partition("\n\n")[0]
    rows = ([cell.strip() for cell in line.split("|")] for line in table.splitlines()[2:])
    return {row[1]: row for row in rows}


def test_each_row_is_tried_or_named_as_one_that_is_not(page: dict[str, list[str]]) -> None:
    assert set(page) == ROWS.keys() | NOT_TRIED


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("name", CONTENDERS)
def test_each_lock_does_what_the_page_says(
    name: str, row: str, page: dict[str, list[str]], r: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not CONTENDERS[name].is_installed():
        pytest.skip(f"without {name}, which comes with the extra 'benchmarks'")
    # pottery replaces it when it is imported.
    monkeypatch.setattr(json, "dumps", json.dumps)
    said = page[row][COLUMNS[name]].lstrip("[").partition(",")[0].partition("]")[0]
    assert said == ("yes" if ROWS[row](Tried(name, r)) else "no")
