"""The recipe for Celery, with real workers that are killed and frozen in the middle of its task."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests import docs_runner
from tests.helpers import wait_until

celery = pytest.importorskip("celery", reason="without celery; recipes need more: pip install -e '.[test,recipes]'")

PAGE = docs_runner.PAGES / "how-to" / "recipes" / "celery.md"
PATIENCE = 60

# Messages of a dead worker come back soon, leases are short, and the work goes on when the test says so. A worker looks
# for such messages when it starts, then every 100 s: kombu before 5.7 knows no other interval.
SETTINGS = """
CELERY_BROKER_TRANSPORT_OPTIONS = {"visibility_timeout": 1}
FENCED_LOCKS = {"TIMEOUT": float(os.environ.get("LEASE", 2)), "RENEW": True}
"""
LABELS = """
import os
import time
from fenced_locks.connections import get_client

def print_label(order_id):
    redis = get_client()
    redis.rpush("at work", os.getpid())
    while not redis.exists("everybody goes on", f"{os.getpid()} goes on"):
        time.sleep(0.02)
"""


class Worker:
    """A Celery worker with one process in its pool, in a process group of its own."""

    def __init__(self, folder: Path, redis_url: str, name: str) -> None:
        self._log = folder / f"{name}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", "mysite", "worker", "-c1", "-lINFO", "-n", name],
                cwd=folder,
                env=docs_runner.environment(folder, redis_url),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        """What it has said so far."""
        return self._log.read_text()

    def signal(self, number: int) -> None:
        """Send a signal to the worker and its pool."""
        os.killpg(self._process.pid, number)

    def end(self) -> None:
        """Leave nothing of it behind."""
        try:
            self.signal(signal.SIGKILL)
        except ProcessLookupError:
            return
        self._process.wait(10)


@pytest.fixture
def project(shop: Path, tmp_path: Path) -> Path:
    """The project of the page, with one order."""
    shutil.copytree(shop, tmp_path, dirs_exist_ok=True)
    docs_runner.write_files(tmp_path, PAGE)
    with (tmp_path / "mysite" / "settings.py").open("a") as settings:
        settings.write(SETTINGS)
    (tmp_path / "shop" / "labels.py").write_text(LABELS)
    with sqlite3.connect(tmp_path / "db.sqlite3") as database:
        database.execute("INSERT INTO shop_order (id, fence_token, status) VALUES (1, 0, 'new')")
    return tmp_path


@pytest.fixture
def worker(project: Path, redis_url: str) -> Iterator[Callable[[str], Worker]]:
    """`worker(name)` starts one."""
    workers: list[Worker] = []

    def start(name: str) -> Worker:
        workers.append(Worker(project, redis_url, name))
        return workers[-1]

    yield start
    for each in workers:
        each.end()


@pytest.fixture
def outcome(r: redis.Redis, redis_url: str) -> Callable[[], Any]:
    """Send the task; what is returned waits for what it returns."""
    with celery.Celery(broker=redis_url) as app:
        task = app.send_task("shop.tasks.pack", [1]).id

    def wait() -> Any:
        def done() -> Any:
            result = json.loads(r.get(f"celery-task-meta-{task}") or "{}")
            return result if result.get("status") in ("SUCCESS", "FAILURE") else None

        return wait_until(done, PATIENCE)["result"]

    return wait


def row(project: Path) -> tuple[str, int]:
    """Return status and token of the order."""
    with sqlite3.connect(project / "db.sqlite3") as database:
        return database.execute("SELECT status, fence_token FROM shop_order").fetchone()


def at_work(r: redis.Redis) -> int:
    """Wait until the task is in the middle of its work, and return the process."""
    return int(wait_until(lambda: r.lpop("at work"), PATIENCE))


def test_killed_pool_process_holds_the_order_until_its_lease_ends_and_the_task_runs_again(
    r: redis.Redis, worker: Callable[[str], Worker], outcome: Callable[[], Any], project: Path
) -> None:
    worker("only")
    killed = at_work(r)
    owner, token = r.get("order:1"), int(r.get("fence:{order:1}"))
    os.kill(killed, signal.SIGKILL)
    assert r.get("order:1") == owner
    assert 0 < r.pttl("order:1") <= 2000
    r.set("everybody goes on", 1)
    assert outcome() == "packed"
    status, newer = row(project)
    assert status == "packed"
    assert newer > token


def test_killed_worker_leaves_its_task_to_another_one_which_waits_for_the_end_of_its_lease(
    r: redis.Redis,
    worker: Callable[[str], Worker],
    outcome: Callable[[], Any],
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LEASE", "30")
    first = worker("first")
    killed = at_work(r)
    owner, token = r.get("order:1"), int(r.get("fence:{order:1}"))
    first.signal(signal.SIGKILL)
    assert r.hlen("unacked") == 1
    # A worker that starts sooner does not find it, and looks again only after 100 s.
    wait_until(lambda: r.zcount("unacked_index", 0, time.time() - 1), PATIENCE)
    r.set("everybody goes on", 1)
    second = worker("second")
    wait_until(lambda: "Retry in" in second.log, PATIENCE)
    assert r.get("order:1") == owner
    assert row(project) == ("new", 0)
    # The lease ends by itself; a busy machine needs so long a one, and the test need not wait for all of it.
    r.pexpire("order:1", 1000)
    assert outcome() in ("packed", "packed before")
    status, newer = row(project)
    assert status == "packed"
    assert newer > token
    assert at_work(r) != killed
    assert r.lpop("at work") is None


def test_write_of_a_frozen_worker_is_refused_after_a_second_copy_has_run(
    r: redis.Redis, worker: Callable[[str], Worker], outcome: Callable[[], Any], project: Path
) -> None:
    first = worker("first")
    frozen = at_work(r)
    token = int(r.get("fence:{order:1}"))
    first.signal(signal.SIGSTOP)
    wait_until(lambda: not r.exists("order:1"))
    worker("second")
    r.set(f"{at_work(r)} goes on", 1)
    assert outcome() == "packed"
    written = row(project)
    assert written[1] > token
    first.signal(signal.SIGCONT)
    r.set(f"{frozen} goes on", 1)
    wait_until(lambda: "ignored" in first.log, PATIENCE)
    assert row(project) == written
    assert outcome() == "packed"
