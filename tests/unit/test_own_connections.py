"""Tasks wait for a connection in the order in which they came, and none is forgotten."""

import asyncio

import pytest

from fenced_locks.wire import NotSent
from fenced_locks.wire.aio_own import AsyncOwnConnections


def test_who_is_called_and_cancelled_in_one_moment_has_the_next_called():
    async def main():
        own = AsyncOwnConnections(asyncio.get_running_loop(), object, 1)
        connection = await own.borrow(1)
        first, second = (asyncio.ensure_future(own.borrow(5)) for _ in range(2))
        await asyncio.sleep(0)
        own.give_back(connection)
        first.cancel()
        assert await asyncio.wait_for(second, 2) is connection
        assert first.cancelled()

    asyncio.run(main())


def test_who_gives_up_waiting_is_not_called():
    async def main():
        own = AsyncOwnConnections(asyncio.get_running_loop(), object, 1)
        connection = await own.borrow(1)
        with pytest.raises(NotSent):
            await own.borrow(0.01)
        later = asyncio.ensure_future(own.borrow(5))
        await asyncio.sleep(0)
        own.give_back(connection)
        assert await asyncio.wait_for(later, 2) is connection

    asyncio.run(main())
