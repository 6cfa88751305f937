"""
The driver of the steps for code that awaits.

Whatever is cancelled is undone first: what the steps still have to do then is done in a task of its own, to its end,
and only then is the cancellation raised. Their time-outs bound how long that takes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from inspect import isawaitable
from typing import Any, cast

from asgiref.sync import sync_to_async

from ..logs import about
from ..wire import AsyncListener, AsyncWire, JoinedAndCancelled, NotSent, ReplyLost
from .actions import Action, Answer, Ask, HangUp, Hear, Listen, Pause, Request, RequestAll, Steps, T, Work

_log = logging.getLogger(__name__)

# How often what must not be left out is begun again when it is cancelled itself.
_MOST_RESTARTS = 3


async def arun(wire: AsyncWire, plan: Steps[T], *, to_the_end: bool = False) -> T:
    """
    Drive the steps of one operation and return their result; every exception reaches them first.

    With ``to_the_end`` a cancellation does not, but is raised when they are through: for what must not be left half
    done, such as a release.
    """
    try:
        action = next(plan)
        while True:
            try:
                reply = await (wire.call(*action) if isinstance(action, Request) else _do(wire, action))
            except JoinedAndCancelled as late:
                await _undo(wire, plan, late.cancelled, late.found)
                raise late.cancelled from None
            except asyncio.CancelledError as cancelled:
                await (_complete(wire, plan, action, cancelled) if to_the_end else _undo(wire, plan, cancelled))
                raise
            except GeneratorExit as thrown_away:
                _drop(plan, thrown_away)
                raise
            except BaseException as error:  # noqa: BLE001 - the steps raise it again, after undoing what they began
                action = plan.throw(error)
            else:
                action = plan.send(reply)
    except StopIteration as done:
        result: T = done.value
        return result


async def _undo(wire: AsyncWire, plan: Steps[Any], cancelled: asyncio.CancelledError, *found: Any) -> None:
    """Have the steps undo what they began; ``found`` is what the action that they wait for has come to all the same."""
    rest = _Rest(wire, plan)
    for reply in found:
        rest.go_on(plan.send, reply)
    rest.go_on(plan.throw, cancelled)
    await rest.see_through()


async def _complete(wire: AsyncWire, plan: Steps[Any], action: Action, cancelled: asyncio.CancelledError) -> None:
    """Have the steps go on."""
    rest = _Rest(wire, plan)
    if isinstance(action, Request):
        # It may have been carried out.
        lost = ReplyLost("cancelled")
        lost.__cause__ = cancelled
        rest.go_on(plan.throw, lost)
    else:
        rest.go_on(plan.send, None)
    await rest.see_through()


class _Rest:
    """What is left to do of an operation whose caller was cancelled: the next action, and what follows from it."""

    def __init__(self, wire: AsyncWire, plan: Steps[Any]) -> None:
        self._wire, self._plan = wire, plan
        self._action: Action | None = None

    def go_on(self, step: Callable[[Any], Action], outcome: Any) -> None:
        """Have the steps say what comes next."""
        self._action = None
        try:
            self._action = step(outcome)
        except (StopIteration, asyncio.CancelledError):
            # They are through; it is for others to raise the cancellation.
            pass
        except Exception as error:  # noqa: BLE001 - it is the cancellation that is raised
            _log.warning("what a cancellation had interrupted ended with %r", error, extra=about(None, error=error))

    async def see_through(self) -> None:
        """Do it all, whoever cancels: a loop that ends cancels every task, also one that gives back a lock."""
        for _ in range(_MOST_RESTARTS):
            if self._action is not None:
                await _outlast(asyncio.ensure_future(self._drive()))

    async def _drive(self) -> None:
        while self._action is not None:
            try:
                reply = await _do(self._wire, self._action)
            except asyncio.CancelledError:
                # Begun again; all that is left for such a moment can be done twice.
                raise
            except GeneratorExit as thrown_away:
                _drop(self._plan, thrown_away)
                raise
            except BaseException as error:  # noqa: BLE001 - the steps raise it again
                self.go_on(self._plan.throw, error)
            else:
                self.go_on(self._plan.send, reply)


async def _outlast(task: asyncio.Task[Any]) -> None:
    """Wait until the task is done, also when cancelled."""
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait({task})


def _drop(plan: Steps[Any], thrown_away: GeneratorExit) -> None:
    """End the steps when nothing can be awaited any more."""
    with suppress(BaseException):
        action = plan.throw(thrown_away)
        for _ in range(_MOST_RESTARTS):
            if isinstance(action, HangUp):
                cast("AsyncListener", action.listener).drop()
            action = plan.throw(NotSent())


async def _do(wire: AsyncWire, action: Action) -> Any:
    if isinstance(action, Request):
        return await wire.call(*action)
    if isinstance(action, Hear):
        return await cast("AsyncListener", action.listener).hear(action.timeout, action.claim)
    if isinstance(action, Answer):
        return await cast("AsyncListener", action.listener).answer(action.timeout)
    if isinstance(action, Listen):
        return await wire.listen(*action)
    return await _do_rarely(wire, action)


async def _do_rarely(wire: AsyncWire, action: Ask | HangUp | Pause | RequestAll | Work) -> Any:
    if isinstance(action, RequestAll):
        return await wire.call_all(*action)
    if isinstance(action, HangUp):
        return await cast("AsyncListener", action.listener).hang_up()
    if isinstance(action, Ask):
        # In the thread where the caller's database connections are, so that it knows of their transactions.
        return await sync_to_async(action.question, thread_sensitive=True)()
    if isinstance(action, Work):
        result = action.call()
        return await result if isawaitable(result) else result
    await asyncio.sleep(action.seconds)
    return None
