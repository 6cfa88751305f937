"""
`manage.py fence_status` against a bare SCAN + MGET loop with the same batch size, as whole processes.

Run it from the checkout: `python tests/benchmarks/fence_status.py`. It starts a private server, fills it, and lets the
loop and the command take turns, their output going nowhere. It prints, per format, the median of the rounds' ratios of
wall time and the peak resident memory of the process, and fails beyond the limits.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import redis

ROOT = Path(__file__).resolve().parents[2]
BATCH = 1000
MAX_RATIO = 4.0
MAX_MEGABYTES = 90.0

FILL = """
for i = tonumber(ARGV[1]), tonumber(ARGV[2]) do
  local name = 'order:' .. string.format('%d', i)
  redis.call('SET', 'fence:{' .. name .. '}', string.format('%.0f', 1764000000000000 + i * 7919))
  if i % tonumber(ARGV[3]) == 0 then
    redis.call('SET', name, 'web-1:4711:0123456789abcdef', 'PX', 3600000)
  end
end
"""


class Run(NamedTuple):
    """Wall time and peak memory of one process."""

    seconds: float
    megabytes: float


def main() -> int:
    """Run the benchmark, or the loop that it starts."""
    options = parse_arguments()
    if options.loop:
        return bare_loop(options.loop)
    sys.path.insert(0, str(ROOT / "testproject"))
    import servers

    with servers.RedisServer("--maxclients", "100") as server:
        fill(server.url, options.counters, options.held)
        return compare(server.url, options.rounds)


def parse_arguments() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counters", type=int, default=1_000_000)
    parser.add_argument("--held", type=int, default=1000, help="one in so many is held (default: 1000)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--loop", metavar="URL", help=argparse.SUPPRESS)
    return parser.parse_args()


def fill(url: str, counters: int, held: int) -> None:
    """Write the counters, and a lease for one in `held` of them."""
    with redis.Redis.from_url(url) as client:
        for first in range(0, counters, 10_000):
            client.eval(FILL, 0, first, min(first + 10_000, counters) - 1, held)


def bare_loop(url: str) -> int:
    """Read every counter, and do nothing with it."""
    client = redis.Redis.from_url(url)
    cursor, values = None, 0
    while cursor != 0:
        cursor, keys = client.scan(cursor or 0, match="fence:*", count=BATCH)
        values += len(client.mget(keys)) if keys else 0
    print(values, file=sys.stderr)
    return 0


def compare(url: str, rounds: int) -> int:
    """Let loop and command take turns; return 1 if a limit is broken."""
    environment = os.environ | {
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'testproject'}",
        "REDIS_URL": url,
    }
    status = [sys.executable, "-m", "django", "fence_status", "--format"]
    commands = {
        "loop": [sys.executable, __file__, "--loop", url],
        "table": [*status, "table"],
        "json": [*status, "json"],
        "csv": [*status, "csv"],
    }
    runs: dict[str, list[Run]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            runs[name].append(run(command, environment))
    return report(runs)


def run(command: list[str], environment: dict[str, str]) -> Run:
    """Run a process with its output thrown away."""
    began = time.perf_counter()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT)
    _, code, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(code)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with exit code {process.returncode}")
    # Kilobytes on Linux, bytes on macOS.
    return Run(seconds, usage.ru_maxrss / (1024 if sys.platform == "linux" else 1024**2))


def report(runs: dict[str, list[Run]]) -> int:
    """Print a line for each process; return 1 if a limit is broken."""
    broken = False
    for name, own in runs.items():
        ratio = statistics.median(one.seconds / loop.seconds for one, loop in zip(own, runs["loop"], strict=True))
        megabytes = max(one.megabytes for one in own)
        seconds = statistics.median(one.seconds for one in own)
        print(f"{name:<6} {seconds:7.2f} s  ratio {ratio:5.2f}  peak memory {megabytes:6.1f} MB")
        broken |= name != "loop" and (ratio > MAX_RATIO or megabytes > MAX_MEGABYTES)
    print(f"limits: ratio {MAX_RATIO:.1f}, memory {MAX_MEGABYTES:.0f} MB: {'BROKEN' if broken else 'kept'}")
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
