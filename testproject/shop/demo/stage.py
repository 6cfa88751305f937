"""Where the demo plays: a private server and a private database, gone when it ends."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path

from django.conf import settings
from redis import Redis
from servers import ExternalRedis, RedisServer, ServerUnavailable, redis_version

from shop.demo.claims import Row
from shop.demo.errors import PATIENCE, DemoFailed
from shop.demo.workers import Worker


class Stage:
    """A server and a database that nobody else uses, and the processes that act on them."""

    def __init__(self) -> None:
        with ExitStack() as props:
            directory = props.enter_context(tempfile.TemporaryDirectory(prefix="fenced-demo-"))
            server: RedisServer | ExternalRedis = props.enter_context(_server())
            self._database = Path(directory, "shop.sqlite3")
            self._redis = props.enter_context(Redis.from_url(server.url, decode_responses=True))
            self._environment = _environment(server.url, self._database)
            self._props = props.pop_all()

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._props.close()

    @property
    def description(self) -> str:
        """Say on what the demo runs."""
        return f"({redis_version(self._redis)}, SQLite {sqlite3.sqlite_version}, and a process for each worker.)"

    def manage(self, *arguments: str) -> str:
        """Run a management command here and return what it printed."""
        result = subprocess.run(
            _command(*arguments), env=self._environment, capture_output=True, text=True, check=False
        )
        if result.returncode:
            reason = (result.stderr.strip() or "no reason given").splitlines()[-1]
            raise DemoFailed(f"`manage.py {' '.join(arguments)}` failed: {reason}")
        return result.stdout

    def worker(self, name: str, *arguments: str) -> Worker:
        """Start a worker process; it ends with the stage."""
        return self._props.enter_context(Worker(name, _command("demo_worker", *arguments), self._environment))

    def row(self, number: int) -> Row:
        """Read an order from the database file itself, past Django."""
        with closing(sqlite3.connect(f"{self._database.as_uri()}?mode=ro", uri=True)) as connection:
            found = connection.execute("SELECT status, fence_token FROM shop_order WHERE id = ?", [number])
            return Row(*found.fetchone())

    def owner(self, number: int) -> str | None:
        """Return whom the server has as the owner of the lease on an order; None if it is free."""
        owner = self._redis.get(f"order:{number}")
        return None if owner is None else str(owner)

    def await_free(self, number: int) -> None:
        """Return when the server has no lease on the order any more."""
        deadline = time.monotonic() + PATIENCE
        while self.owner(number) is not None:
            if time.monotonic() > deadline:
                raise DemoFailed(f"the lease on order:{number} did not end in {PATIENCE:.0f} s.")
            time.sleep(0.005)


def _server() -> RedisServer | ExternalRedis:
    # A server of its own first, whatever REDIS_URL says: the demo must not touch anybody's keys.
    try:
        return RedisServer()
    except ServerUnavailable:
        if url := os.environ.get("REDIS_URL"):
            return ExternalRedis(url)
        raise


def _environment(redis_url: str, database: Path) -> dict[str, str]:
    ours = {"REDIS_URL": redis_url, "SHOP_DATABASE": str(database), "DJANGO_SETTINGS_MODULE": "config.settings"}
    return {**os.environ, **ours}


def _command(*arguments: str) -> list[str]:
    return [sys.executable, str(settings.BASE_DIR / "manage.py"), *arguments]
