"""For Django's test cases."""

from __future__ import annotations

import unittest
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .isolation import isolated_locks

if TYPE_CHECKING:
    _Base = unittest.TestCase
else:
    _Base = object


class FencedLocksTestMixin(_Base):
    """
    Isolates the locks of every test of a test case, from before ``setUp`` until after the last clean-up::

        class OrderTests(FencedLocksTestMixin, TestCase): ...

    Behind the test case it would do nothing, so ``TypeError`` is raised there. See ``isolated_locks()``; what is locked
    in ``setUpClass`` or ``setUpTestData`` is not isolated.

    Attributes:
        lock_aliases: Cache aliases to clean up beside ``FENCED_LOCKS["USING"]`` and those that the test's thread uses.
    """

    lock_aliases: Iterable[str] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        bases = cls.__mro__
        if unittest.TestCase in bases and bases.index(unittest.TestCase) < bases.index(FencedLocksTestMixin):
            raise TypeError(f"{cls.__name__} isolates no locks: put FencedLocksTestMixin in front of the test case")

    def run(self, result: unittest.TestResult | None = None) -> unittest.TestResult | None:
        """Run the test as any other, with locks of its own."""
        with isolated_locks(using=self.lock_aliases):
            return super().run(result)

    def debug(self) -> None:
        """Run the test without collecting its result, with locks of its own."""
        with isolated_locks(using=self.lock_aliases):
            super().debug()
