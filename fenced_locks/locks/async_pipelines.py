"""The pipelines of transactions, and the connections under them, for code that awaits; see ``pipelines``."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, NoReturn

from redis.asyncio.client import Pipeline
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from ..awaits import within
from ..wire import NotSent, ReplyLost
from ..wire.aio_own import AsyncOwnConnections, close, ready
from ..wire.base import UNREACHABLE
from ..wire.channels import is_gone
from ..wire.connecting import named
from .core import GRACE_SECONDS
from .pipelines import ANSWERS
from .watching import Watch


class AsyncTransactionPipeline(Pipeline):
    """What ``func`` is given: redis-py's pipeline for asyncio, watching."""

    def __init__(self, client: Any, connection: Any, watch: Watch, shard_hint: Any) -> None:
        super().__init__(client.connection_pool, client.response_callbacks, True, shard_hint)
        self._watch = watch
        self.connection, self.watching = connection, True

    async def immediate_execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command at once, unless it must not be."""
        question = self._watch.question(args, is_watching=self.watching)
        if question is not None:
            self._watch.judge(args, await self._ask(question))
        return await self._send(*args, **options)

    async def _ask(self, question: Any) -> Any:
        try:
            return await self._send(*question, NEVER_DECODE=True)
        except ResponseError as error:
            return error

    async def _send(self, *args: Any, **options: Any) -> Any:
        try:
            return await super().immediate_execute_command(*args, **options)  # type: ignore[no-untyped-call]
        except ANSWERS:
            raise
        except BaseException as error:
            self._watch.broken = error
            raise

    async def _send_command_parse_response(self, conn: Any, command_name: Any, *args: Any, **options: Any) -> Any:
        exchange = partial(super()._send_command_parse_response, conn, command_name, *args, **options)
        return await within(self._watch.reply_timeout(), exchange)

    async def execute(self, raise_on_error: bool = True) -> NoReturn:
        """Not for ``func``; when it returns, what it queued is sent."""
        raise self._watch.refuse("calls execute(), which is done for it")

    async def _apply(self) -> Any:
        watch = self._watch
        watch.check(self.command_stack, is_watching=self.watching)
        if self.watching and is_gone(self.connection):
            raise NotSent from RedisConnectionError("closed by the server")
        try:
            return await super().execute()
        except Exception:
            watch.raise_if_broken()
            raise

    async def _execute_transaction(self, connection: Any, commands: Any, raise_on_error: bool) -> Any:
        watch = self._watch
        watch.is_sent = bool(commands)
        exchange = partial(super()._execute_transaction, connection, commands, raise_on_error)
        try:
            return await within(watch.reply_timeout(), exchange)
        except UNREACHABLE as error:
            watch.broken = error
            raise
        finally:
            # redis-py notes when it has read the reply to EXEC.
            watch.is_clean = not self.watching

    async def reset(self) -> None:  # type: ignore[override]
        """Forget what was queued, and stop watching; the connection stays with the transaction."""
        self._forget()

    def _forget(self) -> None:
        """Forget what was queued, and stop watching."""
        self.command_stack, self.scripts = [], set()
        self.watching = self.explicit_transaction = False


class AwaitingSession:
    """See ``transaction.Session``."""

    pipe: Any = None

    def __init__(self, client: Any, connections: AsyncOwnConnections, shard_hint: Any) -> None:
        self._client, self._connections, self._shard_hint = client, connections, shard_hint
        self._connection: Any = None
        self._watch: Watch | None = None

    async def watch(self, watch: Watch) -> Any:
        now = asyncio.get_running_loop().time
        ends = now() + watch.reply_timeout()
        if self._connection is None:
            self._connection = await self._connections.borrow(ends - now())
            # Neither are requests of redis-py's own wanted, nor its time-outs, which may lose a cancellation.
            self._connection.health_check_interval, self._connection.socket_timeout = 0, None
        await ready(self._connection, ends - now())
        self._watch = watch
        self._retire_pipe()
        self.pipe = AsyncTransactionPipeline(self._client, self._connection, watch, self._shard_hint)
        commands = ("WATCH", *watch.keys), ("GET", watch.keys[0])
        watching, stored = await self._exchange(watch.reply_timeout(), *commands)
        if isinstance(watching, Exception):
            raise watching
        return stored

    async def apply(self) -> Any:
        return await self.pipe._apply()

    async def unwatch(self) -> None:
        watch = self._watch
        if watch is None or watch.is_clean:
            return
        try:
            if watch.broken is None and not is_gone(self._connection):
                await self._exchange(GRACE_SECONDS, ("UNWATCH",))
                watch.is_clean = True
        except ReplyLost:
            close(self._connection)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        self._retire_pipe()
        if self._watch is not None and not self._watch.is_clean:
            close(connection)
        self._connections.give_back(connection)

    def _retire_pipe(self) -> None:
        """See that a pipeline which outlives its attempt is of no use."""
        if self.pipe is not None:
            self.pipe.connection = None
            self.pipe._forget()

    async def _exchange(self, seconds: float, *commands: Any) -> list[Any]:
        """Send commands in one piece; return their replies, an error of the server in its place."""
        connection = self._connection
        try:
            return await within(seconds, partial(_exchange, connection, commands))
        except UNREACHABLE as error:
            close(connection)
            raise ReplyLost from named(error)


async def _exchange(connection: Any, commands: Any) -> list[Any]:
    await connection.send_packed_command(connection.pack_commands(commands))
    return [await _read(connection) for _ in commands]


async def _read(connection: Any) -> Any:
    try:
        return await connection.read_response(disable_decoding=True)
    except ANSWERS as error:
        return error
