"""
One resource, four locks of both kinds, and whatever may become of it, compared with a model after every step.

Laws 1, 3 and 4, on a real server, for the issuers inside Redis. No step depends on time: leases last for longer than
a run and are ended by hand, at the server, by local time, or both.

In the suite each issuer gets some dozens of runs. For more, say how many, and let them take their time:

    LEASE_MACHINE_RUNS=2000 pytest -n0 tests/integration/test_lease_machine.py

A failure is shown as the shortest run that leads to it; finding that takes some minutes. It is kept in `.hypothesis`
and tried first the next time. Where the variable `CI` is set, Hypothesis makes the same runs each time.
"""

import os
import time

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fenced_locks import NotHeld
from tests.awaited import Loop
from tests.helpers import wait_until
from tests.lease_model import END_OF_TOKENS, Model
from tests.lease_world import World, outcome

RUNS = settings(
    max_examples=int(os.environ.get("LEASE_MACHINE_RUNS", "30")),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
KEY, COUNTER = "order:1", "fence:{order:1}"
# Seconds; nothing ends by itself within a run.
LEASE = 6000
LOCKS = {"blocking": LEASE, "another blocking": LEASE, "awaiting": LEASE, "awaiting without end": None}

who_may = st.sampled_from(list(LOCKS))
# Of those that hold a lease, or believe so: the last that took one, mostly.
which = st.sampled_from([0, 0, 0, 1, 2, 3])
lost_attempts = st.sampled_from(
    [[], [], [], ["reply"], ["reply"], ["request"], ["reply", "reply"], ["request", "reply"]]
)
chosen_ids = st.sampled_from([None, None, "task-1", "task-2"])
somebody_holds = precondition(lambda machine: machine.model.leases)


class LeaseMachine(RuleBasedStateMachine):
    def __init__(self, world, issuer):
        super().__init__()
        self.world, self.r, self.issuer = world, world.r, issuer
        self.r.flushdb()
        self.locks, self.model = world.locks(KEY, LOCKS), Model(issuer)

    # What holders do.

    @initialize(who=who_may, chosen=chosen_ids)
    def begin(self, who, chosen):
        self.acquire(who, chosen, [])

    @rule(who=who_may, chosen=chosen_ids, lost=lost_attempts)
    def acquire(self, who, chosen, lost):
        lock = self.locks[who]
        known = {self.model.stored, *(lease.owner_id for lease in self.model.leases.values())}
        with self.world.losing(lost) as clocks:
            got = outcome(lambda: lock.acquire(token=chosen))
        expected = self.model.acquire(lost, clocks["server_us"])
        if not isinstance(expected, range):
            assert got == (expected or False)
            return
        assert got is True
        assert lock.fence_token in expected
        assert lock.owner_id == chosen if chosen else lock.owner_id not in known
        timeout = LOCKS[who]
        ends = timeout and tuple(reading + timeout for reading in clocks["local"])
        self.model.acquired(who, lock.owner_id, lock.fence_token, ends)

    @precondition(lambda machine: len(machine.model.leases) < len(LOCKS))
    @rule()
    def those_without_a_lease_cannot_use_it(self):
        for who in LOCKS.keys() - self.model.leases.keys():
            lock = self.locks[who]
            uses = (lock.release, lock.reacquire, lambda lock=lock: lock.extend(1000), lock.ensure_held, lock.advance)
            assert {outcome(use) for use in uses} == {NotHeld}

    @somebody_holds
    @rule(which=which, lost=lost_attempts)
    def release(self, which, lost):
        who = self.holder(which)
        with self.world.losing(lost):
            got = outcome(self.locks[who].release)
        assert got == self.model.release(who, lost, time.monotonic())

    @somebody_holds
    @rule(which=which, how=st.sampled_from(["later", "from now", "anew"]), lost=lost_attempts)
    def extend(self, which, how, lost):
        who = self.holder(which)
        lock, seconds = self.locks[who], LEASE if how == "anew" else 5000
        with self.world.losing(lost) as clocks:
            extend = lock.reacquire if how == "anew" else lambda: lock.extend(seconds, replace_ttl=how == "from now")
            got = outcome(extend)
        from_now = how != "later"
        ends = tuple(reading * from_now + seconds for reading in clocks["local"])
        assert got == self.model.extend(who, ends, from_now=from_now)

    @somebody_holds
    @rule(which=which, lost=lost_attempts)
    def ensure_held(self, which, lost):
        who = self.holder(which)
        with self.world.losing(lost):
            got = outcome(self.locks[who].ensure_held)
        assert got == self.model.ensure(who, time.monotonic())

    @somebody_holds
    @rule(which=which, more=st.none() | st.integers(-3, 50) | st.just("all"), lost=lost_attempts)
    def advance(self, which, more, lost):
        who, end = self.holder(which), END_OF_TOKENS - 3
        at_least = more
        if more is not None:
            at_least = end if more == "all" else min(max(1, self.model.leases[who].token + more), end)
        with self.world.losing(lost) as clocks:
            got = outcome(lambda: self.locks[who].advance(at_least))
        expected = self.model.advance(who, at_least or 1, lost, clocks["server_us"], time.monotonic())
        if not isinstance(expected, range):
            assert got == expected
            return
        assert got in expected
        assert got >= (at_least or 1)
        self.model.advanced(who, got)

    def holder(self, which):
        leases = list(reversed(self.model.leases))
        return leases[which % len(leases)]

    # What becomes of the resource.

    @precondition(lambda machine: machine.model.stored)
    @rule(how=st.sampled_from(["is deleted", "ends", "is a stranger's", "goes with everything else"]))
    def the_lock_key(self, how):
        self.model.free("stranger" if how == "is a stranger's" else None)
        if how == "is deleted":
            self.r.delete(KEY)
        elif how == "ends":
            self.r.pexpire(KEY, 1)
            wait_until(lambda: not self.r.exists(KEY), interval=0.0005)
        elif how == "is a stranger's":
            self.r.set(KEY, "stranger", ex=LEASE)
        else:
            self.r.flushdb()
            self.model.forget()

    @precondition(lambda machine: machine.model.stored)
    @rule(who=who_may, chosen=chosen_ids)
    def another_takes_over(self, who, chosen):
        self.r.delete(KEY)
        self.model.free()
        self.acquire(who, chosen, [])

    @somebody_holds
    @rule(which=which)
    def the_lease_ends_by_local_time(self, which):
        who = self.holder(which)
        lease, end = self.model.leases[who], time.monotonic() - 1
        if lease.ends is not None:
            self.locks[who]._lease.ends_at, lease.ends = end, (end, end)

    @rule(how=st.sampled_from(["is lost", "is damaged"]) | st.integers(0, 30))
    def the_counter(self, how):
        self.r.delete(COUNTER)
        if how == "is damaged":
            self.r.rpush(COUNTER, 1)
        elif how != "is lost":
            # An old one.
            self.r.set(COUNTER, how)
        self.model.forget(how if isinstance(how, int) else None, damaged=how == "is damaged")

    @rule()
    def the_scripts_are_forgotten(self):
        self.r.script_flush()
        self.world.scripts_are_known = False

    # What must be so after every step.

    @invariant()
    def the_server_has_what_the_model_has_and_nothing_else(self):
        with self.r.pipeline(transaction=False) as pipe:
            pipe.get(KEY).get(COUNTER).pttl(COUNTER).keys("*").time()
            stored, counter, kept_ms, keys, (seconds, _) = pipe.execute(raise_on_error=False)
        assert (stored and stored.decode()) == self.model.stored
        expected = {KEY: self.model.stored, COUNTER: self.model.damaged or self.model.counter}
        assert {key.decode() for key in keys} == {key for key, there in expected.items() if there is not None}
        if self.model.damaged or self.model.counter is None:
            return
        assert int(counter) == self.model.counter
        if self.issuer == "counter":
            assert kept_ms == -1
        elif kept_ms != -1:
            # Until the clock has passed it.
            assert kept_ms > self.model.counter / 1000 - seconds * 1000 - 1000

    @invariant()
    def the_locks_say_what_the_model_says(self):
        for who in ("blocking", "awaiting"):
            assert self.locks[who].locked() is (self.model.stored is not None)
        for who, lock in self.locks.items():
            lease = self.model.leases.get(who)
            assert lock.owned() is (lease is not None and self.model.is_ours(lease))
            assert lock.fence_token == (lease and lease.token)
            assert lock.owner_id == (lease and lease.owner_id)
            if lease is None:
                assert outcome(lock.remaining) is outcome(lambda lock=lock: lock.lost) is NotHeld
            else:
                self.agree_on_the_end(who, lock, lease)

    def agree_on_the_end(self, who, lock, lease):
        started = time.monotonic()
        remaining, is_gone = lock.remaining(), lease.lost or lease.is_over(started)
        assert lock.lost.is_set() is is_gone
        if lease.ends is None:
            assert remaining is None
        elif is_gone:
            assert remaining == 0
        else:
            assert lease.ends[0] - time.monotonic() <= remaining <= lease.ends[1] - started
        if self.model.holder == who:
            kept_ms = self.r.pttl(KEY)
            if lease.kept is None:
                assert kept_ms == -1
            else:
                # Full milliseconds, and rounded up.
                assert (lease.kept[0] - time.monotonic()) * 1000 - 1 <= kept_ms <= (lease.kept[1] - started) * 1000 + 2
            # It ends here no later than there.
            assert not remaining or remaining * 1000 <= kept_ms + (time.monotonic() - started) * 1000 + 1


# Long enough to find the shortest run; without limit for who asked for more.
@pytest.mark.timeout(0 if "LEASE_MACHINE_RUNS" in os.environ else 900)
@pytest.mark.parametrize("issuer", ["clock", "counter"])
def test_whatever_becomes_of_a_resource_the_laws_hold(r, proxy, client_factory, issuer):
    loop = Loop()
    try:
        world = World(r, proxy, client_factory(proxy.url), loop, issuer)
        run_state_machine_as_test(lambda: LeaseMachine(world, issuer), settings=RUNS)
    finally:
        loop.close()
