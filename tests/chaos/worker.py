"""A worker process: ``python -m tests.chaos.worker SLOT GENERATION SEED PLAIN JOURNAL``. Takes locks until SIGTERM."""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import django

_PR_SET_PDEATHSIG = 1
_TASKS = 2


def main(slot: str, generation: str, seed: str, plain: str, path: str) -> None:
    """Live until the parent asks for the end, or ends."""
    parent = os.getppid()
    # Whatever ends the parent, also while this process is stopped.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit()
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.chaos.settings"
    django.setup()
    Worker(int(slot), int(generation), int(seed), plain == "plain", Path(path)).run()


class Worker:
    """Makes one attempt after the other."""

    def __init__(self, slot: int, generation: int, seed: int, plain: bool, path: Path) -> None:
        # Only now, as models need the settings.
        from . import plans
        from .journal import Journal

        self._slot, self._generation = slot, generation
        self._plans = [plans.plans(seed, slot, generation, task, plain=plain) for task in range(_TASKS)]
        self._is_async = plans.is_async(slot) and not plain
        self._journal = Journal(path)
        self._numbers = itertools.count(1)
        self._running = True
        signal.signal(signal.SIGTERM, self._stop)

    def run(self) -> None:
        """Go on until SIGTERM."""
        if self._is_async:
            asyncio.run(self._run_tasks())
            return
        while self._running:
            self._attempt(next(self._plans[0]))

    def _stop(self, *_: Any) -> None:
        self._running = False

    def _new(self, plan: Any) -> Any:
        from .attempts import Attempt

        name = f"w{self._slot}.{self._generation}.{next(self._numbers)}"
        return Attempt(self._journal, self._slot, name, plan)

    def _attempt(self, plan: Any) -> None:
        from . import styles

        attempt = self._new(plan)
        with attempt.closing():
            styles.STYLES[plan.style](attempt)
        time.sleep(plan.pause)

    async def _run_tasks(self) -> None:
        await asyncio.gather(*(self._run_task(plans) for plans in self._plans))

    async def _run_task(self, plans: Any) -> None:
        from . import styles

        while self._running:
            attempt = self._new(plan := next(plans))
            with attempt.closing():
                await styles.awaiting(attempt)
            await asyncio.sleep(plan.pause)


if __name__ == "__main__":
    main(*sys.argv[1:])
