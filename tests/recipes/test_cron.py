"""The recipe for commands that cron starts: runs at the same time, a killed one, and one that overslept."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from tests import docs_runner
from tests.helpers import wait_until

PAGE = docs_runner.PAGES / "how-to" / "recipes" / "cron.md"
COMMAND = "shop/management/commands/close_day.py"
LOCK = "command:close_day"
PATIENCE = 60
Run = Callable[[], "subprocess.Popen[str]"]


@pytest.fixture
def project(shop: Path, tmp_path: Path, redis_url: str) -> Path:
    """The project of the page, with leases of two seconds."""
    shutil.copytree(shop, tmp_path, dirs_exist_ok=True)
    docs_runner.write_files(tmp_path, PAGE)
    replace_in(tmp_path / COMMAND, "timeout=30", "timeout=2")
    environment = docs_runner.environment(tmp_path, redis_url)
    for migrate in ["makemigrations", "-v0", "shop"], ["migrate", "-v0"]:
        subprocess.run([sys.executable, "manage.py", *migrate], cwd=tmp_path, env=environment, check=True)
    return tmp_path


@pytest.fixture
def held_up(r: redis.Redis, run: Run) -> subprocess.Popen[str]:
    """A run in the middle of its work, where it stays as long as there is the key "hold up"."""
    r.set("hold up", 1)
    process = run()
    wait_until(lambda: r.exists("held up"), PATIENCE)
    return process


@pytest.fixture
def run(r: redis.Redis, project: Path, redis_url: str) -> Iterator[Run]:
    """`run()` starts the command."""
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "manage.py", "close_day", "2025-11-30"],
            cwd=project,
            env=docs_runner.environment(project, redis_url),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def replace_in(file: Path, old: str, new: str) -> None:
    """Change the text of a file."""
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


def reports(project: Path) -> list[tuple[int, int]]:
    """Return tokens and numbers of all reports."""
    with sqlite3.connect(project / "db.sqlite3") as database:
        return database.execute("SELECT fence_token, orders FROM shop_report").fetchall()


def test_a_killed_run_keeps_the_next_one_off_until_its_lease_ends(
    r: redis.Redis, run: Run, held_up: subprocess.Popen[str], project: Path
) -> None:
    held_up.send_signal(signal.SIGKILL)
    held_up.wait(PATIENCE)
    assert 0 < r.pttl(LOCK) <= 2000
    r.delete("hold up")
    wait_until(lambda: not r.exists(LOCK))
    after = run()
    assert after.communicate(timeout=PATIENCE)[0] == "0 orders\n"
    assert len(reports(project)) == 1


def test_a_run_at_the_same_time_says_busy_by_its_exit_code(
    r: redis.Redis, run: Run, held_up: subprocess.Popen[str]
) -> None:
    second = run()
    assert "runs elsewhere" in second.communicate(timeout=PATIENCE)[0]
    assert second.returncode == 75
    r.delete("hold up")
    assert held_up.communicate(timeout=PATIENCE)[0] == "0 orders\n"
    assert held_up.returncode == 0


@pytest.mark.parametrize(
    ("look", "error"), [("lock.lost.is_set()", "LeaseLost: the lease is over, stopping"), ("False", "StaleToken: ")]
)
def test_report_of_a_run_that_was_frozen_beyond_its_lease_does_not_count(
    r: redis.Redis, run: Run, project: Path, look: str, error: str, request: pytest.FixtureRequest
) -> None:
    replace_in(project / COMMAND, "lock.lost.is_set()", look)
    frozen = request.getfixturevalue("held_up")
    frozen.send_signal(signal.SIGSTOP)
    wait_until(lambda: not r.exists(LOCK))
    r.delete("hold up")
    assert run().wait(PATIENCE) == 0
    written = reports(project)
    frozen.send_signal(signal.SIGCONT)
    assert error in frozen.communicate(timeout=PATIENCE)[0]
    assert frozen.returncode == 1
    assert reports(project) == written
