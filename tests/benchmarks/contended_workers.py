"""The workers of the benchmark ``contended``: processes whose threads compete for one lock, and who starts them."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import redis

LEASE = 10
# python-redis-lock refuses a wait that is longer than the lease.
PATIENCE = LEASE
# How long processes may take to start, and threads to meet.
MEETING = 60.0


class Contender(NamedTuple):
    """What makes a lock of a client and a name, and what that calls the lease and the longest wait."""

    package: str
    module: str
    factory: str
    lease: str
    patience: str

    def is_installed(self) -> bool:
        """Return whether the package is there."""
        return find_spec(self.package) is not None

    def make(self) -> Callable[[redis.Redis, str], Any]:
        """Import what makes its locks, whose lease is ``LEASE``."""
        return partial(getattr(import_module(self.module), self.factory), **{self.lease: LEASE})


CONTENDERS = {
    "fenced": Contender("fenced_locks", "fenced_locks", "FencedLock", "timeout", "blocking_timeout"),
    "redis-py": Contender("redis", "redis.lock", "Lock", "timeout", "blocking_timeout"),
    "python-redis-lock": Contender("redis_lock", "redis_lock", "Lock", "expire", "timeout"),
    "pottery": Contender("pottery", "tests.benchmarks.redlock", "one_master", "auto_release_time", "timeout"),
}


class Job(NamedTuple):
    """What a process of workers does: how many threads, on which lock, and for how long each holds and pauses."""

    url: str
    lock_name: str
    contender: Contender
    threads: int
    work: float
    pause: float


class Schedule(NamedTuple):
    """When all workers begin and end, by ``time.monotonic()``, which the processes of a machine share."""

    begin: float
    end: float


class Hold(NamedTuple):
    """One grant: when it was asked for, when ``acquire`` returned, and when ``release`` was about to be called."""

    asked: float
    granted: float
    releasing: float


class Record(NamedTuple):
    """What happened to one worker: its grants, and how long it waited where it got none."""

    holds: list[Hold]
    refusals: list[float]


def sleep_until(moment: float) -> None:
    """Sleep until a moment of ``time.monotonic()``."""
    time.sleep(max(0.0, moment - time.monotonic()))


@contextlib.contextmanager
def crew(job: Job, processes: int) -> Iterator[list[Connection]]:
    """Start processes of workers and yield the pipes to them; whatever happens, none is left behind."""
    context = multiprocessing.get_context("spawn")
    members = []
    try:
        for _ in range(processes):
            ours, theirs = context.Pipe()
            process = context.Process(target=run_process, args=(theirs, job), daemon=True)
            process.start()
            # Else the end of the process would not be the end of the pipe.
            theirs.close()
            members.append((process, ours))
        yield [pipe for _, pipe in members]
        for process, _ in members:
            process.join(MEETING)
    finally:
        for process, pipe in members:
            process.kill()
            process.join()
            pipe.close()


def receive(pipe: Connection, timeout: float) -> Any:
    """Return what a process of workers sends; RuntimeError if it ended instead, or takes too long."""
    if not pipe.poll(timeout):
        raise RuntimeError(f"A process of workers has sent nothing for {timeout:.0f} s.")
    try:
        return pipe.recv()
    except EOFError:
        raise RuntimeError("A process of workers failed; it has said why.") from None


def run_process(pipe: Connection, job: Job) -> None:
    """Start the threads, say that they are ready, receive the schedule, and send the record of each."""
    # A blocking pop that waits longer than the socket's timeout ends in an error, and that is not what is compared.
    with redis.Redis.from_url(job.url, socket_timeout=PATIENCE + 5) as client:
        client.ping()
        make = job.contender.make()
        meeting = threading.Barrier(job.threads + 1, timeout=MEETING)
        schedule: Future[Schedule] = Future()

        def worker() -> Record:
            meeting.wait()
            return compete(client, make, job, schedule.result(MEETING))

        with ThreadPoolExecutor(job.threads) as pool:
            records = [pool.submit(worker) for _ in range(job.threads)]
            meeting.wait()
            pipe.send("ready")
            schedule.set_result(pipe.recv())
            pipe.send([record.result() for record in records])


def compete(client: redis.Redis, make: Callable[[redis.Redis, str], Any], job: Job, schedule: Schedule) -> Record:
    """Acquire, work, release and pause until the end; a wait that the end interrupts goes on until it is over."""
    record = Record([], [])
    patience = {job.contender.patience: PATIENCE}
    sleep_until(schedule.begin)
    while (asked := time.monotonic()) < schedule.end:
        lock = make(client, job.lock_name)
        if not lock.acquire(**patience):
            record.refusals.append(time.monotonic() - asked)
            continue
        granted = time.monotonic()
        time.sleep(job.work)
        releasing = time.monotonic()
        lock.release()
        record.holds.append(Hold(asked, granted, releasing))
        if job.pause:
            time.sleep(job.pause)
    return record
