"""
The pipelines that functions of transactions are given, and the connections under them, for code that blocks.

redis-py turns a connection that is lost while keys are watched into a WatchError, also when it had sent EXEC, and
repeats the function. These know what was sent; and each has a connection without hidden retries to itself.
"""

from __future__ import annotations

from typing import Any, NoReturn

from redis.client import Pipeline
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from .. import clock
from ..wire import NotSent, ReplyLost
from ..wire.base import REFUSED_FOR_GOOD, UNREACHABLE
from ..wire.connecting import is_gone, named, ready
from ..wire.own import OwnConnections
from .core import GRACE_SECONDS
from .watching import Watch

# What the server says, though redis-py counts some of it among the errors of connections.
ANSWERS = (ResponseError, *REFUSED_FOR_GOOD)


class TransactionPipeline(Pipeline):
    """What ``func`` is given: redis-py's pipeline, watching."""

    def __init__(self, client: Any, connection: Any, watch: Watch, shard_hint: Any) -> None:
        super().__init__(client.connection_pool, client.response_callbacks, True, shard_hint)
        self._watch = watch
        self.connection, self.watching = connection, True

    def immediate_execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command at once, unless it must not be."""
        question = self._watch.question(args, is_watching=self.watching)
        if question is not None:
            self._watch.judge(args, self._ask(question))
        return self._send(*args, **options)

    def _ask(self, question: Any) -> Any:
        try:
            return self._send(*question, NEVER_DECODE=True)
        except ResponseError as error:
            return error

    def _send(self, *args: Any, **options: Any) -> Any:
        limit_time(self.connection, self._watch.reply_timeout())
        try:
            return super().immediate_execute_command(*args, **options)  # type: ignore[no-untyped-call]
        except ANSWERS:
            raise
        except BaseException as error:
            self._watch.broken = error
            raise

    def execute(self, raise_on_error: bool = True) -> NoReturn:
        """Not for ``func``; when it returns, what it queued is sent."""
        raise self._watch.refuse("calls execute(), which is done for it")

    def _apply(self) -> Any:
        watch = self._watch
        watch.check(self.command_stack, is_watching=self.watching)
        if self.watching and is_gone(self.connection):
            raise NotSent from RedisConnectionError("closed by the server")
        try:
            return super().execute()
        except Exception:
            watch.raise_if_broken()
            raise

    def _execute_transaction(self, connection: Any, commands: Any, raise_on_error: bool) -> Any:
        watch = self._watch
        limit_time(connection, watch.reply_timeout())
        watch.is_sent = bool(commands)
        try:
            return super()._execute_transaction(connection, commands, raise_on_error)
        except UNREACHABLE as error:
            watch.broken = error
            raise
        finally:
            # redis-py notes when it has read the reply to EXEC.
            watch.is_clean = not self.watching

    def reset(self) -> None:  # type: ignore[override]
        """Forget what was queued, and stop watching; the connection stays with the transaction."""
        self.command_stack, self.scripts = [], set()
        self.watching = self.explicit_transaction = False


def limit_time(connection: Any, seconds: float) -> None:
    """Give the server so many seconds for each reply from now on."""
    connection._sock.settimeout(max(0.001, seconds))


class BlockingSession:
    """See ``transaction.Session``."""

    pipe: Any = None

    def __init__(self, client: Any, connections: OwnConnections, shard_hint: Any) -> None:
        self._client, self._connections, self._shard_hint = client, connections, shard_hint
        self._connection: Any = None
        self._watch: Watch | None = None

    def watch(self, watch: Watch) -> Any:
        ends = clock.monotonic() + watch.reply_timeout()
        if self._connection is None:
            self._connection = self._connections.borrow(ends)
            # It would be a request of redis-py's own.
            self._connection.health_check_interval = 0
        ready(self._connection, ends)
        self._watch = watch
        self._retire_pipe()
        self.pipe = TransactionPipeline(self._client, self._connection, watch, self._shard_hint)
        watching, stored = self._exchange(watch.reply_timeout(), ("WATCH", *watch.keys), ("GET", watch.keys[0]))
        if isinstance(watching, Exception):
            raise watching
        return stored

    def apply(self) -> Any:
        return self.pipe._apply()

    def unwatch(self) -> None:
        watch = self._watch
        if watch is None or watch.is_clean:
            return
        try:
            if watch.broken is None and not is_gone(self._connection):
                self._exchange(GRACE_SECONDS, ("UNWATCH",))
                watch.is_clean = True
        except ReplyLost:
            self._connection.disconnect()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        self._retire_pipe()
        if self._watch is not None and not self._watch.is_clean:
            connection.disconnect()
        self._connections.give_back(connection)

    def _retire_pipe(self) -> None:
        """See that a pipeline which outlives its attempt is of no use."""
        if self.pipe is not None:
            self.pipe.connection = None
            self.pipe.reset()

    def _exchange(self, seconds: float, *commands: Any) -> list[Any]:
        """Send commands in one piece; return their replies, an error of the server in its place."""
        connection = self._connection
        try:
            limit_time(connection, seconds)
            connection.send_packed_command(connection.pack_commands(commands))
            return [self._read() for _ in commands]
        except UNREACHABLE as error:
            connection.disconnect()
            raise ReplyLost from named(error)

    def _read(self) -> Any:
        try:
            return self._connection.read_response(disable_decoding=True)
        except ANSWERS as error:
            return error
