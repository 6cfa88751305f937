"""The example shop, served by processes of its own, with locks in every state."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis
import servers

from fenced_locks import FencedLock
from tests.helpers import wait_until

PROJECT = Path(__file__).resolve().parents[2] / "testproject"
PASSWORD = "a password for tests"
_USERS = f"""
from django.contrib.auth.models import Permission, User
from shop.seed import seed
seed()
User.objects.create_superuser("admin", password="{PASSWORD}")
viewer = User.objects.create_user("viewer", password="{PASSWORD}", is_staff=True)
viewer.user_permissions.set(Permission.objects.filter(codename="view_lock"))
"""


class Shop:
    """The shop and its Redis server; `url` is its admin, `client` reaches the locks."""

    def __init__(self, folder: Path) -> None:
        self.server = servers.RedisServer()
        self.client = redis.Redis.from_url(self.server.url)
        self._environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "config.settings",
            "PYTHONPATH": os.pathsep.join([str(PROJECT), str(PROJECT.parent)]),
            "REDIS_URL": self.server.url,
            "SHOP_DATABASE": str(folder / "shop.sqlite3"),
        }
        self.manage("migrate", "--verbosity", "0")
        self.manage("shell", "--no-imports", "--command", _USERS)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/admin/"
        command = [sys.executable, "manage.py", "runserver", "--noreload", f"127.0.0.1:{port}"]
        self._process = subprocess.Popen(
            command, cwd=PROJECT, env=self._environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_until(self._answers, 60, interval=0.1)

    def take(self, resource: str, seconds: float = 60) -> FencedLock:
        """Hold a resource."""
        lock = FencedLock(self.client, resource, timeout=seconds, thread_local=False)
        assert lock.acquire(blocking=False)
        return lock

    @contextlib.contextmanager
    def waiter(self, resource: str) -> Iterator[list[FencedLock]]:
        """Let somebody wait for a resource; the lock is in the list once he has it."""
        lock = FencedLock(redis.Redis.from_url(self.server.url), resource, timeout=60, thread_local=False)
        taken: list[FencedLock] = []
        thread = threading.Thread(target=lambda: lock.acquire(blocking_timeout=300) and taken.append(lock))
        thread.start()
        wait_until(lambda: self.client.exists(f"queue:{{{resource}}}"))
        yield taken
        if not taken:
            self.client.delete(resource)
        thread.join(60)
        if taken:
            lock.release()
        lock.redis.close()

    def close(self) -> None:
        """End everything."""
        self._process.terminate()
        self._process.wait(30)
        self.client.close()
        self.server.stop()

    def manage(self, *arguments: str) -> None:
        """Run a command of the shop."""
        subprocess.run([sys.executable, "manage.py", *arguments], cwd=PROJECT, env=self._environment, check=True)

    def _answers(self) -> bool:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            return bool(urllib.request.urlopen(self.url, timeout=10).status == 200)
        return False


def chromium() -> str | None:
    """Return where the system's Chromium is."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def launch(playwright: Any) -> Any:
    """Return a browser."""
    return playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-dev-shm-usage"])


def log_in(page: Any, shop: Shop, user: str) -> None:
    """Log in as a user."""
    page.goto(shop.url)
    page.fill("#id_username", user)
    page.fill("#id_password", PASSWORD)
    page.click("input[type=submit]")
    page.wait_for_selector("#user-tools strong")
