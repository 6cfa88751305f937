"""
Transactions under locks that block and under locks that await, from one text.

What a transaction does is written as a generator, which yields what the pipeline returns and is sent the reply:

    def sell(pipe):
        left = int((yield pipe.get("stock")))
        pipe.multi()
        pipe.set("stock", left - 1)
        return left
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from inspect import isawaitable, isgenerator
from typing import Any

import redis
from redis import _parsers as parsers
from redis.asyncio import Redis as AsyncRedis

from fenced_locks import AsyncFencedLock, FencedLock

_PARSERS: dict[Any, Any] = {
    parsers._RESP2Parser: parsers._AsyncRESP2Parser,
    parsers._HiredisParser: parsers._AsyncHiredisParser,
}
Steps = Callable[[Any], Any]


class Blocking:
    """Locks that block."""

    lock_class: Any = FencedLock

    def __init__(self) -> None:
        self._clients: list[redis.Redis] = []

    def client(self, url: str, **options: Any) -> Any:
        """Return a client, closed with this."""
        self._clients.append(redis.Redis.from_url(url, **options))
        return self._clients[-1]

    def lock(self, client: Any, name: str = "order:1", **options: Any) -> Any:
        """Return a lock that is held."""
        lock = self.lock_class(client, name, **{"timeout": 20, **options})
        assert self.wait(lock.acquire())
        return lock

    def wait(self, result: Any) -> Any:
        """Return what comes of a call."""
        return result

    def transact(self, lock: Any, steps: Steps, *watches: Any, **options: Any) -> Any:
        """Run a transaction of a lock, or redis-py's own of a client."""
        return self.wait(lock.transaction(self.function(steps), *watches, **options))

    def function(self, steps: Steps) -> Callable[[Any], Any]:
        """Return the function that redis-py would be given."""

        def func(pipe: Any) -> Any:
            plan = steps(pipe)
            if not isgenerator(plan):
                return plan
            reply = None
            try:
                while True:
                    reply = plan.send(reply)
            except StopIteration as done:
                return done.value

        return func

    def close(self) -> None:
        """Close what is open."""
        for client in self._clients:
            client.close()


class Awaiting(Blocking):
    """Locks that await, in one event loop; every call is a task of its own."""

    lock_class = AsyncFencedLock

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._made: list[AsyncRedis] = []

    def client(self, url: str, **options: Any) -> Any:
        if "parser_class" in options:
            options["parser_class"] = _PARSERS[options["parser_class"]]
        self._made.append(AsyncRedis.from_url(url, **options))
        return self._made[-1]

    def wait(self, result: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(result, 30))

    def function(self, steps: Steps) -> Callable[[Any], Any]:
        async def func(pipe: Any) -> Any:
            plan: Any = steps(pipe)
            if not isgenerator(plan):
                return await plan if isawaitable(plan) else plan
            step, sent = plan.send, None
            while True:
                try:
                    asked = step(sent)
                except StopIteration as done:
                    return done.value
                try:
                    step, sent = plan.send, await asked if isawaitable(asked) else asked
                except redis.RedisError as error:
                    step, sent = plan.throw, error

        return func

    def close(self) -> None:
        self.loop.run_until_complete(self._end())
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    async def _end(self) -> None:
        for client in self._made:
            await client.aclose()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def sell(pipe: Any) -> Any:
    """Take one from the stock, and write so into the ledger."""
    left = int((yield pipe.get("stock")))
    pipe.multi()
    pipe.set("stock", left - 1)
    pipe.rpush("ledger", left)
    return left


def nothing(pipe: Any) -> Any:
    """Queue nothing."""
    return "nothing"


def fails_inside(pipe: Any) -> Any:
    """Queue a command that fails when it is applied."""
    yield pipe.get("stock")
    pipe.multi()
    pipe.incr("stock")
    pipe.lpush("stock", 1)


def fails_when_queued(pipe: Any) -> Any:
    """Queue a command that does not exist."""
    yield pipe.get("stock")
    pipe.multi()
    pipe.incr("stock")
    pipe.execute_command("NO-SUCH-COMMAND")


def gives_up(pipe: Any) -> Any:
    """Stop watching, and queue nothing."""
    yield pipe.unwatch()
    return "nothing"


def raises(pipe: Any) -> Any:
    """Queue a command and fail."""
    yield pipe.get("stock")
    pipe.multi()
    pipe.incr("stock")
    raise LookupError("no such thing")


def counted(steps: Steps, calls: list[Any]) -> Steps:
    """Return the steps, noting each call."""

    def counting(pipe: Any) -> Any:
        calls.append(pipe)
        result = steps(pipe)
        if isgenerator(result):
            return (yield from result)
        return (yield result)

    return counting
