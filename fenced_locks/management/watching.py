"""``fence_status --watch``: the same listing again and again, in place where there is a terminal."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Protocol

from django.core.management.base import CommandError

_HOME, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
# Lines that are too long are cut, not wrapped: else the next picture would not cover this one.
_CUT, _WRAP = "\x1b[?7l", "\x1b[?7h"
_CLEAR = "\x1b[2J"
# In seconds: 30 years. The operating system refuses some that are longer.
_LONGEST = 1e9


class Screen(Protocol):
    """What one round is written on."""

    def write(self, text: str) -> None:
        """Add text."""

    def show(self) -> None:
        """The round is complete."""

    def leave(self) -> None:
        """There will be no further one."""


class Paper:
    """A file or a pipe: one round below the other."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self.write = write

    def show(self) -> None:
        self.write("\n")

    def leave(self) -> None:
        pass


class Terminal:
    """Each round in the place of the one before; what is below the edge is counted."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._lines: list[str] = []
        self._hidden = 0
        self._room = 0
        self._write(_CUT + _CLEAR)

    def write(self, text: str) -> None:
        if not self._room:
            self._room = max(2, shutil.get_terminal_size().lines - 3)
        lines = text.splitlines()
        fitting = max(0, self._room - len(self._lines))
        self._lines += lines[:fitting]
        self._hidden += len(lines[fitting:])

    def show(self) -> None:
        if self._hidden:
            self._lines.append(f"... {self._hidden:,} more lines")
        self._write(_HOME + "".join(f"{line}{_REST_OF_LINE}\n" for line in self._lines) + _REST_OF_SCREEN)
        self._lines, self._hidden, self._room = [], 0, 0

    def leave(self) -> None:
        self._write(_WRAP)


def watch(screen: Screen, seconds: float, show: Callable[[], None], patient: int) -> None:
    """
    Show again and again, with ``seconds`` in between, until Ctrl-C.

    Args:
        screen: Where ``show`` writes.
        seconds: Pause between two rounds.
        show: Writes one round.
        patient: Exit code of the errors that are shown instead, since they may pass.
    """
    try:
        while True:
            screen.write(f"Every {seconds:g} s, {datetime.now(timezone.utc):%Y-%m-%d %H:%M:%S} UTC\n")
            try:
                show()
            except CommandError as error:
                if error.returncode != patient:
                    raise
                screen.write(f"{error}\n")
            screen.show()
            time.sleep(min(seconds, _LONGEST))
    except KeyboardInterrupt:
        pass
    finally:
        screen.leave()
