"""
Run redis-py's own lock tests with our locks as the lock class: ``python -m tests.upstream``.

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
from typing import NamedTuple

import servers

_SLEEPS = "asserts the exact list of sleeps, read from redis-py's own clock"
_GIVES_UP = "asserts that no try is made at the deadline itself, which loses a lock that was freed before it"
# Of redis-py's own configuration.
_OPTIONS = ("asyncio_mode=auto", "asyncio_default_fixture_loop_scope=function", "markers=onlynoncluster")

_COMMON = """
import os

import pytest

import fenced_locks

URL = os.environ["REDIS_URL"]


@pytest.fixture(autouse=True)
def lock_class(request, monkeypatch):
    monkeypatch.setattr(request.module, "Lock", fenced_locks.{lock_class})
"""
_BLOCKING = """
from redis.client import Redis


def _get_client(cls, request=None, decode_responses=False, **kwargs):
    client = cls.from_url(URL, decode_responses=decode_responses, **kwargs)
    request.addfinalizer(client.close)
    client.flushdb()
    return client


@pytest.fixture
def r(request):
    return _get_client(Redis, request=request)
"""
_ASYNCIO = """
import pytest_asyncio
from redis.asyncio import Redis


@pytest_asyncio.fixture(params=[True, False], ids=["single", "pool"])
async def create_redis(request):
    clients = []

    async def create(**kwargs):
        clients.append(await Redis.from_url(URL, single_connection_client=request.param, **kwargs))
        await clients[-1].flushdb()
        return clients[-1]

    yield create
    for client in clients:
        await client.aclose()


@pytest_asyncio.fixture
async def r(create_redis):
    return await create_redis()
"""


class Suite(NamedTuple):
    """Tests of redis-py, and the lock class that they are run with."""

    module: str
    lock_class: str
    fixtures: str
    # By the first version of redis-py: the tests that are left out, each with its reason.
    excepted: dict[int, dict[str, str]]

    def left_out(self, release: str) -> dict[str, str]:
        """Return the tests of a release that are left out, each with its reason."""
        return self.excepted[max(first for first in self.excepted if first <= int(release.split(".")[0]))]


SUITES = [
    Suite(
        "test_lock.py",
        "FencedLock",
        _BLOCKING,
        {
            5: {"test_high_sleep_small_blocking_timeout": _GIVES_UP},
            8: {"test_blocking_timeout": _SLEEPS, "test_context_manager_blocking_timeout": _SLEEPS},
        },
    ),
    Suite(
        "test_asyncio/test_lock.py",
        "AsyncFencedLock",
        _ASYNCIO,
        {
            5: {"test_blocking_timeout": _GIVES_UP, "test_high_sleep_small_blocking_timeout": _GIVES_UP},
            8: {"test_blocking_timeout": _SLEEPS},
        },
    ),
]


def main() -> int:
    """Fetch, unpack and run; return 0 if all of them pass."""
    release = version("redis")
    with tempfile.TemporaryDirectory() as folder, servers.redis_server() as server:
        tests = _fetch(release, Path(folder))
        for ini in tests.parent.glob("py*.toml"):
            ini.unlink()
        (tests / "conftest.py").write_text("")
        return max(_run(suite, release, tests, server.url) for suite in SUITES)


def _run(suite: Suite, release: str, tests: Path, url: str) -> int:
    module, skipped = tests / suite.module, suite.left_out(release)
    (module.parent / "conftest.py").write_text(_COMMON.format(lock_class=suite.lock_class) + suite.fixtures)
    print(f"redis-py {release}: tests/{suite.module} with fenced_locks.{suite.lock_class}")
    for name, reason in skipped.items():
        print(f"  excepted {name}: {reason}")
    sys.stdout.flush()
    command = [sys.executable, "-m", "pytest", "-q", f"--rootdir={tests.parent}"]
    command += [f"-pno:{plugin}" for plugin in ("django", "randomly", "cacheprovider", "xdist")]
    command += [f"-o{option}" for option in _OPTIONS]
    command += [str(module), "-k", f"not ({' or '.join(skipped)})"]
    here = str(Path(__file__).resolve().parents[2])
    paths = [here] if os.environ.get("UPSTREAM_FROM_CHECKOUT", "1") == "1" else []
    environment = {**os.environ, "REDIS_URL": url, "PYTHONPATH": os.pathsep.join(paths)}
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
