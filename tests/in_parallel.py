"""
Test cases of a user that use the same lock names at the same moment, in as many processes as there are classes.

Not collected here: ``tests/integration/test_testing_parallel.py`` runs them in a project, by Django's own runner.
"""

from __future__ import annotations

import os
import signal
import threading
import unittest

from django.test import LiveServerTestCase, SimpleTestCase, TestCase, TransactionTestCase

from fenced_locks import afenced_lock, fenced_lock
from fenced_locks.connections import get_client
from fenced_locks.testing import FencedLocksTestMixin, expire, hold, lock_name, move_clock
from tests.helpers import wait_until

PATIENCE = 30


def meet(place: str, parties: int = 4) -> None:
    """Wait until so many processes have come here."""
    client = get_client()
    client.incr(f"met:{place}")
    wait_until(lambda: int(client.get(f"met:{place}")) >= parties, PATIENCE)


class Same(FencedLocksTestMixin):
    """What each class does while the three others do it, too; what it does to its locks is not theirs to see."""

    def interfere(self) -> None:
        """Do something to the locks of this test."""

    def seconds_left(self) -> float:
        """Return the rest of a lease of 600 s after that."""
        return 600

    def test_a_lease(self) -> None:
        with hold("order:2", timeout=600), fenced_lock("order:1", timeout=600, blocking=False) as lock:
            meet("all hold it")
            for resource in ("order:1", "order:2"):
                assert len(get_client().keys(f"test-*:{resource}")) == 4
            self.interfere()
            meet("all have interfered")
            left = self.seconds_left()
            assert left - PATIENCE * 2 < get_client().pttl(lock_name("order:2")) / 1000 <= left
            assert left - PATIENCE * 2 < lock.remaining() <= left
            lock.ensure_held()
            meet("all have looked")
        assert not get_client().exists(lock_name("order:1"), lock_name("order:2"))

    async def test_a_lease_of_a_task(self) -> None:
        async with afenced_lock("order:1", timeout=600, blocking=False, renew=True) as lock:
            meet("all tasks hold it")
            await lock.ensure_held()
            meet("all tasks have looked")


class Moving(Same, TestCase):
    def interfere(self) -> None:
        move_clock(300)

    def seconds_left(self) -> float:
        return 300


class Ending(Same, TransactionTestCase):
    def interfere(self) -> None:
        with hold("order:3"):
            expire("order:3")


class Taking(Same, LiveServerTestCase):
    def interfere(self) -> None:
        for _ in range(100):
            with fenced_lock("order:3", blocking=False):
                pass


class Leaving(Same, SimpleTestCase):
    def interfere(self) -> None:
        fenced_lock("order:3", timeout=600, renew=True).acquire()


class Failing(FencedLocksTestMixin):
    """Tests that fail with locks in their hands."""

    def test_failure(self) -> None:
        fenced_lock("order:1", timeout=600, renew=True).acquire()
        meet("both fail", 2)
        self.fail("as it should")

    def test_busy(self) -> None:
        with hold("order:1"), fenced_lock("order:1", blocking=False):
            self.fail("not reached")

    def test_error_in_a_clean_up(self) -> None:
        self.addCleanup(self.fail, "as it should")
        self.addCleanup(fenced_lock("order:1", timeout=600).acquire)

    def test_some_parts(self) -> None:
        fenced_lock("order:1", timeout=600).acquire()
        for part in range(3):
            with self.subTest(part=part):
                assert part == 1

    @unittest.expectedFailure
    def test_expected(self) -> None:
        fenced_lock("order:1", timeout=600).acquire()
        self.fail("as it should")


class FailingHere(Failing, TestCase):
    pass


class FailingThere(Failing, TransactionTestCase):
    pass


class Killed(FencedLocksTestMixin):
    """Holds a lease, has somebody wait for another, and is killed with all of its run."""

    def test_killed(self) -> None:
        with hold("order:2"), fenced_lock("order:1", renew=True):
            threading.Thread(target=fenced_lock("order:2").acquire, daemon=True).start()
            wait_until(lambda: get_client().exists(f"queue:{{{lock_name('order:2')}}}"), PATIENCE)
            meet("both can be killed", 2)
            os.killpg(0, signal.SIGKILL)


class KilledHere(Killed, TestCase):
    pass


class KilledThere(Killed, TransactionTestCase):
    pass
