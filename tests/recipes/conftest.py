"""What the recipes need beyond the other tests."""

from __future__ import annotations

import importlib.util

import pytest


@pytest.fixture(scope="session", autouse=True)
def _recipes_are_installed() -> None:
    missing = [name for name in ("celery", "redis_lock", "rest_framework") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"without {', '.join(missing)}; recipes need more: pip install -e '.[test,recipes]'")
