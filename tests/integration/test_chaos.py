"""``python -m tests.chaos`` leaves nothing behind. What it finds takes minutes, and is no part of the tests."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the workers are tied to their parent by prctl(2)")

ROOT = Path(__file__).resolve().parent.parent.parent


def processes_of(directory):
    """Return the processes whose command line or environment names a directory."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and str(directory).encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.fixture
def start(tmp_path):
    """Start a run whose temporary files are all below a directory of the test."""
    places = tempfile_directory(tmp_path)
    started = []

    def start(*arguments):
        environment = {**os.environ, "TMPDIR": str(places), "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-m", "tests.chaos", "--workers", "4", "--seed", "5", *arguments]
        run = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        started.append(run)
        return run, places

    yield start
    for run in started:
        run.kill()
        run.communicate()


def tempfile_directory(tmp_path):
    # Servers move to /tmp where the path is too long for a unix socket.
    directory = Path("/tmp") / f"ch{os.getpid()}-{tmp_path.name[-12:]}"
    directory.mkdir()
    return directory


def test_leaves_nothing_behind_when_it_is_killed(start):
    run, places = start("--minutes", "5")
    wait_until(lambda: any(b'"wrote"' in path.read_bytes() for path in places.glob("fl-*/worker-*.jsonl")), 30)
    assert len(processes_of(places)) > 4
    run.send_signal(signal.SIGKILL)
    run.wait(10)
    wait_until(lambda: not processes_of(places) and not list(places.iterdir()), 15, interval=0.1)
    places.rmdir()
