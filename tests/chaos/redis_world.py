"""Redis behind its proxy: crashed, restarted, flushed, filled, and replaced by a replica that lagged."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import redis
import servers

from tests.helpers import wait_until
from tests.proxy import Proxy

from .journal import Journal

# One AOF that only grows, so that its tail can be cut off; a replica is synchronised at once.
_PERSISTENT = ("--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0")
_OPTIONS = (*_PERSISTENT, "--repl-diskless-sync-delay", "0", "--maxmemory-policy", "noeviction")
_DOWN_SECONDS = 0.1


class RedisWorld:
    """The server that the proxy leads to. Its faults are executed one at a time."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.server = servers.RedisServer(*_OPTIONS)
        try:
            self.proxy = Proxy(self.server.unix_url)
        except BaseException:
            self.server.stop()
            raise

    def stop(self) -> None:
        """End the proxy and the server."""
        self.proxy.close()
        self.server.stop()

    @contextlib.contextmanager
    def client(self) -> Iterator[redis.Redis]:
        """Yield a client of the present server, past the proxy."""
        with redis.Redis.from_url(self.server.unix_url, socket_timeout=5) as client:
            yield client

    def flush(self, command: str, _seconds: float) -> None:
        """FLUSHDB or FLUSHALL, as ``cache.clear()`` does."""
        with self._fault("flush", loses=True), self.client() as client:
            {"FLUSHDB": client.flushdb, "FLUSHALL": client.flushall}[command]()

    def fill(self, _how: str, seconds: float) -> None:
        """Leave no memory for anything new for a while."""
        with self._fault("fill"), self.client() as client:
            client.config_set("maxmemory", 1)
            time.sleep(seconds)
            client.config_set("maxmemory", 0)

    def crash(self, keeps: str, seconds: float) -> None:
        """Kill the server and start it again: with all it had, with what it had some time ago, or with nothing."""
        {"always": self._crash_safely, "everysec": self._crash_without_tail, "none": self._crash_empty}[keeps](seconds)

    def _crash_safely(self, _seconds: float) -> None:
        with self._fault("restart, appendfsync always"):
            self._restart()

    def _crash_without_tail(self, seconds: float) -> None:
        """As a power cut does: what was not synchronised is gone."""
        with self._fault("restart, appendfsync everysec", loses=True):
            # What was answered until now is on the disk: up to here it was appendfsync always.
            with self.client() as client:
                client.config_set("appendfsync", "everysec")
            file = self._append_only_file()
            size = file.stat().st_size
            time.sleep(seconds)

            def cut() -> None:
                # Unless it was rewritten meanwhile.
                if file == self._append_only_file():
                    os.truncate(file, size)

            self._restart(cut)

    def _crash_empty(self, _seconds: float) -> None:
        with self._fault("restart, no persistence", loses=True):
            self._restart(lambda: shutil.rmtree(self._append_only_file().parent))

    def fail_over(self, _how: str, lag: float) -> None:
        """Promote a replica that has heard nothing from its master for a while."""
        old = self.server
        replica = servers.RedisServer(*_OPTIONS)
        try:
            with redis.Redis.from_url(replica.unix_url, socket_timeout=5) as client:
                client.replicaof("127.0.0.1", old.port)
                wait_until(lambda: client.info("replication")["master_link_status"] == "up", 30, interval=0.02)
                with self._fault("failover", loses=True):
                    # Nothing arrives from here on.
                    client.replicaof("NO", "ONE")
                    time.sleep(lag)
                    self.server = replica
                    self.proxy.retarget(replica.unix_url)
                    old.kill()
        except BaseException:
            replica.stop()
            raise
        old.stop()

    def _restart(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.server.kill()
        try:
            meanwhile()
            time.sleep(_DOWN_SECONDS)
        finally:
            self.server.start()

    def _append_only_file(self) -> Path:
        files = (self.server.directory / "appendonlydir").glob("*.incr.aof")
        return max(files, key=lambda file: file.stat().st_mtime)

    @contextlib.contextmanager
    def _fault(self, kind: str, *, loses: bool = False) -> Iterator[None]:
        began = time.monotonic_ns()
        try:
            yield
        finally:
            self._journal.write("fault", kind=kind, began=began, ended=time.monotonic_ns(), loses=loses)
