"""The task that renews leases in an event loop; the decisions are those of ``renewal``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from contextvars import Context
from typing import Any, cast
from weakref import WeakKeyDictionary

from .. import clock
from ..awaits import Moment
from ..logs import about
from .renewal import RENEW, Agenda, Renewal, batches, calls_of

_log = logging.getLogger(__name__)


class AsyncRenewer:
    """One task for all leases of an event loop; it starts with the first and ends when there are none."""

    def __init__(self) -> None:
        self._agenda = Agenda()
        self._changed = Moment()
        self._task: asyncio.Task[None] | None = None
        self._saying: set[asyncio.Task[None]] = set()

    def add(self, renewal: Renewal) -> None:
        """Renew this lease from now on."""
        self._agenda.add(renewal)
        self.look()
        if self._task is None or self._task.done():
            # Not in the context of whoever happens to be first: it would live as long as the task.
            self._task = Context().run(asyncio.get_running_loop().create_task, self._run(), name="fenced-locks-renewal")

    def look(self) -> None:
        """See whether anything has changed: the task ends with the last lease."""
        self._changed.happen()

    async def _run(self) -> None:
        while (seconds := self._agenda.seconds(clock.monotonic())) is not None:
            self._changed = Moment()
            if seconds:
                await self._changed.wait(seconds)
            due = self._agenda.take(clock.monotonic())
            try:
                for batch in batches(due):
                    await self._renew(batch)
            except asyncio.CancelledError:
                if any(renewal.living() for renewal in due) or self._agenda.seconds(0.0) is not None:
                    _log.warning(
                        "the task that renews leases was cancelled; the next lease to be renewed starts another",
                        extra=about(None),
                    )
                raise
            finally:
                for renewal in due:
                    if renewal.living() is not None:
                        self._agenda.add(renewal)

    async def _renew(self, batch: Sequence[Renewal]) -> None:
        asked_at = clock.monotonic()
        calls = calls_of(batch, asked_at)
        replies: dict[Renewal, Any] = {}
        if calls:
            timeout = self._agenda.patience(batch, asked_at)
            wire = batch[0].wire
            # In one turn of the loop, so they travel as one pipeline.
            sent = [wire.call(RENEW, keys, args, timeout) for keys, args in calls.values()]
            replies = dict(zip(calls, await asyncio.gather(*sent, return_exceptions=True), strict=True))
        for renewal in batch:
            reply = replies.get(renewal)
            living = renewal.living()
            try:
                renewal.settle(getattr(reply, "__cause__", None) or reply, asked_at, clock.monotonic())
                if living is not None:
                    self._say(cast("Any", living[0]))
            except Exception:  # noqa: BLE001 - one lease must not keep the others from being renewed
                _log.exception("renewal of %r", renewal.target.resource, extra=about(renewal.target.resource))

    def _say(self, lock: Any) -> None:
        """Have the signals sent beside: a receiver that is slow must not hold up the next renewal."""
        if lock._unsaid:
            task = Context().run(asyncio.get_running_loop().create_task, lock._say())
            self._saying.add(task)
            task.add_done_callback(self._saying.discard)


_renewers: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncRenewer] = WeakKeyDictionary()


def renewer_of_loop() -> AsyncRenewer:
    """Return what renews the leases of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _renewers:
        _renewers[loop] = AsyncRenewer()
    return _renewers[loop]


def look_everywhere() -> None:
    """Have every event loop see what is due, from any thread: the time has jumped."""
    for loop, renewer in list(_renewers.items()):
        # Unless the loop is closed.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(renewer.look)
