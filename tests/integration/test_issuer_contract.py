"""
Law 1 for every issuer, on every database where that matters: tokens grow, and none is issued twice.

What only one of them promises stands in `test_issuers.py` and `test_database_issuer.py`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress

import pytest
import redis
from django.db import connections, transaction

from fenced_locks import FencedLock, IssuerError, LeaseLost
from fenced_locks.issuers import DatabaseIssuer
from tests.helpers import run_threads
from tests.routers import CountersOn

pytestmark = pytest.mark.usefixtures("r")

KEY = "order:1"
ON_DATABASES = ["default", "postgres", "mariadb"]
CASES = [
    *[pytest.param((name, None), id=name) for name in ("clock", "counter")],
    *[
        pytest.param(
            ("database", alias),
            id=f"database-{alias}",
            marks=pytest.mark.django_db(transaction=True, databases=[alias]),
        )
        for alias in ON_DATABASES
    ],
]


def those_with(choose: Callable[[str], bool]) -> pytest.MarkDecorator:
    """Run a test with some of the cases only, by their ids."""
    return pytest.mark.parametrize("case", [case for case in CASES if choose(case.id)], indirect=True)


on_each_database = those_with(lambda name: name.startswith("database"))


@pytest.fixture(params=CASES)
def case(request, settings):
    issuer, alias = request.param
    if alias:
        settings.DATABASE_ROUTERS = [CountersOn(alias)]
    return issuer, alias


@pytest.fixture
def issuer(case):
    return case[0]


def lock_with(client: redis.Redis, issuer: str, **options: object) -> FencedLock:
    return FencedLock(client, KEY, **{"timeout": 30, "sleep": 0.002, **options}, issuer=issuer)


def grant(client: redis.Redis, issuer: str) -> int:
    with lock_with(client, issuer) as lock:
        return lock.fence_token


def strictly_grows(tokens: list[int]) -> bool:
    return tokens == sorted(set(tokens)) and tokens[0] > 0


def test_tokens_grow_with_every_grant(r, issuer):
    assert strictly_grows([grant(r, issuer) for _ in range(100)])


def test_resources_do_not_disturb_each_other(r, issuer):
    tokens = {}
    for _ in range(5):
        for name in ("order:1", "order:2", "Order:1", "order:1 ", "órder:1"):
            with FencedLock(r, name, timeout=10, issuer=issuer) as lock:
                tokens.setdefault(name, []).append(lock.fence_token)
    assert all(map(strictly_grows, tokens.values()))


def test_tokens_grow_under_fifty_threads(client_factory, issuer):
    client = client_factory(max_connections=60)
    tokens = []

    def work():
        for _ in range(2):
            with lock_with(client, issuer, blocking_timeout=30) as lock:
                tokens.append(lock.fence_token)

    run_threads(*[work] * 50, timeout=60)
    assert len(tokens) == 100
    assert strictly_grows(tokens)


def test_tokens_grow_with_every_advance_and_every_grant_in_between(r, issuer):
    tokens = []
    for _ in range(5):
        with lock_with(r, issuer) as lock:
            tokens += [lock.fence_token, *[lock.advance() for _ in range(5)]]
    assert strictly_grows(tokens)


def test_tokens_grow_under_threads_of_which_all_advance(client_factory, issuer):
    client = client_factory(max_connections=30)
    tokens = []

    def work():
        for _ in range(2):
            with lock_with(client, issuer, blocking_timeout=30) as lock:
                tokens.append(lock.fence_token)
                tokens.extend(lock.advance() for _ in range(3))

    run_threads(*[work] * 20, timeout=60)
    assert len(tokens) == 20 * 2 * 4
    assert strictly_grows(tokens)


@pytest.mark.parametrize("more", [1, 1000])
def test_a_token_that_was_asked_for_is_gone_beyond_by_the_next_grant(r, issuer, more):
    with lock_with(r, issuer) as lock:
        least = lock.fence_token + more
        asked_for = lock.advance(least)
        assert lock.fence_token == asked_for >= least
        # The clock goes on meanwhile.
        assert issuer == "clock" or asked_for == least
    assert grant(r, issuer) > asked_for


def test_a_resource_of_another_name_is_not_raised_along(r, issuer):
    with lock_with(r, issuer) as lock, FencedLock(r, "order:2", timeout=30, issuer=issuer) as other:
        asked_for = lock.advance(2**53 - 1000)
        assert other.advance() < asked_for


def test_tokens_grow_over_a_redis_that_forgets_the_counter_during_a_lease(r, issuer):
    with lock_with(r, issuer) as lock:
        tokens = [lock.fence_token, lock.advance(2**40)]
        for _ in range(3):
            r.delete(*r.keys("fence:*"), "fence:{order:1}")
            tokens.append(lock.advance())
    assert strictly_grows([*tokens, grant(r, issuer)])


def test_who_is_no_holder_draws_nothing(r, issuer):
    lock = lock_with(r, issuer)
    lock.acquire()
    token = lock.fence_token
    r.delete(KEY)
    with pytest.raises(LeaseLost):
        lock.advance(token + 2**40)
    assert lock.fence_token == token
    assert token < grant(r, issuer) < token + 2**40


def test_tokens_grow_over_a_holder_that_slept_and_advances_when_another_has_the_lease(r, issuer):
    sleeper, other = lock_with(r, issuer), lock_with(r, issuer)
    sleeper.acquire()
    r.delete(KEY)
    other.acquire()
    tokens = [sleeper.fence_token, other.fence_token]
    with pytest.raises(LeaseLost):
        sleeper.advance()
    assert strictly_grows([*tokens, other.advance()])


@on_each_database
def test_a_token_that_was_asked_for_inside_a_transaction_is_not_taken_back_by_its_end(r, case):
    issuer, alias = case
    lock = lock_with(r, issuer)
    lock.acquire()
    tokens = [lock.fence_token]
    with suppress(ZeroDivisionError), transaction.atomic(using=alias):
        for least in (None, 1000):
            # SQLite has one writer at a time.
            refused = pytest.raises(IssuerError, match="a transaction is open") if alias == "default" else nullcontext()
            with refused:
                tokens.append(lock.advance(least))
        raise ZeroDivisionError
    tokens.append(lock.advance())
    assert strictly_grows(tokens)
    assert len(tokens) == (2 if alias == "default" else 4)
    assert lock.ensure_held() == tokens[-1]


@on_each_database
def test_tokens_grow_over_rollbacks(r, case):
    issuer, alias = case
    tokens = [grant(r, issuer)]
    for _ in range(3):
        with suppress(ZeroDivisionError, IssuerError), transaction.atomic(using=alias):
            tokens.append(grant(r, issuer))
            raise ZeroDivisionError
        tokens.append(grant(r, issuer))
    assert strictly_grows(tokens)
    assert len(tokens) == (4 if alias == "default" else 7)


def test_tokens_grow_over_a_process_that_is_killed_with_its_token(r, case):
    tokens = [grant(r, case[0])]
    with child(case, "with lock: print(lock.fence_token, flush=True); input()") as process:
        tokens.append(int(process.stdout.readline()))
        assert r.exists(KEY)
        process.send_signal(signal.SIGKILL)
        process.wait()
    r.delete(KEY)
    tokens.append(grant(r, case[0]))
    assert strictly_grows(tokens)


def test_tokens_grow_over_a_process_that_is_killed_anywhere(r, case):
    loop = "while True:\n  with lock: print(lock.fence_token, flush=True)"
    tokens = []
    for lines in (3, 20):
        with child(case, loop) as process:
            tokens += [int(process.stdout.readline()) for _ in range(lines)]
            process.send_signal(signal.SIGKILL)
            # A line is written whole or not at all: they are short.
            tokens += [int(line) for line in process.communicate()[0].splitlines()]
        r.delete(KEY)
        tokens.append(grant(r, case[0]))
    assert strictly_grows(tokens)


# The docstring of the issuer `counter` says that it does not.
@those_with(lambda name: name != "counter")
def test_tokens_grow_over_a_redis_that_forgets_everything(r, issuer):
    before = grant(r, issuer)
    r.flushall()
    assert grant(r, issuer) > before


@on_each_database
def test_no_token_is_drawn_twice_by_those_that_draw_at_once(case):
    """Not even for a new resource, where each of them finds no row to begin with."""
    issuer = DatabaseIssuer()
    drawn = run_threads(*[lambda: [issuer.issue(KEY) for _ in range(4)]] * 50, timeout=60)
    assert all(map(strictly_grows, drawn))
    assert sorted(token for tokens in drawn for token in tokens) == list(range(1, 201))


PROGRAM = """
import json, os, django, redis
from django.conf import settings
from tests.routers import CountersOn
issuer, alias = json.loads(os.environ["CASE"])
if alias:
    settings.DATABASES[alias] = json.loads(os.environ["DATABASE"])
    settings.DATABASE_ROUTERS = [CountersOn(alias)]
django.setup()
from fenced_locks import FencedLock
lock = FencedLock(redis.Redis.from_url(os.environ["REDIS_URL"]), "order:1", timeout=30, issuer=issuer)
"""


@contextmanager
def child(case: tuple[str, str | None], program: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program that has `lock` in a process of its own."""
    database = connections[case[1]].settings_dict if case[1] else {}
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "CASE": json.dumps(case),
        "DATABASE": json.dumps(database, default=str),
    }
    command = [sys.executable, "-c", PROGRAM + program]
    pipes: dict[str, Callable[..., object] | int] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()
