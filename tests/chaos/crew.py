"""The worker processes: started, frozen, killed and started again, and never left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from .journal import Journal

_GOODBYE = 15.0


@dataclass
class _Member:
    process: subprocess.Popen[bytes]
    incarnation: str
    generation: int
    frozen_since: int = 0
    thaws_at: int = 0


class Crew:
    """
    Workers by number. All calls come from one thread, which must live as long as they do.

    A worker dies with the thread that started it: that is how the kernel understands the death of a parent.
    """

    def __init__(self, size: int, directory: Path, journal: Journal, seed: int, *, plain: bool) -> None:
        self._directory, self._journal, self._seed, self._plain = directory, journal, seed, plain
        self._log = (directory / "workers.log").open("ab")
        self._members = [self._start(slot, 1) for slot in range(size)]

    def __len__(self) -> int:
        return len(self._members)

    def freeze(self, slot: int, seconds: float) -> None:
        """Stop a worker for some seconds, if it is not stopped already; ``tend`` lets it run on."""
        member = self._members[slot]
        if not member.frozen_since:
            member.frozen_since = time.monotonic_ns()
            member.thaws_at = member.frozen_since + int(seconds * 1e9)
            self._signal(member, signal.SIGSTOP)

    def tend(self) -> None:
        """Let those run on whose time is over, and replace those that killed themselves."""
        self.thaw()
        for slot, member in enumerate(self._members):
            if member.process.poll() == -signal.SIGKILL:
                self.kill(slot)

    def thaw(self, *, everybody: bool = False) -> None:
        """Let those run on whose time is over."""
        for slot, member in enumerate(self._members):
            if member.frozen_since and (everybody or member.thaws_at <= time.monotonic_ns()):
                self._signal(member, signal.SIGCONT)
                self._journal.write(
                    "fault", kind="freeze", began=member.frozen_since, ended=time.monotonic_ns(), worker=slot
                )
                member.frozen_since = 0

    def kill(self, slot: int) -> None:
        """Kill a worker and start another in its place."""
        began = time.monotonic_ns()
        member = self._members[slot]
        self._signal(member, signal.SIGKILL)
        self._bury(member)
        self._members[slot] = self._start(slot, member.generation + 1)
        self._journal.write("fault", kind="kill", began=began, ended=time.monotonic_ns(), worker=slot)

    def dead(self) -> list[str]:
        """Return the workers that ended by themselves, which none should."""
        ended = [member for member in self._members if member.process.poll() not in (None, -signal.SIGKILL)]
        return [member.incarnation for member in ended]

    def finish(self) -> None:
        """Ask all workers for the end, and wait for it."""
        self.thaw(everybody=True)
        for member in self._members:
            self._signal(member, signal.SIGTERM)
        deadline = time.monotonic() + _GOODBYE
        for member in self._members:
            with contextlib.suppress(subprocess.TimeoutExpired):
                member.process.wait(max(0.0, deadline - time.monotonic()))
        self.end()

    def end(self) -> None:
        """Kill whoever is left."""
        for member in self._members:
            if member.process.poll() is None:
                member.process.kill()
                self._bury(member)
        self._log.close()

    def _start(self, slot: int, generation: int) -> _Member:
        incarnation = f"worker-{slot:02}-{generation:04}"
        arguments = (slot, generation, self._seed, "plain" if self._plain else "fenced")
        command = [sys.executable, "-m", "tests.chaos.worker", *map(str, arguments)]
        process = subprocess.Popen(
            [*command, str(self._directory / f"{incarnation}.jsonl")],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        return _Member(process, incarnation, generation)

    def _signal(self, member: _Member, number: int) -> None:
        if member.process.poll() is None:
            os.kill(member.process.pid, number)

    def _bury(self, member: _Member) -> None:
        member.process.wait(_GOODBYE)
        self._journal.write("died", incarnation=member.incarnation)
