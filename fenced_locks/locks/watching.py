"""
One attempt at a transaction: what it watches, what its function may send, and what became of its connection.

A write of a watched key before ``multi()`` is refused before it is sent. That every attempt is in vain does not prove
one: others write as well. What a command may do to which key is asked of the server, which knows also the commands
of its modules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from redis.exceptions import DataError, NoPermissionError, ResponseError, WatchError

from ..exceptions import InvalidTransaction
from ..wire import NotSent, ReplyLost
from ..wire.connecting import named

# Name and arguments as redis-py passes them on.
Command: TypeAlias = Sequence[Any]

# Known to read only, so that the server need not be asked. Not PFCOUNT, which may store what it has counted.
READS = frozenset({
    "BITCOUNT", "BITPOS", "EXISTS", "GET", "GETBIT", "GETRANGE", "HEXISTS", "HGET", "HGETALL", "HKEYS", "HLEN", "HMGET",
    "HSCAN", "HSTRLEN", "HVALS", "LINDEX", "LLEN", "LPOS", "LRANGE", "MGET", "PTTL", "SCARD", "SDIFF", "SINTER",
    "SISMEMBER", "SMEMBERS", "SMISMEMBER", "SRANDMEMBER", "SSCAN", "STRLEN", "SUNION", "TTL", "TYPE", "XLEN", "XRANGE",
    "XREVRANGE", "ZCARD", "ZCOUNT", "ZLEXCOUNT", "ZMSCORE", "ZRANGE", "ZRANGEBYSCORE", "ZRANK", "ZREVRANGE", "ZREVRANK",
    "ZSCAN", "ZSCORE",
})  # fmt: skip
# They would take the connection out of the transaction's hands.
_CONTROL = frozenset({"AUTH", "DISCARD", "EXEC", "HELLO", "MULTI", "QUIT", "RESET", "SELECT"})
# They name no key and write all.
_WHOLE_DATABASE = frozenset({"FLUSHALL", "FLUSHDB", "SWAPDB"})


@dataclass(slots=True)
class Watch:
    """
    What one attempt is about.

    Attributes:
        resource: Name of the lock, for messages.
        keys: What is watched; the lock key first.
        encode: How the client turns arguments into bytes.
        reply_timeout: Returns how long to wait for a reply that is asked for now, in seconds.
        is_clean: Whether others may use the connection: it watches nothing, and no reply is due.
        broken: What ended the connection, or left a reply due on it.
        refused: The first thing that the function must not do.
        is_sent: Whether writes may have been sent.
    """

    resource: str
    keys: list[bytes]
    encode: Callable[[Any], bytes]
    reply_timeout: Callable[[], float]
    is_clean: bool = False
    broken: BaseException | None = None
    refused: InvalidTransaction | None = None
    is_sent: bool = False

    def question(self, command: Command, *, is_watching: bool) -> Command | None:
        """
        Look at a command that is to be sent at once; return what to ask the server about it first, if anything.

        Raises:
            InvalidTransaction: It is refused.
            redis.exceptions.WatchError: The connection is lost, so the transaction has to begin again.
        """
        words = _words(command)
        if words[0] in _CONTROL:
            raise self.refuse(f"sends {words[0]}, and the connection is not its own")
        if self.broken is not None:
            raise WatchError("the connection was lost while keys were watched")
        if not is_watching:
            raise self.refuse(f"sends {words[0]} after it has given up what is watched")
        if words[0] == "WATCH":
            self.keys += map(self.encode, command[1:])
        elif words[0] in _WHOLE_DATABASE:
            raise self._refuse_write(words[0], "every key")
        elif words[0] not in READS and self._named(command):
            return ("COMMAND GETKEYSANDFLAGS", *words, *command[1:])
        return None

    def judge(self, command: Command, answer: Any) -> None:
        """
        Look at what the server says of a command: the keys that it names, each with flags; or an error.

        Raises:
            InvalidTransaction: It may write what is watched.
        """
        if not isinstance(answer, ResponseError):
            written = [bytes(key) for key, flags in answer if b"RO" not in flags and key in self.keys]
        elif isinstance(answer, NoPermissionError) or "unknown" in str(answer).lower():
            # The server does not tell.
            written = self._named(command)
        else:
            # It names no key, or is wrong, as the server will say.
            return
        if written:
            raise self._refuse_write(_words(command)[0], repr(written[0].decode(errors="backslashreplace")))

    def check(self, queue: Sequence[tuple[Command, Any]], *, is_watching: bool) -> None:
        """
        Look at what was queued, before it is sent.

        Raises:
            InvalidTransaction: It is refused, or something before was.
            NotSent: The connection was lost.
        """
        if self.refused is not None:
            raise self.refused
        self.raise_if_broken()
        for command, _ in queue:
            if (name := _words(command)[0]) in _CONTROL:
                raise self.refuse(f"queues {name}, and the connection is not its own")
        if queue and not is_watching:
            raise self.refuse("queues writes after it has given up what is watched")

    def raise_if_broken(self) -> None:
        """
        Say what is known of the attempt if its connection was lost, which redis-py calls a conflict.

        Raises:
            NotSent: No write was sent.
            ReplyLost: What was queued may have been applied.
        """
        if self.broken is None:
            return
        cause = self.broken.__context__ if isinstance(self.broken, WatchError) else self.broken
        cause = named(cause if isinstance(cause, Exception) else ConnectionError(repr(self.broken)))
        raise (ReplyLost if self.is_sent else NotSent) from cause

    def refuse(self, what: str) -> InvalidTransaction:
        """Return the error for something that the function does, and keep it: the function might swallow it."""
        error = InvalidTransaction(f"the function of a transaction under {self.resource!r} {what}")
        error.resource = self.resource
        self.refused = self.refused or error
        return error

    def _refuse_write(self, name: str, key: str) -> InvalidTransaction:
        return self.refuse(
            f"sends {name} before multi(), which may write {key}, and that is watched: nothing could ever be applied; "
            "queue it after multi(), or use a command that only reads"
        )

    def _named(self, command: Command) -> list[bytes]:
        """Return which of the watched keys are among the arguments."""
        try:
            return [argument for argument in map(self.encode, command[1:]) if argument in self.keys]
        except DataError:
            # redis-py will say so.
            return []


def _words(command: Command) -> list[str]:
    """Return the name of a command, which redis-py may have joined with that of its subcommand."""
    name = command[0]
    return (name.decode() if isinstance(name, bytes) else str(name)).upper().split()
