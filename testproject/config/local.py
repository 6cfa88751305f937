"""
What the example keeps on this machine: its SQLite file, and the private Redis server of `manage.py runserver`.

While that server runs, its address stands in a file beside the database, so that `manage.py fence_status` in a
second terminal sees the same locks.
"""

import atexit
import os
from pathlib import Path

DATABASE = Path(os.environ.get("SHOP_DATABASE") or Path(__file__).resolve().parent.parent / "shop.sqlite3")
ADDRESS_FILE = DATABASE.with_name(f"{DATABASE.name}-redis-url")
USUAL_ADDRESS = "redis://127.0.0.1:6379/0"


def redis_url() -> str:
    """Return the address of the server: `REDIS_URL`, else the running private one, else the usual local one."""
    return os.environ.get("REDIS_URL") or _announced() or USUAL_ADDRESS


def start_redis() -> None:
    """
    Start a private server for this process and its children, unless `REDIS_URL` names one.

    Raises:
        SystemExit: No server can be had; the message says what to install.
    """
    if os.environ.get("REDIS_URL"):
        return
    if os.name != "posix":
        raise SystemExit("A private Redis server needs a POSIX system: set REDIS_URL to the address of a server.")
    # Its imports need POSIX, and only this needs them.
    from servers import RedisServer, ServerUnavailable

    try:
        server = RedisServer()
    except ServerUnavailable as error:
        raise SystemExit(str(error)) from error
    os.environ["REDIS_URL"] = server.url
    ADDRESS_FILE.write_text(server.url)
    atexit.register(_withdraw, server.url)


def _announced() -> str:
    try:
        return ADDRESS_FILE.read_text().strip()
    except OSError:
        return ""


def _withdraw(address: str) -> None:
    # A second runserver may have written its own address since.
    if _announced() == address:
        ADDRESS_FILE.unlink(missing_ok=True)
