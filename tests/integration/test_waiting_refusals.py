"""What the server refuses is raised, not waited for; and who can only poll gets a turn like other pollers."""

import time

import pytest
import redis

from fenced_locks import FencedLock
from fenced_locks.wire import listening

SCRIPT = ("EVALSHA", "EVAL")


def begin_a_turn(r):
    """Have somebody wait, and the locks that poll have their turn now."""
    seconds, microseconds = r.time()
    now_ms = seconds * 1000 + microseconds // 1000
    r.zadd("queue:{order:1}", {"": -now_ms, "somebody": now_ms * 1000})


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


def test_a_newcomer_keeps_out_of_the_turn_of_those_that_poll(r):
    begin_a_turn(r)
    assert not FencedLock(r, "order:1", timeout=10).acquire(blocking=False)
    assert not r.exists("order:1")


def test_a_waiter_without_a_connection_to_block_on_polls_and_has_its_turn(proxy, client_factory, r, monkeypatch):
    monkeypatch.setattr(listening, "LIMIT", 0)
    lock = FencedLock(client_factory(proxy.url, client_name="polls"), "order:1", timeout=10, sleep=0.001)
    begin_a_turn(r)
    assert lock.acquire(blocking_timeout=0.1)
    assert any(b"polls" in command for command in proxy.calls(SCRIPT))
    assert proxy.calls("BLPOP") == []
    lock.release()
