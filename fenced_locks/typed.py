"""
What only type checkers see: how managers are typed for those without a plugin, such as pyright.

mypy with the plugin of django-stubs makes the types of managers itself. It takes the name MYPY for true, and so skips
what is under ``TYPE_CHECKING and not MYPY``; other checkers read that branch, the last one of each name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from django.db import models

MYPY = False

if TYPE_CHECKING and not MYPY:
    Q = TypeVar("Q", bound=models.QuerySet[Any])

    class ManagerOf(models.Manager[Any], Generic[Q]):
        """
        What ``as_manager()`` and ``from_queryset()`` return, seen as the queryset whose methods it has.

        No annotation tells of a class that has the methods of another one, those of users included.
        """

        def __get__(self, instance: Any, cls: type[Any] | None = None) -> Q: ...
