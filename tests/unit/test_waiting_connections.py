"""Which pools share the connections on which their waiters block: those that connect in the very same way."""

import pytest
import redis

from fenced_locks.wire import wire_for


def listeners(url="rediss://redis.example/0?ssl_certfile=one.pem", **options):
    return wire_for(redis.Redis.from_url(url, **options))._listeners


def test_pools_that_connect_alike_share_them():
    first = listeners(password="secret")
    assert listeners(password="secret") is first


@pytest.mark.parametrize(
    "other",
    [
        {"url": "rediss://redis.example/0?ssl_certfile=other.pem"},
        {"ssl_ca_certs": "other.pem"},
        {"ssl_cert_reqs": "none"},
        {"username": "somebody"},
        {"password": "another"},
        {"url": "rediss://redis.example/1?ssl_certfile=one.pem"},
        {"url": "redis://redis.example/0"},
        {"protocol": 3},
    ],
)
def test_pools_that_differ_in_anything_do_not(other):
    first = listeners()
    assert listeners(**other) is not first
