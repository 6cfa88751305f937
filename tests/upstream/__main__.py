"""
Run redis-py's own lock tests with ``FencedLock`` as the lock class: ``python -m tests.upstream``.

The tests come from the source distribution of the redis-py that is installed, and are not kept here.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path

import servers

_SLEEPS = "asserts the exact list of sleeps, read from redis-py's own clock"
_GIVES_UP = "asserts that no try is made at the deadline itself, which loses a lock that was freed before it"


def excepted(release: str) -> dict[str, str]:
    """Return the tests of a release that are left out, each with its reason."""
    if int(release.split(".")[0]) < 8:
        return {"test_high_sleep_small_blocking_timeout": _GIVES_UP}
    return {"test_blocking_timeout": _SLEEPS, "test_context_manager_blocking_timeout": _SLEEPS}


CONFTEST = """
import os
import pytest
import redis

import fenced_locks
from redis.client import Redis


def _get_client(cls, request=None, decode_responses=False, **kwargs):
    client = cls.from_url(os.environ["REDIS_URL"], decode_responses=decode_responses, **kwargs)
    request.addfinalizer(client.close)
    client.flushdb()
    return client


@pytest.fixture
def r(request):
    return _get_client(Redis, request=request)


@pytest.fixture(autouse=True)
def lock_class(request, monkeypatch):
    monkeypatch.setattr(request.module, "Lock", fenced_locks.FencedLock)
"""


def main() -> int:
    """Fetch, unpack and run; return pytest's exit code."""
    release = version("redis")
    with tempfile.TemporaryDirectory() as folder, servers.redis_server() as server:
        tests = _fetch(release, Path(folder))
        (tests / "conftest.py").write_text(CONFTEST)
        for ini in tests.parent.glob("py*.toml"):
            ini.unlink()
        skip = " or ".join(excepted(release))
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:django",
            "-p",
            "no:randomly",
            "-p",
            "no:cacheprovider",
        ]
        command += [f"-pno:{plugin}" for plugin in ("django", "randomly", "cacheprovider", "xdist")]
        command += [str(tests / "test_lock.py"), "-k", f"not ({skip})", f"--rootdir={tests.parent}"]
        print(f"redis-py {release}: tests/test_lock.py with fenced_locks.FencedLock")
        for name, reason in excepted(release).items():
            print(f"  excepted {name}: {reason}")
        here = str(Path(__file__).resolve().parents[2])
        paths = [here] if os.environ.get("UPSTREAM_FROM_CHECKOUT", "1") == "1" else []
        environment = {**os.environ, "REDIS_URL": server.url, "PYTHONPATH": os.pathsep.join(paths)}
        return subprocess.run(command, cwd=tests.parent, env=environment, check=False).returncode


def _fetch(release: str, folder: Path) -> Path:
    download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:"]
    subprocess.run([*download, "-d", str(folder), f"redis=={release}"], check=True)
    (archive,) = folder.glob("redis-*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data") if hasattr(tarfile, "data_filter") else tar.extractall(folder)
    (tests,) = folder.glob("redis-*/tests")
    return tests


if __name__ == "__main__":
    sys.exit(main())
