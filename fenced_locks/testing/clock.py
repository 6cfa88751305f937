"""A clock that tests move: the local time of leases, and the ends of the test's locks at the server."""

from __future__ import annotations

from functools import partial
from typing import Any

from .. import clock
from ..durations import Duration, to_ms, to_seconds
from ..locks.async_renewal import look_everywhere
from ..locks.renewal import renewer
from .held import all_leases, tell_of_ends
from .isolation import active


def move_clock(seconds: Duration) -> None:
    """
    Let so much time pass at once, for leases and for those who wait, until the end of the isolated block.

    It is as if this process had been suspended for that long: nothing is renewed on the way, and a lease that was
    shorter is over, here and at the server. What is waited for is looked at within a tenth of a second of real time.
    Moved are the local time of this process, and the ends of the locks of this test at the server; not the server's own
    clock, so fence tokens do not jump, nor ``time.time()``, nor other processes.

    Args:
        seconds: How far, greater than 0.

    Raises:
        TypeError, ValueError: ``seconds`` is not a positive duration.
        RuntimeError: Outside an isolated block: locks of others would be moved, too.
    """
    isolation = active("move_clock()")
    distance = to_seconds("seconds", seconds)
    distance_ms = to_ms(distance)
    # The server first: were a lease renewed between the two, it would end here no later than there.
    for client in isolation.clients():
        for key in isolation.locks(client):
            _bring_nearer(client, key, distance_ms)
    clock.monotonic = partial(_later, clock.monotonic, distance)
    for lease in all_leases():
        lease.server_end_ms = max(0, lease.server_end_ms - distance_ms)
    tell_of_ends()
    renewer.look()
    look_everywhere()


def _bring_nearer(client: Any, key: bytes, distance_ms: int) -> None:
    left_ms = client.pttl(key)
    if left_ms > distance_ms:
        client.pexpire(key, left_ms - distance_ms)
    elif left_ms >= 0:
        client.delete(key)


def _later(now: Any, distance: float) -> float:
    return float(now()) + distance
