"""
Processes that wait for a lock, for tests that kill, stop and interrupt them; and how to see from outside who waits.

    waiter = Waiter(url, "order:1", timeout=10)
    waiter.ask(cycle, blocking_timeout=20)      # does not wait
    wait_for_waiters(r, 1)
    grant = waiter.answer()
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import redis

from fenced_locks import FencedLock
from fenced_locks.locks.gate import gate
from tests.helpers import wait_until

LOCK, QUEUE, WAKE = "order:1", "queue:{order:1}", "wake:{order:1}"
# How long tests wait for what should happen, in seconds.
GIVE_UP = 15.0

# Its children have everything imported.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.waiters"])


class Grant(NamedTuple):
    """A token, and when ``acquire`` returned, by ``time.monotonic()``, which the processes of a machine share."""

    fence_token: int
    at: float


class Waiter:
    """A process with a lock of its own, which does what it is asked, one thing after the other."""

    def __init__(self, url: str, name: str, **options: Any) -> None:
        self._pipe, theirs = _context.Pipe()
        self._process = _context.Process(target=_serve, args=(theirs, url, name, options), daemon=True)
        self._process.start()
        # Else the end of the process would not be the end of the pipe.
        theirs.close()

    def ask(self, action: Callable[..., Any], **kwargs: Any) -> None:
        """Have ``action(lock, **kwargs)`` called; a function of this module, or a method of the lock."""
        self._pipe.send((action, kwargs))

    def answer(self, timeout: float = GIVE_UP) -> Any:
        """Return what came of it, or raise its exception."""
        if not self._pipe.poll(timeout):
            raise TimeoutError(f"No answer within {timeout} s.")
        answer = self._pipe.recv()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def do(self, action: Callable[..., Any], **kwargs: Any) -> Any:
        """Ask, and return the answer."""
        self.ask(action, **kwargs)
        return self.answer()

    def send(self, number: signal.Signals) -> None:
        """Send a signal; what is to be stopped or killed is so when this returns."""
        os.kill(self._pid, number)
        if number == signal.SIGKILL:
            self._process.join()
        elif number == signal.SIGSTOP:
            # The child of another process, so that it cannot be waited for.
            wait_until(lambda: _state_of(self._pid) in "Tt")

    def end(self) -> None:
        """Kill it, if it still runs."""
        self._process.kill()
        self._process.join()
        self._process.close()
        self._pipe.close()

    @property
    def _pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid


def _state_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        # No such file system: the signal alone has to do.
        return "T"


def _serve(pipe: Connection, url: str, name: str, options: dict[str, Any]) -> None:
    with redis.Redis.from_url(url) as client:
        lock = FencedLock(client, name, **options)
        while True:
            action, kwargs = pipe.recv()
            try:
                answer = action(lock, **kwargs)
            except BaseException as error:  # noqa: BLE001 - it is raised where the answer is wanted
                answer = error
            pipe.send(answer)


def hold(lock: FencedLock, **kwargs: Any) -> Grant | None:
    """Acquire; None if the lock stayed busy."""
    if not lock.acquire(**kwargs):
        return None
    at = time.monotonic()
    assert lock.fence_token is not None
    return Grant(lock.fence_token, at)


def cycle(lock: FencedLock, **kwargs: Any) -> Grant | None:
    """Acquire and release; None if the lock stayed busy."""
    grant = hold(lock, **kwargs)
    if grant:
        lock.release()
    return grant


def compete(lock: FencedLock, others: int, limit: int) -> int:
    """
    Acquire and release until all together have had so many grants; return how many of them were ours.

    Nobody releases before all the others wait, or the scheduler of the machine would have a say in it.
    """
    for mine in range(limit + 1):
        with lock:
            if lock.redis.incr("grants") > limit:
                return mine
            wait_until(lambda: registered(lock.redis) == others, interval=0.001)
    raise AssertionError("the others had less than nothing")


def is_claim(command: Sequence[bytes]) -> bool:
    """Return whether this takes the lock with a ticket."""
    return command[0] in (b"EVALSHA", b"EVAL") and command[-1].startswith(b"ticket:") and len(command) == 12


def at_the_gate(lock: FencedLock | None = None) -> int:
    """Return how many wait for anything in this process."""
    return sum(len(queue) for queue in gate._queues.values())


def in_order(grants: Sequence[Grant | None]) -> bool:
    """Return whether everybody got the lock, each later than the one before."""
    tokens = [grant.fence_token for grant in grants if grant]
    return len(tokens) == len(grants) and tokens == sorted(tokens)


def blocked(r: redis.Redis) -> int:
    """Return how many connections block until a ticket comes."""
    database = str(r.get_connection_kwargs().get("db") or 0)
    entries = [entry for entry in r.client_list() if entry["cmd"] == "blpop" and entry["db"] == database]
    return sum("b" in entry["flags"] for entry in entries)


def registered(r: redis.Redis, queue: str = QUEUE) -> int:
    """Return how many waiters the queue has; its entry '' is nobody."""
    return sum(member != b"" for member in r.zrange(queue, 0, -1))


def wait_for_waiters(r: redis.Redis, count: int) -> None:
    """Return when so many are registered and block."""
    wait_until(lambda: blocked(r) == count <= registered(r))


def line_up(r: redis.Redis, waiters: Sequence[Waiter], action: Callable[..., Any] = cycle) -> None:
    """Have each of them wait for the lock, one after the other, behind those that do."""
    for number, waiter in enumerate(waiters, blocked(r) + 1):
        waiter.ask(action, blocking_timeout=GIVE_UP)
        wait_for_waiters(r, number)


def looks(r: redis.Redis) -> int:
    """Return how many registrations and looks the server has seen."""
    calls: int = r.info("commandstats").get("cmdstat_zadd", {}).get("calls", 0)
    return calls


def age_the_run(r: redis.Redis) -> None:
    """Have the present run of hand-overs begun long ago, if there is one."""
    r.zadd(QUEUE, {"": 1}, xx=True)
