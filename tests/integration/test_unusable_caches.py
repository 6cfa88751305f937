"""Whatever is wrong with the cache of the locks, who looks after them gets one line that says so, and no password."""

from __future__ import annotations

import io
import re

import pytest
import redis
from django.contrib.auth.models import User
from django.core.checks import run_checks
from django.core.management import CommandError, call_command
from django.test import Client
from django_redis.pool import ConnectionFactory

from fenced_locks.checks import TAG, server

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("r")]

DJANGO_REDIS = "django_redis.cache.RedisCache"
DJANGO = "django.core.cache.backends.redis.RedisCache"
LIST = "/admin/fenced_locks/lock/"


class NoCredentials(redis.CredentialProvider):
    """What fails in its own way."""

    def get_credentials(self):
        raise LookupError("no credentials today")


def options(**values):
    return {"OPTIONS": {key.upper(): value for key, value in values.items()}}


# What is wrong, and a word of what is said. HERE stands for the address of the server.
UNUSABLE = {
    "no such host": ("redis://:s3cret@two..dots:6379/0", {}, "Unicode"),
    "refused": ("redis://:s3cret@127.0.0.1:1/0", {}, "refused"),
    "wrong password": ("redis://me:s3cret@HERE/0", {}, "WRONGPASS|invalid username"),
    "slash in the password": ("redis://me:s3cret/@HERE/0", {}, "percent-encoded"),
    "hash in the password": ("redis://me:s3cret#@HERE/0", {}, "percent-encoded"),
    # Before 3.11 Python takes this for an address.
    "brackets in the password": ("redis://me:a[s3cret]b@HERE/0", {}, "percent-encoded|invalid username"),
    "not normal": ("redis://me:s3cret\u2100@HERE/0", {}, "percent-encoded"),
    "no scheme": ("me:s3cret@HERE/0", {}, "schemes"),
    "unknown option": ("redis://HERE/0?nonsense=1", {}, "nonsense"),
    "unusable option": ("redis://HERE/0?socket_timeout=s3cret", {}, "'socket_timeout'"),
    "unknown protocol": ("redis://HERE/0?protocol=7", {}, "protocol"),
    "bad TLS option": ("rediss://HERE/0?ssl_cert_reqs=sometimes", {}, "sometimes"),
    "no certificates": ("rediss://HERE/0?ssl_ca_certs=/nowhere", {}, "No such file"),
    "no socket": ("unix://:s3cret@/nowhere?db=0", {}, "No such file"),
    "cluster": ("redis://HERE/0", options(redis_client_class="redis.cluster.RedisCluster"), "at least one node"),
    "async": ("redis://HERE/0", options(redis_client_class="redis.asyncio.Redis"), "does not block"),
    "shards": (["redis://HERE/0"], options(client_class="django_redis.client.ShardClient"), "no single server"),
    "no credentials": (
        "redis://HERE/0",
        options(connection_pool_kwargs={"credential_provider": NoCredentials()}),
        "no credentials today",
    ),
}
OWN_BACKEND = [
    "no such host", "slash in the password", "brackets in the password", "unknown option", "bad TLS option",
]  # fmt: skip
CASES = [pytest.param(DJANGO_REDIS, case, id=case) for case in UNUSABLE]
CASES += [pytest.param(DJANGO, case, id=f"{case}, Django's backend") for case in OWN_BACKEND]


@pytest.fixture
def reason(request, settings, redis_url, monkeypatch):
    """Keep the locks in a cache that cannot be used; return what is to be said."""
    backend, case = request.param
    monkeypatch.setattr(server, "SECONDS", 0.5)
    # It keeps pools by address, whatever the options.
    monkeypatch.setattr(ConnectionFactory, "_pools", {})
    location, more, said = UNUSABLE[case]
    here = re.search(r"//(.*)/", redis_url)[1]
    if isinstance(location, str):
        location = location.replace("HERE", here)
    else:
        location = [each.replace("HERE", here) for each in location]
    settings.CACHES = {
        "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
        "locks": {"BACKEND": backend, "LOCATION": location, **more},
    }
    settings.FENCED_LOCKS = {"USING": "locks"}
    return said


def is_said(reason, text):
    return re.search(reason, text) is not None and "s3cret" not in text and "\n" not in text.strip()


each_case = pytest.mark.parametrize("reason", [pytest.param(case.values, id=case.id) for case in CASES], indirect=True)


@each_case
def test_the_checks_say_so(reason):
    (message,) = [each for each in run_checks(tags=[TAG]) if each.id.startswith("fenced_locks.")]
    assert message.id in ("fenced_locks.E002", "fenced_locks.E005", "fenced_locks.W020")
    assert is_said(reason, message.msg), message.msg


@each_case
def test_the_admin_says_so(reason):
    client = Client()
    client.force_login(User.objects.create(username="ops", is_staff=True, is_superuser=True))
    for address in (LIST, f"{LIST}?q=order:1", f"{LIST}order_3A1/change/", f"{LIST}release/?name=order_3A1"):
        (note,) = re.findall(r'errornote">(.*?)</p>', client.get(address).content.decode(), re.DOTALL)
        assert is_said(reason, note.replace("&#x27;", "'")), note
    answer = client.post(f"{LIST}release/", {"confirmed": "1", "lease": "order_3A1.web_3A1"}, follow=True)
    (told,) = re.findall(r'<li class="error">(.*?)</li>', answer.content.decode())
    assert told.startswith("Not released: order:1: ")
    assert is_said(reason, told.replace("&#x27;", "'")), told


@each_case
@pytest.mark.parametrize("command", [["fence_status"], ["fence_release", "order:1"], ["fence_release", "--owner", "*"]])
def test_the_commands_say_so(reason, command):
    with pytest.raises(CommandError) as error:
        call_command(*command, stdout=io.StringIO(), stderr=io.StringIO())
    assert error.value.returncode in (2, 3)
    assert is_said(reason, str(error.value)), error.value
