"""The parent's side of a worker process: tell it what to do, hear what it did, freeze it, wake it."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Iterator
from typing import IO, Any, cast

from shop.demo.errors import PATIENCE, DemoFailed


class Worker:
    """A worker process; leaving the context ends it, frozen or not."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        self.name = name
        # Ctrl-C reaches every process of a terminal, but it is for the parent, which then ends this one.
        with _held_back(signal.SIGINT):
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
            )
        self._steps = cast("IO[bytes]", self._process.stdin)
        self._reports = cast("IO[bytes]", self._process.stdout)
        self._heard: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._process.kill()
        self._process.wait()
        self._listener.join()
        self._steps.close()
        self._reports.close()

    def say(self, line: str) -> None:
        """Tell the worker to begin an act or to go on with its work."""
        # A worker that died is told by what is heard of it.
        with contextlib.suppress(BrokenPipeError):
            self._steps.write(f"{line}\n".encode())

    def hear(self, event: str) -> dict[str, Any]:
        """Return the worker's next report, which must be this event."""
        try:
            report = self._heard.get(timeout=PATIENCE)
        except queue.Empty:
            raise DemoFailed(f"worker {self.name} did not report {event!r} in {PATIENCE:.0f} s.") from None
        if report["event"] != event:
            raise DemoFailed(f"worker {self.name} reported {report['event']!r} instead of {event!r}.")
        return report

    def freeze(self) -> None:
        """Stop the process in the middle of its work, and return when the kernel says that it is stopped."""
        self._process.send_signal(signal.SIGSTOP)
        _, status = os.waitpid(self._process.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            raise DemoFailed(f"worker {self.name} ended where it should have been frozen.")

    def wake(self) -> None:
        """Let the process run on as if nothing had happened."""
        self._process.send_signal(signal.SIGCONT)

    def _listen(self) -> None:
        for line in self._reports:
            self._heard.put(json.loads(line))
        self._heard.put({"event": "end"})


@contextlib.contextmanager
def _held_back(number: signal.Signals) -> Iterator[None]:
    """Keep a signal waiting in this thread; a process that is started meanwhile never gets it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
