"""
Records that survive the SIGKILL of who writes them: one line of JSON, one ``write``, before and after each operation.

Times are ``time.monotonic_ns()``. On Linux that is CLOCK_MONOTONIC, one clock for all processes of the machine.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Journal:
    """A file that is only appended to, by one process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, event: str, *, at: int | None = None, **facts: Any) -> int:
        """Append a record; return its time, which is now unless it is given."""
        now = time.monotonic_ns() if at is None else at
        line = json.dumps({"at": now, "event": event, **facts}, separators=(",", ":"))
        os.write(self._file, line.encode() + b"\n")
        return now

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a file; one that is cut off at the end was not written."""
    with path.open("rb") as lines:
        for line in lines:
            if line.endswith(b"\n"):
                yield json.loads(line)
