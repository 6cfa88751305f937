"""
One contended resource: ``FencedLock`` against redis-py's ``Lock`` and pottery's, which poll, and python-redis-lock.

    python -m tests.benchmarks.contended [--threads 2 8 32 64] [--processes 8] [--seconds 2] [--rounds 3]
        [--work-ms 1] [--pause-ms 0 6] [--contenders fenced redis-py python-redis-lock pottery]

Each worker acquires a new lock object, works, releases it and pauses, over and over. The threads of a case share a
process and a client; each of the processes has its own. Within a round the contenders run right after each other, and
the next round begins with the next one. The columns are medians over the rounds, except where said:

- hand-off: from just before a holder's release to the next grant, where that went to another worker who was waiting
  by then. A worker that takes the lock again right after its own release hands nothing over.
- worst wait: the longest single acquire. A starved worker gets its turn when all stop: run longer to see it grow.
- trips/grant: what the server read per grant. A script or a pipeline is one read, whatever it does inside.
- conns: the most connections of the workers in any round.
- fewest, most: grants of the worker that got the fewest, and the most, in the least fair round.
- gave up: acquires that got nothing within 10 s, in all rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator
from importlib.metadata import version
from itertools import count
from typing import NamedTuple

import redis
import servers

from tests.benchmarks.contended_figures import Figures, Watch, figures, median, median_ratio
from tests.benchmarks.contended_workers import (
    CONTENDERS,
    MEETING,
    PATIENCE,
    Contender,
    Job,
    Schedule,
    crew,
    receive,
    sleep_until,
)
from tests.benchmarks.side_by_side import in_turns

OURS = "fenced"
# Until all connections are open and all scripts loaded.
WARM_UP = 0.3
# The workers go on for so long after the last look at the server, should that come late.
MARGIN = 0.1
LOOK_EVERY = 0.05
RATIOS = {
    "rate": lambda one: one.rate,
    "hand-off p50": lambda one: one.p50,
    "p99": lambda one: one.p99,
    "worst wait": lambda one: one.worst_wait,
}


class Case(NamedTuple):
    """How many compete, and how long each holds and pauses, in milliseconds."""

    processes: int
    threads: int
    work: float
    pause: float

    def __str__(self) -> str:
        workers = f"{self.threads} threads" if self.processes == 1 else f"{self.processes} processes"
        return f"{workers}, {self.work:g} ms of work, {self.pause:g} ms between holds"


class Arena:
    """A server, and a connection of our own to look at it while workers compete."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client = redis.Redis.from_url(url)
        self._runs = count(1)
        self._idle = self._connections()

    def close(self) -> None:
        """Close our own connection."""
        self._client.close()

    def server_version(self) -> str:
        """Return what the server is, and its version."""
        return servers.redis_version(self._client)

    def run(self, case: Case, contender: Contender, seconds: float) -> Figures:
        """Let fresh workers compete for a lock that nobody has used yet, and return the figures."""
        name = f"contended-{next(self._runs)}"
        job = Job(self._url, name, contender, case.threads, case.work / 1e3, case.pause / 1e3)
        with crew(job, case.processes) as pipes:
            for pipe in pipes:
                receive(pipe, MEETING)
            begin = time.monotonic() + 0.05
            opening = begin + WARM_UP
            for pipe in pipes:
                pipe.send(Schedule(begin, opening + seconds + MARGIN))
            watch = self._watch(opening, opening + seconds)
            records = [record for pipe in pipes for record in receive(pipe, PATIENCE + MEETING)]
        return figures(records, watch)

    def _watch(self, opening: float, closing: float) -> Watch:
        sleep_until(opening)
        before, opened = self._reads(), time.monotonic()
        seen = [self._connections()]
        while time.monotonic() + LOOK_EVERY < closing:
            time.sleep(LOOK_EVERY)
            seen.append(self._connections())
        sleep_until(closing)
        after, closed = self._reads(), time.monotonic()
        # Our own: each look, and the second reading of the counter, which counts itself.
        return Watch(opened, closed, after - before - len(seen) - 1, max(seen) - self._idle)

    def _reads(self) -> int:
        return int(self._client.info("stats")["total_reads_processed"])

    def _connections(self) -> int:
        return int(self._client.info("clients")["connected_clients"])


def main() -> None:
    """Print a table and the ratios for each case."""
    options = parse_arguments()
    contenders = installed(options.contenders)
    if not contenders:
        return
    with servers.redis_server() as server, contextlib.closing(Arena(server.url)) as arena:
        print(f"redis-py {version('redis')}, {arena.server_version()}, {options.rounds} rounds")
        for case in cases(options):
            report(case, measure(arena, case, contenders, rounds=options.rounds, seconds=options.seconds))


def measure(arena: Arena, case: Case, names: list[str], *, rounds: int, seconds: float) -> dict[str, list[Figures]]:
    """Let each contender compete in each round."""
    contenders = {name: CONTENDERS[name] for name in names}
    return in_turns(rounds, contenders, lambda contender: arena.run(case, contender, seconds))


def parse_arguments() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="*", default=[2, 8, 32, 64])
    parser.add_argument("--processes", type=int, nargs="*", default=[8])
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work-ms", type=float, default=1)
    parser.add_argument("--pause-ms", type=float, nargs="+", default=[0, 6])
    parser.add_argument("--contenders", choices=CONTENDERS, nargs="+", default=list(CONTENDERS))
    return parser.parse_args()


def installed(names: list[str]) -> list[str]:
    """Return the contenders that can be imported; say which one cannot."""
    missing = [name for name in names if not CONTENDERS[name].is_installed()]
    for name in missing:
        print(f"{name} is not installed: it is left out.")
    return [name for name in names if name not in missing]


def cases(options: argparse.Namespace) -> Iterator[Case]:
    """Yield the cases: threads of one process, then processes of one thread, each with every pause."""
    loads = [(1, threads) for threads in options.threads] + [(processes, 1) for processes in options.processes]
    for processes, threads in loads:
        for pause in options.pause_ms:
            yield Case(processes, threads, options.work_ms, pause)


def report(case: Case, rounds: dict[str, list[Figures]]) -> None:
    """Print a row for each contender, and our ratio to each of the others."""
    print(f"\n{case}")
    print(
        f"  {'':<18}{'grants/s':>10}{'hand-off p50 ms':>17}{'p99 ms':>9}{'worst wait ms':>15}{'trips/grant':>13}"
        f"{'conns':>7}{'fewest':>8}{'most':>6}{'gave up':>9}"
    )
    for name, own in rounds.items():
        row = median(own)
        print(
            f"  {name:<18}{row.rate:>10.1f}{row.p50:>17.2f}{row.p99:>9.2f}{row.worst_wait:>15.1f}"
            f"{row.round_trips:>13.2f}{row.connections:>7.0f}{row.fewest:>8}{row.most:>6}{row.refusals:>9}"
        )
    others = [name for name in rounds if name != OURS] if OURS in rounds else []
    for name in others:
        ratios = (f"{label} {median_ratio(rounds[OURS], rounds[name], of):.2f}" for label, of in RATIOS.items())
        print(f"  {OURS} / {name}: {', '.join(ratios)}")


if __name__ == "__main__":
    main()
