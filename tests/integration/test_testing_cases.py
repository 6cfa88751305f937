"""``FencedLocksTestMixin`` in Django's test cases."""

import pytest
from django.db import transaction
from django.test import SimpleTestCase, TestCase, TransactionTestCase

from fenced_locks import afenced_lock, fenced_lock
from fenced_locks.connections import get_client
from fenced_locks.testing import FencedLocksTestMixin, expire, hold, lock_name
from tests.app.models import Order


@pytest.fixture(autouse=True)
def _nothing_is_left(r):
    yield
    assert r.keys("*") == []
    assert lock_name("order:1") == "order:1"


class Tests(FencedLocksTestMixin, TestCase):
    """A transaction around each test does not delay what is released."""

    def test_a_release_is_not_delayed_by_the_tests_own_transaction(self):
        with fenced_lock("order:1"):
            Order.objects.create()
        assert get_client().exists(lock_name("order:1")) == 0
        with transaction.atomic(), fenced_lock("order:1"):
            pass
        assert get_client().exists(lock_name("order:1")) == 0

    def test_the_fence_works_inside(self):
        order = Order.objects.create()
        with hold("order:1") as stale:
            expire("order:1")
            with fenced_lock("order:1", blocking=False) as lock:
                assert Order.objects.filter(pk=order.pk).fenced_update(lock.fence_token, status="paid") == 1
        assert Order.objects.filter(pk=order.pk).fenced_update(stale, status="late") == 0

    async def test_async_tests_are_isolated_too(self):
        with hold("order:1"):
            assert await afenced_lock("order:1", blocking=False).acquire() is False
        async with afenced_lock("order:1") as lock:
            assert lock.name == lock_name("order:1") != "order:1"


class RealTransactions(FencedLocksTestMixin, TransactionTestCase):
    """Here the release waits for the commit, as in production."""

    def test_a_release_waits_for_the_commit(self):
        with transaction.atomic():
            with fenced_lock("order:1"):
                pass
            assert get_client().exists(lock_name("order:1")) == 1
        assert get_client().exists(lock_name("order:1")) == 0


def test_behind_the_test_case_it_is_refused_since_it_would_do_nothing():
    with pytest.raises(TypeError, match=r"^Late isolates no locks: put FencedLocksTestMixin in front"):

        class Late(TestCase, FencedLocksTestMixin):
            """Would run with the locks of everybody."""


def test_a_mixin_of_a_user_may_derive_from_it_and_debugging_isolates_too():
    names = []

    class Mine(FencedLocksTestMixin):
        """A base of several test cases."""

    class Case(Mine, SimpleTestCase):
        def test_name(self):
            names.append(lock_name("order:1"))
            hold("order:1").__enter__()

    Case("test_name").debug()
    assert names != ["order:1"]
    assert len(names) == 1


@pytest.mark.parametrize("aliases", ["default", None, [None], 5])
def test_aliases_are_names_in_a_list(aliases):
    class Case(FencedLocksTestMixin, SimpleTestCase):
        lock_aliases = aliases

        def test_nothing(self):
            """Would not be run."""

    with pytest.raises(TypeError, match=r"^using must be names, in a list or the like, not "):
        Case("test_nothing").debug()


class WithoutDatabase(FencedLocksTestMixin, SimpleTestCase):
    """Nothing of it needs a database."""

    def setUp(self):
        # Without super(): the mixin does not depend on it.
        self.before = lock_name("order:1")
        fenced_lock("order:1").acquire()
        self.addCleanup(self._check)

    def _check(self):
        assert self.before == lock_name("order:1")

    def test_setup_and_clean_up_are_in_the_same_block(self):
        assert self.before == lock_name("order:1") != "order:1"
