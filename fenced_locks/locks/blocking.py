"""The driver of the steps for code that blocks."""

from __future__ import annotations

import time
from typing import Any

from ..wire import Wire
from .actions import Action, Answer, Ask, HangUp, Hear, Listen, Pause, Request, RequestAll, Steps, T, Work


def run(wire: Wire, plan: Steps[T]) -> T:
    """Drive the steps of one operation, blocking, and return their result; every exception reaches them first."""
    try:
        action = next(plan)
        while True:
            try:
                reply = _do(wire, action)
            except BaseException as error:  # noqa: BLE001 - the steps raise it again, after undoing what they began
                action = plan.throw(error)
            else:
                action = plan.send(reply)
    except StopIteration as done:
        result: T = done.value
        return result


def _do(wire: Wire, action: Action) -> Any:
    if isinstance(action, Request):
        return wire.call(*action)
    if isinstance(action, Hear):
        return action.listener.hear(action.timeout, action.claim)
    if isinstance(action, Answer):
        return action.listener.answer(action.timeout)
    if isinstance(action, Listen):
        return wire.listen(*action)
    return _do_rarely(wire, action)


def _do_rarely(wire: Wire, action: Ask | HangUp | Pause | RequestAll | Work) -> Any:
    if isinstance(action, RequestAll):
        return wire.call_all(*action)
    if isinstance(action, HangUp):
        return action.listener.hang_up()
    if isinstance(action, Ask):
        return action.question()
    if isinstance(action, Work):
        return action.call()
    time.sleep(action.seconds)
    return None
