"""Where sentinels name the server of the locks, its operators see and free them all the same."""

from __future__ import annotations

import io

import pytest
import redis
from django.contrib.auth.models import User
from django.core.checks import run_checks
from django.core.management import CommandError, call_command
from django.test import Client
from django_redis.pool import ConnectionFactory
from redis.backoff import NoBackoff
from redis.retry import Retry

from fenced_locks import FencedLock
from fenced_locks.admin_paths import quote
from fenced_locks.checks import TAG
from tests.sentinels import Sentinel

pytestmark = pytest.mark.django_db

LIST = "/admin/fenced_locks/lock/"


@pytest.fixture
def master(own_server):
    return own_server("--requirepass", "s3cret")


@pytest.fixture
def sentinel(master, settings, monkeypatch):
    monkeypatch.setattr(ConnectionFactory, "_pools", {})
    with Sentinel(master, "s3cret") as sentinel:
        locks = {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": "redis://:s3cret@orders/0",
            "OPTIONS": {
                "CLIENT_CLASS": "django_redis.client.SentinelClient",
                "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
                "SENTINELS": [("127.0.0.1", sentinel.port)],
                # redis-py's own retries take seconds.
                "SENTINEL_KWARGS": {"socket_timeout": 1, "retry": Retry(NoBackoff(), 0)},
                "CONNECTION_POOL_KWARGS": {"socket_timeout": 1},
            },
        }
        settings.CACHES = {
            "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
            "locks": locks,
        }
        settings.FENCED_LOCKS = {"USING": "locks"}
        yield sentinel


@pytest.fixture
def admin():
    client = Client()
    client.force_login(User.objects.create(username="ops", is_staff=True, is_superuser=True))
    return client


def run(*arguments):
    out = io.StringIO()
    call_command(*arguments, stdout=out)
    return out.getvalue()


@pytest.mark.usefixtures("sentinel")
def test_everything_that_operators_use(master, admin):
    with redis.Redis(port=master.port, password="s3cret") as client:
        locks = [FencedLock(client, name, timeout=30) for name in ("order:1", "order:2")]
        for lock in locks:
            lock.acquire()
        assert run_checks(tags=[TAG]) == []
        for address in (LIST, f"{LIST}order_3A1/change/", f"{LIST}release/?name=order_3A1"):
            assert locks[0].owner_id in admin.get(address).content.decode()
        assert "2 counters: 2 held, 0 free." in run("fence_status")
        lease = f"order_3A1.{quote(locks[0].owner_id.encode())}"
        admin.post(f"{LIST}release/", {"confirmed": "1", "lease": lease})
        assert not locks[0].owned()
        assert run("fence_release", "--pattern", "*", "--yes").endswith("order:2 was freed.\n")


def test_sentinels_that_are_down_are_told_in_a_line(sentinel, admin):
    sentinel.kill()
    said = f"No master found for 'orders' : 127.0.0.1:{sentinel.port} - "
    (message,) = run_checks(tags=[TAG])
    assert message.id == "fenced_locks.W020"
    assert said in message.msg
    assert said in admin.get(LIST).content.decode().replace("&#x27;", "'")
    with pytest.raises(CommandError, match=said):
        call_command("fence_status")
