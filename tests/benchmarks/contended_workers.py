"""The workers of the benchmark ``contended``: processes whose threads compete for one lock, and who starts them."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import redis

LEASE = 10
# python-redis-lock refuses a wait that is longer than the lease.
PATIENCE = LEASE
# How long processes may take to start, and threads to meet.
MEETING = 60.0


class Contender(NamedTuple):
    """A lock class, and what it calls the lease and the longest wait."""

    module: str
    class_name: str
    lease: str
    patience: str

    def lock_class(self) -> Any:
        """Import the class."""
        return getattr(import_module(self.module), self.class_name)


CONTENDERS = {
    "fenced": Contender("fenced_locks", "FencedLock", "timeout", "blocking_timeout"),
    "redis-py": Contender("redis.lock", "Lock", "timeout", "blocking_timeout"),
    "python-redis-lock": Contender("redis_lock", "Lock", "expire", "timeout"),
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
        lock_class = job.contender.lock_class()
        meeting = threading.Barrier(job.threads + 1, timeout=MEETING)
        schedule: Future[Schedule] = Future()

        def worker() -> Record:
            meeting.wait()
            return compete(client, lock_class, job, schedule.result(MEETING))

        with ThreadPoolExecutor(job.threads) as pool:
            records = [pool.submit(worker) for _ in range(job.threads)]
            meeting.wait()
            pipe.send("ready")
            schedule.set_result(pipe.recv())
            pipe.send([record.result() for record in records])


def compete(client: redis.Redis, lock_class: Any, job: Job, schedule: Schedule) -> Record:
    """Acquire, work, release and pause until the end; a wait that the end interrupts goes on until it is over."""
    record = Record([], [])
    lease, patience = {job.contender.lease: LEASE}, {job.contender.patience: PATIENCE}
    sleep_until(schedule.begin)
    while (asked := time.monotonic()) < schedule.end:
        lock = lock_class(client, job.lock_name, **lease)
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
