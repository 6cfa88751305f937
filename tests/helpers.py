"""What tests share beside fixtures."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from django.db import connections

Result = TypeVar("Result")


def run_threads(*functions: Callable[[], Any], timeout: float = 30) -> list[Any]:
    """
    Run each function in a thread of its own, all let go at the same moment; return their results in order.

    The first exception of any of them is raised here. Each thread closes its Django database connections.
    """
    barrier = threading.Barrier(len(functions))
    runs = [_Run(function, barrier, timeout) for function in functions]
    deadline = time.monotonic() + timeout
    for run in runs:
        run.start()
    for run in runs:
        run.join(max(0, deadline - time.monotonic()))
    stuck = [run.name for run in runs if run.is_alive()]
    failures = [(run.failed_at, run.error) for run in runs if run.error is not None]
    if failures:
        raise min(failures, key=lambda failure: failure[0])[1]
    if stuck:
        raise TimeoutError(f"Still running after {timeout} s: {', '.join(stuck)}.")
    return [run.result for run in runs]


def wait_until(condition: Callable[[], Result], timeout: float = 10, *, interval: float = 0.005) -> Result:
    """Return the condition's value as soon as it is true; TimeoutError if that takes too long."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"Not so within {timeout} s; the last value was {value!r}.")
        time.sleep(interval)
    return value


async def until(condition: Callable[[], Result], timeout: float = 5) -> Result:
    """As ``wait_until``, for a task."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"Not so within {timeout} s; the last value was {value!r}.")
        await asyncio.sleep(0.005)
    return value


class _Run(threading.Thread):
    def __init__(self, function: Callable[[], Any], barrier: threading.Barrier, timeout: float) -> None:
        name = getattr(function, "__name__", repr(function))
        super().__init__(name=name, daemon=True)
        self._function, self._barrier, self._timeout = function, barrier, timeout
        self.result: Any = None
        self.error: BaseException | None = None
        self.failed_at = 0.0

    def run(self) -> None:
        try:
            self._barrier.wait(self._timeout)
            self.result = self._function()
        except BaseException as error:  # noqa: BLE001 - it is raised again in the test's thread
            self.error, self.failed_at = error, time.monotonic()
        finally:
            connections.close_all()
