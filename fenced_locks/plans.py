"""
What is done about several locks, written down as generators: each yields calls to be made, one after the other.

It is sent what a call returned, or thrown what it raised. The calls of locks that await are awaited; every decision
stands once. As ``locks.actions``, a floor higher: there the words are requests, here they are methods of locks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, TypeAlias, TypeVar

from .exceptions import NotHeld
from .logs import about

_log = logging.getLogger(__name__)

T = TypeVar("T")
Calls: TypeAlias = Generator[Callable[[], Any], Any, T]


def make(plan: Calls[T]) -> T:
    """Make the calls of a plan, and return its result; every exception reaches it first."""
    try:
        call = next(plan)
        while True:
            try:
                reply = call()
            except BaseException as error:  # noqa: BLE001 - the plan raises it again
                call = plan.throw(error)
            else:
                call = plan.send(reply)
    except StopIteration as done:
        result: T = done.value
        return result


async def amake(plan: Calls[T]) -> T:
    """Do the same where what is called is to be awaited."""
    try:
        call = next(plan)
        while True:
            try:
                reply = await call()
            except BaseException as error:  # noqa: BLE001 - the plan raises it again
                call = plan.throw(error)
            else:
                call = plan.send(reply)
    except StopIteration as done:
        result: T = done.value
        return result


def leave(calls: Sequence[Callable[[], Any]]) -> Calls[None]:
    """Make every call, and raise the first error after that; an interruption or a cancellation before all others."""
    errors = yield from try_all(calls)
    if not errors:
        return
    raised = next((error for error in errors if not isinstance(error, Exception)), errors[0])
    for error in errors:
        if isinstance(error, Exception) and error is not raised and not isinstance(error, NotHeld):
            known = about(getattr(error, "resource", None), error=error)
            _log.warning("of several resources another one was not given back: %s", error, extra=known)
    raise raised


def try_all(calls: Iterable[Callable[[], Any]]) -> Calls[list[BaseException]]:
    """Make every call, whatever the others raise; return what was raised."""
    errors: list[BaseException] = []
    for call in calls:
        try:
            yield call
        except GeneratorExit:
            # Thrown away: nothing can be awaited any more.
            raise
        except BaseException as error:  # noqa: BLE001 - it is the caller who raises it
            errors.append(error)
    return errors
