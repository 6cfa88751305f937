"""Law 1: tokens grow. What each issuer keeps, and what it refuses without leaving anything behind."""

import time
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fenced_locks import FencedLock, IssuerError
from fenced_locks.issuers import ClockIssuer, CounterIssuer, RedisIssuer, get_issuer
from tests.helpers import wait_until

ISSUERS = ["clock", "counter"]
COUNTER = "fence:{order:1}"


def grant(r, issuer="clock", timeout=10, name="order:1"):
    with FencedLock(r, name, timeout=timeout, issuer=issuer) as lock:
        return lock.fence_token


@pytest.mark.parametrize("issuer", ISSUERS)
def test_tokens_grow_with_every_grant(r, issuer):
    tokens = [grant(r, issuer) for _ in range(200)]
    assert tokens == sorted(set(tokens))


def test_counter_issues_consecutive_numbers_that_never_expire(r):
    assert [grant(r, "counter") for _ in range(3)] == [1, 2, 3]
    assert r.pttl(COUNTER) == -1


def test_counter_takes_away_an_expiry_that_another_issuer_left(r):
    r.set(COUNTER, 41, px=60_000)
    assert grant(r, "counter") == 42
    assert r.pttl(COUNTER) == -1


def test_clock_tokens_are_the_servers_time_in_microseconds(r):
    token = grant(r)
    seconds, microseconds = r.time()
    assert 0 <= seconds * 10**6 + microseconds - token < 10**6
    issued = ClockIssuer().issued_at(token)
    assert abs(issued - datetime.now(timezone.utc)) < timedelta(seconds=5)
    assert CounterIssuer().issued_at(1) is None


@pytest.mark.parametrize("loss", ["FLUSHDB", "DEL fence:{order:1}", "PEXPIRE fence:{order:1} 1"])
def test_clock_restarts_above_every_token_after_its_counter_is_lost(r, loss):
    before = grant(r)
    r.execute_command(*loss.split())
    wait_until(lambda: not r.exists(COUNTER))
    assert grant(r) > before


@pytest.mark.parametrize("persistence", [(), ("--appendonly", "yes", "--appendfsync", "always")])
def test_clock_grows_over_a_killed_and_restarted_server(own_server, client_factory, persistence):
    server = own_server(*persistence)
    client = client_factory(server.url)
    before = grant(client)
    server.kill()
    server.start()
    assert grant(client_factory(server.url)) > before


def test_clock_grows_over_the_promotion_of_a_replica_that_lagged(own_server, client_factory):
    primary = own_server("--repl-diskless-sync-delay", "0")
    replica = own_server("--replicaof", "127.0.0.1", str(primary.port))
    client, promoted = client_factory(primary.url), client_factory(replica.url)
    grant(client)
    wait_until(lambda: client.wait(1, 100), 20)
    replica.pause()
    tokens = [grant(client) for _ in range(5)]
    primary.kill()
    replica.resume()
    promoted.replicaof("NO", "ONE")
    assert grant(promoted) > max(tokens)


def test_a_counter_that_runs_ahead_of_the_clock_is_counted_on_and_kept_until_the_clock_has_passed_it(r):
    day = 24 * 3600
    ahead = (int(time.time()) + 10 * day) * 10**6
    r.set(COUNTER, ahead)
    assert grant(r, ClockIssuer(retention=60)) == ahead + 1
    assert 10 * day * 1000 - 60_000 < r.pttl(COUNTER) <= 10 * day * 1000 + 2_000


def test_an_idle_counter_lives_for_its_retention_or_for_a_longer_lease(r):
    grant(r, ClockIssuer(retention=60))
    assert 59_000 < r.pttl(COUNTER) <= 61_000
    grant(r, ClockIssuer(retention=60), timeout=600)
    assert 599_000 < r.pttl(COUNTER) <= 601_000


GREATEST = 2**53 - 1
BAD = {
    "a list": (lambda r: r.rpush(COUNTER, 1), "wrong type: it is a list"),
    "a hash": (lambda r: r.hset(COUNTER, "a", 1), "wrong type: it is a hash"),
    "text": (lambda r: r.set(COUNTER, "many"), "not a number: many"),
    "nothing": (lambda r: r.set(COUNTER, ""), "not a number"),
    "negative": (lambda r: r.set(COUNTER, -1), "not a number: -1"),
    "a fraction": (lambda r: r.set(COUNTER, "1.5"), "not a number: 1.5"),
    "hexadecimal": (lambda r: r.set(COUNTER, "0x10"), "not a number: 0x10"),
    "leading zeros": (lambda r: r.set(COUNTER, "007"), "not a number: 007"),
    "two lines": (lambda r: r.set(COUNTER, "1\r\n2"), r"not a number: 1\?\?2"),
    "the greatest": (lambda r: r.set(COUNTER, GREATEST), "would leave the range of exact numbers"),
    "beyond": (lambda r: r.set(COUNTER, 2**53 + 1), "beyond the range of exact numbers"),
    "far beyond": (lambda r: r.set(COUNTER, "9" * 30), "beyond the range of exact numbers"),
}


@pytest.mark.parametrize("issuer", ISSUERS)
@pytest.mark.parametrize("case", BAD)
def test_a_counter_that_cannot_be_used_is_a_clear_error_and_leaves_no_lease(r, issuer, case):
    prepare, reason = BAD[case]
    prepare(r)
    before = r.dump(COUNTER)
    lock = FencedLock(r, "order:1", timeout=10, issuer=issuer)
    with pytest.raises(IssuerError, match=f"no fence token for 'order:1': its counter 'fence:.order:1.' .*{reason}"):
        lock.acquire()
    assert r.dump(COUNTER) == before
    assert r.keys("*") == [COUNTER.encode()]
    assert lock.fence_token is None


@pytest.mark.parametrize("issuer", ISSUERS)
def test_the_last_exact_number_is_issued_exactly(r, issuer):
    r.set(COUNTER, GREATEST - 1)
    assert grant(r, issuer) == GREATEST
    assert int(r.get(COUNTER)) == GREATEST


@pytest.mark.parametrize("issuer", ISSUERS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(start=st.integers(0, GREATEST - 3), losses=st.lists(st.booleans(), min_size=1, max_size=6))
def test_tokens_are_never_rounded_and_never_go_back(r, issuer, start, losses):
    r.set(COUNTER, start)
    tokens = [start]
    for lost in losses:
        if lost and issuer == "clock" and tokens[-1] < time.time() * 10**6:
            r.delete(COUNTER)
        if tokens[-1] >= GREATEST:
            break
        tokens.append(grant(r, issuer))
        assert int(r.get(COUNTER)) == tokens[-1]
    assert tokens == sorted(set(tokens))


def test_issuers_are_chosen_by_name_path_class_and_instance(r):
    own = ClockIssuer(retention=5)
    assert isinstance(get_issuer("clock"), ClockIssuer)
    assert isinstance(get_issuer("fenced_locks.issuers.CounterIssuer"), CounterIssuer)
    assert isinstance(get_issuer(CounterIssuer), CounterIssuer)
    assert get_issuer(own) is own


class ByTen(RedisIssuer):
    name = "by-ten"
    mint = """
        local function mint(counter, now_us, lease_ms, argument)
            local last, reason = read_counter(counter)
            if not last then return nil, reason end
            return string.format('%.0f', redis.call('INCRBY', counter, 10))
        end
    """


def test_an_issuer_of_ones_own_supplies_its_mint(r):
    assert [grant(r, ByTen()) for _ in range(2)] == [10, 20]
    r.delete(COUNTER)
    r.rpush(COUNTER, 1)
    with pytest.raises(IssuerError, match="wrong type"):
        grant(r, ByTen())


@pytest.mark.parametrize("spec", ["clok", "no.such.module", "fenced_locks.nothing"])
def test_an_unknown_issuer_is_refused(r, spec):
    with pytest.raises(ValueError, match="issuer"):
        FencedLock(r, "order:1", issuer=spec)


@pytest.mark.parametrize("spec", [7, None, object, "fenced_locks.FencedLock"])
def test_what_is_no_issuer_is_refused(r, spec):
    with pytest.raises(TypeError, match="issuer must be"):
        FencedLock(r, "order:1", issuer=spec)
