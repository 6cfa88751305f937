"""`manage.py fence_status --watch` refreshes in place on a terminal, plainly elsewhere, and ends cleanly."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys

import pytest
from django.core.management import CommandError, call_command

from tests.helpers import wait_until

COMMAND = [sys.executable, "-m", "django", "fence_status"]


def environment(**more):
    path = os.pathsep.join(sys.path)
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "",
        **more,
    }


@pytest.fixture
def start(r, tmp_path):
    """Start the command with its output in a file; return the process and what reads the file."""
    processes = []

    def run(*arguments, **more):
        path = tmp_path / "output"
        with path.open("wb") as output:
            command = [*COMMAND, *arguments]
            processes.append(subprocess.Popen(command, env=environment(**more), stdout=output, stderr=output))
        return processes[-1], path.read_text

    yield run
    for process in processes:
        process.kill()
        process.wait()


def test_a_file_gets_one_round_below_the_other_and_ctrl_c_is_no_failure(start, r):
    r.set("fence:{order:1}", 7)
    process, text = start("--watch", "0.05")
    wait_until(lambda: text().count("1 counter:") >= 2, 60)
    r.set("fence:{order:2}", 8)
    wait_until(lambda: "2 counters:" in text(), 60)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    assert "\x1b" not in text()
    assert "Traceback" not in text()
    assert text().startswith("Every 0.05 s, 20")


def test_a_terminal_is_written_in_place_and_cut_at_its_edges(r):
    r.mset({f"fence:{{order:{number:02}}}": number for number in range(40)})
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(COMMAND[0], [*COMMAND, "--watch", "0.05"], environment(LINES="10", COLUMNS="80", TERM="xterm"))
    seen = b""
    try:
        while seen.count(b"\x1b[H") < 3:
            seen += os.read(terminal, 65536)
        os.write(terminal, b"\x03")
        _, status = os.waitpid(pid, 0)
    finally:
        os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0
    first, second, *_ = seen.split(b"\x1b[H")[1:]
    assert second.endswith(b"\x1b[J") or b"\x1b[J" in second
    assert len(first.splitlines()) <= 10
    assert b"more lines" in first


def test_a_server_that_goes_and_comes_back_is_told(start, own_server):
    server = own_server()
    process, text = start("--watch", "0.05", REDIS_URL=server.url)
    wait_until(lambda: "No counters match" in text(), 60)
    server.stop()
    wait_until(lambda: "cannot be read" in text(), 60)
    assert process.poll() is None


@pytest.mark.parametrize(
    "options",
    [
        {"watch": 0}, {"watch": -1}, {"watch": float("nan")}, {"watch": 1, "format": "json"},
        {"watch": 1, "model": "app.Order", "resource": "order:<pk>"}, {"watch": 1, "pattern": "["},
        {"watch": 1, "using": "nowhere"},
    ],
)  # fmt: skip
def test_what_cannot_be_watched_is_refused_at_once(r, options):
    with pytest.raises(CommandError) as caught:
        call_command("fence_status", **options)
    assert caught.value.returncode == 2


def test_a_reader_that_loses_interest_ends_it(r):
    process = subprocess.Popen([*COMMAND, "--watch", "0.05"], env=environment(), stdout=subprocess.PIPE)
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(60) == 0


def test_a_pause_longer_than_the_clock_goes_is_a_long_one(start, r):
    process, text = start("--watch", "1e12")
    wait_until(lambda: "No counters match" in text(), 60)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    assert "Traceback" not in text()
