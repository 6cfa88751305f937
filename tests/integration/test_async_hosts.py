"""Async locks where event loops come from: an ASGI server, and pytest-asyncio; nothing is left or warned about."""

import os
import subprocess
import sys

SERVER = """
import http.client, logging, threading, time
import django, uvicorn
from django.conf import settings

django.setup()

from django.core.asgi import get_asgi_application
from django.http import HttpResponse
from django.urls import path
from fenced_locks import afenced_lock, fenced_lock, with_fenced_lock
from fenced_locks.wire.budget import budget

@with_fenced_lock("order:<id>", timeout=10, renew=True)
async def async_view(request, id):
    async with afenced_lock("stock:1"):
        await request.fenced_lock.ensure_held()
    return HttpResponse(str(request.fence_token))

@with_fenced_lock("order:<id>")
def view(request, id):
    return HttpResponse(str(request.fence_token))

urlpatterns = [path("async/<int:id>", async_view), path("sync/<int:id>", view)]
settings.ROOT_URLCONF = __name__
settings.ALLOWED_HOSTS = ["*"]
# Not that a machine was slow.
logging.getLogger("asyncio").setLevel(logging.ERROR)

server = uvicorn.Server(uvicorn.Config(get_asgi_application(), port=0, lifespan="off", log_level="error"))

def ask():
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    answers = []
    def client(kind):
        for _ in range(10):
            connection = http.client.HTTPConnection("127.0.0.1", port)
            connection.request("GET", f"/{kind}/7")
            answers.append((connection.getresponse().status, 1))
            connection.close()
    threads = [threading.Thread(target=client, args=(kind,)) for kind in ("async", "sync") * 3]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    print(sorted(set(answers)), len(answers))
    server.should_exit = True

asking = threading.Thread(target=ask)
asking.start()
server.run()
asking.join()
"""

TESTS = """
import asyncio
import pytest
from fenced_locks import LockNotAcquired, afenced_lock

@pytest.mark.asyncio
@pytest.mark.parametrize("number", range(3))
async def test_in_a_loop_of_its_own(number):
    async with afenced_lock("order:1", timeout=10, renew=True) as lock:
        await lock.ensure_held()
        waiter = asyncio.create_task(busy())
        await waiter

async def busy():
    with pytest.raises(LockNotAcquired):
        async with afenced_lock("order:1", blocking_timeout=0.05):
            pass
"""


def run(redis_url, *command):
    return subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", *command],
        capture_output=True,
        text=True,
        timeout=60,
        env={
            **os.environ,
            "REDIS_URL": redis_url,
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        },
        check=False,
    )


def test_an_asgi_server(redis_url, r, tmp_path):
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    ended = run(redis_url, str(script))
    assert ended.stdout == "[(200, 1)] 60\n", ended.stderr
    assert ended.stderr == ""
    assert not r.exists("order:7", "stock:1", "queue:{order:7}", "queue:{stock:1}")


def test_pytest_asyncio(redis_url, r, tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS)
    options = ["-q", "-p", "no:randomly", "-p", "no:cacheprovider", "-o", "asyncio_default_fixture_loop_scope=function"]
    ended = run(redis_url, "-m", "pytest", *options, "-c", os.devnull, f"--rootdir={tmp_path}", str(tmp_path))
    assert "3 passed" in ended.stdout, ended.stdout + ended.stderr
    assert "warning" not in ended.stdout.lower()
    assert not r.exists("order:1")
