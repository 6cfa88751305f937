"""``fenced_locks.testing`` where tests run in several processes that share a server: Django's runner, pytest-xdist."""

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys

import django
import pytest

from tests import docs_runner

PAGE = docs_runner.PAGES / "how-to" / "testing.md"
# How Django starts the processes is up to the interpreter; here it is said in manage.py.
START = """
import multiprocessing
import os

if __name__ == "__main__":
    multiprocessing.set_start_method(os.environ["START_METHOD"])
"""
METHODS = ["fork", "spawn", *(["forkserver"] if django.VERSION >= (6, 1) else [])]
if "SLOW_TESTS" not in os.environ:
    METHODS = METHODS[:1]
IN_A_FILE = "\nDATABASES['default']['TEST'] = {'NAME': BASE_DIR / 'test.sqlite3'}\n"
COUNTING = "\nFENCED_LOCKS = {'ISSUER': 'counter'}\n"

WITH_PYTEST = """
import pytest

from fenced_locks import afenced_lock, fenced_lock
from fenced_locks.connections import get_client
from fenced_locks.testing import hold, lock_name
from shop.models import Order
from tests.in_parallel import meet


@pytest.mark.django_db
def test_in_a_transaction(worker_id):
    order = Order.objects.create()
    with hold("order:2"), fenced_lock("order:1", blocking=False) as lock:
        meet("all hold it", 2)
        assert len(get_client().keys("test-*:order:1")) == 2
        assert worker_id in lock.name == lock_name("order:1")
        assert Order.objects.filter(pk=order.pk).fenced_update(lock.fence_token, status="paid") == 1
        meet("all have looked", 2)


@pytest.mark.django_db(transaction=True)
def test_with_real_transactions():
    Order.objects.create()
    with fenced_lock("order:1", blocking=False) as lock:
        meet("all hold it again", 2)
        lock.ensure_held()
        meet("all have looked again", 2)


def test_failing():
    fenced_lock("order:1", timeout=600).acquire()
    meet("all fail", 2)
    raise AssertionError("as it should")
"""


@pytest.fixture
def project(shop, tmp_path):
    """The project of the page."""
    shutil.copytree(shop, tmp_path, dirs_exist_ok=True)
    docs_runner.write_files(tmp_path, PAGE)
    manage = tmp_path / "manage.py"
    manage.write_text(manage.read_text().replace("import os\n", START, 1))
    return tmp_path


@pytest.fixture
def run(project, redis_url):
    """`run(*arguments)` runs Python in the project, in a process group of its own; returns exit code and output."""

    def run(*arguments, start_method="fork", settings=""):
        with (project / "mysite" / "settings.py").open("a") as file:
            file.write(settings)
        environment = docs_runner.environment(project, redis_url) | {"START_METHOD": start_method}
        for name in [name for name in environment if name.startswith("PYTEST_")]:
            del environment[name]
        with subprocess.Popen(
            [sys.executable, *arguments],
            cwd=project,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=100)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        return process.returncode, output

    return run


def django_tests(run, *names, **options):
    return run("manage.py", "test", "--parallel=4", *(f"tests.in_parallel.{name}" for name in names), **options)


def left(r):
    """Return what there is beside the meeting points."""
    return [key for key in r.keys("*") if not key.startswith(b"met:")]


@pytest.mark.parametrize(
    ("start_method", "settings"),
    [*(pytest.param(method, "", id=method) for method in METHODS), pytest.param("fork", IN_A_FILE, id="fork, a file")],
)
def test_each_process_of_djangos_runner_has_locks_of_its_own(run, r, start_method, settings):
    code, output = django_tests(
        run, "Moving", "Ending", "Taking", "Leaving", start_method=start_method, settings=settings
    )
    assert code == 0, output
    assert "Ran 8 tests" in output
    assert r.get("met:all have looked") == b"4"
    assert left(r) == []


@pytest.mark.skipif(importlib.util.find_spec("tblib") is None, reason="without tblib Django stops at a failed test")
@pytest.mark.parametrize("start_method", METHODS)
def test_tests_that_fail_in_parallel_leave_nothing(run, r, start_method):
    code, output = django_tests(run, "FailingHere", "FailingThere", start_method=start_method)
    assert code == 1, output
    assert "LockNotAcquired: 'test-" in output
    assert "FAILED (failures=8, errors=2, expected failures=2)" in output
    assert left(r) == []


@pytest.mark.parametrize("start_method", METHODS)
def test_what_killed_processes_leave_ends_by_itself(run, r, start_method):
    code, output = django_tests(run, "KilledHere", "KilledThere", start_method=start_method)
    assert code == -signal.SIGKILL, output
    keys = left(r)
    assert {key.split(b":")[0] for key in keys if b":{" in key} == {b"fence", b"queue"}
    assert len([key for key in keys if key.endswith(b":order:1")]) == 2
    assert [key for key in keys if r.pttl(key) < 0] == []


def test_counters_without_expiry_of_killed_processes_are_named_as_tests(run, r):
    code, output = django_tests(run, "KilledHere", "KilledThere", settings=COUNTING)
    assert code == -signal.SIGKILL, output
    lasting = [key for key in left(r) if r.pttl(key) < 0]
    assert len(lasting) == 4
    assert all(key.startswith(b"fence:{test-") for key in lasting)


def test_each_worker_of_xdist_has_locks_of_its_own(run, r, project):
    (project / "shop" / "test_same.py").write_text(WITH_PYTEST)
    code, output = run("-m", "pytest", "-q", "-n2", "--dist=each", "-pno:randomly", "-pno:asyncio", "shop/test_same.py")
    assert code == 1, output
    assert "2 failed, 4 passed" in output
    assert "as it should" in output
    assert left(r) == []
