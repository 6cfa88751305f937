"""What the server refuses is raised, not waited for; and who can only poll gets a turn like other pollers."""

import asyncio
import time

import pytest
import redis
from redis.asyncio import Redis as AsyncRedis

from fenced_locks import AsyncFencedLock, FencedLock
from fenced_locks.issuers import get_issuer
from fenced_locks.wire import listening

SCRIPT = ("EVALSHA", "EVAL")
KEYS = ("order:1", "fence:{order:1}", "queue:{order:1}", "wake:{order:1}")


BEGIN_A_TURN = """
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
redis.call('ZADD', KEYS[1], -now_ms, '', now_ms * 1000, 'somebody')
"""


@pytest.mark.parametrize("command", ["get", "set", "pttl", "time"])
def test_a_permission_that_is_missing_is_an_error_at_once(own_server, client_factory, command):
    server = own_server()
    admin = client_factory(server.url)
    admin.execute_command("ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all", f"-{command}")
    client = client_factory(server.url.replace("redis://", "redis://app:secret@"))
    if command == "pttl":
        admin.set("order:1", "somebody")
    started = time.monotonic()
    with pytest.raises(redis.exceptions.ResponseError):
        FencedLock(client, "order:1", timeout=10, blocking_timeout=5).acquire()
    assert time.monotonic() - started < 2
    assert admin.keys("queue:*") == []
    assert admin.get("order:1") in (None, b"somebody")


@pytest.mark.parametrize(("as_whom", "granted"), [("", False), ("polls", True)])
def test_the_turn_of_those_that_poll_is_for_fenced_ones_too(r, as_whom, granted):
    issuer = get_issuer("clock")
    with r.pipeline() as both:
        both.eval(BEGIN_A_TURN, 1, KEYS[2])
        both.eval(issuer.acquire_script.text, 4, *KEYS, "owner", 10_000, issuer.argument, as_whom)
        reply = both.execute()[1]
    assert isinstance(reply, bytes) is granted
    assert r.exists("order:1") == granted


def test_the_turn_of_those_that_poll_is_for_one_that_awaits_but_does_not_wait(r, redis_url):
    async def try_once(blocking):
        async with AsyncRedis.from_url(redis_url) as client:
            r.flushdb()
            # Asked for at once: a turn is over after 150 ms, and another one is tried then.
            r.eval(BEGIN_A_TURN, 1, KEYS[2])
            return await AsyncFencedLock(client, "order:1", timeout=10).acquire(
                blocking=blocking, blocking_timeout=0 if blocking else None
            )

    assert any(asyncio.run(try_once(blocking=False)) for _ in range(20))
    assert not all(asyncio.run(try_once(blocking=True)) for _ in range(20))


def test_a_waiter_without_a_connection_to_block_on_says_that_it_polls(proxy, client_factory, r, monkeypatch):
    monkeypatch.setattr(listening.Listeners, "borrow", lambda self: None)
    client = client_factory(proxy.url, client_name="polls")
    with FencedLock(r, "order:1", timeout=10):
        assert not FencedLock(client, "order:1", timeout=10, sleep=0.01).acquire(blocking_timeout=0.8)
    assert any(b"polls" in command for command in proxy.calls(SCRIPT))
    assert proxy.calls("BLPOP") == []
