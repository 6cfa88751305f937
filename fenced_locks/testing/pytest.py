"""The pytest plugin: ``pytest_plugins = ["fenced_locks.testing.pytest"]`` in the outermost ``conftest.py``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from . import isolation


@pytest.fixture
def isolated_locks() -> Iterator[None]:
    """Locks of the test's own, none of whose keys are left behind; see ``fenced_locks.testing.isolated_locks``."""
    with isolation.isolated_locks():
        yield
