"""A server process of our own, whatever it serves: its directory, its start and its end."""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

Self = TypeVar("Self", bound="ServerProcess")

# The end of the pipe on standard input is the end of whoever started the server, whatever ended it. A server on
# its way out may still write into the directory that goes.
_WATCH = """
read -r _
kill -s "$1" "$2"
n=0
while [ -e "$3" ] && [ $n -lt 100 ]; do rm -rf "$3"; sleep 0.1; n=$((n + 1)); done
"""

# The address of a unix socket has room for 107 characters.
_LONGEST_DIRECTORY = 80


class ServerUnavailable(RuntimeError):
    """No server of the kind can be had; the message says which one to install."""


class ServerProcess:
    """A server process in a private directory; both end with the process that started them."""

    end_signal = signal.SIGKILL
    _start_timeout = 30.0

    def __init__(self) -> None:
        self.directory = _private_directory()
        self._log = self.directory / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None
        self._starter = os.getpid()
        atexit.register(self.stop)

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        if self._process is None:
            raise RuntimeError("The server is not running.")
        return self._process.pid

    def stop(self) -> None:
        """End the server and remove its directory."""
        # A forked child inherits the object and its exit handler, but not the server.
        if os.getpid() != self._starter:
            return
        self.end(self.end_signal)
        shutil.rmtree(self.directory, ignore_errors=True)
        atexit.unregister(self.stop)

    def launch(self, command: list[str], **options: Any) -> None:
        """Start the program, and a watcher that ends it should this process end in disorder."""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                # Ctrl-C is for the tests; the server must outlive their clean-up.
                start_new_session=True,
                **options,
            )
        name = self.end_signal.name.removeprefix("SIG")
        self._watcher = subprocess.Popen(
            ["/bin/sh", "-c", _WATCH, "watch", name, str(self._process.pid), str(self.directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def end(self, signal_number: int) -> None:
        """End the program by a signal and wait for that; the directory stays."""
        if self._watcher is not None:
            self._watcher.kill()
            self._watcher.communicate()
            self._watcher = None
        if self._process is not None:
            self._process.send_signal(signal_number)
            self._process.wait(30)
            self._process = None

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Return when the program is ready; ServerUnavailable if it ends instead, or takes too long."""
        deadline = time.monotonic() + self._start_timeout
        while not ready():
            ended = self._process is None or self._process.poll() is not None
            if ended or time.monotonic() > deadline:
                self.end(signal.SIGKILL)
                raise ServerUnavailable(f"The server did not start: {self._last_words()}")
            time.sleep(0.005)

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return " / ".join(lines[-5:]) or "it said nothing"


def in_package(package: str, path: str) -> Path:
    """Return a path inside a package without importing it; it does not exist if the package does not."""
    spec = importlib.util.find_spec(package)
    home = spec.submodule_search_locations if spec else None
    return Path(home[0] if home else os.devnull, path)


def unprivileged_account(*names: str) -> dict[str, Any]:
    """Return the account to start a program under that refuses to run as root: the first of these that exists."""
    if os.geteuid() != 0:
        return {}
    # Not on Windows, which has no such accounts.
    import pwd

    for name in names:
        with contextlib.suppress(KeyError):
            account = pwd.getpwnam(name)
            return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    raise ServerUnavailable(f"It does not run as root, and there is no user {' or '.join(names)}.")


def _private_directory() -> Path:
    default = Path(tempfile.gettempdir())
    fits = len(str(default)) < _LONGEST_DIRECTORY and others_reach(default)
    directory = Path(tempfile.mkdtemp(prefix="fl-", dir=default if fits else "/tmp"))
    return directory.resolve()


def others_reach(path: Path) -> bool:
    """Say whether any account may pass through a directory and those above it."""
    return all(directory.stat().st_mode & 0o001 for directory in (path, *path.parents))
