"""`manage.py demo` shows what it claims, says so when it cannot, and leaves nothing behind."""

from __future__ import annotations

import dataclasses
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from config import settings as shop_settings
from django.core.management import CommandError, call_command
from shop.demo.claims import Outcome, Row, broken_fenced_claims, broken_plain_claims
from shop.demo.errors import DemoFailed
from shop.demo.workers import Worker

import fenced_locks
from tests.helpers import wait_until

OWNERS = ("A", None, "B")
LOST = Outcome(OWNERS, (None, None), (1, 1), Row("cancelled", 0), Row("confirmed", 0))
REFUSED = Outcome(OWNERS, (7, 9), (1, 0), Row("cancelled", 9), Row("cancelled", 9))


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """The demo's own settings, a server that cannot be had, and a directory in which every trace would be found."""
    # Not tmp_path: the path of a unix socket is short.
    with tempfile.TemporaryDirectory(dir="/tmp") as scratch:
        Path(scratch).chmod(0o755)
        nobody = "redis://127.0.0.1:1/0"
        ours = {"REDIS_URL": nobody, "TMPDIR": scratch, "DJANGO_SETTINGS_MODULE": "config.settings"}
        yield {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"} | ours


def start(environment: dict[str, str]) -> subprocess.Popen[str]:
    """Start the demo."""
    command = [sys.executable, str(shop_settings.BASE_DIR / "manage.py"), "demo"]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def test_the_demo_shows_the_lost_and_the_refused_write(environment: dict[str, str]) -> None:
    before = _seconds_of_children()
    demo = start(environment)
    output, errors = demo.communicate(timeout=60)
    assert (demo.returncode, errors) == (0, "")

    # On a machine of its own it takes what it computes and what it waits for, at most.
    waited = sum(float(act.splitlines()[-2].split()[0]) for act in re.findall(r"second (.+?)\n\n", output, re.DOTALL))
    assert 2 < _seconds_of_children() - before + waited < 15

    plain, fenced = output.split("2. With fencing")
    assert "B's write is LOST" in plain
    assert "REFUSED" not in plain
    assert "stale write REFUSED" in fenced
    assert "LOST" not in fenced
    tokens = [int(token) for token in re.findall(r"token (\d{16})", fenced)]
    _, status = fenced.split("fence_status")
    assert re.search(rf"order:1002\s.*{max(tokens)}", status)
    assert max(map(len, output.splitlines())) <= 100
    assert "\033" not in output
    assert os.listdir(environment["TMPDIR"]) == []


def test_it_fails_when_the_stale_write_is_not_refused(environment: dict[str, str], tmp_path: Path) -> None:
    """The package without its fence: what the demo then sees is not what it claims."""
    package = Path(fenced_locks.__file__).parent
    copy = shutil.copytree(package, tmp_path / "fenced_locks")
    with (copy / "querysets.py").open("a") as module:
        module.write("\n\nFencedQuerySet.fenced_update = lambda rows, token, **fields: rows.update(**fields)\n")
    demo = start({**environment, "PYTHONPATH": str(tmp_path)})
    output, errors = demo.communicate(timeout=60)
    assert demo.returncode == 1
    assert "did not come true" in errors
    assert "A's late write changed no row" in errors
    assert len(errors.splitlines()) == 1
    assert "With fencing: order 1002 stays" not in output


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_its_frozen_worker_when_it_is_interrupted(
    environment: dict[str, str], signal_number: signal.Signals
) -> None:
    demo = start(environment)
    assert demo.stdout is not None
    while "freezes (SIGSTOP)" not in demo.stdout.readline():
        assert demo.poll() is None
    # As a terminal does: to every process.
    os.killpg(demo.pid, signal_number)
    _, errors = demo.communicate(timeout=30)
    assert demo.returncode == 130
    assert errors.startswith("CommandError: Interrupted")
    assert len(errors.splitlines()) == 1
    assert os.listdir(environment["TMPDIR"]) == []
    wait_until(lambda: not _group_exists(demo.pid))


def test_a_worker_leaves_the_ctrl_c_of_the_terminal_to_the_demo() -> None:
    held_back = "signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])"
    report = f"import json, signal; print(json.dumps({{'event': 'ready', 'held_back': {held_back}}}))"
    with Worker("A", [sys.executable, "-c", report], dict(os.environ)) as worker:
        assert worker.hear("ready")["held_back"]


def test_a_worker_that_ends_too_early_is_named() -> None:
    with Worker("B", [sys.executable, "-c", ""], dict(os.environ)) as worker:
        with pytest.raises(DemoFailed, match="worker B reported 'end' instead of 'holds'"):
            worker.hear("holds")
        worker.say("this is not heard")


def test_it_needs_posix_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(signal, "SIGSTOP")
    with pytest.raises(CommandError, match="POSIX"):
        call_command("demo")


def test_nothing_is_broken_where_the_claims_are_true() -> None:
    assert broken_plain_claims(LOST) == []
    assert broken_fenced_claims(REFUSED) == []


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"owners": ("A", "A", "B")}, "A, then nobody, then B held the lease"),
        ({"owners": ("A", None, "A")}, "A, then nobody, then B held the lease"),
        ({"changed": (0, 1)}, "B changed one row"),
        ({"after_b": Row("open", 0)}, "after B's write the row is cancelled"),
        ({"changed": (1, 0)}, "A's late write changed one row"),
        ({"after_a": Row("cancelled", 0)}, "after A's late write the row is confirmed"),
    ],
)
def test_what_did_not_come_true_without_fencing_is_named(wrong: dict[str, object], words: str) -> None:
    assert words in broken_plain_claims(dataclasses.replace(LOST, **wrong))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"owners": (None, None, "B")}, "A, then nobody, then B held the lease"),
        ({"changed": (0, 0)}, "B changed one row"),
        ({"after_b": Row("open", 9)}, "after B's write the row is cancelled"),
        ({"tokens": (9, 9)}, "B's token is greater than A's"),
        ({"tokens": (None, 9)}, "B's token is greater than A's"),
        ({"tokens": (7, None)}, "B's token is greater than A's"),
        ({"after_b": Row("cancelled", 7)}, "after B's write the row carries B's token"),
        ({"changed": (1, 1)}, "A's late write changed no row"),
        ({"after_a": Row("confirmed", 9)}, "A's late write left the row as it was"),
        ({"after_a": Row("cancelled", 7)}, "A's late write left the row as it was"),
    ],
)
def test_what_did_not_come_true_with_fencing_is_named(wrong: dict[str, object], words: str) -> None:
    assert words in broken_fenced_claims(dataclasses.replace(REFUSED, **wrong))


def _seconds_of_children() -> float:
    """Return the processor time of all children that have ended, and of theirs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _group_exists(leader: int) -> bool:
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return False
    return True
