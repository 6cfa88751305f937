"""What the tests of several resources share: their names, keys and scripts, and how to see what is left of them."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import django
import redis

from fenced_locks import afenced_lock, fenced_lock
from fenced_locks.issuers import ExternalIssuer
from fenced_locks.locks.renewal import RENEW
from fenced_locks.locks.steps import RELEASE
from tests.waiters import GIVE_UP, at_the_gate, registered

NAMES = ("order:1", "stock:x", "zone:9")


class Failing(ExternalIssuer):
    """Fails for one resource: does what the test says, while all that come before it are held."""

    name = "failing"

    def __init__(self, at: str, fail: Callable[[], object]) -> None:
        self.at, self.fail = at, fail
        self.issued: list[str] = []

    def issue(self, resource: str) -> int:
        if resource == self.at:
            self.fail()
        self.issued.append(resource)
        return len(self.issued)


def held(r: redis.Redis, names: Sequence[str] = NAMES) -> int:
    """Return how many of the resources anybody has."""
    return int(r.exists(*names))


def nothing_is_left(r: redis.Redis, names: Sequence[str] = NAMES) -> bool:
    """Return whether nobody has a lease or waits."""
    wakes = [f"wake:{{{name}}}" for name in names]
    return not r.exists(*names, *wakes) and not any(registered(r, f"queue:{{{name}}}") for name in names)


def is_renewal(command: Sequence[bytes]) -> bool:
    """Return whether a command renews a lease."""
    return RENEW.sha in command or RENEW.text in command


def is_release(command: Sequence[bytes]) -> bool:
    """Return whether a command gives a lease back, or undoes an attempt."""
    return RELEASE.sha in command or RELEASE.text in command


def keys_of(commands: Sequence[Sequence[bytes]]) -> list[str]:
    """Return the lock keys of script calls."""
    return [command[3].decode() for command in commands]


def confirmed(commands: Sequence[Sequence[bytes]]) -> list[tuple[str, int]]:
    """Return what was renewed, and for how many milliseconds, together with the last resource, when all were held."""
    renewals = [(command[3].decode(), int(command[-1])) for command in commands if is_renewal(command)]
    last = [name for name, _ in renewals].index(NAMES[-1])
    return renewals[last + 1 - len(NAMES) : last + 1]


class Later(threading.Thread):
    """
    Does something when somebody in this process has waited for so many seconds; leaving the block waits for it.

    Seconds in which the process was not stopped: it looks so often whether somebody waits.
    """

    def __init__(self, seconds: float, action: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._looks, self._action = int(100 * seconds), action

    def run(self) -> None:
        deadline, looks = time.monotonic() + GIVE_UP, 0
        while looks < self._looks and time.monotonic() < deadline:
            time.sleep(0.01)
            looks = looks + 1 if at_the_gate() else 0
        self._action()

    def __enter__(self) -> Later:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.join()


def cross_in_process(
    pipe: Connection, barrier: threading.Barrier, url: str, names: Sequence[str], rounds: int, patience: float
) -> None:
    """Take the resources so often by threads' locks and by tasks' locks, and say ``done``; in a child process."""
    os.environ |= {"REDIS_URL": url, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    django.setup()
    try:
        with redis.Redis.from_url(url) as client:
            barrier.wait(patience)
            _cross(client, names, rounds, patience)
            asyncio.run(_cross_as_task(client, names, rounds, patience))
        pipe.send("done")
    except BaseException as error:  # noqa: BLE001 - it is shown in the test
        pipe.send(repr(error))


def _cross(client: redis.Redis, names: Sequence[str], rounds: int, patience: float) -> None:
    for _ in range(rounds):
        with fenced_lock(*names, blocking_timeout=patience) as lock:
            _visit(client, lock.fence_tokens)


async def _cross_as_task(client: redis.Redis, names: Sequence[str], rounds: int, patience: float) -> None:
    for _ in range(rounds):
        async with afenced_lock(*names, blocking_timeout=patience) as lock:
            _visit(client, lock.fence_tokens)


def _visit(client: redis.Redis, tokens: Mapping[str, int]) -> None:
    for name, token in tokens.items():
        assert client.set(f"inside:{name}", token, nx=True)
        client.rpush(f"tokens:{name}", token)
    for name in tokens:
        client.delete(f"inside:{name}")
