"""Whatever message of a waiter or a release is lost, cut or late: one holder at a time, and nobody waits long."""

from __future__ import annotations

import threading
import time

import pytest
import redis

from fenced_locks import FencedLock, OutcomeUnknown
from fenced_locks.issuers import get_issuer
from fenced_locks.locks import steps, waiting
from tests.helpers import run_threads, wait_until
from tests.waiters import LOCK, registered

COUNTER = "fence:{order:1}"
# What a request or a reply comes late by: longer than the client waits for a reply.
LATE, SOCKET_TIMEOUT = 0.6, 0.25

ACQUIRE = get_issuer("clock").acquire_script
JOIN, RELEASE = waiting.JOIN, steps.RELEASE


def nth(number, is_meant):
    """Match the `number`-th command that is meant, and remember nothing else."""
    seen = iter(range(1, 100_000))
    return lambda command: is_meant(command) and next(seen) == number


def runs(script):
    return lambda command: command[0] in (b"EVALSHA", b"EVAL") and command[1] in (script.sha, script.text)


def ticket_in(command):
    return next((part for part in command[3:] if part.startswith(b"ticket:")), None)


def claims(command):
    return runs(ACQUIRE)(command) and ticket_in(command) is not None


def blocks(command):
    return command[0] == b"BLPOP"


# By what is sent: which command, counted from the moment at which somebody else holds the lock.
STEPS = {
    "first-try": lambda: nth(1, runs(ACQUIRE)),
    "join": lambda: nth(1, runs(JOIN)),
    "ticket": lambda: nth(1, blocks),
    "look": lambda: nth(2, runs(JOIN)),
    "claim": lambda: nth(1, claims),
    "release": lambda: nth(1, runs(RELEASE)),
}
FAULTS = {
    "request-dropped": lambda proxy, match: proxy.drop_request(match),
    "reply-dropped": lambda proxy, match: proxy.drop_reply(match),
    "reply-cut": lambda proxy, match: proxy.cut_reply(match, after=3),
    "request-late": lambda proxy, match: proxy.delay_request(LATE, match),
    "reply-late": lambda proxy, match: proxy.delay_reply(LATE, match),
}


class Story:
    """A holder and a waiter behind the proxy, and a rival beside it, who comes last."""

    def __init__(self, proxy, client_factory, r):
        self.proxy, self.r = proxy, r
        self.tokens, self._inside = [], []
        self._rival_may_come = threading.Event()
        # Known to the server, the scripts are carried out when their replies are lost.
        for script in (ACQUIRE, JOIN, RELEASE):
            r.script_load(script.text)
        client = client_factory(proxy.url, socket_timeout=SOCKET_TIMEOUT)
        self.holder, self.waiter = (
            FencedLock(client, LOCK, timeout=60, blocking_timeout=8, thread_local=False) for _ in range(2)
        )
        self.rival = FencedLock(client_factory(), LOCK, timeout=60, blocking_timeout=8)
        self._enter(self.holder)

    def run(self, happened):
        """The holder releases when the others wait and `happened` says so."""
        released_at, granted_at, then = run_threads(
            lambda: self._release(happened), lambda: self._cycle(self.waiter), self._cycle_of_rival
        )
        assert len(self.tokens) == 3
        assert self.tokens == sorted(set(self.tokens))
        # What comes late, and the time for which a ticket is good.
        assert max(granted_at, then) - released_at < LATE + 0.5 + 1

    def left(self):
        """Return what is in Redis beside the counter, and in how many milliseconds it will be gone."""
        return {key: self.r.pttl(key) for key in self.r.keys("*") if key != COUNTER.encode()}

    def _release(self, happened):
        self.proxy.wait_for_request("BLPOP")
        self._rival_may_come.set()
        wait_until(lambda: registered(self.r) == 2 and happened())
        return self._leave(self.holder)

    def _cycle_of_rival(self):
        assert self._rival_may_come.wait(8)
        return self._cycle(self.rival)

    def _cycle(self, lock):
        granted_at = self._enter(lock)
        self._leave(lock)
        return granted_at

    def _enter(self, lock):
        assert lock.acquire()
        self._inside.append(lock)
        assert self._inside == [lock]
        self.tokens.append(lock.fence_token)
        return time.monotonic()

    def _leave(self, lock):
        assert self._inside == [lock]
        self._inside.remove(lock)
        leaves_at = time.monotonic()
        lock.release()
        return leaves_at


@pytest.fixture
def story(proxy, client_factory, r):
    return Story(proxy, client_factory, r)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("step", STEPS)
def test_one_holder_at_a_time_and_nobody_waits_long(story, proxy, step, fault):
    hurt = FAULTS[fault](proxy, STEPS[step]())
    # The others do not come before the holder has released.
    early = step in ("first-try", "join", "look")
    story.run(lambda: not early or hurt.happened.is_set())
    hurt.wait()
    if step == "claim":
        # The ticket is still good when the claim is repeated.
        first, second, *_ = map(ticket_in, proxy.calls(claims))
        assert first == second
    if (step, fault) == ("join", "request-late"):
        # Who joins when he is gone is forgotten after a while.
        assert all(0 < remaining <= 5_300 for remaining in story.left().values())
    else:
        wait_until(lambda: not story.left(), 2)


@pytest.mark.parametrize("step", [step for step in STEPS if step != "ticket"])
def test_scripts_that_the_server_forgot_are_sent_whole(story, proxy, r, step):
    flushed = threading.Event()
    is_meant = STEPS[step]()

    def flush(command):
        if is_meant(command):
            r.script_flush()
            flushed.set()
        return False

    proxy.drop_request(flush)
    story.run(lambda: step in ("claim", "release") or flushed.is_set())
    assert flushed.is_set()
    wait_until(lambda: not story.left(), 2)


@pytest.mark.parametrize("first", [1, 2], ids=["join", "look"])
def test_a_waiter_who_loses_every_reply_says_so_at_its_deadline_and_leaves_the_queue(story, proxy, first):
    joins = runs(JOIN)
    proxy.drop_reply(lambda command: joins(command) and len(proxy.calls(joins)) >= first, times=1_000)
    started = time.monotonic()
    with pytest.raises((OutcomeUnknown, redis.ConnectionError)):
        story.waiter.acquire(blocking_timeout=1.2)
    assert 0.3 < time.monotonic() - started < 3
    assert registered(story.r) == 0
    assert story.holder.owned()
