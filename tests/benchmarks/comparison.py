"""
Our locks against redis-py's, python-redis-lock and pottery's Redlock: the figures and charts of the page that compares.

    python -m tests.benchmarks.comparison [--write] [--rounds 3] [--seconds 2] [--batches 60] [--size 300]
        [--threads 64] [--processes 8] [--tasks 1000] [--pause-ms 0 6]

It runs these benchmarks, whose docstrings say what their figures mean: ``uncontended`` and ``contended``, and of
``asyncio_locks`` the parts uncontended and one-lock. It prints tables; with ``--write`` it writes them into the page
``docs/pages/explanation/comparison.md``, and the charts into the files that the page includes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
from datetime import datetime, timezone
from functools import partial
from importlib.metadata import version

import redis
import servers
from redis.utils import HIREDIS_AVAILABLE

from tests.benchmarks import asyncio_locks, asyncio_rounds, contended
from tests.benchmarks.comparison_figures import Measured
from tests.benchmarks.comparison_page import figures, write
from tests.benchmarks.contended_figures import Figures, median
from tests.benchmarks.contended_workers import CONTENDERS
from tests.benchmarks.side_by_side import Batch, PerCycle, median_cycle, per_cycle
from tests.benchmarks.uncontended import cycles

PACKAGES = {
    "fenced": "django-fenced-locks",
    "redis-py": "redis",
    "python-redis-lock": "python-redis-lock",
    "pottery": "pottery",
}
# How long a holder holds, in milliseconds.
WORK = 1


def main() -> None:
    """Measure, and print or write the figures."""
    options = parse_arguments()
    names = contended.installed(list(CONTENDERS))
    measured = Measured(
        about(names, options), *(measure(names, options) for measure in (all_cycles, competition, tasks))
    )
    if options.write:
        write(measured)
    print(figures(measured))


def parse_arguments() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    for name, default in {
        "rounds": 3,
        "batches": 60,
        "size": 300,
        "threads": 64,
        "processes": 8,
        "tasks": 1000,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--pause-ms", type=float, nargs="+", default=[0, 6])
    return parser.parse_args()


def about(names: list[str], options: argparse.Namespace) -> dict[str, str]:
    """Say when and on what this was measured, and for how long."""
    with servers.redis_server() as server, redis.Redis.from_url(server.url) as client:
        runs_on = servers.redis_version(client)
    parser = "with" if HIREDIS_AVAILABLE else "without"
    return {
        "on": f"{datetime.now(timezone.utc):%Y-%m-%d}",
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
        "server": f"{runs_on}, on the same machine",
        "Python": f"{platform.python_version()}, {parser} hiredis",
        "packages": ", ".join(f"{PACKAGES[name]} {version(PACKAGES[name])}" for name in names),
        "rounds": f"{options.rounds} of {options.seconds:g} s; medians of them",
    }


def all_cycles(names: list[str], options: argparse.Namespace) -> dict[str, dict[str, PerCycle]]:
    """Measure cycles without competition, of one thread and of one task."""

    def medians(batches: dict[str, Batch]) -> dict[str, PerCycle]:
        measured = per_cycle(batches, batches=options.batches, size=options.size)
        return {name: median_cycle(own) for name, own in measured.items()}

    with servers.redis_server() as server:
        with redis.Redis.from_url(server.url) as client:
            sync = medians({name: partial(cycles, CONTENDERS[name].make(), client) for name in names})
        with asyncio_locks.batches_of_cycles(server.url) as batches:
            return {"One thread": sync, "One task, asyncio": medians(batches)}


def competition(names: list[str], options: argparse.Namespace) -> dict[str, dict[str, Figures]]:
    """Measure one lock among threads, and among processes, without and with a pause between holds."""
    loads = (1, options.threads), (options.processes, 1)
    cases = [contended.Case(*load, WORK, pause) for load in loads for pause in options.pause_ms]
    limits = {"rounds": options.rounds, "seconds": options.seconds}
    with servers.redis_server() as server, contextlib.closing(contended.Arena(server.url)) as arena:
        return {
            str(case): {name: median(own) for name, own in contended.measure(arena, case, names, **limits).items()}
            for case in cases
        }


def tasks(names: list[str], options: argparse.Namespace) -> dict[str, dict[str, asyncio_rounds.OneLock]]:
    """Measure one lock among the tasks of an event loop, each of which wants it once."""
    limits = {"tasks": options.tasks, "seconds": options.seconds, "work": WORK / 1e3, "again": False}
    with servers.redis_server() as server, contextlib.closing(asyncio_rounds.Observer(server.url)) as observer:
        measured = asyncio_locks.measure_one_lock(server.url, observer, options.rounds, **limits)
    return {
        f"{options.tasks} tasks, {WORK} ms of work": {
            name: asyncio_rounds.median_of_one_lock(own) for name, own in measured.items()
        }
    }


if __name__ == "__main__":
    main()
