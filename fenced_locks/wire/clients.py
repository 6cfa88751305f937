"""Script calls through a client's ``execute_command``, for clients without one pool, such as a cluster's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoScriptError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ..awaits import abandon
from .base import REFUSED_FOR_GOOD, UNREACHABLE, NotSent, ReplyLost, Undo

if TYPE_CHECKING:
    from ..scripts import Script
    from .base import AsyncWire

# How long a request whose caller is cancelled has to be answered, in seconds.
_ENDING_SECONDS = 0.5


class ClientWire:
    """Through ``execute_command``, for clients without one pool, such as a cluster's; their waiters only probe."""

    hides_retries = True
    connections = None

    def __init__(self, client: Any) -> None:
        self.server: tuple[object, ...] = (id(client),)
        self._client = client

    def call(
        self, script: Script, keys: Sequence[bytes], args: Sequence[bytes], timeout: float, undo: Undo | None = None
    ) -> Any:
        try:
            try:
                return self._run(b"EVALSHA", script.sha, keys, args)
            except NoScriptError:
                return self._run(b"EVAL", script.text, keys, args)
        except REFUSED_FOR_GOOD:
            raise
        except UNREACHABLE as error:
            raise ReplyLost from error

    def call_all(
        self, script: Script, calls: Sequence[tuple[Sequence[bytes], Sequence[bytes]]], timeout: float
    ) -> list[Any]:
        return [self._call_or_error(script, keys, args, timeout) for keys, args in calls]

    def _call_or_error(self, script: Script, keys: Sequence[bytes], args: Sequence[bytes], timeout: float) -> Any:
        try:
            return self.call(script, keys, args, timeout)
        except (ResponseError, *REFUSED_FOR_GOOD) as error:
            return error

    def listen(
        self, script: Script, keys: Sequence[bytes], args: Sequence[bytes], timeout: float, wake: bytes, seconds: float
    ) -> None:
        return None

    def _run(self, command: bytes, script: bytes, keys: Sequence[bytes], args: Sequence[bytes]) -> Any:
        return self._client.execute_command(command.decode(), script, len(keys), *keys, *args, NEVER_DECODE=True)


class AsyncClientWire:
    """Through ``execute_command``, for clients without one pool, such as a cluster's; their waiters only probe."""

    hides_retries = True
    connections = None

    def __init__(self, client: Any) -> None:
        self.server: tuple[object, ...] = (id(client),)
        self._client = client

    async def call(
        self, script: Script, keys: Sequence[bytes], args: Sequence[bytes], timeout: float, undo: Undo | None = None
    ) -> Any:
        task = asyncio.ensure_future(self._call(script, keys, args))
        # Nobody else may be there to see its error.
        task.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            # Not wait_for: before Python 3.12 it loses a cancellation that comes together with the reply.
            await asyncio.wait({task}, timeout=timeout)
        except asyncio.CancelledError:
            # What is sent to undo it must not overtake it.
            await asyncio.wait({task}, timeout=_ENDING_SECONDS)
            abandon(task)
            raise
        if not task.done():
            raise ReplyLost from RedisTimeoutError(f"no reply within {timeout:.3f} s")
        return task.result()

    async def call_all(
        self, script: Script, calls: Sequence[tuple[Sequence[bytes], Sequence[bytes]]], timeout: float
    ) -> list[Any]:
        return await call_in_one_turn(self, script, calls, timeout)

    async def listen(
        self, script: Script, keys: Sequence[bytes], args: Sequence[bytes], timeout: float, wake: bytes, seconds: float
    ) -> None:
        return None

    async def _call(self, script: Script, keys: Sequence[bytes], args: Sequence[bytes]) -> Any:
        try:
            try:
                return await self._run(b"EVALSHA", script.sha, keys, args)
            except NoScriptError:
                return await self._run(b"EVAL", script.text, keys, args)
        except REFUSED_FOR_GOOD:
            raise
        except UNREACHABLE as error:
            raise ReplyLost from error

    async def _run(self, command: bytes, script: bytes, keys: Sequence[bytes], args: Sequence[bytes]) -> Any:
        return await self._client.execute_command(command.decode(), script, len(keys), *keys, *args, NEVER_DECODE=True)


async def call_in_one_turn(
    wire: AsyncWire, script: Script, calls: Sequence[tuple[Sequence[bytes], Sequence[bytes]]], timeout: float
) -> list[Any]:
    """Run the calls in one turn of the loop, so that they travel as one pipeline; see ``AsyncWire.call_all``."""
    sent = [wire.call(script, keys, args, timeout) for keys, args in calls]
    replies = await asyncio.gather(*sent, return_exceptions=True)
    for reply in replies:
        if isinstance(reply, (NotSent, ReplyLost, asyncio.CancelledError)):
            raise reply
    return replies
